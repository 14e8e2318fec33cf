// e^x and the sigmoid on the special function unit.
#pragma once
#include "ptx/approximate.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// e^x: relative error 2^-22 + |x| 2^-24; 0 below -87.3, inf above 88.7, NaN stays.
__device__ __forceinline__ float exp_approx(float x) { return ex2_approx(x * LOG2_E); }

// 1 / (1 + e^-x); 0 below -87.3.
__device__ __forceinline__ float sigmoid_approx(float x) { return rcp_approx(1.0f + exp_approx(-x)); }

//! Products of bf16 matrices by cuBLASLt, opened at run time: a card without the library runs the kernels instead.
//!
//! The library is column-major: a row-major `[rows, columns]` matrix is its `columns x rows` matrix with the row stride as
//! leading dimension. So `out^T [n x t] = (weight^T)^T [n x k] x^T [k x t]`, every group one product of a strided batch.
//! Like every library of its kind it picks an algorithm by shape: the order of a sum may depend on the number of tokens, but
//! equal calls give equal bytes.

use crate::device::Matmul;
use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// What NVIDIA advises from Hopper on.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Shapes whose algorithm is remembered; batches of ever new sizes start over.
const SHAPES_MOST: usize = 4096;

/// A handle of the library with its workspace.
#[derive(Debug)]
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    plans: Mutex<HashMap<Shape, Option<Plan>>>,
}

// SAFETY: the handle, and the descriptors in `plans`, are plain identifiers of a library whose calls are thread-safe for one
// handle (cuBLASLt keeps no state between calls on it); the map is behind a lock.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

/// Everything that an algorithm is chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    sizes: [u32; 4],
    strides: [u64; 2],
    out_bf16: bool,
}

/// Descriptors and algorithm of a shape.
#[derive(Debug)]
struct Plan {
    operation: Operation,
    weight: Layout,
    x: Layout,
    out: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

#[derive(Debug)]
struct Operation(sys::cublasLtMatmulDesc_t);
#[derive(Debug)]
struct Layout(sys::cublasLtMatrixLayout_t);
struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: made by `Operation::new`, destroyed once; the error of destroying has no taker.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `Layout::new`, destroyed once; the error of destroying has no taker.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `Plan::new`, destroyed once; the error of destroying has no taker.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        // SAFETY: made by `open`, destroyed once, after every descriptor; the error of destroying has no taker.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

type Result<T> = std::result::Result<T, result::CublasError>;

impl Operation {
    /// f32 sums and factors, the first operand transposed.
    fn new() -> Result<Self> {
        let new = Self(result::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType::CUDA_R_32F,
        )?);
        let transposed = 1i32; // CUBLAS_OP_T
        let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: the descriptor lives; the attribute is read from a value of its type and size.
        unsafe {
            result::set_matmul_desc_attribute(
                new.0,
                attribute,
                (&raw const transposed).cast(),
                size_of_val(&transposed),
            )?
        };
        Ok(new)
    }
}

impl Layout {
    /// `rows x columns`, `groups` of them `batch_stride` elements apart.
    fn new(
        kind: sys::cudaDataType,
        [rows, columns]: [u32; 2],
        leading: u64,
        groups: u32,
        batch_stride: u64,
    ) -> Result<Self> {
        let new = Self(result::create_matrix_layout(kind, rows.into(), columns.into(), leading as i64)?);
        use sys::cublasLtMatrixLayoutAttribute_t::{
            CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
        };
        let (count, stride) = (groups as i32, batch_stride as i64);
        // SAFETY: the descriptor lives; both attributes are read from values of their types and sizes (s32 and s64).
        unsafe {
            result::set_matrix_layout_attribute(
                new.0,
                CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                (&raw const count).cast(),
                4,
            )?;
            let offset = CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            result::set_matrix_layout_attribute(new.0, offset, (&raw const stride).cast(), 8)?;
        }
        Ok(new)
    }
}

impl Plan {
    fn new(handle: sys::cublasLtHandle_t, shape: &Shape) -> Result<Self> {
        let [t, groups, n, k] = shape.sizes;
        let bf16 = sys::cudaDataType::CUDA_R_16BF;
        let out_kind = if shape.out_bf16 { bf16 } else { sys::cudaDataType::CUDA_R_32F };
        let operation = Operation::new()?;
        let weight = Layout::new(bf16, [k, n], k.into(), groups, u64::from(n) * u64::from(k))?;
        let x = Layout::new(bf16, [k, t], shape.strides[0], groups, k.into())?;
        let out = Layout::new(out_kind, [n, t], shape.strides[1], groups, n.into())?;
        let preference = Preference(result::create_matmul_pref()?);
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let workspace = WORKSPACE_BYTES;
        // SAFETY: all descriptors live until the end of this function; the attribute is read from a value of its size.
        let found = unsafe {
            result::set_matmul_pref_attribute(preference.0, attribute, (&raw const workspace).cast(), 8)?;
            result::get_matmul_algo_heuristic(handle, operation.0, weight.0, x.0, out.0, out.0, preference.0)?
        };
        Ok(Self { operation, weight, x, out, algorithm: found.algo })
    }
}

impl CublasLt {
    /// Opens the library for the context of `stream`. `Err` says what is missing.
    pub(crate) fn open(stream: &Arc<CudaStream>) -> std::result::Result<Self, String> {
        // SAFETY: opens and closes the library, which does nothing when it is loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err("cuBLASLt is not installed".into());
        }
        stream.context().bind_to_thread().map_err(|e| e.to_string())?;
        // SAFETY: the workspace is scratch of the library: nobody reads it before it is written.
        let workspace = unsafe { stream.alloc::<u8>(WORKSPACE_BYTES) }.map_err(|e| e.to_string())?;
        let handle = result::create_handle().map_err(|e| format!("cuBLASLt does not start: {e}"))?;
        Ok(Self { handle, workspace, plans: Mutex::default() })
    }

    /// Puts the product on `stream`. `None` when the library has no algorithm for the shape.
    ///
    /// # Safety
    /// Addresses in `of` are of device memory that holds the matrices and outlives the work on `stream`.
    pub(crate) unsafe fn matmul(
        &self,
        stream: &Arc<CudaStream>,
        of: &Matmul,
    ) -> Option<std::result::Result<(), String>> {
        if let Err(error) = stream.context().bind_to_thread() {
            return Some(Err(error.to_string()));
        }
        let shape = Shape {
            sizes: [of.t, of.groups, of.n, of.k],
            strides: [of.stride_x, of.stride_out],
            out_bf16: of.out_bf16,
        };
        let mut plans = self.plans.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if plans.len() >= SHAPES_MOST {
            plans.clear();
        }
        // A shape that was refused once is refused again without asking.
        let plan = plans.entry(shape).or_insert_with(|| Plan::new(self.handle, &shape).ok()).as_ref()?;
        let (alpha, beta) = (1.0f32, if of.accumulate { 1.0f32 } else { 0.0 });
        let pointer = |address: u64| address as *mut c_void;
        // SAFETY: handle and descriptors live; the matrices lie in device memory (contract) with the sizes and strides that the
        // layouts say (checked by `linear`); the factors are read before the call returns; the workspace is used by this
        // stream alone, one product after the other.
        let outcome = unsafe {
            result::matmul(
                self.handle,
                plan.operation.0,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                pointer(of.weight),
                plan.weight.0,
                pointer(of.x),
                plan.x.0,
                pointer(of.out),
                plan.out.0,
                pointer(of.out),
                plan.out.0,
                &plan.algorithm,
                pointer(self.workspace.device_ptr(stream).0),
                WORKSPACE_BYTES,
                stream.cu_stream().cast(),
            )
        };
        Some(outcome.map_err(|e| e.to_string()))
    }
}

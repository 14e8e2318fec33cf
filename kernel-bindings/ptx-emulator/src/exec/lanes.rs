//! Values of a whole warp, and loops over its lanes.
//!
//! A register of a warp is 32 lane values in a row. Arithmetic runs over all of them, whatever the active mask is, and
//! the result is then blended in under the mask: the loops below have no condition inside and the compiler turns them
//! into vector code. They exist twice, for the plain target and for AVX2 with FMA, and pick at run time.

use std::sync::OnceLock;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// Mask of all lanes.
pub(crate) const FULL: u32 = u32::MAX;

/// One value per lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Lanes<T>(pub(crate) [T; LANES]);

pub(crate) type L32 = Lanes<u32>;
pub(crate) type L64 = Lanes<u64>;

impl<T: Copy + Default> Lanes<T> {
    #[inline(always)]
    pub(crate) fn splat(value: T) -> Self {
        Self([value; LANES])
    }
}

impl L32 {
    /// Replaces the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn blend(&mut self, new: &Self, mask: u32) {
        if mask == FULL {
            *self = *new;
        } else {
            for i in 0..LANES {
                let keep = (mask >> i & 1).wrapping_sub(1);
                self.0[i] = self.0[i] & keep | new.0[i] & !keep;
            }
        }
    }
}

impl L64 {
    /// Replaces the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn blend(&mut self, new: &Self, mask: u32) {
        if mask == FULL {
            *self = *new;
        } else {
            for i in 0..LANES {
                let keep = u64::from(mask >> i & 1).wrapping_sub(1);
                self.0[i] = self.0[i] & keep | new.0[i] & !keep;
            }
        }
    }
}

/// Iterates over the set bits of a lane mask.
#[inline(always)]
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}

/// Whether the AVX2 versions may run.
#[inline(always)]
pub(crate) fn wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static WIDE: OnceLock<bool> = OnceLock::new();
        *WIDE.get_or_init(|| {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt")
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

macro_rules! lane_loops {
    ($($(#[$doc:meta])* $name:ident / $plain:ident / $avx2:ident ($($arg:ident: $ty:ident),+) -> $out:ty = |$i:ident, $r:ident, $f:ident| $body:expr, $init:expr;)+) => {$(
        #[inline(always)]
        fn $plain<$($ty: Copy,)+ D: Copy + Default, F: Fn($($ty),+) -> D>($($arg: &Lanes<$ty>,)+ $f: F) -> $out {
            let mut $r = $init;
            for $i in 0..LANES {
                $body
            }
            $r
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt")]
        fn $avx2<$($ty: Copy,)+ D: Copy + Default, F: Fn($($ty),+) -> D>($($arg: &Lanes<$ty>,)+ $f: F) -> $out {
            $plain($($arg,)+ $f)
        }
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name<$($ty: Copy,)+ D: Copy + Default, F: Fn($($ty),+) -> D>($($arg: &Lanes<$ty>,)+ f: F) -> $out {
            #[cfg(target_arch = "x86_64")]
            if wide() {
                // SAFETY: `wide` is true only where the CPU has every feature that the callee enables.
                return unsafe { $avx2($($arg,)+ f) };
            }
            $plain($($arg,)+ f)
        }
    )+};
}

lane_loops! {
    /// One source.
    map1 / map1_plain / map1_avx2 (a: A) -> Lanes<D> = |i, r, f| r.0[i] = f(a.0[i]), Lanes([D::default(); LANES]);
    /// Two sources.
    map2 / map2_plain / map2_avx2 (a: A, b: B) -> Lanes<D> = |i, r, f| r.0[i] = f(a.0[i], b.0[i]), Lanes([D::default(); LANES]);
    /// Three sources.
    map3 / map3_plain / map3_avx2 (a: A, b: B, c: C) -> Lanes<D> = |i, r, f| r.0[i] = f(a.0[i], b.0[i], c.0[i]), Lanes([D::default(); LANES]);
}

#[inline(always)]
fn test2_plain<A: Copy, B: Copy, F: Fn(A, B) -> bool>(a: &Lanes<A>, b: &Lanes<B>, f: F) -> u32 {
    let mut mask = 0;
    for i in 0..LANES {
        mask |= u32::from(f(a.0[i], b.0[i])) << i;
    }
    mask
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt")]
fn test2_avx2<A: Copy, B: Copy, F: Fn(A, B) -> bool>(a: &Lanes<A>, b: &Lanes<B>, f: F) -> u32 {
    test2_plain(a, b, f)
}

/// A predicate of two sources, as a lane mask.
#[inline(always)]
pub(crate) fn test2<A: Copy, B: Copy, F: Fn(A, B) -> bool>(a: &Lanes<A>, b: &Lanes<B>, f: F) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if wide() {
        // SAFETY: `wide` is true only where the CPU has every feature that the callee enables.
        return unsafe { test2_avx2(a, b, f) };
    }
    test2_plain(a, b, f)
}

//! Scalar products of eight weight rows with a few vectors at a time: the inner loop of every matrix product of the host.
//!
//! Rows and vectors are both contiguous along the sum, so nothing is packed: a block keeps one vector of partial sums per
//! (row, vector), and the weights are read once for all vectors of the block. The partial sums of a pair are added in one
//! order, whatever stands beside it in the block: a result depends on neither the number of vectors nor the place of a row.

use super::simd;

/// Weight rows of a block.
pub(super) const ROWS: usize = 8;
/// Vectors of a block, at most: 24 sums, 3 vectors and a weight fit the registers of AVX-512.
pub(super) const VECTORS: usize = 3;

/// How weights stand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    F32,
    Bf16,
}

impl Storage {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::Bf16 => 2,
        }
    }
}

/// Vector instructions that this machine was found to have: the token of pulp that says so is looked at where one is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level(Instructions);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    /// What the compiler makes of loops over 16 lanes.
    Portable,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The instructions that [`simd`] uses.
    pub(super) fn detect() -> Level {
        Level(match simd::arch() {
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V4(_) => Instructions::Avx512,
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V3(_) => Instructions::Avx2,
            _ => Instructions::Portable,
        })
    }
}

/// `out[c][r] = sum_k w[r, k] x[c][k]` for the first `rows` (1 to 8) rows of `weights`; what stands in `out[c][rows..]` has
/// no meaning. Vectors are f32 bytes; `k` is a multiple of 32.
pub(super) fn dots<const C: usize>(
    level: Level,
    storage: Storage,
    weights: &[u8],
    rows: usize,
    k: usize,
    x: [&[u8]; C],
) -> [[f32; ROWS]; C] {
    let row_bytes = storage.bytes() * k;
    assert!(k.is_multiple_of(32) && (1..=ROWS).contains(&rows), "{rows} rows of {k}");
    assert!(weights.len() >= rows * row_bytes && x.iter().all(|x| x.len() >= 4 * k), "operands of a block");
    // Rows beyond the last repeat it.
    let w: [&[u8]; ROWS] = std::array::from_fn(|r| &weights[r.min(rows - 1) * row_bytes..][..row_bytes]);
    match level.0 {
        Instructions::Portable => portable(storage, w, k, x),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Level` of AVX2 is only made from a token of AVX2 with FMA; the slices are as long as asserted.
        Instructions::Avx2 => unsafe {
            match storage {
                Storage::F32 => x86::dots_avx2::<false, C>(w, k, x),
                Storage::Bf16 => x86::dots_avx2::<true, C>(w, k, x),
            }
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Level` of AVX-512 is only made from a token of AVX-512 F and AVX2; the slices are as long as asserted.
        Instructions::Avx512 => unsafe {
            match storage {
                Storage::F32 => x86::dots_avx512::<false, C>(w, k, x),
                Storage::Bf16 => x86::dots_avx512::<true, C>(w, k, x),
            }
        },
    }
}

fn portable<const C: usize>(storage: Storage, w: [&[u8]; ROWS], k: usize, x: [&[u8]; C]) -> [[f32; ROWS]; C] {
    const LANES: usize = 16;
    let mut out = [[0.0; ROWS]; C];
    for (row, w) in w.iter().enumerate() {
        let mut weights = [0.0f32; LANES];
        let mut sums = [[0.0f32; LANES]; C];
        for at in (0..k).step_by(LANES) {
            for (lane, weight) in weights.iter_mut().enumerate() {
                let element = at + lane;
                *weight = match storage {
                    Storage::F32 => super::numbers::f32_at(w, element),
                    Storage::Bf16 => super::numbers::bf16_at(w, element),
                };
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                for lane in 0..LANES {
                    sums[lane] += weights[lane] * super::numbers::f32_at(x, at + lane);
                }
            }
        }
        for (out, mut sums) in out.iter_mut().zip(sums) {
            for width in [8, 4, 2, 1] {
                for lane in 0..width {
                    sums[lane] += sums[lane + width];
                }
            }
            out[row] = sums[0];
        }
    }
    out
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::ROWS;
    use std::arch::x86_64::*;

    /// The same lines for each number: only constant indices let an array of vectors live in registers.
    macro_rules! unrolled {
        ($index:ident in $($number:literal)* $body:block) => {
            $({
                const $index: usize = $number;
                $body
            })*
        };
    }

    /// # Safety
    /// AVX-512 F is there; every row has `k` elements of 4 (bf16: 2) bytes, every vector `k` of 4; 16 divides `k`.
    #[target_feature(enable = "avx512f,avx2")]
    pub(super) unsafe fn dots_avx512<const BF16: bool, const C: usize>(
        w: [&[u8]; ROWS],
        k: usize,
        x: [&[u8]; C],
    ) -> [[f32; ROWS]; C] {
        let (w, x) = (w.map(<[u8]>::as_ptr), x.map(<[u8]>::as_ptr));
        let mut sums = [[_mm512_setzero_ps(); ROWS]; C];
        let mut at = 0;
        while at < k {
            // SAFETY: elements at..at + 16 lie below k, so inside every row and vector; the loads ask for no alignment.
            unsafe {
                let xs = x.map(|x| _mm512_loadu_ps(x.add(4 * at).cast()));
                unrolled!(R in 0 1 2 3 4 5 6 7 {
                    let weights = if BF16 {
                        let codes = _mm256_loadu_si256(w[R].add(2 * at).cast());
                        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(codes)))
                    } else {
                        _mm512_loadu_ps(w[R].add(4 * at).cast())
                    };
                    unrolled!(V in 0 1 2 {
                        if V < C {
                            sums[V][R] = _mm512_fmadd_ps(weights, xs[V], sums[V][R]);
                        }
                    });
                });
            }
            at += 16;
        }
        let mut out = [[0.0; ROWS]; C];
        for (out, sums) in out.iter_mut().zip(sums) {
            let halves = sums.map(|s| {
                let upper = _mm512_castpd_ps(_mm512_castpd256_pd512(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(s))));
                _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_castps512_ps256(upper))
            });
            *out = reduce(halves);
        }
        out
    }

    /// # Safety
    /// AVX2 and FMA are there; lengths as for [`dots_avx512`], 8 divides `k`.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn dots_avx2<const BF16: bool, const C: usize>(
        w: [&[u8]; ROWS],
        k: usize,
        x: [&[u8]; C],
    ) -> [[f32; ROWS]; C] {
        let (w, x) = (w.map(<[u8]>::as_ptr), x.map(<[u8]>::as_ptr));
        let mut all = [[_mm256_setzero_ps(); ROWS]; C];
        // Twelve sums, three vectors and a weight fill the sixteen registers: four rows at a time.
        for first in [0, ROWS / 2] {
            let w: [*const u8; ROWS / 2] = std::array::from_fn(|r| w[first + r]);
            let mut sums = [[_mm256_setzero_ps(); ROWS / 2]; C];
            let mut at = 0;
            while at < k {
                // SAFETY: elements at..at + 8 lie below k, so inside every row and vector; the loads ask for no alignment.
                unsafe {
                    let xs = x.map(|x| _mm256_loadu_ps(x.add(4 * at).cast()));
                    unrolled!(R in 0 1 2 3 {
                        let weights = if BF16 {
                            let codes = _mm_loadu_si128(w[R].add(2 * at).cast());
                            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(codes)))
                        } else {
                            _mm256_loadu_ps(w[R].add(4 * at).cast())
                        };
                        unrolled!(V in 0 1 2 {
                            if V < C {
                                sums[V][R] = _mm256_fmadd_ps(weights, xs[V], sums[V][R]);
                            }
                        });
                    });
                }
                at += 8;
            }
            for (all, sums) in all.iter_mut().zip(sums) {
                all[first..first + ROWS / 2].copy_from_slice(&sums);
            }
        }
        all.map(|sums| reduce(sums))
    }

    /// Sums over the lanes of each of eight vectors, every one in the same order.
    #[target_feature(enable = "avx2")]
    fn reduce(s: [__m256; ROWS]) -> [f32; ROWS] {
        let pairs = [
            _mm256_hadd_ps(s[0], s[1]),
            _mm256_hadd_ps(s[2], s[3]),
            _mm256_hadd_ps(s[4], s[5]),
            _mm256_hadd_ps(s[6], s[7]),
        ];
        let fours = [_mm256_hadd_ps(pairs[0], pairs[1]), _mm256_hadd_ps(pairs[2], pairs[3])];
        // Lower and upper halves of both: sums of rows 0..4 and 4..8.
        let low = _mm256_permute2f128_ps::<0x20>(fours[0], fours[1]);
        let high = _mm256_permute2f128_ps::<0x31>(fours[0], fours[1]);
        let mut out = [0.0; ROWS];
        // SAFETY: eight floats are written to an array of eight; the store asks for no alignment.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(low, high)) };
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this machine has, the best and less.
    fn levels() -> Vec<Level> {
        let mut levels = vec![Level::detect(), Level(Instructions::Portable)];
        #[cfg(target_arch = "x86_64")]
        if pulp::x86::V3::try_new().is_some() {
            levels.push(Level(Instructions::Avx2));
        }
        levels
    }

    fn bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
        values.flat_map(f32::to_le_bytes).collect()
    }

    /// Small integers: every sum is exact, so every level and block must give it, for every number of rows and vectors.
    #[test]
    fn every_level_gives_exact_sums() {
        for level in levels() {
            for k in [32, 96, 160] {
                let w = |r: usize, i: usize| ((7 * r + 3 * i) % 11) as f32 - 5.0;
                let x = |c: usize, i: usize| ((5 * c + 2 * i) % 13) as f32 - 6.0;
                let vectors: Vec<Vec<u8>> = (0..VECTORS).map(|c| bytes((0..k).map(|i| x(c, i)))).collect();
                for rows in 1..=ROWS {
                    let f32s = bytes((0..rows * k).map(|at| w(at / k, at % k)));
                    let bf16s: Vec<u8> = f32s.chunks_exact(4).flat_map(|b| [b[2], b[3]]).collect();
                    for (storage, weights) in [(Storage::F32, &f32s), (Storage::Bf16, &bf16s)] {
                        let [a, b, c] = [&vectors[0][..], &vectors[1], &vectors[2]];
                        let three = dots(level, storage, weights, rows, k, [a, b, c]);
                        let two = dots(level, storage, weights, rows, k, [a, b]);
                        let one = dots(level, storage, weights, rows, k, [a]);
                        for r in 0..rows {
                            for (vector, got) in three.iter().chain(&two).chain(&one).enumerate() {
                                let c = [0, 1, 2, 0, 1, 0][vector];
                                let want: f32 = (0..k).map(|i| w(r, i) * x(c, i)).sum();
                                assert_eq!(got[r], want, "{level:?} {storage:?} k {k} row {r} vector {vector}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "operands of a block")]
    fn short_operands_are_refused() {
        dots(Level::detect(), Storage::F32, &[0; 4 * 31], 1, 32, [&[0; 128]]);
    }
}

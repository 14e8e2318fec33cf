//! What the cases of both writers share: rows with awkward values, slots in random order, a cache full of noise.

use super::{Draw, invalid};
use crate::formats::{AMAX_FLOOR, E2M1_MAX, MXFP4_TILE, bf16, bf16_bytes, f32_bytes, s32_bytes};
use crate::layout::{D_INDEX, NOPE_TILE};
use crate::ops::{Dtype, IndexKFormat, Pages, ScaleRule};
use crate::problem::{Memory, RowFormat, WriteProblem};
use crate::rng::Rng;

/// Values of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// Independent draws, every row of another size.
    Random(Draw),
    /// Tiles whose largest magnitude is a power of two, or 448 or 6 times one, one step below and one above.
    Thresholds,
    /// Zero rows of both signs, and rows below the floor of the format, just below and just above it.
    Small,
    /// Values half way between two codes.
    Ties,
    /// NaN and infinities among ordinary values.
    NotFinite,
    /// Largest finite values, subnormals, and both in one row.
    Extremes,
}

/// A problem in words.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) dtype: Dtype,
    pub(super) format: RowFormat,
    pub(super) scale_rule: ScaleRule,
    pub(super) t: u32,
    pub(super) rows: Rows,
    /// Share of tokens without a slot.
    pub(super) skipped: f64,
    pub(super) page_size: u32,
    pub(super) page_pad: u64,
    /// Elements between rows beyond their width, a multiple of 8.
    pub(super) stride_pad: u64,
    /// First page in use.
    pub(super) first_page: u32,
}

impl Shape {
    pub(super) fn of(format: RowFormat, t: u32, rows: Rows) -> Shape {
        Shape {
            dtype: Dtype::Bf16,
            format,
            scale_rule: ScaleRule::Exact,
            t,
            rows,
            skipped: 0.2,
            page_size: 64,
            page_pad: 0,
            stride_pad: 0,
            first_page: 0,
        }
    }

    fn width(&self) -> usize {
        match self.format {
            RowFormat::Kv(format) => format.d() as usize,
            RowFormat::IndexK(format) => format.d() as usize,
        }
    }

    /// Channels that share a scale, where the format has scales at all.
    fn tile(&self) -> usize {
        match self.format {
            RowFormat::IndexK(IndexKFormat::Fp4) => MXFP4_TILE,
            RowFormat::IndexK(IndexKFormat::Fp8) => D_INDEX,
            _ => NOPE_TILE,
        }
    }

    /// A positive number of the rows' type, `steps` units in the last place from `value`.
    fn near(&self, value: f32, steps: i32) -> f32 {
        match self.dtype {
            Dtype::F32 => f32::from_bits(value.to_bits().wrapping_add_signed(steps)),
            Dtype::Bf16 => bf16::from_bits(bf16::from_f32(value).to_bits().wrapping_add_signed(steps as i16)).to_f32(),
        }
    }

    pub(super) fn build(&self, seed: u64) -> WriteProblem {
        let mut rng = Rng::named(seed, "write");
        let t = self.t as usize;
        // A few more slots than tokens; at least two pages, so that neighbours exist.
        let used_pages = ((t + t / 4).div_ceil(self.page_size as usize) as u32).max(1) + 1;
        let num_pages = self.first_page + used_pages;
        let (mut pages, page_bytes) = match self.format {
            RowFormat::Kv(format) => (Pages::kv(format, num_pages, self.page_size), format.page_bytes(self.page_size)),
            RowFormat::IndexK(format) => {
                (Pages::index_k(format, num_pages, self.page_size), format.page_bytes(self.page_size))
            }
        };
        pages.page_stride_bytes += self.page_pad;

        let first_slot = self.first_page * self.page_size;
        let mut slots: Vec<i32> =
            (first_slot..first_slot + used_pages * self.page_size).map(|slot| slot as i32).collect();
        rng.shuffle(&mut slots);
        let mapping: Vec<i32> = (0..t)
            .map(|token| if rng.chance(self.skipped) { invalid(token, pages.num_slots()) } else { slots[token] })
            .collect();

        let stride_rows = self.width() as u64 + self.stride_pad;
        let size = self.dtype.bytes();
        let mut rows = Memory::undefined("rows", size * t as u64 * stride_rows);
        for token in 0..t {
            let row = self.row(&mut rng, token);
            let bytes = if self.dtype == Dtype::F32 { f32_bytes(&row) } else { bf16_bytes(&row) };
            rows.put(size * token as u64 * stride_rows, &bytes);
        }
        let len = u64::from(num_pages - 1) * pages.page_stride_bytes + page_bytes;
        let start = pages.page_start(self.first_page);
        let noise: Vec<u8> = (start..len).map(|_| rng.bits() as u8).collect();
        let mut cache = Memory::undefined("cache", len);
        cache.put(start, &noise);
        let watched = std::iter::once(start..len).collect();
        WriteProblem {
            dtype: self.dtype,
            format: self.format,
            scale_rule: self.scale_rule,
            rows,
            slot_mapping: Memory::full("slot_mapping", s32_bytes(&mapping)),
            cache,
            watched,
            pages,
            t: self.t,
            stride_rows,
        }
    }

    pub(super) fn row(&self, rng: &mut Rng, token: usize) -> Vec<f32> {
        let width = self.width();
        let size = (2.0 * rng.normal()).exp() as f32;
        let mut row: Vec<f32> = (0..width)
            .map(|_| match self.rows {
                Rows::Random(draw) => size * draw.value(rng),
                _ => rng.normal() as f32,
            })
            .collect();
        match self.rows {
            Rows::Random(_) => {}
            // The tile is scaled below its largest value, which stands at a random place of it.
            Rows::Thresholds => {
                for tile in row.chunks_mut(self.tile()) {
                    let top = [1.0, 448.0, 7.0, 3.5, 6.0][rng.below(5) as usize];
                    let largest = self.near(top, rng.below(3) as i32 - 1);
                    let largest = largest * 2f32.powi(rng.below(60) as i32 - 25);
                    let most = tile.iter().fold(0f32, |m, x| m.max(x.abs()));
                    tile.iter_mut().for_each(|x| *x *= 0.99 * largest / most);
                    let place = rng.below(tile.len() as u64) as usize;
                    tile[place] = if rng.chance(0.5) { largest } else { -largest };
                }
            }
            Rows::Small => {
                let fp4 = self.format == RowFormat::IndexK(IndexKFormat::Fp4);
                let floor = if fp4 { E2M1_MAX * f32::MIN_POSITIVE } else { AMAX_FLOOR };
                let size = match token % 5 {
                    0 => 0.0,
                    1 => -0.0,
                    2 => self.near(floor, -1),
                    3 => self.near(floor, 1),
                    _ => 1e-3 * floor,
                };
                row.iter_mut().for_each(|x| *x = size * x.clamp(-1.0, 1.0));
            }
            // With a largest value of 6 the scale is 1: every threshold of e2m1, and its neighbours.
            Rows::Ties if self.format == RowFormat::IndexK(IndexKFormat::Fp4) => {
                for tile in row.chunks_mut(MXFP4_TILE) {
                    let scale = 2f32.powi(rng.below(40) as i32 - 20);
                    for x in tile.iter_mut() {
                        let threshold = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0][rng.below(7) as usize];
                        let sign = if rng.chance(0.5) { scale } else { -scale };
                        *x = sign * self.near(threshold, rng.below(3) as i32 - 1);
                    }
                    tile[rng.below(MXFP4_TILE as u64) as usize] = 6.0 * scale;
                }
            }
            // With a largest value of 448 the scale is 1; odd multiples of half a step lie half way.
            Rows::Ties => {
                let exponent = rng.below(20) as i32 - 10;
                for tile in row.chunks_mut(self.tile()) {
                    for x in tile.iter_mut() {
                        let binade = 2f32.powi(rng.below(14) as i32 - 6);
                        let steps = (2 * rng.below(8) + 1) as f32 / 16.0;
                        let sign = if rng.chance(0.5) { 1.0 } else { -1.0 };
                        *x = sign * binade * (1.0 + steps) * 2f32.powi(exponent);
                    }
                    let place = rng.below(tile.len() as u64) as usize;
                    tile[place] = 448.0 * 2f32.powi(exponent);
                }
            }
            Rows::NotFinite => {
                for _ in 0..3 {
                    let kinds = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
                    // Rows 0, 2, ... have NaN only, so that their scale stays ordinary.
                    let kind = kinds[rng.below(if token.is_multiple_of(2) { 2 } else { 4 }) as usize];
                    row[rng.below(width as u64) as usize] = kind;
                }
                if token % 7 == 6 {
                    row.fill(f32::NAN);
                }
            }
            Rows::Extremes => {
                for (c, x) in row.iter_mut().enumerate() {
                    let large = bf16::MAX.to_f32() * (0.5 + 0.5 * rng.uniform() as f32);
                    let tiny = bf16::from_bits(1 + rng.below(0x100) as u16).to_f32();
                    let sign = if rng.chance(0.5) { 1.0 } else { -1.0 };
                    *x = sign
                        * match token % 3 {
                            0 => large,
                            1 => tiny,
                            _ if c % 2 == 0 => large,
                            _ => tiny,
                        };
                }
            }
        }
        row
    }
}

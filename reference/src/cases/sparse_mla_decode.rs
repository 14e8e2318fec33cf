//! Cases of `sparse_mla_decode`: invalid and repeated slots, empty rows and tiles, lengths around a tile, odd page
//! sizes, sinks of every kind, extreme scales. Rows that no list names are NaN.

use super::{Size, invalid};
use crate::formats::{bf16_bytes, f32_bytes, quantise_nope_tile, s32_bytes};
use crate::layout::{D_NOPE, NOPE_TILE, NOPE_TILES, bf16_kv, f32_row, v4_fp8_data, v4_fp8_footer};
use crate::ops::{Dtype, KvFormat, Pages};
use crate::problem::{ListProblem, Memory, Problem, SparseMlaProblem};
use crate::rng::Rng;
use crate::suite::Case;

/// What is special about the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Queries and rows of order 1, every row and tile with a size of its own.
    Plain,
    /// Every query is nearly parallel to one of its rows: one probability is almost 1.
    Peaked,
    /// Queries of order 1e-3: probabilities are nearly equal.
    SmallQuery,
    /// Tiles with scale byte 0 (tiny values) and 254 (all codes 0) among the others; `v4_fp8` only.
    ExtremeScales,
}

/// What is in the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sink {
    /// No sink operand.
    Absent,
    /// Normal values.
    Normal,
    /// Normal, +inf and -inf in turn, starting with +inf.
    Mixed,
    /// +inf everywhere.
    PlusInfinity,
    /// -inf everywhere.
    MinusInfinity,
}

/// Which entries of a list are no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    /// None.
    Nothing,
    /// About one in eight.
    Some,
    /// About half.
    Half,
    /// All of every second token, from token 1 on.
    OddTokens,
    /// The first 64 of each list.
    FirstTile,
    /// All.
    All,
}

/// A slot list in words.
#[derive(Debug, Clone)]
pub struct List {
    /// Columns.
    pub width: u32,
    /// Lengths, repeated over the tokens; empty for none.
    pub lens: Vec<i32>,
    /// Which entries are no slot.
    pub invalid: Invalid,
    /// Whether entries repeat.
    pub repeated: bool,
    /// Rows per page.
    pub page_size: u32,
    /// Bytes between pages beyond the smallest stride.
    pub page_pad: u64,
    /// Columns between tokens beyond the width.
    pub stride_pad: u64,
    /// First page in use: with a large one, byte offsets exceed 32 bits.
    pub first_page: u32,
}

impl List {
    /// `width` valid entries in pages of 64 rows.
    pub fn of(width: u32) -> List {
        List {
            width,
            lens: Vec::new(),
            invalid: Invalid::Nothing,
            repeated: false,
            page_size: 64,
            page_pad: 0,
            stride_pad: 0,
            first_page: 0,
        }
    }
}

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Type of `q` and `out`.
    pub dtype: Dtype,
    /// Row format.
    pub format: KvFormat,
    /// Query tokens.
    pub t: u32,
    /// Heads.
    pub h: u32,
    /// Window list.
    pub window: List,
    /// Second list.
    pub compressed: Option<List>,
    /// Sink.
    pub sink: Sink,
    /// Values.
    pub values: Values,
    /// Elements between heads beyond their width, and between tokens beyond the heads, of `q` and `out`; multiples of 8.
    pub pads: [u64; 4],
    /// Splits.
    pub num_splits: Option<u32>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            dtype: Dtype::Bf16,
            format: KvFormat::V4Fp8,
            t: 1,
            h: 8,
            window: List::of(16),
            compressed: Some(List::of(24)),
            sink: Sink::Normal,
            values: Values::Plain,
            pads: [0; 4],
            num_splits: None,
        }
    }
}

/// 512^-1/2.
pub const SM_SCALE: f32 = 0.044_194_174;

impl Shape {
    /// Whether a list points past the bytes that a machine has.
    pub(super) fn virtual_pool(&self) -> bool {
        std::iter::once(&self.window).chain(&self.compressed).any(|list| list.first_page > 0)
    }

    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> SparseMlaProblem {
        let mut rng = Rng::named(seed, "sparse_mla_decode");
        // Directions that peaked queries point in: the first valid row of every token.
        let mut directions: Vec<Option<Vec<f32>>> = vec![None; self.t as usize];
        let window = self.list(&mut rng, &self.window, ["window_kv", "window_slots", "window_lens"], &mut directions);
        let compressed = self
            .compressed
            .as_ref()
            .map(|list| self.list(&mut rng, list, ["compressed_kv", "topk_slots", "topk_lens"], &mut directions));

        let [q_h, q_t, out_h, out_t] = self.pads;
        let strides = |pad_h: u64, pad_t: u64| {
            let stride_h = u64::from(self.format.d()) + pad_h;
            [u64::from(self.h) * stride_h + pad_t, stride_h]
        };
        let stride_q = strides(q_h, q_t);
        let size = self.dtype.bytes();
        let mut q = Memory::undefined("q", size * u64::from(self.t) * stride_q[0]);
        for token in 0..u64::from(self.t) {
            for head in 0..u64::from(self.h) {
                let row = self.query(&mut rng, directions[token as usize].as_deref());
                let bytes = if self.dtype == Dtype::F32 { f32_bytes(&row) } else { bf16_bytes(&row) };
                q.put(size * (token * stride_q[0] + head * stride_q[1]), &bytes);
            }
        }
        let attn_sink = (self.sink != Sink::Absent).then(|| {
            let sink: Vec<f32> = (0..self.h as usize)
                .map(|head| match self.sink {
                    Sink::PlusInfinity => f32::INFINITY,
                    Sink::MinusInfinity => f32::NEG_INFINITY,
                    Sink::Mixed if head % 3 == 0 => f32::INFINITY,
                    Sink::Mixed if head % 3 == 1 => f32::NEG_INFINITY,
                    _ => 2.0 * rng.normal() as f32,
                })
                .collect();
            Memory::full("attn_sink", f32_bytes(&sink))
        });
        SparseMlaProblem {
            dtype: self.dtype,
            format: self.format,
            q,
            window,
            compressed,
            attn_sink,
            t: self.t,
            h: self.h,
            stride_q,
            stride_out: strides(out_h, out_t),
            sm_scale: self.sm_scale(),
            num_splits: self.num_splits,
        }
    }

    fn sm_scale(&self) -> f32 {
        match self.format {
            KvFormat::V4Fp8 | KvFormat::Bf16 => SM_SCALE,
            KvFormat::F32 { d } => (d as f32).powf(-0.5),
        }
    }

    fn query(&self, rng: &mut Rng, direction: Option<&[f32]>) -> Vec<f32> {
        let mut row: Vec<f32> = (0..self.format.d()).map(|_| rng.normal() as f32).collect();
        let scale = self.sm_scale();
        match (self.values, direction) {
            (Values::Peaked, Some(direction)) => {
                let length = direction.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-3);
                // a score of about 30 for that row, of order 1 for the others
                row.iter_mut().zip(direction).for_each(|(q, d)| *q += 30.0 / scale * d / (length * length));
            }
            (Values::SmallQuery, _) => row.iter_mut().for_each(|q| *q *= 1e-3),
            _ => {}
        }
        row
    }

    fn list(
        &self,
        rng: &mut Rng,
        list: &List,
        labels: [&'static str; 3],
        directions: &mut [Option<Vec<f32>>],
    ) -> ListProblem {
        let (t, width) = (self.t as usize, list.width as usize);
        // Four rows for three that are wanted by some token, over at least three pages.
        let wanted = (t * width).clamp(1, 4096) * 4 / 3 + 1;
        let used_pages = (wanted.div_ceil(list.page_size as usize) as u32).max(3);
        let mut pages = Pages::kv(self.format, list.first_page + used_pages, list.page_size);
        pages.page_stride_bytes += list.page_pad;
        let first_slot = list.first_page * list.page_size;
        let mut free: Vec<u32> = (first_slot..first_slot + used_pages * list.page_size).collect();
        rng.shuffle(&mut free);
        // The last of them stay NaN: entries beyond a length point there.
        let poisoned = free.split_off(free.len() - free.len() / 8 - 1);

        let stride_slots = width as u64 + list.stride_pad;
        let mut slots = Memory::undefined(labels[1], 4 * t as u64 * stride_slots);
        let lens: Vec<i32> =
            (0..t).filter_map(|token| list.lens.get(token % list.lens.len().max(1)).copied()).collect();
        let mut used = std::collections::BTreeSet::new();
        let mut firsts = vec![None; t];
        for token in 0..t {
            let len = lens.get(token).map_or(width, |&len| (len.max(0) as usize).min(width));
            let mut line = Vec::new();
            for i in 0..width {
                let skip = match list.invalid {
                    Invalid::Nothing => false,
                    Invalid::Some => rng.chance(0.125),
                    Invalid::Half => rng.chance(0.5),
                    Invalid::OddTokens => token % 2 == 1,
                    Invalid::FirstTile => i < 64,
                    Invalid::All => true,
                };
                let slot = if i >= len {
                    // a row that is there, but must not be looked at
                    poisoned[i % poisoned.len()] as i32
                } else if skip {
                    invalid(i, pages.num_slots())
                } else if list.repeated && i % 3 == 2 && line.last().is_some_and(|&s| pages.locate(s).is_some()) {
                    line[i - 1]
                } else {
                    free[(token * width + i) % free.len()] as i32
                };
                if i < len && pages.locate(slot).is_some() {
                    used.insert(slot);
                    firsts[token].get_or_insert(slot);
                }
                line.push(slot);
            }
            slots.put(4 * token as u64 * stride_slots, &s32_bytes(&line));
        }

        let len = u64::from(pages.num_pages - 1) * pages.page_stride_bytes + self.format.page_bytes(list.page_size);
        let mut cache = Memory::undefined(labels[0], len);
        let mut footers = Vec::new();
        for slot in used {
            let (page, row) = pages.locate(slot).expect("used slots are valid");
            let values = self.row(rng);
            for (token, first) in firsts.iter().enumerate() {
                if *first == Some(slot) && directions[token].is_none() {
                    directions[token] = Some(values.clone());
                }
            }
            match self.format {
                KvFormat::Bf16 => cache.put(bf16_kv(&pages, page, row), &bf16_bytes(&values)),
                KvFormat::F32 { d } => cache.put(f32_row(&pages, page, row, d), &f32_bytes(&values)),
                KvFormat::V4Fp8 => {
                    let (data, footer) = self.v4_row(rng, &values);
                    cache.put(v4_fp8_data(&pages, page, row), &data);
                    footers.push((v4_fp8_footer(&pages, page, row), footer));
                }
            }
        }
        for (offset, footer) in footers {
            cache.put(offset, &footer);
        }
        ListProblem {
            cache,
            pages,
            slots,
            lens: (!list.lens.is_empty()).then(|| Memory::full(labels[2], s32_bytes(&lens))),
            width: list.width,
            stride_slots,
        }
    }

    /// One row; its size and those of its tiles differ from those of the others.
    fn row(&self, rng: &mut Rng) -> Vec<f32> {
        let mut size = 1.0;
        (0..self.format.d() as usize)
            .map(|c| {
                if c % NOPE_TILE == 0 {
                    size = (0.7 * rng.normal()).exp();
                }
                (size * rng.normal()) as f32
            })
            .collect()
    }

    fn v4_row(&self, rng: &mut Rng, values: &[f32]) -> (Vec<u8>, [u8; 8]) {
        let (mut data, mut footer) = (Vec::new(), [0; 8]);
        for (tile, byte) in footer.iter_mut().enumerate().take(NOPE_TILES) {
            let nope: [f32; NOPE_TILE] = std::array::from_fn(|c| values[tile * NOPE_TILE + c]);
            let (scale, mut codes) = quantise_nope_tile(&nope);
            *byte = scale;
            if self.values == Values::ExtremeScales {
                match rng.below(4) {
                    0 => *byte = 0,
                    1 => {
                        *byte = 254;
                        codes = codes.map(|c| c & 0x80);
                    }
                    _ => {}
                }
            }
            data.extend(codes);
        }
        data.extend(bf16_bytes(&values[D_NOPE..]));
        (data, footer)
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let case = |(size, name, what, shape): (Size, &str, String, Shape)| {
        let virtual_pool = shape.virtual_pool();
        let case = Case::new("sparse_mla_decode", format!("{name}/{what}"), size, move |seed| {
            Problem::SparseMlaDecode(Box::new(shape.build(seed)))
        });
        if virtual_pool { case.in_virtual_pool() } else { case }
    };
    shapes().into_iter().map(case).collect()
}

/// The shapes of the cases with the names of their types and their own.
pub(super) fn shapes() -> Vec<(Size, &'static str, String, Shape)> {
    let mut shapes = Vec::new();
    let variants = [
        ("v4_fp8", Dtype::Bf16, KvFormat::V4Fp8),
        ("bf16", Dtype::Bf16, KvFormat::Bf16),
        ("f32", Dtype::F32, KvFormat::F32 { d: 512 }),
        ("f32_80", Dtype::F32, KvFormat::F32 { d: 80 }),
        ("f32_query_v4_fp8", Dtype::F32, KvFormat::V4Fp8),
        ("f32_query_bf16", Dtype::F32, KvFormat::Bf16),
        ("bf16_query_f32_80", Dtype::Bf16, KvFormat::F32 { d: 80 }),
    ];
    for (name, dtype, format) in variants {
        let kernels = dtype == Dtype::Bf16 && !matches!(format, KvFormat::F32 { .. });
        let mut add = |size: Size, what: &str, shape: Shape| {
            // The large shapes once per width: they differ in what kernels do with them.
            if size > Size::Quick && !kernels && name != "f32_80" {
                return;
            }
            shapes.push((size, name, what.to_owned(), Shape { dtype, format, ..shape }));
        };
        let small = Shape::default();
        let list = List::of;
        let tiny = || Shape { window: list(6), compressed: Some(list(9)), ..Shape::default() };
        use Size::{Full, Quick};

        add(Quick, "random_8_heads", small.clone());
        for h in [16, 32, 64] {
            add(Quick, &format!("{h}_heads"), Shape { h, ..tiny() });
        }
        add(Quick, "128_heads", Shape { h: 128, compressed: None, ..tiny() });
        for h in [1, 3, 24, 256] {
            add(Quick, &format!("other_{h}_heads"), Shape { h, compressed: None, ..tiny() });
        }
        if dtype == Dtype::F32 {
            add(Quick, "odd_strides", Shape { t: 2, h: 3, pads: [1, 3, 5, 7], ..tiny() });
        }
        add(Quick, "window_only", Shape { compressed: None, ..small.clone() });
        add(Quick, "compressed_only", Shape { window: list(0), ..small.clone() });
        add(Quick, "one_row", Shape { window: list(1), compressed: None, sink: Sink::Absent, ..small.clone() });
        for (name, lens) in [("below_a_tile", vec![0, 1, 63]), ("around_a_tile", vec![64, 65, 70])] {
            let list = List { lens, ..list(70) };
            let second = Shape { t: 3, window: List::of(2), compressed: Some(list.clone()), ..tiny() };
            add(Quick, &format!("second_list_{name}"), second);
            add(Quick, &format!("window_{name}"), Shape { t: 3, window: list, compressed: None, ..tiny() });
        }
        let odd = List { lens: vec![-1, i32::MAX, i32::MIN], ..list(9) };
        add(Quick, "odd_lens", Shape { t: 3, compressed: Some(odd), ..tiny() });
        let invalid = |width, invalid| List { invalid, ..list(width) };
        let empty_tokens = || invalid(9, Invalid::OddTokens);
        add(Quick, "empty_tokens", Shape { t: 3, window: empty_tokens(), compressed: Some(empty_tokens()), ..tiny() });
        let none = || invalid(9, Invalid::All);
        add(Quick, "all_empty", Shape { t: 2, window: none(), compressed: Some(none()), ..tiny() });
        add(Quick, "all_empty_no_sink", Shape { sink: Sink::Absent, window: none(), compressed: None, ..tiny() });
        add(Quick, "empty_batch", Shape { t: 0, ..tiny() });
        let first_tile = invalid(70, Invalid::FirstTile);
        add(Quick, "first_tile_invalid", Shape { window: first_tile.clone(), compressed: None, ..tiny() });
        // Enough rows in one run to go round any ring of tiles of a kernel; skipped rows at its start only, then everywhere.
        for &h in if kernels { &[8, 32, 64][..] } else { &[] } {
            let long = |window, compressed| Shape { h, num_splits: Some(1), window, compressed, ..tiny() };
            for rows in [24, 56, 88] {
                let skipped = invalid(rows, Invalid::All);
                add(Quick, &format!("first_{rows}_rows_skipped_{h}_heads"), long(skipped, Some(list(300))));
            }
            add(Quick, &format!("half_of_300_rows_skipped_{h}_heads"), long(invalid(300, Invalid::Half), None));
        }
        add(Quick, "window_invalid", Shape { window: none(), ..tiny() });
        add(Quick, "second_list_invalid", Shape { compressed: Some(none()), ..tiny() });
        let half = |width| invalid(width, Invalid::Half);
        add(Quick, "half_invalid", Shape { t: 2, window: half(30), compressed: Some(half(40)), ..tiny() });
        let repeated = List { repeated: true, invalid: Invalid::Some, ..list(30) };
        add(Quick, "repeated_slots", Shape { compressed: Some(repeated), ..tiny() });
        add(Quick, "no_sink", Shape { sink: Sink::Absent, ..tiny() });
        add(Quick, "sinks_of_every_kind", Shape { sink: Sink::Mixed, ..tiny() });
        add(Quick, "sink_plus_infinity", Shape { sink: Sink::PlusInfinity, ..tiny() });
        add(Quick, "sink_minus_infinity", Shape { sink: Sink::MinusInfinity, ..tiny() });
        add(
            Quick,
            "sinks_and_empty_tokens",
            Shape { t: 2, sink: Sink::Mixed, window: empty_tokens(), compressed: None, ..tiny() },
        );
        add(Quick, "peaked", Shape { values: Values::Peaked, ..tiny() });
        add(Quick, "small_query", Shape { values: Values::SmallQuery, ..tiny() });
        if format == KvFormat::V4Fp8 {
            add(Quick, "extreme_scales", Shape { values: Values::ExtremeScales, ..small.clone() });
        }
        let padded = List { page_pad: 2 * 576, stride_pad: 5, ..list(9) };
        add(
            Quick,
            "padded_strides",
            Shape { t: 2, pads: [8, 24, 16, 40], window: padded.clone(), compressed: Some(padded), ..tiny() },
        );
        for page_size in [2, 61, 69, 256, 576] {
            let pages = |list: List| List { page_size, ..list };
            add(
                Quick,
                &format!("page_of_{page_size}_rows"),
                Shape { window: pages(list(6)), compressed: Some(pages(list(20))), ..tiny() },
            );
        }
        let different = List { page_size: 2, ..list(9) };
        add(Quick, "pages_of_two_sizes", Shape { compressed: Some(different), ..tiny() });
        for splits in [1, 2, 3, 8] {
            let what = format!("{splits}_splits");
            let second = List { invalid: Invalid::Some, ..list(if splits > 3 { 70 } else { 140 }) };
            add(Quick, &what, Shape { num_splits: Some(splits), compressed: Some(second), ..tiny() });
        }
        add(
            Quick,
            "more_splits_than_rows",
            Shape { num_splits: Some(20), window: list(3), compressed: None, ..tiny() },
        );

        let full = |t, h| Shape {
            t,
            h,
            window: List { invalid: Invalid::Some, ..list(128) },
            compressed: Some(List { invalid: Invalid::Some, ..list(512) }),
            ..Shape::default()
        };
        add(Full, "128_and_512_rows_64_heads", full(2, 64));
        add(Full, "128_and_512_rows_8_heads", Shape { sink: Sink::Mixed, ..full(5, 8) });
        add(Full, "128_and_1024_rows_128_heads", Shape { compressed: Some(list(1024)), ..full(1, 128) });
        let lens = List { lens: vec![512, 0, 448, 449, 511, 1], page_size: 2, ..list(512) };
        add(Full, "ragged_second_list", Shape { compressed: Some(lens), ..full(6, 16) });
        add(Full, "half_invalid_32_heads", Shape { window: half(128), compressed: Some(half(512)), ..full(3, 32) });
        add(Full, "batch_of_74", Shape { t: 74, sink: Sink::Mixed, ..tiny() });
        for splits in [1, 2, 5, 10, 40] {
            add(Full, &format!("640_rows_{splits}_splits"), Shape { num_splits: Some(splits), ..full(1, 16) });
        }
        add(Full, "peaked_640_rows", Shape { values: Values::Peaked, ..full(2, 16) });
        for (name, bytes) in [("2", 1u64 << 31), ("4", 1 << 32)] {
            let far = |width| List {
                first_page: (bytes / format.page_stride_bytes(64)) as u32,
                invalid: Invalid::Some,
                ..list(width)
            };
            add(
                Full,
                &format!("pages_past_{name}_gib"),
                Shape { window: far(20), compressed: Some(far(60)), ..tiny() },
            );
        }
    }
    shapes
}

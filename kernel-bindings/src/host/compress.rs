//! One step of a compressor: rows pooled out of batch and state, then the state of the batch written.

use reference::ops::{Compress, Dtype};

use super::HostBuffer;
use super::numbers::{exponential, load_f32, s32_at, store};
use super::rows::for_rows;
use super::simd::{Simd, WithSimd, widest};

/// Channels pooled at a time: their maxima, sums and weighted sums stay in the cache of a core.
const BLOCK: usize = 64;

pub(super) fn run(args: Compress<'_, HostBuffer>) {
    let batch = Batch::of(&args);
    let (d, n) = (args.d as usize, args.n as usize);
    let work = d * args.ratio as usize * if args.overlap { 2 } else { 1 };
    let (state, tokens) = (&args.state.bytes[..], &args.row_tokens.bytes);
    let out = &mut args.out.bytes;
    // Every row is pooled before the first byte of state changes.
    for_rows(out, d * args.dtype.bytes() as usize, n, work, |row, out| {
        batch.pool(args.dtype, state, s32_at(tokens, row), out);
    });
    for token in 0..args.t as usize {
        batch.write(&mut args.state.bytes, token);
    }
}

/// The operands that pooling and writing share, sizes as they are used here.
struct Batch<'a> {
    kv_gate: &'a [u8],
    ape: &'a [u8],
    state_table: &'a [u8],
    positions: &'a [u8],
    seq: &'a [u8],
    cu_seqlens: &'a [u8],
    t: usize,
    b: usize,
    d: usize,
    /// Channels that a token brings.
    w: usize,
    ratio: i64,
    overlap: bool,
    max_state_pages: i64,
    num_state_pages: u32,
    state_page_tokens: i64,
    ring_rows: usize,
    /// Bytes from a row of `kv_gate` to the next.
    stride: usize,
}

/// What a token brings, as bytes of f32: `u`, `g`, and what is still to be added to `g`.
struct Item<'a> {
    u: &'a [u8],
    g: &'a [u8],
    ape: Option<&'a [u8]>,
}

/// Maxima of the gates, then sums of weights and of weighted values, of a block of channels.
struct Pool {
    most: [f32; BLOCK],
    sum: [f32; BLOCK],
    value: [f32; BLOCK],
}

impl Item<'_> {
    /// Values and gates of a block from `channel` on; what lies beyond `count` channels is left as it is.
    #[inline(always)]
    fn block(&self, channel: usize, count: usize) -> ([f32; BLOCK], [f32; BLOCK]) {
        let range = 4 * channel..4 * (channel + count);
        let (mut u, mut g, mut ape) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        load_f32(&self.u[range.clone()], &mut u);
        load_f32(&self.g[range.clone()], &mut g);
        if let Some(bytes) = self.ape {
            load_f32(&bytes[range], &mut ape);
            g.iter_mut().zip(&ape).for_each(|(g, a)| *g += a);
        }
        (u, g)
    }
}

/// What the items of a row are gone through for.
#[derive(Clone, Copy)]
enum Pass {
    /// Raises the maxima to the gates.
    Rise,
    /// Adds to the sums.
    Add,
}

/// A block of an item on its way into the pool.
struct Step<'a> {
    pass: Pass,
    pool: &'a mut Pool,
    item: Item<'a>,
    channel: usize,
    count: usize,
}

impl WithSimd for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Pool { most, sum, value } = self.pool;
        let (u, g) = self.item.block(self.channel, self.count);
        match self.pass {
            Pass::Rise => {
                for (most, g) in most.iter_mut().zip(&g) {
                    *most = if *g > *most { *g } else { *most };
                }
            }
            Pass::Add => {
                for lane in 0..BLOCK {
                    let weight = exponential(g[lane] - most[lane]);
                    sum[lane] += weight;
                    value[lane] += weight * u[lane];
                }
            }
        }
    }
}

impl<'a> Batch<'a> {
    fn of(args: &Compress<'a, HostBuffer>) -> Batch<'a> {
        Batch {
            kv_gate: &args.kv_gate.bytes,
            ape: &args.ape.bytes,
            state_table: &args.state_table.bytes,
            positions: &args.positions.bytes,
            seq: &args.seq.bytes,
            cu_seqlens: &args.cu_seqlens.bytes,
            t: args.t as usize,
            b: args.b as usize,
            d: args.d as usize,
            w: args.width() as usize,
            ratio: i64::from(args.ratio),
            overlap: args.overlap,
            max_state_pages: i64::from(args.max_state_pages),
            num_state_pages: args.num_state_pages,
            state_page_tokens: i64::from(args.state_page_tokens),
            ring_rows: args.ring_rows as usize,
            stride: 4 * args.stride_kv_gate as usize,
        }
    }

    /// Sequence and position of a token; `None` for padding.
    fn place(&self, token: usize) -> Option<(usize, i64)> {
        let sequence = usize::try_from(s32_at(self.seq, token)).ok().filter(|&s| s < self.b)?;
        let position = i64::from(s32_at(self.positions, token));
        (position >= 0).then_some((sequence, position))
    }

    /// First byte of the state row of a position; `None` if its page does not exist.
    fn state_row(&self, sequence: usize, position: i64) -> Option<usize> {
        let column = position / self.state_page_tokens;
        if column >= self.max_state_pages {
            return None;
        }
        let entry = s32_at(self.state_table, sequence * self.max_state_pages as usize + column as usize);
        let page = u32::try_from(entry).ok().filter(|&page| page < self.num_state_pages)?;
        Some(8 * self.w * (page as usize * self.ring_rows + position as usize % self.ring_rows))
    }

    fn of_batch(&self, token: usize, position: i64) -> Item<'a> {
        let (u, g) = self.kv_gate[token * self.stride..token * self.stride + 8 * self.w].split_at(4 * self.w);
        let phase = (position % self.ratio) as usize;
        Item { u, g, ape: Some(&self.ape[4 * self.w * phase..4 * self.w * (phase + 1)]) }
    }

    /// Calls `each` with the items of `from..from + ratio` in order.
    fn window<'s>(
        &'s self,
        state: &'s [u8],
        (token, sequence, position): (usize, usize, i64),
        from: i64,
        mut each: impl FnMut(Item<'s>),
    ) {
        let first = i64::from(s32_at(self.cu_seqlens, sequence)).max(0);
        for earlier in from.max(0)..from + self.ratio {
            let in_batch = token as i64 - (position - earlier);
            if in_batch >= first {
                each(self.of_batch(in_batch as usize, earlier));
            } else if let Some(row) = self.state_row(sequence, earlier) {
                let (u, g) = state[row..row + 8 * self.w].split_at(4 * self.w);
                each(Item { u, g, ape: None });
            }
        }
    }

    fn pool(&self, dtype: Dtype, state: &[u8], token: i32, out: &mut [u8]) {
        let token = usize::try_from(token).ok().filter(|&token| token < self.t);
        let Some((token, (sequence, position))) = token.and_then(|token| Some((token, self.place(token)?))) else {
            out.fill(0);
            return;
        };
        let at = (token, sequence, position);
        // Where a window starts and the first of its channels: the one before, if there is overlap, and the row's own.
        let own_channel = if self.overlap { self.d } else { 0 };
        let windows = [(position - 2 * self.ratio + 1, 0), (position - self.ratio + 1, own_channel)];
        let windows = &windows[usize::from(!self.overlap)..];
        for (block, out) in out.chunks_mut(BLOCK * dtype.bytes() as usize).enumerate() {
            let (channel, count) = (block * BLOCK, out.len() / dtype.bytes() as usize);
            let mut pool = Pool { most: [f32::NEG_INFINITY; BLOCK], sum: [0.0; BLOCK], value: [0.0; BLOCK] };
            let mut empty = true;
            for pass in [Pass::Rise, Pass::Add] {
                for &(from, first) in windows {
                    self.window(state, at, from, |item| {
                        empty = false;
                        widest(Step { pass, pool: &mut pool, item, channel: first + channel, count });
                    });
                }
            }
            if empty {
                out.fill(0);
                continue;
            }
            for (value, sum) in pool.value.iter_mut().zip(&pool.sum) {
                *value /= sum;
            }
            store(dtype, &pool.value[..count], out);
        }
    }

    /// Writes the state of a token, unless a later token of the batch takes the same row.
    fn write(&self, state: &mut [u8], token: usize) {
        let Some((sequence, position)) = self.place(token) else { return };
        let (later, later_position) = (token + self.ring_rows, position + self.ring_rows as i64);
        let same_page = position / self.state_page_tokens == later_position / self.state_page_tokens;
        if same_page && later < self.t && self.place(later) == Some((sequence, later_position)) {
            return;
        }
        let Some(row) = self.state_row(sequence, position) else { return };
        let item = self.of_batch(token, position);
        let (u, g) = state[row..row + 8 * self.w].split_at_mut(4 * self.w);
        u.copy_from_slice(item.u);
        for (block, g) in g.chunks_mut(4 * BLOCK).enumerate() {
            let count = g.len() / 4;
            widest(|| store(Dtype::F32, &item.block(block * BLOCK, count).1[..count], g));
        }
    }
}

//! Problems of the operations on rows.

use super::{Bytes, Expected, ExpectedOutput, Fill, Memory, fetch, output};
use crate::compare::{Bound, Float};
use crate::ops::{
    Compress, Dtype, Hadamard, IndexKFormat, IndexQQuantise, Norm, NormRope, Ops, OpsError, Rope, ScaleRule,
};
use crate::plain::{Cells, Exact, rows as plain};
use crate::reversed::{Lines, memory as reversed};
use crate::tolerance::rows as tolerance;

/// Rotation of a [`NormRopeProblem`]; shapes as in [`Rope`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct RopeProblem {
    pub table: Memory,
    pub positions: Memory,
    pub max_positions: u32,
    pub d_rope: u32,
    pub inverse: bool,
}

/// Operands of `norm_rope`; shapes as in [`NormRope`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct NormRopeProblem {
    pub dtype: Dtype,
    pub x: Memory,
    pub normed: bool,
    /// Only with `normed`.
    pub weight: Option<Memory>,
    pub rope: Option<RopeProblem>,
    pub t: u32,
    pub h: u32,
    pub d: u32,
    pub stride_x: u64,
    pub stride_out: u64,
    pub eps: f32,
}

/// Operands of `hadamard`; shapes as in [`Hadamard`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct HadamardProblem {
    pub dtype: Dtype,
    pub x: Memory,
    pub rows: u32,
    pub d: u32,
}

/// Operands of `index_q_quantise`; shapes as in [`IndexQQuantise`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct IndexQProblem {
    pub dtype: Dtype,
    pub format: IndexKFormat,
    pub scale_rule: ScaleRule,
    pub q: Memory,
    pub weights: Memory,
    pub t: u32,
    pub h: u32,
    pub stride_weights: u64,
    pub weight_scale: f32,
}

/// Operands of `compress`; shapes as in [`Compress`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct CompressProblem {
    pub dtype: Dtype,
    pub kv_gate: Memory,
    pub ape: Memory,
    /// Before the call, defined everywhere.
    pub state: Memory,
    pub state_table: Memory,
    pub positions: Memory,
    pub seq: Memory,
    pub cu_seqlens: Memory,
    pub row_tokens: Memory,
    pub t: u32,
    pub b: u32,
    pub n: u32,
    pub ratio: u32,
    pub d: u32,
    pub overlap: bool,
    pub max_state_pages: u32,
    pub num_state_pages: u32,
    pub state_page_tokens: u32,
    pub ring_rows: u32,
    pub stride_kv_gate: u64,
}

/// A call of one of the operations on rows.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum RowsProblem {
    NormRope(NormRopeProblem),
    Hadamard(HadamardProblem),
    IndexQQuantise(IndexQProblem),
    Compress(CompressProblem),
}

fn float(dtype: Dtype) -> Float {
    match dtype {
        Dtype::F32 => Float::F32,
        Dtype::Bf16 => Float::Bf16,
    }
}

fn floats(name: &'static str, cells: Cells, dtype: Dtype, strides: Vec<u64>, bound: Bound) -> ExpectedOutput {
    ExpectedOutput { name, expected: Expected::Floats { cells, float: float(dtype), strides, bound } }
}

/// Bytes up to the last of `t` rows.
fn strided_bytes(t: u32, width: u64, stride: u64, dtype: Dtype) -> u64 {
    if t == 0 { 0 } else { dtype.bytes() * (u64::from(t - 1) * stride + width) }
}

impl RowsProblem {
    pub(super) fn op(&self) -> &'static str {
        match self {
            RowsProblem::NormRope(_) => "norm_rope",
            RowsProblem::Hadamard(_) => "hadamard",
            RowsProblem::IndexQQuantise(_) => "index_q_quantise",
            RowsProblem::Compress(_) => "compress",
        }
    }

    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        match self {
            RowsProblem::NormRope(p) => p.run(ops, fill),
            RowsProblem::Hadamard(p) => p.run(ops, fill),
            RowsProblem::IndexQQuantise(p) => p.run(ops, fill),
            RowsProblem::Compress(p) => p.run(ops, fill),
        }
    }

    pub(super) fn output_names(&self) -> Vec<&'static str> {
        match self {
            RowsProblem::NormRope(_) | RowsProblem::Hadamard(_) => vec!["out"],
            RowsProblem::IndexQQuantise(_) => vec!["index_q", "index_weights"],
            RowsProblem::Compress(_) => vec!["out", "state"],
        }
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        match self {
            RowsProblem::NormRope(p) => p.expected(),
            RowsProblem::Hadamard(p) => p.expected(),
            RowsProblem::IndexQQuantise(p) => p.expected(),
            RowsProblem::Compress(p) => p.expected(),
        }
    }

    /// Turns the batch round and says how the outputs are cut.
    pub(crate) fn reverse(&mut self) -> Vec<Lines> {
        match self {
            RowsProblem::NormRope(p) => {
                let (t, bytes) = (u64::from(p.t), p.dtype.bytes());
                p.x = reversed(&p.x, t, bytes * p.stride_x);
                if let Some(rope) = &mut p.rope {
                    rope.positions = reversed(&rope.positions, t, 4);
                }
                vec![Lines::of(p.t, bytes * p.stride_out, bytes * u64::from(p.h) * u64::from(p.d))]
            }
            RowsProblem::Hadamard(p) => {
                let row = p.dtype.bytes() * u64::from(p.d);
                p.x = reversed(&p.x, u64::from(p.rows), row);
                vec![Lines::of(p.rows, row, row)]
            }
            RowsProblem::IndexQQuantise(p) => {
                let (token, out) = p.token_bytes();
                p.q = reversed(&p.q, u64::from(p.t), token);
                p.weights = reversed(&p.weights, u64::from(p.t), p.dtype.bytes() * p.stride_weights);
                let weights = 4 * u64::from(p.h);
                vec![Lines::of(p.t, out, out), Lines::of(p.t, weights, weights)]
            }
            RowsProblem::Compress(p) => p.reverse(),
        }
    }
}

impl NormRopeProblem {
    fn operands<'a, B>(
        &self,
        x: &'a B,
        weight: Option<&'a B>,
        rope: Option<(&'a B, &'a B)>,
        out: &'a mut B,
    ) -> NormRope<'a, B> {
        NormRope {
            dtype: self.dtype,
            x,
            norm: match (self.normed, weight) {
                (false, _) => Norm::None,
                (true, None) => Norm::Unweighted,
                (true, Some(weight)) => Norm::Weighted(weight),
            },
            rope: self.rope.as_ref().zip(rope).map(|(rope, (table, positions))| Rope {
                table,
                max_positions: rope.max_positions,
                positions,
                d_rope: rope.d_rope,
                inverse: rope.inverse,
            }),
            out,
            t: self.t,
            h: self.h,
            d: self.d,
            stride_x: self.stride_x,
            stride_out: self.stride_out,
            eps: self.eps,
        }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let x = self.x.load(ops, fill)?;
        let weight = self.weight.as_ref().map(|w| w.load(ops, fill)).transpose()?;
        let rope = self.rope.as_ref().map(|r| Ok((r.table.load(ops, fill)?, r.positions.load(ops, fill)?)));
        let rope: Option<(O::Buffer, O::Buffer)> = rope.transpose()?;
        let width = u64::from(self.h) * u64::from(self.d);
        let mut out = output(ops, "out", strided_bytes(self.t, width, self.stride_out, self.dtype))?;
        let rope = rope.as_ref().map(|(table, positions)| (table, positions));
        ops.norm_rope(self.operands(&x, weight.as_ref(), rope, &mut out))?;
        Ok(vec![fetch(ops, &out)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let (x, weight) = (self.x.image(), self.weight.as_ref().map(Memory::image));
        let rope = self.rope.as_ref().map(|r| (r.table.image(), r.positions.image()));
        let rope = rope.as_ref().map(|(table, positions)| (table, positions));
        let cells = plain::norm_rope(&self.operands(&x, weight.as_ref(), rope, &mut Vec::new()));
        let strides = vec![self.stride_out, u64::from(self.d), 1];
        vec![floats("out", cells, self.dtype, strides, tolerance::NORM_ROPE.of(self.dtype))]
    }
}

impl HadamardProblem {
    fn operands<'a, B>(&self, x: &'a B, out: &'a mut B) -> Hadamard<'a, B> {
        Hadamard { dtype: self.dtype, x, out, rows: self.rows, d: self.d }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let x = self.x.load(ops, fill)?;
        let mut out = output(ops, "out", self.dtype.bytes() * u64::from(self.rows) * u64::from(self.d))?;
        ops.hadamard(self.operands(&x, &mut out))?;
        Ok(vec![fetch(ops, &out)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let cells = plain::hadamard(&self.operands(&self.x.image(), &mut Vec::new()));
        vec![floats("out", cells, self.dtype, vec![u64::from(self.d), 1], tolerance::HADAMARD.of(self.dtype))]
    }
}

impl IndexQProblem {
    /// Bytes of a token in `q` and in `index_q`.
    fn token_bytes(&self) -> (u64, u64) {
        let h = u64::from(self.h);
        (h * u64::from(self.format.d()) * self.dtype.bytes(), h * self.format.query_head_bytes())
    }

    fn operands<'a, B>(
        &self,
        q: &'a B,
        weights: &'a B,
        index_q: &'a mut B,
        index_weights: &'a mut B,
    ) -> IndexQQuantise<'a, B> {
        IndexQQuantise {
            dtype: self.dtype,
            format: self.format,
            scale_rule: self.scale_rule,
            q,
            weights,
            index_q,
            index_weights,
            t: self.t,
            h: self.h,
            stride_weights: self.stride_weights,
            weight_scale: self.weight_scale,
        }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let (q, weights) = (self.q.load(ops, fill)?, self.weights.load(ops, fill)?);
        let mut index_q = output(ops, "index_q", u64::from(self.t) * self.token_bytes().1)?;
        let mut index_weights = output(ops, "index_weights", 4 * u64::from(self.t) * u64::from(self.h))?;
        ops.index_q_quantise(self.operands(&q, &weights, &mut index_q, &mut index_weights))?;
        Ok(vec![fetch(ops, &index_q)?, fetch(ops, &index_weights)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let (q, weights) = (self.q.image(), self.weights.image());
        let (mut index_q, mut index_weights) = (Vec::new(), Vec::new());
        let args = self.operands(&q, &weights, &mut index_q, &mut index_weights);
        let (h, d) = (u64::from(self.h), u64::from(args.format.d()));
        let (queries, weights) = plain::index_q_quantise(&args);
        let queries = match queries {
            plain::Queries::Values(dtype, cells) => {
                floats("index_q", cells, dtype, vec![h * d, d, 1], tolerance::EQUAL)
            }
            plain::Queries::Codes(bytes) => ExpectedOutput {
                name: "index_q",
                expected: Expected::Rows {
                    bytes,
                    row_bytes: args.format.query_head_bytes(),
                    e4m3: self.format == IndexKFormat::Fp8,
                },
            },
        };
        let strides = vec![h, 1];
        vec![queries, floats("index_weights", weights, Dtype::F32, strides, tolerance::INDEX_WEIGHTS)]
    }
}

/// Operands of [`CompressProblem`] in memory: what is read only, state, out.
struct CompressMemory<B> {
    read: [B; 7],
    state: B,
    out: B,
}

impl CompressProblem {
    fn read(&self) -> [&Memory; 7] {
        [&self.kv_gate, &self.ape, &self.state_table, &self.positions, &self.seq, &self.cu_seqlens, &self.row_tokens]
    }

    fn operands<'a, B>(&self, memory: &'a mut CompressMemory<B>) -> Compress<'a, B> {
        let [kv_gate, ape, state_table, positions, seq, cu_seqlens, row_tokens] = &memory.read;
        Compress {
            dtype: self.dtype,
            kv_gate,
            ape,
            state: &mut memory.state,
            state_table,
            positions,
            seq,
            cu_seqlens,
            row_tokens,
            out: &mut memory.out,
            t: self.t,
            b: self.b,
            n: self.n,
            ratio: self.ratio,
            d: self.d,
            overlap: self.overlap,
            max_state_pages: self.max_state_pages,
            num_state_pages: self.num_state_pages,
            state_page_tokens: self.state_page_tokens,
            ring_rows: self.ring_rows,
            stride_kv_gate: self.stride_kv_gate,
        }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let [a, b, c, d, e, f, g] = self.read().map(|memory| memory.load(ops, fill));
        let out = self.dtype.bytes() * u64::from(self.n) * u64::from(self.d);
        let mut memory = CompressMemory {
            read: [a?, b?, c?, d?, e?, f?, g?],
            state: self.state.load(ops, fill)?,
            out: output(ops, "out", out)?,
        };
        ops.compress(self.operands(&mut memory))?;
        Ok(vec![fetch(ops, &memory.out)?, fetch(ops, &memory.state)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let mut memory =
            CompressMemory { read: self.read().map(Memory::image), state: self.state.image(), out: Vec::new() };
        let args = self.operands(&mut memory);
        let row = 2 * args.width();
        let (out, writes) = (plain::compress(&args), plain::compress_writes(&args));
        for (offset, values) in writes {
            let bytes = crate::formats::f32_bytes(&values);
            memory.state[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
        }
        let values = crate::formats::f32s(&memory.state).into_iter();
        let cells: Vec<_> = values.map(|x| Some(Exact { value: f64::from(x), magnitude: 0.0 })).collect();
        let slots = self.num_state_pages as usize * self.ring_rows as usize;
        let state = Cells::from_shape_vec(vec![slots, row as usize], cells).expect("the state is defined everywhere");
        vec![
            floats("out", out, self.dtype, vec![u64::from(self.d), 1], tolerance::COMPRESS.of(self.dtype)),
            floats("state", state, Dtype::F32, vec![row, 1], tolerance::EQUAL),
        ]
    }

    /// Sequences change places, and with them their tokens; the rows to pool come in reverse order. The state is where
    /// the table says.
    fn reverse(&mut self) -> Vec<Lines> {
        let ints = |memory: &Memory| crate::formats::s32s(&memory.image());
        let full = |memory: &Memory, values: &[i32]| Memory::full(memory.label, crate::formats::s32_bytes(values));
        let (cu, b) = (ints(&self.cu_seqlens), self.b as usize);
        // Old numbers of the tokens in their new order; padding before and behind the sequences stays where it is.
        let mut order: Vec<i32> = (0..cu[0]).collect();
        let mut turned_cu = vec![cu[0]];
        for s in (0..b).rev() {
            order.extend(cu[s]..cu[s + 1]);
            turned_cu.push(order.len() as i32);
        }
        order.extend(cu[b]..self.t as i32);

        let gate = self.kv_gate.image();
        let mut kv_gate = Memory::undefined(self.kv_gate.label, gate.len() as u64);
        let (stride, width) = (4 * self.stride_kv_gate as usize, self.row_width());
        for (new, &old) in order.iter().enumerate() {
            let at = old as usize * stride;
            kv_gate.put((new * stride) as u64, &gate[at..at + 4 * width]);
        }
        self.kv_gate = kv_gate;
        let (positions, seq) = (ints(&self.positions), ints(&self.seq));
        let moved: Vec<i32> = order.iter().map(|&old| positions[old as usize]).collect();
        self.positions = full(&self.positions, &moved);
        let last = b as i32 - 1;
        let of = |old: &i32| Some(seq[*old as usize]).filter(|s| (0..=last).contains(s)).map_or(-1, |s| last - s);
        self.seq = full(&self.seq, &order.iter().map(of).collect::<Vec<_>>());
        self.cu_seqlens = full(&self.cu_seqlens, &turned_cu);
        self.state_table = reversed(&self.state_table, u64::from(self.b), 4 * u64::from(self.max_state_pages.max(1)));
        let new_of = |old: &i32| order.iter().position(|o| o == old).map_or(-1, |new| new as i32);
        let rows: Vec<i32> = ints(&self.row_tokens).iter().rev().map(new_of).collect();
        self.row_tokens = full(&self.row_tokens, &rows);

        let row = self.dtype.bytes() * u64::from(self.d);
        vec![Lines::of(self.n, row, row), Lines::of(1, self.state.len, self.state.len)]
    }

    fn row_width(&self) -> usize {
        2 * self.d as usize * if self.overlap { 2 } else { 1 }
    }
}

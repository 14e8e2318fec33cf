//! Refusals of the operations on streams and rows, of the choice of experts and of tokens.

use super::{Size, expect, len};
use proptest::prelude::*;
use reference::ops::*;

#[derive(Clone)]
struct Rows {
    buffers: [Size; 3],
    t: u32,
    rows: u32,
    d: u32,
    copies: u32,
    row_bytes: u64,
}

impl Rows {
    fn embed(&self) -> Result<(), OpsError> {
        let mut out = self.buffers[2];
        let (table, ids) = (&self.buffers[0], &self.buffers[1]);
        let (t, vocab, d, copies) = (self.t, self.rows, self.d, self.copies);
        Embed { dtype: Dtype::Bf16, table, ids, out: &mut out, t, vocab, d, copies }.check(len)
    }

    fn gather(&self) -> Result<(), OpsError> {
        let mut out = self.buffers[2];
        let (src, rows) = (&self.buffers[0], &self.buffers[1]);
        GatherRows { src, rows, out: &mut out, n: self.t, num_rows: self.rows, row_bytes: self.row_bytes }.check(len)
    }
}

#[test]
fn embed_and_gather_rows() {
    let valid = Rows { buffers: [10 * 6 * 2, 3 * 4, 3 * 4 * 6 * 2], t: 3, rows: 10, d: 6, copies: 4, row_bytes: 12 };
    expect(
        &valid,
        Rows::embed,
        &[
            (|a| a.t = 1 << 31, "embed: t: expected at most 2147483647, got 2147483648"),
            (|a| a.d = 0, "embed: d: expected at least 1, got 0"),
            (|a| a.copies = 0, "embed: copies: expected at least 1, got 0"),
            (|a| a.buffers[0] -= 1, "embed: table: expected at least 120 bytes, got 119 bytes"),
            (|a| a.buffers[1] -= 1, "embed: ids: expected at least 12 bytes, got 11 bytes"),
            (|a| a.buffers[2] -= 1, "embed: out: expected at least 144 bytes, got 143 bytes"),
        ],
    );
    expect(
        &valid,
        Rows::gather,
        &[
            (|a| a.row_bytes = 0, "gather_rows: row_bytes: expected a multiple of 4, at least 4, got 0"),
            (|a| a.row_bytes = 10, "gather_rows: row_bytes: expected a multiple of 4, at least 4, got 10"),
            (|a| a.row_bytes = 1 << 31, "gather_rows: row_bytes: expected at most 2147483647, got 2147483648"),
            (|a| a.buffers[0] -= 1, "gather_rows: src: expected at least 120 bytes, got 119 bytes"),
            (|a| a.buffers[1] = 0, "gather_rows: rows: expected at least 12 bytes, got 0 bytes"),
            (|a| a.buffers[2] = 35, "gather_rows: out: expected at least 36 bytes, got 35 bytes"),
        ],
    );
}

#[derive(Clone)]
struct Mix {
    buffers: [Size; 8],
    mixing: bool,
    iters: u32,
    t: u32,
    hc: u32,
    d: u32,
    eps: [f32; 2],
}

impl Mix {
    fn valid() -> Mix {
        // streams, weight, base, scale, norm weight, out, post, comb
        let buffers = [3 * 4 * 8 * 2, 24 * 4 * 8 * 4, 24 * 4, 3 * 4, 8 * 4, 3 * 8 * 2, 3 * 16, 3 * 64];
        Mix { buffers, mixing: true, iters: 20, t: 3, hc: 4, d: 8, eps: [1e-6; 2] }
    }

    fn check(&self) -> Result<(), OpsError> {
        let b = &self.buffers;
        let (mut out, mut post, mut comb) = (b[5], b[6], b[7]);
        HcMix {
            dtype: Dtype::Bf16,
            streams: &b[0],
            weight: &b[1],
            base: &b[2],
            scale: &b[3],
            norm_weight: &b[4],
            out: &mut out,
            mixing: self.mixing.then_some(HcMixing { post: &mut post, comb: &mut comb, sinkhorn_iters: self.iters }),
            t: self.t,
            hc: self.hc,
            d: self.d,
            norm_eps: self.eps[0],
            hc_eps: self.eps[1],
        }
        .check(len)
    }
}

#[test]
fn hc_mix() {
    expect(
        &Mix::valid(),
        Mix::check,
        &[
            (|a| a.hc = 3, "hc_mix: hc: expected 4, got 3"),
            (|a| a.d = 0, "hc_mix: d: expected at least 1, got 0"),
            (|a| a.eps[0] = f32::NAN, "hc_mix: norm_eps: expected a finite number, not negative, got NaN"),
            (|a| a.eps[1] = -1.0, "hc_mix: hc_eps: expected a finite number, not negative, got -1"),
            (|a| a.iters = 0, "hc_mix: sinkhorn_iters: expected at least 1, got 0"),
            (|a| a.buffers[0] -= 1, "hc_mix: streams: expected at least 192 bytes, got 191 bytes"),
            (|a| a.buffers[1] -= 1, "hc_mix: weight: expected at least 3072 bytes, got 3071 bytes"),
            (|a| a.buffers[2] -= 1, "hc_mix: base: expected at least 96 bytes, got 95 bytes"),
            (|a| a.buffers[3] -= 1, "hc_mix: scale: expected at least 12 bytes, got 11 bytes"),
            (|a| a.buffers[4] -= 1, "hc_mix: norm_weight: expected at least 32 bytes, got 31 bytes"),
            (|a| a.buffers[5] -= 1, "hc_mix: out: expected at least 48 bytes, got 47 bytes"),
            (|a| a.buffers[6] -= 1, "hc_mix: post: expected at least 48 bytes, got 47 bytes"),
            (|a| a.buffers[7] -= 1, "hc_mix: comb: expected at least 192 bytes, got 191 bytes"),
        ],
    );
    // The head needs less of everything.
    let mut head = Mix { mixing: false, iters: 0, ..Mix::valid() };
    head.buffers = [192, 4 * 4 * 8 * 4, 16, 4, 32, 48, 0, 0];
    expect(&head, Mix::check, &[(|a| a.buffers[1] -= 1, "hc_mix: weight: expected at least 512 bytes, got 511 bytes")]);
}

#[derive(Clone)]
struct Post {
    buffers: [Size; 4],
    t: u32,
    hc: u32,
    d: u32,
}

impl Post {
    fn check(&self) -> Result<(), OpsError> {
        let mut streams = self.buffers[0];
        HcPost {
            dtype: Dtype::F32,
            streams: &mut streams,
            y: &self.buffers[1],
            post: &self.buffers[2],
            comb: &self.buffers[3],
            t: self.t,
            hc: self.hc,
            d: self.d,
        }
        .check(len)
    }
}

#[test]
fn hc_post() {
    let valid = Post { buffers: [2 * 4 * 8 * 4, 2 * 8 * 4, 2 * 16, 2 * 64], t: 2, hc: 4, d: 8 };
    expect(
        &valid,
        Post::check,
        &[
            (|a| a.hc = 8, "hc_post: hc: expected 4, got 8"),
            (|a| a.d = 0, "hc_post: d: expected at least 1, got 0"),
            (|a| a.t = 3, "hc_post: streams: expected at least 384 bytes, got 256 bytes"),
            (|a| a.buffers[1] -= 1, "hc_post: y: expected at least 64 bytes, got 63 bytes"),
            (|a| a.buffers[2] -= 1, "hc_post: post: expected at least 32 bytes, got 31 bytes"),
            (|a| a.buffers[3] -= 1, "hc_post: comb: expected at least 128 bytes, got 127 bytes"),
        ],
    );
}

#[derive(Clone)]
struct Gate {
    gate_up: Size,
    out: Size,
    t: u32,
    inter: u32,
    limit: f32,
}

impl Gate {
    fn check(&self) -> Result<(), OpsError> {
        let mut out = self.out;
        let (gate_up, t, inter, limit) = (&self.gate_up, self.t, self.inter, self.limit);
        Swiglu { dtype: Dtype::Bf16, gate_up, out: &mut out, t, inter, limit }.check(len)
    }
}

#[test]
fn swiglu() {
    expect(
        &Gate { gate_up: 2 * 2 * 8 * 2, out: 2 * 8 * 2, t: 2, inter: 8, limit: 10.0 },
        Gate::check,
        &[
            (|a| a.inter = 0, "swiglu: inter: expected at least 1, got 0"),
            (|a| a.limit = 0.0, "swiglu: limit: expected a number above 0, got 0"),
            (|a| a.limit = f32::NAN, "swiglu: limit: expected a number above 0, got NaN"),
            (|a| a.gate_up -= 1, "swiglu: gate_up: expected at least 64 bytes, got 63 bytes"),
            (|a| a.out -= 1, "swiglu: out: expected at least 32 bytes, got 31 bytes"),
        ],
    );
}

#[derive(Clone)]
struct Route {
    /// scores, bias or table, ids, expert ids, expert weights
    buffers: [Size; 5],
    table: bool,
    vocab: u32,
    t: u32,
    experts: u32,
    topk: u32,
    scaling: f32,
}

impl Route {
    fn check(&self) -> Result<(), OpsError> {
        let b = &self.buffers;
        let (mut ids, mut weights) = (b[3], b[4]);
        let routing = if self.table {
            Routing::Hash { tid2eid: &b[1], ids: &b[2], vocab: self.vocab }
        } else {
            Routing::Bias(&b[1])
        };
        Router {
            scores: &b[0],
            routing,
            expert_ids: &mut ids,
            expert_weights: &mut weights,
            t: self.t,
            experts: self.experts,
            topk: self.topk,
            routed_scaling: self.scaling,
        }
        .check(len)
    }
}

#[test]
fn router() {
    let buffers = [2 * 8 * 4, 8 * 4, 0, 2 * 3 * 4, 2 * 3 * 4];
    let valid = Route { buffers, table: false, vocab: 0, t: 2, experts: 8, topk: 3, scaling: 1.5 };
    expect(
        &valid,
        Route::check,
        &[
            (|a| a.experts = 0, "router: experts: expected 1 to 512, got 0"),
            (|a| a.experts = 513, "router: experts: expected 1 to 512, got 513"),
            (|a| a.topk = 0, "router: topk: expected 1 to 8, got 0"),
            (|a| a.topk = 9, "router: topk: expected 1 to 8, got 9"),
            (|a| (a.experts, a.topk) = (64, 17), "router: topk: expected 1 to 16, got 17"),
            (|a| a.scaling = f32::INFINITY, "router: routed_scaling: expected a finite number, got inf"),
            (|a| a.buffers[0] -= 1, "router: scores: expected at least 64 bytes, got 63 bytes"),
            (|a| a.buffers[1] -= 1, "router: bias: expected at least 32 bytes, got 31 bytes"),
            (|a| a.buffers[3] -= 1, "router: expert_ids: expected at least 24 bytes, got 23 bytes"),
            (|a| a.buffers[4] -= 1, "router: expert_weights: expected at least 24 bytes, got 23 bytes"),
        ],
    );
    let table = Route { buffers: [64, 5 * 3 * 4, 8, 24, 24], table: true, vocab: 5, ..valid };
    expect(
        &table,
        Route::check,
        &[
            (|a| a.vocab = 0, "router: vocab: expected at least 1, got 0"),
            (|a| a.buffers[1] -= 1, "router: tid2eid: expected at least 60 bytes, got 59 bytes"),
            (|a| a.buffers[2] -= 1, "router: ids: expected at least 8 bytes, got 7 bytes"),
        ],
    );
}

#[derive(Clone)]
struct Draw {
    /// logits, temperature, seeds, out
    buffers: [Size; 4],
    n: u32,
    vocab: u32,
}

impl Draw {
    fn check(&self) -> Result<(), OpsError> {
        let b = &self.buffers;
        let mut out = b[3];
        let (logits, temperature, seeds) = (&b[0], &b[1], &b[2]);
        Sample { logits, temperature, seeds, out: &mut out, n: self.n, vocab: self.vocab }.check(len)
    }
}

#[test]
fn sample() {
    expect(
        &Draw { buffers: [2 * 5 * 4, 8, 16, 8], n: 2, vocab: 5 },
        Draw::check,
        &[
            (|a| a.vocab = 0, "sample: vocab: expected at least 1, got 0"),
            (|a| a.n = 1 << 31, "sample: n: expected at most 2147483647, got 2147483648"),
            (|a| a.buffers[0] -= 1, "sample: logits: expected at least 40 bytes, got 39 bytes"),
            (|a| a.buffers[1] -= 1, "sample: temperature: expected at least 8 bytes, got 7 bytes"),
            (|a| a.buffers[2] -= 1, "sample: seeds: expected at least 16 bytes, got 15 bytes"),
            (|a| a.buffers[3] -= 1, "sample: out: expected at least 8 bytes, got 7 bytes"),
        ],
    );
}

proptest! {
    /// Whatever the numbers are, a check answers: no overflow, no panic.
    #[test]
    fn checks_never_panic(
        numbers in prop::array::uniform4(prop_oneof![0..200u32, any::<u32>()]),
        row_bytes in any::<u64>(),
        size in any::<u64>(),
        float in any::<f32>(),
    ) {
        let [t, rows, d, copies] = numbers;
        let all = Rows { buffers: [size; 3], t, rows, d, copies, row_bytes };
        let _ = (all.embed(), all.gather());
        for hc in [4, copies] {
            let mixing = rows % 2 == 0;
            let _ = Mix { buffers: [size; 8], mixing, iters: rows, t, hc, d, eps: [float, 1e-6] }.check();
            let _ = Post { buffers: [size; 4], t, hc, d }.check();
        }
        let _ = Gate { gate_up: size, out: size, t, inter: d, limit: float }.check();
        let (experts, topk) = (rows % 600, copies % 20);
        for table in [false, true] {
            let _ = Route { buffers: [size; 5], table, vocab: d, t, experts, topk, scaling: float }.check();
        }
        let _ = Draw { buffers: [size; 4], n: t, vocab: d }.check();
    }
}

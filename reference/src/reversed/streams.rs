//! Reverse order of the operations on streams and rows, of the choice of experts and of tokens.

use super::{Lines, memory};
use crate::problem::streams::{RoutingProblem, StreamsProblem};

/// Reverses the batch in place and says how the outputs are cut.
pub(super) fn reverse(problem: &mut StreamsProblem) -> Vec<Lines> {
    match problem {
        StreamsProblem::Embed(p) => {
            p.ids = memory(&p.ids, u64::from(p.t), 4);
            let row = u64::from(p.copies) * u64::from(p.d) * p.dtype.bytes();
            vec![Lines::of(p.t, row, row)]
        }
        StreamsProblem::GatherRows(p) => {
            p.rows = memory(&p.rows, u64::from(p.n), 4);
            vec![Lines::of(p.n, p.row_bytes, p.row_bytes)]
        }
        StreamsProblem::HcMix(p) => {
            let row = u64::from(p.d) * p.dtype.bytes();
            p.streams = memory(&p.streams, u64::from(p.t), 4 * row);
            let mut lines = vec![Lines::of(p.t, row, row)];
            if p.sinkhorn_iters.is_some() {
                lines.extend([Lines::of(p.t, 16, 16), Lines::of(p.t, 64, 64)]);
            }
            lines
        }
        StreamsProblem::HcPost(p) => {
            let (t, row) = (u64::from(p.t), 4 * u64::from(p.d) * p.dtype.bytes());
            p.streams = memory(&p.streams, t, row);
            p.y = memory(&p.y, t, 4 * u64::from(p.d));
            p.post = memory(&p.post, t, 16);
            p.comb = memory(&p.comb, t, 64);
            vec![Lines::of(p.t, row, row)]
        }
        StreamsProblem::Swiglu(p) => {
            let row = u64::from(p.inter) * p.dtype.bytes();
            p.gate_up = memory(&p.gate_up, u64::from(p.t), 2 * row);
            vec![Lines::of(p.t, row, row)]
        }
        StreamsProblem::Router(p) => {
            p.scores = memory(&p.scores, u64::from(p.t), 4 * u64::from(p.experts));
            if let RoutingProblem::Hash { ids, .. } = &mut p.routing {
                *ids = memory(ids, u64::from(p.t), 4);
            }
            let row = 4 * u64::from(p.topk);
            vec![Lines::of(p.t, row, row), Lines::of(p.t, row, row)]
        }
        StreamsProblem::Sample(p) => {
            let n = u64::from(p.n);
            p.logits = memory(&p.logits, n, 4 * u64::from(p.vocab));
            p.temperature = memory(&p.temperature, n, 4);
            p.seeds = memory(&p.seeds, n, 8);
            vec![Lines::of(p.n, 4, 4)]
        }
    }
}

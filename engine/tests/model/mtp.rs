//! The draft layer against a plain program: f64, one token after the other, written from the definition alone. No outside
//! implementation that was at hand runs this layer.

use engine::batch::Batch;
use engine::checkpoint::Checkpoint;
use engine::collective::Solo;
use engine::config::ModelConfig;
use engine::geometry::CacheShape;
use engine::model::Numerics;
use engine::model::probe::Stage;
use engine::step::StepPlan;
use kernel_bindings::host::HostOps;

use crate::rig::{Record, all_logits, close, entry, model};
use crate::serve::TINY;

type Vector = Vec<f64>;

/// Tensors of the draft layer by name.
struct Oracle<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Oracle<'_> {
    fn tensor(&self, name: &str) -> Vector {
        let view = self.checkpoint.tensor(name).expect("a tensor");
        view.f32s(0..view.rows()).expect("decodes").into_iter().map(f64::from).collect()
    }

    /// `W x`.
    fn apply(&self, name: &str, x: &[f64]) -> Vector {
        self.tensor(name).chunks_exact(x.len()).map(|row| dot(row, x)).collect()
    }

    fn rms(&self, x: &[f64], weight: Option<&str>) -> Vector {
        let mean = dot(x, x) / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(self.config.rms_norm_eps)).sqrt();
        match weight {
            Some(name) => x.iter().zip(self.tensor(name)).map(|(v, w)| v * scale * w).collect(),
            None => x.iter().map(|v| v * scale).collect(),
        }
    }

    /// Turns the last channels of a head by the window frequencies.
    fn rope(&self, x: &mut [f64], position: usize, sign: f64) {
        let d = self.config.rope_dim as usize;
        let start = x.len() - d;
        for (i, pair) in x[start..].chunks_exact_mut(2).enumerate() {
            let frequency = self.config.rope_theta.powf(-2.0 * i as f64 / d as f64) as f32;
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            let (a, b, sin) = (pair[0], pair[1], sign * sin);
            (pair[0], pair[1]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }

    /// Mixing values of streams: `m`.
    fn mixes(&self, streams: &[Vector], prefix: &str) -> Vector {
        let flat = streams.concat();
        let scale = 1.0 / (dot(&flat, &flat) / flat.len() as f64 + f64::from(self.config.rms_norm_eps)).sqrt();
        self.apply(&format!("{prefix}_fn"), &flat).into_iter().map(|m| m * scale).collect()
    }

    fn collapse(&self, streams: &[Vector], m: &[f64], prefix: &str) -> Vector {
        let (base, scale) = (self.tensor(&format!("{prefix}_base")), self.tensor(&format!("{prefix}_scale")));
        let mut h = vec![0.0; streams[0].len()];
        for (j, stream) in streams.iter().enumerate() {
            let pre = sigmoid(m[j] * scale[0] + base[j]) + f64::from(self.config.hc_eps);
            h.iter_mut().zip(stream).for_each(|(h, x)| *h += pre * x);
        }
        h
    }

    /// A sub-layer between hyper-connections, for all tokens.
    fn sub_layer(&self, tokens: &mut [Vec<Vector>], prefix: &str, norm: &str, f: impl Fn(&[Vector]) -> Vec<Vector>) {
        let hc = self.config.hc_mult as usize;
        let eps = f64::from(self.config.hc_eps);
        let mixes: Vec<Vector> = tokens.iter().map(|streams| self.mixes(streams, prefix)).collect();
        let inputs: Vec<Vector> = tokens
            .iter()
            .zip(&mixes)
            .map(|(streams, m)| self.rms(&self.collapse(streams, m, prefix), Some(norm)))
            .collect();
        let outputs = f(&inputs);
        let (base, scale) = (self.tensor(&format!("{prefix}_base")), self.tensor(&format!("{prefix}_scale")));
        for ((streams, m), y) in tokens.iter_mut().zip(&mixes).zip(&outputs) {
            let mut comb = vec![vec![0.0; hc]; hc];
            for (j, row) in comb.iter_mut().enumerate() {
                let at = |k: usize| 2 * hc + hc * j + k;
                row.iter_mut().enumerate().for_each(|(k, v)| *v = (m[at(k)] * scale[2] + base[at(k)]).exp());
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|v| *v = *v / sum + eps);
            }
            for round in 0..self.config.hc_sinkhorn_iters {
                if round > 0 {
                    for row in &mut comb {
                        let sum: f64 = row.iter().sum::<f64>() + eps;
                        row.iter_mut().for_each(|v| *v /= sum);
                    }
                }
                for k in 0..hc {
                    let sum: f64 = comb.iter().map(|row| row[k]).sum::<f64>() + eps;
                    comb.iter_mut().for_each(|row| row[k] /= sum);
                }
            }
            let next = (0..hc).map(|k| {
                let post = 2.0 * sigmoid(m[hc + k] * scale[1] + base[hc + k]);
                let channel = |c: usize| post * y[c] + (0..hc).map(|j| comb[j][k] * streams[j][c]).sum::<f64>();
                (0..y.len()).map(channel).collect()
            });
            *streams = next.collect();
        }
    }

    /// Window attention over all tokens.
    fn attention(&self, inputs: &[Vector]) -> Vec<Vector> {
        let (heads, d) = (self.config.heads as usize, self.config.head_dim as usize);
        let name = |tail: &str| format!("mtp.0.attn.{tail}");
        let sink = self.tensor(&name("attn_sink"));
        let rows: Vec<Vector> = inputs
            .iter()
            .enumerate()
            .map(|(t, x)| {
                let mut row = self.rms(&self.apply(&name("wkv.weight"), x), Some(&name("kv_norm.weight")));
                self.rope(&mut row, t, 1.0);
                row
            })
            .collect();
        let attend = |(t, x): (usize, &Vector)| {
            let qr = self.rms(&self.apply(&name("wq_a.weight"), x), Some(&name("q_norm.weight")));
            let raw = self.apply(&name("wq_b.weight"), &qr);
            let keys = &rows[(t + 1).saturating_sub(self.config.window as usize)..=t];
            let mut core = Vec::new();
            for head in 0..heads {
                let mut q = self.rms(&raw[head * d..(head + 1) * d], None);
                self.rope(&mut q, t, 1.0);
                let weights: Vector = keys.iter().map(|k| (dot(&q, k) / (d as f64).sqrt()).exp()).collect();
                let sum: f64 = weights.iter().sum::<f64>() + sink[head].exp();
                let mut out = vec![0.0; d];
                for (w, k) in weights.iter().zip(keys) {
                    out.iter_mut().zip(k).for_each(|(o, k)| *o += w / sum * k);
                }
                self.rope(&mut out, t, -1.0);
                core.extend(out);
            }
            let groups = self.config.o_groups as usize;
            let (inputs, low) = (core.len() / groups, self.config.o_lora_rank as usize);
            let wo_a = self.tensor(&name("wo_a.weight"));
            let a: Vector = (0..groups * low)
                .map(|i| dot(&wo_a[i * inputs..(i + 1) * inputs], &core[i / low * inputs..(i / low + 1) * inputs]))
                .collect();
            self.apply(&name("wo_b.weight"), &a)
        };
        inputs.iter().enumerate().map(attend).collect()
    }

    fn expert(&self, prefix: &str, x: &[f64]) -> Vector {
        let limit = f64::from(self.config.swiglu_limit);
        let (a, b) = (self.apply(&format!("{prefix}.w1.weight"), x), self.apply(&format!("{prefix}.w3.weight"), x));
        let h: Vector = a
            .iter()
            .zip(&b)
            .map(|(a, b)| {
                let a = a.min(limit);
                a * sigmoid(a) * b.clamp(-limit, limit)
            })
            .collect();
        self.apply(&format!("{prefix}.w2.weight"), &h)
    }

    fn experts(&self, inputs: &[Vector]) -> Vec<Vector> {
        let bias = self.tensor("mtp.0.ffn.gate.bias");
        let run = |x: &Vector| {
            let s: Vector =
                self.apply("mtp.0.ffn.gate.weight", x).into_iter().map(|z| z.exp().ln_1p().sqrt()).collect();
            let mut order: Vec<usize> = (0..s.len()).collect();
            order.sort_by(|&a, &b| (s[b] + bias[b]).total_cmp(&(s[a] + bias[a])));
            order.truncate(self.config.experts_per_tok as usize);
            let sum: f64 = order.iter().map(|&e| s[e]).sum();
            let mut y = self.expert("mtp.0.ffn.shared_experts", x);
            for &e in &order {
                let weight = f64::from(self.config.routed_scaling) * s[e] / sum;
                let out = self.expert(&format!("mtp.0.ffn.experts.{e}"), x);
                y.iter_mut().zip(out).for_each(|(y, o)| *y += weight * o);
            }
            y
        };
        inputs.iter().map(run).collect()
    }

    /// Logits of every position from the trunk's streams and the tokens behind each position.
    fn logits(&self, streams: &[Vec<Vector>], next: &[i32]) -> Vec<Vector> {
        let d = self.config.hidden_size as usize;
        let embed = self.tensor("embed.weight");
        let mut tokens: Vec<Vec<Vector>> = streams
            .iter()
            .zip(next)
            .map(|(streams, &id)| {
                let row = &embed[id as usize * d..(id as usize + 1) * d];
                let e = self.apply("mtp.0.e_proj.weight", &self.rms(row, Some("mtp.0.enorm.weight")));
                let stream = |x: &Vector| -> Vector {
                    let h = self.apply("mtp.0.h_proj.weight", &self.rms(x, Some("mtp.0.hnorm.weight")));
                    h.iter().zip(&e).map(|(h, e)| h + e).collect()
                };
                streams.iter().map(stream).collect()
            })
            .collect();
        self.sub_layer(&mut tokens, "mtp.0.hc_attn", "mtp.0.attn_norm.weight", |x| self.attention(x));
        self.sub_layer(&mut tokens, "mtp.0.hc_ffn", "mtp.0.ffn_norm.weight", |x| self.experts(x));
        let head = |streams: &Vec<Vector>| {
            let h = self.collapse(streams, &self.mixes(streams, "mtp.0.hc_head"), "mtp.0.hc_head");
            self.apply("head.weight", &self.rms(&h, Some("mtp.0.norm.weight")))
        };
        tokens.iter().map(head).collect()
    }
}

#[test]
fn the_draft_layer_by_definition() {
    let config = TINY.config();
    let shape = CacheShape::ring_per_request(config.window, true);
    let numerics = Numerics::plain(config.head_dim, config.index_head_dim);
    let mut model = model(HostOps, &TINY, numerics, &shape, (0, 1), Box::new(Solo), true);
    // More than a window, in two pieces; the token behind the last one is made up.
    let ids: Vec<i32> = (0..23).map(|i| (i * 37 + 11) % 251).collect();
    let (d, hc, last) = (config.hidden_size as usize, config.hc_mult as usize, config.layers.len());
    let (mut streams, mut logits) = (Vec::new(), Vec::new());
    for (step, (start, end)) in [(0, 9), (9, 22)].into_iter().enumerate() {
        let plan =
            StepPlan { step: step as u64, num_decode: 0, entries: vec![entry(&shape, 1, start, &ids[start..end])] };
        let mut batch = Batch::new(&plan, &shape).expect("pages");
        all_logits(&mut batch);
        let mut trunk = Record { wanted: [(Stage::StreamsOut, 4 * hc * d)].into(), ..Record::default() };
        model.forward_with(&batch, &mut trunk).expect("runs");
        streams.extend(trunk.f32s(last - 1, Stage::StreamsOut));
        let width = 4 * config.vocab_size as usize;
        let mut draft = Record { wanted: [(Stage::Logits, width)].into(), ..Record::default() };
        model.draft_with(&batch, &ids[start + 1..=end], &mut draft).expect("runs");
        logits.extend(draft.f32s(last, Stage::Logits));
    }
    let streams: Vec<Vec<Vector>> = streams
        .chunks_exact(hc * d)
        .map(|token| token.chunks_exact(d).map(|s| s.iter().map(|&v| f64::from(v)).collect()).collect())
        .collect();
    let oracle = Oracle { checkpoint: &TINY, config };
    let expected: Vec<f32> = oracle.logits(&streams, &ids[1..23]).concat().iter().map(|&v| v as f32).collect();
    // As for the trunk.
    close("logits of the draft layer", &logits, &expected, 1e-4);
}

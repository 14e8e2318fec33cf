//! No rounding anywhere: every stage of every layer, then logits, decoding, states, greedy text.

use std::collections::HashMap;

use engine::model::Numerics;
use engine::model::probe::Stage;
use kernel_bindings::host::HostOps;
use reference::plain::ReferenceOps;

use crate::rig::{Record, Rig, argmax, close, continuation, golden, prompt};

/// Largest absolute difference of a tensor of order 1.
const BAR: f32 = 1e-4;
const PLAIN: Numerics = Numerics::plain(512, 128);
const T: usize = 303;

/// f32 per row of every stage that the golden file has.
fn stages() -> HashMap<Stage, usize> {
    let of = [
        (Stage::AttnIn, 128),
        (Stage::Q, 8 * 512),
        (Stage::Kv, 512),
        (Stage::Comp, 512),
        (Stage::IndexK, 128),
        (Stage::IndexQ, 64 * 128),
        (Stage::IndexW, 64),
        (Stage::IndexLogits, 256),
        (Stage::Topk, 8),
        (Stage::AttnCore, 8 * 512),
        (Stage::AttnOut, 128),
        (Stage::HcAttnPost, 4),
        (Stage::HcAttnComb, 16),
        (Stage::StreamsMid, 4 * 128),
        (Stage::FfnIn, 128),
        (Stage::HcFfnPost, 4),
        (Stage::HcFfnComb, 16),
        (Stage::ExpertIds, 3),
        (Stage::ExpertWeights, 3),
        (Stage::MoeOut, 128),
        (Stage::StreamsOut, 4 * 128),
    ];
    of.into_iter().map(|(stage, width)| (stage, 4 * width)).collect()
}

/// Every stage of the prompt, in one piece.
#[test]
fn every_stage_of_the_prompt() {
    let plain = golden("goldens");
    let probes = plain.positions("probe_positions", T).expect("positions");
    let mut record = Record { wanted: stages(), ..Record::default() };
    let mut rig = Rig::new(HostOps, PLAIN);
    let entry = rig.entry(1, 0, &prompt());
    let logits = rig.run_with(vec![entry], 0, &mut record).expect("runs");
    let at_probes = |values: Vec<f32>| {
        let width = values.len() / T;
        probes.iter().flat_map(|&p| values[p * width..(p + 1) * width].to_vec()).collect::<Vec<_>>()
    };
    for (layer, kind) in "SCHC".chars().enumerate() {
        let name = |tail: &str| format!("layers.{layer}.{tail}");
        let all = |tail: &str, stage: Stage, shape: &[usize]| {
            let expected = plain.f32s(&name(tail), shape).expect("a tensor");
            close(&name(tail), &record.f32s(layer, stage), &expected, BAR);
        };
        let probe = |tail: &str, stage: Stage, shape: &[usize]| {
            let expected = plain.f32s(&name(tail), shape).expect("a tensor");
            close(&name(tail), &at_probes(record.f32s(layer, stage)), &expected, BAR);
        };
        all("attn_in", Stage::AttnIn, &[T, 128]);
        all("hc_attn_post", Stage::HcAttnPost, &[T, 4]);
        all("hc_attn_comb", Stage::HcAttnComb, &[T, 4, 4]);
        probe("q", Stage::Q, &[16, 8, 512]);
        all("kv", Stage::Kv, &[T, 512]);
        if kind != 'S' {
            let rows = if kind == 'C' { 75 } else { 2 };
            all("comp", Stage::Comp, &[rows, 512]);
        }
        if kind == 'C' {
            all("index_k", Stage::IndexK, &[75, 128]);
            probe("index_q", Stage::IndexQ, &[16, 64, 128]);
            all("index_w", Stage::IndexW, &[T, 64]);
            let expected = plain.f32s(&name("index_logits"), &[T, 75]).expect("a tensor");
            let got = record.f32s(layer, Stage::IndexLogits);
            for t in 0..T {
                let n = (t + 1) / 4;
                let what = format!("{} at position {t}", name("index_logits"));
                close(&what, &got[t * 256..t * 256 + n], &expected[t * 75..t * 75 + n], BAR);
            }
            let picks = plain.s32s(&name("topk"), &[T, 8]).expect("a tensor");
            assert_eq!(record.s32s(layer, Stage::Topk), picks, "{}", name("topk"));
        }
        probe("attn_core", Stage::AttnCore, &[16, 8, 512]);
        all("attn_out", Stage::AttnOut, &[T, 128]);
        probe("streams_mid", Stage::StreamsMid, &[16, 4, 128]);
        probe("ffn_in", Stage::FfnIn, &[16, 128]);
        all("hc_ffn_post", Stage::HcFfnPost, &[T, 4]);
        all("hc_ffn_comb", Stage::HcFfnComb, &[T, 4, 4]);
        experts(&plain, &record, layer);
        probe("moe_out", Stage::MoeOut, &[16, 128]);
        probe("streams_out", Stage::StreamsOut, &[16, 4, 128]);
    }
    let expected = plain.f32s("logits", &[T, 256]).expect("a tensor");
    close("logits", &logits.concat(), &expected, BAR);
}

/// Equal sets of experts; weights by expert, since the golden lists ascend.
fn experts(plain: &reference::golden::GoldenFile, record: &Record, layer: usize) {
    let name = |tail: &str| format!("layers.{layer}.{tail}");
    let (ids, weights) = (record.s32s(layer, Stage::ExpertIds), record.f32s(layer, Stage::ExpertWeights));
    let mut pairs: Vec<(i32, f32)> = ids.into_iter().zip(weights).collect();
    pairs.chunks_exact_mut(3).for_each(|row| row.sort_by_key(|pair| pair.0));
    let (ids, weights): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    assert_eq!(ids, plain.s32s(&name("expert_ids"), &[T, 3]).expect("a tensor"), "{}", name("expert_ids"));
    let expected = plain.f32s(&name("expert_weights"), &[T, 3]).expect("a tensor");
    close(&name("expert_weights"), &weights, &expected, BAR);
}

/// The golden continuation fed in, one token at a time: logits, picks, outputs of the decode steps.
#[test]
fn every_decode_step() {
    let plain = golden("goldens");
    let (prompt, text) = (prompt(), continuation());
    let mut rig = Rig::new(HostOps, PLAIN);
    rig.prefill(0, &prompt, &[]);
    let wanted = [(Stage::AttnOut, 4 * 128), (Stage::MoeOut, 4 * 128), (Stage::Topk, 4 * 8)];
    let mut record = Record { wanted: wanted.into_iter().collect(), ..Record::default() };
    let mut logits = Vec::new();
    for (i, &token) in text[..95].iter().enumerate() {
        let entry = rig.entry(0, T + i, &[token]);
        logits.extend(rig.run_with(vec![entry], 1, &mut record).expect("runs").concat());
    }
    let expected = plain.f32s("gen.logits", &[96, 256]).expect("a tensor");
    close("gen.logits", &logits, &expected[256..], BAR);
    for (layer, kind) in "SCHC".chars().enumerate() {
        for (tail, stage) in [("attn_out", Stage::AttnOut), ("moe_out", Stage::MoeOut)] {
            let name = format!("layers.{layer}.dec.{tail}");
            let expected = plain.f32s(&name, &[95, 128]).expect("a tensor");
            close(&name, &record.f32s(layer, stage), &expected, BAR);
        }
        if kind == 'C' {
            let name = format!("layers.{layer}.dec.topk");
            assert_eq!(record.s32s(layer, Stage::Topk), plain.s32s(&name, &[95, 8]).expect("a tensor"), "{name}");
        }
    }
}

/// Greedy text, nothing fed in.
#[test]
fn greedy_continuation() {
    let (prompt, text) = (prompt(), continuation());
    let mut rig = Rig::new(HostOps, PLAIN);
    let mut token = argmax(rig.prefill(2, &prompt, &[]).last().expect("a row"));
    for (i, &expected) in text.iter().enumerate() {
        assert_eq!(token, expected, "token {i}");
        token = argmax(&rig.decode(2, T + i, token));
    }
}

/// The judge itself, on the first positions and one decode step: its text is too slow for more.
#[test]
fn the_reference_agrees() {
    let plain = golden("goldens");
    let expected = plain.f32s("logits", &[T, 256]).expect("a tensor");
    let mut rig = Rig::new(ReferenceOps, PLAIN);
    let prompt = prompt();
    let logits = rig.prefill(0, &prompt[..140], &[37]);
    close("logits", &logits.concat(), &expected[..140 * 256], BAR);
    close("decode", &rig.decode(0, 140, prompt[140]), &expected[140 * 256..141 * 256], BAR);
}

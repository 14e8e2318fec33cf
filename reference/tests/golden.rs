//! The reference, judged by values from outside, and what golden folders are refused for.

use std::fs;
use std::path::Path;

use ndarray::{Array1, Array2};
use reference::cases::golden;
use reference::compare::Bound;
use reference::formats::*;
use reference::golden::{GoldenDir, GoldenFile, parse};
use reference::layout::{D_INDEX, D_KV, INDEX_HEADS, index_k_fp4_data, index_k_fp4_scale};
use reference::ops::{IndexKFormat, KvFormat, Pages, ScaleRule};
use reference::plain::{self, ReferenceOps, attend, kv_row};
use reference::problem::{Expected, Fill, ListProblem, Problem};
use reference::suite;

fn shipped() -> GoldenDir {
    GoldenDir::shipped().expect("the repository carries its golden values")
}

#[test]
fn every_golden_case() {
    let cases = golden::cases(&shipped()).unwrap();
    assert_eq!(cases.len(), 2 + 2 * 4 + 2 * 2 + 2 + 4 * 2 + 2 * 4 * 2);
    for case in &cases {
        let report = suite::run_case(&ReferenceOps, case, 0, Fill::Poison);
        assert!(report.passes(), "{report}");
        assert!(report.verdicts.iter().any(|v| v.output.ends_with("against outside values")), "{}", case.name);
    }
}

/// The scales of the activations are those that the outside program chose; their codes are judged by the products.
#[test]
fn activations_of_a_product_have_the_scales_of_the_description() {
    let file = shipped().file("kernels").unwrap();
    let x = file.bf16s("linear.x", &[3, 256]).unwrap();
    let want = file.bytes("linear.x_scale", "U8", &[3, 2]).unwrap();
    let scales = x.as_chunks::<D_INDEX>().0.iter().map(|tile| quantise_index_row(tile, ScaleRule::PowerOfTwo).0);
    assert_eq!(scales.collect::<Vec<f32>>(), want.into_iter().map(ue8m0_decode).collect::<Vec<f32>>());
}

#[test]
fn attention_before_rounding_is_within_1e_5() {
    let cases = golden::operators(&shipped()).unwrap();
    let attention: Vec<_> = cases.iter().filter(|c| c.op == "sparse_mla_decode").collect();
    assert_eq!(attention.len(), 4);
    for case in attention {
        let prepared = case.prepare(0);
        for outside in &prepared.outside {
            let expected = prepared.expected.iter().find(|e| e.name == outside.name).unwrap();
            let (Expected::Floats { cells, .. }, Expected::Floats { cells: want, .. }) =
                (&expected.expected, &outside.expected)
            else {
                panic!("attention gives floats")
            };
            let largest = want.iter().flatten().map(|e| e.value.abs()).fold(1.0, f64::max);
            for (got, want) in cells.iter().flatten().zip(want.iter().flatten()) {
                let error = (got.value - want.value).abs();
                assert!(error <= 1e-5 * largest, "{} {}: {} and {}", case.name, outside.name, got.value, want.value);
            }
        }
    }
}

/// Rows of token `t` of a list without lengths, decoded.
fn rows_of(format: KvFormat, list: &ListProblem, t: usize) -> Vec<Array1<f64>> {
    let (cache, slots) = (list.cache.image(), s32s(&list.slots.image()));
    let line = &slots[t * list.stride_slots as usize..][..list.width as usize];
    let places = line.iter().filter_map(|&slot| list.pages.locate(slot));
    places.map(|(page, row)| kv_row(format, &cache, &list.pages, page, row)).collect()
}

#[test]
fn attention_of_every_layer_with_unrounded_queries_is_within_1e_5() {
    let dir = shipped();
    let (plain, rows) = (dir.file("goldens").unwrap(), dir.file("goldens-kvfp8").unwrap());
    let cases = golden::activations(&dir).unwrap();
    for layer in 0..4 {
        let name = format!("sparse_mla_decode/golden/layer_{layer}_v4_fp8");
        let case = cases.iter().find(|c| c.name == name).unwrap();
        let Problem::SparseMlaDecode(problem) = case.problem(0) else { panic!("attention") };
        let shape = [16, 8, D_KV];
        let q = plain.f32s(&format!("layers.{layer}.q"), &shape).unwrap();
        let want = rows.f32s(&format!("layers.{layer}.attn_core"), &shape).unwrap();
        let sink = dir.attn_sink(layer).unwrap();
        for t in 0..16 {
            let mut keys = rows_of(problem.format, &problem.window, t);
            keys.extend(problem.compressed.iter().flat_map(|list| rows_of(problem.format, list, t)));
            for (h, &sink) in sink.iter().enumerate() {
                let at = (t * 8 + h) * D_KV;
                let q: Array1<f64> = q[at..at + D_KV].iter().map(|&x| f64::from(x)).collect();
                let (out, _) = attend(q.view(), &keys, 512f64.powf(-0.5), Some(f64::from(sink)));
                for (c, exact) in out.iter().enumerate() {
                    let error = (exact.value - f64::from(want[at + c])).abs();
                    assert!(error <= 1e-5, "layer {layer}, [{t}, {h}, {c}]: {} and {}", exact.value, want[at + c]);
                }
            }
        }
    }
}

#[test]
fn written_kv_rows_decode_to_the_golden_rows() {
    let file = shipped().file("kernels").unwrap();
    let pool = file.bytes("kv.pages", "U8", &[13, 37_440]).unwrap();
    let want = file.f32s("kv.rows_out", &[64, D_KV]).unwrap();
    let pages = Pages::kv(KvFormat::V4Fp8, 13, 64);
    for row in 0..64 {
        let got = kv_row(KvFormat::V4Fp8, &pool, &pages, 4, row);
        for (c, got) in got.iter().enumerate() {
            assert_eq!(*got, f64::from(want[row as usize * D_KV + c]), "row {row}, channel {c}");
        }
    }
}

/// Counts codes that differ, and asserts that those are neighbours.
#[derive(Default)]
struct Codes {
    all: usize,
    differ: usize,
}

impl Codes {
    fn add(&mut self, got: u8, want: u8, what: &str) {
        self.all += 1;
        // Codes of one sign are in order; zeros of both signs are equal.
        if got != want && (got | want) & 0x7f != 0 {
            self.differ += 1;
            assert!(got.abs_diff(want) == 1, "{what}: got {got:#x}, expected {want:#x}");
        }
    }

    fn at_most_one_in(&self, n: usize, what: &str) {
        assert!(self.all > 0 && self.differ * n <= self.all, "{what}: {} of {} codes differ", self.differ, self.all);
    }
}

fn rows_128(values: &[f32]) -> impl Iterator<Item = [f32; D_INDEX]> {
    values.chunks_exact(D_INDEX).map(|row| row.try_into().unwrap())
}

/// Quantises rows as format `name` does and compares codes and scales.
fn check_fp8(name: &str, values: &[f32], codes: &[u8], scales: &[f32]) {
    let mut seen = Codes::default();
    for (j, row) in rows_128(values).enumerate() {
        let (row, rule) = if name == "fp8" { (hadamard(&row), ScaleRule::Exact) } else { (row, ScaleRule::PowerOfTwo) };
        let (scale, got) = quantise_index_row(&row, rule);
        let error = f64::from((scale - scales[j]).abs() / scales[j]);
        assert!(error <= if name == "fp8" { 1e-6 } else { 0.0 }, "{name} row {j}: scales {scale} and {}", scales[j]);
        got.iter().zip(&codes[j * D_INDEX..]).for_each(|(&got, &want)| seen.add(got, want, name));
    }
    seen.at_most_one_in(if name == "fp8" { 1000 } else { usize::MAX }, name);
}

#[test]
fn index_quantisers_give_the_golden_codes() {
    let file = shipped().file("kernels").unwrap();
    let keys = file.bf16s("index.k_in", &[64, D_INDEX]).unwrap();
    let queries = file.bf16s("index.q_in", &[5, INDEX_HEADS, D_INDEX]).unwrap();
    for name in ["fp8", "fp8pow2"] {
        let pool = file.bytes(&format!("index.{name}.pages"), "U8", &[13, 8448]).unwrap();
        let page = &pool[4 * 8448..5 * 8448];
        check_fp8(name, &keys, page, &f32s(&page[64 * D_INDEX..]));
        let codes = file.bytes(&format!("index.{name}.q_codes"), "U8", &[5, INDEX_HEADS, D_INDEX]).unwrap();
        check_fp8(name, &queries, &codes, &file.f32s(&format!("index.{name}.q_scale"), &[5, INDEX_HEADS]).unwrap());
    }
    let pool = file.bytes("index.bf16.pages", "U8", &[13, 16_384]).unwrap();
    let page = &pool[4 * 16_384..5 * 16_384];
    let rounded: Vec<u8> = rows_128(&keys).flat_map(|row| bf16_bytes(&hadamard(&row))).collect();
    let differ = rounded.chunks(2).zip(page.chunks(2)).filter(|(got, want)| got != want).count();
    assert!(differ * 1000 <= 64 * D_INDEX, "{differ} bf16 values differ");
}

/// Values of an index-K page of the fp4 format: P x 64 bytes of two codes, low nibble first, then P x 4 scales.
fn mxfp4_row(codes: &[u8], scales: &[u8]) -> [f32; D_INDEX] {
    std::array::from_fn(|c| {
        let code = if c % 2 == 0 { codes[c / 2] & 0xf } else { codes[c / 2] >> 4 };
        e2m1_decode(code) * ue8m0_decode(scales[c / MXFP4_TILE])
    })
}

#[test]
fn mxfp4_rows_scores_and_picks() {
    let file = shipped().file("kernels").unwrap();
    let pool = file.bytes("index.mxfp4.pages", "U8", &[13, 4352]).unwrap();
    let keys = file.bf16s("index.k_in", &[64, D_INDEX]).unwrap();
    let pages = Pages::index_k(IndexKFormat::Fp4, 13, 64);
    let places = |page: u32, row: usize| {
        let row = row as u32;
        (index_k_fp4_data(&pages, page, row) as usize, index_k_fp4_scale(&pages, page, row) as usize)
    };
    let mut seen = Codes::default();
    for (j, row) in rows_128(&keys).enumerate() {
        let row = hadamard(&row);
        let (data, scales) = places(4, j);
        for tile in 0..4 {
            let values: [f32; MXFP4_TILE] = std::array::from_fn(|c| row[tile * MXFP4_TILE + c]);
            let (scale, codes) = quantise_mxfp4_tile(&values);
            assert_eq!(scale, pool[scales + tile], "row {j}, tile {tile}");
            for (c, &code) in codes.iter().enumerate() {
                let byte = pool[data + (tile * MXFP4_TILE + c) / 2];
                let want = if c % 2 == 0 { byte & 0xf } else { byte >> 4 };
                let sign = |code: u8| (code & 0x8) << 4 | code & 0x7;
                seen.add(sign(code), sign(want), "mxfp4");
            }
        }
    }
    seen.at_most_one_in(1000, "mxfp4");

    let rows = file.s32s("n_rows", &[5]).unwrap();
    let table = file.s32s("page_table", &[5, 11]).unwrap();
    let weights = file.f32s("index.w", &[5, INDEX_HEADS]).unwrap();
    let q_codes = file.bytes("index.mxfp4.q_codes", "U8", &[5, INDEX_HEADS, 64]).unwrap();
    let q_scales = file.bytes("index.mxfp4.q_scale", "U8", &[5, INDEX_HEADS, 4]).unwrap();
    let want = file.f32s("index.mxfp4.logits", &[5, 704]).unwrap();
    let picks = file.s32s("index.mxfp4.topk", &[5, 512]).unwrap();
    for sequence in 0..5 {
        let heads = (0..INDEX_HEADS).flat_map(|head| {
            let at = sequence * INDEX_HEADS + head;
            mxfp4_row(&q_codes[64 * at..], &q_scales[4 * at..])
        });
        let q = Array2::from_shape_vec((INDEX_HEADS, D_INDEX), heads.map(f64::from).collect()).unwrap();
        let w: Array1<f64> = weights[sequence * INDEX_HEADS..][..INDEX_HEADS].iter().map(|&w| f64::from(w)).collect();
        for j in 0..rows[sequence] as usize {
            let (data, scales) = places(table[sequence * 11 + j / 64] as u32, j % 64);
            let key: Array1<f64> = mxfp4_row(&pool[data..], &pool[scales..]).iter().map(|&x| f64::from(x)).collect();
            let got = plain::index_score(q.view(), w.view(), 1.0, key.view()).value;
            let want = f64::from(want[sequence * 704 + j]);
            assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "[{sequence}, {j}]: {got} and {want}");
        }
        let n = rows[sequence] as usize;
        let mut chosen: Vec<i32> =
            plain::select(&want[sequence * 704..][..n], 512).into_iter().map(|j| j as i32).collect();
        chosen.resize(512, -1);
        assert_eq!(chosen, picks[sequence * 512..][..512]);
    }
}

#[test]
fn index_rows_of_the_model_give_the_golden_codes() {
    let dir = shipped();
    let plain = dir.file("goldens").unwrap();
    for layer in [1, 3] {
        let keys = plain.f32s(&format!("layers.{layer}.index_k"), &[75, D_INDEX]).unwrap();
        for name in ["fp8", "fp8pow2"] {
            let file = dir.file(&format!("goldens-index-{name}")).unwrap();
            let codes = file.bytes(&format!("layers.{layer}.index_k_codes"), "U8", &[75, D_INDEX]).unwrap();
            let scales = file.f32s(&format!("layers.{layer}.index_k_scale"), &[75]).unwrap();
            // Rows of the stored run differ from the plain ones in the last bits: a few codes in a thousand.
            let mut seen = Codes::default();
            for (j, row) in rows_128(&keys).enumerate() {
                let (row, rule) =
                    if name == "fp8" { (hadamard(&row), ScaleRule::Exact) } else { (row, ScaleRule::PowerOfTwo) };
                let (scale, got) = quantise_index_row(&row, rule);
                assert!((scale - scales[j]).abs() <= 1e-5 * scales[j], "layer {layer}, row {j}");
                got.iter().zip(&codes[j * D_INDEX..]).for_each(|(&got, &want)| seen.add(got, want, name));
            }
            seen.at_most_one_in(1000, name);
        }
    }
}

// ------------------------------------------------------------------------------------------------ refusals

/// A copy of the shipped folder that a test may spoil.
fn copy() -> tempfile::TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let to = tempfile::tempdir().unwrap();
    fs::create_dir(to.path().join("ckpt-fp32")).unwrap();
    for folder in ["", "ckpt-fp32"] {
        for entry in fs::read_dir(from.join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), to.path().join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
    to
}

fn refusal(spoil: impl Fn(&Path)) -> String {
    let folder = copy();
    spoil(folder.path());
    let cases = GoldenDir::open(folder.path()).and_then(|dir| golden::cases(&dir));
    let text = cases.expect_err("the folder is spoiled").to_string();
    text.replace(&folder.path().display().to_string(), "DIR")
}

fn edit(path: &Path, file: &str, change: impl Fn(String) -> String) {
    let path = path.join(file);
    fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
}

#[test]
fn a_truncated_file_names_the_tensor() {
    let text = refusal(|dir| {
        let path = dir.join("kernels.3.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    });
    let at = text.find(": expected data up to byte ").unwrap_or_else(|| panic!("{text}"));
    assert!(text.starts_with("golden file kernels.3.safetensors: attn."), "{text}");
    assert!(text[at..].contains(", got ") && text.ends_with(" bytes of data"), "{text}");
    let text = refusal(|dir| fs::write(dir.join("kernels.3.safetensors"), [1, 2, 3]).unwrap());
    assert!(
        text.starts_with("golden file kernels.3.safetensors: expected a safetensors file, got 3 bytes: "),
        "{text}"
    );
    let text = refusal(|dir| fs::write(dir.join("kernels.3.safetensors"), []).unwrap());
    assert!(text.contains("expected a safetensors file, got 0 bytes"), "{text}");
}

#[test]
fn a_missing_file_is_named() {
    let text = refusal(|dir| fs::remove_file(dir.join("goldens-kvfp8.2.safetensors")).unwrap());
    assert!(text.starts_with("golden file DIR/goldens-kvfp8.2.safetensors: "), "{text}");
    let text = refusal(|dir| fs::remove_file(dir.join("index.json")).unwrap());
    assert!(text.starts_with("golden file DIR/index.json: "), "{text}");
    let text = refusal(|dir| edit(dir, "index.json", |s| s.replace("kernels.", "colonels.")));
    assert_eq!(text, "golden file kernels.safetensors: expected an entry in index.json, got none");
}

#[test]
fn an_index_that_does_not_describe_the_file_is_refused() {
    let text = refusal(|dir| edit(dir, "index.json", |s| s.replace("\"attn.sink\"", "\"attn.zink\"")));
    assert_eq!(text, "golden file kernels.3.safetensors: attn.zink: expected F32 [64], got no such tensor");
    let text = refusal(|dir| {
        edit(dir, "index.json", |s| {
            let mut index: serde_json::Value = serde_json::from_str(&s).unwrap();
            index["files"]["kernels.1.safetensors"]["tensors"]["n_rows"]["shape"] = serde_json::json!([6]);
            index.to_string()
        })
    });
    assert_eq!(text, "golden file kernels.1.safetensors: n_rows: expected I32 [6], got I32 [5]");
    let text = refusal(|dir| edit(dir, "index.json", |s| s[..s.len() / 2].to_string()));
    assert!(text.starts_with("golden file DIR/index.json: expected JSON with the fields of a golden folder, got "));
}

#[test]
fn a_changed_value_is_refused() {
    let text = refusal(|dir| {
        let path = dir.join("kernels.2.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
    });
    assert!(text.starts_with("golden file kernels.2.safetensors: expected SHA-256 "), "{text}");
}

#[test]
fn a_tensor_of_another_shape_or_type_is_refused_where_it_is_used() {
    let file: GoldenFile = shipped().file("kernels").unwrap();
    let error = file.f32s("attn.sink", &[32]).unwrap_err().to_string();
    assert_eq!(error, "golden file kernels.safetensors: attn.sink: expected F32 [32], got F32 [64]");
    let error = file.s32s("attn.sink", &[64]).unwrap_err().to_string();
    assert_eq!(error, "golden file kernels.safetensors: attn.sink: expected I32 elements, got F32 elements");
    let error = file.f32s("attn.source", &[64]).unwrap_err().to_string();
    assert_eq!(error, "golden file kernels.safetensors: attn.source: expected F32 elements, got no such tensor");
    assert!(parse("x", &u64::MAX.to_le_bytes()).is_err(), "a header length beyond the file");
}

/// A bar that nothing passes: the comparison with outside values can fail.
#[test]
fn an_outside_value_that_differs_fails_the_case() {
    let cases = golden::operators(&shipped()).unwrap();
    for op in ["index_logits_decode", "sparse_mla_decode"] {
        let mut prepared = cases.iter().find(|c| c.op == op).unwrap().prepare(0);
        let Expected::Floats { cells, bound, .. } = &mut prepared.outside[0].expected else { panic!("floats") };
        *bound = Bound { abs: bound.abs, rel: bound.rel, difference: 1.0 };
        let cell = cells.iter_mut().flatten().find(|cell| cell.value.is_finite()).unwrap();
        cell.value += 0.5 * cell.magnitude.max(1.0);
        let report = suite::run_prepared(&ReferenceOps, &prepared, Fill::Poison);
        assert!(report.fails(), "{report}");
        assert!(report.to_string().contains("against outside values: 1 elements beyond their bound"), "{report}");
    }
}

#[test]
fn indices_that_lead_outside_are_refused_by_value() {
    let file = shipped().file("kernels").unwrap();
    let text = file.s32s_in("seq_len", &[5], 0..100).unwrap_err().to_string();
    assert!(text.contains("seq_len: expected values from 0 to below 100, got 131 at element 1"), "{text}");
    assert_eq!(file.s32s_in("seq_len", &[5], 0..3000).unwrap(), [3, 131, 2048, 2052, 2601]);
    let text = shipped().file("goldens").unwrap().positions("probe_positions", 0).unwrap_err().to_string();
    assert!(text.contains("probe_positions: expected values from 0 to below 0"), "{text}");
}

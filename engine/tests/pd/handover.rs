//! Which pages travel, and that they arrive bit for bit.

use crate::fake::{FakeModel, Oracle};
use engine::batch::Batch;
use engine::config::ModelConfig;
use engine::geometry::{CacheBuffer, CacheGeometry, CacheShape, HcaState};
use engine::handover::{self, Handover, Needed, PageMove};
use engine::ids::{PageId, Position, SequenceId, SlotIndex, TokenId};
use engine::model::cache::Caches;
use engine::pools::PoolSizes;
use engine::step::{Generations, InputToken, Sampling, StepEntry, StepPlan};
use kernel_bindings::host::HostOps;
use reference::ops::{IndexKFormat, KvFormat, Ops};
use reference::rng::Rng;
use transfer::ids::{Class, Unit};

const SMALL: CacheShape = CacheShape {
    page_tokens: 16,
    window_page_tokens: 8,
    window: 8,
    csa_ratio: 4,
    hca_ratio: 8,
    csa_ring_rows: 8,
    hca_ring_rows: 8,
    hca_state: HcaState::PerRequest,
};

#[test]
fn pages_at_the_borders() {
    let request = CacheShape::ring_per_request(128, false);
    let page = CacheShape::ring_per_page(128, true);
    // Compressed, window, rings: derived by hand from pages of 256 tokens, rows of 4 and 128, a window of 128.
    for (shape, held, tokens, expected) in [
        (&request, 0, 1, (0..0, 0..1, true)),
        (&request, 0, 3, (0..0, 0..1, true)),
        (&request, 0, 4, (0..1, 0..1, true)),
        (&request, 0, 128, (0..1, 0..1, false)),
        (&request, 0, 256, (0..1, 0..1, false)),
        (&request, 0, 259, (0..1, 0..2, true)),
        (&request, 0, 260, (0..2, 0..2, true)),
        // The window has left the first page; texts that go on from its end have not.
        (&request, 0, 383, (0..2, 0..2, true)),
        (&request, 0, 511, (0..2, 0..2, true)),
        (&request, 0, 382, (0..2, 0..2, true)),
        (&request, 256, 382, (1..2, 1..2, true)),
        (&request, 256, 257, (1..1, 1..2, true)),
        (&page, 0, 255, (0..1, 1..2, false)),
        (&page, 0, 254, (0..1, 0..2, false)),
        (&page, 0, 300, (0..2, 1..3, false)),
        // Three pages would be more than any text needs.
        (&page, 0, 420, (0..2, 2..4, false)),
        (&page, 512, 700, (2..3, 4..6, false)),
        (&page, 512, 512, (0..0, 0..0, false)),
    ] {
        let needed = Needed::at(shape, held, tokens);
        let (compressed, window, request) = expected;
        assert_eq!(needed, Needed { compressed, window, request }, "{shape:?}, {held} held of {tokens}");
    }
}

const SIZES: PoolSizes = PoolSizes { compressed_pages: 12, window_pages: 24, request_slots: 3 };

/// Tables of a text in which page `i` is page `i * step + first` of its pool.
fn entry(shape: &CacheShape, start: u32, tokens: &[TokenId], (first, step): (u32, u32)) -> StepEntry {
    let end = start + tokens.len() as u32;
    let needed = shape.first_needed(Position(start)).0 / shape.window_page_tokens;
    let page = |i: u32, of: u32| PageId((first + i * step) % of);
    StepEntry {
        sequence: SequenceId(0),
        start: Position(start),
        tokens: tokens.iter().copied().map(InputToken::Known).collect(),
        draft: None,
        next: None,
        emits: true,
        sampling: Sampling::GREEDY,
        window_table: (0..end.div_ceil(shape.window_page_tokens))
            .map(|i| (i >= needed).then(|| page(i, SIZES.window_pages - 1)))
            .collect(),
        compressed_table: (0..shape.compressed_pages(end)).map(|i| page(i, SIZES.compressed_pages - 1)).collect(),
        request_slot: Some(SlotIndex(first % 3)),
        generations: Generations::default(),
    }
}

fn run(model: &mut FakeModel, shape: &CacheShape, entry: StepEntry) -> TokenId {
    let plan = StepPlan { step: 0, num_decode: 0, entries: vec![entry] };
    model.forward(&Batch::new(&plan, shape).expect("every page is there"))[0]
}

/// Prefill in one model, the needed pages carried over but for `without`, the rest of the text in another model.
fn continued(shape: CacheShape, prompt: &[TokenId], without: Option<(usize, usize)>) -> Vec<TokenId> {
    let (mut here, mut there) = (FakeModel::new(shape, SIZES), FakeModel::new(shape, SIZES));
    let mut token = TokenId(0);
    for (chunk, tokens) in prompt.chunks(8).enumerate() {
        token = run(&mut here, &shape, entry(&shape, 8 * chunk as u32, tokens, (1, 5)));
    }
    let tokens = prompt.len() as u32;
    let needed = Needed::at(&shape, 0, tokens);
    let pages = |layout| {
        let all = entry(&shape, 0, prompt, layout);
        needed.pages(&all.compressed_table, &all.window_table, all.request_slot).expect("the tables are whole")
    };
    let (mut from, mut to) = (pages((1, 5)), pages((2, 7)));
    if let Some((class, i)) = without {
        from[class].remove(i);
        to[class].remove(i);
    }
    there.take_pages(&here, &from, &to);
    let mut text = vec![token];
    for position in tokens..tokens + 40 {
        token = run(&mut there, &shape, entry(&shape, position, &[token], (2, 7)));
        text.push(token);
    }
    text
}

/// The pages that travel suffice for the rest of the text, and without any one of them something is read that nobody wrote; but for
/// the window page before the last full page's end, from which other texts go on.
#[test]
fn what_travels_is_what_is_needed() {
    let per_page = CacheShape { hca_state: HcaState::PerWindowPage, ..SMALL };
    for shape in [SMALL, per_page] {
        for tokens in 1..75 {
            let prompt: Vec<TokenId> = (0..tokens).map(|i| TokenId(i * 7 % 61)).collect();
            let mut oracle = Oracle::new(shape, 0.0);
            let mut expected = vec![prompt.iter().fold(TokenId(0), |_, &token| oracle.step(token))];
            (0..40).for_each(|i| expected.push(oracle.step(expected[i])));
            assert_eq!(continued(shape, &prompt, None), expected, "{tokens} tokens, {shape:?}");
        }
    }
    std::panic::set_hook(Box::new(|_| ()));
    let mut resumed = 0;
    for shape in [SMALL, per_page] {
        for tokens in [1, 3, 4, 15, 16, 17, 24, 31, 33, 47] {
            let prompt: Vec<TokenId> = (0..tokens).map(|i| TokenId(i * 7 % 61)).collect();
            let needed = Needed::at(&shape, 0, tokens);
            let (first, page) = (needed.window.start, shape.window_page_tokens);
            assert!(needed.window.len() as u32 <= shape.max_window_pages(1));
            for (class, &count) in needed.counts().iter().enumerate() {
                for i in 0..count as usize {
                    let end = (first + 1) * page;
                    let for_others = (class, i) == (1, 0) && end <= shape.first_needed(Position(tokens)).0;
                    assert!(!for_others || end == tokens / shape.page_tokens * shape.page_tokens);
                    let lost = std::panic::catch_unwind(|| continued(shape, &prompt, Some((class, i))));
                    let what = format!("page {i} of class {class} at {tokens} tokens, {shape:?}");
                    assert_eq!(lost.is_err(), !for_others, "{what}");
                    resumed += u32::from(for_others);
                }
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(resumed > 0, "no prompt ended far behind a page");
}

/// A few pages, to be filled.
const FEW: PoolSizes = PoolSizes { compressed_pages: 5, window_pages: 4, request_slots: 3 };

fn formats() -> Vec<(KvFormat, IndexKFormat, ModelConfig)> {
    let tiny = ModelConfig::tiny();
    let plain = ModelConfig { head_dim: 80, index_head_dim: 48, ..tiny.clone() };
    let mut formats = vec![(KvFormat::F32 { d: 80 }, IndexKFormat::F32 { d: 48 }, plain)];
    for kv in [KvFormat::V4Fp8, KvFormat::Bf16, KvFormat::F32 { d: 512 }] {
        for index_k in [IndexKFormat::Fp8, IndexKFormat::Bf16, IndexKFormat::Fp4, IndexKFormat::F32 { d: 128 }] {
            formats.push((kv, index_k, tiny.clone()));
        }
    }
    formats
}

/// Every buffer of a cache, as bytes.
fn contents(caches: &Caches<<HostOps as Ops>::Buffer>, geometry: &CacheGeometry) -> Vec<Vec<u8>> {
    let read = |spec: &engine::geometry::BufferSpec| {
        let readable = caches.gate().readable(Unit(spec.layer), &[]).expect("a layer");
        let buffer = caches.layer(spec.layer).and_then(|layer| layer.buffer(spec.buffer, &readable)).expect("listed");
        let mut bytes = vec![0; spec.bytes as usize];
        HostOps.download(buffer, 0, &mut bytes).expect("in range");
        bytes
    };
    geometry.buffers(FEW).iter().map(read).collect()
}

/// Random bytes in every page, through an arena into other pages of another cache: the pages named are equal in every row,
/// and nothing else has changed.
#[test]
fn every_pool_and_format_arrives_bit_for_bit() {
    for (kv, index_k, config) in formats() {
        for (shape, drafts) in [
            (CacheShape::ring_per_page(128, false), 0),
            (CacheShape::ring_per_page(128, true), 1),
            (CacheShape::ring_per_request(128, false), 0),
            (CacheShape::ring_per_request(128, true), 1),
        ] {
            let geometry = CacheGeometry::new(&config, shape, kv, index_k, drafts).expect("formats of the model");
            round_trip(&geometry);
        }
    }
}

fn round_trip(geometry: &CacheGeometry) {
    let mut here = Caches::new(&HostOps, geometry, FEW).expect("fits");
    let mut there = Caches::new(&HostOps, geometry, FEW).expect("fits");
    let mut rng = Rng::named(9, "pages");
    for spec in geometry.buffers(FEW) {
        for caches in [&mut here, &mut there] {
            let bytes: Vec<u8> = (0..spec.bytes / 8).flat_map(|_| rng.bits().to_le_bytes()).collect();
            let buffer = caches.layer_mut(spec.layer).and_then(|layer| layer.buffer_mut(spec.buffer)).expect("listed");
            HostOps.upload(buffer, 0, &bytes).expect("in range");
        }
    }
    let (before, source) = (contents(&there, geometry), contents(&here, geometry));
    let arena = PoolSizes { compressed_pages: 3, window_pages: 2, request_slots: 1 };
    let slots = if geometry.shape.has_request_slots() { vec![2] } else { Vec::new() };
    let from = vec![vec![4, 0, 3], vec![2, 3], slots.clone()];
    let through = vec![vec![1, 2, 0], vec![1, 0], slots.iter().map(|_| 0).collect()];
    let to = vec![vec![1, 4, 2], vec![0, 3], slots.iter().map(|_| 1).collect::<Vec<_>>()];
    let mut handover = Handover::new(geometry, arena).expect("an arena");
    let mut bytes = vec![0xee_u8; handover.layout().bytes() as usize];
    let units = geometry.layers.len() as u32 + geometry.draft_layers;
    assert_eq!(handover.layout().num_units(), units);
    for unit in (0..units).map(Unit) {
        let out = PageMove::pairs(&from, &through);
        let mut put = |at: u64, page: &[u8]| {
            bytes[at as usize..at as usize + page.len()].copy_from_slice(page);
            Ok(())
        };
        handover.export(&HostOps, &here, unit, &out, &[], &mut put).expect("pages that are there");
        let back = PageMove::pairs(&to, &through);
        let mut get = |at: u64, page: &mut [u8]| {
            page.copy_from_slice(&bytes[at as usize..at as usize + page.len()]);
            Ok(())
        };
        handover.import(&HostOps, &mut there, unit, &back, &mut get).expect("pages that are there");
    }
    let after = contents(&there, geometry);
    for (i, spec) in geometry.buffers(FEW).iter().enumerate() {
        let stride = spec.pages.page_stride_bytes as usize;
        let (rows, row_bytes) = geometry.rows(spec.buffer);
        let live = rows as usize * row_bytes as usize;
        let mut expected = before[i].clone();
        let class = handover::class(spec.pool).0 as usize;
        for (&from, &to) in from[class].iter().zip(&to[class]) {
            let (from, to) = (from as usize * stride, to as usize * stride);
            expected[to..to + live].copy_from_slice(&source[i][from..from + live]);
        }
        assert!(after[i] == expected, "layer {} {}: {geometry:?}", spec.layer, spec.buffer.name());
    }
}

/// What a peer must have in common changes the hash; how many pages there are does not.
#[test]
fn layouts_say_which_bytes_a_page_has() {
    let config = ModelConfig::tiny();
    let shape = CacheShape::ring_per_request(128, false);
    let geometry = |shape, index_k, drafts| {
        CacheGeometry::new(&config, shape, KvFormat::V4Fp8, index_k, drafts).expect("formats of the model")
    };
    let base = geometry(shape, IndexKFormat::Fp8, 1);
    let hash = |geometry: &CacheGeometry, sizes| handover::layout(geometry, sizes).expect("an arena").hash();
    let few = PoolSizes { compressed_pages: 1, window_pages: 1, request_slots: 1 };
    assert_eq!(hash(&base, SIZES), hash(&base, few));
    for other in [
        geometry(shape, IndexKFormat::Fp4, 1),
        geometry(shape, IndexKFormat::Fp8, 0),
        geometry(CacheShape::ring_per_request(128, true), IndexKFormat::Fp8, 1),
        geometry(CacheShape::ring_per_page(128, false), IndexKFormat::Fp8, 1),
    ] {
        assert_ne!(hash(&base, SIZES), hash(&other, SIZES), "{other:?}");
    }
    // A page of 64 fp8 keys of 132 B, and of 64 rows of 584 B, without the padding behind the latter.
    let layout = handover::layout(&base, few).expect("an arena");
    let bytes = |name: &str| {
        let item = layout.items().iter().find(|item| item.spec.name == name).expect("an item");
        (item.spec.class, item.spec.page_bytes)
    };
    assert_eq!(bytes(CacheBuffer::IndexK.name()), (Class(0), 64 * 132));
    assert_eq!(bytes(CacheBuffer::CsaKv.name()), (Class(0), 64 * 584));
    assert_eq!(bytes(CacheBuffer::HcaState.name()), (Class(2), 128 * 2 * 512 * 4));
    assert_eq!(bytes(CacheBuffer::WindowKv.name()), (Class(1), 256 * 584));
}

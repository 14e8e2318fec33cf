//! Captured launches: what a capture records, what it refuses, and what a replay does. The kernel is `topk_select` with rows cut
//! into slices, which has scratch between its blocks and counters that one launch leaves for the next.

use super::machine;
use kernel_bindings::device::{Device, DeviceError, Launch, PtxModule};
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use kernels::{Operation, Variant};
use reference::ops::{Ops, OpsError, TopkSelect};
use reference::rng::Rng;
use std::sync::Arc;

/// The shortest row that is cut into slices: one entry more than a tile.
const SLICED: i32 = 32_769;
const STRIDE: u64 = 33_024;
const TOPK: u32 = 24;

type Buffer = <Emulated as Device>::Buffer;

/// A batch of rows of logits on the device. The lengths change from launch to launch.
struct Rows {
    logits: Vec<Vec<f32>>,
    on_device: Buffer,
    lens: Buffer,
    positions: Buffer,
}

fn bytes<const N: usize, T: Copy>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

impl Rows {
    fn new(device: &Emulated, rows: usize, seed: u64) -> Self {
        let mut rng = Rng::named(seed, "rows of a graph");
        // Few values: ties everywhere.
        let row = |rng: &mut Rng| (0..STRIDE).map(|_| rng.below(5_000) as f32 - 2_500.0).collect::<Vec<f32>>();
        let logits: Vec<Vec<f32>> = (0..rows).map(|_| row(&mut rng)).collect();
        let mut on_device = device.alloc(4 * STRIDE * rows as u64, "index_logits").unwrap();
        device.upload(&mut on_device, 0, &bytes(&logits.concat(), f32::to_le_bytes)).unwrap();
        let lens = device.alloc(4 * rows as u64, "context_lens").unwrap();
        let positions = device.alloc(u64::from(4 * TOPK) * rows as u64, "topk_positions").unwrap();
        Self { logits, on_device, lens, positions }
    }

    fn set_lens(&mut self, device: &Emulated, lens: &[i32]) {
        device.upload(&mut self.lens, 0, &bytes(lens, i32::to_le_bytes)).unwrap();
    }

    fn select(&mut self, ops: &KernelOps<Emulated>) -> Result<(), OpsError> {
        ops.topk_select(TopkSelect {
            index_logits: &self.on_device,
            context_lens: &self.lens,
            block_table: None,
            sequence_of_row: None,
            topk_positions: Some(&mut self.positions),
            topk_slots: None,
            topk_lens: None,
            rows: self.logits.len() as u32,
            rows_per_sequence: 1,
            num_sequences: 0,
            topk: TOPK,
            page_size: 64,
            max_pages: 0,
            stride_logits: STRIDE,
            stride_block_table: 0,
        })
    }

    fn got(&self, device: &Emulated) -> Vec<Vec<i32>> {
        let mut bytes = vec![0; (4 * TOPK) as usize * self.logits.len()];
        device.download(&self.positions, 0, &mut bytes).unwrap();
        let all: Vec<i32> = bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
        all.chunks_exact(TOPK as usize).map(<[i32]>::to_vec).collect()
    }

    /// By sorting.
    fn expected(&self, lens: &[i32]) -> Vec<Vec<i32>> {
        let best = |(row, &len): (&Vec<f32>, &i32)| {
            let mut order: Vec<i32> = (0..len).collect();
            order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
            order.truncate(TOPK as usize);
            order.sort_unstable();
            order.resize(TOPK as usize, -1);
            order
        };
        self.logits.iter().zip(lens).map(best).collect()
    }
}

/// Lengths of rows that need no block, one block and all their blocks.
fn draw(rng: &mut Rng, rows: usize) -> Vec<i32> {
    let longest = STRIDE - SLICED as u64;
    (0..rows)
        .map(|_| match rng.below(8) {
            0 => rng.below(u64::from(TOPK) + 2) as i32,
            1..=4 => rng.below(1_200) as i32,
            5 | 6 => SLICED + rng.below(longest + 1) as i32,
            _ => rng.below(SLICED as u64) as i32,
        })
        .collect()
}

#[test]
fn a_thousand_replays_with_other_lengths() {
    let ops = KernelOps::new(Emulated::new(EmulatedConfig::fast()));
    let mut rows = Rows::new(ops.device(), 2, 1);
    let mut rng = Rng::named(2, "lengths");
    rows.set_lens(ops.device(), &[SLICED; 2]);
    rows.select(&ops).unwrap();
    let graph = ops.capture(|| rows.select(&ops)).unwrap();
    assert_eq!(ops.recorded(&graph), 1);
    for replay in 0..1_000 {
        let lens = draw(&mut rng, 2);
        rows.set_lens(ops.device(), &lens);
        ops.replay(&graph).unwrap();
        assert_eq!(rows.got(ops.device()), rows.expected(&lens), "replay {replay}, lengths {lens:?}");
    }
    let totals = ops.device().totals();
    assert_eq!((totals.replays, totals.launches), (1_000, 1_001));
}

/// Under all checks: scratch that a replay reads before it writes it would be found, though launches before have filled it.
#[test]
fn replays_under_all_checks() {
    let ops = KernelOps::new(machine(4, 188));
    let mut rows = Rows::new(ops.device(), 3, 2);
    rows.set_lens(ops.device(), &[SLICED, 100, SLICED]);
    rows.select(&ops).unwrap();
    let graph = ops.capture(|| rows.select(&ops)).unwrap();
    for lens in [[33_000, SLICED, 7], [5, 0, 32_768], [40, 33_024, 33_023]] {
        rows.set_lens(ops.device(), &lens);
        ops.replay(&graph).unwrap();
        assert_eq!(rows.got(ops.device()), rows.expected(&lens));
    }
}

/// A larger call takes other scratch; the graph keeps what it was recorded with.
#[test]
fn scratch_that_grows_stays_in_its_graphs() {
    let ops = KernelOps::new(machine(0, 188));
    let mut few = Rows::new(ops.device(), 1, 3);
    few.set_lens(ops.device(), &[SLICED]);
    few.select(&ops).unwrap();
    let graph = ops.capture(|| few.select(&ops)).unwrap();
    let mut many = Rows::new(ops.device(), 4, 4);
    let lens = [SLICED, 33_000, 50, 33_001];
    many.set_lens(ops.device(), &lens);
    for _ in 0..2 {
        many.select(&ops).unwrap();
        assert_eq!(many.got(ops.device()), many.expected(&lens));
        few.set_lens(ops.device(), &[33_010]);
        ops.replay(&graph).unwrap();
        assert_eq!(few.got(ops.device()), few.expected(&[33_010]));
    }
}

#[test]
fn nothing_runs_inside_a_capture() {
    let device = machine(0, 188);
    let mut buffer = device.alloc(8, "bytes").unwrap();
    device.upload(&mut buffer, 0, &[1; 8]).unwrap();
    let read = |buffer: &Buffer| {
        let mut bytes = [0; 8];
        device.download(buffer, 0, &mut bytes).unwrap();
        bytes
    };
    device.begin_capture().unwrap();
    assert!(device.is_capturing());
    device.fill(&mut buffer, 2, 4, 9).unwrap();
    let graph = device.end_capture().unwrap();
    assert!(!device.is_capturing());
    assert_eq!(read(&buffer), [1; 8]);
    for _ in 0..2 {
        device.replay(&graph).unwrap();
        assert_eq!(read(&buffer), [1, 1, 9, 9, 9, 9, 1, 1]);
        device.upload(&mut buffer, 0, &[1; 8]).unwrap();
    }
    assert_eq!(device.recorded(&graph), 1);
}

fn module() -> Arc<PtxModule> {
    let text = kernels::ptx(Operation::TopkSelect, Variant::Sm89).expect("shipped");
    Arc::new(PtxModule { name: "topk_select_sm89".into(), text: text.into() })
}

fn launch<'a>(module: &'a Arc<PtxModule>, entry: &'static str, threads: u32) -> Launch<'a> {
    Launch { module, entry, grid: [1; 3], block: [threads, 1, 1], dynamic_shared: 0 }
}

/// What a card refuses inside a capture the machine refuses too, and the capture gives no graph afterwards.
#[test]
fn a_capture_refuses_what_a_graph_cannot_hold() {
    let device = machine(0, 188);
    let module = module();
    type Call<'a> = (&'static str, &'a dyn Fn(&mut Buffer) -> Result<(), DeviceError>);
    let calls: [Call<'_>; 8] = [
        ("allocating `late`", &|_| device.alloc(1, "late").map(|_| ())),
        ("an upload", &|buffer| device.upload(buffer, 0, &[0; 4])),
        ("a download", &|buffer| device.download(buffer, 0, &mut [0; 4])),
        ("a wait", &|_| device.synchronize()),
        ("another capture", &|_| device.begin_capture()),
        ("loading module topk_select_sm89", &|_| device.load(&module)),
        ("loading module topk_select_sm89", &|_| device.launch(&launch(&module, "topk_select_sm89", 512), &[0; 128])),
        ("freeing a buffer", &|buffer| {
            *buffer = device.alloc(0, "nothing")?;
            Err(DeviceError::Capture { device: device.properties().name.clone(), what: String::new() })
        }),
    ];
    for (what, call) in calls {
        let mut buffer = device.alloc(16, "early").unwrap();
        device.begin_capture().unwrap();
        let error = call(&mut buffer).expect_err(what);
        assert!(matches!(error, DeviceError::Capture { .. }), "{what}: {error}");
        let refusal = format!("{what} inside a capture: only launches, products and fills are recorded");
        if what != "freeing a buffer" {
            assert_eq!(error.to_string(), format!("{}: {refusal}", device.properties().name));
        }
        // Work that is recorded behind a refusal does not save the capture.
        let mut empty = device.alloc(0, "empty").unwrap();
        device.fill(&mut empty, 0, 0, 1).unwrap();
        let error = device.end_capture().expect_err(what).to_string();
        assert_eq!(error, format!("{}: the capture gives no graph: {refusal}", device.properties().name));
        // Outside, everything goes on.
        device.alloc(1, "after").unwrap();
    }
    assert!(device.end_capture().unwrap_err().to_string().ends_with("no capture was begun"));
}

/// A launch that could never start is refused when it is recorded.
#[test]
fn an_impossible_launch_is_refused_while_it_is_recorded() {
    let device = machine(0, 188);
    let module = module();
    device.load(&module).unwrap();
    device.begin_capture().unwrap();
    let error = device.launch(&launch(&module, "no_such_entry", 32), &[]).unwrap_err();
    assert!(error.to_string().contains("no_such_entry"), "{error}");
    let error = device.launch(&launch(&module, "topk_select_sm89", 512), &[0; 7]).unwrap_err();
    assert!(error.to_string().contains("got 7"), "{error}");
}

#[test]
fn a_graph_belongs_to_its_machine() {
    let (one, other) = (machine(0, 188), machine(0, 188));
    one.begin_capture().unwrap();
    let graph = one.end_capture().unwrap();
    one.replay(&graph).unwrap();
    assert!(other.replay(&graph).unwrap_err().to_string().ends_with("cannot be replayed on this one"));
    one.begin_capture().unwrap();
    assert!(one.replay(&graph).unwrap_err().to_string().contains("a replay inside a capture"));
}

/// An operation that would need new scratch says so; the refusal of the call comes before that of the capture.
#[test]
fn an_operation_that_never_ran_is_not_captured() {
    let ops = KernelOps::new(machine(0, 188));
    let mut rows = Rows::new(ops.device(), 1, 3);
    let error = ops.capture(|| rows.select(&ops)).unwrap_err().to_string();
    assert!(error.contains("allocating `split_values` inside a capture"), "{error}");
    let mut buffer = ops.alloc(4, "buffer").unwrap();
    assert!(ops.capture(|| ops.upload(&mut buffer, 0, &[1])).is_err());
    rows.set_lens(ops.device(), &[3]);
    rows.select(&ops).unwrap();
    assert_eq!(rows.got(ops.device()), rows.expected(&[3]));
}

/// Where operations run at once nothing is recorded, and nothing runs by mistake.
#[test]
fn the_host_does_not_capture() {
    assert!(!HostOps.captures());
    let error = HostOps.capture(|| panic!("ran")).unwrap_err().to_string();
    assert_eq!(error, "capture: not offered by host: operations run at once here");
}

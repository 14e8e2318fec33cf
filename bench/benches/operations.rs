//! Criterion benches of every operation on host and emulator, and on a card where there is one. Every shape is judged by
//! the reference on every device before it is measured; a wrong result ends the run.
//!
//! Host and emulator figures are wall time of the operation, copies not counted. On a card the time is that between two
//! events on the stream; a buffer that is twice the L2 is overwritten before each sample, so that operands come from
//! DRAM, and the share of the DRAM roofline is printed beside it.

use bench::shapes;
use bench::timed::{Clock, Timed};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_main};
use kernel_bindings::cuda::Cuda;
use kernel_bindings::device::Device;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use kernels::{Operation, Variant};
use reference::cases::topk_select::{Row, Shape};
use reference::cases::{self, Draw, Size};
use reference::ops::IndexKFormat;
use reference::problem::{Fill, Problem};
use reference::suite::{self, Case, Prepared};
use std::time::Duration;

/// One shape of one operation.
struct Bench {
    prepared: Prepared,
    label: &'static str,
    /// Bytes that must move at least, by the formulas of the methodology: what a roofline share refers to.
    min_bytes: u64,
}

fn bench(label: &'static str, op: &'static str, min_bytes: u64, problem: Problem) -> Bench {
    let prepared = Case::new(op, label, Size::Full, move |_| problem.clone()).prepare(0);
    Bench { prepared, label, min_bytes }
}

/// Shapes that the emulator runs in tens of milliseconds: one kernel engineer's inner loop.
fn small() -> Vec<Bench> {
    let mut list = Vec::new();
    let (b, rows) = (2, 2_048_u32);
    for (format, label, row_bytes) in
        [(IndexKFormat::Fp8, "fp8 2 x 2048", 132), (IndexKFormat::Bf16, "bf16 2 x 2048", 256)]
    {
        let problem = shapes::index_logits(format, b, rows, 1);
        let bytes = u64::from(b) * (u64::from(rows) * (row_bytes + 4) + 64 * 132);
        list.push(bench(label, "index_logits_decode", bytes, Problem::IndexLogitsDecode(problem)));
    }
    let shape = Shape { rows: vec![(32_768, Row::Random(Draw::Heavy)); 2], topk: 512, ..Shape::default() };
    let bytes = 2 * 4 * (32_768 + 512);
    list.push(bench("2 x 32768, k 512", "topk_select", bytes, Problem::TopkSelect(shape.build(1))));
    let mla = shapes::sparse_mla(2, 64).build(1);
    let bytes = 2 * (640 * 584 + 2 * 64 * 1024);
    list.push(bench("v4_fp8 2 x 640, 64 heads", "sparse_mla_decode", bytes, Problem::SparseMlaDecode(Box::new(mla))));
    // The remaining operations are small: the largest ordinary case that kernels offer serves.
    const REST: [&str; 18] = [
        "index_logits_prefill",
        "sparse_mla_prefill",
        "split_combine",
        "kv_write",
        "index_k_write",
        "norm_rope",
        "hadamard",
        "index_q_quantise",
        "compress",
        "linear",
        "moe_experts",
        "router",
        "swiglu",
        "hc_mix",
        "hc_post",
        "embed",
        "gather_rows",
        "sample",
    ];
    for op in REST {
        let unread = |name: &str| name.contains("f32") || (name.contains("fp4") && op != "index_q_quantise");
        let offered = |case: &Case| case.op == op && !case.virtual_pool && !unread(&case.name);
        let largest = cases::all(Size::Full).into_iter().rfind(|case| offered(case));
        let prepared = largest.unwrap_or_else(|| panic!("{op} has a case for kernels")).prepare(1);
        list.push(Bench { prepared, label: "largest case", min_bytes: 0 });
    }
    list
}

/// Judges the shape, then measures it.
fn measure<O: Clock>(criterion: &mut Criterion, device: &str, ops: &O, fill: Fill, bench: &Bench, cold: impl Fn()) {
    let report = suite::run_prepared(ops, &bench.prepared, fill);
    assert!(report.passes(), "{device}: not measured, the result is wrong: {report}");
    let mut group = criterion.benchmark_group(bench.prepared.case.op);
    if bench.min_bytes > 0 {
        group.throughput(Throughput::Bytes(bench.min_bytes));
    }
    group.bench_function(BenchmarkId::new(device, bench.label), |bencher| {
        bencher.iter_custom(|iterations| {
            let mut total = Duration::ZERO;
            for _ in 0..iterations {
                cold();
                let timed = Timed::new(ops);
                bench.prepared.problem.run(&timed, fill).expect("it ran a moment ago");
                total += timed.elapsed();
            }
            total
        });
    });
    group.finish();
}

fn host(criterion: &mut Criterion) {
    let ops = HostOps;
    for bench in small() {
        measure(criterion, "host", &ops, Fill::Poison, &bench, || ());
    }
}

fn emulator(criterion: &mut Criterion) {
    for bench in small() {
        let operation = Operation::from_name(bench.prepared.case.op).expect("an operation's name");
        for variant in Variant::ALL {
            if kernels::ptx(operation, variant).is_none() {
                continue;
            }
            for (checks, config) in [("", EmulatedConfig::fast()), (" checked", EmulatedConfig::checked(0))] {
                let machine = Emulated::new(config);
                let ops = KernelOps::with_variant(machine, variant).expect("the machine runs every variant");
                measure(criterion, &format!("emulated {variant}{checks}"), &ops, Fill::Leave, &bench, || ());
            }
        }
    }
}

/// Twice the largest L2 of the cards in question (128 MB).
const FLUSH_BYTES: usize = 256 << 20;

fn card(criterion: &mut Criterion) {
    let probe = match Cuda::open(0) {
        Ok(card) => card,
        Err(reason) => {
            eprintln!("card benches left out: {reason}");
            return;
        }
    };
    let variants = probe.properties().variants.clone();
    drop(probe);
    for variant in variants {
        let ops = KernelOps::with_variant(Cuda::open(0).expect("it opened a moment ago"), variant)
            .expect("one of its variants");
        let device = ops.device();
        let mut buffer = device.alloc(FLUSH_BYTES as u64, "flush").expect("room for the flush buffer");
        let zeros = vec![0_u8; FLUSH_BYTES];
        let flush = std::cell::RefCell::new(&mut buffer);
        for bench in small() {
            let operation = Operation::from_name(bench.prepared.case.op).expect("an operation's name");
            if kernels::ptx(operation, variant).is_none() {
                continue;
            }
            measure(criterion, &format!("card {variant}"), &ops, Fill::Poison, &bench, || {
                device.upload(&mut flush.borrow_mut(), 0, &zeros).expect("the flush buffer is there");
            });
        }
    }
}

// The macro makes a public function.
#[allow(missing_docs)]
mod group {
    use super::{card, emulator, host};
    use criterion::{Criterion, criterion_group};
    use std::time::Duration;

    criterion_group! {
        name = operations;
        config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(300));
        targets = host, emulator, card
    }
}
criterion_main!(group::operations);

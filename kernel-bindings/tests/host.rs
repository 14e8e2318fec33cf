//! The host operations, judged like a device.

use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use ptx_emulator::MachineConfig;
use reference::cases::sparse_mla_decode::{List, Shape};
use reference::cases::{self, Size, linear, moe_experts};
use reference::for_each_operation;
use reference::golden::GoldenDir;
use reference::ops::{Dtype, Ops, OpsError, WeightFormat};
use reference::problem::{Fill, Memory, Problem, ProductsProblem};
use reference::{reversed, suite};
use std::collections::BTreeSet;

#[test]
fn every_case_up_to_full_size() {
    let mut failures = Vec::new();
    for case in cases::all(Size::Full) {
        let report = suite::run_case(&HostOps, &case, 3, Fill::Poison);
        if !report.passes() {
            failures.push(report.to_string());
        }
    }
    assert!(failures.is_empty(), "{} cases fail:\n{}", failures.len(), failures.join("\n"));
}

/// The same program with narrower vectors, in a process of its own: the width is found once.
#[test]
fn quick_cases_on_narrower_vectors() {
    const LIMIT: &str = "SM120_HOST_VECTORS";
    if std::env::var_os(LIMIT).is_some() {
        let vectors = ["index_", "sparse_mla_", "topk_select", "split_combine", "kv_write"];
        for case in cases::all(Size::Quick) {
            if vectors.iter().any(|op| case.op.starts_with(op)) {
                let report = suite::run_case(&HostOps, &case, 4, Fill::Poison);
                assert!(report.passes(), "{report}");
            }
        }
        return;
    }
    for limit in ["portable", "avx2"] {
        let itself = std::env::current_exe().expect("the test runs from a file");
        let run = std::process::Command::new(itself)
            .args(["--exact", "quick_cases_on_narrower_vectors", "--nocapture"])
            .env(LIMIT, limit)
            .output()
            .expect("it starts once more");
        let text = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && text.contains("1 passed"), "{limit}: {text}");
    }
}

/// Enough work for one token that threads share its heads.
#[test]
fn heads_shared_by_threads_give_the_same_bytes() {
    let shape = Shape { h: 64, window: List::of(128), compressed: Some(List::of(512)), ..Shape::default() };
    let problem = Problem::SparseMlaDecode(Box::new(shape.build(6)));
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| problem.run(&HostOps, Fill::Poison)).unwrap()
    };
    let one = with(1);
    assert!(with(3) == one && with(8) == one);
}

#[test]
fn every_golden_case() {
    for case in cases::golden::cases(&GoldenDir::shipped().unwrap()).unwrap() {
        let report = suite::run_case(&HostOps, &case, 0, Fill::Poison);
        assert!(report.passes(), "{report}");
    }
}

#[test]
fn results_do_not_depend_on_threads_or_unused_memory_or_the_order_of_the_batch() {
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for case in cases::all(Size::Quick) {
        let prepared = case.prepare(5);
        let many = suite::run_prepared(&HostOps, &prepared, Fill::Poison);
        let single = one.install(|| suite::run_prepared(&HostOps, &prepared, Fill::Leave));
        assert_eq!(many.digest, single.digest, "{}", case.name);
        let outputs = prepared.problem.run(&HostOps, Fill::Poison).unwrap();
        let order = reversed::differs(&HostOps, &prepared.problem, &outputs, Fill::Poison).unwrap();
        assert_eq!(order, None, "{}", case.name);
    }
}

/// Some tokens of a problem as a problem of their own.
fn tokens(problem: &ProductsProblem, from: u32, to: u32) -> ProductsProblem {
    let part = |memory: &Memory, bytes: u64| {
        let all = memory.image();
        let end = (u64::from(to) * bytes).min(memory.len) as usize;
        Memory::full(memory.label, all[(u64::from(from) * bytes) as usize..end].to_vec())
    };
    let mut problem = problem.clone();
    match &mut problem {
        ProductsProblem::Linear(p) => {
            p.x = part(&p.x, p.dtype.bytes() * p.stride_x);
            p.t = to - from;
        }
        ProductsProblem::MoeExperts(p) => {
            p.x = part(&p.x, p.dtype.bytes() * u64::from(p.d));
            p.expert_ids = part(&p.expert_ids, 4 * u64::from(p.topk));
            p.expert_weights = part(&p.expert_weights, 4 * u64::from(p.topk));
            p.t = to - from;
        }
    }
    problem
}

/// Large enough for more than one thread, and for every way through the products: the bytes of a token are those that it
/// has alone, in a batch of any size, on one thread.
#[test]
fn products_do_not_depend_on_the_batch_or_the_threads() {
    use WeightFormat::{Bf16, F32, Fp4Block32, Fp8Block128};
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let three = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for format in [F32, Bf16, Fp8Block128, Fp4Block32] {
            let linear = linear::Shape { groups: 2, ..linear::Shape::of(dtype, format, [53, 259, 96]) };
            let experts = moe_experts::Shape::of(dtype, format, [53, 96, 96]);
            let problems = [
                ProductsProblem::Linear(linear.build(1)),
                ProductsProblem::MoeExperts(moe_experts::Shape { topk: 2, ..experts }.build(1)),
            ];
            for problem in problems {
                let run = |p: &ProductsProblem| {
                    let problem = Problem::Products(Box::new(p.clone()));
                    problem.run(&HostOps, Fill::Poison).unwrap().remove(0)
                };
                let all = three.install(|| run(&problem));
                assert_eq!(one.install(|| run(&problem)), all, "{dtype:?} {format:?}: one thread");
                let cuts = [0, 1, 3, 4, 9, 27, 53];
                let parts: Vec<u8> = cuts.windows(2).flat_map(|cut| run(&tokens(&problem, cut[0], cut[1]))).collect();
                assert_eq!(parts, all, "{dtype:?} {format:?}: other batches");
            }
        }
    }
}

#[test]
fn copies_that_leave_a_buffer_are_refused_by_name() {
    let mut buffer = HostOps.alloc(10, "index_q").unwrap();
    let error = HostOps.upload(&mut buffer, 8, &[0; 3]).unwrap_err().to_string();
    assert_eq!(error, "host: copy of 3 bytes at offset 8 leaves `index_q`, which has 10 bytes");
    let error = HostOps.download(&buffer, u64::MAX, &mut [0]).unwrap_err().to_string();
    assert_eq!(error, format!("host: copy of 1 bytes at offset {} leaves `index_q`, which has 10 bytes", u64::MAX));
    // More than an address can reach: an error, where `vec!` would end the process.
    let error = HostOps.alloc(1 << 50, "index_k").unwrap_err().to_string();
    assert!(error.contains("`index_k`: no memory for 1125899906842624 bytes"), "{error}");
    let error = HostOps.alloc(u64::MAX, "index_k").unwrap_err().to_string();
    assert_eq!(error, format!("host: `index_k`: {} bytes do not fit the address space", u64::MAX));
}

/// An implementation whose buffers are one byte shorter than asked for. Copies leave the missing byte out.
struct Short<O>(O);

impl<O: Ops> Short<O> {
    fn within(&self, buffer: &O::Buffer, offset: u64, bytes: usize) -> usize {
        bytes.min(self.0.len_bytes(buffer).saturating_sub(offset) as usize)
    }
}

macro_rules! passed_on {
    ($($op:ident($operands:ident),)*) => {$(
        fn $op(&self, args: reference::ops::$operands<'_, O::Buffer>) -> Result<(), OpsError> {
            self.0.$op(args)
        }
    )*};
}

impl<O: Ops> Ops for Short<O> {
    type Buffer = O::Buffer;
    type Graph = std::convert::Infallible;

    fn name(&self) -> String {
        self.0.name()
    }
    fn alloc(&self, bytes: u64, label: &str) -> Result<O::Buffer, OpsError> {
        self.0.alloc(bytes.saturating_sub(1), label)
    }
    fn upload(&self, dst: &mut O::Buffer, offset: u64, bytes: &[u8]) -> Result<(), OpsError> {
        let kept = self.within(dst, offset, bytes.len());
        self.0.upload(dst, offset, &bytes[..kept])
    }
    fn download(&self, src: &O::Buffer, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError> {
        let kept = self.within(src, offset, bytes.len());
        self.0.download(src, offset, &mut bytes[..kept])
    }
    fn len_bytes(&self, buffer: &O::Buffer) -> u64 {
        self.0.len_bytes(buffer)
    }

    for_each_operation!(passed_on);
}

/// Every operation looks at its operands first, and says which of them is too small.
fn short_buffers_are_refused(ops: impl Ops) {
    macro_rules! names {
        ($($op:ident($operands:ident),)*) => { BTreeSet::from([$(stringify!($op)),*]) };
    }
    let (device, short, mut refused) = (ops.name(), Short(ops), BTreeSet::new());
    for case in cases::all(Size::Quick).iter().filter(|case| !case.virtual_pool) {
        match case.problem(5).run(&short, Fill::Leave) {
            Err(OpsError::Operand { op, .. }) => {
                assert_eq!(op, case.op, "{}", case.name);
                refused.insert(op);
            }
            // Buffers with room to spare, or of no bytes.
            Ok(_) | Err(OpsError::Unsupported { .. }) => {}
            Err(error) => panic!("{device}: {}: {error}", case.name),
        }
    }
    assert_eq!(refused, for_each_operation!(names), "{device}");
}

#[test]
fn short_buffers_are_refused_on_the_host() {
    short_buffers_are_refused(HostOps);
}

#[test]
fn short_buffers_are_refused_before_a_launch() {
    short_buffers_are_refused(KernelOps::new(Emulated::new(EmulatedConfig::from(MachineConfig::checked(1)))));
}

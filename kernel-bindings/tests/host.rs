//! The host operations, judged like a device.

use kernel_bindings::host::HostOps;
use reference::cases::{self, Size};
use reference::golden::GoldenDir;
use reference::ops::Ops;
use reference::problem::Fill;
use reference::{reversed, suite};

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

#[test]
fn copies_that_leave_a_buffer_are_refused_by_name() {
    let mut buffer = HostOps.alloc(10, "index_q").unwrap();
    let error = HostOps.upload(&mut buffer, 8, &[0; 3]).unwrap_err().to_string();
    assert_eq!(error, "host: copy of 3 bytes at offset 8 leaves `index_q`, which has 10 bytes");
    let error = HostOps.download(&buffer, u64::MAX, &mut [0]).unwrap_err().to_string();
    assert_eq!(error, format!("host: copy of 1 bytes at offset {} leaves `index_q`, which has 10 bytes", u64::MAX));
    let error = HostOps.alloc(u64::MAX, "index_k").unwrap_err().to_string();
    assert_eq!(error, format!("host: `index_k`: {} bytes do not fit the address space", u64::MAX));
}

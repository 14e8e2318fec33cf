//! What the tests of the kernels share.

use reference::suite::{CaseReport, Outcome};

/// Whether the kernels do not offer a case. They may refuse only what no kernel is compiled for, and must say what is offered.
pub(crate) fn refused(report: &CaseReport) -> bool {
    let Outcome::Skipped(why) = &report.outcome else { return false };
    let marks = ["/f32", "query_f32", "index_heads", "other_"];
    assert!(marks.iter().any(|mark| report.case.contains(mark)) && why.ends_with(" offered"), "{report}");
    true
}

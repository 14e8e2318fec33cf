//! The reference, judged by values from outside.

use reference::cases::golden;
use reference::golden::GoldenDir;
use reference::plain::ReferenceOps;
use reference::problem::Fill;
use reference::suite;

#[test]
fn every_golden_case() {
    let dir = GoldenDir::shipped().unwrap();
    let cases = golden::cases(&dir).unwrap();
    assert_eq!(cases.len(), 2 + 2 * 3 + 2 * 2 + 4 * 2 + 2 * 3 * 2);
    for case in &cases {
        let report = suite::run_case(&ReferenceOps, case, 0, Fill::Poison);
        assert!(report.passes(), "{report}");
        assert!(report.verdicts.iter().any(|v| v.output.ends_with("against outside values")), "{}", case.name);
    }
}

use super::*;

#[test]
fn ranges() {
    assert_eq!(parse_range("128"), Ok((128, 129)));
    assert_eq!(parse_range("64..192"), Ok((64, 192)));
    for wrong in ["0", "9..9", "9..3", "a", "..", "1..", "4294967295", "-1"] {
        assert!(parse_range(wrong).is_err_and(|e| e.contains(wrong)), "{wrong}");
    }
}

#[test]
fn percentiles_are_nearest_ranks() {
    let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
    assert_eq!(Percentiles::of(&mut values), Percentiles { p50: 50.0, p90: 90.0, p99: 99.0 });
    assert_eq!(Percentiles::of(&mut []), Percentiles::default());
    assert_eq!(Percentiles::of(&mut [7.0]), Percentiles { p50: 7.0, p90: 7.0, p99: 7.0 });
}

/// A step needs more tokens than the running texts take, which with drafts is two each.
#[test]
fn steps_have_room_for_every_client() {
    for (options, decode) in [(&["--concurrency", "4096"][..], 4096), (&["--concurrency", "300", "--mtp"], 600)] {
        let model = roomy(&E2eArgs::parse(options));
        assert!(model.max_batch_tokens > decode, "{options:?}: {}", model.max_batch_tokens);
    }
}

#[test]
fn requests_are_bounded() {
    let refused = std::panic::catch_unwind(|| E2eArgs::parse(&["--requests", "4294967295"]));
    assert!(refused.is_err(), "a list of every text would not fit any machine");
}

#[test]
fn comparisons_say_what_can_be_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = |name: &str, change: &dyn Fn(&mut Run)| {
        let none = Percentiles::default();
        let mut run = Run {
            concurrency: 1,
            requests: 8,
            errors: 0,
            prompt_tokens: 80,
            cached_tokens: 0,
            output_tokens: 8,
            seconds: 1.0,
            output_tokens_per_s: 8.0,
            total_tokens_per_s: 88.0,
            ttft_ms: Percentiles { p50: 4.0, p90: 4.0, p99: 4.0 },
            tpot_ms: none,
            itl_ms: none,
            steps: 9,
            preempted: 0,
            checksum: "a".into(),
        };
        change(&mut run);
        let path = folder.path().join(name);
        std::fs::write(&path, serde_json::json!({ "runs": [run] }).to_string()).expect("written");
        path
    };
    let first = record("a", &|_| ());
    let against = |path: &Path| compare(&first, path).expect("two reports");
    let same = against(&first);
    assert!(same.contains("8.0 -> 8.0 (1.00x)") && same.contains("equal"), "{same}");
    assert!(same.contains("0.0 -> 0.0 ") && !same.contains("NaN"), "{same}");
    assert!(against(&record("b", &|run| run.checksum = "b".into())).contains("DIFFERENT"));
    let other = against(&record("c", &|run| (run.requests, run.checksum) = (9, "b".into())));
    assert!(other.contains("of other requests"), "{other}");
    let nobody = compare(&first, &record("d", &|run| run.concurrency = 2)).expect_err("nothing in common");
    assert!(nobody.to_string().contains("expected a run with the concurrency of one in"), "{nobody}");
}

#[test]
fn a_checksum_knows_where_a_text_ends() {
    assert_ne!(checksum(&[vec![1, 2], vec![3]]), checksum(&[vec![1], vec![2, 3]]));
    assert_ne!(checksum(&[vec![], vec![1]]), checksum(&[vec![1], vec![]]));
}

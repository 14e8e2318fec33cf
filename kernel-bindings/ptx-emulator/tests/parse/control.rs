//! Branches, labels, scopes, post-dominators.

use crate::{parse, refuse};
use proptest::prelude::*;
use ptx_emulator::ir::*;
use ptx_emulator::parse::ParseErrorKind;

fn ipdom(body: &str) -> Vec<u32> {
    parse(body).entry().ipdom.clone()
}

#[test]
fn labels_are_instruction_numbers() {
    let p = parse("bra $L__end;\nmov.u32 %r0, 1;\n$L__end:\n@!%p1 bra.uni $L__end;\nexit;\ntail:");
    let targets: Vec<&Op> = p.code().iter().map(|i| &i.op).filter(|op| matches!(op, Op::Bra { .. })).collect();
    assert_eq!(targets, [&Op::Bra { target: 2, uni: false }, &Op::Bra { target: 2, uni: true }]);
    assert_eq!(p.entry().labels, [(2, "$L__end".to_string()), (4, "tail".to_string())]);
    let guard = p.code()[2].guard.expect("a guard");
    assert_eq!((guard.pred, guard.negate), (p.reg("%p1"), true));
}

#[test]
fn labels_belong_to_their_block() {
    // The same inline assembly twice, and a branch out of a block.
    let block = "{ .reg .pred P; WAIT: setp.eq.u32 P, %r0, 1; @P bra DONE; bra WAIT; DONE: }";
    let p = parse(&format!("{block}\n{block}\n{{ bra out; }}\nout: ret;"));
    let targets: Vec<u32> =
        p.code().iter().filter_map(|i| if let Op::Bra { target, .. } = i.op { Some(target) } else { None }).collect();
    assert_eq!(targets, [3, 0, 6, 3, 7]);
    let error = refuse("sm_120a", "{ inner: ret; }\nbra inner;");
    assert_eq!(error.kind, ParseErrorKind::Symbol);
    assert_eq!(error.message, "label `inner` is not declared in this function");
    assert_eq!((error.line, error.column), (crate::FIRST + 1, 5));
}

#[test]
fn branch_tables() {
    let p = parse("ts: .branchtargets L0, L1, L0;\n@%p0 brx.idx %r1, ts;\nL0: ret;\nL1: exit;");
    assert_eq!(p.entry().branch_targets, [vec![1, 2, 1]]);
    assert_eq!(p.code()[0].op, Op::BrxIdx { index: p.a("%r1"), table: 0, uni: false });
    assert_eq!(p.entry().ipdom[0], 3, "the two returns meet at the exit");
}

#[test]
fn scopes_shadow() {
    let p = parse("{ .reg .f32 %r1; mov.f32 %r1, %f0; }\nmov.u32 %r1, 0;");
    let types: Vec<Type> = p.entry().registers.iter().filter(|r| r.name == "%r1").map(|r| r.ty).collect();
    assert_eq!(types, [Type::F32, Type::B32]);
}

#[test]
fn vector_registers() {
    let p = parse(".reg .v4 .f32 v;\nld.global.v4.f32 v, [%rd0];\nadd.f32 %f0, v.y, v.a;");
    let Op::Ld { d: Dst::Vector(d), .. } = &p.code()[0].op else { panic!("{:?}", p.code()[0]) };
    assert_eq!(*d, p.dv(&["v.x", "v.y", "v.z", "v.w"]));
    let Op::Binary { a, b, .. } = &p.code()[1].op else { panic!("{:?}", p.code()[1]) };
    assert_eq!((a, b), (&p.a("v.y"), &p.a("v.w")));
}

#[test]
fn diverged_lanes_meet_after_the_branches() {
    // 0: @p bra ELSE; 1: mov; 2: bra END; ELSE 3: mov; END 4: mov; 5: ret
    let body = "@%p0 bra ELSE;\nmov.u32 %r0, 1;\nbra END;\nELSE: mov.u32 %r0, 2;\nEND: mov.u32 %r1, 3;\nret;";
    assert_eq!(ipdom(body), [4, 2, 4, 4, 5, 6]);
    // A loop: 0: mov; HEAD 1: add; 2: @p bra HEAD; 3: ret
    assert_eq!(ipdom("mov.u32 %r0, 1;\nHEAD: add.u32 %r0, %r0, 1;\n@%p0 bra HEAD;\nret;"), [1, 2, 3, 4]);
    // A guarded exit falls through; nothing but the exit is common to both ways.
    assert_eq!(ipdom("@%p0 exit;\nmov.u32 %r0, 1;\nret;"), [3, 2, 3]);
    // Falling off the end is an exit.
    assert_eq!(ipdom("mov.u32 %r0, 1;"), [1]);
}

#[test]
fn endless_loops_have_a_meeting_point_too() {
    // 0: @p bra SPIN; 1: ret; SPIN 2: nop; 3: bra SPIN
    assert_eq!(ipdom("@%p0 bra SPIN;\nret;\nSPIN: nanosleep.u32 1;\nbra SPIN;"), [4, 4, 3, 4]);
    assert_eq!(ipdom("SELF: bra SELF;"), [1]);
    // Two branches into one endless loop meet at its head.
    assert_eq!(ipdom("@%p0 bra B;\nA: bra SPIN;\nB: bra SPIN;\nSPIN: bra SPIN;"), [3, 3, 3, 4]);
}

/// Post-dominators from their definition: `d` post-dominates `n` if no path from `n` to the exit avoids `d`.
fn by_definition(edges: &[Vec<usize>]) -> Vec<u32> {
    let exit = edges.len();
    let reaches = |from: usize, without: usize| {
        let mut seen = vec![false; exit + 1];
        let mut stack = vec![from];
        while let Some(n) = stack.pop() {
            if n == without || seen[n] {
                continue;
            }
            seen[n] = true;
            if n < exit {
                stack.extend(&edges[n]);
            }
        }
        seen[exit]
    };
    let dominates = |d: usize, n: usize| d != n && (d == exit || !reaches(n, d));
    (0..exit)
        .map(|n| {
            // The nearest one: post-dominated by every other.
            let all: Vec<usize> = (0..=exit).filter(|d| dominates(*d, n)).collect();
            let nearest = all.iter().find(|d| all.iter().all(|other| other == *d || dominates(*other, **d)));
            *nearest.expect("the exit post-dominates everything") as u32
        })
        .collect()
}

proptest! {
    #[test]
    fn post_dominators_are_those_of_the_definition(
        steps in prop::collection::vec((0u8..4, 0usize..12), 1..12)
    ) {
        let n = steps.len();
        let mut body = String::new();
        let mut edges = Vec::new();
        for (i, (kind, to)) in steps.iter().enumerate() {
            let to = to % (n + 1);
            let (text, next) = match kind {
                0 => ("mov.u32 %r0, 1;".to_string(), vec![i + 1]),
                1 => (format!("bra L{to};"), vec![to]),
                2 => (format!("@%p0 bra L{to};"), vec![to, i + 1]),
                _ => ("@%p1 exit;".to_string(), vec![n, i + 1]),
            };
            body.push_str(&format!("L{i}: {text}\n"));
            edges.push(next);
        }
        body.push_str(&format!("L{n}:"));
        let p = parse(&body);
        // Where the exit is out of reach the definition has nothing to say; compare where it is in reach from everywhere.
        let all_reach = (0..n).all(|from| {
            let mut seen = vec![false; n + 1];
            let mut stack = vec![from];
            while let Some(i) = stack.pop() {
                if !std::mem::replace(&mut seen[i], true) && i < n {
                    stack.extend(&edges[i]);
                }
            }
            seen[n]
        });
        prop_assert_eq!(p.entry().ipdom.len(), n);
        prop_assert!(p.entry().ipdom.iter().all(|d| *d as usize <= n));
        if all_reach {
            prop_assert_eq!(&p.entry().ipdom, &by_definition(&edges));
        }
    }
}

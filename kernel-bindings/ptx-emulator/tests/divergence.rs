//! Random structured control flow: every lane must compute what it computes alone, whatever the schedule, and lanes must
//! be together again where the structure says so.

use proptest::prelude::*;
use ptx_emulator::{LaunchConfig, Machine, MachineConfig, Module};
use std::fmt::Write;

#[derive(Debug, Clone)]
enum Stmt {
    /// x = x * 1664525 + k
    Mix(u32),
    /// On a bit of x ^ tid.
    If(u32, Vec<Stmt>, Vec<Stmt>),
    /// (x + tid) & 3 rounds.
    Loop(Vec<Stmt>),
    /// Leaves the innermost loop on a bit of x.
    Break(u32),
    /// Ends the thread if three bits of x from this one are zero.
    Return(u32),
}

/// At the outermost level, where all lanes that live are together.
#[derive(Debug, Clone)]
enum Top {
    Stmt(Stmt),
    /// x ^= sum of x over the warp; only in programs without returns.
    Sum,
    Barrier,
}

enum End {
    Next,
    Break,
    Return,
}

fn eval(stmts: &[Stmt], x: &mut u32, tid: u32) -> End {
    for stmt in stmts {
        match stmt {
            Stmt::Mix(k) => *x = x.wrapping_mul(1_664_525).wrapping_add(*k),
            Stmt::If(bit, yes, no) => match eval(if (*x ^ tid) >> bit & 1 == 1 { yes } else { no }, x, tid) {
                End::Next => {}
                end => return end,
            },
            Stmt::Loop(body) => {
                for _ in 0..(x.wrapping_add(tid) & 3) {
                    match eval(body, x, tid) {
                        End::Next => {}
                        End::Break => break,
                        End::Return => return End::Return,
                    }
                }
            }
            Stmt::Break(bit) => {
                if *x >> bit & 1 == 1 {
                    return End::Break;
                }
            }
            Stmt::Return(bit) => {
                if *x >> bit & 7 == 0 {
                    return End::Return;
                }
            }
        }
    }
    End::Next
}

/// Emits PTX. Registers: %r1 tid, %r2 x, %r3 scratch, %r10.. loop counters by depth.
struct Emit {
    text: String,
    labels: u32,
}

impl Emit {
    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn stmts(&mut self, stmts: &[Stmt], depth: u32, leave: Option<u32>) {
        for stmt in stmts {
            self.stmt(stmt, depth, leave);
        }
    }

    fn stmt(&mut self, stmt: &Stmt, depth: u32, leave: Option<u32>) {
        match stmt {
            Stmt::Mix(k) => self.line(&format!("mad.lo.u32 %r2, %r2, 1664525, {k};")),
            Stmt::If(bit, yes, no) => {
                let (other, end) = (self.label(), self.label());
                self.line(&format!(
                    "xor.b32 %r3, %r2, %r1;\nshr.u32 %r3, %r3, {bit};\nand.b32 %r3, %r3, 1;\nsetp.eq.u32 %p1, %r3, 0;\n@%p1 bra $l{other};"
                ));
                self.stmts(yes, depth, leave);
                self.line(&format!("bra $l{end};\n$l{other}:"));
                self.stmts(no, depth, leave);
                self.line(&format!("$l{end}:"));
            }
            Stmt::Loop(body) => {
                let (head, end) = (self.label(), self.label());
                let counter = 10 + depth;
                self.line(&format!(
                    "add.u32 %r{counter}, %r2, %r1;\nand.b32 %r{counter}, %r{counter}, 3;\n$l{head}:\n\
                     setp.eq.u32 %p1, %r{counter}, 0;\n@%p1 bra $l{end};\nsub.u32 %r{counter}, %r{counter}, 1;"
                ));
                self.stmts(body, depth + 1, Some(end));
                self.line(&format!("bra $l{head};\n$l{end}:"));
            }
            Stmt::Break(bit) => {
                if let Some(end) = leave {
                    self.line(&format!(
                        "shr.u32 %r3, %r2, {bit};\nand.b32 %r3, %r3, 1;\nsetp.eq.u32 %p1, %r3, 1;\n@%p1 bra $l{end};"
                    ));
                }
            }
            Stmt::Return(bit) => {
                // Every return stores for itself: lanes that leave must not be waited for.
                let stay = self.label();
                self.line(&format!(
                    "shr.u32 %r3, %r2, {bit};\nand.b32 %r3, %r3, 7;\nsetp.ne.u32 %p1, %r3, 0;\n@%p1 bra $l{stay};\n{STORE}\nret;\n$l{stay}:"
                ));
            }
        }
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }
}

const STORE: &str = "mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r2;";

fn ptx(tops: &[Top]) -> String {
    let mut emit = Emit { text: String::new(), labels: 0 };
    for top in tops {
        match top {
            Top::Stmt(stmt) => emit.stmt(stmt, 0, None),
            Top::Sum => emit.line("redux.sync.add.u32 %r3, %r2, -1;\nxor.b32 %r2, %r2, %r3;"),
            Top::Barrier => emit.line("bar.sync 0;"),
        }
    }
    format!(
        ".version 8.7\n.target sm_120a\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n.reg .pred %p<3>;\n\
         .reg .b32 %r<20>;\n.reg .b64 %rd<5>;\nld.param.u64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nmul.lo.u32 %r2, %r1, 2654435761;\n\
         {}{STORE}\nret;\n}}\n",
        emit.text
    )
}

fn expected(tops: &[Top], threads: u32) -> Vec<u32> {
    let mut x: Vec<u32> = (0..threads).map(|tid| tid.wrapping_mul(2_654_435_761)).collect();
    let mut alive = vec![true; threads as usize];
    for top in tops {
        match top {
            Top::Stmt(stmt) => {
                for tid in 0..threads as usize {
                    if alive[tid] && matches!(eval(std::slice::from_ref(stmt), &mut x[tid], tid as u32), End::Return) {
                        alive[tid] = false;
                    }
                }
            }
            Top::Sum => {
                for warp in x.chunks_mut(32) {
                    let sum = warp.iter().fold(0u32, |s, v| s.wrapping_add(*v));
                    warp.iter_mut().for_each(|v| *v ^= sum);
                }
            }
            Top::Barrier => {}
        }
    }
    x
}

fn stmt(returns: bool) -> impl Strategy<Value = Stmt> {
    let mix = any::<u32>().prop_map(Stmt::Mix);
    let leaf =
        if returns { prop_oneof![4 => mix, 1 => (0..29u32).prop_map(Stmt::Return)].boxed() } else { mix.boxed() };
    let leaf = prop_oneof![4 => leaf, 1 => (0..32u32).prop_map(Stmt::Break)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let body = prop::collection::vec(inner, 0..4);
        prop_oneof![
            (0..32u32, body.clone(), body.clone()).prop_map(|(bit, yes, no)| Stmt::If(bit, yes, no)),
            body.prop_map(Stmt::Loop),
        ]
    })
}

/// A break outside a loop does nothing.
fn no_stray_breaks(stmts: &mut Vec<Stmt>, in_loop: bool) {
    stmts.retain(|s| in_loop || !matches!(s, Stmt::Break(_)));
    for stmt in stmts {
        match stmt {
            Stmt::If(_, yes, no) => {
                no_stray_breaks(yes, in_loop);
                no_stray_breaks(no, in_loop);
            }
            Stmt::Loop(body) => no_stray_breaks(body, true),
            _ => {}
        }
    }
}

fn programs(returns: bool) -> impl Strategy<Value = Vec<Top>> {
    let meet =
        if returns { Just(Top::Barrier).boxed() } else { prop_oneof![Just(Top::Sum), Just(Top::Barrier)].boxed() };
    let top = prop_oneof![3 => stmt(returns).prop_map(Top::Stmt), 1 => meet];
    prop::collection::vec(top, 1..6).prop_map(|tops| {
        let clean = |top| match top {
            Top::Stmt(stmt) => {
                let mut stmts = vec![stmt];
                no_stray_breaks(&mut stmts, false);
                stmts.into_iter().map(Top::Stmt).collect()
            }
            top => vec![top],
        };
        tops.into_iter().flat_map(clean).collect()
    })
}

fn check(tops: &[Top], threads: u32) -> Result<(), TestCaseError> {
    let text = ptx(tops);
    let module = Module::parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
    let want = expected(tops, threads);
    for config in (0..4).map(MachineConfig::checked).chain([MachineConfig::fast()]) {
        let mut machine = Machine::new(config);
        let out = machine.alloc(4 * u64::from(threads), "out").unwrap();
        let dims = LaunchConfig::new([1, 1, 1], [threads, 1, 1]);
        let report = machine.launch(&module, "k", &dims, &out.to_le_bytes()).unwrap();
        prop_assert!(report.findings.is_empty(), "{}\n{text}", report.findings[0]);
        let mut bytes = vec![0; 4 * threads as usize];
        machine.read(out, &mut bytes).unwrap();
        let got: Vec<u32> = bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        prop_assert_eq!(&got, &want, "{}", text);
    }
    Ok(())
}

/// 100 programs, or as many as `PROPTEST_CASES` says.
fn config() -> ProptestConfig {
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { default } else { ProptestConfig { cases: 100, ..default } }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lanes_meet_again(tops in programs(false), warps in 1..4u32) {
        check(&tops, warps * 32)?;
    }

    #[test]
    fn lanes_return_early(tops in programs(true), threads in 1..100u32) {
        check(&tops, threads)?;
    }
}

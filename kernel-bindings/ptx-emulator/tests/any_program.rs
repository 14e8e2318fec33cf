//! Programs that make no sense: the machine answers with findings and errors, never with a panic, and a seed repeats
//! its run.

use proptest::prelude::*;
use ptx_emulator::{AsyncMode, Checks, CounterMode, LaunchConfig, Machine, MachineConfig, Module};

/// Instruction patterns: `R`, `D`, `F`, `H`, `P` stand for some register of a class, `I` for a number, `L` for a label,
/// `A` for an address of some kind.
const PATTERNS: &[&str] = &[
    "add.u32 R, R, R;",
    "sub.s32 R, R, I;",
    "mul.lo.s32 R, R, R;",
    "mul.hi.u32 R, R, R;",
    "mad.lo.s32 R, R, R, R;",
    "mul.wide.u32 D, R, R;",
    "mad.wide.s32 D, R, R, D;",
    "div.s32 R, R, R;",
    "rem.u32 R, R, R;",
    "div.s64 D, D, D;",
    "rem.s64 D, D, D;",
    "mul.hi.s64 D, D, D;",
    "shl.b32 R, R, R;",
    "shr.s32 R, R, R;",
    "shl.b64 D, D, R;",
    "shr.u64 D, D, R;",
    "sad.s32 R, R, R, R;",
    "add.sat.s32 R, R, R;",
    "abs.s32 R, R;",
    "neg.s64 D, D;",
    "popc.b64 R, D;",
    "clz.b32 R, R;",
    "bfind.s32 R, R;",
    "bfind.shiftamt.u64 R, D;",
    "bfe.s32 R, R, R, R;",
    "bfe.u64 D, D, R, R;",
    "bfi.b32 R, R, R, R, R;",
    "bmsk.clamp.b32 R, R, R;",
    "szext.wrap.s32 R, R, R;",
    "fns.b32 R, R, R, R;",
    "prmt.b32 R, R, R, R;",
    "prmt.b32.ecr R, R, R, R;",
    "lop3.b32 R, R, R, R, 0x6a;",
    "shf.l.wrap.b32 R, R, R, R;",
    "dp4a.s32.u32 R, R, R, R;",
    "add.cc.u32 R, R, R;",
    "addc.u32 R, R, R;",
    "subc.cc.u32 R, R, R;",
    "mad.lo.cc.u32 R, R, R, R;",
    "madc.hi.u32 R, R, R, R;",
    "add.f32 F, F, F;",
    "fma.rn.ftz.f32 F, F, F, F;",
    "div.approx.f32 F, F, F;",
    "sqrt.rn.f32 F, F;",
    "ex2.approx.f32 F, F;",
    "lg2.approx.f32 F, F;",
    "max.NaN.f32 F, F, F;",
    "cvt.rn.f32.s32 F, R;",
    "cvt.rzi.s32.f32 R, F;",
    "cvt.rzi.u64.f32 D, F;",
    "cvt.rn.bf16x2.f32 R, F, F;",
    "cvt.u32.u64 R, D;",
    "cvt.s64.s32 D, R;",
    "cvt.u16.u32 H, R;",
    "cvt.s32.s16 R, H;",
    "mov.b32 {H, H}, R;",
    "mov.b64 D, {R, R};",
    "mov.b64 {R, R}, D;",
    "setp.lt.s32 P, R, R;",
    "setp.ge.and.f32 P|P, F, F, P;",
    "setp.ne.u64 P, D, D;",
    "selp.b32 R, R, R, P;",
    "slct.u32.s32 R, R, R, R;",
    "not.pred P, P;",
    "xor.pred P, P, P;",
    "mov.u32 R, I;",
    "mov.u32 R, %tid.x;",
    "mov.u32 R, %clock;",
    "mov.u64 D, %globaltimer;",
    "ld.global.u32 R, A;",
    "ld.global.v4.u32 {R, R, R, R}, A;",
    "ld.global.nc.u16 H, A;",
    "ld.u64 D, A;",
    "ld.acquire.gpu.u32 R, A;",
    "ld.shared.u32 R, S;",
    "ld.shared.v2.u64 {D, D}, S;",
    "ld.local.u32 R, S;",
    "ld.param.u32 R, [p];",
    "st.global.u32 A, R;",
    "st.global.v2.u64 A, {D, D};",
    "st.u8 A, R;",
    "st.release.cta.u32 A, R;",
    "st.shared.u32 S, R;",
    "st.shared.v4.u32 S, {R, R, R, R};",
    "st.local.u64 S, D;",
    "atom.global.add.u32 R, A, R;",
    "atom.shared.cas.b32 R, S, R, R;",
    "atom.add.f32 F, A, F;",
    "red.global.max.s64 A, D;",
    "cvta.to.global.u64 D, D;",
    "cvta.shared.u64 D, D;",
    "isspacep.shared P, D;",
    "bar.sync 0;",
    "bar.sync R, 64;",
    "bar.arrive 2, 64;",
    "bar.red.popc.u32 R, 1, P;",
    "bar.warp.sync R;",
    "bar.warp.sync -1;",
    "shfl.sync.bfly.b32 R|P, R, R, R, -1;",
    "shfl.sync.up.b32 R, R, R, R, R;",
    "vote.sync.ballot.b32 R, P, -1;",
    "vote.sync.all.pred P, P, R;",
    "match.any.sync.b64 R, D, -1;",
    "match.all.sync.b32 R|P, R, R;",
    "redux.sync.add.s32 R, R, -1;",
    "elect.sync R|P, -1;",
    "activemask.b32 R;",
    "membar.gl;",
    "fence.proxy.async;",
    "cp.async.ca.shared.global S, A, 16;",
    "cp.async.ca.shared.global S, A, 8, R;",
    "cp.async.commit_group;",
    "cp.async.wait_group 1;",
    "cp.async.wait_all;",
    "cp.async.mbarrier.arrive.noinc.shared.b64 S;",
    "mbarrier.init.shared.b64 S, R;",
    "mbarrier.init.shared.b64 S, 1;",
    "mbarrier.inval.shared.b64 S;",
    "mbarrier.arrive.shared.b64 D, S;",
    "mbarrier.arrive.expect_tx.shared.b64 D, S, R;",
    "mbarrier.test_wait.shared.b64 P, S, D;",
    "mbarrier.try_wait.parity.shared.b64 P, S, R;",
    "mbarrier.pending_count.b64 R, D;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes S, A, 64, S;",
    "cp.async.bulk.global.shared::cta.bulk_group A, S, R;",
    "cp.async.bulk.commit_group;",
    "cp.async.bulk.wait_group.read 0;",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {R, R}, S;",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 S, {R};",
    "movmatrix.sync.aligned.m8n8.trans.b16 R, R;",
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {F, F, F, F}, {R, R}, {R}, {F, F, F, F};",
    "setmaxnreg.dec.sync.aligned.u32 64;",
    "setmaxnreg.inc.sync.aligned.u32 200;",
    "barrier.cluster.arrive.aligned;",
    "barrier.cluster.wait.aligned;",
    "nanosleep.u32 R;",
    "bra L;",
    "bra L;",
    "brx.idx R, table;",
    "exit;",
    "trap;",
];

/// One line from a pattern and numbers that fill its holes.
fn line(pattern: &str, guard: u8, holes: &[u16]) -> String {
    let mut holes = holes.iter().cycle();
    let mut next = |n: u16| holes.next().unwrap_or(&0) % n;
    let mut out = match guard {
        0..=9 => String::new(),
        10..=12 => format!("@%p{} ", guard % 4),
        _ => format!("@!%p{} ", guard % 4),
    };
    let chars: Vec<char> = pattern.chars().collect();
    for (i, c) in chars.iter().enumerate() {
        let alone = (i == 0 || !chars[i - 1].is_alphanumeric() && chars[i - 1] != '.' && chars[i - 1] != '_')
            && chars.get(i + 1).is_none_or(|c| !c.is_alphanumeric() && *c != '_');
        match c {
            'R' if alone => out += &format!("%r{}", next(6)),
            'D' if alone => out += &format!("%rd{}", next(6)),
            'F' if alone => out += &format!("%f{}", next(8)),
            'H' if alone => out += &format!("%h{}", next(4)),
            'P' if alone => out += &format!("%p{}", next(4)),
            'I' if alone => out += &[0, 1, 31, 32, -1, 0x7fff_ffff][next(6) as usize].to_string(),
            'L' if alone => out += &format!("$l{}", next(4)),
            'A' if alone => out += ["[%rd0]", "[%rd1+16]", "[%rd2]", "[%rd0+4080]", "[%rd3+-8]"][next(5) as usize],
            'S' if alone => out += ["[%r0]", "[%r1+16]", "[s]", "[s+64]", "[%r2]"][next(5) as usize],
            c => out.push(*c),
        }
    }
    out
}

fn program() -> impl Strategy<Value = String> {
    let one = (0..PATTERNS.len(), 0..16u8, prop::collection::vec(any::<u16>(), 8));
    prop::collection::vec(one, 1..24).prop_map(|lines| {
        let mut text = String::from(
            ".version 8.7\n.target sm_120a\n.address_size 64\n.visible .entry k(.param .u64 p, .param .u64 q)\n{\n\
             .shared .align 128 .b8 s[256];\n.local .align 8 .b8 l[32];\n\
             .reg .pred %p<4>;\n.reg .b16 %h<4>;\n.reg .b32 %r<6>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<6>;\n\
             table: .branchtargets $l0, $l1, $l2, $l3;\n\
             ld.param.u64 %rd0, [p];\nld.param.u64 %rd1, [q];\nmov.u32 %r0, s;\nmov.u32 %r1, %tid.x;\nmov.u32 %r3, l;\n",
        );
        let quarter = lines.len().div_ceil(4);
        for (i, (pattern, guard, holes)) in lines.iter().enumerate() {
            if i % quarter == 0 {
                text += &format!("$l{}:\n", i / quarter);
            }
            text += &line(PATTERNS[*pattern], *guard, holes);
            text.push('\n');
        }
        for label in lines.len().div_ceil(quarter)..4 {
            text += &format!("$l{label}:\n");
        }
        text + "ret;\n}\n"
    })
}

type Result_ = Result<(Vec<String>, u64, Vec<u8>), String>;

fn run(module: &Module, config: MachineConfig, dims: LaunchConfig) -> Result_ {
    let mut machine = Machine::new(config);
    let a = machine.alloc(4096, "a").unwrap();
    let b = machine.alloc(100, "b").unwrap();
    machine.write(a, &(0..=255).cycle().take(4096).collect::<Vec<u8>>()).unwrap();
    let params = [a.to_le_bytes(), b.to_le_bytes()].concat();
    let report = machine.launch(module, "k", &dims, &params).map_err(|e| e.to_string())?;
    let mut bytes = vec![0; 4096];
    machine.read(a, &mut bytes).unwrap();
    Ok((report.findings.iter().map(ToString::to_string).collect(), report.warp_instructions, bytes))
}

/// 64 programs, or as many as `PROPTEST_CASES` says.
fn config() -> ProptestConfig {
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { default } else { ProptestConfig { cases: 64, ..default } }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_panics_and_seeds_repeat(text in program(), seed in 0..8u64, threads in 1..80u32, resident: bool) {
        let Ok(module) = Module::parse(&text) else { return Ok(()) };
        let dims = LaunchConfig { all_resident: resident, ..LaunchConfig::new([2, 1, 1], [threads, 1, 1]) };
        let base = MachineConfig { max_instructions: 3_000, seed, counters: CounterMode::PerLine, ..MachineConfig::default() };
        for async_mode in [AsyncMode::Eager, AsyncMode::AtWait, AsyncMode::Random] {
            let checked = MachineConfig { async_mode, ..base.clone() };
            let first = run(&module, checked.clone(), dims);
            prop_assert_eq!(&first, &run(&module, checked, dims), "{}", text);
            let fast = MachineConfig { async_mode, checks: Checks::Off, threads: 1, ..base.clone() };
            let _ = run(&module, fast, dims);
        }
    }
}

#[test]
fn every_pattern_parses() {
    for (i, pattern) in PATTERNS.iter().enumerate() {
        let body = line(pattern, 0, &[i as u16, 1, 2, 3, 4, 5, 6, 7]);
        let text = format!(
            ".version 8.7\n.target sm_120a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n\
             .shared .align 128 .b8 s[256];\n.reg .pred %p<4>;\n.reg .b16 %h<4>;\n.reg .b32 %r<6>;\n.reg .f32 %f<8>;\n\
             .reg .b64 %rd<6>;\ntable: .branchtargets $l0, $l1, $l2, $l3;\n$l0:\n$l1:\n$l2:\n$l3:\n{body}\nret;\n}}\n"
        );
        let module = Module::parse(&text).unwrap_or_else(|e| panic!("{body}: {e}"));
        Machine::new(MachineConfig::default()).load(&module).unwrap_or_else(|e| panic!("{body}: {e}"));
    }
}

//! Arithmetic, logic, comparison, conversion, warp instructions: text to checked form.

use crate::{parse, text};
use ptx_emulator::ir::*;

const NONE: FloatMods = FloatMods {
    rounding: None,
    ftz: false,
    sat: false,
    approx: false,
    full: false,
    nan: false,
    relu: false,
    xorsign_abs: false,
    oob: false,
};

fn rn() -> FloatMods {
    FloatMods { rounding: Some(Rounding::Rn), ..NONE }
}

#[test]
fn two_sources() {
    let p = parse("add.s32 %r1, %r2, -5;");
    let (d, a) = (p.d("%r1"), p.a("%r2"));
    let b = Operand::Imm(0xffff_fffb);
    assert_eq!(*p.op(), Op::Binary { op: Binary::Add, ty: Type::S32, mods: NONE, d, a, b });

    let p = parse("mul.wide.u16 %r1, %h2, 0xffff;");
    let (d, a, b) = (p.d("%r1"), p.a("%h2"), Operand::Imm(0xffff));
    assert_eq!(*p.op(), Op::Binary { op: Binary::MulWide, ty: Type::U16, mods: NONE, d, a, b });

    let p = parse("max.ftz.NaN.xorsign.abs.f32 %f0, %f1, 0f3F800000;");
    let (d, a, b) = (p.d("%f0"), p.a("%f1"), Operand::Imm(0x3f80_0000));
    let mods = FloatMods { ftz: true, nan: true, xorsign_abs: true, ..NONE };
    assert_eq!(*p.op(), Op::Binary { op: Binary::Max, ty: Type::F32, mods, d, a, b });

    let p = parse("div.full.ftz.f32 %f0, %f1, 2.5;");
    let (d, a, b) = (p.d("%f0"), p.a("%f1"), Operand::Imm(u64::from(2.5f32.to_bits())));
    let mods = FloatMods { full: true, ftz: true, ..NONE };
    assert_eq!(*p.op(), Op::Binary { op: Binary::Div, ty: Type::F32, mods, d, a, b });

    // The count of a 64-bit shift has 32 bits.
    let p = parse("shr.s64 %rd1, %rd2, %r3;");
    let (d, a, b) = (p.d("%rd1"), p.a("%rd2"), p.a("%r3"));
    assert_eq!(*p.op(), Op::Binary { op: Binary::Shr, ty: Type::S64, mods: NONE, d, a, b });

    let p = parse("xor.pred %p1, %p2, %p3;");
    let (d, a, b) = (p.d("%p1"), p.a("%p2"), p.a("%p3"));
    assert_eq!(*p.op(), Op::Binary { op: Binary::Xor, ty: Type::Pred, mods: NONE, d, a, b });

    let p = parse("addc.cc.u32 %r1, %r2, 0;");
    let (d, a, b) = (p.d("%r1"), p.a("%r2"), Operand::Imm(0));
    let (subtract, carry_in, carry_out) = (false, true, true);
    assert_eq!(*p.op(), Op::Carry { subtract, carry_in, carry_out, ty: Type::U32, d, a, b });
}

#[test]
fn one_and_three_sources() {
    let p = parse("ex2.approx.ftz.bf16x2 %r1, %r2;");
    let mods = FloatMods { approx: true, ftz: true, ..NONE };
    assert_eq!(*p.op(), Op::Unary { op: Unary::Ex2, ty: Type::BF16x2, mods, d: p.d("%r1"), a: p.a("%r2") });

    let p = parse("bfind.shiftamt.u64 %r1, %rd2;");
    let op = Unary::Bfind { shift_amount: true };
    assert_eq!(*p.op(), Op::Unary { op, ty: Type::U64, mods: NONE, d: p.d("%r1"), a: p.a("%rd2") });

    let p = parse("fma.rn.relu.bf16x2 %r1, %r2, %r3, %r4;");
    let mods = FloatMods { relu: true, ..rn() };
    let (d, a, b, c) = (p.d("%r1"), p.a("%r2"), p.a("%r3"), p.a("%r4"));
    assert_eq!(*p.op(), Op::Ternary { op: Ternary::Fma, ty: Type::BF16x2, mods, d, a, b, c });

    let p = parse("mad.wide.s32 %rd1, %r2, 4, %rd3;");
    let (d, a, b, c) = (p.d("%rd1"), p.a("%r2"), Operand::Imm(4), p.a("%rd3"));
    assert_eq!(*p.op(), Op::Ternary { op: Ternary::MadWide, ty: Type::S32, mods: NONE, d, a, b, c });

    // Floating-point mad is a fused multiply-add on every target that is read.
    let p = parse("mad.rn.f32 %f0, %f1, %f2, %f3;");
    let (d, a, b, c) = (p.d("%f0"), p.a("%f1"), p.a("%f2"), p.a("%f3"));
    assert_eq!(*p.op(), Op::Ternary { op: Ternary::Fma, ty: Type::F32, mods: rn(), d, a, b, c });

    let p = parse("madc.hi.cc.u32 %r1, %r2, %r3, %r4;");
    let (d, a, b, c) = (p.d("%r1"), p.a("%r2"), p.a("%r3"), p.a("%r4"));
    let (hi, carry_in, carry_out) = (true, true, true);
    assert_eq!(*p.op(), Op::MadCarry { hi, carry_in, carry_out, ty: Type::U32, d, a, b, c });
}

#[test]
fn mixed_precision_widens_first() {
    let p = parse("@%p1 add.rn.f32.f16 %f0, %h1, %f2;");
    let [widen, add] = p.code() else { panic!("{:?}", p.code()) };
    let Op::Cvt { to: Type::F32, from: Type::F16, d: Dst::Reg(wide), ref a, b: None, .. } = widen.op else {
        panic!("{widen:?}");
    };
    assert_eq!(*a, p.a("%h1"));
    let (d, b) = (p.d("%f0"), p.a("%f2"));
    assert_eq!(add.op, Op::Binary { op: Binary::Add, ty: Type::F32, mods: rn(), d, a: Operand::Reg(wide), b });
    assert_eq!((widen.guard, widen.line), (add.guard, add.line));
    assert!(widen.guard.is_some());
}

#[test]
fn bit_fields_and_permutes() {
    let p = parse("lop3.or.b32 %r0|%p1, %r1, %r2, %r3, 0x3f, !%p2;");
    let (d, a, b, c) = (p.d("%r0"), p.a("%r1"), p.a("%r2"), p.a("%r3"));
    let q = Some((BoolOp::Or, p.reg("%p1"), Operand::NotPred(p.reg("%p2"))));
    assert_eq!(*p.op(), Op::Lop3 { d, p: q, a, b, c, lut: 0x3f });

    let p = parse("prmt.b32 %r0, %r1, %r2, 0x5410;");
    let (d, a, b, selector) = (p.d("%r0"), p.a("%r1"), p.a("%r2"), Operand::Imm(0x5410));
    assert_eq!(*p.op(), Op::Prmt { mode: PrmtMode::Default, d, a, b, selector });

    let p = parse("shf.r.clamp.b32 %r0, %r1, %r2, %r3;");
    let (d, a, b, c) = (p.d("%r0"), p.a("%r1"), p.a("%r2"), p.a("%r3"));
    assert_eq!(*p.op(), Op::Shf { left: false, wrap: false, d, a, b, c });

    let p = parse("bfi.b64 %rd0, %rd1, %rd2, 3, %r4;");
    let (d, a, b) = (p.d("%rd0"), p.a("%rd1"), p.a("%rd2"));
    assert_eq!(*p.op(), Op::Bfi { ty: Type::B64, d, a, b, pos: Operand::Imm(3), len: p.a("%r4") });

    let p = parse("dp4a.u32.s32 %r0, %r1, %r2, %r3;");
    let (d, a, b, c) = (p.d("%r0"), p.a("%r1"), p.a("%r2"), p.a("%r3"));
    assert_eq!(*p.op(), Op::Dp4a { a_signed: false, b_signed: true, d, a, b, c });

    let p = parse("szext.wrap.s32 %r0, %r1, 7;");
    let (d, a, b) = (p.d("%r0"), p.a("%r1"), Operand::Imm(7));
    assert_eq!(*p.op(), Op::Szext { clamp: false, ty: Type::S32, d, a, b });
}

#[test]
fn comparisons() {
    let p = parse("setp.ltu.and.ftz.f32 %p0|%p1, %f0, %f1, !%p2;");
    let combine = Some((BoolOp::And, Operand::NotPred(p.reg("%p2"))));
    let (a, b) = (p.a("%f0"), p.a("%f1"));
    let (pd, q) = (p.d("%p0"), Some(p.d("%p1")));
    assert_eq!(*p.op(), Op::Setp { cmp: Cmp::Ltu, combine, ty: Type::F32, ftz: true, p: pd, q, a, b });

    let p = parse("set.eq.u32.f16 %r0, %h1, %h2;");
    let (d, a, b) = (p.d("%r0"), p.a("%h1"), p.a("%h2"));
    let set = Op::Set { cmp: Cmp::Eq, combine: None, to: Type::U32, ty: Type::F16, ftz: false, d, a, b };
    assert_eq!(*p.op(), set);

    let p = parse("selp.f32 %f0, 0f00000000, %f1, %p3;");
    let (d, a, b) = (p.d("%f0"), Operand::Imm(0), p.a("%f1"));
    assert_eq!(*p.op(), Op::Selp { ty: Type::F32, d, a, b, p: p.a("%p3") });

    let p = parse("slct.ftz.u64.f32 %rd0, %rd1, %rd2, %f3;");
    let (d, a, b, c) = (p.d("%rd0"), p.a("%rd1"), p.a("%rd2"), p.a("%f3"));
    assert_eq!(*p.op(), Op::Slct { ty: Type::U64, sel: Type::F32, ftz: true, d, a, b, c });
}

#[test]
fn conversions() {
    let p = parse("cvt.rn.satfinite.relu.e4m3x2.f32 %h0, %f1, %f2;");
    let mods = FloatMods { relu: true, ..rn() };
    let (d, a, b) = (p.d("%h0"), p.a("%f1"), Some(p.a("%f2")));
    assert_eq!(*p.op(), Op::Cvt { to: Type::E4M3x2, from: Type::F32, mods, satfinite: true, d, a, b });

    let p = parse("cvt.rzi.ftz.sat.u8.f32 %r0, %f1;");
    let mods = FloatMods { rounding: Some(Rounding::Rzi), ftz: true, sat: true, ..NONE };
    let (d, a) = (p.d("%r0"), p.a("%f1"));
    assert_eq!(*p.op(), Op::Cvt { to: Type::U8, from: Type::F32, mods, satfinite: false, d, a, b: None });

    let p = parse("cvt.rp.satfinite.ue8m0x2.bf16x2 %h0, %r1;");
    let mods = FloatMods { rounding: Some(Rounding::Rp), ..NONE };
    let (d, a) = (p.d("%h0"), p.a("%r1"));
    assert_eq!(*p.op(), Op::Cvt { to: Type::UE8M0x2, from: Type::BF16x2, mods, satfinite: true, d, a, b: None });

    let p = parse("cvt.u64.u32 %rd0, %tid.x;");
    let (d, a) = (p.d("%rd0"), Operand::Special(Special::Tid(0)));
    assert_eq!(*p.op(), Op::Cvt { to: Type::U64, from: Type::U32, mods: NONE, satfinite: false, d, a, b: None });

    let p = parse("cvt.pack.sat.s8.s32.b32 %r0, %r1, %r2, %r3;");
    let (d, a, b, c) = (p.d("%r0"), p.a("%r1"), p.a("%r2"), Some(p.a("%r3")));
    assert_eq!(*p.op(), Op::CvtPack { to: Type::S8, from: Type::S32, d, a, b, c });
}

#[test]
fn moves_and_constants() {
    let value = |constant: &str| {
        let p = parse(&format!("mov.b64 %rd0, {constant};"));
        match p.op() {
            Op::Mov { a: Operand::Imm(v), .. } => *v,
            other => panic!("{other:?}"),
        }
    };
    for (constant, expected) in [
        ("42", 42u64),
        ("052", 42),
        ("0x2A", 42),
        ("0b101010", 42),
        ("42U", 42),
        ("-1", u64::MAX),
        ("~0", u64::MAX),
        ("18446744073709551615", u64::MAX),
        ("(1 << 40) | 3", (1 << 40) | 3),
        ("2 + 3 * 4 - 10 / 3 % 2", 13),
        ("-7 >> 1", (-4i64) as u64),
        ("0x8000000000000000 >> 63", 1),
        ("1 ? 2 : 3", 2),
        ("!5 || 3 == 3", 1),
        ("(.s64)0xFFFFFFFFFFFFFFFF < 0", 1),
        ("WARP_SZ * 2", 64),
        ("0d3FF0000000000000", 1f64.to_bits()),
        ("1.5", 1.5f64.to_bits()),
        ("-2.5e-3", (-2.5e-3f64).to_bits()),
    ] {
        assert_eq!(value(constant), expected, "{constant}");
    }

    let p = parse("mov.b32 {%h1, _}, %r2;");
    assert_eq!(*p.op(), Op::Mov { ty: Type::B32, d: Dst::Vector(p.dv(&["%h1", "_"])), a: p.a("%r2") });
    let p = parse("mov.b64 %rd1, {%r2, 7};");
    let a = Operand::Vector(vec![p.a("%r2"), Operand::Imm(7)]);
    assert_eq!(*p.op(), Op::Mov { ty: Type::B64, d: p.d("%rd1"), a });
    let p = parse("mov.u64 %rd1, gv+8;");
    assert_eq!(*p.op(), Op::Mov { ty: Type::U64, d: p.d("%rd1"), a: Operand::Symbol(Symbol::Module(0), 8) });
    let p = parse("mov.u32 %r1, %lanemask_lt;");
    assert_eq!(*p.op(), Op::Mov { ty: Type::U32, d: p.d("%r1"), a: Operand::Special(Special::LaneMaskLt) });
    // 32-bit constants are cut to the type of the place.
    let p = parse("mov.b32 %r1, 0f3F800000;");
    assert_eq!(*p.op(), Op::Mov { ty: Type::B32, d: p.d("%r1"), a: Operand::Imm(0x3f80_0000) });
    let p = parse("mov.f64 %d1, 0f3F800000;");
    assert_eq!(*p.op(), Op::Mov { ty: Type::F64, d: p.d("%d1"), a: Operand::Imm(1f64.to_bits()) });
}

#[test]
fn exchanges_between_lanes() {
    let p = parse("shfl.sync.bfly.b32 %r0|%p1, %r2, 16, 0x1f, -1;");
    let (d, q, a) = (p.d("%r0"), Some(p.d("%p1")), p.a("%r2"));
    let (b, c, mask) = (Operand::Imm(16), Operand::Imm(31), Operand::Imm(0xffff_ffff));
    assert_eq!(*p.op(), Op::Shfl { mode: ShflMode::Bfly, d, p: q, a, b, c, mask });

    let p = parse("vote.sync.ballot.b32 %r0, !%p1, %r2;");
    let (d, q, mask) = (p.d("%r0"), Operand::NotPred(p.reg("%p1")), p.a("%r2"));
    assert_eq!(*p.op(), Op::Vote { mode: VoteMode::Ballot, d, p: q, mask });

    let p = parse("match.all.sync.b64 %r0|%p1, %rd2, -1;");
    let (d, q, a) = (p.d("%r0"), Some(p.d("%p1")), p.a("%rd2"));
    let mask = Operand::Imm(0xffff_ffff);
    assert_eq!(*p.op(), Op::Match { all: true, ty: Type::B64, d, p: q, a, mask });

    let p = parse("redux.sync.max.s32 %r0, %r1, %r2;");
    let (d, a, mask) = (p.d("%r0"), p.a("%r1"), p.a("%r2"));
    assert_eq!(*p.op(), Op::Redux { op: Redux::Max, ty: Type::S32, d, a, mask });

    let p = parse("elect.sync _|%p0, %r1;");
    assert_eq!(*p.op(), Op::Elect { d: Dst::Sink, p: p.d("%p0"), mask: p.a("%r1") });
}

#[test]
fn a_line_may_hold_many_statements() {
    let p = parse("{ .reg .b32 t; mov.b32 t, 1; add.u32 %r0, t, t; } /* and */ { .reg .b32 t; mov.b32 t, 2; } // done");
    let lines: Vec<u32> = p.code().iter().map(|i| i.line).collect();
    assert_eq!(lines, [crate::FIRST; 3]);
    let names: Vec<&str> = p.entry().registers.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["t", "%r0", "t"], "the two blocks have registers of their own");
}

#[test]
fn order_of_modifiers_is_free_where_it_says_the_same() {
    for (a, b) in [
        ("max.NaN.ftz.f32 %f0, %f1, %f2;", "max.ftz.NaN.f32 %f0, %f1, %f2;"),
        ("atom.global.relaxed.gpu.add.u32 %r0, [%rd0], 1;", "atom.relaxed.gpu.global.add.u32 %r0, [%rd0], 1;"),
    ] {
        assert_eq!(parse(a).op(), parse(b).op());
    }
    assert!(Module::parse(&text("sm_120a", "ret;")).is_ok());
}

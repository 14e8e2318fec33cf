//! Matrix instructions: text to checked form.

use crate::parse;
use ptx_emulator::ir::*;

const F4: [&str; 4] = ["%f0", "%f1", "%f2", "%f3"];
const A4: [&str; 4] = ["%r0", "%r1", "%r2", "%r3"];
const B2: [&str; 2] = ["%r4", "%r5"];

fn list(names: &[&str]) -> String {
    format!("{{{}}}", names.join(", "))
}

#[test]
fn plain_products() {
    let text = format!(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {}, {}, {}, {{0f00000000, %f1, %f2, %f3}};",
        list(&F4),
        list(&A4),
        list(&B2)
    );
    let p = parse(&text);
    let desc = MmaDesc {
        shape: Shape { m: 16, n: 8, k: 16 },
        kind: MmaKind::Plain,
        a: Type::BF16,
        b: Type::BF16,
        c: Type::F32,
        d: Type::F32,
        block_scale: None,
        satfinite: false,
    };
    let mut c = vec![Operand::Imm(0)];
    c.extend(p.av(&F4[1..]));
    let (d, a, b) = (p.dv(&F4), p.av(&A4), p.av(&B2));
    assert_eq!(*p.op(), Op::Mma { desc, d, a, b, c, scale_a: None, scale_b: None });
}

#[test]
fn fragments_have_the_right_length() {
    // Registers per lane: rows x columns x bits / 32 lanes / 32 bits.
    for (form, d, a, b, c) in [
        ("m16n8k8.row.col.f16.f16.f16.f16", 2, 2, 1, 2),
        ("m16n8k4.row.col.f32.tf32.tf32.f32", 4, 2, 1, 4),
        ("m16n8k32.row.col.f32.e4m3.e5m2.f32", 4, 4, 2, 4),
        ("m16n8k16.row.col.f16.e4m3.e4m3.f16", 2, 2, 1, 2),
        ("m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e3m2.f32", 4, 4, 2, 4),
    ] {
        let float = form.ends_with("f32");
        let regs = |n: usize, float: bool| {
            let names: Vec<String> = (0..n).map(|i| format!("%{}{i}", if float { "f" } else { "r" })).collect();
            list(&names.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let build = |d: usize, a: usize, b: usize, c: usize| {
            let (d, a, b, c) = (regs(d, float), regs(a, false), regs(b, false), regs(c, float));
            format!("mma.sync.aligned.{form} {d}, {a}, {b}, {c};")
        };
        parse(&build(d, a, b, c));
        let error = crate::refuse("sm_120a", &build(d, a + 1, b, c));
        assert!(
            error.message.ends_with(&format!("operand 2: expected a vector of {a} elements, got {}", a + 1)),
            "{error}"
        );
    }
}

#[test]
fn integer_products() {
    let p = parse("mma.sync.aligned.m8n8k16.row.col.satfinite.s32.u8.s8.s32 {%r0, %r1}, {%r2}, %r3, {%r4, %r5};");
    let Op::Mma { desc, a, b, .. } = p.op() else { panic!("{:?}", p.op()) };
    assert!(desc.satfinite);
    assert_eq!((desc.a, desc.b, desc.c), (Type::U8, Type::S8, Type::S32));
    assert_eq!((a.as_slice(), b.as_slice()), (p.av(&["%r2"]).as_slice(), p.av(&["%r3"]).as_slice()));
}

#[test]
fn block_scaled_products_in_both_spellings() {
    let operands =
        format!("{}, {}, {}, {}, {{%r6}}, {{%h0, %h1}}, %r7, {{1, 3}};", list(&F4), list(&A4), list(&B2), list(&F4));
    let after = parse(&format!(
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e2m1.f32.ue8m0 {operands}"
    ));
    let before = parse(&format!(
        "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0 {operands}"
    ));
    assert_eq!(before.op(), after.op());
    let Op::Mma { desc, scale_a: Some(sa), scale_b: Some(sb), .. } = after.op() else { panic!("{:?}", after.op()) };
    assert_eq!(desc.kind, MmaKind::Mxf8f6f4);
    assert_eq!((desc.a, desc.b), (Type::E4M3, Type::E2M1));
    assert_eq!(desc.block_scale, Some(BlockScale { scale_vec: 1, ty: Type::UE8M0 }));
    let expected = ScaleOperand { data: after.a("%r6"), byte_id: after.a("%h0"), thread_id: after.a("%h1") };
    assert_eq!(*sa, expected);
    let expected = ScaleOperand { data: after.a("%r7"), byte_id: Operand::Imm(1), thread_id: Operand::Imm(3) };
    assert_eq!(*sb, expected);

    let operands = format!("{}, {}, {}, {}, %r6, {{0, 0}}, %r7, {{0, 0}};", list(&F4), list(&A4), list(&B2), list(&F4));
    for (form, kind, scale_vec, ty) in [
        ("kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0", MmaKind::Mxf4, 2, Type::UE8M0),
        ("kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3", MmaKind::Mxf4nvf4, 4, Type::E4M3),
        ("kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0", MmaKind::Mxf4nvf4, 2, Type::UE8M0),
    ] {
        let p = parse(&format!("mma.sync.aligned.m16n8k64.row.col.{form} {operands}"));
        let Op::Mma { desc, .. } = p.op() else { panic!("{:?}", p.op()) };
        assert_eq!((desc.kind, desc.block_scale), (kind, Some(BlockScale { scale_vec, ty })));
    }
}

#[test]
fn matrix_loads_and_stores() {
    let p = parse("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r0, %r1, %r2, %r3}, [%r4+32];");
    let addr = Address { base: AddressBase::Reg(p.reg("%r4")), offset: 32 };
    let load = Op::Ldmatrix {
        shape: MatrixShape::M8n8,
        num: 4,
        trans: true,
        element: MatrixElement::B16,
        d: p.dv(&A4),
        addr,
        space: Space::Shared,
    };
    assert_eq!(*p.op(), load);
    // 16 x 16 bytes are two registers per lane.
    let p = parse("ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8 {%r0, %r1, %r2, %r3}, [%r4];");
    let Op::Ldmatrix { shape: MatrixShape::M16n16, num: 2, element: MatrixElement::B8, d, .. } = p.op() else {
        panic!("{:?}", p.op());
    };
    assert_eq!(d.len(), 4);
    let p = parse("ldmatrix.sync.aligned.m8n16.x1.b8x16.b4x16_p64 {%r0}, [%rd4];");
    let Op::Ldmatrix { element: MatrixElement::B8x16B4x16P64, space: Space::Generic, .. } = p.op() else {
        panic!("{:?}", p.op());
    };
    let p = parse("stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [%r4], {%r0, %r1};");
    let Op::Stmatrix { shape: MatrixShape::M16n8, num: 2, trans: true, a, .. } = p.op() else {
        panic!("{:?}", p.op());
    };
    assert_eq!(*a, p.av(&["%r0", "%r1"]));
    let p = parse("movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;");
    assert_eq!(*p.op(), Op::Movmatrix { d: p.d("%r0"), a: p.a("%r1") });
}

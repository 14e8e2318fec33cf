//! Matrix instructions of a warp.

use crate::ir::{
    BlockScale, MatrixElement, MatrixShape, MmaDesc, MmaKind, Op, Operand, ScaleOperand, Shape, Space, Type, Type::*,
};
use crate::parse::cursor::{Raw, RawKind};
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::{Inst, type_name};
use crate::parse::operand::same_width;
use crate::parse::target::{Need, sm, special};

/// Architectures with byte-transposing `ldmatrix`/`stmatrix`.
const BYTE_MATRIX: Need = special(&[100, 110, 120], 8, 6);

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    inst.must_word(f, "sync")?;
    inst.must_word(f, "aligned")?;
    match inst.name {
        "mma" => mma(f, inst),
        "ldmatrix" => ldmatrix(f, inst),
        "stmatrix" => stmatrix(f, inst),
        _ => {
            inst.must_word(f, "m8n8")?;
            inst.must_word(f, "trans")?;
            inst.ty_of(f, &[B16])?;
            inst.need(f, sm(75, 7, 8))?;
            inst.exactly(f, 2)?;
            Ok(Op::Movmatrix { d: f.dst(inst, 0, B32)?, a: f.reg_src(inst, 1, B32)? })
        }
    }
}

/// `m16n8k32`
fn shape(word: &str) -> Option<Shape> {
    let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
}

/// What a shape and a pair of element types need; `None` if there is no such instruction.
fn mma_need(d: &MmaDesc) -> Option<Need> {
    let shape = (d.shape.m, d.shape.n, d.shape.k);
    let eight = |t: Type| matches!(t, E4M3 | E5M2);
    let narrow = |t: Type| matches!(t, E4M3 | E5M2 | E2M1 | E2M3 | E3M2);
    let float = |t: Type| matches!(t, F16 | F32);
    match d.kind {
        MmaKind::Plain => {}
        MmaKind::F8f6f4 => {
            let ok = shape == (16, 8, 32) && narrow(d.a) && narrow(d.b) && float(d.c) && d.c == d.d;
            return ok.then_some(special(&[120], 8, 7));
        }
        MmaKind::Mxf8f6f4 => {
            let ok = shape == (16, 8, 32) && narrow(d.a) && narrow(d.b) && d.c == F32 && d.d == F32;
            return ok.then_some(special(&[120], 8, 7));
        }
        MmaKind::Mxf4 | MmaKind::Mxf4nvf4 => {
            let ok = shape == (16, 8, 64) && d.a == E2M1 && d.b == E2M1 && d.c == F32 && d.d == F32;
            return ok.then_some(special(&[120], 8, 7));
        }
    }
    match (d.a, d.b) {
        (F16, F16) if float(d.c) && float(d.d) && d.c == d.d => match shape {
            (16, 8, 8) => Some(sm(75, 6, 5)),
            (16, 8, 16) => Some(sm(80, 7, 0)),
            _ => None,
        },
        (BF16, BF16) if d.c == F32 && d.d == F32 => matches!(shape, (16, 8, 8 | 16)).then_some(sm(80, 7, 0)),
        (TF32, TF32) if d.c == F32 && d.d == F32 => matches!(shape, (16, 8, 4 | 8)).then_some(sm(80, 7, 0)),
        (F64, F64) if d.c == F64 && d.d == F64 => match shape {
            (8, 8, 4) => Some(sm(80, 7, 0)),
            (16, 8, 4 | 8 | 16) => Some(sm(90, 7, 8)),
            _ => None,
        },
        (a, b) if eight(a) && eight(b) && float(d.c) && d.c == d.d => match (shape, d.c) {
            ((16, 8, 32), F32) => Some(sm(89, 8, 4)),
            ((16, 8, 16 | 32), _) => Some(sm(89, 8, 7)),
            _ => None,
        },
        (U8 | S8, U8 | S8) if d.c == S32 && d.d == S32 => match shape {
            (8, 8, 16) => Some(sm(75, 6, 5)),
            (16, 8, 16 | 32) => Some(sm(80, 7, 0)),
            _ => None,
        },
        (U4 | S4, U4 | S4) if d.c == S32 && d.d == S32 => match shape {
            (8, 8, 32) => Some(sm(75, 6, 5)),
            (16, 8, 32 | 64) => Some(sm(80, 7, 0)),
            _ => None,
        },
        _ => None,
    }
}

/// Registers of a fragment of `elements` elements, and their type.
fn fragment(elements: u32, ty: Type, kind: MmaKind) -> (usize, Type) {
    // The 4- and 6-bit formats of the f8f6f4 kinds stand in bytes.
    let bits = match (kind, ty) {
        (MmaKind::F8f6f4 | MmaKind::Mxf8f6f4, E2M1 | E2M3 | E3M2) => 8,
        _ => ty.bits(),
    };
    let register = match ty {
        F32 | F64 | S32 => ty,
        F16 => F16x2,
        BF16 | TF32 => TF32,
        _ => B32,
    };
    ((elements * bits / 32 / register.bits()) as usize, register)
}

fn mma<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    for word in ["popc", "sp", "sp::ordered_metadata"] {
        if inst.mods.has(word) {
            return Err(inst.unsupported(f, &format!("the .{word} form is not supported")));
        }
    }
    let Some(shape) = inst.mods.take_by(shape) else {
        return Err(inst.unsupported(f, "expected a shape like .m16n8k16"));
    };
    inst.must_word(f, "row")?;
    inst.must_word(f, "col")?;
    let kinds = [
        ("kind::f8f6f4", MmaKind::F8f6f4),
        ("kind::mxf8f6f4", MmaKind::Mxf8f6f4),
        ("kind::mxf4", MmaKind::Mxf4),
        ("kind::mxf4nvf4", MmaKind::Mxf4nvf4),
    ];
    let kind = inst.mods.take_of(&kinds).unwrap_or(MmaKind::Plain);
    let scaled = matches!(kind, MmaKind::Mxf8f6f4 | MmaKind::Mxf4 | MmaKind::Mxf4nvf4);
    if scaled {
        inst.must_word(f, "block_scale")?;
    }
    let satfinite = inst.mods.take("satfinite");
    let vectors = [("scale_vec::1X", 1), ("scale_vec::2X", 2), ("scale_vec::4X", 4)];
    let scale_vec = if scaled { inst.mods.take_of(&vectors) } else { None };
    let (d, a, b, c) = (inst.ty(f)?, inst.ty(f)?, inst.ty(f)?, inst.ty(f)?);
    let block_scale = if scaled { Some(block_scale(f, inst, kind, scale_vec)?) } else { None };
    let desc = MmaDesc { shape, kind, a, b, c, d, block_scale, satfinite };
    let Some(need) = mma_need(&desc) else {
        let Shape { m, n, k } = shape;
        let what = format!(
            "there is no m{m}n{n}k{k} of this kind with types .{} .{} .{} .{}",
            type_name(d),
            type_name(a),
            type_name(b),
            type_name(c)
        );
        return Err(inst.unsupported(f, &what));
    };
    if satfinite && d != S32 {
        return Err(inst.unsupported(f, "modifier .satfinite needs an .s32 accumulator"));
    }
    inst.need(f, need)?;
    inst.exactly(f, if scaled { 8 } else { 4 })?;
    let (nd, td) = fragment(shape.m * shape.n, d, kind);
    let (na, ta) = fragment(shape.m * shape.k, a, kind);
    let (nb, tb) = fragment(shape.n * shape.k, b, kind);
    let (nc, tc) = fragment(shape.m * shape.n, c, kind);
    let d = f.dst_list(inst, 0, nd, td, same_width)?;
    let a = f.src_list(inst, 1, na, ta, same_width)?;
    let b = f.src_list(inst, 2, nb, tb, same_width)?;
    let c = f.src_list(inst, 3, nc, tc, same_width)?;
    let (mut scale_a, mut scale_b) = (None, None);
    if scaled {
        let vec = block_scale.map_or(1, |s| s.scale_vec);
        scale_a = Some(scale_operand(f, inst, 4, vec, 1)?);
        scale_b = Some(scale_operand(f, inst, 6, vec, 3)?);
    }
    Ok(Op::Mma { desc, d, a, b, c, scale_a, scale_b })
}

fn block_scale<'a>(
    f: &Function<'_, 'a>,
    inst: &mut Inst<'a>,
    kind: MmaKind,
    scale_vec: Option<u32>,
) -> Result<BlockScale, ParseError> {
    // `.ue4m3` reads as E4M3; the signed spelling is no scale type.
    let ty = inst.must(f, &[("ue8m0", UE8M0), ("ue4m3", E4M3)])?;
    let found = match (kind, scale_vec, ty) {
        (MmaKind::Mxf8f6f4, None | Some(1), UE8M0) => Some(1),
        (MmaKind::Mxf4, None | Some(2), UE8M0) => Some(2),
        (MmaKind::Mxf4nvf4, Some(2), UE8M0) => Some(2),
        (MmaKind::Mxf4nvf4, Some(4), E4M3) => Some(4),
        _ => None,
    };
    match found {
        Some(scale_vec) => Ok(BlockScale { scale_vec, ty }),
        None => Err(inst.unsupported(f, "this kind has no such combination of .scale_vec and scale type")),
    }
}

/// `data, {byte_id, thread_id}` at operands `i` and `i + 1`.
fn scale_operand<'a>(
    f: &mut Function<'_, 'a>,
    inst: &Inst<'a>,
    i: usize,
    scale_vec: u32,
    max_thread: u64,
) -> Result<ScaleOperand, ParseError> {
    let data_list: Vec<Raw<'a>> = f.elements(inst, i);
    let [data] = data_list.as_slice() else {
        return Err(inst.syntax(f, &format!("operand {}: expected one register with scales", i + 1)));
    };
    let data = f.scalar(inst, data, B32, same_width)?;
    let RawKind::Vector(selectors) = &inst.args[i + 1].kind else {
        return Err(inst.syntax(f, &format!("operand {}: expected the selectors {{byte-id, thread-id}}", i + 2)));
    };
    let [byte, thread] = selectors.as_slice() else {
        return Err(inst.syntax(f, &format!("operand {}: expected 2 selectors, got {}", i + 2, selectors.len())));
    };
    let (byte_id, thread_id) = (f.scalar(inst, byte, U16, same_width)?, f.scalar(inst, thread, U16, same_width)?);
    // The selected bytes must lie inside the register: 4, 2 or 1 places for 1, 2 or 4 scales.
    let byte_ok = |n: u64| n < 4 && n.is_multiple_of(u64::from(scale_vec));
    let (byte_ok, thread_ok) =
        (!matches!(byte_id, Operand::Imm(n) if !byte_ok(n)), !matches!(thread_id, Operand::Imm(n) if n > max_thread));
    if !byte_ok || !thread_ok {
        let what = format!(
            "operand {}: expected a byte-id below 4 that is a multiple of {scale_vec} and a thread-id of at most \
             {max_thread}",
            i + 2
        );
        return Err(inst.syntax(f, &what));
    }
    Ok(ScaleOperand { data, byte_id, thread_id })
}

const NUMS: [(&str, u32); 3] = [("x1", 1), ("x2", 2), ("x4", 4)];

/// `.shared`, `.shared::cta` or a generic address.
fn space(inst: &mut Inst<'_>) -> Space {
    let spaces = [("shared", Space::Shared), ("shared::cta", Space::Shared)];
    inst.mods.take_of(&spaces).unwrap_or(Space::Generic)
}

fn ldmatrix<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let shape =
        inst.must(f, &[("m8n8", MatrixShape::M8n8), ("m16n16", MatrixShape::M16n16), ("m8n16", MatrixShape::M8n16)])?;
    let num = inst.must(f, &NUMS)?;
    let trans = inst.mods.take("trans");
    let space = space(inst);
    let element = if inst.mods.take("b8x16") {
        inst.must(f, &[("b6x16_p32", MatrixElement::B8x16B6x16P32), ("b4x16_p64", MatrixElement::B8x16B4x16P64)])?
    } else {
        inst.must(f, &[("b16", MatrixElement::B16), ("b8", MatrixElement::B8)])?
    };
    let need = match (shape, element, trans) {
        (MatrixShape::M8n8, MatrixElement::B16, _) => sm(75, 6, 5),
        (MatrixShape::M16n16, MatrixElement::B16, _) | (MatrixShape::M8n8 | MatrixShape::M8n16, _, true) => {
            return Err(inst.unsupported(f, "this shape has no such element type and transposition"));
        }
        (MatrixShape::M16n16, _, true) if num < 4 => BYTE_MATRIX,
        (MatrixShape::M8n16, MatrixElement::B8x16B6x16P32 | MatrixElement::B8x16B4x16P64, false) => BYTE_MATRIX,
        (MatrixShape::M16n16, _, _) => {
            return Err(inst.unsupported(f, "the shape .m16n16 needs .trans and .x1 or .x2"));
        }
        _ => return Err(inst.unsupported(f, "this shape has no such element type")),
    };
    inst.need(f, need)?;
    inst.exactly(f, 2)?;
    let registers = num * if shape == MatrixShape::M16n16 { 2 } else { 1 };
    let d = f.dst_list(inst, 0, registers as usize, B32, same_width)?;
    Ok(Op::Ldmatrix { shape, num, trans, element, d, addr: f.addr(inst, 1, space)?, space })
}

fn stmatrix<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let shape = inst.must(f, &[("m8n8", MatrixShape::M8n8), ("m16n8", MatrixShape::M16n8)])?;
    let num = inst.must(f, &NUMS)?;
    let trans = inst.mods.take("trans");
    let space = space(inst);
    let element = inst.must(f, &[("b16", MatrixElement::B16), ("b8", MatrixElement::B8)])?;
    let need = match (shape, element, trans) {
        (MatrixShape::M8n8, MatrixElement::B16, _) => sm(90, 7, 8),
        (MatrixShape::M16n8, MatrixElement::B8, true) => BYTE_MATRIX,
        (MatrixShape::M16n8, MatrixElement::B8, false) => {
            return Err(inst.unsupported(f, "the shape .m16n8 needs .trans"));
        }
        _ => return Err(inst.unsupported(f, "this shape has no such element type")),
    };
    inst.need(f, need)?;
    inst.exactly(f, 2)?;
    let addr = f.addr(inst, 0, space)?;
    let a = f.src_list(inst, 1, num as usize, B32, same_width)?;
    Ok(Op::Stmatrix { shape, num, trans, element, addr, a, space })
}

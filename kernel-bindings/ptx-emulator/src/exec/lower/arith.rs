//! Arithmetic, conversions, comparisons and moves.

use super::{Lower, Lowered};
use crate::counters::Class;
use crate::exec::alu::{self, CvtInt};
use crate::exec::alu_float;
use crate::exec::lanes::{map2, map3};
use crate::exec::program::{ALWAYS, Any, NEGATE, NONE, Op, Rule};
use crate::exec::scalar::{self, Scalar, is_float};
use crate::ir::{self, Binary, BoolOp, Cmp, Dst, FloatMods, Operand, PrmtMode, Space, Special, Type, Unary};
use crate::memory::{CONST_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};

type Out = Option<(Op, Class, Rule)>;

fn class_of(ty: Type) -> Class {
    match ty {
        Type::F64 => Class::Double,
        Type::F16 | Type::BF16 | Type::F16x2 | Type::BF16x2 => Class::Half,
        _ if is_float(ty) => Class::Float,
        _ => Class::Integer,
    }
}

fn is_wide(ty: Type) -> bool {
    ty.bits() == 64
}

impl Lower<'_> {
    pub(super) fn arith(&mut self, op: &ir::Op) -> Lowered<Out> {
        Ok(Some(match op {
            ir::Op::Mov { ty, d, a } => return self.mov(*ty, d, a).map(Some),
            ir::Op::Unary { op, ty, mods, d, a } => return self.unary(*op, *ty, mods, d, a).map(Some),
            ir::Op::Binary { op, ty, mods, d, a, b } => return self.binary(*op, *ty, mods, d, a, b).map(Some),
            ir::Op::Ternary { op, ty, mods, d, a, b, c } => {
                let class = class_of(*ty);
                if is_wide(*ty) {
                    if let Some(f) = alu::ternary_x(*op, *ty, mods) {
                        let op = Op::X3 { f, d: self.dx(d)?, a: self.x(a)?, b: self.x(b)?, c: self.x(c)? };
                        return Ok(Some((op, class, Rule::All)));
                    }
                } else if *op == ir::Ternary::MadWide {
                    if let Some(f) = alu::mad_wide(*ty) {
                        let op = Op::Xwwx { f, d: self.dx(d)?, a: self.w(a)?, b: self.w(b)?, c: self.x(c)? };
                        return Ok(Some((op, class, Rule::All)));
                    }
                } else if let Some(f) = alu::ternary_w(*op, *ty, mods) {
                    let op = Op::W3 { f, d: self.dw(d)?, a: self.w(a)?, b: self.w(b)?, c: self.w(c)? };
                    return Ok(Some((op, class, Rule::All)));
                }
                let bits = ty.bits();
                let c_bits = if *op == ir::Ternary::MadWide { bits * 2 } else { bits };
                let args = [self.any(a, bits)?, self.any(b, bits)?, self.any(c, c_bits)?, Any::None];
                self.scalar(Scalar::Ternary { op: *op, ty: *ty, mods: *mods }, d, args, class, Rule::All)?
            }
            ir::Op::Carry { subtract, carry_in, carry_out, ty, d, a, b } => {
                let (a, b) = (self.any(a, ty.bits())?, self.any(b, ty.bits())?);
                let (d, subtract) = (self.dany(d)?, *subtract);
                let op = Op::Carry { subtract, carry_in: *carry_in, carry_out: *carry_out, d, a, b };
                (op, Class::Integer, Rule::All)
            }
            ir::Op::MadCarry { hi, carry_in, carry_out, ty, d, a, b, c } => {
                let bits = ty.bits();
                let (a, b, c) = (self.any(a, bits)?, self.any(b, bits)?, self.any(c, bits)?);
                let signed = matches!(ty, Type::S32 | Type::S64);
                let (carry_in, carry_out, d) = (*carry_in, *carry_out, self.dany(d)?);
                (Op::MadCarry { hi: *hi, signed, carry_in, carry_out, d, a, b, c }, Class::Integer, Rule::All)
            }
            ir::Op::Lop3 { d, p, a, b, c, lut } => {
                let (a, b, c) = (self.w(a)?, self.w(b)?, self.w(c)?);
                let (d, lut) = (self.dw(d)?, *lut);
                let op = match p {
                    None => Op::Lop3 { lut, d, a, b, c },
                    Some((op, p, q)) => Op::Lop3P { lut, d, p: self.pred(*p)?, op: *op, q: self.p(q)?, a, b, c },
                };
                (op, Class::Integer, Rule::Logic)
            }
            ir::Op::Shf { left, wrap, d, a, b, c } => {
                let f: alu::W3 = match (left, wrap) {
                    (true, true) => |a, b, c| map3(a, b, c, |a: u32, b: u32, n: u32| funnel(a, b, 32 - (n & 31))),
                    (false, true) => |a, b, c| map3(a, b, c, |a: u32, b: u32, n: u32| funnel(a, b, n & 31)),
                    (true, false) => |a, b, c| map3(a, b, c, |a: u32, b: u32, n: u32| funnel(a, b, 32 - n.min(32))),
                    (false, false) => |a, b, c| map3(a, b, c, |a: u32, b: u32, n: u32| funnel(a, b, n.min(32))),
                };
                let op = Op::W3 { f, d: self.dw(d)?, a: self.w(a)?, b: self.w(b)?, c: self.w(c)? };
                (op, Class::Integer, Rule::Bits(0b011))
            }
            ir::Op::Prmt { mode: PrmtMode::Default, d, a, b, selector } => {
                let f: alu::W3 = |a, b, s| map3(a, b, s, permute);
                let op = Op::W3 { f, d: self.dw(d)?, a: self.w(a)?, b: self.w(b)?, c: self.w(selector)? };
                (op, Class::Integer, Rule::Bits(0b011))
            }
            ir::Op::Prmt { mode, d, a, b, selector } => {
                let args = [self.any(a, 32)?, self.any(b, 32)?, self.any(selector, 32)?, Any::None];
                self.scalar(Scalar::Prmt(*mode), d, args, Class::Integer, Rule::Bits(0b011))?
            }
            ir::Op::Bfe { ty, d, a, pos, len } if !is_wide(*ty) => {
                let f: alu::W3 = match ty {
                    Type::S32 => |a, p, l| {
                        map3(a, p, l, |a: u32, p: u32, l: u32| {
                            scalar::bfe(Type::S32, a.into(), p.into(), l.into()) as u32
                        })
                    },
                    _ => |a, p, l| {
                        map3(a, p, l, |a: u32, p: u32, l: u32| {
                            scalar::bfe(Type::U32, a.into(), p.into(), l.into()) as u32
                        })
                    },
                };
                let op = Op::W3 { f, d: self.dw(d)?, a: self.w(a)?, b: self.w(pos)?, c: self.w(len)? };
                (op, Class::Integer, Rule::Bits(0b001))
            }
            ir::Op::Bfe { ty, d, a, pos, len } => {
                let args = [self.any(a, 64)?, self.any(pos, 32)?, self.any(len, 32)?, Any::None];
                self.scalar(Scalar::Bfe(*ty), d, args, Class::Integer, Rule::Bits(0b001))?
            }
            ir::Op::Bfi { ty, d, a, b, pos, len } => {
                let bits = ty.bits();
                let args = [self.any(a, bits)?, self.any(b, bits)?, self.any(pos, 32)?, self.any(len, 32)?];
                self.scalar(Scalar::Bfi { wide: is_wide(*ty) }, d, args, Class::Integer, Rule::Bits(0b011))?
            }
            ir::Op::Bmsk { clamp, d, a, b } => {
                let args = [self.any(a, 32)?, self.any(b, 32)?, Any::None, Any::None];
                self.scalar(Scalar::Bmsk { clamp: *clamp }, d, args, Class::Integer, Rule::All)?
            }
            ir::Op::Szext { clamp, ty, d, a, b } => {
                let args = [self.any(a, 32)?, self.any(b, 32)?, Any::None, Any::None];
                let f = Scalar::Szext { clamp: *clamp, signed: *ty == Type::S32 };
                self.scalar(f, d, args, Class::Integer, Rule::Bits(0b001))?
            }
            ir::Op::Fns { d, mask, base, offset } => {
                let args = [self.any(mask, 32)?, self.any(base, 32)?, self.any(offset, 32)?, Any::None];
                self.scalar(Scalar::Fns, d, args, Class::Integer, Rule::All)?
            }
            ir::Op::Dp4a { a_signed, b_signed, d, a, b, c } => {
                let args = [self.any(a, 32)?, self.any(b, 32)?, self.any(c, 32)?, Any::None];
                let f = Scalar::Dp4a { a_signed: *a_signed, b_signed: *b_signed };
                self.scalar(f, d, args, Class::Integer, Rule::All)?
            }
            ir::Op::Dp2a { hi, a_signed, b_signed, d, a, b, c } => {
                let args = [self.any(a, 32)?, self.any(b, 32)?, self.any(c, 32)?, Any::None];
                let f = Scalar::Dp2a { hi: *hi, a_signed: *a_signed, b_signed: *b_signed };
                self.scalar(f, d, args, Class::Integer, Rule::All)?
            }
            ir::Op::Cvt { to, from, mods, satfinite, d, a, b } => {
                return self.cvt(*to, *from, mods, *satfinite, d, a, b.as_ref()).map(Some);
            }
            ir::Op::CvtPack { to, from, d, a, b, c } => {
                let third = match c {
                    Some(c) => self.any(c, 32)?,
                    None => Any::None,
                };
                let args = [self.any(a, from.bits())?, self.any(b, from.bits())?, third, Any::None];
                let f = Scalar::CvtPack { to: *to, from: *from, third: c.is_some() };
                self.scalar(f, d, args, Class::Convert, Rule::All)?
            }
            ir::Op::Setp { cmp, combine, ty, ftz, p, q, a, b } => {
                return self.setp(*cmp, combine, *ty, *ftz, p, q, a, b).map(Some);
            }
            ir::Op::Set { cmp, combine, to, ty, ftz, d, a, b } => {
                let third = match combine {
                    Some((_, c)) => Any::P(self.p(c)?),
                    None => Any::None,
                };
                let args = [self.any(a, ty.bits())?, self.any(b, ty.bits())?, third, Any::None];
                let combine = combine.as_ref().map(|(op, _)| *op);
                let f = Scalar::Set { cmp: *cmp, combine, to: *to, ty: *ty, ftz: *ftz };
                self.scalar(f, d, args, Class::Compare, Rule::All)?
            }
            ir::Op::Selp { ty, d, a, b, p } => {
                let op = if is_wide(*ty) {
                    Op::SelX { d: self.dx(d)?, a: self.x(a)?, b: self.x(b)?, p: self.p(p)? }
                } else {
                    Op::SelW { d: self.dw(d)?, a: self.w(a)?, b: self.w(b)?, p: self.p(p)? }
                };
                (op, Class::Compare, Rule::Bits(0b011))
            }
            ir::Op::Slct { ty, sel, ftz, d, a, b, c } => {
                let args = [self.any(a, ty.bits())?, self.any(b, ty.bits())?, self.any(c, 32)?, Any::None];
                self.scalar(Scalar::Slct { sel: *sel, ftz: *ftz }, d, args, Class::Compare, Rule::Bits(0b011))?
            }
            ir::Op::Testp { class, ty, d, a } => {
                let args = [self.any(a, ty.bits())?, Any::None, Any::None, Any::None];
                self.scalar(Scalar::Testp { class: *class, ty: *ty }, d, args, Class::Compare, Rule::All)?
            }
            ir::Op::Cvta { to_space, space, ty, d, a } => return self.cvta(*to_space, *space, *ty, d, a).map(Some),
            _ => return Ok(None),
        }))
    }

    /// An instruction without a lane function.
    fn scalar(&mut self, f: Scalar, d: &Dst, args: [Any; 4], class: Class, rule: Rule) -> Lowered<(Op, Class, Rule)> {
        if !f.is_supported() {
            return Err(format!("{f:?} is not an instruction of this machine"));
        }
        let bits = self.dst_bits(d, 64);
        Ok((Op::Scalar { f: Box::new(f), bits, d: self.dany(d)?, args }, class, rule))
    }

    fn mov(&mut self, ty: Type, d: &Dst, a: &Operand) -> Lowered<(Op, Class, Rule)> {
        let rule = Rule::Bits(1);
        let class = Class::Move;
        if let Operand::Vector(parts) = a {
            let bits = ty.bits() / parts.len() as u32;
            let sources = self.sources(a, bits)?;
            let parts = &self.lists[sources.start as usize..][..sources.len as usize];
            match (parts, bits) {
                ([Any::W(low), Any::W(high)], 16) => {
                    let (a, b) = (*low, *high);
                    let f: alu::W2 = |a, b| map2(a, b, |x: u32, y: u32| x & 0xffff | y << 16);
                    return Ok((Op::W2 { f, d: self.dw(d)?, a, b }, class, Rule::Bits(0b11)));
                }
                ([Any::W(low), Any::W(high)], 32) => {
                    let (a, b) = (*low, *high);
                    let f: alu::Xww = |a, b| map2(a, b, |x: u32, y: u32| u64::from(y) << 32 | u64::from(x));
                    return Ok((Op::Xww { f, d: self.dx(d)?, a, b }, class, Rule::Bits(0b11)));
                }
                _ => {}
            }
            return Ok((Op::Pack { bits, d: self.dany(d)?, sources }, class, rule));
        }
        if let Dst::Vector(parts) = d {
            let bits = ty.bits() / parts.len() as u32;
            let a = self.any(a, ty.bits())?;
            match (a, bits, &parts[..]) {
                (Any::W(a), 16, [low, high]) => {
                    return Ok((Op::Split16 { low: self.dw(low)?, high: self.dw(high)?, a }, class, rule));
                }
                (Any::X(a), 32, [low, high]) => {
                    return Ok((Op::Split32 { low: self.dw(low)?, high: self.dw(high)?, a }, class, rule));
                }
                _ => {}
            }
            return Ok((Op::Unpack { bits, a, destinations: self.destinations(d)? }, class, rule));
        }
        if let Operand::Special(special) = a {
            use Special::*;
            if matches!(
                special,
                Clock | ClockHi | Clock64 | GlobalTimer | GlobalTimerLo | GlobalTimerHi | IsExplicitCluster
            ) {
                return Ok((Op::ReadSpecial { special: *special, d: self.dany(d)? }, class, rule));
            }
        }
        let op = match ty {
            Type::Pred => Op::Pred { op: BoolOp::And, d: self.dp(d)?, a: self.p(a)?, b: ALWAYS },
            Type::B128 => match (self.any(a, 128)?, self.dany(d)?) {
                (Any::X(a), Any::X(d)) => Op::Mov128 { d, a },
                _ => return Err("mov.b128 between 128-bit registers".to_owned()),
            },
            _ if is_wide(ty) => Op::X1 { f: |a| *a, d: self.dx(d)?, a: self.x(a)? },
            _ => Op::W1 { f: |a| *a, d: self.dw(d)?, a: self.w(a)? },
        };
        Ok((op, class, rule))
    }

    fn unary(&mut self, op: Unary, ty: Type, mods: &FloatMods, d: &Dst, a: &Operand) -> Lowered<(Op, Class, Rule)> {
        if ty == Type::Pred {
            // `not.pred`
            let source = self.p(a)?;
            let op = Op::Pred { op: BoolOp::And, d: self.dp(d)?, a: source ^ NEGATE, b: ALWAYS };
            return Ok((op, Class::Compare, Rule::Logic));
        }
        let class = match op {
            Unary::Rcp
            | Unary::Sqrt
            | Unary::Rsqrt
            | Unary::Ex2
            | Unary::Lg2
            | Unary::Sin
            | Unary::Cos
            | Unary::Tanh => Class::Special,
            _ => class_of(ty),
        };
        if is_wide(ty) {
            if let Some((f, rule)) = alu::unary_x(op, ty) {
                return Ok((Op::X1 { f, d: self.dx(d)?, a: self.x(a)? }, class, rule));
            }
        } else if let Some((f, rule)) = alu::unary_w(op, ty, mods) {
            return Ok((Op::W1 { f, d: self.dw(d)?, a: self.w(a)? }, class, rule));
        }
        let args = [self.any(a, ty.bits())?, Any::None, Any::None, Any::None];
        self.scalar(Scalar::Unary { op, ty, mods: *mods }, d, args, class, Rule::All)
    }

    fn binary(
        &mut self,
        op: Binary,
        ty: Type,
        mods: &FloatMods,
        d: &Dst,
        a: &Operand,
        b: &Operand,
    ) -> Lowered<(Op, Class, Rule)> {
        let class = class_of(ty);
        if ty == Type::Pred {
            let op = match op {
                Binary::And => BoolOp::And,
                Binary::Or => BoolOp::Or,
                Binary::Xor => BoolOp::Xor,
                _ => return Err(format!("{op:?} of predicates")),
            };
            let op = Op::Pred { op, d: self.dp(d)?, a: self.p(a)?, b: self.p(b)? };
            return Ok((op, Class::Compare, Rule::Logic));
        }
        let is_shift = matches!(op, Binary::Shl | Binary::Shr);
        if is_wide(ty) {
            if is_shift && let Some(f) = alu::shift_x(op, ty) {
                let op = Op::Xxw { f, d: self.dx(d)?, a: self.x(a)?, b: self.w(b)? };
                return Ok((op, class, Rule::Bits(1)));
            }
            if let Some((f, rule)) = alu::binary_x(op, ty, mods) {
                return Ok((Op::X2 { f, d: self.dx(d)?, a: self.x(a)?, b: self.x(b)? }, class, rule));
            }
        } else if op == Binary::MulWide && ty.bits() == 32 {
            if let Some(f) = alu::mul_wide(ty) {
                return Ok((Op::Xww { f, d: self.dx(d)?, a: self.w(a)?, b: self.w(b)? }, class, Rule::All));
            }
        } else if let Some((f, rule)) = alu::binary_w(op, ty, mods) {
            return Ok((Op::W2 { f, d: self.dw(d)?, a: self.w(a)?, b: self.w(b)? }, class, rule));
        }
        let b_bits = if is_shift { 32 } else { ty.bits() };
        let args = [self.any(a, ty.bits())?, self.any(b, b_bits)?, Any::None, Any::None];
        self.scalar(Scalar::Binary { op, ty, mods: *mods }, d, args, class, Rule::All)
    }

    #[allow(clippy::too_many_arguments)]
    fn cvt(
        &mut self,
        to: Type,
        from: Type,
        mods: &FloatMods,
        satfinite: bool,
        d: &Dst,
        a: &Operand,
        b: Option<&Operand>,
    ) -> Lowered<(Op, Class, Rule)> {
        let class = Class::Convert;
        let register_bits = self.dst_bits(d, to.bits().max(16));
        if alu::is_integer(to) && alu::is_integer(from) && !mods.sat && b.is_none() {
            let rule = Rule::Bits(1);
            // A source register may be wider than the source type.
            let source = self.any(a, from.bits())?;
            match (alu::cvt_int(from, to, register_bits), source) {
                (Some(CvtInt::W(f)), Any::W(a)) => return Ok((Op::W1 { f, d: self.dw(d)?, a }, class, rule)),
                (Some(CvtInt::Xw(f)), Any::W(a)) => return Ok((Op::Xw { f, d: self.dx(d)?, a }, class, rule)),
                (Some(CvtInt::Wx(f)), Any::X(a)) => return Ok((Op::Wx { f, d: self.dw(d)?, a }, class, rule)),
                _ => {}
            }
        }
        if let Some(f) = alu_float::cvt(to, from, mods, satfinite, b.is_some()) {
            match (f, b) {
                (alu_float::CvtFloat::W1(f), None) => {
                    return Ok((Op::W1 { f, d: self.dw(d)?, a: self.w(a)? }, class, Rule::All));
                }
                (alu_float::CvtFloat::W2(f), Some(b)) => {
                    return Ok((Op::W2 { f, d: self.dw(d)?, a: self.w(a)?, b: self.w(b)? }, class, Rule::All));
                }
                _ => {}
            }
        }
        let second = match b {
            Some(b) => self.any(b, from.bits())?,
            None => Any::None,
        };
        let args = [self.any(a, from.bits())?, second, Any::None, Any::None];
        self.scalar(Scalar::Cvt { to, from, mods: *mods, satfinite, pair: b.is_some() }, d, args, class, Rule::All)
    }

    #[allow(clippy::too_many_arguments)]
    fn setp(
        &mut self,
        cmp: Cmp,
        combine: &Option<(BoolOp, Operand)>,
        ty: Type,
        ftz: bool,
        p: &Dst,
        q: &Option<Dst>,
        a: &Operand,
        b: &Operand,
    ) -> Lowered<(Op, Class, Rule)> {
        let combine = match combine {
            Some((op, c)) => Some((*op, self.p(c)?)),
            None => None,
        };
        let class = Class::Compare;
        let (p, q) = (self.dp(p)?, self.dp_opt(q)?);
        if is_wide(ty) {
            if let Some(f) = alu::test_x(cmp, ty) {
                return Ok((Op::TestX { f, p, q, a: self.x(a)?, b: self.x(b)?, combine }, class, Rule::All));
            }
        } else if let Some(f) = alu::test_w(cmp, ty, ftz) {
            return Ok((Op::TestW { f, p, q, a: self.w(a)?, b: self.w(b)?, combine }, class, Rule::All));
        }
        let args = [self.any(a, ty.bits())?, self.any(b, ty.bits())?];
        let test = |upper| Box::new(Scalar::Test { cmp, ty, ftz, upper });
        let second = matches!(ty, Type::F16x2 | Type::BF16x2) && q != NONE;
        let op = Op::TestScalar { f: test(false), g: second.then(|| test(true)), p, q, args, combine };
        Ok((op, class, Rule::All))
    }

    fn cvta(&mut self, to_space: bool, space: Space, ty: Type, d: &Dst, a: &Operand) -> Lowered<(Op, Class, Rule)> {
        if !is_wide(ty) {
            return Err("cvta of 32-bit addresses (the module must have 64-bit addresses)".to_owned());
        }
        let window = match space {
            Space::Generic | Space::Global => 0,
            Space::Shared | Space::SharedCluster => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Const => CONST_WINDOW,
            Space::Param => PARAM_WINDOW,
        };
        let window = if to_space { window.wrapping_neg() } else { window };
        let b = self.constant64(window);
        let f: alu::X2 = |a, b| map2(a, b, |x: u64, y: u64| x.wrapping_add(y));
        Ok((Op::X2 { f, d: self.dx(d)?, a: self.x(a)?, b }, Class::Integer, Rule::All))
    }
}

/// `(b:a) >> n`, low word, n in 0..=32.
#[inline(always)]
fn funnel(a: u32, b: u32, n: u32) -> u32 {
    ((u64::from(b) << 32 | u64::from(a)) >> n) as u32
}

/// `prmt.b32` in its default mode.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut word = 0;
    for i in 0..4 {
        let nibble = selector >> (i * 4) & 0xf;
        let byte = (bytes >> ((nibble & 7) * 8)) as u8;
        let value = if nibble & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
        word |= u32::from(value) << (i * 8);
    }
    word
}

//! Poison: which bits of registers hold what nothing wrote, carried along by the register instructions.
//!
//! Every function here is called before the instruction's result is written, because the result may depend on the bits
//! that are about to be replaced. A register without poison is marked clean, and an instruction on clean registers costs
//! a look at the marks.

use super::alu;
use super::lanes::{L32, L64, Lanes, map1, map2, map3};
use super::program::{Addr, Any, Base, CONST, Ins, Op, Program, Rule, Slot};
use super::run::widen;
use super::warp::Warp;

#[inline(always)]
fn dirty32(warp: &Warp, slot: Slot) -> bool {
    slot & CONST == 0 && warp.shadow.dirty32[slot as usize]
}

#[inline(always)]
fn dirty64(warp: &Warp, slot: Slot) -> bool {
    slot & CONST == 0 && warp.shadow.dirty64[slot as usize]
}

/// Poison of a 32-bit source.
#[inline]
pub(crate) fn of32(warp: &Warp, slot: Slot) -> L32 {
    if dirty32(warp, slot) { warp.shadow.p32[slot as usize] } else { L32::splat(0) }
}

/// Poison of a 64-bit source.
#[inline]
pub(crate) fn of64(warp: &Warp, slot: Slot) -> L64 {
    if dirty64(warp, slot) { warp.shadow.p64[slot as usize] } else { L64::splat(0) }
}

/// Poison of any source, widened.
pub(crate) fn of(warp: &Warp, source: Any) -> L64 {
    match source {
        Any::W(slot) => {
            let p = of32(warp, slot);
            map1(&p, u64::from)
        }
        Any::X(slot) => of64(warp, slot),
        Any::P(p) => {
            let bits = warp.pp(p);
            Lanes(std::array::from_fn(|i| u64::from(bits >> i & 1)))
        }
        Any::None => L64::splat(0),
    }
}

/// Lanes in which any bit of a source is poisoned.
#[inline]
pub(crate) fn lanes_with(warp: &Warp, source: Any) -> u32 {
    match source {
        Any::W(slot) if !dirty32(warp, slot) => 0,
        Any::X(slot) if !dirty64(warp, slot) => 0,
        Any::W(slot) => nonzero(&warp.shadow.p32[slot as usize].0),
        Any::X(slot) => nonzero(&warp.shadow.p64[slot as usize].0),
        Any::P(p) => warp.pp(p),
        Any::None => 0,
    }
}

fn nonzero<T: PartialEq + Default>(values: &[T; 32]) -> u32 {
    let zero = T::default();
    (0..32).fold(0, |mask, i| mask | u32::from(values[i] != zero) << i)
}

/// Replaces the poison of a 32-bit register in the lanes of `mask`.
pub(crate) fn set32(warp: &mut Warp, d: Slot, poison: &L32, mask: u32) {
    let shadow = &mut warp.shadow.p32[d as usize];
    shadow.blend(poison, mask);
    warp.shadow.dirty32[d as usize] = shadow.0.iter().fold(0, |a, x| a | x) != 0;
}

/// Replaces the poison of a 64-bit register in the lanes of `mask`.
pub(crate) fn set64(warp: &mut Warp, d: Slot, poison: &L64, mask: u32) {
    let shadow = &mut warp.shadow.p64[d as usize];
    shadow.blend(poison, mask);
    warp.shadow.dirty64[d as usize] = shadow.0.iter().fold(0, |a, x| a | x) != 0;
}

/// Replaces the poison of any destination.
pub(crate) fn set(warp: &mut Warp, d: Any, poison: &L64, mask: u32) {
    match d {
        Any::W(slot) => set32(warp, slot, &map1(poison, |x: u64| x as u32), mask),
        Any::X(slot) => set64(warp, slot, poison, mask),
        Any::P(slot) => {
            let bits = nonzero(&poison.0);
            warp.set_pp(slot, bits, mask);
        }
        Any::None => {}
    }
}

/// A destination was written with clean values in the lanes of `mask`.
#[inline]
pub(crate) fn clean(warp: &mut Warp, d: Any, mask: u32) {
    match d {
        Any::W(slot) if dirty32(warp, slot) => set32(warp, slot, &L32::splat(0), mask),
        Any::X(slot) if dirty64(warp, slot) => set64(warp, slot, &L64::splat(0), mask),
        Any::P(slot) => warp.set_pp(slot, 0, mask),
        _ => {}
    }
}

/// Whether an address depends on poison in any lane of `mask`.
#[inline(always)]
pub(crate) fn steers(warp: &Warp, addr: Addr, mask: u32) -> bool {
    match addr.base {
        Base::W(slot) => lanes_with(warp, Any::W(slot)) & mask != 0,
        Base::X(slot) => lanes_with(warp, Any::X(slot)) & mask != 0,
        Base::Absolute => false,
    }
}

/// All bits in the lanes where any bit of `lanes` is set.
fn spread64(lanes: u32) -> L64 {
    Lanes(std::array::from_fn(|i| u64::from(lanes >> i & 1).wrapping_neg()))
}

fn spread32(lanes: u32) -> L32 {
    Lanes(std::array::from_fn(|i| (lanes >> i & 1).wrapping_neg()))
}

/// Any poison in any source poisons all of the destination.
#[inline]
pub(crate) fn any(warp: &mut Warp, _program: &Program, sources: &[Any], d: Any, mask: u32) {
    let lanes = sources.iter().fold(0, |m, s| m | lanes_with(warp, *s));
    if lanes & mask != 0 { set(warp, d, &spread64(lanes), mask) } else { clean(warp, d, mask) }
}

#[inline(always)]
pub(crate) fn w1(warp: &mut Warp, program: &Program, rule: Rule, f: alu::W1, d: Slot, a: Slot, mask: u32) {
    if dirty32(warp, a) || dirty32(warp, d) {
        w1_slow(warp, program, rule, f, d, a, mask);
    }
}

#[cold]
fn w1_slow(warp: &mut Warp, program: &Program, rule: Rule, f: alu::W1, d: Slot, a: Slot, mask: u32) {
    match rule {
        // Applied to the poison itself; `not` inverts, which poison does not.
        Rule::Bits(_) => {
            let p = of32(warp, a);
            let zero = f(&L32::splat(0));
            let moved = f(&p);
            let poison = map2(&moved, &zero, |x, y| x ^ y);
            set32(warp, d, &poison, mask);
        }
        _ => any(warp, program, &[Any::W(a)], Any::W(d), mask),
    }
}

#[inline(always)]
pub(crate) fn w2(warp: &mut Warp, program: &Program, rule: Rule, f: alu::W2, d: Slot, s: [Slot; 2], mask: u32) {
    if dirty32(warp, s[0]) || dirty32(warp, s[1]) || dirty32(warp, d) {
        w2_slow(warp, program, rule, f, d, s, mask);
    }
}

#[cold]
fn w2_slow(warp: &mut Warp, program: &Program, rule: Rule, f: alu::W2, d: Slot, [a, b]: [Slot; 2], mask: u32) {
    let (pa, pb) = (of32(warp, a), of32(warp, b));
    match rule {
        Rule::Logic => {
            let (va, vb) = (*warp.w(program, a), *warp.w(program, b));
            let mut ones = L32::splat(u32::MAX);
            let mut zeros = L32::splat(0);
            for choice in 0..4 {
                let x = map2(&va, &pa, |v, p| if choice & 1 == 1 { v | p } else { v & !p });
                let y = map2(&vb, &pb, |v, p| if choice & 2 == 2 { v | p } else { v & !p });
                let r = f(&x, &y);
                ones = map2(&ones, &r, |o, r| o & r);
                zeros = map2(&zeros, &r, |z, r| z | r);
            }
            set32(warp, d, &map2(&ones, &zeros, |o, z| o ^ z), mask);
        }
        Rule::Bits(1) => {
            let steer = nonzero(&pb.0);
            let moved = f(&pa, warp.w(program, b));
            set32(warp, d, &map2(&moved, &spread32(steer), |x, y| x | y), mask);
        }
        // Both are data: two halves side by side.
        Rule::Bits(_) => {
            let moved = f(&pa, &pb);
            set32(warp, d, &moved, mask);
        }
        _ => any(warp, program, &[Any::W(a), Any::W(b)], Any::W(d), mask),
    }
}

#[inline(always)]
pub(crate) fn w3(warp: &mut Warp, program: &Program, rule: Rule, f: alu::W3, d: Slot, s: [Slot; 3], mask: u32) {
    if s.iter().any(|s| dirty32(warp, *s)) || dirty32(warp, d) {
        w3_slow(warp, program, rule, f, d, s, mask);
    }
}

#[cold]
fn w3_slow(warp: &mut Warp, program: &Program, rule: Rule, f: alu::W3, d: Slot, s: [Slot; 3], mask: u32) {
    let [a, b, c] = s;
    match rule {
        Rule::Bits(data) => {
            // Data operands are replaced by their poison, steering operands keep their values.
            let pick = |i: usize| if data >> i & 1 == 1 { of32(warp, s[i]) } else { *warp.w(program, s[i]) };
            let moved = f(&pick(0), &pick(1), &pick(2));
            let steer = (0..3).filter(|i| data >> i & 1 == 0).fold(0, |m, i| m | nonzero(&of32(warp, s[i]).0));
            set32(warp, d, &map2(&moved, &spread32(steer), |x, y| x | y), mask);
        }
        _ => any(warp, program, &[Any::W(a), Any::W(b), Any::W(c)], Any::W(d), mask),
    }
}

#[inline(always)]
pub(crate) fn x1(warp: &mut Warp, program: &Program, rule: Rule, f: alu::X1, d: Slot, a: Slot, mask: u32) {
    if dirty64(warp, a) || dirty64(warp, d) {
        match rule {
            Rule::Bits(_) => {
                let zero = f(&L64::splat(0));
                let moved = f(&of64(warp, a));
                set64(warp, d, &map2(&moved, &zero, |x, y| x ^ y), mask);
            }
            _ => any(warp, program, &[Any::X(a)], Any::X(d), mask),
        }
    }
}

#[inline(always)]
pub(crate) fn x2(warp: &mut Warp, program: &Program, rule: Rule, f: alu::X2, d: Slot, s: [Slot; 2], mask: u32) {
    if dirty64(warp, s[0]) || dirty64(warp, s[1]) || dirty64(warp, d) {
        x2_slow(warp, program, rule, f, d, s, mask);
    }
}

#[cold]
fn x2_slow(warp: &mut Warp, program: &Program, rule: Rule, f: alu::X2, d: Slot, [a, b]: [Slot; 2], mask: u32) {
    if rule != Rule::Logic {
        return any(warp, program, &[Any::X(a), Any::X(b)], Any::X(d), mask);
    }
    let (pa, pb) = (of64(warp, a), of64(warp, b));
    let (va, vb) = (*warp.x(program, a), *warp.x(program, b));
    let mut ones = L64::splat(u64::MAX);
    let mut zeros = L64::splat(0);
    for choice in 0..4 {
        let x = map2(&va, &pa, |v, p| if choice & 1 == 1 { v | p } else { v & !p });
        let y = map2(&vb, &pb, |v, p| if choice & 2 == 2 { v | p } else { v & !p });
        let r = f(&x, &y);
        ones = map2(&ones, &r, |o, r| o & r);
        zeros = map2(&zeros, &r, |z, r| z | r);
    }
    set64(warp, d, &map2(&ones, &zeros, |o, z| o ^ z), mask);
}

#[inline(always)]
pub(crate) fn xxw(warp: &mut Warp, program: &Program, f: alu::Xxw, d: Slot, a: Slot, b: Slot, mask: u32) {
    if dirty64(warp, a) || dirty32(warp, b) || dirty64(warp, d) {
        let steer = nonzero(&of32(warp, b).0);
        let moved = f(&of64(warp, a), warp.w(program, b));
        set64(warp, d, &map2(&moved, &spread64(steer), |x, y| x | y), mask);
    }
}

#[allow(clippy::too_many_arguments)]
#[inline(always)]
pub(crate) fn xww(warp: &mut Warp, program: &Program, rule: Rule, f: alu::Xww, d: Slot, a: Slot, b: Slot, mask: u32) {
    if dirty32(warp, a) || dirty32(warp, b) || dirty64(warp, d) {
        match rule {
            // Two halves side by side.
            Rule::Bits(_) => {
                let moved = f(&of32(warp, a), &of32(warp, b));
                set64(warp, d, &moved, mask);
            }
            _ => any(warp, program, &[Any::W(a), Any::W(b)], Any::X(d), mask),
        }
    }
}

#[inline(always)]
pub(crate) fn split16(warp: &mut Warp, ins: &Ins, mask: u32) {
    let Op::Split16 { low, high, a } = ins.op else { return };
    if dirty32(warp, a) || dirty32(warp, low) || dirty32(warp, high) {
        let p = of32(warp, a);
        set32(warp, low, &map1(&p, |x: u32| x & 0xffff), mask);
        set32(warp, high, &map1(&p, |x: u32| x >> 16), mask);
    }
}

#[inline(always)]
pub(crate) fn split32(warp: &mut Warp, ins: &Ins, mask: u32) {
    let Op::Split32 { low, high, a } = ins.op else { return };
    if dirty64(warp, a) || dirty32(warp, low) || dirty32(warp, high) {
        let p = of64(warp, a);
        set32(warp, low, &map1(&p, |x: u64| x as u32), mask);
        set32(warp, high, &map1(&p, |x: u64| (x >> 32) as u32), mask);
    }
}

#[inline(always)]
pub(crate) fn xw(warp: &mut Warp, f: alu::Xw, d: Slot, a: Slot, mask: u32) {
    if dirty32(warp, a) || dirty64(warp, d) {
        let moved = f(&of32(warp, a));
        set64(warp, d, &moved, mask);
    }
}

#[inline(always)]
pub(crate) fn wx(warp: &mut Warp, f: alu::Wx, d: Slot, a: Slot, mask: u32) {
    if dirty64(warp, a) || dirty32(warp, d) {
        let moved = f(&of64(warp, a));
        set32(warp, d, &moved, mask);
    }
}

#[inline(always)]
pub(crate) fn lop3(warp: &mut Warp, program: &Program, lut: u8, d: Slot, s: [Slot; 3], mask: u32) {
    if s.iter().any(|s| dirty32(warp, *s)) || dirty32(warp, d) {
        let poison = lop3_poison(warp, program, lut, s);
        set32(warp, d, &poison, mask);
    }
}

/// Bits of a three-input function that depend on poisoned bits.
#[cold]
pub(crate) fn lop3_poison(warp: &Warp, program: &Program, lut: u8, s: [Slot; 3]) -> L32 {
    let p = s.map(|s| of32(warp, s));
    let v = s.map(|s| *warp.w(program, s));
    let mut ones = L32::splat(u32::MAX);
    let mut zeros = L32::splat(0);
    for choice in 0..8 {
        let pick = |i: usize| map2(&v[i], &p[i], |v, p| if choice >> i & 1 == 1 { v | p } else { v & !p });
        let r = map3(&pick(0), &pick(1), &pick(2), |a, b, c| super::run::lop3(lut, a, b, c));
        ones = map2(&ones, &r, |o, r| o & r);
        zeros = map2(&zeros, &r, |z, r| z | r);
    }
    map2(&ones, &zeros, |o, z| o ^ z)
}

#[inline(always)]
pub(crate) fn test(warp: &mut Warp, sources: [Any; 2], p: u32, q: u32, with: Option<u32>, mask: u32) {
    let mut lanes = lanes_with(warp, sources[0]) | lanes_with(warp, sources[1]);
    if let Some(c) = with {
        lanes |= warp.pp(c);
    }
    warp.set_pp(p, lanes, mask);
    warp.set_pp(q, lanes, mask);
}

#[inline(always)]
pub(crate) fn select_w(warp: &mut Warp, d: Slot, a: Slot, b: Slot, p: u32, mask: u32) {
    if dirty32(warp, a) || dirty32(warp, b) || dirty32(warp, d) || warp.pp(p) & mask != 0 {
        let mut poison = of32(warp, b);
        poison.blend(&of32(warp, a), warp.p(p));
        let steer = spread32(warp.pp(p));
        set32(warp, d, &map2(&poison, &steer, |x, y| x | y), mask);
    }
}

#[inline(always)]
pub(crate) fn select_x(warp: &mut Warp, d: Slot, a: Slot, b: Slot, p: u32, mask: u32) {
    if dirty64(warp, a) || dirty64(warp, b) || dirty64(warp, d) || warp.pp(p) & mask != 0 {
        let mut poison = of64(warp, b);
        poison.blend(&of64(warp, a), warp.p(p));
        let steer = spread64(warp.pp(p));
        set64(warp, d, &map2(&poison, &steer, |x, y| x | y), mask);
    }
}

/// One-lane-at-a-time instructions: the rule decides, `f` is the instruction.
pub(crate) fn scalar(
    warp: &mut Warp,
    program: &Program,
    rule: Rule,
    f: impl Fn([u64; 4]) -> u64,
    args: [Any; 4],
    d: Any,
    mask: u32,
) {
    let Rule::Bits(data) = rule else {
        return any(warp, program, &args, d, mask);
    };
    if args.iter().all(|a| lanes_with(warp, *a) == 0) {
        return clean(warp, d, mask);
    }
    let sources = args.map(|a| (of(warp, a), widen(warp, program, a)));
    let mut poison = L64::splat(0);
    for lane in 0..32 {
        let steered = (0..4).any(|i| data >> i & 1 == 0 && sources[i].0.0[lane] != 0);
        let picked: [u64; 4] =
            std::array::from_fn(|i| if data >> i & 1 == 1 { sources[i].0.0[lane] } else { sources[i].1.0[lane] });
        poison.0[lane] = if steered { u64::MAX } else { f(picked) };
    }
    set(warp, d, &poison, mask);
}

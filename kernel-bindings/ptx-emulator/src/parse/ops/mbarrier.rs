//! `mbarrier`.

use super::asynch::barrier_space;
use crate::ir::{Dst, Mbarrier, Op, Ordering, Scope, Space, Type::*};
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::Inst;
use crate::parse::target::sm;

/// Largest expected arrival count.
const MAX_COUNT: u64 = (1 << 20) - 1;

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    inst.need(f, sm(80, 7, 0))?;
    #[derive(Clone, Copy)]
    enum Verb {
        Init,
        Inval,
        Arrive,
        Drop,
        Expect,
        Complete,
        TestWait,
        TryWait,
        Pending,
    }
    let verbs = [
        ("init", Verb::Init),
        ("inval", Verb::Inval),
        ("arrive", Verb::Arrive),
        ("arrive_drop", Verb::Drop),
        ("complete_tx", Verb::Complete),
        ("test_wait", Verb::TestWait),
        ("try_wait", Verb::TryWait),
        ("pending_count", Verb::Pending),
    ];
    // `expect_tx` is also a modifier of `arrive`, so it counts as the verb only when no other is there.
    let verb = match inst.mods.take_of(&verbs) {
        Some(verb) => verb,
        None if inst.mods.take("expect_tx") => Verb::Expect,
        None => inst.must(f, &verbs)?,
    };
    match verb {
        Verb::Init => {
            let space = barrier_space(inst);
            inst.ty_of(f, &[B64])?;
            inst.exactly(f, 2)?;
            let addr = f.addr(inst, 0, space)?;
            let count = f.src(inst, 1, U32)?;
            if let crate::ir::Operand::Imm(n) = count
                && !(1..=MAX_COUNT).contains(&n)
            {
                return Err(inst.syntax(f, &format!("operand 2: expected a count from 1 to {MAX_COUNT}, got {n}")));
            }
            Ok(Op::Mbarrier(Mbarrier::Init { addr, count, space }))
        }
        Verb::Inval => {
            let space = barrier_space(inst);
            inst.ty_of(f, &[B64])?;
            inst.exactly(f, 1)?;
            Ok(Op::Mbarrier(Mbarrier::Inval { addr: f.addr(inst, 0, space)?, space }))
        }
        Verb::Arrive => arrive(f, inst, false),
        Verb::Drop => arrive(f, inst, true),
        Verb::Expect => transaction(f, inst, false),
        Verb::Complete => transaction(f, inst, true),
        Verb::TestWait => wait(f, inst, false),
        Verb::TryWait => wait(f, inst, true),
        Verb::Pending => {
            inst.ty_of(f, &[B64])?;
            inst.exactly(f, 2)?;
            Ok(Op::Mbarrier(Mbarrier::PendingCount { d: f.dst(inst, 0, U32)?, state: f.src(inst, 1, U64)? }))
        }
    }
}

const SCOPES: [(&str, Scope); 2] = [("cta", Scope::Cta), ("cluster", Scope::Cluster)];

/// Ordering and scope, which stand together; by default `strong` at the scope of the block.
fn order<'a>(
    f: &Function<'_, 'a>,
    inst: &mut Inst<'a>,
    strong: (&str, Ordering),
) -> Result<(Ordering, Scope), ParseError> {
    let ordering = inst.mods.take_of(&[strong, ("relaxed", Ordering::Relaxed)]);
    let scope = inst.mods.take_of(&SCOPES);
    match ordering {
        Some(Ordering::Relaxed) => inst.need(f, sm(90, 8, 6))?,
        Some(_) => inst.need(f, sm(80, 8, 0))?,
        None => {}
    }
    if scope == Some(Scope::Cluster) {
        inst.need(f, sm(90, 8, 0))?;
    }
    if ordering.is_some() != scope.is_some() {
        return Err(inst.syntax(f, "an ordering and a scope, .cta or .cluster, stand together or not at all"));
    }
    Ok((ordering.unwrap_or(strong.1), scope.unwrap_or(Scope::Cta)))
}

fn cluster_space<'a>(f: &Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Space, ParseError> {
    if inst.mods.take("shared::cluster") {
        inst.need(f, sm(90, 8, 0))?;
        return Ok(Space::SharedCluster);
    }
    Ok(barrier_space(inst))
}

fn arrive<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, drop: bool) -> Result<Op, ParseError> {
    let expect_tx = inst.mods.take("expect_tx");
    if expect_tx {
        inst.need(f, sm(90, 8, 0))?;
    }
    let no_complete = inst.mods.take("noComplete");
    let (ordering, scope) = order(f, inst, ("release", Ordering::Release))?;
    let space = cluster_space(f, inst)?;
    inst.ty_of(f, &[B64])?;
    if expect_tx && no_complete {
        return Err(inst.syntax(f, ".expect_tx and .noComplete exclude each other"));
    }
    inst.between(f, 1, 3)?;
    // The state comes first where there is one: an address is in brackets, a state is not.
    let has_state = !matches!(inst.args[0].kind, crate::parse::cursor::RawKind::Address { .. });
    let at = usize::from(has_state);
    let counted = inst.args.len() > at + 1;
    inst.exactly(f, at + 1 + usize::from(counted || expect_tx || no_complete))?;
    let state = if has_state { Some(f.dst_or_sink(inst, 0, U64)?) } else { None };
    if state.is_none() {
        return Err(inst.syntax(f, "operand 1: expected a register or `_` for the state"));
    }
    if space == Space::SharedCluster && state != Some(Dst::Sink) {
        return Err(inst.syntax(f, "a barrier of another block returns no state: expected `_`"));
    }
    if matches!(state, Some(Dst::Sink)) {
        // `_` as state came with PTX 7.1.
        inst.need(f, sm(80, 7, 1))?;
    }
    if counted && !expect_tx && !no_complete {
        inst.need(f, sm(90, 7, 8))?;
    }
    let addr = f.addr(inst, at, space)?;
    let count = if counted { Some(f.src(inst, at + 1, U32)?) } else { None };
    Ok(Op::Mbarrier(Mbarrier::Arrive { state, addr, count, expect_tx, no_complete, drop, ordering, scope, space }))
}

fn transaction<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, complete: bool) -> Result<Op, ParseError> {
    inst.need(f, sm(90, 8, 0))?;
    if inst.mods.take("relaxed") != inst.mods.take_of(&SCOPES).is_some() {
        return Err(inst.syntax(f, ".relaxed and a scope, .cta or .cluster, stand together or not at all"));
    }
    let space = cluster_space(f, inst)?;
    inst.ty_of(f, &[B64])?;
    inst.exactly(f, 2)?;
    let addr = f.addr(inst, 0, space)?;
    Ok(Op::Mbarrier(Mbarrier::Tx { addr, bytes: f.src(inst, 1, U32)?, complete, space }))
}

fn wait<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, may_suspend: bool) -> Result<Op, ParseError> {
    let parity = inst.mods.take("parity");
    if may_suspend {
        inst.need(f, sm(90, 7, 8))?;
    } else if parity {
        inst.need(f, sm(80, 7, 1))?;
    }
    let (ordering, scope) = order(f, inst, ("acquire", Ordering::Acquire))?;
    let space = barrier_space(inst);
    inst.ty_of(f, &[B64])?;
    inst.between(f, 3, 3 + usize::from(may_suspend))?;
    let done = f.dst(inst, 0, Pred)?;
    let addr = f.addr(inst, 1, space)?;
    let state_or_parity = f.src(inst, 2, if parity { U32 } else { U64 })?;
    let hint = if inst.args.len() == 4 { Some(f.src(inst, 3, U32)?) } else { None };
    let wait = Mbarrier::Wait { done, addr, state_or_parity, parity, may_suspend, hint, ordering, scope, space };
    Ok(Op::Mbarrier(wait))
}

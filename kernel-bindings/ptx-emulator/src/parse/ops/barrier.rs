//! Barriers and fences.

use super::SCOPES;
use crate::ir::{BarRed, Fence, Op, Operand, Ordering, Scope, Space, Type::*};
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::Inst;
use crate::parse::target::sm;

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    match inst.name {
        "bar" if inst.mods.take("warp") => {
            inst.must_word(f, "sync")?;
            inst.exactly(f, 1)?;
            Ok(Op::WarpSync { mask: f.src(inst, 0, U32)? })
        }
        "barrier" if inst.mods.take("cluster") => cluster(f, inst),
        "bar" | "barrier" => block(f, inst),
        "fence" => fence(f, inst),
        _ => {
            if inst.mods.take("proxy") {
                return proxy(f, inst);
            }
            let scope = inst.must(f, &[("cta", Scope::Cta), ("gl", Scope::Gpu), ("sys", Scope::Sys)])?;
            inst.exactly(f, 0)?;
            Ok(Op::Fence(Fence::Sc(scope)))
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Verb {
    Sync,
    Arrive,
    Red,
}

fn block<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    inst.mods.take("cta");
    let verb = inst.must(f, &[("sync", Verb::Sync), ("arrive", Verb::Arrive), ("red", Verb::Red)])?;
    let aligned = if inst.name == "bar" { true } else { inst.mods.take("aligned") };
    match verb {
        Verb::Sync => {
            inst.between(f, 1, 2)?;
            let id = barrier_id(f, inst, 0)?;
            let threads = if inst.args.len() == 2 { Some(thread_count(f, inst, 1)?) } else { None };
            Ok(Op::BarSync { id, threads, aligned })
        }
        Verb::Arrive => {
            inst.exactly(f, 2)?;
            Ok(Op::BarArrive { id: barrier_id(f, inst, 0)?, threads: thread_count(f, inst, 1)?, aligned })
        }
        Verb::Red => {
            let op = inst.must(f, &[("popc", BarRed::Popc), ("and", BarRed::And), ("or", BarRed::Or)])?;
            let ty = inst.ty_of(f, if op == BarRed::Popc { &[U32] } else { &[Pred] })?;
            inst.between(f, 3, 4)?;
            let d = f.dst(inst, 0, ty)?;
            let id = barrier_id(f, inst, 1)?;
            let last = inst.args.len() - 1;
            let threads = if last == 3 { Some(thread_count(f, inst, 2)?) } else { None };
            Ok(Op::BarRed { id, threads, aligned, op, d, p: f.pred_src(inst, last)? })
        }
    }
}

fn barrier_id<'a>(f: &mut Function<'_, 'a>, inst: &Inst<'a>, i: usize) -> Result<Operand, ParseError> {
    let id = f.src(inst, i, U32)?;
    if let Operand::Imm(n) = id
        && n > 15
    {
        return Err(inst.syntax(f, &format!("operand {}: expected a barrier from 0 to 15, got {n}", i + 1)));
    }
    Ok(id)
}

fn thread_count<'a>(f: &mut Function<'_, 'a>, inst: &Inst<'a>, i: usize) -> Result<Operand, ParseError> {
    let threads = f.src(inst, i, U32)?;
    if let Operand::Imm(n) = threads
        && (n % 32 != 0 || n == 0 || n > 1024)
    {
        let what = format!("operand {}: expected a thread count that is a multiple of 32 up to 1024, got {n}", i + 1);
        return Err(inst.syntax(f, &what));
    }
    Ok(threads)
}

fn cluster<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    inst.need(f, sm(90, 7, 8))?;
    let arrive = inst.must(f, &[("arrive", true), ("wait", false)])?;
    let aligned = inst.mods.take("aligned");
    if arrive {
        let orderings = [("release", Ordering::Release), ("relaxed", Ordering::Relaxed)];
        let ordering = inst.mods.take_of(&orderings);
        if ordering.is_some() {
            inst.need(f, sm(90, 8, 0))?;
        }
        inst.exactly(f, 0)?;
        return Ok(Op::ClusterArrive { ordering: ordering.unwrap_or(Ordering::Release), aligned });
    }
    if inst.mods.take("acquire") {
        inst.need(f, sm(90, 8, 0))?;
    }
    inst.exactly(f, 0)?;
    Ok(Op::ClusterWait { aligned })
}

fn fence<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    if inst.mods.take("proxy") {
        return proxy(f, inst);
    }
    if inst.mods.take("mbarrier_init") {
        inst.need(f, sm(90, 8, 0))?;
        inst.must_word(f, "release")?;
        inst.must_word(f, "cluster")?;
        inst.exactly(f, 0)?;
        return Ok(Op::Fence(Fence::MbarrierInit));
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Sem {
        Sc,
        AcqRel,
        Acquire,
        Release,
    }
    let sems = [("sc", Sem::Sc), ("acq_rel", Sem::AcqRel), ("acquire", Sem::Acquire), ("release", Sem::Release)];
    let sem = inst.mods.take_of(&sems).unwrap_or(Sem::AcqRel);
    let scope = inst.must(f, &SCOPES)?;
    if scope == Scope::Cluster {
        inst.need(f, sm(90, 7, 8))?;
    }
    inst.exactly(f, 0)?;
    Ok(Op::Fence(match sem {
        Sem::Sc => Fence::Sc(scope),
        Sem::AcqRel => Fence::AcqRel(scope),
        Sem::Acquire => Fence::Acquire(scope),
        Sem::Release => Fence::Release(scope),
    }))
}

fn proxy<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    if inst.mods.take("alias") {
        inst.need(f, sm(70, 7, 5))?;
        inst.exactly(f, 0)?;
        return Ok(Op::Fence(Fence::ProxyAlias));
    }
    inst.must_word(f, "async")?;
    inst.need(f, sm(90, 8, 0))?;
    let spaces = [("global", Space::Global), ("shared::cta", Space::Shared), ("shared::cluster", Space::SharedCluster)];
    let space = inst.mods.take_of(&spaces).unwrap_or(Space::Generic);
    inst.exactly(f, 0)?;
    Ok(Op::Fence(Fence::ProxyAsync(space)))
}

//! Loads, stores, atomics, matrix loads and asynchronous copies.

use super::{Lower, Lowered};
use crate::counters::Class;
use crate::exec::program::{
    ALWAYS, Access, Any, AtomicOp, BulkOp, CpAsync, Extend, MatrixOp, MbarOp, NEGATE, NONE, Op, Slot, Space,
};
use crate::ir::{self, Address, AddressBase, BulkDirection, Mbarrier, Operand, Ordering, Scope, Symbol, Type};
use crate::tensor::matrix::MatrixMap;

/// The decoded space of a memory instruction; a shared address also names the block of the cluster, see
/// [`crate::exec::cluster`].
pub(super) fn space_of(space: ir::Space) -> Space {
    match space {
        ir::Space::Generic => Space::Generic,
        ir::Space::Global => Space::Global,
        ir::Space::Shared | ir::Space::SharedCluster => Space::Shared,
        ir::Space::Local => Space::Local,
        ir::Space::Const => Space::Const,
        ir::Space::Param => Space::Param,
    }
}

impl Lower<'_> {
    /// The space of an instruction; an address that names a variable must agree with it.
    fn access_space(&self, space: ir::Space, addr: &Address) -> Lowered<Space> {
        if let AddressBase::Symbol(symbol) = addr.base {
            let (_, own) = self.symbol(symbol)?;
            return match (space, own) {
                (ir::Space::Generic, ir::Space::Param) if matches!(symbol, Symbol::Param(_)) => Ok(Space::Param),
                // A variable in a generic access is a generic address only in global memory.
                (ir::Space::Generic, ir::Space::Global) => Ok(Space::Global),
                (ir::Space::Generic, _) => {
                    Err("a generic access through the name of a variable that is not global".into())
                }
                (a, b) if space_of(a) == space_of(b) => Ok(space_of(a)),
                (a, b) => Err(format!("an access to {a:?} memory through a variable in {b:?} memory")),
            };
        }
        Ok(space_of(space))
    }

    pub(super) fn memory(&mut self, op: &ir::Op) -> Lowered<Option<(Op, Class)>> {
        Ok(Some(match op {
            ir::Op::Ld { space, ty, d, addr, ordering, scope, nc } => {
                let space = self.access_space(*space, addr)?;
                let class = match space {
                    Space::Global => Class::GlobalLoad,
                    Space::Shared => Class::SharedLoad,
                    Space::Generic => Class::GenericAccess,
                    Space::Local => Class::LocalAccess,
                    Space::Const => Class::ConstLoad,
                    Space::Param => Class::ParamLoad,
                };
                let first = match d {
                    ir::Dst::Vector(parts) => parts.iter().find(|p| matches!(p, ir::Dst::Reg(_))).unwrap_or(d),
                    _ => d,
                };
                let register_bits = self.dst_bits(first, ty.bits());
                let extend = match ty {
                    Type::S8 | Type::S16 | Type::S32 if register_bits > ty.bits() => {
                        Extend::Sign { from: ty.bits() as u8, to: register_bits as u8 }
                    }
                    _ => Extend::Zero,
                };
                let regs = self.destinations(d)?;
                self.check_lists(regs, *ty, true)?;
                let regs = self.halves(regs, *ty);
                let access = Access {
                    space,
                    bytes: ty.bytes().min(8) as u8,
                    count: regs.len as u8,
                    extend,
                    regs,
                    addr: self.addr(addr)?,
                    ordering: *ordering,
                    scope: scope.unwrap_or(Scope::Sys),
                    nc: *nc,
                    plain: extend == Extend::Zero && self.is_plain(regs, *ty, *ordering),
                };
                (Op::Ld(access), class)
            }
            ir::Op::St { space, ty, addr, a, ordering, scope } => {
                let space = self.access_space(*space, addr)?;
                let class = match space {
                    Space::Global => Class::GlobalStore,
                    Space::Shared => Class::SharedStore,
                    Space::Generic => Class::GenericAccess,
                    Space::Local => Class::LocalAccess,
                    Space::Const | Space::Param => return Err("a store to read-only memory".to_owned()),
                };
                let regs = self.sources(a, ty.bits())?;
                self.check_lists(regs, *ty, false)?;
                let regs = self.halves(regs, *ty);
                let access = Access {
                    space,
                    bytes: ty.bytes().min(8) as u8,
                    count: regs.len as u8,
                    extend: Extend::Zero,
                    regs,
                    addr: self.addr(addr)?,
                    ordering: *ordering,
                    scope: scope.unwrap_or(Scope::Sys),
                    nc: false,
                    plain: self.is_plain(regs, *ty, *ordering),
                };
                (Op::St(access), class)
            }
            ir::Op::Atom { op, space, ty, d, addr, b, c, ordering, scope, noftz: _ } => {
                let space = self.access_space(*space, addr)?;
                if !matches!(space, Space::Global | Space::Shared | Space::Generic) {
                    return Err("an atomic outside global and shared memory".to_owned());
                }
                let d = match d {
                    Some(d) => self.destinations(d)?,
                    None => self.list(Vec::new()),
                };
                let b = self.sources(b, ty.bits())?;
                let c = match c {
                    Some(c) => self.any(c, ty.bits())?,
                    None => Any::None,
                };
                let count = b.len as u8;
                if !crate::exec::atomic::is_supported(*op, *ty) {
                    return Err(format!("atomic {op:?} of {ty:?}"));
                }
                let (ty, ordering, scope) = (*ty, *ordering, *scope);
                let addr = self.addr(addr)?;
                let op = AtomicOp { op: *op, space, ty, count, d, addr, b, c, ordering, scope };
                (Op::Atom(Box::new(op)), Class::Atomic)
            }
            ir::Op::Isspacep { space, d, a } => {
                let op = Op::IsSpace { space: space_of(*space), p: self.dp(d)?, a: self.any(a, 64)? };
                (op, Class::Compare)
            }
            ir::Op::Mapa { ty, space: _, d, a, b } => {
                let op = Op::Mapa { d: self.dany(d)?, a: self.any(a, ty.bits())?, rank: self.w(b)? };
                (op, Class::Integer)
            }
            ir::Op::Ldmatrix { shape, num, trans, element, d, addr, space } => {
                let regs = d.iter().map(|d| self.dw(d)).collect::<Lowered<Vec<_>>>()?;
                let map = MatrixMap::load(*shape, *num, *trans, *element);
                (self.matrix(false, map, regs, addr, *space)?, Class::MatrixLoad)
            }
            ir::Op::Stmatrix { shape, num, trans, element, addr, a, space } => {
                let regs = a.iter().map(|a| self.w(a)).collect::<Lowered<Vec<_>>>()?;
                let map = MatrixMap::store(*shape, *num, *trans, *element);
                (self.matrix(true, map, regs, addr, *space)?, Class::MatrixLoad)
            }
            ir::Op::CpAsync { dst, src, size, src_size, ignore, cg: _ } => {
                let src_size = self.w_opt(src_size.as_ref())?;
                let ignore = match ignore {
                    Some(p) => self.p(p)?,
                    None => ALWAYS | NEGATE,
                };
                let op = CpAsync { dst: self.addr(dst)?, src: self.addr(src)?, size: *size, src_size, ignore };
                (Op::CpAsync(Box::new(op)), Class::AsyncCopy)
            }
            ir::Op::CpAsyncCommit => (Op::CpAsyncCommit, Class::AsyncCopy),
            ir::Op::CpAsyncWait { groups } => (Op::CpAsyncWait { groups: groups.unwrap_or(NONE) }, Class::AsyncCopy),
            ir::Op::CpAsyncMbarrierArrive { addr, noinc, space } => {
                let op = MbarOp::CpAsyncArrive { noinc: *noinc };
                (Op::Mbar { op, addr: self.addr(addr)?, space: space_of(*space) }, Class::AsyncCopy)
            }
            ir::Op::Bulk { direction, dst, src, size, mbar } => {
                let mbar = match mbar {
                    Some(mbar) => Some(self.addr(mbar)?),
                    None => None,
                };
                let (dst, src, size) = (self.addr(dst)?, self.addr(src)?, self.w(size)?);
                if *direction == BulkDirection::SharedToSharedCluster {
                    return Err("cp.async.bulk between blocks of a cluster".to_owned());
                }
                let op = BulkOp { direction: *direction, dst, src, size, mbar, reduce: None };
                (Op::Bulk(Box::new(op)), Class::AsyncCopy)
            }
            ir::Op::BulkReduce { op, ty, dst, src, size } => {
                if !crate::exec::atomic::is_supported(*op, *ty) {
                    return Err(format!("cp.reduce.async.bulk {op:?} of {ty:?}"));
                }
                let (dst, src, size) = (self.addr(dst)?, self.addr(src)?, self.w(size)?);
                let direction = BulkDirection::SharedToGlobal;
                let op = BulkOp { direction, dst, src, size, mbar: None, reduce: Some((*op, *ty)) };
                (Op::Bulk(Box::new(op)), Class::AsyncCopy)
            }
            ir::Op::BulkPrefetch { .. } | ir::Op::Hint => (Op::Nop, Class::Other),
            ir::Op::BulkCommit => (Op::BulkCommit, Class::AsyncCopy),
            ir::Op::BulkWait { groups, read } => (Op::BulkWait { groups: *groups, read: *read }, Class::AsyncCopy),
            ir::Op::Mbarrier(m) => (self.mbarrier(m)?, Class::Mbarrier),
            _ => return Ok(None),
        }))
    }

    fn matrix(
        &mut self,
        store: bool,
        map: Option<MatrixMap>,
        regs: Vec<Slot>,
        addr: &Address,
        space: ir::Space,
    ) -> Lowered<Op> {
        let map = map.ok_or("a matrix load or store of a shape and element that do not exist together")?;
        if map.registers() != regs.len() {
            return Err(format!("{} registers where the matrices need {}", regs.len(), map.registers()));
        }
        let space = self.access_space(space, addr)?;
        if !matches!(space, Space::Shared | Space::Generic) {
            return Err("a matrix load or store outside shared memory".to_owned());
        }
        Ok(Op::Matrix(Box::new(MatrixOp { store, map, regs, addr: self.addr(addr)?, space })))
    }

    fn is_plain(&self, regs: crate::exec::program::List, ty: Type, ordering: Ordering) -> bool {
        let items = &self.lists[regs.start as usize..][..regs.len as usize];
        ty.bits() == 32
            && ordering == Ordering::Weak
            && regs.len.is_power_of_two()
            && items.iter().all(|item| matches!(item, Any::W(_)))
    }

    /// 128-bit registers as their two 64-bit halves.
    fn halves(&mut self, regs: crate::exec::program::List, ty: Type) -> crate::exec::program::List {
        if ty.bits() != 128 {
            return regs;
        }
        let items = self.lists[regs.start as usize..][..regs.len as usize].to_vec();
        let halves = items.into_iter().flat_map(|item| match item {
            Any::X(slot) => [Any::X(slot), Any::X(slot + 1)],
            other => [other; 2],
        });
        let halves = halves.collect();
        self.list(halves)
    }

    fn w_opt(&mut self, operand: Option<&Operand>) -> Lowered<Slot> {
        operand.map_or(Ok(NONE), |operand| self.w(operand))
    }

    /// Registers of a vector access: wide enough, and one file for all.
    fn check_lists(&self, regs: crate::exec::program::List, ty: Type, load: bool) -> Lowered<()> {
        let items = &self.lists[regs.start as usize..][..regs.len as usize];
        let bits = ty.bits();
        for item in items {
            let width = match item {
                Any::W(_) => 32,
                Any::X(_) => 128,
                Any::P(_) => return Err("a predicate in memory".to_owned()),
                Any::None if load => 128,
                Any::None => return Err("a store of nothing".to_owned()),
            };
            if bits > width {
                return Err(format!("{bits} bits in a register of {width} bits"));
            }
        }
        if !matches!(bits, 8 | 16 | 32 | 64 | 128) || bits * regs.len > 256 {
            return Err(format!("an access of {} x {bits} bits", regs.len));
        }
        Ok(())
    }

    fn mbarrier(&mut self, m: &Mbarrier) -> Lowered<Op> {
        let (op, addr, space) = match m {
            Mbarrier::Init { addr, count, space } => (MbarOp::Init { count: self.w(count)? }, addr, space),
            Mbarrier::Inval { addr, space } => (MbarOp::Inval, addr, space),
            Mbarrier::Arrive { state, addr, count, expect_tx, no_complete, drop, ordering, scope: _, space } => {
                let state = match state {
                    Some(state) => self.dx(state)?,
                    None => NONE,
                };
                let count = self.w_opt(count.as_ref())?;
                let (expect_tx, no_complete, drop) = (*expect_tx, *no_complete, *drop);
                // `mbarrier.arrive` without a word on ordering releases.
                let ordering = if *ordering == Ordering::Relaxed { Ordering::Relaxed } else { Ordering::Release };
                (MbarOp::Arrive { state, count, expect_tx, no_complete, drop, ordering }, addr, space)
            }
            Mbarrier::Tx { addr, bytes, complete, space } => {
                (MbarOp::Tx { bytes: self.w(bytes)?, complete: *complete }, addr, space)
            }
            Mbarrier::Wait {
                done,
                addr,
                state_or_parity,
                parity,
                may_suspend: _,
                hint: _,
                ordering,
                scope: _,
                space,
            } => {
                let state = if *parity { Any::W(self.w(state_or_parity)?) } else { Any::X(self.x(state_or_parity)?) };
                let ordering = if *ordering == Ordering::Relaxed { Ordering::Relaxed } else { Ordering::Acquire };
                let done = self.dp(done)?;
                (MbarOp::Wait { done, state, parity: *parity, ordering }, addr, space)
            }
            Mbarrier::PendingCount { d, state } => {
                return Ok(Op::PendingCount { d: self.dw(d)?, state: self.x(state)? });
            }
        };
        Ok(Op::Mbar { op, addr: self.addr(addr)?, space: space_of(*space) })
    }
}

//! Control flow, barriers, exchanges between lanes, matrix instructions.

use super::{Lower, Lowered};
use crate::counters::Class;
use crate::exec::program::{Any, MmaOp, NONE, Op, Slot};
use crate::ir::{self, BarRed, Operand, ScaleOperand};
use crate::tensor::MmaPlan;

impl Lower<'_> {
    pub(super) fn sync(&mut self, op: &ir::Op) -> Lowered<(Op, Class)> {
        Ok(match op {
            ir::Op::Bra { target, uni: _ } => (Op::Bra { target: *target }, Class::Branch),
            ir::Op::BrxIdx { index, table, uni: _ } => {
                (Op::BrxIdx { index: self.w(index)?, table: *table }, Class::Branch)
            }
            ir::Op::Exit => (Op::Exit, Class::Branch),
            ir::Op::Trap => (Op::Trap, Class::Branch),
            ir::Op::Nop => (Op::Yield, Class::Other),
            ir::Op::CreatePolicy { d } => {
                let value = self.constant64(0);
                (Op::X1 { f: |a| *a, d: self.dx(d)?, a: value }, Class::Other)
            }
            ir::Op::BarSync { id, threads, aligned } => {
                let op = Op::BarSync { id: self.w(id)?, threads: self.threads(threads.as_ref())?, aligned: *aligned };
                (op, Class::Barrier)
            }
            ir::Op::BarArrive { id, threads, aligned } => {
                let op = Op::BarArrive { id: self.w(id)?, threads: self.w(threads)?, aligned: *aligned };
                (op, Class::Barrier)
            }
            ir::Op::BarRed { id, threads, aligned, op, d, p } => {
                let d = match op {
                    BarRed::Popc => Any::W(self.dw(d)?),
                    _ => Any::P(self.dp(d)?),
                };
                let (id, threads, p) = (self.w(id)?, self.threads(threads.as_ref())?, self.p(p)?);
                (Op::BarRed { id, threads, aligned: *aligned, op: *op, d, p }, Class::Barrier)
            }
            ir::Op::WarpSync { mask } => (Op::WarpSync { mask: self.w(mask)? }, Class::Barrier),
            ir::Op::ClusterArrive { .. } => (Op::ClusterArrive, Class::Barrier),
            ir::Op::ClusterWait { .. } => (Op::ClusterWait, Class::Barrier),
            ir::Op::Fence(fence) => (Op::Fence(*fence), Class::Fence),
            ir::Op::Shfl { mode, d, p, a, b, c, mask } => {
                let (d, p) = (self.dw(d)?, self.dp_opt(p)?);
                let (a, b, c, mask) = (self.w(a)?, self.w(b)?, self.w(c)?, self.w(mask)?);
                (Op::Shfl { mode: *mode, d, p, a, b, c, mask }, Class::Exchange)
            }
            ir::Op::Vote { mode, d, p, mask } => {
                let d = match mode {
                    ir::VoteMode::Ballot => Any::W(self.dw(d)?),
                    _ => Any::P(self.dp(d)?),
                };
                (Op::Vote { mode: *mode, d, p: self.p(p)?, mask: self.w(mask)? }, Class::Exchange)
            }
            ir::Op::Match { all, ty, d, p, a, mask } => {
                let (d, p) = (self.dw(d)?, self.dp_opt(p)?);
                let (a, mask) = (self.any(a, ty.bits())?, self.w(mask)?);
                (Op::Match { all: *all, d, p, a, mask }, Class::Exchange)
            }
            ir::Op::Redux { op, ty, d, a, mask } => {
                if ty.bits() != 32 || crate::exec::scalar::is_float(*ty) {
                    return Err(format!("redux.sync of {ty:?}"));
                }
                let (d, a, mask) = (self.dw(d)?, self.w(a)?, self.w(mask)?);
                (Op::Redux { op: *op, ty: *ty, d, a, mask }, Class::Exchange)
            }
            ir::Op::ActiveMask { d } => (Op::ActiveMask { d: self.dw(d)? }, Class::Exchange),
            ir::Op::Elect { d, p, mask } => {
                (Op::Elect { d: self.dw(d)?, p: self.dp(p)?, mask: self.w(mask)? }, Class::Exchange)
            }
            ir::Op::Mma { desc, d, a, b, c, scale_a, scale_b } => {
                let plan = MmaPlan::new(desc).map_err(|e| e.to_string())?;
                let d = d.iter().map(|d| self.dw(d)).collect::<Lowered<Vec<_>>>()?;
                let mut all = |items: &[Operand]| items.iter().map(|i| self.w(i)).collect::<Lowered<Vec<_>>>();
                let (a, b, c) = (all(a)?, all(b)?, all(c)?);
                let scales = match (scale_a, scale_b, desc.block_scale) {
                    (Some(a), Some(b), Some(_)) => Some([self.scale(a)?, self.scale(b)?]),
                    (None, None, None) => None,
                    _ => return Err("scale operands and block scaling do not go together".to_owned()),
                };
                let want = plan.fragments();
                for (name, have, want) in [
                    ("a", a.len(), want.a.registers()),
                    ("b", b.len(), want.b.registers()),
                    ("c", c.len(), want.c.registers()),
                    ("d", d.len(), want.d.registers()),
                ] {
                    if have != want {
                        return Err(format!("{have} registers in operand {name} of mma, expected {want}"));
                    }
                }
                (Op::Mma(Box::new(MmaOp { plan, d, a, b, c, scales })), Class::Matrix)
            }
            ir::Op::Movmatrix { d, a } => (Op::Movmatrix { d: self.dw(d)?, a: self.w(a)? }, Class::Exchange),
            ir::Op::GridDepControl { .. } => (Op::GridDepControl, Class::Other),
            ir::Op::SetMaxNReg { increase, registers } => {
                (Op::SetMaxNReg { increase: *increase, registers: *registers }, Class::Other)
            }
            other => return Err(format!("no execution for {other:?}")),
        })
    }

    fn threads(&mut self, operand: Option<&Operand>) -> Lowered<Slot> {
        operand.map_or(Ok(NONE), |operand| self.w(operand))
    }

    fn scale(&mut self, scale: &ScaleOperand) -> Lowered<[Slot; 3]> {
        Ok([self.w(&scale.data)?, self.w(&scale.byte_id)?, self.w(&scale.thread_id)?])
    }
}

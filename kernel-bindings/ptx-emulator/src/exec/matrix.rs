//! Matrix instructions of a warp: operands out of the registers, [`crate::tensor`] for the arithmetic, results back.

use super::access::Request;
use super::block::Block;
use super::lanes::{FULL, L32, L64, lanes_of};
use super::poison;
use super::program::{Any, MatrixOp, MmaOp, Slot, Space};
use super::run::Flow;
use super::warp::Warp;
use crate::check::AccessKind;
use crate::finding::FindingClass;
use crate::ir::{Ordering, Scope};
use crate::tensor::matrix::{self, ROW_BYTES, Rows};
use crate::tensor::scale::{lanes_read, selectors_valid};
use crate::tensor::{Lanes, ScaleInput};

impl Block<'_, '_> {
    /// The whole warp executes the instruction; reports when lanes are missing for good.
    fn whole_warp(&mut self, warp: &mut Warp, index: usize, pc: u32) -> Result<super::exchange::Met, Flow> {
        let met = self.meet(warp, index, pc, &L32::splat(FULL))?;
        if met.lanes != FULL {
            let absent = !met.lanes;
            let lane = Some(met.lanes.trailing_zeros() as usize);
            let message = format!("warp-wide instruction executed without lanes {absent:#010x}");
            self.report_text(FindingClass::PartialWarp, warp, pc, lane, message);
        }
        Ok(met)
    }

    pub(crate) fn mma<const CHECKED: bool>(&mut self, warp: &mut Warp, index: usize, pc: u32, op: &MmaOp) -> Flow {
        let met = match self.whole_warp(warp, index, pc) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        let program = self.launch.program;
        let mut a = [[0; 32]; 8];
        let mut b = [[0; 32]; 8];
        let mut c = [[0; 32]; 8];
        let mut d = [[0; 32]; 8];
        let fetch = |slots: &[Slot], out: &mut [Lanes]| {
            for (slot, out) in slots.iter().zip(out) {
                *out = warp.w(program, *slot).0;
            }
        };
        fetch(&op.a, &mut a);
        fetch(&op.b, &mut b);
        fetch(&op.c, &mut c);
        let scales = op.scales.map(|scales| {
            scales.map(|[data, byte, thread]| ScaleInput {
                data: warp.w(program, data).0,
                byte_id: warp.w(program, byte).0[met.lanes.trailing_zeros() as usize & 31],
                thread_id: warp.w(program, thread).0[met.lanes.trailing_zeros() as usize & 31],
            })
        });
        if CHECKED {
            for (name, slots) in [("a", &op.a), ("b", &op.b), ("c", &op.c)] {
                for slot in slots {
                    let bad = poison::lanes_with(warp, Any::W(*slot)) & met.lanes;
                    if bad != 0 {
                        let lane = bad.trailing_zeros() as usize;
                        let message = format!("operand {name} of mma holds a value that nothing wrote");
                        self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
                    }
                }
            }
            if let (Some(slots), Some(inputs)) = (op.scales, &scales) {
                self.check_scales(warp, pc, op, slots, inputs, met.lanes);
            }
        }
        let (na, nb, nc, nd) = (op.a.len(), op.b.len(), op.c.len(), op.d.len());
        let pair = scales.as_ref().map(|[a, b]| (a, b));
        op.plan.run(&a[..na], &b[..nb], &c[..nc], pair, &mut d[..nd]);
        for (slot, values) in op.d.iter().zip(&d) {
            warp.r32[*slot as usize].blend(&super::lanes::Lanes(*values), met.lanes);
            if CHECKED {
                poison::clean(warp, Any::W(*slot), met.lanes);
            }
        }
        met.flow
    }

    fn check_scales(
        &self,
        warp: &Warp,
        pc: u32,
        op: &MmaOp,
        slots: [[Slot; 3]; 2],
        inputs: &[ScaleInput; 2],
        lanes: u32,
    ) {
        let vec = op.plan.desc().block_scale.map_or(1, |s| s.scale_vec);
        for (i, ([data, byte, thread], input)) in slots.iter().zip(inputs).enumerate() {
            let is_a = i == 0;
            let name = if is_a { "a" } else { "b" };
            let steer = (poison::lanes_with(warp, Any::W(*byte)) | poison::lanes_with(warp, Any::W(*thread))) & lanes;
            let bad = poison::lanes_with(warp, Any::W(*data)) & lanes_read(is_a, input.thread_id) & lanes;
            // Bytes that are not selected do not matter; lanes of the same register do.
            let p = poison::of32(warp, *data);
            let read = crate::tensor::scale::bytes_read(vec, input.byte_id);
            let bits = (0..4).filter(|i| read >> i & 1 == 1).fold(0u32, |m, i| m | 0xff << (i * 8));
            let bad = lanes_of(bad).filter(|lane| p.0[*lane] & bits != 0).fold(0u32, |m, l| m | 1 << l);
            if let Some(lane) = lanes_of(steer | bad).next() {
                let message = format!("scale of operand {name} of mma holds a value that nothing wrote");
                self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
            }
            if !selectors_valid(vec, is_a, input.byte_id, input.thread_id) {
                let message = format!(
                    "scale selectors {{{}, {}}} of operand {name} do not exist for scale_vec::{vec}X",
                    input.byte_id, input.thread_id
                );
                self.report_text(FindingClass::Unsupported, warp, pc, None, message);
            }
        }
    }

    pub(crate) fn matrix<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        op: &MatrixOp,
    ) -> Flow {
        let met = match self.whole_warp(warp, index, pc) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        let program = self.launch.program;
        let providers = op.map.providers() & met.lanes;
        let mut addresses = self.addresses(warp, op.addr);
        let mut ok = if CHECKED { self.clean_addresses(warp, pc, op.addr, providers) } else { providers };
        if op.space == Space::Generic {
            for lane in lanes_of(ok) {
                addresses.0[lane] = addresses.0[lane].wrapping_sub(crate::memory::SHARED_WINDOW);
            }
        }
        let request = Request {
            pc,
            width: ROW_BYTES as u32,
            align: ROW_BYTES as u32,
            kind: if op.store { AccessKind::Write } else { AccessKind::Read },
            ordering: Ordering::Weak,
            scope: Scope::Cta,
        };
        if self.counters.is_some() {
            self.count_access(pc, Space::Shared, &addresses, ok, ROW_BYTES as u32, op.store);
        }
        let (offsets, inside) = self.check_window::<CHECKED>(warp, Space::Shared, &addresses, ok, &request);
        ok = inside;
        if self.aborted {
            return Flow::Abort;
        }
        if op.store {
            self.activity += 1;
            let registers: Vec<Lanes> = op.regs.iter().map(|r| warp.w(program, *r).0).collect();
            let mut rows: Rows = [[0; ROW_BYTES]; 32];
            op.map.rows_from_registers(&registers, &mut rows);
            for lane in lanes_of(ok) {
                let at = offsets.0[lane] as usize;
                self.shared[at..at + ROW_BYTES].copy_from_slice(&rows[lane]);
            }
            if self.shared_written.is_some() {
                let shadows: Vec<Lanes> = op.regs.iter().map(|r| poison::of32(warp, *r).0).collect();
                let mut rows: Rows = [[0; ROW_BYTES]; 32];
                op.map.rows_from_registers(&shadows, &mut rows);
                for lane in lanes_of(ok) {
                    let bits = rows[lane].iter().enumerate().fold(0, |m, (i, b)| m | u64::from(*b == 0) << i);
                    if let Some(written) = &mut self.shared_written {
                        written.put_bits(offsets.0[lane], ROW_BYTES as u32, bits);
                    }
                }
            }
            return met.flow;
        }
        let mut rows: Rows = [[0; ROW_BYTES]; 32];
        for lane in lanes_of(ok) {
            let at = offsets.0[lane] as usize;
            rows[lane].copy_from_slice(&self.shared[at..at + ROW_BYTES]);
        }
        let mut registers = [[0; 32]; 8];
        let n = op.regs.len();
        op.map.registers_from_rows(&rows, &mut registers[..n]);
        for (slot, values) in op.regs.iter().zip(&registers) {
            warp.r32[*slot as usize].blend(&super::lanes::Lanes(*values), met.lanes);
        }
        if CHECKED {
            self.load_matrix_poison(warp, op, &offsets, ok, met.lanes);
        }
        met.flow
    }

    fn load_matrix_poison(&mut self, warp: &mut Warp, op: &MatrixOp, offsets: &L64, ok: u32, lanes: u32) {
        let mut rows: Rows = [[0; ROW_BYTES]; 32];
        let mut any = false;
        if let Some(written) = &self.shared_written {
            for lane in lanes_of(ok) {
                let bits = written.bits(offsets.0[lane], ROW_BYTES as u32);
                for (i, byte) in rows[lane].iter_mut().enumerate().take(op.map.data_bytes()) {
                    *byte = if bits >> i & 1 == 1 { 0 } else { 0xff };
                    any |= *byte != 0;
                }
            }
        }
        let mut shadows = [[0; 32]; 8];
        if any {
            op.map.registers_from_rows(&rows, &mut shadows[..op.regs.len()]);
        }
        for (slot, shadow) in op.regs.iter().zip(shadows) {
            if any {
                poison::set32(warp, *slot, &super::lanes::Lanes(shadow), lanes);
            } else {
                poison::clean(warp, Any::W(*slot), lanes);
            }
        }
    }

    pub(crate) fn movmatrix<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        d: Slot,
        a: Slot,
    ) -> Flow {
        let met = match self.whole_warp(warp, index, pc) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        let values = matrix::movmatrix(&warp.w(self.launch.program, a).0);
        if CHECKED {
            let shadow = matrix::movmatrix(&poison::of32(warp, a).0);
            poison::set32(warp, d, &super::lanes::Lanes(shadow), met.lanes);
        }
        warp.r32[d as usize].blend(&super::lanes::Lanes(values), met.lanes);
        met.flow
    }
}

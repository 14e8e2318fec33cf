//! From where to where the registers of an entry are alive.
//!
//! Compilers write PTX with a fresh register for nearly every result: thousands per entry, of which few are alive at a
//! time. Registers that are never alive together can share a slot of the register file, which then stays in a cache.
//!
//! Liveness is that of one thread. It holds for a warp whose lanes have diverged as well, because every lane has its own
//! part of a slot and follows the code by itself. A register that may be read before it is written is alive from the
//! start, so that nothing else ever lives in its slot before and its poison stays visible.

use crate::exec::visit::{Visitor, walk};
use crate::ir::{Entry, Op, Reg, Symbol};

/// First and last instruction at which a register is alive, both included; `None` for one that never occurs.
pub(crate) type Interval = Option<(u32, u32)>;

struct Uses {
    reads: Vec<u32>,
    writes: Vec<u32>,
}

impl Visitor for Uses {
    fn read(&mut self, reg: Reg) {
        self.reads.push(reg.0);
    }
    fn write(&mut self, reg: Reg) {
        self.writes.push(reg.0);
    }
    fn symbol(&mut self, _: Symbol) {}
}

/// A run of instructions that is entered at its start and left at its end.
struct Stretch {
    start: u32,
    end: u32,
    next: Vec<u32>,
}

#[derive(Clone, PartialEq, Eq)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(n: usize) -> Self {
        Bits(vec![0; n.div_ceil(64)])
    }
    fn set(&mut self, i: u32) {
        self.0[i as usize / 64] |= 1 << (i % 64);
    }
    fn clear(&mut self, i: u32) {
        self.0[i as usize / 64] &= !(1 << (i % 64));
    }
    fn add(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
    fn each(&self, mut f: impl FnMut(u32)) {
        for (i, word) in self.0.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                f(i as u32 * 64 + rest.trailing_zeros());
                rest &= rest - 1;
            }
        }
    }
}

/// Instructions that may follow; one past the end is the exit.
fn successors(entry: &Entry, pc: u32) -> Vec<u32> {
    let instruction = &entry.code[pc as usize];
    let next = pc + 1;
    match &instruction.op {
        Op::Bra { target, .. } if instruction.guard.is_none() => vec![*target],
        Op::Bra { target, .. } => vec![*target, next],
        Op::BrxIdx { table, .. } => {
            let mut all = entry.branch_targets[*table as usize].clone();
            if instruction.guard.is_some() {
                all.push(next);
            }
            all
        }
        Op::Exit | Op::Trap if instruction.guard.is_none() => Vec::new(),
        _ => vec![next],
    }
}

fn stretches(entry: &Entry) -> Vec<Stretch> {
    let n = entry.code.len() as u32;
    let mut starts = vec![false; n as usize + 1];
    starts[0] = true;
    for pc in 0..n {
        let next = successors(entry, pc);
        if next != [pc + 1] {
            starts[pc as usize + 1] = true;
            next.iter().for_each(|to| starts[*to as usize] = true);
        }
    }
    let firsts: Vec<u32> = (0..n).filter(|pc| starts[*pc as usize]).collect();
    let index_of = |pc: u32| firsts.partition_point(|first| *first < pc) as u32;
    firsts
        .iter()
        .enumerate()
        .map(|(i, start)| {
            let end = firsts.get(i + 1).copied().unwrap_or(n);
            let next = successors(entry, end - 1).into_iter().filter(|to| *to < n).map(index_of).collect();
            Stretch { start: *start, end, next }
        })
        .collect()
}

/// The interval of every register.
pub(crate) fn intervals(entry: &Entry) -> Vec<Interval> {
    let registers = entry.registers.len();
    let mut out: Vec<Interval> = vec![None; registers];
    if entry.code.is_empty() {
        return out;
    }
    let uses: Vec<Uses> = entry
        .code
        .iter()
        .map(|instruction| {
            let mut uses = Uses { reads: Vec::new(), writes: Vec::new() };
            walk(&instruction.op, &mut uses);
            if let Some(guard) = instruction.guard {
                uses.reads.push(guard.pred.0);
                // What the guard lets pass keeps its old value.
                let kept = uses.writes.clone();
                uses.reads.extend(kept);
            }
            uses
        })
        .collect();
    let stretches = stretches(entry);
    let mut live_in = vec![Bits::new(registers); stretches.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (i, stretch) in stretches.iter().enumerate().rev() {
            let mut live = Bits::new(registers);
            stretch.next.iter().for_each(|to| live.add(&live_in[*to as usize]));
            for pc in (stretch.start..stretch.end).rev() {
                let uses = &uses[pc as usize];
                uses.writes.iter().for_each(|reg| live.clear(*reg));
                uses.reads.iter().for_each(|reg| live.set(*reg));
            }
            if live != live_in[i] {
                live_in[i] = live;
                changed = true;
            }
        }
    }
    let mut cover = |reg: u32, pc: u32| {
        let interval = &mut out[reg as usize];
        *interval = Some(interval.map_or((pc, pc), |(first, last)| (first.min(pc), last.max(pc))));
    };
    for (i, stretch) in stretches.iter().enumerate() {
        live_in[i].each(|reg| cover(reg, stretch.start));
        for to in &stretch.next {
            live_in[*to as usize].each(|reg| cover(reg, stretch.end - 1));
        }
        for pc in stretch.start..stretch.end {
            let uses = &uses[pc as usize];
            uses.reads.iter().chain(&uses.writes).for_each(|reg| cover(*reg, pc));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Module;

    fn of(body: &str, names: &[&str]) -> Vec<Interval> {
        let text = format!(
            ".version 8.0\n.target sm_89\n.address_size 64\n.entry k()\n{{\n.reg .pred %p<4>;\n.reg .b32 %r<9>;\n{body}\n}}\n"
        );
        let module = Module::parse(&text).unwrap();
        let entry = &module.entries[0];
        let all = intervals(entry);
        names.iter().map(|n| all[entry.registers.iter().position(|r| r.name == *n).unwrap()]).collect()
    }

    #[test]
    fn straight_code() {
        let body = "mov.u32 %r0, 1;\nadd.u32 %r1, %r0, 1;\nadd.u32 %r2, %r1, %r0;\nmov.u32 %r3, %r2;\nret;";
        assert_eq!(of(body, &["%r0", "%r1", "%r2", "%r3"]), [Some((0, 2)), Some((1, 2)), Some((2, 3)), Some((3, 3))]);
    }

    #[test]
    fn alive_around_a_loop() {
        let body = "mov.u32 %r0, 1;\nmov.u32 %r1, 0;\n$l:\nadd.u32 %r1, %r1, %r0;\nmov.u32 %r2, %r1;\n\
                    setp.lt.u32 %p0, %r2, 9;\n@%p0 bra $l;\nret;";
        // %r0 is needed in every round, %r2 only inside one.
        assert_eq!(of(body, &["%r0", "%r1", "%r2"]), [Some((0, 5)), Some((1, 5)), Some((3, 4))]);
    }

    #[test]
    fn perhaps_read_before_written() {
        let body =
            "mov.u32 %r5, 0;\nsetp.eq.u32 %p0, %r5, 1;\n@%p0 bra $s;\nmov.u32 %r0, 1;\n$s:\nmov.u32 %r1, %r0;\nret;";
        assert_eq!(of(body, &["%r0"]), [Some((0, 4))]);
        // A guarded write keeps what was there.
        let body = "mov.u32 %r5, 0;\nsetp.eq.u32 %p0, %r5, 1;\n@%p0 mov.u32 %r0, 1;\nmov.u32 %r1, %r0;\nret;";
        assert_eq!(of(body, &["%r0"]), [Some((0, 3))]);
    }
}

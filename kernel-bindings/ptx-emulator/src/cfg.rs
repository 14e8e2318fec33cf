//! Control flow of an entry: where diverged lanes meet again.
//!
//! Every instruction is a node; the exit is one node more, with the index `code.len()`. Edges follow `bra`, `brx` and
//! `exit`, and fall through where a guard may be false. Lanes that leave an instruction on different paths meet at its
//! immediate post-dominator: the nearest node that every path to the exit passes.

use crate::ir::{Instruction, Op};

/// Nodes that control can reach in one step from instruction `i`.
fn successors(code: &[Instruction], tables: &[Vec<u32>], i: usize, out: &mut Vec<u32>) {
    let end = code.len() as u32;
    let next = i as u32 + 1;
    let instruction = &code[i];
    out.clear();
    let jumps = match &instruction.op {
        Op::Bra { target, .. } => {
            out.push(*target);
            true
        }
        Op::BrxIdx { table, .. } => {
            out.extend(tables.get(*table as usize).into_iter().flatten());
            true
        }
        Op::Exit | Op::Trap => {
            out.push(end);
            true
        }
        _ => false,
    };
    if !jumps || instruction.guard.is_some() {
        out.push(next);
    }
    out.iter_mut().for_each(|s| *s = (*s).min(end));
}

/// Immediate post-dominator of every instruction; `code.len()` is the exit.
///
/// Instructions from which no path leads to the exit (endless loops) count as if one of them had an edge to it, so that
/// every instruction has a post-dominator.
pub(crate) fn immediate_post_dominators(code: &[Instruction], tables: &[Vec<u32>]) -> Vec<u32> {
    let n = code.len();
    let exit = n;
    let mut forward: Vec<Vec<u32>> = vec![Vec::new(); n + 1];
    let mut backward: Vec<Vec<u32>> = vec![Vec::new(); n + 1];
    let mut out = Vec::new();
    for (i, next) in forward.iter_mut().enumerate().take(n) {
        successors(code, tables, i, &mut out);
        for s in &out {
            backward[*s as usize].push(i as u32);
        }
        next.extend_from_slice(&out);
    }

    // Post-order of the reversed graph from the exit. What it does not reach gets an edge to the exit: the last
    // instruction of the text first, which is the back edge of a compiled loop.
    let mut number = vec![u32::MAX; n + 1];
    let mut order = Vec::with_capacity(n + 1);
    let mut seen = vec![false; n + 1];
    let visit = |root: usize, seen: &mut Vec<bool>, order: &mut Vec<u32>, backward: &[Vec<u32>]| {
        let mut stack = vec![(root as u32, 0usize)];
        seen[root] = true;
        while let Some((node, at)) = stack.last_mut() {
            match backward[*node as usize].get(*at) {
                Some(p) => {
                    *at += 1;
                    if !seen[*p as usize] {
                        seen[*p as usize] = true;
                        stack.push((*p, 0));
                    }
                }
                None => {
                    order.push(*node);
                    stack.pop();
                }
            }
        }
    };
    let mut reached = vec![false; n + 1];
    let mut scratch = Vec::new();
    visit(exit, &mut reached, &mut scratch, &backward);
    for i in (0..n).rev() {
        if !reached[i] {
            forward[i].push(exit as u32);
            backward[exit].push(i as u32);
            visit(i, &mut reached, &mut scratch, &backward);
        }
    }
    visit(exit, &mut seen, &mut order, &backward);
    for (i, node) in order.iter().enumerate() {
        number[*node as usize] = i as u32;
    }

    // Dominators of the reversed graph by iteration to a fixed point (Cooper, Harvey, Kennedy 2001).
    let mut ipdom = vec![u32::MAX; n + 1];
    ipdom[exit] = exit as u32;
    let mut changed = true;
    while changed {
        changed = false;
        for node in order.iter().rev().copied().filter(|node| *node as usize != exit) {
            let mut new = u32::MAX;
            for s in &forward[node as usize] {
                if ipdom[*s as usize] == u32::MAX {
                    continue;
                }
                if new == u32::MAX {
                    new = *s;
                    continue;
                }
                let (mut a, mut b) = (*s, new);
                while a != b {
                    while number[a as usize] < number[b as usize] {
                        a = ipdom[a as usize];
                    }
                    while number[b as usize] < number[a as usize] {
                        b = ipdom[b as usize];
                    }
                }
                new = a;
            }
            if new != u32::MAX && ipdom[node as usize] != new {
                ipdom[node as usize] = new;
                changed = true;
            }
        }
    }
    ipdom.truncate(n);
    ipdom
}

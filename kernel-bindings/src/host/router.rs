//! Experts and weights of a token: affinities of all experts, then one pass over them per pick.

use reference::ops::{Router, Routing};

use super::HostBuffer;
use super::elements::load_f32;
use super::numbers::s32_at;
use super::rows::piece;
use super::threads;

const MAX_EXPERTS: usize = 512;
const MAX_PICKS: usize = 16;

pub(super) fn run(args: Router<'_, HostBuffer>) {
    let (t, experts, topk) = (args.t as usize, args.experts as usize, args.topk as usize);
    let mut bias = [0.0; MAX_EXPERTS];
    if let Routing::Bias(given) = args.routing {
        load_f32(&given.bytes[..4 * experts], &mut bias);
    }
    let token = |token: usize, (ids, weights): (&mut [u8], &mut [u8])| {
        let mut s = [0.0; MAX_EXPERTS];
        let s = &mut s[..experts];
        load_f32(&args.scores.bytes[4 * experts * token..], s);
        s.iter_mut().for_each(|z| *z = affinity(*z));
        let mut picks = [0; MAX_PICKS];
        let picks = &mut picks[..topk];
        match args.routing {
            Routing::Bias(_) => best(s, &bias[..experts], picks),
            Routing::Hash { tid2eid, ids, vocab } => {
                let id = u32::try_from(s32_at(&ids.bytes, token)).ok().filter(|&id| id < vocab).unwrap_or(0);
                let entry = |i: usize| s32_at(&tid2eid.bytes, id as usize * topk + i);
                picks.iter_mut().enumerate().for_each(|(i, pick)| *pick = entry(i));
            }
        }
        let of = |pick: i32| usize::try_from(pick).ok().and_then(|e| s.get(e)).copied();
        let sum: f32 = picks.iter().filter_map(|&pick| of(pick)).sum();
        for ((&pick, id), weight) in picks.iter().zip(ids.chunks_exact_mut(4)).zip(weights.chunks_exact_mut(4)) {
            id.copy_from_slice(&pick.to_le_bytes());
            let share = of(pick).map_or(0.0, |s| args.routed_scaling * s / sum);
            weight.copy_from_slice(&share.to_le_bytes());
        }
    };
    let (ids, weights) = (&mut args.expert_ids.bytes[..4 * t * topk], &mut args.expert_weights.bytes[..4 * t * topk]);
    let together = piece(t, 8 * experts);
    let pieces = ids.chunks_mut(4 * topk * together).zip(weights.chunks_mut(4 * topk * together)).enumerate();
    threads::share(pieces, |(first, (ids, weights))| {
        let rows = ids.chunks_exact_mut(4 * topk).zip(weights.chunks_exact_mut(4 * topk)).enumerate();
        rows.for_each(|(row, out)| token(first * together + row, out));
    });
}

/// `sqrt(softplus(z))`. Below -20 softplus is the exponential to within f32, whose root has an exponent to spare.
fn affinity(z: f32) -> f32 {
    if z > 20.0 {
        z.sqrt()
    } else if z < -20.0 {
        (0.5 * z).exp()
    } else {
        z.exp().ln_1p().sqrt()
    }
}

/// The experts with the largest `s + bias`, best first, each once; of equal ones the lower, NaN as -inf.
fn best(s: &[f32], bias: &[f32], picks: &mut [i32]) {
    let mut keys = [0.0; MAX_EXPERTS];
    for ((key, s), bias) in keys.iter_mut().zip(s).zip(bias) {
        let sum = s + bias;
        *key = if sum.is_nan() { f32::NEG_INFINITY } else { sum };
    }
    let keys = &mut keys[..s.len()];
    for pick in picks {
        let most = keys.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // Keys of picked experts are NaN, which equals nothing.
        let first = keys.iter().position(|&key| key == most).expect("there are at least as many experts as picks");
        keys[first] = f32::NAN;
        *pick = first as i32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinities_of_the_description() {
        let table = [
            (-20.0f32, 4.53999e-5),
            (-5.0, 0.0819472),
            (-1.0, 0.5596979),
            (0.0, 0.8325546),
            (1.0, 1.1459763),
            (5.0, 2.2375691),
            (25.0, 5.0),
        ];
        for (z, want) in table {
            assert!((f64::from(affinity(z)) - want).abs() < 1e-6 * want, "{z}: {}", affinity(z));
        }
        assert_eq!(affinity(f32::NEG_INFINITY), 0.0);
        assert_eq!(affinity(f32::INFINITY), f32::INFINITY);
        // Both sides of the change of formula.
        assert!((affinity(-20.000002) / affinity(-19.999998) - 1.0).abs() < 4e-6);
    }
}

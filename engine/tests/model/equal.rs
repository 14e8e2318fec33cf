//! The same results whatever the cut, the batch, the page order, the policy of the state, the ranks.

use engine::geometry::CacheShape;
use engine::model::Numerics;
use kernel_bindings::host::HostOps;

use crate::rig::{Rig, checkpoint, close, prompt};

const PLAIN: Numerics = Numerics::plain(512, 128);
/// Sums in another order: a hundredth of what a wrong row costs.
const BAR: f32 = 1e-4;

/// Around rows, windows and pages.
const CUTS: [usize; 8] = [1, 3, 4, 5, 127, 128, 129, 255];

#[test]
fn pieces_equal_one_piece() {
    let prompt = prompt();
    let mut rig = Rig::new(HostOps, PLAIN);
    let whole = rig.prefill(0, &prompt, &[]).concat();
    for cut in CUTS {
        close(&format!("cut at {cut}"), &rig.prefill(1, &prompt, &[cut]).concat(), &whole, BAR);
    }
    close("all cuts", &rig.prefill(1, &prompt, &CUTS).concat(), &whole, BAR);
    let tokens: Vec<f32> = (0..prompt.len()).flat_map(|p| rig.decode(1, p, prompt[p])).collect();
    close("token by token", &tokens, &whole, BAR);
}

#[test]
fn rings_per_request_equal_rings_per_page() {
    let prompt = prompt();
    let checkpoint = checkpoint();
    let whole = Rig::new(HostOps, PLAIN).prefill(0, &prompt, &[]).concat();
    let shape = CacheShape::ring_per_request(checkpoint.config().window, true);
    let mut rig = Rig::with(HostOps, &checkpoint, PLAIN, shape);
    close("rings per request", &rig.prefill(3, &prompt, &CUTS).concat(), &whole, BAR);
}

/// A batch of 32 sequences at different places, and a mixed batch, against the same steps alone.
#[test]
fn batch_equals_one_by_one() {
    let prompt = prompt();
    let mut rig = Rig::new(HostOps, PLAIN);
    // Sequence s has read 3 + 7 s tokens of the prompt.
    let lengths: Vec<usize> = (0..32).map(|s| 3 + 7 * s).collect();
    for (s, &len) in lengths.iter().enumerate() {
        rig.prefill(s as u32, &prompt[..len], &[]);
    }
    let alone: Vec<f32> =
        lengths.iter().enumerate().flat_map(|(s, &len)| rig.decode(s as u32, len, prompt[len])).collect();
    let entries: Vec<_> =
        lengths.iter().enumerate().map(|(s, &len)| rig.entry(s as u32, len, &prompt[len..=len])).collect();
    close("batch of 32", &rig.run(entries.clone(), 32).concat(), &alone, BAR);

    let chunk = rig.prefill(32, &prompt[..200], &[]);
    let mut mixed = entries;
    mixed.push(rig.entry(32, 0, &prompt[..200]));
    let together = rig.run(mixed, 32).concat();
    close("decode part of a mixed batch", &together[..alone.len()], &alone, BAR);
    close("prefill part of a mixed batch", &together[alone.len()..], &chunk.concat(), BAR);
}

//! The written-byte maps against a plain vector of booleans.

use proptest::prelude::*;
use ptx_emulator::check::{InitMap, SparseInitMap};
use std::ops::Range;

const BYTES: u64 = 9000;

#[derive(Debug, Clone)]
enum Step {
    Set(Range<u64>),
    Clear(Range<u64>),
    Put(u64, u32, u64),
}

fn range() -> impl Strategy<Value = Range<u64>> {
    let start = prop_oneof![0..200u64, 4000..4200u64, 0..BYTES];
    let length = prop_oneof![0..20u64, 60..70u64, Just(4096), 0..BYTES];
    (start, length).prop_map(|(start, length)| start..(start + length).min(BYTES))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        range().prop_map(Step::Set),
        range().prop_map(Step::Clear),
        (0..BYTES - 64, 0..=64u32, any::<u64>()).prop_map(|(start, bytes, value)| Step::Put(start, bytes, value)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn maps_agree_with_booleans(steps in prop::collection::vec(step(), 1..30), looks in prop::collection::vec(range(), 20)) {
        let mut plain = vec![false; BYTES as usize];
        let mut dense = InitMap::new(BYTES, false);
        let mut sparse = SparseInitMap::new(BYTES);
        for step in steps {
            match step {
                Step::Set(range) => {
                    plain[range.start as usize..range.end as usize].fill(true);
                    dense.set(range.clone());
                    sparse.set(range);
                }
                Step::Clear(range) => {
                    plain[range.start as usize..range.end as usize].fill(false);
                    dense.clear(range.clone());
                    sparse.clear(range);
                }
                Step::Put(start, bytes, value) => {
                    dense.put_bits(start, bytes, value);
                    for i in 0..u64::from(bytes) {
                        let set = value >> i & 1 != 0;
                        plain[(start + i) as usize] = set;
                        let byte = start + i..start + i + 1;
                        if set { sparse.set(byte) } else { sparse.clear(byte) }
                    }
                }
            }
        }
        for look in looks {
            let part = &plain[look.start as usize..look.end as usize];
            let first = part.iter().position(|set| !set).map(|i| look.start + i as u64);
            prop_assert_eq!(dense.first_clear(look.clone()), first);
            prop_assert_eq!(sparse.first_clear(look.clone()), first);
            prop_assert_eq!(dense.all(look.clone()), first.is_none());
            prop_assert_eq!(sparse.all(look.clone()), first.is_none());
            let bytes = part.len().min(64);
            let bits = part[..bytes].iter().enumerate().fold(0, |bits, (i, set)| bits | u64::from(*set) << i);
            prop_assert_eq!(dense.bits(look.start, bytes as u32), bits);
        }
    }
}

#[test]
fn maps_start_as_asked_and_know_their_size() {
    assert!(InitMap::new(100, true).all(0..100));
    assert_eq!(InitMap::new(100, false).first_clear(7..100), Some(7));
    assert_eq!(InitMap::new(100, true).bytes(), 100);
    let sparse = SparseInitMap::new(1 << 40);
    assert_eq!((sparse.bytes(), sparse.first_clear(1 << 39..1 << 40)), (1 << 40, Some(1 << 39)));
    assert!(sparse.all(5..5));
}

#[test]
#[should_panic(expected = "past a memory of 100 bytes")]
fn a_range_past_the_end_is_refused() {
    InitMap::new(100, false).set(90..101);
}

//! What is refused, and in which words. A buffer is only its size here: checks need no device.

#[path = "checks/attention.rs"]
mod attention;
#[path = "checks/index.rs"]
mod index;
#[path = "checks/products.rs"]
mod products;
#[path = "checks/rows.rs"]
mod rows;
#[path = "checks/streams.rs"]
mod streams;
#[path = "checks/topk.rs"]
mod topk;
#[path = "checks/write.rs"]
mod write;

use proptest::prelude::*;
use reference::check::{narrow, narrow_stride};
use reference::ops::*;

type Size = u64;

fn len(size: &Size) -> u64 {
    *size
}

/// A change to a valid record, and the message that it must give.
type Change<'a, T> = (fn(&mut T), &'a str);

/// Applies each change to a valid record and compares the message.
fn expect<T: Clone>(valid: &T, check: impl Fn(&T) -> Result<(), OpsError>, table: &[Change<'_, T>]) {
    check(valid).expect("the record is valid before the change");
    for (change, message) in table {
        let mut changed = valid.clone();
        change(&mut changed);
        match check(&changed) {
            Ok(()) => panic!("accepted, expected: {message}"),
            Err(error) => assert_eq!(error.to_string(), *message),
        }
    }
}

/// Sizes, small ones and any.
fn numbers() -> impl Strategy<Value = [u32; 6]> {
    prop::array::uniform6(prop_oneof![0..200u32, any::<u32>()])
}

/// Strides, small multiples of 8 and any.
fn strides() -> impl Strategy<Value = [u64; 4]> {
    prop::array::uniform4(prop_oneof![(0..4000u64).prop_map(|s| 8 * s), any::<u64>()])
}

#[test]
fn narrowing() {
    assert_eq!(narrow("op", "x", i32::MAX as u64).unwrap(), i32::MAX);
    let error = narrow("op", "x", 1 << 31).unwrap_err().to_string();
    assert_eq!(error, "op: x: expected at most 2147483647, got 2147483648");
    assert_eq!(narrow_stride("op", "x", i64::MAX as u64).unwrap(), i64::MAX);
    assert!(narrow_stride("op", "x", 1 << 63).is_err());
}

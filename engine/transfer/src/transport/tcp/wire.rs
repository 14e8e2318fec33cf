//! Bytes of a data connection.
//!
//! A head of 40 bytes, for posts a table of ranges, then page bytes in the table's order. Decoding is total: any 40 bytes are
//! a head or an error, and nothing is allocated by a length that was not checked. Little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `pgs1` |
//! | 4 | kind |
//! | 5 | verdict of an ack |
//! | 6..8 | zero |
//! | 8..16 | ticket; HELLO: token of who connects |
//! | 16..24 | room; HELLO: token of who is connected to |
//! | 24..28 | epoch |
//! | 28..32 | number of ranges |
//! | 32..36 | crc32c of the table, 0 without one |
//! | 36..40 | crc32c of bytes 0..36 |

use super::super::MAX_COPIES;
use crate::ids::{RoomKey, Ticket};
use thiserror::Error;

pub(super) const HEAD_BYTES: usize = 40;
/// Offset and length of a range.
pub(super) const RANGE_BYTES: usize = 16;
const MAGIC: [u8; 4] = *b"pgs1";

/// What a head announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Who connects to whom; first on a connection, and only there.
    Hello,
    /// Table of targets, then their bytes.
    Write,
    /// Table of sources.
    Read,
    /// The bytes that a read asked for.
    Bytes,
    /// The end of a post.
    Ack,
}

/// How the other side ended a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    /// A range that is not inside a page of the receiver.
    Range,
    /// A room or epoch that is not expected.
    Stale,
}

/// A decoded head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) verdict: Verdict,
    pub(super) ticket: Ticket,
    pub(super) tag: RoomKey,
    pub(super) ranges: u32,
    pub(super) table_crc: u32,
}

/// A range of the receiver's arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum WireError {
    #[error("expected the magic `pgs1`, got {0:02x?}")]
    Magic([u8; 4]),
    #[error("head: crc32c {got:08x}, computed {expected:08x}")]
    HeadCrc { expected: u32, got: u32 },
    #[error("kind {0} is unknown")]
    Kind(u8),
    #[error("verdict {0} is unknown")]
    Verdict(u8),
    #[error("bytes 6..8 are not zero")]
    Reserved,
    #[error("{0} ranges, at most {MAX_COPIES} are possible")]
    Ranges(u32),
    #[error("table: crc32c {got:08x}, computed {expected:08x}")]
    TableCrc { expected: u32, got: u32 },
    #[error("the ranges sum to more bytes than the arena has ({arena})")]
    Total { arena: u64 },
    #[error("{kind:?} is not expected here")]
    Unexpected { kind: Kind },
}

const KINDS: [Kind; 5] = [Kind::Hello, Kind::Write, Kind::Read, Kind::Bytes, Kind::Ack];
const VERDICTS: [Verdict; 3] = [Verdict::Done, Verdict::Range, Verdict::Stale];

impl Head {
    pub(super) fn new(kind: Kind, ticket: Ticket, tag: RoomKey) -> Self {
        Self { kind, verdict: Verdict::Done, ticket, tag, ranges: 0, table_crc: 0 }
    }

    pub(super) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        // Discriminants are the wire's numbers: the order of KINDS and VERDICTS.
        bytes[4] = self.kind as u8;
        bytes[5] = self.verdict as u8;
        bytes[8..16].copy_from_slice(&self.ticket.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.room.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.tag.epoch.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.ranges.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.table_crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..36]);
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, WireError> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let [a, b, c, d, kind, verdict, reserved @ ..] = *bytes;
        if [a, b, c, d] != MAGIC {
            return Err(WireError::Magic([a, b, c, d]));
        }
        let (expected, got) = (crc32c::crc32c(&bytes[..36]), u32_at(36));
        if expected != got {
            return Err(WireError::HeadCrc { expected, got });
        }
        if reserved[..2] != [0; 2] {
            return Err(WireError::Reserved);
        }
        let ranges = u32_at(28);
        if ranges as usize > MAX_COPIES {
            return Err(WireError::Ranges(ranges));
        }
        Ok(Self {
            kind: *KINDS.get(kind as usize).ok_or(WireError::Kind(kind))?,
            verdict: *VERDICTS.get(verdict as usize).ok_or(WireError::Verdict(verdict))?,
            ticket: Ticket(u64_at(8)),
            tag: RoomKey { room: u64_at(16), epoch: u32_at(24) },
            ranges,
            table_crc: u32_at(32),
        })
    }
}

/// A head with its table, as it is sent.
pub(super) fn encode_post(head: &Head, ranges: impl ExactSizeIterator<Item = Range>) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    bytes.reserve(ranges.len() * RANGE_BYTES);
    let mut head = Head { ranges: ranges.len() as u32, ..*head };
    for Range { offset, bytes: len } in ranges {
        bytes.extend(offset.to_le_bytes());
        bytes.extend(len.to_le_bytes());
    }
    head.table_crc = crc32c::crc32c(&bytes[HEAD_BYTES..]);
    bytes[..HEAD_BYTES].copy_from_slice(&head.encode());
    bytes
}

/// The table behind a head; its bytes must sum to no more than an arena has.
pub(super) fn decode_table(head: &Head, table: &[u8], arena: u64) -> Result<Vec<Range>, WireError> {
    let expected = crc32c::crc32c(table);
    if expected != head.table_crc {
        return Err(WireError::TableCrc { expected, got: head.table_crc });
    }
    let range = |bytes: &[u8; RANGE_BYTES]| {
        let [offset, len] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        });
        Range { offset, bytes: len }
    };
    let ranges: Vec<_> = table.as_chunks::<RANGE_BYTES>().0.iter().map(range).collect();
    let total = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.bytes));
    // Nothing that is meant exceeds this: a post names each page once.
    if total.is_none_or(|total| total > arena) {
        return Err(WireError::Total { arena });
    }
    Ok(ranges)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> impl Strategy<Value = Head> {
        let choice = (prop::sample::select(&KINDS[..]), prop::sample::select(&VERDICTS[..]));
        (choice, any::<(u64, u64, u32, u32)>(), 0..=MAX_COPIES as u32).prop_map(
            |((kind, verdict), (ticket, room, epoch, table_crc), ranges)| {
                let (ticket, tag) = (Ticket(ticket), RoomKey { room, epoch });
                Head { kind, verdict, ticket, tag, ranges, table_crc }
            },
        )
    }

    proptest! {
        #[test]
        fn heads_survive(head in head()) {
            prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
        }

        #[test]
        fn a_changed_bit_is_seen(head in head(), bit in 0usize..HEAD_BYTES * 8) {
            let mut bytes = head.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Head::decode(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_a_head_or_an_error(mut bytes: [u8; 36], magic: bool) {
            if magic {
                bytes[..4].copy_from_slice(&MAGIC);
            }
            let mut all = [0; HEAD_BYTES];
            all[..36].copy_from_slice(&bytes);
            all[36..].copy_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
            if let Ok(head) = Head::decode(&all) {
                prop_assert_eq!(head.encode(), all);
            }
        }

        #[test]
        fn tables_survive_and_are_bounded(ranges in prop::collection::vec((any::<u64>(), 0u64..1000), 0..20), flip: bool) {
            let ranges: Vec<_> = ranges.into_iter().map(|(offset, bytes)| Range { offset, bytes }).collect();
            let total: u64 = ranges.iter().map(|range| range.bytes).sum();
            let head = Head::new(Kind::Write, Ticket(1), RoomKey { room: 1, epoch: 1 });
            let mut bytes = encode_post(&head, ranges.iter().copied());
            let mut first = [0; HEAD_BYTES];
            first.copy_from_slice(&bytes[..HEAD_BYTES]);
            let head = Head::decode(&first).unwrap();
            prop_assert_eq!(head.ranges as usize, ranges.len());
            prop_assert_eq!(decode_table(&head, &bytes[HEAD_BYTES..], total), Ok(ranges.clone()));
            if total > 0 {
                let refused = decode_table(&head, &bytes[HEAD_BYTES..], total - 1);
                prop_assert_eq!(refused, Err(WireError::Total { arena: total - 1 }));
            }
            if flip && !ranges.is_empty() {
                bytes[HEAD_BYTES] ^= 1;
                let refused = decode_table(&head, &bytes[HEAD_BYTES..], total);
                let seen = matches!(refused, Err(WireError::TableCrc { .. }));
                prop_assert!(seen);
            }
        }
    }

    #[test]
    fn errors_say_what_stands_there() {
        let mut bytes = Head::new(Kind::Ack, Ticket(1), RoomKey { room: 1, epoch: 1 }).encode();
        let sealed = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            let crc = crc32c::crc32c(&bytes[..36]);
            bytes[36..].copy_from_slice(&crc.to_le_bytes());
            Head::decode(&bytes).unwrap_err().to_string()
        };
        assert_eq!(sealed(4, 9), "kind 9 is unknown");
        assert_eq!(sealed(5, 3), "verdict 3 is unknown");
        assert_eq!(sealed(7, 1), "bytes 6..8 are not zero");
        assert_eq!(sealed(31, 1), "16777216 ranges, at most 65536 are possible");
        bytes[0] = b'x';
        assert_eq!(Head::decode(&bytes).unwrap_err().to_string(), "expected the magic `pgs1`, got [78, 67, 73, 31]");
    }
}

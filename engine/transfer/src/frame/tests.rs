//! The decoder on good, damaged and random bytes.

use super::*;
use crate::hello::{Side, tests::hello};
use crate::reason::Code;
use proptest::prelude::*;

/// One frame of every kind.
fn samples() -> Vec<Frame> {
    let key = RoomKey { room: 0x0102_0304_0506_0708, epoch: 3 };
    let reason = Reason::new(Code::Refused, "prompt of 9,000 tokens, at most 8,192");
    let bodies = vec![
        Body::Hello(Box::new(hello(Side::Decode))),
        Body::Refuse(Refusal { field: "rank".into(), ours: "0".into(), theirs: "1".into() }),
        Body::Open(Open {
            deadline_ms: 9,
            priority: 2,
            request: vec![1, 2, 3],
            pages: vec![vec![4, 5], vec![], vec![6]],
        }),
        Body::Ask,
        Body::Layer { unit: Unit(4), checksums: vec![u64::MAX, 1] },
        Body::Done { units: 44, handover: vec![7; 9] },
        Body::DoneAck,
        Body::Fail(reason.clone()),
        Body::Abort(reason),
        Body::AbortAck(Drain::Draining { upto: 12 }),
        Body::AbortAck(Drain::Quiet),
        Body::Fence { upto: 5 },
        Body::FenceAck { upto: 6 },
        Body::Beat(vec![(key, Stage::Moving), (RoomKey { room: 1, epoch: 1 }, Stage::Published)]),
        Body::Bye,
    ];
    let frame = |(i, body): (usize, Body)| Frame {
        key: if body.kind().names_room() { key } else { NO_ROOM },
        sequence: i as u64 + 1,
        body,
    };
    bodies.into_iter().enumerate().map(frame).collect()
}

fn resum(bytes: &mut [u8]) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..32]), &bytes[HEADER_BYTES..]);
    bytes[32..36].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn every_kind_survives_the_wire() {
    let kinds: std::collections::BTreeSet<_> = samples().iter().map(|frame| frame.body.kind()).collect();
    assert_eq!(kinds.len(), Kind::ALL.len());
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!((kind as usize, Kind::from_wire(kind as u8)), (i + 1, Some(kind)));
    }
    for (i, code) in Code::ALL.into_iter().enumerate() {
        assert_eq!((code as usize, Code::from_wire(code as u8)), (i, code));
    }
    for frame in samples() {
        let bytes = encode(&frame).unwrap();
        assert_eq!(decode(&bytes), Decoded::Frame { frame, used: bytes.len() });
    }
}

#[test]
fn header_bytes_are_as_documented() {
    let bytes = encode(&samples()[11]).unwrap();
    assert_eq!(bytes[..24], *b"KVPD\x01\x0b\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!((bytes[24], bytes.len()), (12, 44));
}

#[test]
fn the_start_of_a_frame_wants_more() {
    for frame in samples() {
        let bytes = encode(&frame).unwrap();
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), Decoded::NeedMore, "{:?} cut at {end}", frame.body.kind());
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    for frame in samples() {
        let bytes = encode(&frame).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match decode(&damaged) {
                Decoded::Lost(_) => {}
                // A length that grew; the frames behind it complete it, and the sum is wrong then.
                Decoded::NeedMore => {
                    damaged.resize(HEADER_BYTES + MAX_BODY_BYTES, 0);
                    assert!(matches!(decode(&damaged), Decoded::Lost(FrameError::Crc { .. })), "bit {bit}");
                }
                other => panic!("bit {bit} of {:?}: {other:?}", frame.body.kind()),
            }
        }
    }
}

#[test]
fn unknown_kinds_and_bodies_are_skipped_at_their_length() {
    let mut unknown = encode(&samples()[4]).unwrap();
    unknown[5] = 200;
    resum(&mut unknown);
    assert_eq!(decode(&unknown), Decoded::Skip { error: FrameError::Kind { got: 200 }, used: unknown.len() });

    // A list that claims 2^32 - 1 checksums: refused before anything is allocated for it.
    let mut long = encode(&samples()[4]).unwrap();
    long[HEADER_BYTES + 4..HEADER_BYTES + 8].fill(0xff);
    resum(&mut long);
    let Decoded::Skip { error, used } = decode(&long) else { panic!() };
    assert_eq!(error.to_string(), format!("Layer: 16 bytes left, expected {}", u64::from(u32::MAX) * 8));
    assert_eq!(used, long.len());

    let mut nobody = encode(&samples()[4]).unwrap();
    nobody[20..24].fill(0);
    resum(&mut nobody);
    assert!(matches!(decode(&nobody), Decoded::Skip { error: FrameError::Body { kind: Kind::Layer, .. }, .. }));
}

#[test]
fn a_length_over_the_limit_loses_the_stream_before_it_is_waited_for() {
    let mut bytes = encode(&samples()[3]).unwrap();
    bytes[8..12].copy_from_slice(&(MAX_BODY_BYTES as u32 + 1).to_le_bytes());
    assert_eq!(decode(&bytes), Decoded::Lost(FrameError::Length { kind: Kind::Ask as u8, got: (1 << 20) + 1 }));
    let handover = vec![0; MAX_BODY_BYTES];
    let frame = Frame { key: RoomKey { room: 1, epoch: 1 }, sequence: 1, body: Body::Done { units: 1, handover } };
    assert_eq!(encode(&frame), Err(FrameError::Length { kind: Kind::Done as u8, got: (1 << 20) + 8 }));
}

#[test]
fn a_long_reason_is_cut_at_a_character() {
    let body = Body::Fail(Reason::new(Code::Refused, format!("x{}", "é".repeat(600))));
    let bytes = encode(&Frame { key: RoomKey { room: 1, epoch: 1 }, sequence: 1, body }).unwrap();
    let Decoded::Frame { frame: Frame { body: Body::Fail(reason), .. }, .. } = decode(&bytes) else { panic!() };
    assert_eq!(reason.text.len(), 1023);
}

/// Reasons stand in answers to clients and in logs; a peer may write what it likes.
#[test]
fn f01_a_reason_that_a_peer_made_too_long_is_cut_too() {
    let body = Body::Fail(Code::Refused.into());
    let mut bytes = encode(&Frame { key: RoomKey { room: 1, epoch: 1 }, sequence: 1, body }).unwrap();
    let text = "é".repeat(100_000);
    bytes[8..12].copy_from_slice(&(5 + text.len() as u32).to_le_bytes());
    bytes[HEADER_BYTES + 1..].copy_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend(text.bytes());
    resum(&mut bytes);
    let Decoded::Frame { frame: Frame { body: Body::Fail(reason), .. }, .. } = decode(&bytes) else { panic!() };
    assert_eq!(reason.text, text[..1024]);
}

/// xorshift64*: random bytes without a dependency, the same on every machine.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[test]
fn f01_a_million_random_byte_strings_give_an_answer() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let samples: Vec<_> = samples().iter().map(|frame| encode(frame).unwrap()).collect();
    let mut seen = [0u64; 4];
    for round in 0..1_000_000u32 {
        let mut bytes: Vec<u8> = Vec::with_capacity(96);
        if round % 2 == 0 {
            (0..next(&mut state) % 12).for_each(|_| bytes.extend(next(&mut state).to_le_bytes()));
        } else {
            // A true frame with a few bytes changed and the sum put right, so that the body's reader is reached.
            bytes.extend(&samples[1 + next(&mut state) as usize % (samples.len() - 1)]);
            for _ in 0..=next(&mut state) % 3 {
                let at =
                    HEADER_BYTES.min(bytes.len() - 1) + next(&mut state) as usize % (bytes.len() - HEADER_BYTES + 1);
                let at = if next(&mut state).is_multiple_of(8) { 5 } else { at.min(bytes.len() - 1) };
                bytes[at] = next(&mut state) as u8;
            }
            resum(&mut bytes);
        }
        match decode(&bytes) {
            Decoded::Frame { .. } => seen[0] += 1,
            Decoded::Skip { used, .. } => {
                assert!(used <= bytes.len());
                seen[1] += 1;
            }
            Decoded::NeedMore => seen[2] += 1,
            Decoded::Lost(_) => seen[3] += 1,
        }
    }
    assert!(seen.iter().all(|&count| count > 1000), "{seen:?}");
}

#[test]
fn a_lost_stream_says_so_once() {
    let mut reader = FrameReader::new();
    reader.push(&encode(&samples()[3]).unwrap());
    reader.push(b"GET /health HTTP/1.1\r\n");
    assert!(reader.next_frame().unwrap().is_ok());
    assert!(matches!(reader.next_frame(), Some(Err(FrameError::Magic { .. }))));
    reader.push(&encode(&samples()[3]).unwrap());
    assert_eq!(reader.next_frame(), None);
}

proptest! {
    #[test]
    fn a_stream_is_cut_into_the_same_frames_wherever_it_is_split(cuts in prop::collection::vec(1usize..200, 1..60)) {
        let frames = samples();
        let stream: Vec<u8> = frames.iter().flat_map(|frame| encode(frame).unwrap()).collect();
        let (mut reader, mut got, mut rest) = (FrameReader::new(), Vec::new(), &stream[..]);
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let (head, tail) = rest.split_at(cut.min(rest.len()));
            rest = tail;
            reader.push(head);
            while let Some(frame) = reader.next_frame() {
                got.push(frame.unwrap());
            }
        }
        prop_assert_eq!(got, frames);
    }

    #[test]
    fn what_is_decoded_encodes_to_itself(room in any::<u64>(), epoch in 1u32.., sequence in any::<u64>(),
            request in prop::collection::vec(any::<u8>(), 0..300), pages in prop::collection::vec(prop::collection::vec(any::<u32>(), 0..40), 0..5)) {
        let counts: Vec<u32> = pages.iter().map(|pages| pages.len() as u32).collect();
        let expected = HEADER_BYTES + open_bytes(request.len(), &counts);
        let body = Body::Open(Open { deadline_ms: epoch, priority: sequence as u8, request, pages });
        let frame = Frame { key: RoomKey { room, epoch }, sequence, body };
        let bytes = encode(&frame).unwrap();
        prop_assert_eq!(bytes.len(), expected);
        prop_assert_eq!(decode(&bytes), Decoded::Frame { frame, used: bytes.len() });
    }
}

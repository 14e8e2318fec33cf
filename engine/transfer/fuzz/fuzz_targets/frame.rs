//! Any bytes: the decoder answers with a frame or an error, what it takes for a frame encodes to the same bytes, and a stream
//! is cut into the same frames wherever it is split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use transfer::frame::{Body, Decoded, Frame, FrameError, FrameReader, HEADER_BYTES, MAGIC, VERSION, decode, encode};

fuzz_target!(|data: &[u8]| {
    judge(data);
    if let Some(frame) = repaired(data) {
        judge(&frame);
        split(&[&frame[..], data].concat());
    }
    split(data);
});

fn judge(bytes: &[u8]) {
    match decode(bytes) {
        Decoded::Frame { frame, used } => {
            let again = encode(&frame).expect("what fits a frame once fits again");
            // Words of a handshake are JSON, which has more than one spelling; codes of other versions are read as one of ours.
            if matches!(frame.body, Body::Hello(_) | Body::Refuse(_) | Body::Fail(_) | Body::Abort(_)) {
                let used = again.len();
                assert_eq!(decode(&again), Decoded::Frame { frame, used });
            } else {
                assert_eq!(again, bytes[..used]);
            }
        }
        Decoded::Skip { used, error } => assert!((HEADER_BYTES..=bytes.len()).contains(&used) && !error.loses_stream()),
        Decoded::Lost(error) => assert!(error.loses_stream()),
        Decoded::NeedMore => {}
    }
}

/// Kind, key, sequence and body as they are; magic, version, length and sum put right, so that the reader of the body is reached.
fn repaired(data: &[u8]) -> Option<Vec<u8>> {
    let mut frame = data.to_vec();
    let body = u32::try_from(data.len().checked_sub(HEADER_BYTES)?).ok()?;
    frame[..4].copy_from_slice(&MAGIC);
    frame[4] = VERSION;
    frame[6..8].fill(0);
    frame[8..12].copy_from_slice(&body.to_le_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&frame[..32]), &frame[HEADER_BYTES..]);
    frame[32..36].copy_from_slice(&sum.to_le_bytes());
    Some(frame)
}

/// What a reader makes of a stream. How a stream is lost may hang on how much of it was there.
fn frames<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Result<Frame, Option<FrameError>>> {
    let (mut reader, mut frames) = (FrameReader::new(), Vec::new());
    for piece in pieces {
        reader.push(piece);
        while let Some(frame) = reader.next_frame() {
            frames.push(frame.map_err(|error| (!error.loses_stream()).then_some(error)));
        }
    }
    frames
}

fn split(stream: &[u8]) {
    let whole = frames([stream].into_iter());
    let piece = 1 + stream.first().copied().unwrap_or(0) as usize % 50;
    assert_eq!(whole, frames(stream.chunks(piece)));
}

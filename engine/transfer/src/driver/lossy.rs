//! Faults of frames: what a network or a careless peer could do to them, in both directions of one connection.

use crate::fault::{Fault, Faults, Injected, Point};
use crate::frame::{HEADER_BYTES, Kind, MAGIC, MAX_BODY_BYTES};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Both directions of a connection.
#[derive(Debug)]
pub(super) struct Lossy {
    faults: Arc<Faults>,
    sent: Lane,
    received: Lane,
    /// Received bytes that are no whole frame yet.
    rest: Vec<u8>,
}

/// Frames on their way in one direction. A delay holds those behind it too, as a slow network would; [`Fault::Reorder`] alone
/// changes their order.
#[derive(Debug, Default)]
struct Lane {
    held: VecDeque<(Duration, Vec<u8>)>,
    /// Goes behind the next one.
    overtaken: Option<Vec<u8>>,
}

impl Lossy {
    /// Where there are faults for frames at all.
    pub(super) fn new(faults: &Arc<Faults>) -> Option<Self> {
        let any = faults.any(Point::FrameSent) || faults.any(Point::FrameReceived);
        any.then(|| Self {
            faults: Arc::clone(faults),
            sent: Lane::default(),
            received: Lane::default(),
            rest: Vec::new(),
        })
    }

    /// A frame to be sent; those that leave.
    pub(super) fn send(&mut self, frame: Vec<u8>, now: Duration) -> Vec<Vec<u8>> {
        let hit = self.faults.at(Point::FrameSent, name(&frame));
        self.sent.take(frame, hit, now);
        self.sent.due(now)
    }

    /// Frames whose time to leave has come.
    pub(super) fn sent(&mut self, now: Duration) -> Vec<Vec<u8>> {
        self.sent.due(now)
    }

    /// Bytes from the socket; those that arrive.
    pub(super) fn receive(&mut self, bytes: &[u8], now: Duration) -> Vec<u8> {
        self.rest.extend_from_slice(bytes);
        while let Some(frame) = cut(&mut self.rest) {
            let hit = self.faults.at(Point::FrameReceived, name(&frame));
            self.received.take(frame, hit, now);
        }
        self.received(now)
    }

    /// Bytes whose time to arrive has come.
    pub(super) fn received(&mut self, now: Duration) -> Vec<u8> {
        self.received.due(now).concat()
    }
}

impl Lane {
    fn take(&mut self, mut frame: Vec<u8>, hit: Option<Injected>, now: Duration) {
        let due = self.held.back().map_or(now, |(due, _)| now.max(*due));
        let overtaken = self.overtaken.take();
        match hit.map(|hit| (hit, hit.fault)) {
            Some((_, Fault::Drop)) => {}
            Some((_, Fault::Reorder)) => self.overtaken = Some(frame),
            Some((_, Fault::Duplicate)) => self.held.extend([(due, frame.clone()), (due, frame)]),
            Some((hit, Fault::Delay)) => {
                self.held.push_back((due.max(now + Duration::from_millis(hit.number)), frame));
            }
            Some((hit, Fault::Truncate)) => {
                frame.truncate(place(&hit, frame.len()));
                self.held.push_back((due, frame));
            }
            Some((hit, Fault::Flip)) => {
                let at = place(&hit, frame.len());
                if let Some(byte) = frame.get_mut(at) {
                    *byte ^= 0x10;
                }
                self.held.push_back((due, frame));
            }
            Some(_) | None => self.held.push_back((due, frame)),
        }
        self.held.extend(overtaken.map(|frame| (due, frame)));
    }

    fn due(&mut self, now: Duration) -> Vec<Vec<u8>> {
        let due = self.held.iter().take_while(|(due, _)| *due <= now).count();
        self.held.drain(..due).map(|(_, frame)| frame).collect()
    }
}

/// The byte that a rule names, or one by its seed.
fn place(hit: &Injected, len: usize) -> usize {
    match hit.number {
        0 => (hit.random % len.max(1) as u64) as usize,
        at => usize::try_from(at).unwrap_or(usize::MAX),
    }
}

/// Kind of an encoded frame, as rules name it.
fn name(frame: &[u8]) -> &'static str {
    frame.get(5).and_then(|&kind| Kind::from_wire(kind)).map_or("", Kind::name)
}

/// The first whole frame. Bytes that begin no frame are taken as one: it is the reader who judges them.
fn cut(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let head = bytes.get(..HEADER_BYTES)?;
    let body = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
    let len = match head.starts_with(&MAGIC) && body <= MAX_BODY_BYTES {
        true => HEADER_BYTES + body,
        false => bytes.len(),
    };
    (bytes.len() >= len).then(|| bytes.drain(..len).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::{Body, Decoded, Frame, NO_ROOM, decode, encode};
    use crate::ids::RoomKey;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn frame(sequence: u64) -> Vec<u8> {
        let (body, key) = match sequence % 2 {
            0 => (Body::Bye, NO_ROOM),
            _ => (Body::Ask, RoomKey { room: 3, epoch: 1 }),
        };
        encode(&Frame { key, sequence, body }).unwrap()
    }

    fn lossy(rules: &str) -> Lossy {
        Lossy::new(&Arc::new(Faults::parse(rules).unwrap())).expect("rules for frames")
    }

    /// Sequence numbers that leave, of six frames sent at 0 ms, at the given times.
    fn sent(rules: &str, times: &[u64]) -> Vec<Vec<u64>> {
        let mut lossy = lossy(rules);
        let number = |frame: Vec<u8>| match decode(&frame) {
            Decoded::Frame { frame, .. } => frame.sequence,
            other => panic!("{other:?}"),
        };
        let mut first: Vec<u64> = Vec::new();
        (1..=6).for_each(|i| first.extend(lossy.send(frame(i), ms(0)).into_iter().map(number)));
        let rest = times.iter().map(|&at| lossy.sent(ms(at)).into_iter().map(number).collect());
        std::iter::once(first).chain(rest).collect()
    }

    #[test]
    fn frames_are_lost_doubled_swapped_and_late() {
        assert_eq!(sent("frame-sent:ASK=drop#2", &[]), [[1, 2, 4, 5, 6]]);
        assert_eq!(sent("frame-sent=duplicate#3", &[]), [[1, 2, 3, 3, 4, 5, 6]]);
        assert_eq!(sent("frame-sent:BYE=reorder", &[]), [[1, 3, 2, 5, 4]], "the last one still waits");
        // The number of a rule; what is behind a slow frame waits with it.
        assert_eq!(sent("frame-sent=delay(30)#3", &[29, 30]), [vec![1, 2], vec![], vec![3, 4, 5, 6]]);
        assert!(Lossy::new(&Arc::new(Faults::parse("post=fail").unwrap())).is_none());
    }

    #[test]
    fn received_bytes_are_cut_into_frames_whatever_their_pieces() {
        let stream: Vec<u8> = (1..=6).flat_map(frame).collect();
        for piece in [1, 7, 36, 37, 100, stream.len()] {
            let mut lossy = lossy("frame-received:ASK=drop#1; frame-received:BYE=flip(33)#2");
            let arrived: Vec<u8> = stream.chunks(piece).flat_map(|piece| lossy.receive(piece, ms(0))).collect();
            let mut wrong = frame(4);
            wrong[33] ^= 0x10;
            let expected: Vec<u8> = [frame(2), frame(3), wrong, frame(5), frame(6)].concat();
            assert_eq!(arrived, expected, "pieces of {piece}");
        }
        let mut lossy = lossy("frame-received=truncate(10)#1");
        assert_eq!(lossy.receive(&frame(1), ms(0)), frame(1)[..10]);
        assert_eq!(lossy.receive(&[7; 50], ms(0)), [7; 50], "what is no frame passes as it is");
    }
}

//! Bytes of a frame, both ways.

use super::{Body, Decoded, Drain, Frame, FrameError, HEADER_BYTES, Kind, MAGIC, MAX_BODY_BYTES, Open, Stage, VERSION};
use crate::ids::{RoomKey, Unit};
use crate::reason::{Code, Reason};

/// Bytes of one room in a beat.
const BEAT_ENTRY_BYTES: usize = 8 + 4 + 1;

/// Writes a frame.
///
/// # Errors
/// [`FrameError::Length`]: the body exceeds [`MAX_BODY_BYTES`].
pub fn encode(frame: &Frame) -> Result<Vec<u8>, FrameError> {
    let kind = frame.body.kind() as u8;
    let mut out = Vec::with_capacity(HEADER_BYTES + 64);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, kind, 0, 0]);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&frame.key.room.to_le_bytes());
    out.extend_from_slice(&frame.key.epoch.to_le_bytes());
    out.extend_from_slice(&frame.sequence.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    write_body(&frame.body, &mut out);
    let length = out.len() - HEADER_BYTES;
    match u32::try_from(length) {
        Ok(bytes) if length <= MAX_BODY_BYTES => out[8..12].copy_from_slice(&bytes.to_le_bytes()),
        Ok(_) | Err(_) => return Err(FrameError::Length { kind, got: length as u64 }),
    }
    let sum = crc(&out);
    out[32..36].copy_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// Sum over header and body without the sum's own bytes.
fn crc(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..32]), &frame[HEADER_BYTES..])
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    // Longer than u32 is longer than a body; encode refuses it by the length of the whole.
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Bytes of the body of an OPEN with a request of so many bytes and so many pages by class; at most [`MAX_BODY_BYTES`] can be sent.
pub fn open_bytes(request: usize, pages: &[u32]) -> usize {
    // Deadline and priority; the request, the list of lists and every list behind its length.
    let lists: usize = pages.iter().map(|&pages| 4 + 4 * pages as usize).sum();
    5 + 4 + request + 4 + lists
}

fn write_json(value: &impl serde::Serialize, out: &mut Vec<u8>) {
    // Structs of numbers, strings and lists with fixed field names: nothing of which serde_json can fail to write.
    out.extend_from_slice(&serde_json::to_vec(value).expect("plain data"));
}

fn write_body(body: &Body, out: &mut Vec<u8>) {
    match body {
        Body::Hello(hello) => write_json(hello, out),
        Body::Refuse(refusal) => write_json(refusal, out),
        Body::Open(open) => {
            out.extend_from_slice(&open.deadline_ms.to_le_bytes());
            out.push(open.priority);
            write_bytes(&open.request, out);
            out.extend_from_slice(&(open.pages.len() as u32).to_le_bytes());
            for pages in &open.pages {
                out.extend_from_slice(&(pages.len() as u32).to_le_bytes());
                out.extend(pages.iter().flat_map(|page| page.to_le_bytes()));
            }
        }
        Body::Ask | Body::DoneAck | Body::Bye => {}
        Body::Layer { unit, checksums } => {
            out.extend_from_slice(&unit.0.to_le_bytes());
            out.extend_from_slice(&(checksums.len() as u32).to_le_bytes());
            out.extend(checksums.iter().flat_map(|sum| sum.to_le_bytes()));
        }
        Body::Done { units, handover } => {
            out.extend_from_slice(&units.to_le_bytes());
            write_bytes(handover, out);
        }
        Body::Fail(reason) | Body::Abort(reason) => {
            out.push(reason.code as u8);
            write_bytes(reason.wire_text().as_bytes(), out);
        }
        Body::AbortAck(drain) => {
            let (flag, upto) = match *drain {
                Drain::Quiet => (0u8, 0),
                Drain::Draining { upto } => (1, upto),
            };
            out.push(flag);
            out.extend_from_slice(&upto.to_le_bytes());
        }
        Body::Fence { upto } | Body::FenceAck { upto } => out.extend_from_slice(&upto.to_le_bytes()),
        Body::Beat(rooms) => {
            out.extend_from_slice(&(rooms.len() as u32).to_le_bytes());
            for (key, stage) in rooms {
                out.extend_from_slice(&key.room.to_le_bytes());
                out.extend_from_slice(&key.epoch.to_le_bytes());
                out.push(*stage as u8);
            }
        }
    }
}

/// Reads the frame at the start of `bytes`; total, and allocates nothing that the bytes at hand do not fill.
pub fn decode(bytes: &[u8]) -> Decoded {
    let start = &bytes[..bytes.len().min(4)];
    if !MAGIC.starts_with(start) {
        let mut got = [0; 4];
        got[..start.len()].copy_from_slice(start);
        return Decoded::Lost(FrameError::Magic { got });
    }
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Decoded::NeedMore;
    };
    let mut fields = Reader(&header[4..]);
    let (Ok(version), Ok(kind), Ok(_), Ok(length), Ok(room), Ok(epoch), Ok(sequence), Ok(sum)) = (
        fields.u8(),
        fields.u8(),
        fields.take(2),
        fields.u32(),
        fields.u64(),
        fields.u32(),
        fields.u64(),
        fields.u32(),
    ) else {
        return Decoded::NeedMore;
    };
    if version != VERSION {
        return Decoded::Lost(FrameError::Version { got: version });
    }
    if length as usize > MAX_BODY_BYTES {
        return Decoded::Lost(FrameError::Length { kind, got: u64::from(length) });
    }
    let Some(body) = rest.get(..length as usize) else {
        return Decoded::NeedMore;
    };
    let used = HEADER_BYTES + body.len();
    let expected = crc(&bytes[..used]);
    if sum != expected {
        return Decoded::Lost(FrameError::Crc { kind, expected, got: sum });
    }
    let Some(kind) = Kind::from_wire(kind) else {
        return Decoded::Skip { error: FrameError::Kind { got: kind }, used };
    };
    if kind.names_room() == (epoch == 0) {
        let what =
            format!("epoch {epoch} in a frame that {} a room", if epoch == 0 { "names" } else { "does not name" });
        return Decoded::Skip { error: FrameError::Body { kind, what }, used };
    }
    let mut reader = Reader(body);
    let read = read_body(kind, &mut reader).and_then(|body| match reader.0.len() {
        0 => Ok(body),
        extra => Err(format!("{extra} bytes behind the body")),
    });
    match read {
        Ok(body) => Decoded::Frame { frame: Frame { key: RoomKey { room, epoch }, sequence, body }, used },
        Err(what) => Decoded::Skip { error: FrameError::Body { kind, what }, used },
    }
}

/// What is left of a body.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let short = || format!("{} bytes left, expected {count}", self.0.len());
        let (head, tail) = self.0.split_at_checked(count).ok_or_else(short)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// `count` elements of `N` bytes; the bytes are there before anything is allocated.
    fn list<const N: usize>(&mut self) -> Result<impl Iterator<Item = [u8; N]> + use<'a, N>, String> {
        let count = self.u32()? as usize;
        let bytes = self.take(count.checked_mul(N).ok_or("a list longer than memory")?)?;
        Ok(bytes.as_chunks::<N>().0.iter().copied())
    }

    fn bytes(&mut self) -> Result<&'a [u8], String> {
        let count = self.u32()? as usize;
        self.take(count)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

fn read_body(kind: Kind, from: &mut Reader<'_>) -> Result<Body, String> {
    let json = |error: serde_json::Error| error.to_string();
    Ok(match kind {
        Kind::Hello => Body::Hello(serde_json::from_slice(from.rest()).map_err(json)?),
        Kind::Refuse => Body::Refuse(serde_json::from_slice(from.rest()).map_err(json)?),
        Kind::Open => {
            let (deadline_ms, priority) = (from.u32()?, from.u8()?);
            let request = from.bytes()?.to_vec();
            let classes = from.u32()?;
            let mut pages = Vec::new();
            for _ in 0..classes {
                // A class costs four bytes at least, so a huge number ends with the bytes.
                pages.push(from.list()?.map(u32::from_le_bytes).collect());
            }
            Body::Open(Open { deadline_ms, priority, request, pages })
        }
        Kind::Ask => Body::Ask,
        Kind::Layer => {
            Body::Layer { unit: Unit(from.u32()?), checksums: from.list()?.map(u64::from_le_bytes).collect() }
        }
        Kind::Done => Body::Done { units: from.u32()?, handover: from.bytes()?.to_vec() },
        Kind::DoneAck => Body::DoneAck,
        Kind::Fail => Body::Fail(read_reason(from)?),
        Kind::Abort => Body::Abort(read_reason(from)?),
        Kind::AbortAck => Body::AbortAck(match (from.u8()?, from.u64()?) {
            (0, 0) => Drain::Quiet,
            (1, upto) => Drain::Draining { upto },
            (flag, upto) => return Err(format!("drain {flag} with number {upto}, expected 0 with 0, or 1")),
        }),
        Kind::Fence => Body::Fence { upto: from.u64()? },
        Kind::FenceAck => Body::FenceAck { upto: from.u64()? },
        Kind::Beat => {
            let entries = from.list::<BEAT_ENTRY_BYTES>()?.map(|entry| {
                let mut entry = Reader(&entry);
                let key = RoomKey { room: entry.u64()?, epoch: entry.u32()? };
                Ok((key, read_stage(entry.u8()?)?))
            });
            Body::Beat(entries.collect::<Result<_, String>>()?)
        }
        Kind::Bye => Body::Bye,
    })
}

fn read_reason(from: &mut Reader<'_>) -> Result<Reason, String> {
    let code = Code::from_wire(from.u8()?);
    let text = std::str::from_utf8(from.bytes()?).map_err(|error| error.to_string())?;
    Ok(Reason::new(code, text))
}

fn read_stage(number: u8) -> Result<Stage, String> {
    Ok(match number {
        0 => Stage::Opening,
        1 => Stage::Placed,
        2 => Stage::Moving,
        3 => Stage::Published,
        other => return Err(format!("stage {other}, expected 0 to 3")),
    })
}

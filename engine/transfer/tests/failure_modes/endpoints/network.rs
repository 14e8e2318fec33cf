//! Connections, frames on them, and posts: where everything goes wrong that is not a process.

use super::world::{Event, World, ms};
use crate::chance::Rng;
use std::time::Duration;
use transfer::endpoint::Endpoint;
use transfer::frame::{Decoded, FrameReader, decode};
use transfer::ids::{PeerId, RoomKey, Ticket};
use transfer::layout::PageCopy;

#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) process: usize,
    pub(crate) incarnation: u64,
    pub(crate) rank: usize,
    pub(crate) peer: PeerId,
}

/// A connection; end 0 is decode's.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) ends: [End; 2],
    pub(crate) readers: [FrameReader; 2],
    pub(crate) last: [Duration; 2],
    pub(crate) dead: [bool; 2],
}

#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) link: usize,
    pub(crate) key: RoomKey,
    pub(crate) copies: Vec<PageCopy>,
    /// Halves that have not landed.
    pub(crate) parts: u32,
    /// Said to be done when all is there.
    pub(crate) ticket: Option<Ticket>,
}

impl World {
    /// One end does not write or read any more; the other sees it soon.
    pub(crate) fn end_link(&mut self, id: usize, end: usize) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.dead[end] = true;
        self.transfers.retain(|_, transfer| transfer.link != id);
        if link.dead == [true; 2] {
            self.links.remove(&id);
        } else {
            self.at(ms(2), Event::Closed { link: id, end: 1 - end });
        }
    }

    /// The endpoint at an open end of a link.
    pub(crate) fn endpoint(&mut self, link: usize, end: usize) -> Option<(PeerId, &mut Endpoint)> {
        let found = self.links.get(&link).filter(|link| !link.dead[end])?.ends[end];
        let lives = self.lives(found.process, found.incarnation);
        lives.then(|| (found.peer, &mut self.processes[found.process].ranks[found.rank].endpoint))
    }

    pub(crate) fn connect(&mut self, process: usize, incarnation: u64, rank: usize) {
        if !self.lives(process, incarnation) {
            return;
        }
        if !self.processes[0].alive {
            return self.at(ms(300), Event::Connect { process, incarnation, rank });
        }
        let id = self.next_event as usize;
        let ends = [process, 0].map(|number| {
            let process = &mut self.processes[number];
            let rank_state = &mut process.ranks[rank];
            rank_state.next_peer += 1;
            let peer = PeerId(rank_state.next_peer);
            rank_state.links.insert(peer, id);
            End { process: number, incarnation: process.incarnation, rank, peer }
        });
        let readers = [FrameReader::new(), FrameReader::new()];
        self.links.insert(id, Link { ends, readers, last: [self.now; 2], dead: [false; 2] });
        (0..2).for_each(|end| self.at(ms(0), Event::Accept { link: id, end }));
    }

    pub(crate) fn torn_down(&mut self, link: usize, end: usize) {
        let now = self.now;
        let Some((peer, endpoint)) = self.endpoint(link, end) else { return };
        endpoint.on_torn_down(peer, now);
        self.tally.torn_down += 1;
        let End { process, incarnation, rank, .. } = self.links[&link].ends[end];
        self.processes[process].ranks[rank].links.remove(&peer);
        self.end_link(link, end);
        if end == 0 {
            self.at(ms(200), Event::Connect { process, incarnation, rank });
        }
    }

    pub(crate) fn deliver(&mut self, link: usize, end: usize, bytes: &[u8]) {
        let now = self.now;
        let Some(there) = self.links.get_mut(&link).filter(|link| !link.dead[end]) else { return };
        there.readers[end].push(bytes);
        let frames: Vec<_> = std::iter::from_fn(|| there.readers[end].next_frame()).collect();
        let Some((peer, endpoint)) = self.endpoint(link, end) else { return };
        for frame in frames {
            match frame {
                Ok(frame) => endpoint.on_frame(peer, frame, now),
                Err(error) => endpoint.on_bad_bytes(peer, &error, now),
            }
        }
    }

    pub(crate) fn transmit(&mut self, link: usize, to: usize, mut bytes: Vec<u8>) {
        let (faults, kind) = (self.faults.clone(), bytes[5]);
        let seen = self.kinds.entry(kind).or_insert(0);
        *seen += 1;
        let once = faults.drop_once.is_some_and(|(dropped, nth)| (dropped as u8, nth + 1) == (kind, *seen));
        if once || self.chance(faults.drop) {
            self.tally.dropped += 1;
            return;
        }
        if self.chance(faults.flip) {
            let at = self.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.rng.below(8);
        }
        if self.chance(faults.truncate) {
            bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
        }
        for (chance, high) in [(faults.duplicate, 50), (faults.replay, 4000)] {
            if self.chance(chance) {
                let time = self.rng.between(1, high);
                self.at(time, Event::Deliver { link, end: to, bytes: bytes.clone() });
            }
        }
        if self.chance(faults.garbage) {
            let noise = noise(&mut self.rng);
            self.at(ms(1), Event::Deliver { link, end: to, bytes: noise });
        }
        let mut time = self.now + self.rng.between(0, 2);
        if self.chance(faults.delay) {
            time += self.rng.between(1, 400);
        }
        if self.chance(faults.reorder) {
            time += self.rng.between(1, 300);
        } else {
            let Some(link) = self.links.get_mut(&link) else { return };
            time = time.max(link.last[to]);
            link.last[to] = time;
        }
        self.at(time - self.now, Event::Deliver { link, end: to, bytes });
    }

    /// Sends bytes to both ends of every connection.
    pub(crate) fn inject(&mut self, bytes: &[u8]) {
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            (0..2).for_each(|end| self.at(ms(0), Event::Deliver { link, end, bytes: bytes.to_vec() }));
        }
    }

    pub(crate) fn post(&mut self, link: usize, key: RoomKey, copies: Vec<PageCopy>, ticket: Ticket) {
        self.next_event += 1;
        let transfer = self.next_event;
        let faults = self.faults.clone();
        let [first, second] = [self.rng.between(0, 20), self.rng.between(0, 20)];
        let (mut late, mut said) = (ms(0), Some(ticket));
        if self.chance(faults.post_fails) {
            return self.at(first, Event::Ended { link, ticket, done: false });
        } else if self.chance(faults.post_fails_and_writes) {
            (late, said) = (ms(200), None);
            self.at(first, Event::Ended { link, ticket, done: false });
        } else if self.chance(faults.post_hangs) {
            (late, said) = (self.rng.between(100, 12_000), None);
        }
        self.transfers.insert(transfer, Transfer { link, key, copies, parts: 2, ticket: said });
        self.at(first + late, Event::Land { transfer, part: 0 });
        self.at(second + late, Event::Land { transfer, part: 1 });
    }

    /// Half of a post's pages land.
    pub(crate) fn land(&mut self, transfer: u64, part: usize) {
        let Some(there) = self.transfers.get_mut(&transfer) else { return };
        there.parts -= 1;
        let (link, key, half) = (there.link, there.key, there.copies.len() / 2);
        let copies = if part == 0 { there.copies[..half].to_vec() } else { there.copies[half..].to_vec() };
        if there.parts == 0
            && let Some(Transfer { ticket: Some(ticket), .. }) = self.transfers.remove(&transfer)
        {
            self.at(ms(1), Event::Ended { link, ticket, done: true });
        }
        let [to, from] = self.links[&link].ends;
        for copy in copies {
            let value = self.processes[from.process].ranks[from.rank].memory.get(&copy.src).copied().unwrap_or(0);
            let rank = &mut self.processes[to.process].ranks[to.rank];
            rank.memory.insert(copy.dst, value);
            let owner = rank.owners.get(&copy.dst).copied();
            if owner != Some(key) {
                self.violation(format!("a post of {key} wrote a page of {owner:?}"));
            }
        }
    }
}

/// Bytes that nobody should send: unknown kinds, empty bodies, or no frame at all.
pub(crate) fn noise(rng: &mut Rng) -> Vec<u8> {
    if rng.chance(200) {
        return (0..1 + rng.below(80)).map(|_| rng.next() as u8).collect();
    }
    let mut bytes = b"KVPD\x01\x00\0\0\0\0\0\0".to_vec();
    bytes[5] = rng.below(40) as u8;
    bytes.extend((rng.below(20)).to_le_bytes());
    bytes.extend((rng.below(3) as u32).to_le_bytes());
    bytes.extend((rng.below(1000)).to_le_bytes());
    bytes.extend([0; 4]);
    let body = rng.below(30);
    bytes[8] = body as u8;
    bytes.extend((0..body).map(|_| rng.below(4) as u8));
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..32]), &bytes[36..]);
    bytes[32..36].copy_from_slice(&sum.to_le_bytes());
    assert!(!matches!(decode(&bytes), Decoded::Lost(_) | Decoded::NeedMore));
    bytes
}

//! Time: beats, silence, deadlines, repetitions.

use super::Endpoint;
use super::peer::Phase;
use crate::frame::{Body, NO_ROOM};
use crate::ids::PeerId;
use crate::reason::{Code, Reason};
use crate::room::Event;
use std::time::Duration;

/// Most rooms in one beat; more go into several.
const ROOMS_PER_BEAT: usize = 8192;

impl Endpoint {
    /// Lets time pass. Late ticks do no harm beyond delay.
    pub fn on_tick(&mut self, now: Duration) {
        if self.dead {
            return;
        }
        for id in self.peer_ids() {
            self.tick_peer(id, now);
        }
        let keys: Vec<_> = self.rooms.keys().copied().collect();
        for key in keys {
            if let Some((timer, due)) = self.rooms.get(&key).and_then(|entry| entry.timer)
                && due <= now
            {
                self.step(key, Event::Deadline(timer), now);
            }
            if let Some(entry) = self.rooms.get_mut(&key)
                && entry.next_retry <= now
            {
                entry.next_retry = now + self.timers.retry;
                self.step(key, Event::Retry, now);
            }
        }
        self.keep_quarantine_small(now);
        for id in self.peer_ids() {
            if let Some(upto) = self.peers.get_mut(&id).and_then(|peer| peer.fence.take()) {
                self.send(id, NO_ROOM, Body::Fence { upto }, now);
            }
        }
    }

    /// When [`Endpoint::on_tick`] has something to do next; `None` without peers and rooms.
    pub fn next_due(&self) -> Option<Duration> {
        if self.dead {
            return None;
        }
        let peers = self.peers.values().filter_map(|peer| match peer.phase {
            Phase::Greeting => Some(peer.since + self.timers.handshake),
            Phase::Ready => Some(peer.next_beat.min(peer.heard + self.timers.silence())),
            Phase::Closing => None,
        });
        let rooms = self.rooms.values().flat_map(|entry| {
            let waits = entry.room.timer(&self.on).is_some();
            [entry.timer.map(|(_, due)| due), waits.then_some(entry.next_retry)]
        });
        peers.chain(rooms.flatten()).min()
    }

    fn tick_peer(&mut self, id: PeerId, now: Duration) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match peer.phase {
            Phase::Greeting if peer.since + self.timers.handshake <= now => {
                let text = format!("no HELLO within {:?}", self.timers.handshake);
                self.close(id, Reason::new(Code::Handshake, text), now);
            }
            Phase::Ready if peer.heard + self.timers.silence() <= now => {
                let text = format!("nothing heard for {:?}", now - peer.heard);
                self.close(id, Reason::new(Code::PeerLost, text), now);
            }
            Phase::Ready if peer.next_beat <= now => {
                peer.next_beat = now + self.timers.beat;
                self.beat(id, now);
            }
            Phase::Greeting | Phase::Ready | Phase::Closing => {}
        }
    }

    /// Names every room of the peer that has not ended.
    fn beat(&mut self, peer: PeerId, now: Duration) {
        let rooms = self.rooms.iter().filter(|(_, entry)| entry.peer == peer);
        let rooms: Vec<_> = rooms.filter_map(|(&key, entry)| Some((key, entry.room.outcome.stage()?))).collect();
        if rooms.is_empty() {
            self.send(peer, NO_ROOM, Body::Beat(rooms), now);
            return;
        }
        for rooms in rooms.chunks(ROOMS_PER_BEAT) {
            self.send(peer, NO_ROOM, Body::Beat(rooms.to_vec()), now);
        }
    }
}

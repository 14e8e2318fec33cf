//! What happens on the network, in the order of its clock.

use super::*;

impl World {
    pub(super) fn random(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.seed ^ mix(self.drawn))
    }

    pub(super) fn delay(&mut self) -> u64 {
        let (least, most) = (*self.delay.start(), *self.delay.end());
        least + self.random() % (most.saturating_sub(least) + 1)
    }

    pub(super) fn send(&mut self, due: u64, flight: Flight) {
        let order = self.random();
        self.flights.insert((due, order), flight);
    }

    pub(super) fn advance(&mut self, ticks: u64) {
        let until = self.now + ticks;
        while let Some(entry) = self.flights.first_entry().filter(|entry| entry.key().0 <= until) {
            self.now = self.now.max(entry.key().0);
            let flight = entry.remove();
            self.arrive(flight);
        }
        self.now = until;
    }

    fn arrive(&mut self, flight: Flight) {
        match flight {
            Flight::Copy { from, to, copy, data, flip } => {
                let read = || {
                    let (arena, _) = self.ports.get(&from.0)?.memory.as_ref()?;
                    let mut data = vec![0; copy.bytes as usize];
                    arena.read(copy.src, &mut data).ok().map(|()| data)
                };
                let Some(mut data) = data.or_else(read) else { return };
                if let Some(at) = flip.filter(|_| !data.is_empty()) {
                    let at = at as usize % data.len();
                    data[at] ^= 0x10;
                }
                let Some(port) = self.ports.get_mut(&to.0) else { return };
                let Some((arena, _)) = &port.memory else { return };
                if arena.write(copy.dst, &data).is_ok() {
                    port.counters.landed_bytes += copy.bytes;
                }
                if let Some(port) = self.ports.get_mut(&from.0) {
                    port.counters.sent_bytes += copy.bytes;
                }
            }
            Flight::End { at: (id, peer), ticket, end } => {
                let Some(port) = self.ports.get_mut(&id).filter(|port| port.peers.contains_key(&peer)) else { return };
                if port.tickets.end(peer, ticket, !matches!(end, End::Failed(_))) {
                    port.news.push(News::Ended { ticket, end });
                }
            }
            Flight::Lost { at: (id, peer) } => {
                let Some(port) = self.ports.get_mut(&id).filter(|port| port.peers.contains_key(&peer)) else { return };
                let lost = port.tickets.lose(peer);
                port.report(lost, "the peer is gone");
                port.news.push(News::Lost { peer, reason: "the peer is gone".into() });
            }
        }
    }

    pub(super) fn post(&mut self, id: u64, post: Post) -> Result<(), TransportError> {
        let now = self.now;
        let port = self.ports.get(&id).ok_or(TransportError::NoArena)?;
        let (_, bounds) = port.memory.as_ref().ok_or(TransportError::NoArena)?;
        port.tickets.check(&post, bounds)?;
        let Post { ticket, op, peer, copies, .. } = post;
        let other = port.peers[&peer];
        let at_post = self.faults.at(Point::Post, "").map(|hit| (hit.fault, hit.number));
        if let Some((Fault::Fail, _)) = at_post {
            return Err(TransportError::System { transport: NAME, reason: "a fault refuses the post".into() });
        }
        if let Some(port) = self.ports.get_mut(&id) {
            port.tickets.begin(peer, ticket);
        }
        let here = (id, peer);
        let end = |due, end| (due, Flight::End { at: here, ticket, end });
        if self.deaf == Some(other.0) {
            return Ok(());
        }
        let admitted = self.ports.get(&other.0).is_some_and(|port| port.peers.get(&other.1) == Some(&here));
        if !admitted || self.broken.contains(&here) || matches!(at_post, Some((Fault::Stale, _))) {
            let (due, flight) = end(now + 1, End::Failed("the peer is gone or of another incarnation".into()));
            self.send(due, flight);
            return Ok(());
        }
        let theirs = |copy: &&PageCopy| if op == Op::Write { (copy.dst, copy.bytes) } else { (copy.src, copy.bytes) };
        let bounds = self.ports.get(&other.0).and_then(|port| port.memory.as_ref()).map(|(_, bounds)| bounds);
        let inside = |copy: &&PageCopy| {
            let (offset, bytes) = theirs(copy);
            bounds.is_some_and(|bounds| bounds.item(offset, bytes).is_some())
        };
        if let Some(copy) = copies.iter().find(|copy| !inside(copy)) {
            let (offset, bytes) = theirs(&copy);
            let reason = format!("bytes {offset}..{offset}+{bytes} are not inside one page");
            let (due, flight) = end(now + 1, End::Refused(reason));
            self.send(due, flight);
            return Ok(());
        }
        self.launch(here, other, ticket, op, copies, at_post.map_or(0, |(_, number)| number));
        Ok(())
    }

    /// Sends the copies of a post and its end, as the faults have it.
    fn launch(&mut self, here: Place, other: Place, ticket: Ticket, op: Op, copies: Vec<PageCopy>, delay: u64) {
        let (from, to) = if op == Op::Write { (here, other) } else { (other, here) };
        let start = self.now + 1 + delay;
        let completion = self.faults.at(Point::Completion, "").map(|hit| (hit.fault, hit.number));
        let shift = match completion {
            Some((Fault::EndEarly | Fault::ErrorThenWrite, number)) => number.max(1),
            _ => 0,
        };
        let lossy = matches!(completion, Some((Fault::Fail, _)));
        let mut last = start;
        for copy in copies {
            let mut due = start + shift + self.delay();
            let (mut again, mut flip) = (None, None);
            for point in [Point::PageCopy, Point::Landing] {
                let bounds = self.ports.get(&to.0).and_then(|port| port.memory.as_ref()).map(|(_, bounds)| bounds);
                let item = bounds.and_then(|bounds| bounds.item(copy.dst, copy.bytes)).unwrap_or_default();
                match self.faults.at(point, item).map(|hit| (hit.fault, hit.number, hit.random)) {
                    Some((Fault::Delay, number, _)) => due += number,
                    Some((Fault::Corrupt, _, random)) => flip = Some(random),
                    Some((Fault::LateWrite, number, _)) => again = Some(number),
                    _ => {}
                }
            }
            last = last.max(due);
            let flight = || Flight::Copy { from, to, copy, data: None, flip };
            if let Some(number) = again {
                self.send(due + number, flight());
            }
            if let Some((Fault::LateWrite, number)) = completion {
                let late = due + *self.delay.end() + number;
                self.send(late, flight());
            }
            if !(lossy && self.random().is_multiple_of(2)) {
                self.send(due, flight());
            }
        }
        let (due, end) = match completion {
            Some((Fault::NeverEnd, _)) => return,
            Some((Fault::Fail, _)) => (last + 1, End::Failed("a fault fails the post".into())),
            Some((Fault::ErrorThenWrite, _)) => (start, End::Failed("a fault fails the post".into())),
            Some((Fault::EndEarly, _)) => (start, End::Done),
            _ => (last + 1, End::Done),
        };
        self.send(due, Flight::End { at: here, ticket, end });
    }

    pub(super) fn tear_down(&mut self, id: u64, peer: PeerId) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        let open = port.tickets.tear_down(peer);
        port.report(open, "torn down");
        let Some(other) = port.peers.remove(&peer) else { return };
        let here = (id, peer);
        self.broken.extend([here, other]);
        for (key, flight) in std::mem::take(&mut self.flights) {
            let flight = match flight {
                Flight::Copy { from, to, .. } if (from, to) == (other, here) => continue,
                // What has left this arena may still be on its way: half of it is, as the bytes were.
                Flight::Copy { from, to, copy, data, flip } if (from, to) == (here, other) => {
                    if self.random().is_multiple_of(2) {
                        continue;
                    }
                    let memory = self.ports.get(&id).and_then(|port| port.memory.as_ref());
                    let read = || {
                        let mut data = vec![0; copy.bytes as usize];
                        memory?.0.read(copy.src, &mut data).ok().map(|()| data)
                    };
                    Flight::Copy { from, to, copy, data: data.or_else(read), flip }
                }
                Flight::End { at, .. } if at == here || at == other => continue,
                flight => flight,
            };
            self.flights.insert(key, flight);
        }
        let due = self.now + 1 + self.delay();
        self.send(due, Flight::Lost { at: other });
    }
}

//! Connections of a driver: how they come about, and frames on them.

use super::Run;
use crate::driver::link::{Event, Link};
use crate::driver::lossy::Lossy;
use crate::driver::net::Net;
use crate::frame::FrameReader;
use crate::ids::PeerId;
use std::time::Duration;

/// A connection.
pub(super) struct Connection {
    link: Link,
    reader: FrameReader,
    /// Only where there are faults for frames.
    lossy: Option<Lossy>,
}

impl<N: Net> Run<N> {
    pub(super) fn link(&mut self, stream: N::Stream) -> PeerId {
        self.next_peer += 1;
        let peer = PeerId(self.next_peer);
        let link = Link::start(peer, stream, self.events.clone());
        let lossy = Lossy::new(&self.config.faults);
        self.links.insert(peer, Connection { link, reader: FrameReader::new(), lossy });
        let (now, blob) = (self.now(), self.transport.blob(peer));
        self.endpoint.on_connected_with(peer, blob, now);
        self.changed = true;
        peer
    }

    pub(super) fn happen(&mut self, event: Event<N::Stream>) {
        let now = self.now();
        match event {
            Event::Connected(target, Ok(stream)) => {
                let peer = self.link(stream);
                self.targets.connected(target, peer);
            }
            Event::Connected(target, Err(error)) => {
                self.changed |= self.targets.refused(target, &error, now + self.config.reconnect);
            }
            Event::Bytes(peer, mut bytes, _permit) => {
                if let Some(Connection { lossy: Some(lossy), .. }) = self.links.get_mut(&peer) {
                    bytes = lossy.receive(&bytes, now);
                }
                self.read(peer, &bytes);
            }
            Event::Sent(peer, bytes) => self.endpoint.on_sent(peer, bytes),
            Event::Closed(peer) => {
                if self.links.contains_key(&peer) {
                    self.endpoint.on_lost(peer, now);
                }
            }
        }
    }

    fn read(&mut self, peer: PeerId, bytes: &[u8]) {
        let now = self.now();
        let Some(Connection { reader, .. }) = self.links.get_mut(&peer) else { return };
        reader.push(bytes);
        while let Some(frame) = reader.next_frame() {
            match frame {
                Ok(frame) => self.endpoint.on_frame(peer, frame, now),
                Err(error) => self.endpoint.on_bad_bytes(peer, &error, now),
            }
        }
    }

    pub(super) fn send(&mut self, peer: PeerId, frame: Vec<u8>) {
        let now = self.now();
        match self.links.get_mut(&peer) {
            Some(Connection { link, lossy: None, .. }) => link.send(frame),
            Some(Connection { link, lossy: Some(lossy), .. }) => {
                // What a fault drops or holds would never be reported as written.
                self.endpoint.on_sent(peer, frame.len());
                lossy.send(frame, now).into_iter().for_each(|frame| link.send(frame));
            }
            None => {}
        }
    }

    /// Lets go of frames that a fault has delayed long enough.
    pub(super) fn release_held(&mut self) {
        let now = self.now();
        let mut arrived = Vec::new();
        for (&peer, connection) in &mut self.links {
            let Some(lossy) = &mut connection.lossy else { continue };
            lossy.sent(now).into_iter().for_each(|frame| connection.link.send(frame));
            arrived.push((peer, lossy.received(now)));
        }
        arrived.into_iter().for_each(|(peer, bytes)| self.read(peer, &bytes));
    }

    /// Connects to targets without a connection.
    pub(super) fn reconnect(&mut self, now: Duration) {
        for (index, address) in self.targets.due(now) {
            let (net, events) = (self.net.clone(), self.events.clone());
            let patience = self.config.reconnect.max(Duration::from_millis(100));
            tokio::spawn(async move {
                let late = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut));
                let stream = tokio::time::timeout(patience, net.connect(&address)).await.unwrap_or_else(|_| late());
                // Fails when the driver has ended.
                let _ = events.send(Event::Connected(index, stream)).await;
            });
        }
    }
}

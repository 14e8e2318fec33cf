//! The prefill servers as a decode server chooses among them.

use transfer::exchange::{PeerSeen, nobody_up};

/// What the ranks agreed to see of them.
#[derive(Debug, Default)]
pub(super) struct Servers {
    /// `None` until the ranks have looked.
    seen: Option<Vec<PeerSeen>>,
    /// How often they have.
    looks: u64,
}

/// Where a prompt goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    /// To this one.
    Server(u32),
    /// Nobody knows yet.
    Unknown,
    /// Nobody is there, and why.
    Nobody(String),
}

impl Servers {
    pub(super) fn take_in(&mut self, seen: &[PeerSeen]) {
        self.seen = Some(seen.to_vec());
        self.looks += 1;
    }

    /// How often the ranks have looked.
    pub(super) fn looks(&self) -> u64 {
        self.looks
    }

    fn up(&self) -> impl Iterator<Item = u32> {
        let seen = self.seen.iter().flatten();
        (0..).zip(seen).filter(|(_, seen)| **seen == PeerSeen::Up).map(|(server, _)| server)
    }

    /// Whether another server can be asked once this many have been.
    pub(super) fn can_ask_again(&self, asked: u32) -> bool {
        self.up().next().is_some() && self.seen.as_ref().is_some_and(|seen| (asked as usize) < seen.len())
    }

    /// The server with the fewest rooms among those that are up; of several, they take turns by the number of the new room. That
    /// there is none counts for a request that came at look `since` once the ranks have looked since then: twice, for one answer
    /// may have been on its way.
    pub(super) fn choose(&self, room: u64, since: u64, rooms: impl Fn(u32) -> usize) -> Choice {
        let Some(seen) = &self.seen else { return Choice::Unknown };
        let turn = |server: u32| (room + u64::from(server)) % seen.len().max(1) as u64;
        match self.up().min_by_key(|&server| (rooms(server), turn(server))) {
            Some(server) => Choice::Server(server),
            None if self.looks < since + 2 => Choice::Unknown,
            None => Choice::Nobody(nobody_up(seen).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer::reason::{Code, Reason};

    fn down() -> PeerSeen {
        PeerSeen::Down(Reason::new(Code::PeerLost, "b: refused"))
    }

    #[test]
    fn the_least_busy_of_those_that_are_up() {
        let mut servers = Servers::default();
        assert_eq!(servers.choose(0, 0, |_| 0), Choice::Unknown);
        servers.take_in(&[PeerSeen::Up, down(), PeerSeen::Up]);
        let rooms = [5, 0, 4];
        for room in 0..3 {
            assert_eq!(servers.choose(room, 0, |server| rooms[server as usize]), Choice::Server(2));
        }
        let chosen: Vec<_> = (0..6).map(|room| servers.choose(room, 0, |_| 1)).collect();
        assert!(!chosen.contains(&Choice::Server(1)), "{chosen:?}");
        for server in [0, 2] {
            assert!(chosen.iter().filter(|choice| **choice == Choice::Server(server)).count() >= 2, "{chosen:?}");
        }
    }

    #[test]
    fn nobody_is_told_why_and_nobody_is_asked_for_ever() {
        let mut servers = Servers::default();
        servers.take_in(&[down(), down()]);
        assert_eq!(servers.choose(7, 0, |_| 0), Choice::Unknown, "it may be long ago that they looked");
        servers.take_in(&[down(), down()]);
        assert_eq!(servers.choose(7, 1, |_| 0), Choice::Unknown, "nor is once enough");
        assert_eq!(servers.choose(7, 0, |_| 0), Choice::Nobody("no prefill server: b: refused; b: refused".into()));
        assert!(!servers.can_ask_again(0), "there is none");
        servers.take_in(&[down(), PeerSeen::Up]);
        assert_eq!([0, 1, 2].map(|asked| servers.can_ask_again(asked)), [true, true, false]);
    }
}

//! The servers that a rank is connected to, as far as a coordinator has to choose among them.

use crate::reason::Reason;

/// What is seen of a server that a decode rank is to be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerSeen {
    /// Both sides fit, and pages can come.
    Up,
    /// Not connected, and why not; the text begins with the address.
    Down(Reason),
}

/// The servers as all ranks see them together: up where every rank is connected, else with the reason of the first rank that is
/// not. Every list has the order of the command line; a server that a rank does not list is down to it.
pub fn merge_peers<'a>(ranks: impl Iterator<Item = &'a [PeerSeen]> + Clone) -> Vec<PeerSeen> {
    let servers = ranks.clone().map(<[PeerSeen]>::len).min().unwrap_or(0);
    let of = |server: usize| {
        let down = ranks.clone().map(|seen| &seen[server]).find(|seen| **seen != PeerSeen::Up);
        down.cloned().unwrap_or(PeerSeen::Up)
    };
    (0..servers).map(of).collect()
}

/// Why no prompt can be sent anywhere; `None` while a server is up.
pub fn nobody_up(peers: &[PeerSeen]) -> Option<String> {
    let why = |peer: &PeerSeen| match peer {
        PeerSeen::Up => None,
        PeerSeen::Down(reason) => Some(reason.text.clone()),
    };
    let reasons: Vec<String> = peers.iter().map(why).collect::<Option<_>>()?;
    Some(format!("no prefill server: {}", reasons.join("; ")))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::reason::Code;
    use proptest::prelude::*;

    fn peers() -> impl Strategy<Value = Vec<PeerSeen>> {
        let down = "[ab]{1,2}".prop_map(|text| PeerSeen::Down(Reason::new(Code::PeerLost, text)));
        prop::collection::vec(prop_oneof![2 => Just(PeerSeen::Up), 1 => down], 3)
    }

    proptest! {
        #[test]
        fn up_is_up_everywhere(ranks in prop::collection::vec(peers(), 1..4)) {
            let merged = merge_peers(ranks.iter().map(Vec::as_slice));
            prop_assert_eq!(merged.len(), 3);
            for (server, seen) in merged.iter().enumerate() {
                let everywhere = ranks.iter().all(|rank| rank[server] == PeerSeen::Up);
                prop_assert_eq!(*seen == PeerSeen::Up, everywhere);
                prop_assert!(ranks.iter().any(|rank| rank[server] == *seen));
            }
            let nobody = ranks.iter().map(|rank| rank.iter().filter(|seen| **seen == PeerSeen::Up).count()).any(|up| up == 0);
            prop_assert!(!nobody || nobody_up(&merged).is_some());
        }
    }

    #[test]
    fn nobody_is_named_with_every_reason() {
        let down = |text: &str| PeerSeen::Down(Reason::new(Code::PeerLost, text));
        assert_eq!(nobody_up(&[down("a: refused"), PeerSeen::Up]), None);
        let why = nobody_up(&[down("a: refused"), down("b: silent")]);
        assert_eq!(why.as_deref(), Some("no prefill server: a: refused; b: silent"));
    }
}

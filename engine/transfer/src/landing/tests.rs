use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const SECOND: Duration = Duration::from_secs(1);

fn key(room: u64) -> RoomKey {
    RoomKey { room, epoch: 1 }
}

fn pool(num_pages: &[u32], faults: &str) -> LandingPool {
    let faults = Arc::new(Faults::parse(faults).unwrap());
    LandingPool::new(num_pages, &vec![100; num_pages.len()], 1_000, 5 * SECOND, faults)
}

/// F2, F17: whatever the order of events, a page is given away only when the writer of its last room has left by proof.
/// The model keeps a set of possible writers of its own and never looks into the pool.
fn reused_under_a_writer(steps: &[(u8, u64, u8)], faults: &str) -> bool {
    let mut pool = pool(&[3, 2], faults);
    let mut writers: HashMap<(usize, u32), RoomKey> = HashMap::new();
    for &(what, room, size) in steps {
        let room = key(room);
        match what {
            0 => {
                if let Ok(Some(pages)) = pool.alloc(room, PeerId(0), &[u32::from(size % 3), u32::from(size / 3)]) {
                    for (class, pages) in pages.iter().enumerate() {
                        for &page in pages {
                            if writers.contains_key(&(class, page)) {
                                return true;
                            }
                        }
                    }
                }
            }
            1 => {
                if pool.enter(room, Owner::Writer).is_ok() {
                    for (class, pages) in pool.pages(room).unwrap().iter().enumerate() {
                        writers.extend(pages.iter().map(|&page| ((class, page), room)));
                    }
                }
            }
            2 => drop(pool.release(room, Leaving::Request, SECOND)),
            3 => {
                let proof = [Proof::Done, Proof::AbortAck, Proof::Fence, Proof::TornDown];
                let known = writers.values().any(|writer| *writer == room);
                // A proof means that nothing of the room is written any more, whatever the pool makes of it.
                if known && pool.release(room, Leaving::Writer(proof[size as usize % 4]), SECOND).is_ok() {
                    writers.retain(|_, writer| *writer != room);
                }
            }
            4 => drop(pool.enter(room, Owner::Reader)),
            _ => drop(pool.release(room, Leaving::Reader, SECOND)),
        }
        pool.audit().unwrap();
    }
    false
}

fn steps() -> impl Strategy<Value = Vec<(u8, u64, u8)>> {
    prop::collection::vec((0u8..6, 1u64..5, 0u8..9), 0..60)
}

proptest! {
    #[test]
    fn no_page_is_reused_under_a_writer(steps in steps()) {
        prop_assert!(!reused_under_a_writer(&steps, ""));
    }

    /// F5: whatever happened, once every owner has left all pages are free again and quarantine is empty.
    #[test]
    fn nothing_leaks(steps in steps()) {
        let mut pool = pool(&[3, 2], "");
        for (what, room, size) in steps {
            let room = key(room);
            let _ = match what {
                0 => pool.alloc(room, PeerId(1), &[u32::from(size % 3), u32::from(size / 3)]).map(|_| true),
                1 => pool.enter(room, Owner::Writer).map(|()| false),
                2 => pool.release(room, Leaving::Request, SECOND),
                3 => pool.release(room, Leaving::Writer(Proof::AbortAck), SECOND),
                4 => pool.enter(room, Owner::HostCopy).map(|()| false),
                _ => pool.release(room, Leaving::HostCopy, SECOND),
            };
        }
        let rooms: Vec<_> = pool.rooms().collect();
        for room in rooms {
            let all = [Leaving::Request, Leaving::Reader, Leaving::HostCopy, Leaving::Writer(Proof::TornDown)];
            let freed = all.into_iter().filter(|&leaving| pool.release(room, leaving, SECOND) == Ok(true)).count();
            prop_assert_eq!(freed, 1, "{}", room);
        }
        prop_assert_eq!(pool.num_free(), [3, 2]);
        prop_assert_eq!((pool.quarantined_bytes(), pool.overdue(100 * SECOND)), (0, None));
        pool.audit().unwrap();
    }
}

/// The check above sees what it is for: without quarantine it fails.
#[test]
fn an_early_release_is_seen() {
    let steps = [(0, 1, 2), (1, 1, 0), (2, 1, 0), (0, 2, 2)];
    assert!(!reused_under_a_writer(&steps, ""));
    assert!(reused_under_a_writer(&steps, "quarantine=release-early"));
}

#[test]
fn an_abort_removes_the_request_alone() {
    let mut pool = pool(&[2], "");
    assert_eq!(pool.alloc(key(1), PeerId(7), &[2]).unwrap(), Some(vec![vec![1, 0]]));
    pool.enter(key(1), Owner::Writer).unwrap();
    pool.enter(key(1), Owner::Reader).unwrap();
    assert!(!pool.release(key(1), Leaving::Request, SECOND).unwrap());
    assert_eq!((pool.quarantined_bytes(), pool.alloc(key(2), PeerId(7), &[1]).unwrap()), (200, None));
    assert!(!pool.release(key(1), Leaving::Writer(Proof::AbortAck), SECOND).unwrap(), "still read");
    assert_eq!(pool.quarantined_bytes(), 0);
    assert!(pool.release(key(1), Leaving::Reader, SECOND).unwrap());
    assert!(pool.alloc(key(2), PeerId(7), &[1]).unwrap().is_some());
}

/// Never by time: age and budget name a peer, the pages stay.
#[test]
fn quarantine_names_the_oldest_peer_by_age_or_budget() {
    let mut pool = pool(&[20], "");
    let quarantine = |pool: &mut LandingPool, room, peer, count, at| {
        pool.alloc(key(room), PeerId(peer), &[count]).unwrap().unwrap();
        pool.enter(key(room), Owner::Writer).unwrap();
        pool.release(key(room), Leaving::Request, at).unwrap();
    };
    quarantine(&mut pool, 9, 3, 4, SECOND);
    quarantine(&mut pool, 1, 2, 6, 2 * SECOND);
    assert_eq!((pool.quarantined_bytes(), pool.overdue(5 * SECOND)), (1_000, None));
    assert_eq!(pool.overdue(6 * SECOND), Some(PeerId(3)));
    quarantine(&mut pool, 2, 4, 1, 3 * SECOND);
    assert_eq!(pool.overdue(3 * SECOND), Some(PeerId(3)), "1,100 of 1,000 bytes");
    assert_eq!(pool.num_free(), [9]);
    assert!(pool.release(key(9), Leaving::Writer(Proof::TornDown), 7 * SECOND).unwrap());
    assert_eq!((pool.overdue(6 * SECOND), pool.overdue(7 * SECOND)), (None, Some(PeerId(2))));
}

#[test]
fn contradictions_are_named() {
    let mut pool = pool(&[2, 1], "");
    pool.alloc(key(1), PeerId(0), &[1, 0]).unwrap();
    assert_eq!(pool.alloc(key(1), PeerId(0), &[1, 0]), Err(LandingError::Again(key(1))));
    assert_eq!(pool.alloc(key(2), PeerId(0), &[1]), Err(LandingError::Classes { expected: 2, got: 1 }));
    let error = pool.release(key(1), Leaving::Writer(Proof::Done), SECOND).unwrap_err().to_string();
    assert_eq!(error, "room 1 epoch 1: Writer does not own its landing pages");
    assert_eq!(pool.enter(key(5), Owner::Reader).unwrap_err().to_string(), "room 5 epoch 1 has no landing pages");
    assert!(matches!(pool.enter(key(1), Owner::Request), Err(LandingError::OwnsAlready { .. })));
}

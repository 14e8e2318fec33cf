use super::*;
use std::time::Duration;
use transfer::transport::suite::{self, Rig};

/// Objects of one process that reach each other by tcp, as UCX_TLS says.
#[derive(Default)]
struct Objects {
    slow: bool,
    deaf: Vec<Nixl>,
}

impl Rig for Objects {
    fn transport(&mut self) -> Box<dyn Transport> {
        let progress_delay_us = if self.slow { 2_000 } else { 100 };
        Box::new(Nixl::new(Config { progress_thread: true, progress_delay_us }).expect("loaded"))
    }

    /// An object without a thread that nobody polls.
    fn deaf(&mut self) -> Vec<u8> {
        let mut deaf = Nixl::new(Config { progress_thread: false, progress_delay_us: 0 }).expect("loaded");
        let layout = suite::layout(128);
        deaf.register(Arc::new(Arena::of(&layout).expect("memory")), &layout).expect("registers");
        let blob = deaf.blob(PeerId(0));
        self.deaf.push(deaf);
        blob
    }

    fn pace(&mut self, slow: bool) {
        self.slow = slow;
    }

    fn wait(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One test: objects side by side on threads of one process are more than the library promises.
#[test]
fn holds_what_every_transport_holds() {
    if let Err(error) = load() {
        println!("SKIPPED, nothing was tested: {error}");
        return;
    }
    if std::env::var("UCX_TLS").as_deref() != Ok("tcp") {
        println!(
            "SKIPPED, nothing was tested: set UCX_TLS=tcp; without it posts copy at once and a deaf peer is not deaf"
        );
        return;
    }
    suite::all(|| Box::new(Objects::default()));
}

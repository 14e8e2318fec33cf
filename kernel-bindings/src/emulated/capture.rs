//! A capture on the machine: the list of what was called, with every byte that a replay needs.

use super::State;
use crate::device::spoilt;
use ptx_emulator::LaunchConfig;
use ptx_emulator::ir::Module;
use std::sync::{Arc, Mutex};

/// What a capture records.
#[derive(Debug)]
pub(super) enum Node {
    Launch { module: Arc<Module>, entry: String, dims: LaunchConfig, params: Box<[u8]> },
    Fill { address: u64, bytes: u64, value: u8 },
    Forget { address: u64, bytes: u64 },
}

/// A capture under way.
#[derive(Debug, Default)]
pub(super) struct Capture {
    nodes: Vec<Node>,
    /// The first refusal.
    spoilt: Option<String>,
}

impl Capture {
    pub(super) fn push(&mut self, node: Node) {
        self.nodes.push(node);
    }

    /// Notes a refusal and gives it back.
    pub(super) fn spoil(&mut self, what: &str) -> String {
        self.spoilt.get_or_insert_with(|| what.to_owned());
        what.to_owned()
    }

    pub(super) fn into_graph(self, shared: Arc<Mutex<State>>) -> Result<EmulatedGraph, String> {
        match self.spoilt {
            Some(why) => Err(spoilt(&why)),
            None => Ok(EmulatedGraph { nodes: self.nodes, shared }),
        }
    }
}

/// Launches and fills with all their parameters; a replay runs them as if they were called again.
pub struct EmulatedGraph {
    nodes: Vec<Node>,
    shared: Arc<Mutex<State>>,
}

impl std::fmt::Debug for EmulatedGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmulatedGraph").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

impl EmulatedGraph {
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn is_of(&self, shared: &Arc<Mutex<State>>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

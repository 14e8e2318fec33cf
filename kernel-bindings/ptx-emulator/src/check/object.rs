//! What was released through an address, for those who acquire from it.

use super::clock::Core;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Releases in force at one address: those whose value, or a read-modify-write chain on it, is still there.
///
/// Kept by how far they reach: to the releaser's block, to its cluster, to all. An acquire of a scope takes all that is
/// within both scopes.
#[derive(Debug, Default)]
pub(super) struct Object {
    block: BTreeMap<u32, Arc<Core>>,
    cluster: BTreeMap<u32, Core>,
    wide: Option<Core>,
    /// The thread that made all of these releases, if it was one.
    sole: Option<(u32, u32)>,
}

/// Who takes part: block, its cluster, thread in the block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Party {
    pub(super) block: u32,
    pub(super) cluster: u32,
    pub(super) thread: u32,
}

impl Object {
    /// A plain store ends what others released here; the storing thread's own releases stay in force (a release, then
    /// strong writes of the same thread). A read-modify-write ends nothing.
    pub(super) fn overwrite(&mut self, by: Party) {
        if self.sole != Some((by.block, by.thread)) {
            *self = Object::default();
        }
    }

    /// Adds knowledge published at one level; a release of a scope is one call for each level up to the scope's.
    pub(super) fn release(&mut self, by: Party, level: usize, published: &Arc<Core>) {
        let thread = (by.block, by.thread);
        self.sole = (self.is_empty() || self.sole == Some(thread)).then_some(thread);
        match level {
            0 => {
                let here = self.block.entry(by.block).or_insert_with(|| published.clone());
                if !Arc::ptr_eq(here, published) {
                    Arc::make_mut(here).join(published);
                }
            }
            1 => self.cluster.entry(by.cluster).or_default().collect(by.block, published),
            _ => self.wide.get_or_insert_default().collect(by.block, published),
        }
    }

    /// True when nothing can be acquired.
    pub(super) fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// What can be acquired at one level; an acquire of a scope is one call for each level up to the scope's.
    pub(super) fn acquire(&self, by: Party, level: usize, into: &mut Core) {
        match level {
            0 => {
                if let Some(core) = self.block.get(&by.block) {
                    into.join(core);
                }
            }
            1 => {
                if let Some(core) = self.cluster.get(&by.cluster) {
                    into.join_blocks(by.block, core);
                }
            }
            _ => {
                if let Some(core) = &self.wide {
                    into.join_blocks(by.block, core);
                }
            }
        }
    }
}

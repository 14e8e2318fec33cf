//! The NIXL object of one peer.
//!
//! | act | ends a peer's writes |
//! |---|---|
//! | poll until the request is terminal | yes |
//! | release the request, also with removing the peer or unregistering memory at the writer | no: all pages landed |
//! | unregister memory, or remove the peer, at the target | no: all pages landed, the writer saw success |
//! | destroy the object at either side | yes: nothing landed after the call |
//! | the target's process is stopped | the request stays open without end |

use crate::memory::Memory;
use crate::{Blob, Config, system};
use nixl_sys::{
    Agent, AgentConfig, Backend, MemType, NixlError, NotificationMap, OptArgs, RegistrationHandle, ThreadSync,
    XferDescList, XferOp, XferRequest, XferStatus,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer::arena::Arena;
use transfer::ids::Ticket;
use transfer::layout::PageCopy;
use transfer::transport::{Bounds, Op, TransportError};

/// Where a peer's arena is.
struct Remote {
    name: String,
    base: u64,
    bounds: Bounds,
}

/// Fields are dropped in their order: requests and registration hold the object, the arena must outlive all of it.
pub(crate) struct Peer {
    requests: BTreeMap<Ticket, (XferRequest, u64)>,
    remote: Option<Remote>,
    lost: bool,
    _registration: RegistrationHandle,
    backend: Backend,
    agent: Agent,
    memory: Memory,
}

impl Peer {
    pub(crate) fn new(name: &str, arena: Arc<Arena>, config: Config) -> Result<Self, TransportError> {
        let told = |step: &'static str| move |error: NixlError| system(format!("{step}: {error}"));
        let config = AgentConfig {
            enable_prog_thread: config.progress_thread,
            pthr_delay_us: config.progress_delay_us,
            thread_sync: ThreadSync::Strict,
            ..AgentConfig::default()
        };
        let agent = Agent::new_configured(name, &config).map_err(told("object"))?;
        let (_, params) = agent.get_plugin_params("UCX").map_err(told("plugin UCX"))?;
        let backend = agent.create_backend("UCX", &params).map_err(told("back end UCX"))?;
        let memory = Memory(arena);
        let arguments = arguments(&backend).map_err(told("arguments"))?;
        let registration = agent.register_memory(&memory, Some(&arguments)).map_err(told("registration"))?;
        let (requests, remote) = (BTreeMap::new(), None);
        Ok(Self { requests, remote, lost: false, _registration: registration, backend, agent, memory })
    }

    pub(crate) fn metadata(&self) -> Result<Vec<u8>, TransportError> {
        self.agent.get_local_md().map_err(system)
    }

    pub(crate) fn connect(&mut self, theirs: Blob) -> Result<(), TransportError> {
        let name = self.agent.load_remote_md(&theirs.metadata).map_err(system)?;
        self.remote = Some(Remote { name, base: theirs.base, bounds: theirs.bounds });
        Ok(())
    }

    /// Whether a range lies inside one page of the peer. NIXL checks the registration alone, which is the whole arena.
    pub(crate) fn is_inside(&self, offset: u64, bytes: u64) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.bounds.item(offset, bytes).is_some())
    }

    /// Once: the peer is lost.
    pub(crate) fn lose(&mut self) -> bool {
        !std::mem::replace(&mut self.lost, true)
    }

    pub(crate) fn post(&mut self, ticket: Ticket, op: Op, copies: &[PageCopy]) -> Result<(), NixlError> {
        let remote = self.remote.as_ref().ok_or(NixlError::NotFound)?;
        let own = self.memory.0.base().addr();
        let (mut ours, mut theirs) = (XferDescList::new(MemType::Dram)?, XferDescList::new(MemType::Dram)?);
        let mut total = 0;
        for &PageCopy { src, dst, bytes } in copies {
            let (here, there) = if op == Op::Write { (src, dst) } else { (dst, src) };
            // Both were checked against the layouts, so they are offsets into memory that exists.
            ours.add_desc(own + here as usize, bytes as usize, 0);
            theirs.add_desc(remote.base as usize + there as usize, bytes as usize, 0);
            total += bytes;
        }
        let op = if op == Op::Write { XferOp::Write } else { XferOp::Read };
        let arguments = arguments(&self.backend)?;
        let request = self.agent.create_xfer_req(op, &ours, &theirs, &remote.name, Some(&arguments))?;
        let posted = self.agent.post_xfer_req(&request, None);
        // In the table whatever the answer was: it may have begun.
        self.requests.insert(ticket, (request, total));
        posted.map(|_| ())
    }

    /// Asks after every request, and lets the object make progress where it has no thread for that.
    pub(crate) fn poll(&mut self, mut ended: impl FnMut(Ticket, u64, Result<(), String>)) {
        if let Ok(mut notifications) = NotificationMap::new() {
            let _ = self.agent.get_notifications(&mut notifications, None);
        }
        let (agent, mut done) = (&self.agent, Vec::new());
        for (&ticket, (request, bytes)) in &self.requests {
            match agent.get_xfer_status(request) {
                Ok(XferStatus::InProgress) => {}
                Ok(XferStatus::Success) => {
                    done.push(ticket);
                    ended(ticket, *bytes, Ok(()));
                }
                // Stays in the table, in doubt until the object is destroyed.
                Err(error) => ended(ticket, 0, Err(error.to_string())),
            }
        }
        for ticket in done {
            self.requests.remove(&ticket);
        }
    }
}

fn arguments(backend: &Backend) -> Result<OptArgs, NixlError> {
    let mut arguments = OptArgs::new()?;
    arguments.add_backend(backend)?;
    Ok(arguments)
}

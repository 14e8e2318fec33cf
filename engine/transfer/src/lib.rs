//! Pages of a cache from one process to another: control protocol, landing memory, publication gate, transports.
//! Nothing here knows a model: a [`layout::Layout`] says which bytes a unit (a layer) consists of.
#![forbid(unsafe_code)]

pub mod arena;
pub mod checksum;
#[cfg(not(loom))]
pub mod driver;
pub mod endpoint;
pub mod exchange;
pub mod fault;
pub mod frame;
pub mod gate;
pub mod hello;
pub mod ids;
pub mod layout;
#[cfg(not(loom))]
pub mod rates;
pub mod reason;
pub mod room;
pub mod transport;

//! HTTP in front of the engine, and the roles of a deployment. Requests come in as text or token ids and leave as tokens
//! with a reason why they end; nothing here knows a model or a page.
#![forbid(unsafe_code)]

pub mod api;
pub mod backend;
mod faulty;
pub mod health;
pub mod http;
pub mod metrics;
mod patience;
pub mod router;
pub mod serve;

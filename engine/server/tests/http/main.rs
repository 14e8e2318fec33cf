//! The server over real sockets: with a small engine behind it, and with a scripted one.

mod cancel;
mod client;
mod fake;
mod faults;
mod health;
mod hostile;
mod rig;
mod texts;
mod tools;

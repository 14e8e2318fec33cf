//! The sanitizer, rule by rule: every script is shown ordered (no report) and with one step taken out (a report).

mod model;
mod support;

mod blocks;
mod copies;
mod oracle;
mod order;

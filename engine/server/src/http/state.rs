//! Routes about the server: its health, its figures.

use super::App;
use crate::backend::Update;
use crate::health::Health;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::ids::TokenId;
use engine::sequence::Request;
use engine::step::Sampling;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    let parts = app.backend.parts();
    let health = app.judge(&parts);
    let status = if health.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health.body(&parts))).into_response()
}

/// One token, the same way as any other; it waits its turn, so it fails when nothing moves and not when much is to be done.
pub(super) async fn health_generate(State(app): State<Arc<App>>) -> Response {
    let start = Instant::now();
    let request = Request {
        prompt: vec![app.served.eos.first().copied().unwrap_or(TokenId(0))],
        max_tokens: 1,
        stop: Vec::new(),
        sampling: Sampling::GREEDY,
    };
    let mut updates = app.backend.submit(request);
    let mut look = tokio::time::interval(Duration::from_millis(100));
    let why = loop {
        tokio::select! {
            update = updates.next() => match update {
                Update::Token(_) => break None,
                Update::Finished { reason, .. } => break Some(format!("it ended without a token: {reason:?}")),
                Update::Refused(refusal) => break Some(refusal.to_string()),
                Update::Lost(why) => break Some(why),
            },
            _ = look.tick() => match app.health() {
                Health::Stuck(parts) => break Some(parts.join("; ")),
                Health::Ended(why) | Health::Unavailable(why) => break Some(why),
                Health::Ok | Health::Draining if start.elapsed() < app.limits.canary_time => {}
                Health::Ok | Health::Draining => {
                    break Some(format!("no token within {} s", app.limits.canary_time.as_secs_f64()));
                }
            },
        }
    };
    let milliseconds = start.elapsed().as_millis() as u64;
    let (code, status) = match why {
        None => (StatusCode::OK, "ok"),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    (code, Json(json!({ "status": status, "reason": why, "milliseconds": milliseconds }))).into_response()
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.render(&app.backend.figures(), &app.backend.parts(), app.in_flight());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

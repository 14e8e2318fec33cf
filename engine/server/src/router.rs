//! The router: one address in front of several decode servers. It balances, passes answers through byte by byte, and knows which
//! server is well; what a request needs beyond that, its decode server arranges with a prefill server itself.
//!
//! A request goes to the healthy server with the fewest requests of this router. If that cannot be reached, or answers 429 or 503
//! before it began, the next one is asked; once an answer has begun nothing is repeated. A client that goes away closes the
//! connection to its server, which cancels the request there.

mod proxy;
mod target;

pub use target::{Address, AddressError, Target, TargetState};

use crate::api::error::ApiError;
use crate::http::{Limits, read_body};
use crate::serve::Site;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use target::Outstanding;

/// Sizes and times of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// For a connection to a server.
    pub connect: Duration,
    /// From one look at a server's `/health` to the next, and the longest that one may take.
    pub health: Duration,
    /// Bytes of a body at most.
    pub body_bytes: usize,
    /// For a body to come.
    pub body_time: Duration,
    /// A server that has not answered `/health` at all for so long is lost, and so are the requests under way there.
    pub silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            health: Duration::from_millis(500),
            body_bytes: 16 << 20,
            body_time: Duration::from_secs(30),
            silence: Duration::from_secs(10),
        }
    }
}

/// Between two looks at servers that are starting.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// Everything that the routes share.
#[derive(Debug)]
pub struct Balancer {
    targets: Vec<Arc<Target>>,
    timing: Timing,
    next: AtomicUsize,
    draining: AtomicBool,
    limits: Limits,
}

impl Balancer {
    /// A router over these decode servers, none of which is known to be well yet.
    pub fn new(targets: Vec<Address>, timing: Timing) -> Arc<Self> {
        let targets = targets.into_iter().map(|address| Arc::new(Target::new(address))).collect();
        let (next, draining) = (AtomicUsize::new(0), AtomicBool::new(false));
        let limits = Limits { body_bytes: timing.body_bytes, body_time: timing.body_time, ..Limits::default() };
        Arc::new(Self { targets, timing, next, draining, limits })
    }

    /// The servers.
    pub fn targets(&self) -> &[Arc<Target>] {
        &self.targets
    }

    /// Looks at every server once, and again while one is not well, for at most `patience`. Whether all are.
    pub async fn settle(&self, patience: Duration) -> bool {
        let start = tokio::time::Instant::now();
        loop {
            futures::future::join_all(self.targets.iter().map(|target| proxy::look(target, self.timing))).await;
            let all = self.targets.iter().all(|target| target.is_well());
            if all || start.elapsed() >= patience {
                return all;
            }
            tokio::time::sleep(SETTLE_PAUSE.min(self.timing.health)).await;
        }
    }

    /// Looks after the servers' health for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        let looks = self.targets.iter().map(|target| {
            let (target, timing) = (Arc::clone(target), self.timing);
            async move {
                loop {
                    // A look that waited in vain has taken the time of the pause.
                    let next = tokio::time::Instant::now() + timing.health;
                    proxy::look(&target, timing).await;
                    tokio::time::sleep_until(next).await;
                }
            }
        });
        futures::future::join_all(looks).await;
    }

    /// The healthy server with the fewest requests that was not asked yet; among equals, in turn.
    fn pick(&self, asked: &[usize]) -> Option<(usize, Outstanding)> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.targets.len();
        let order = (0..count).map(|i| (turn + i) % count);
        let free = order.filter(|i| !asked.contains(i) && self.targets[*i].is_well());
        let index = free.min_by_key(|&i| self.targets[i].outstanding())?;
        Some((index, Outstanding::of(&self.targets[index])))
    }

    /// Why there is nobody to ask.
    fn nobody(&self, tried: &[String]) -> ApiError {
        let states = self.targets.iter().map(|target| format!("{}: {}", target.address(), target.state()));
        let all: Vec<String> = tried.iter().cloned().chain(states).collect();
        ApiError::unavailable(format!("no decode server can take the request ({})", all.join("; ")))
    }
}

impl Site for Balancer {
    fn routes(self: Arc<Self>) -> axum::Router {
        routes(self)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn connected(&self) -> Box<dyn std::any::Any + Send> {
        Box::new(())
    }

    fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    fn in_flight(&self) -> usize {
        self.targets.iter().map(|target| target.outstanding()).sum()
    }
}

/// The routes of a router.
pub fn routes(balancer: Arc<Balancer>) -> axum::Router {
    axum::Router::new()
        .route("/live", get(|| async { "alive\n" }))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(forward)
        .with_state(balancer)
}

async fn health(State(balancer): State<Arc<Balancer>>) -> Response {
    let well = balancer.targets.iter().any(|target| target.is_well());
    let targets: Vec<_> = (balancer.targets.iter())
        .map(|target| {
            json!({
                "address": target.address().to_string(),
                "state": target.state().to_string(),
                "outstanding": target.outstanding(),
            })
        })
        .collect();
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let reason = (!well).then_some("no decode server is well");
    let word = if well { "ok" } else { "stuck" };
    (status, Json(json!({ "status": word, "reason": reason, "targets": targets }))).into_response()
}

async fn metrics(State(balancer): State<Arc<Balancer>>) -> String {
    let mut text = String::new();
    type Figure = (&'static str, &'static str, &'static str, fn(&Target) -> u64);
    let figures: [Figure; 5] = [
        ("sm120_router_outstanding", "gauge", "Requests under way at a decode server.", |t| t.outstanding() as u64),
        ("sm120_router_target_well", "gauge", "1 if the decode server's last health answer was good.", |t| {
            u64::from(t.is_well())
        }),
        ("sm120_router_requests_total", "counter", "Requests that a decode server was asked.", Target::asked),
        ("sm120_router_unreached_total", "counter", "Requests that did not reach a decode server.", Target::unreached),
        ("sm120_router_broken_total", "counter", "Answers that broke off.", Target::broken),
    ];
    for (name, kind, help, value) in figures {
        text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for target in &balancer.targets {
            text += &format!("{name}{{target=\"{}\"}} {}\n", target.address(), value(target));
        }
    }
    text
}

async fn forward(State(balancer): State<Arc<Balancer>>, request: Request) -> Result<Response, ApiError> {
    if balancer.draining.load(Ordering::Acquire) {
        return Err(ApiError::unavailable("the router is shutting down"));
    }
    let (head, body) = request.into_parts();
    let body = Bytes::from(read_body(&balancer.limits, body).await?);
    let (mut asked, mut tried) = (Vec::new(), Vec::new());
    while let Some((index, outstanding)) = balancer.pick(&asked) {
        asked.push(index);
        let last = asked.len() == balancer.targets.len();
        match proxy::ask(&head, body.clone(), outstanding, balancer.timing).await {
            Ok(response) => {
                let refused =
                    matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
                if !refused || last || !balancer.others(&asked) {
                    return Ok(response.map(Body::new));
                }
                tried.push(format!("{} answered {}", balancer.targets[index].address(), response.status()));
            }
            Err(proxy::Failure::Unreached(why)) => tried.push(why),
            Err(proxy::Failure::Broken(why)) => return Err(ApiError::bad_gateway(why)),
        }
    }
    Err(balancer.nobody(&tried))
}

impl Balancer {
    /// Whether anybody else could be asked.
    fn others(&self, asked: &[usize]) -> bool {
        (0..self.targets.len()).any(|i| !asked.contains(&i) && self.targets[i].is_well())
    }
}

#[cfg(test)]
mod tests;

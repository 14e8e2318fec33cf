//! Routes: bodies in, answers out. What a client waits for lives in its response: dropped, because the client went away, it
//! cancels the request.

mod model;
mod state;

use crate::api::choice::{Choice, Part, Tokens};
use crate::api::error::ApiError;
use crate::api::job::{self, Job};
use crate::api::text::Text;
use crate::api::wire::{self, Reply, Whole};
use crate::api::{Endpoint, Served};
use crate::backend::Backend;
use crate::health::Health;
use crate::metrics::{Metrics, Record};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use engine::ids::TokenId;
use engine::progress::PartState;
use engine::sequence::Request;

use futures::stream::{BoxStream, SelectAll, StreamExt, select_all, unfold};
use serde_json::json;
use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use transfer::fault::Faults;

/// How long, and for how many pieces, a body that is too large is read on before it is refused.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_CHUNKS: usize = 1024;

/// What the server allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Texts that run or wait at most; more are refused with 429.
    pub in_flight: usize,
    /// Bytes of a body at most.
    pub body_bytes: usize,
    /// For a body to come.
    pub body_time: Duration,
    /// For the head of a request to come; also how long a connection may be idle.
    pub head_time: Duration,
    /// For a client to take more of an answer; then it is hung up on.
    pub write_time: Duration,
    /// Connections at most; more are closed.
    pub connections: usize,
    /// Work that waits this long without progress makes `/health` fail.
    pub stall: Duration,
    /// For the text of `/health_generate`.
    pub canary_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight: 288,
            body_bytes: 16 << 20,
            body_time: Duration::from_secs(30),
            head_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            connections: 4096,
            stall: Duration::from_secs(2),
            canary_time: Duration::from_secs(30),
        }
    }
}

/// Everything that handlers share.
pub struct App {
    backend: Arc<dyn Backend>,
    served: Arc<Served>,
    limits: Limits,
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    draining: AtomicBool,
    next: AtomicU64,
    random: RandomState,
    faults: Arc<Faults>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("model", &self.served.name).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl App {
    /// A server over a backend.
    pub fn new(backend: Arc<dyn Backend>, served: Served, limits: Limits) -> Self {
        let places = Arc::new(Semaphore::new(limits.in_flight.min(Semaphore::MAX_PERMITS)));
        let (draining, next) = (AtomicBool::new(false), AtomicU64::new(0));
        let metrics = Arc::new(Metrics::default());
        let (served, random, faults) = (Arc::new(served), RandomState::new(), Arc::new(Faults::none()));
        Self { backend, served, limits, places, metrics, draining, next, random, faults }
    }

    /// With faults of [`Point::Http`](transfer::fault::Point::Http).
    #[must_use]
    pub fn with_faults(self, faults: Arc<Faults>) -> Self {
        Self { faults, ..self }
    }

    /// What happens to its connections.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What it allows.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Its counts.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Who computes.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Takes no new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Texts that run or wait.
    pub fn in_flight(&self) -> usize {
        self.limits.in_flight - self.places.available_permits()
    }

    /// Its health now.
    pub fn health(&self) -> Health {
        self.judge(&self.backend.parts())
    }

    fn judge(&self, parts: &[PartState]) -> Health {
        let draining = self.draining.load(Ordering::Acquire);
        Health::of(parts, self.backend.ended(), draining, self.limits.stall).unless(self.backend.unavailable())
    }

    /// A number that no other request has and nobody can guess.
    fn number(&self) -> u64 {
        self.random.hash_one(self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// The routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(model::models))
        .route("/v1/models/{*name}", get(model::model))
        .route("/tokenize", post(model::tokenize))
        .route("/detokenize", post(model::detokenize))
        .route("/health", get(state::health))
        .route("/health_generate", get(state::health_generate))
        .route("/live", get(|| async { Json(json!({ "status": "live" })) }))
        .route("/metrics", get(state::metrics))
        .fallback(async |uri: axum::http::Uri| ApiError::not_found(format!("no route {}", uri.path())))
        .method_not_allowed_fallback(async |method: axum::http::Method, uri: axum::http::Uri| {
            ApiError::method(format!("{} has no method {method}", uri.path()))
        })
        .with_state(app)
}

async fn completions(State(app): State<Arc<App>>, body: Body) -> Response {
    answer(app, Endpoint::Completions, body).await
}

async fn chat(State(app): State<Arc<App>>, body: Body) -> Response {
    answer(app, Endpoint::Chat, body).await
}

async fn answer(app: Arc<App>, endpoint: Endpoint, body: Body) -> Response {
    let job = async {
        let seed = app.number();
        let job = reading(&app, body, move |served, body| job::read(endpoint, served, body, seed)).await?;
        begin(&app, endpoint, &job).map(|choices| (job, choices))
    };
    let (job, choices) = match job.await {
        Ok(begun) => begun,
        Err(error) => {
            app.metrics.outcome(endpoint.name(), error.kind);
            tracing::debug!(endpoint = endpoint.name(), status = error.status.as_u16(), %error, "refused");
            return error.into_response();
        }
    };
    let reply = Reply {
        endpoint,
        number: app.number(),
        model: app.served.name.clone(),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        reasons: job.start.reasons(),
        token_ids: job.token_ids,
    };
    let answered =
        if job.stream { streamed(reply, choices, job.include_usage).await } else { whole(reply, choices).await };
    answered.unwrap_or_else(|error| {
        tracing::warn!(endpoint = endpoint.name(), status = error.status.as_u16(), %error, "failed");
        error.into_response()
    })
}

/// What a body says. Long prompts take long to tokenise; other requests must not wait for that.
async fn reading<T: Send + 'static>(
    app: &App,
    body: Body,
    read: impl FnOnce(&Served, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let body = read_body(&app.limits, body).await?;
    let served = Arc::clone(&app.served);
    let reading = tokio::task::spawn_blocking(move || read(&served, &body));
    reading.await.map_err(|error| ApiError::failed(error.to_string()))?
}

/// The body, within its limits.
pub(crate) async fn read_body(limits: &Limits, body: Body) -> Result<Vec<u8>, ApiError> {
    let (most, time) = (limits.body_bytes, limits.body_time);
    let read = async {
        let mut stream = body.into_data_stream();
        let mut bytes = Vec::new();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| ApiError::invalid(format!("body: {error}")))?;
            if bytes.len() + chunk.len() > most {
                // A connection that is closed with bytes unread resets, and the client never sees why.
                let mut rest = stream.take(LINGER_CHUNKS);
                let _ = tokio::time::timeout(LINGER, async { while rest.next().await.is_some() {} }).await;
                return Err(ApiError::too_large(format!("body: expected at most {most} bytes, got more")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    let late = |_| ApiError::timeout(format!("body: expected within {} s", time.as_secs_f64()));
    tokio::time::timeout(time, read).await.map_err(late)?
}

/// Hands the texts of a job over, all or none.
fn begin(app: &App, endpoint: Endpoint, job: &Job) -> Result<Vec<Choice>, ApiError> {
    if app.draining.load(Ordering::Acquire) {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    if let Some(why) = app.backend.ended() {
        return Err(ApiError::unavailable(why));
    }
    let take = |_| {
        let full = format!("{} texts run or wait already, the limit of this server", app.in_flight());
        Arc::clone(&app.places).try_acquire_owned().map_err(|_| ApiError::busy(full))
    };
    let places = job.requests.iter().map(take).collect::<Result<Vec<_>, _>>()?;
    let choice = |(request, place): (&Request, _)| {
        let record = Record::new(&app.metrics, endpoint.name(), request.prompt.len());
        let text = Text::new(&app.served.tokenizer, job.start, &job.stops, job.offer.clone());
        let updates = app.backend.submit(request.clone());
        Choice::new(updates, text, job.offer.clone(), request.stop.clone(), request.prompt.len(), record, place)
    };
    Ok(job.requests.iter().zip(places).map(choice).collect())
}

async fn whole(reply: Reply, choices: Vec<Choice>) -> Result<Response, ApiError> {
    let (mut texts, mut tokens) = (Vec::new(), Tokens::default());
    for mut choice in choices {
        let mut text = Whole::default();
        while text.finish.is_none() {
            let part = choice.next().await?;
            if let Part::End(_, used) = part {
                tokens += used;
            }
            text.add(part);
            text.ids.extend(choice.take_ids());
        }
        texts.push(text);
    }
    Ok(Json(reply.whole(&texts, tokens)).into_response())
}

/// Which text, and its tokens since the part before.
type Told = (usize, Vec<TokenId>, Result<Part, ApiError>);
type Parts = SelectAll<BoxStream<'static, Told>>;

/// The parts of all texts as they come.
fn parts(choices: Vec<Choice>) -> Parts {
    let stream = |(index, choice): (usize, Choice)| {
        unfold(Some(choice), move |choice| async move {
            let mut choice = choice?;
            let part = choice.next().await;
            let ids = choice.take_ids();
            let more = matches!(part, Ok(Part::Piece(_))).then_some(choice);
            Some(((index, ids, part), more))
        })
        .boxed()
    };
    select_all(choices.into_iter().enumerate().map(stream))
}

struct Events {
    reply: Reply,
    /// `None` behind the last event.
    parts: Option<Parts>,
    /// The part that was waited for before the response began.
    first: Option<Told>,
    begun: Vec<bool>,
    tokens: Tokens,
    include_usage: bool,
}

impl Events {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let parts = self.parts.as_mut()?;
        let part = match self.first.take() {
            Some(first) => Some(first),
            None => parts.next().await,
        };
        let text = match part {
            Some((index, ids, Ok(part))) => {
                if let Part::End(_, used) = part {
                    self.tokens += used;
                }
                let first = !std::mem::replace(&mut self.begun[index], true);
                wire::event(&self.reply.chunk(index, &part, &ids, first))
            }
            Some((_, _, Err(error))) => {
                // The status is out already; an error event without [DONE] tells a broken answer from a short one.
                tracing::warn!(id = self.reply.id(), %error, "failed while streaming");
                self.parts = None;
                wire::event(&error.body())
            }
            None => {
                self.parts = None;
                let usage = self.include_usage.then(|| wire::event(&self.reply.usage_chunk(self.tokens)));
                usage.unwrap_or_default() + wire::DONE
            }
        };
        Some((Ok(text.into()), self))
    }
}

/// Answers once the first part is there, so that a failure before it has a status of its own.
async fn streamed(reply: Reply, choices: Vec<Choice>, include_usage: bool) -> Result<Response, ApiError> {
    let begun = vec![false; choices.len()];
    let mut parts = parts(choices);
    let first = match parts.next().await {
        Some((_, _, Err(error))) => return Err(error),
        first => first,
    };
    let events = Events { reply, parts: Some(parts), first, begun, tokens: Tokens::default(), include_usage };
    let mut response = Body::from_stream(unfold(events, Events::next)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

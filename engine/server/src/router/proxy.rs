//! One request to one server, and the way back of its answer.

use super::Timing;
use super::target::{Outstanding, Target, TargetState};
use crate::api::error::ApiError;
use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use futures::future::{Either, select};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;

/// Why a server gave no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request never reached it.
    Unreached(String),
    /// The request may have reached it.
    Broken(String),
}

/// Headers that concern a connection, not a message (RFC 9110, section 7.6.1).
const HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
];

fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = (headers.get_all(header::CONNECTION).iter())
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let stays = |name: &HeaderName| {
        !HOP.contains(name) && name.as_str() != "keep-alive" && !named.iter().any(|hop| hop == name.as_str())
    };
    headers.iter().filter(|(name, _)| stays(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Sends a request; the connection lives as long as the answer's body.
pub(super) async fn ask(
    head: &Parts,
    body: Bytes,
    outstanding: Outstanding,
    timing: Timing,
) -> Result<Response<Answer>, Failure> {
    let address = outstanding.target().address().clone();
    let unreached = |why: String| {
        outstanding.target().set(TargetState::Unwell(why.clone()));
        outstanding.target().count_unreached();
        Failure::Unreached(format!("{address}: {why}"))
    };
    let stream = match tokio::time::timeout(timing.connect, TcpStream::connect(address.as_str())).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreached(error.to_string())),
        Err(_) => return Err(unreached(format!("no connection within {:?}", timing.connect))),
    };
    // A token is a small packet that nobody should hold back; without it they only come later.
    let _ = stream.set_nodelay(true);
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| unreached(error.to_string()))?;
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = head
        .uri
        .path_and_query()
        .map_or_else(|| "/".into(), ToString::to_string)
        .parse()
        .map_err(|error: axum::http::uri::InvalidUri| Failure::Broken(format!("{address}: {error}")))?;
    *request.headers_mut() = end_to_end(&head.headers);
    request.headers_mut().remove(header::CONTENT_LENGTH);
    if let Ok(host) = HeaderValue::from_str(address.as_str()) {
        request.headers_mut().insert(header::HOST, host);
    }
    // The connection is polled here, and by the body afterwards: nothing is left behind when either is dropped.
    let mut connection: Connection = Box::pin(async move { connection.await.map_err(|error| error.to_string()) });
    let mut silence: Silence = Box::pin(Arc::clone(outstanding.target()).silent(timing.silence));
    let exchange = async {
        let sent = pin!(sender.send_request(request));
        match select(sent, &mut connection).await {
            Either::Left((answer, _)) => answer.map(|answer| (answer, true)).map_err(|error| error.to_string()),
            Either::Right((Err(why), _)) => Err(why),
            // The connection may end in the very moment in which the answer is complete.
            Either::Right((Ok(()), sent)) => {
                sent.await.map(|answer| (answer, false)).map_err(|error| error.to_string())
            }
        }
        .map_err(|why| format!("ended the connection before it answered: {why}"))
    };
    let answered = match select(pin!(exchange), &mut silence).await {
        Either::Left((answered, _)) => answered,
        Either::Right(((), _)) => Err(silent(timing)),
    };
    let (answer, open) = answered.map_err(|why| {
        outstanding.target().count_broken();
        Failure::Broken(format!("{address} {why}"))
    })?;
    let (mut head, body) = answer.into_parts();
    let events =
        head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    head.headers = end_to_end(&head.headers);
    let connection = open.then_some(connection);
    let body = Answer { body, connection, silence, timing, outstanding, events, ended: false };
    Ok(Response::from_parts(head, body))
}

type Connection = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
type Silence = Pin<Box<dyn Future<Output = ()> + Send>>;

fn silent(timing: Timing) -> String {
    format!("has not answered /health for {:?}", timing.silence)
}

/// The body of an answer. In a stream of events an answer that breaks off ends with an event that says so; elsewhere the client's
/// connection breaks too, so that half an answer never looks whole.
pub(super) struct Answer {
    body: Incoming,
    connection: Option<Connection>,
    silence: Silence,
    timing: Timing,
    outstanding: Outstanding,
    events: bool,
    ended: bool,
}

impl Answer {
    /// The end of an answer that is not complete.
    fn broken(&mut self, why: String) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.ended = true;
        let target = self.outstanding.target();
        target.count_broken();
        let why = format!("{} {why}", target.address());
        if !self.events {
            return Poll::Ready(Some(Err(why.into())));
        }
        let event = format!("data: {}\n\n", ApiError::bad_gateway(why).body());
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(event)))))
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Err(error))) => self.broken(format!("broke off: {error}")),
            Poll::Ready(frame) => {
                self.ended = frame.is_none();
                Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
            }
            Poll::Pending => match self.silence.as_mut().poll(context) {
                Poll::Ready(()) => {
                    let why = silent(self.timing);
                    self.broken(why)
                }
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

/// Asks for a server's health. One that was well and is late stays so until it has been late [`LATE_LOOKS`] times in a row: a busy
/// machine is no dead one.
pub(super) async fn look(target: &Target, timing: Timing) {
    let state = match tokio::time::timeout(timing.health.max(Duration::from_millis(100)), health(target)).await {
        Ok(Ok(())) => TargetState::Well,
        Ok(Err(why)) => TargetState::Unwell(why),
        Err(_) if target.is_well() && target.count_late() < LATE_LOOKS => return,
        Err(_) => TargetState::Unwell(format!("no health answer within {:?}", timing.health)),
    };
    target.set(state);
}

/// Two seconds with the default timing, the bound of every server's own health.
pub(super) const LATE_LOOKS: u32 = 4;

async fn health(target: &Target) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(target.address().as_str()).await.map_err(|e| text(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| text(&e))?;
    let mut connection = pin!(connection);
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = "/health".parse().map_err(|e: axum::http::uri::InvalidUri| text(&e))?;
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("decode"));
    let exchange = pin!(async {
        let answer = sender.send_request(request).await.map_err(|e| text(&e))?;
        let status = answer.status();
        let body = axum::body::to_bytes(Body::new(answer.into_body()), 64 << 10).await.map_err(|e| text(&e))?;
        Ok::<_, String>((status, body))
    });
    let (status, body): (StatusCode, Bytes) = match select(exchange, &mut connection).await {
        Either::Left((answer, _)) => answer?,
        Either::Right((Err(error), _)) => return Err(text(&error)),
        Either::Right((Ok(()), exchange)) => exchange.await?,
    };
    target.hear();
    if status == StatusCode::OK {
        return Ok(());
    }
    let reason = serde_json::from_slice::<serde_json::Value>(&body).ok();
    let reason = reason.as_ref().and_then(|body| body["reason"].as_str()).unwrap_or("no reason given");
    Err(format!("{status}: {reason}"))
}

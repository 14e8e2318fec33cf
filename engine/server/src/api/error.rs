//! Errors as clients see them.

use crate::backend::Refusal;
use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use thiserror::Error;

/// An answer that is not the one asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ApiError {
    /// Status code.
    pub status: StatusCode,
    /// Kind, also the outcome in figures.
    pub kind: &'static str,
    /// The field that is wrong.
    pub param: Option<String>,
    /// What is wrong: which, expected, got.
    pub message: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, param: None, message: message.into() }
    }

    /// A body that is not a request (400).
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field that is wrong (400).
    pub fn field(param: &str, expected: &str, got: impl std::fmt::Display) -> Self {
        let error = Self::invalid(format!("{param}: expected {expected}, got {got}"));
        Self { param: Some(param.to_owned()), ..error }
    }

    /// No such route (404).
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// A model that is not served here (404).
    pub fn model(expected: &str, got: &str) -> Self {
        let error = Self::not_found(format!("model: expected {expected:?}, got {got:?}"));
        Self { param: Some("model".to_owned()), ..error }
    }

    /// A route without this method (405).
    pub fn method(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// A body that does not come (408).
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
    }

    /// A body that is too large (413).
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// The queue is full (429).
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded_error", message)
    }

    /// A step failed (500).
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_error", message)
    }

    /// The model did not do what the request demands (500).
    pub fn disobeyed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "model_error", message)
    }

    /// The server behind this one broke off (502).
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "bad_gateway_error", message)
    }

    /// Nobody computes here any more, or not for new requests (503).
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// The body of the answer, and the event in a stream.
    pub fn body(&self) -> Value {
        let Self { status, kind, param, message } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": status.as_u16() } })
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(why) => Self::invalid(why),
            Refusal::Busy(why) => Self::busy(why),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(self.body());
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => (self.status, [(header::RETRY_AFTER, "1")], body).into_response(),
            status => (status, body).into_response(),
        }
    }
}

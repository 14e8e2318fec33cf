//! Routes about the model: its name, its tokens.

use super::{App, reading};
use crate::api::Served;
use crate::api::error::ApiError;
use crate::api::job;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

fn card(served: &Served) -> Value {
    let Served { name, created, context, .. } = served;
    json!({ "id": name, "object": "model", "created": created, "owned_by": "sm120", "max_model_len": context })
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Response {
    Json(json!({ "object": "list", "data": [card(&app.served)] })).into_response()
}

/// Names may contain slashes.
pub(super) async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Response {
    match app.served.known(&name) {
        Ok(()) => Json(card(&app.served)).into_response(),
        Err(error) => error.into_response(),
    }
}

/// The tokens of a prompt or of a chat, as the model would get them.
pub(super) async fn tokenize(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let context = app.served.context;
    let tokens = reading(&app, body, job::tokens).await?;
    Ok(Json(json!({ "count": tokens.len(), "max_model_len": context, "tokens": tokens })).into_response())
}

/// The text of tokens.
pub(super) async fn detokenize(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let text = reading(&app, body, job::text).await?;
    Ok(Json(json!({ "prompt": text })).into_response())
}

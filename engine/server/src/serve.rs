//! Connections: accepted, bounded, and finished when the server goes.

use crate::faulty::Faulty;
use crate::http::{App, Limits, router};
use crate::patience::Patience;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use transfer::fault::Faults;

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every answer was finished.
    All,
    /// So many texts were cut off at the deadline.
    Cut(usize),
}

/// What answers behind connections.
pub trait Site: Send + Sync + 'static {
    /// Its routes.
    fn routes(self: Arc<Self>) -> axum::Router;
    /// What it allows.
    fn limits(&self) -> &Limits;
    /// What happens to its connections.
    fn faults(&self) -> &Faults {
        const { &Faults::none() }
    }
    /// A connection was accepted; counted until the answer is dropped.
    fn connected(&self) -> Box<dyn std::any::Any + Send>;
    /// Takes nothing new from now on.
    fn drain(&self);
    /// Answers under way.
    fn in_flight(&self) -> usize;
}

impl Site for App {
    fn routes(self: Arc<Self>) -> axum::Router {
        router(self)
    }

    fn limits(&self) -> &Limits {
        App::limits(self)
    }

    fn faults(&self) -> &Faults {
        App::faults(self)
    }

    fn connected(&self) -> Box<dyn std::any::Any + Send> {
        Box::new(self.metrics().connection())
    }

    fn drain(&self) {
        App::drain(self);
    }

    fn in_flight(&self) -> usize {
        App::in_flight(self)
    }
}

/// Serves until `stop`, then takes nothing new and finishes what it has within `drain`.
pub async fn serve<S: Site>(
    listener: TcpListener,
    app: Arc<S>,
    stop: impl Future<Output = ()>,
    drain: Duration,
) -> Drained {
    let routes = TowerToHyperService::new(Arc::clone(&app).routes());
    let places = Arc::new(Semaphore::new(app.limits().connections.min(Semaphore::MAX_PERMITS)));
    let (close, closing) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
            // Ended connections leave the set as they end.
            Some(_) = connections.join_next() => continue,
        };
        match (accepted, Arc::clone(&places).try_acquire_owned()) {
            (Ok((stream, _)), Ok(place)) => {
                let (routes, app, closing) = (routes.clone(), Arc::clone(&app), closing.clone());
                // A token is a small packet that nobody should hold back.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "nodelay");
                }
                let stream = Faulty::new(stream, app.faults());
                connections.spawn(async move {
                    let _place = place;
                    let _open = app.connected();
                    connection(stream, routes, app.limits(), closing).await;
                });
            }
            (Ok((_, peer)), Err(_)) => tracing::warn!(%peer, limit = app.limits().connections, "too many connections"),
            (Err(error), _) => {
                // Out of files, most likely: others have to end first.
                tracing::warn!(%error, "accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    app.drain();
    // Fails if there is no connection.
    let _ = close.send(true);
    let all = async { while connections.join_next().await.is_some() {} };
    match tokio::time::timeout(drain, all).await {
        Ok(()) => Drained::All,
        Err(_) => {
            let cut = app.in_flight();
            connections.shutdown().await;
            if cut == 0 { Drained::All } else { Drained::Cut(cut) }
        }
    }
}

async fn connection(
    stream: Faulty,
    routes: TowerToHyperService<axum::Router>,
    limits: &Limits,
    mut closing: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_time);
    let stream = Patience::new(stream, limits.write_time);
    let told = async { _ = closing.wait_for(|closing| *closing).await };
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), routes));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = told => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection");
    }
}

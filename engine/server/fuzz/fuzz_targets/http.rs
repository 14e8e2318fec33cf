//! Any bytes on a connection: answers that are HTTP, none of them a failure of the server, or a closed connection.
#![no_main]

use engine::ids::TokenId;
use engine::progress::PartState;
use engine::sequence::{FinishReason, Request, Usage};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use libfuzzer_sys::fuzz_target;
use server::backend::{Backend, Figure, Update, Updates};
use server::http::{App, Limits, router};
use std::sync::{Arc, LazyLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

/// Says the same to everybody.
struct Script;

impl Backend for Script {
    fn submit(&self, request: Request) -> Updates {
        let (sender, updates) = Updates::new(|| (), String::new);
        let said = "a</think>b\n\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>";
        let tokens = server_fuzz::marked().encode(said).expect("text");
        let usage = Usage {
            prompt_tokens: request.prompt.len() as u32,
            cached_tokens: 0,
            generated_tokens: tokens.len() as u32,
        };
        for token in tokens {
            let _ = sender.send(Update::Token(token));
        }
        let _ = sender.send(Update::Finished { reason: FinishReason::Stop(TokenId(257)), usage });
        updates
    }

    fn parts(&self) -> Vec<PartState> {
        Vec::new()
    }

    fn ended(&self) -> Option<String> {
        None
    }

    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}

struct Rig {
    runtime: Runtime,
    routes: TowerToHyperService<axum::Router>,
}

static RIG: LazyLock<Rig> = LazyLock::new(|| {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let app = Arc::new(App::new(Arc::new(Script), server_fuzz::served(), Limits::default()));
    Rig { runtime, routes: TowerToHyperService::new(router(app)) }
});

async fn talk(bytes: &[u8]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let mut http = http1::Builder::new();
    http.half_close(true);
    let serving = http.serve_connection(TokioIo::new(server), RIG.routes.clone());
    let asking = async {
        // The server may hang up before it has read everything.
        let _ = client.write_all(bytes).await;
        let _ = client.shutdown().await;
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        answer
    };
    tokio::join!(serving, asking).1
}

fuzz_target!(|bytes: &[u8]| {
    let answer = RIG.runtime.block_on(talk(bytes));
    if answer.is_empty() {
        return;
    }
    let text = String::from_utf8(answer).expect("answers are UTF-8");
    let status =
        text.strip_prefix("HTTP/1.1 ").or_else(|| text.strip_prefix("HTTP/1.0 ")).and_then(|rest| rest.get(..3));
    let status: u16 = status.and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no status line: {text}"));
    assert!(text.contains("\r\n\r\n"), "a head that ends: {text}");
    assert!((100..500).contains(&status) || text.contains("model_error"), "{text}");
});

use super::*;
use axum::routing::post;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A decode server that says its name; `well` is its health.
async fn server(name: &'static str, status: StatusCode, well: Arc<AtomicBool>) -> Address {
    let health = move || async move {
        if well.load(Ordering::SeqCst) {
            (StatusCode::OK, Json(json!({ "status": "ok" })))
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "reason": "rank 1: 3 waiting" })))
        }
    };
    let routes = axum::Router::new()
        .route("/health", get(health))
        .route("/v1/completions", post(move |body: String| async move { (status, format!("{name} {body}")) }));
    spawn(routes).await
}

async fn spawn(routes: axum::Router) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    address
}

const QUICK: Timing = Timing {
    connect: Duration::from_millis(500),
    health: Duration::from_millis(100),
    body_bytes: 1000,
    body_time: Duration::from_millis(300),
    silence: Duration::from_millis(400),
};

async fn router(targets: Vec<Address>) -> (Arc<Balancer>, Address) {
    let balancer = Balancer::new(targets, QUICK);
    for target in balancer.targets() {
        proxy::look(target, QUICK).await;
    }
    let address = spawn(routes(Arc::clone(&balancer))).await;
    (balancer, address)
}

/// One request over a socket of its own: the whole answer as it came.
async fn send(address: &Address, request: &str) -> String {
    let mut stream = TcpStream::connect(address.as_str()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A connection that is reset has said what it had to say.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn completion(body: &str) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn free_address() -> Address {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string().parse().unwrap()
}

#[tokio::test]
async fn a_request_reaches_a_server_that_is_well() {
    let (up, down) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let sick = server("sick", StatusCode::OK, down).await;
    let well = server("well", StatusCode::OK, up).await;
    let (balancer, address) = router(vec![sick, well]).await;
    for _ in 0..4 {
        let answer = send(&address, &completion("text")).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("well text"), "{answer}");
    }
    assert_eq!(balancer.targets()[0].state().to_string(), "503 Service Unavailable: rank 1: 3 waiting");
    assert_eq!((balancer.targets()[0].asked(), balancer.targets()[1].asked()), (0, 4));
    assert!(balancer.targets().iter().all(|target| target.outstanding() == 0));
}

#[tokio::test]
async fn an_unreachable_or_full_server_is_passed_over() {
    let up = || Arc::new(AtomicBool::new(true));
    let full = server("full", StatusCode::TOO_MANY_REQUESTS, up()).await;
    let well = server("well", StatusCode::OK, up()).await;
    let (balancer, address) = router(vec![free_address(), full, well]).await;
    // Nobody has noticed yet that the first one is gone.
    balancer.targets()[0].set(TargetState::Well);
    for _ in 0..6 {
        let answer = send(&address, &completion("text")).await;
        assert!(answer.ends_with("well text"), "{answer}");
    }
    assert!(matches!(balancer.targets()[0].state(), TargetState::Unwell(_)));
    assert_eq!(balancer.targets()[0].unreached(), 1);
}

#[tokio::test]
async fn without_servers_the_answer_says_why() {
    let gone = free_address();
    let (_, address) = router(vec![gone.clone()]).await;
    let answer = send(&address, &completion("text")).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains(gone.as_str()), "{answer}");
    let health = send(&address, "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(health.starts_with("HTTP/1.1 503"), "{health}");
}

#[tokio::test]
async fn the_only_server_may_refuse() {
    let full = server("full", StatusCode::TOO_MANY_REQUESTS, Arc::new(AtomicBool::new(true))).await;
    let (_, address) = router(vec![full]).await;
    let answer = send(&address, &completion("text")).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.ends_with("full text"), "{answer}");
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let well = server("well", StatusCode::OK, Arc::new(AtomicBool::new(true))).await;
    let (balancer, address) = router(vec![well]).await;
    let answer = send(&address, &completion(&"x".repeat(1001))).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert_eq!(balancer.targets()[0].asked(), 0);
}

/// A server that answers with these bytes and closes.
async fn script(answer: &'static str) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            _ = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn an_answer_that_breaks_off_never_looks_whole() {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
                  8\r\ndata: 1\n\r\n";
    let (balancer, address) = router(vec![script(stream).await]).await;
    balancer.targets()[0].set(TargetState::Well);
    let answer = send(&address, &completion("text")).await;
    assert!(answer.contains("data: 1") && answer.contains("broke off"), "{answer}");
    assert_eq!((balancer.targets()[0].broken(), balancer.targets()[0].outstanding()), (1, 0));

    let whole = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{\"id\":";
    let (balancer, address) = router(vec![script(whole).await]).await;
    balancer.targets()[0].set(TargetState::Well);
    let answer = send(&address, &completion("text")).await;
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    assert!(body.len() < 20 && !answer.contains("transfer-encoding"), "cut short for the client too: {answer}");
    assert_eq!(balancer.targets()[0].broken(), 1);

    let (balancer, address) = router(vec![script("").await]).await;
    balancer.targets()[0].set(TargetState::Well);
    let answer = send(&address, &completion("text")).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("before it answered"), "{answer}");
}

#[tokio::test]
async fn an_answer_outlives_the_connection_that_brought_it() {
    let whole = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\ntext";
    for _ in 0..50 {
        // Head, body and end come at once, so that the connection is over before anybody asks for the body.
        let (balancer, address) = router(vec![script(whole).await]).await;
        balancer.targets()[0].set(TargetState::Well);
        let answer = send(&address, &completion("text")).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("text"), "{answer}");
        assert_eq!((balancer.targets()[0].broken(), balancer.targets()[0].outstanding()), (0, 0));
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let well = server("well", StatusCode::OK, Arc::new(AtomicBool::new(true))).await;
    let (balancer, address) = router(vec![well]).await;
    let answer = send(&address, "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{").await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("expected within 0.3 s"), "{answer}");
    assert_eq!(balancer.targets()[0].asked(), 0);
}

#[tokio::test]
async fn requests_at_a_server_that_stands_still_are_told_so() {
    // Answers looks until it stands still, and requests with nothing or the beginning of an answer.
    let begun =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n";
    for beginning in ["", begun] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let looks = Arc::new(AtomicBool::new(true));
        let answers = Arc::clone(&looks);
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let n = stream.read(&mut request).await.unwrap();
                let health = request[..n].starts_with(b"GET /health");
                if !health {
                    stream.write_all(beginning.as_bytes()).await.unwrap();
                } else if answers.load(Ordering::SeqCst) {
                    let busy = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(busy.as_bytes()).await.unwrap();
                }
                open.push(stream);
            }
        });
        let (balancer, address) = router(vec![target]).await;
        balancer.targets()[0].set(TargetState::Well);
        let watching = tokio::spawn(Arc::clone(&balancer).watch());
        let text = completion("text");
        let mut asked = pin!(send(&address, &text));
        // As long as it answers looks, even with bad news, its requests may take any time.
        let early = tokio::time::timeout(3 * QUICK.silence, &mut asked).await;
        assert!(early.is_err(), "given up on a server that answers: {early:?}");
        looks.store(false, Ordering::SeqCst);
        let answer = tokio::time::timeout(Duration::from_secs(20), asked).await.unwrap();
        assert!(answer.contains("has not answered /health for 400ms"), "{answer}");
        assert_eq!(answer.starts_with("HTTP/1.1 502"), beginning.is_empty(), "{answer}");
        assert_eq!((balancer.targets()[0].broken(), balancer.targets()[0].outstanding()), (1, 0));
        watching.abort();
    }
}

#[tokio::test]
async fn a_client_that_goes_away_closes_the_connection_behind() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let (balancer, address) = {
        let balancer = Balancer::new(vec![target], QUICK);
        balancer.targets()[0].set(TargetState::Well);
        let address = spawn(routes(Arc::clone(&balancer))).await;
        (balancer, address)
    };
    for answered in [false, true] {
        let mut client = TcpStream::connect(address.as_str()).await.unwrap();
        client.write_all(completion("text").as_bytes()).await.unwrap();
        let (mut behind, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 4096];
        assert!(behind.read(&mut bytes).await.unwrap() > 0);
        if answered {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            behind.write_all(head.as_bytes()).await.unwrap();
            assert!(client.read(&mut bytes).await.unwrap() > 0);
        }
        drop(client);
        assert_eq!(behind.read(&mut bytes).await.unwrap_or(0), 0, "answered: {answered}");
        let start = Instant::now();
        while balancer.targets()[0].outstanding() > 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "the request is still counted");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_server_that_recovers_is_asked_again() {
    let well = Arc::new(AtomicBool::new(false));
    let address = server("well", StatusCode::OK, Arc::clone(&well)).await;
    let balancer = Balancer::new(vec![address], QUICK);
    let watching = tokio::spawn(Arc::clone(&balancer).watch());
    let becomes = |state: bool| {
        let target = Arc::clone(&balancer.targets()[0]);
        async move {
            let start = Instant::now();
            while target.is_well() != state {
                assert!(start.elapsed() < Duration::from_secs(10), "still {}", target.state());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    for state in [true, false, true] {
        well.store(state, Ordering::SeqCst);
        becomes(state).await;
    }
    watching.abort();
}

#[test]
fn addresses_are_hosts_and_ports() {
    for (text, as_read) in
        [("127.0.0.1:80", "127.0.0.1:80"), ("http://host-1:8000/", "host-1:8000"), ("[::1]:9", "[::1]:9")]
    {
        assert_eq!(text.parse::<Address>().unwrap().as_str(), as_read);
    }
    for wrong in
        ["", ":80", "host", "host:", "host:0", "host:65536", "https://host:1", "a b:1", "a/b:1", "[::g]:1", "u@h:1"]
    {
        assert!(wrong.parse::<Address>().is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_router_waits_for_servers_that_start() {
    let well = Arc::new(AtomicBool::new(false));
    let balancer = Balancer::new(vec![server("a", StatusCode::OK, Arc::clone(&well)).await], QUICK);
    assert!(!balancer.settle(Duration::ZERO).await, "one look, and not well");
    assert!(balancer.targets()[0].state() != TargetState::Unknown, "looked at all the same");
    let (settled, ()) = tokio::join!(balancer.settle(Duration::from_secs(20)), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        well.store(true, Ordering::SeqCst);
    });
    assert!(settled && balancer.targets()[0].is_well());
}

#[tokio::test]
async fn a_late_server_is_given_time_and_a_silent_one_is_not() {
    // Accepts and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let balancer = Balancer::new(vec![address], QUICK);
    let target = &balancer.targets()[0];
    proxy::look(target, QUICK).await;
    assert!(!target.is_well(), "never seen well");
    target.set(TargetState::Well);
    for _ in 1..proxy::LATE_LOOKS {
        proxy::look(target, QUICK).await;
        assert!(target.is_well());
    }
    proxy::look(target, QUICK).await;
    assert!(!target.is_well());
    drop(listener);
}

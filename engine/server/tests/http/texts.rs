//! What clients get: the engine's own tokens, the same text whole and streamed, one end, the truth about failures.

use crate::client::{Answer, ask, get};
use crate::fake::{Fake, Script, ids};
use crate::rig::{Server, engine, served};
use engine::ids::TokenId;
use engine::sequence::{Event, FinishReason, Request};
use engine::step::Sampling;
use serde_json::{Value, json};
use server::backend::{EngineBackend, Refusal};
use server::http::Limits;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Text, finish reason and usage of a whole answer.
fn whole(answer: &Answer) -> (String, String, Value) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let choice = &json["choices"][0];
    let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).expect("text");
    (text.to_owned(), choice["finish_reason"].as_str().expect("a reason").to_owned(), json["usage"].clone())
}

/// The same of a stream, and the texts of its events. Checks its shape on the way.
fn streamed(answer: &Answer) -> ((String, String, Value), Vec<String>) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut events = answer.events();
    assert_eq!(events.pop(), Some(None), "[DONE] ends the stream");
    let mut events: Vec<Value> = events.into_iter().map(|event| event.expect("one [DONE]")).collect();
    let usage = events.pop().expect("the usage");
    assert_eq!(usage["choices"], json!([]), "the chunk with the usage has no choices");
    let finished: Vec<&str> = events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(finished.len(), 1, "one finish reason, null before");
    assert_eq!(events.last().and_then(|event| event["choices"][0]["finish_reason"].as_str()), Some(finished[0]));
    let id = &events[0]["id"];
    assert!(events.iter().all(|event| event["id"] == *id && event.get("usage").is_none()));
    let text = |event: &Value| {
        let choice = &event["choices"][0];
        choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or("").to_owned()
    };
    let pieces: Vec<String> = events.iter().map(text).filter(|text| !text.is_empty()).collect();
    ((pieces.concat(), finished[0].to_owned(), usage["usage"].clone()), pieces)
}

fn with_stream(mut body: Value) -> Value {
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    body
}

/// 64 clients at once get what the engine says to each alone.
#[test]
fn the_engines_own_tokens() {
    let engine = engine(64);
    let sampling = |i: u32| Sampling { temperature: if i.is_multiple_of(2) { 0.0 } else { 0.8 }, seed: i.into() };
    let prompt = |i: u32| (0..1 + i * 7 % 90).map(|at| TokenId((at * 31 + i) % 256)).collect::<Vec<_>>();
    let requests: Vec<Request> = (0..64)
        .map(|i| Request { prompt: prompt(i), max_tokens: 4 + i % 5, stop: Vec::new(), sampling: sampling(i) })
        .collect();
    let expected: Vec<String> = requests
        .iter()
        .map(|request| {
            let (_, events) = engine.add(request.clone()).expect("runs").expect("fits");
            let tokens: Vec<TokenId> = events
                .iter()
                .filter_map(|event| match event {
                    Event::Token { token, .. } => Some(token),
                    Event::Finished { .. } => None,
                })
                .collect();
            assert_eq!(tokens.len() as u32, request.max_tokens);
            served().tokenizer.decode(&tokens).expect("tokens of the model")
        })
        .collect();
    let backend = EngineBackend::new(engine);
    let server = Server::start(Arc::new(backend.clone()), Limits { in_flight: 64, ..Limits::default() });
    std::thread::scope(|scope| {
        for (request, expected) in requests.iter().zip(&expected) {
            let address = server.address;
            scope.spawn(move || {
                let ids: Vec<u32> = request.prompt.iter().map(|id| id.0).collect();
                let body = json!({
                    "prompt": ids, "max_tokens": request.max_tokens, "temperature": request.sampling.temperature,
                    "seed": request.sampling.seed, "ignore_eos": true, "model": "tiny",
                });
                let usage = json!({
                    "prompt_tokens": ids.len(), "completion_tokens": request.max_tokens,
                    "total_tokens": ids.len() as u32 + request.max_tokens, "prompt_tokens_details": { "cached_tokens": 0 },
                });
                let got = if request.sampling.seed.is_multiple_of(3) {
                    streamed(&ask(address, COMPLETIONS, &with_stream(body))).0
                } else {
                    whole(&ask(address, COMPLETIONS, &body))
                };
                assert_eq!(got, (expected.clone(), "length".to_owned(), usage));
            });
        }
    });
    let metrics = get(server.address, "/metrics").text();
    assert!(metrics.contains("sm120_requests_total{endpoint=\"completions\",outcome=\"length\"} 64\n"), "{metrics}");
    assert!(
        metrics.contains("sm120_requests_in_flight 0\n") && metrics.contains("sm120_part_waiting{part=\"rank 0\"} 0\n")
    );
    server.stop(|| ());
    // The pages of the last text return with the step that was in flight when it ended.
    let held = || {
        let now = backend.engine().snapshot();
        (now.compressed.pages - now.compressed.free, now.window.pages - now.window.free)
    };
    let start = Instant::now();
    while held() != (0, 0) && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(held(), (0, 0), "compressed and window pages that nobody returned");
}

/// A real prompt through the chat format; the same text whole and streamed.
#[test]
fn a02_chat_over_the_engine() {
    let server = Server::start(Arc::new(EngineBackend::new(engine(64))), Limits::default());
    let body = json!({
        "messages": [{ "role": "user", "content": "hi" }], "thinking": { "type": "disabled" }, "max_tokens": 12, "seed": 3,
        "ignore_eos": true,
    });
    let (text, reason, usage) = whole(&ask(server.address, CHAT, &body));
    let ((text_streamed, reason_streamed, usage_streamed), _) =
        streamed(&ask(server.address, CHAT, &with_stream(body)));
    assert_eq!((&text, &reason, &usage), (&text_streamed, &reason_streamed, &usage_streamed));
    assert_eq!((reason.as_str(), &usage["completion_tokens"]), ("length", &json!(12)));
    assert_eq!(usage["prompt_tokens"], "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>".len());
}

#[test]
fn a04_characters_are_whole() {
    let fake = Fake::new(Script::say("aé🙂b"));
    let server = Server::start(fake.clone(), Limits::default());
    let body = with_stream(json!({ "prompt": "x" }));
    let ((_, _, usage), pieces) = streamed(&ask(server.address, COMPLETIONS, &body));
    assert_eq!((pieces, &usage["completion_tokens"]), (["a", "é", "🙂", "b"].map(str::to_owned).to_vec(), &json!(8)));
    fake.set(Script::Say(ids(b"a\xf0\x9f\x99"), FinishReason::ContextLimit));
    let ((text, reason, _), _) = streamed(&ask(server.address, COMPLETIONS, &body));
    assert_eq!((text.as_str(), reason.as_str()), ("a\u{fffd}", "length"), "nothing withheld is lost");
}

#[test]
fn reasoning_beside_the_answer() {
    let fake = Fake::new(Script::say("\nlet me see\n</think>\n\nYes."));
    let server = Server::start(fake, Limits::default());
    let body = json!({ "messages": [{ "role": "user", "content": "?" }], "reasoning_effort": "low", "max_tokens": 99 });
    let answer = ask(server.address, CHAT, &body).json();
    let message = json!({ "role": "assistant", "content": "Yes.", "reasoning_content": "let me see" });
    assert_eq!(answer["choices"][0]["message"], message);
    let events = ask(server.address, CHAT, &with_stream(body)).events();
    let deltas: Vec<Value> = events.into_iter().flatten().map(|event| event["choices"][0]["delta"].clone()).collect();
    let joined = |key: &str| deltas.iter().filter_map(|delta| delta[key].as_str()).collect::<String>();
    assert_eq!((joined("reasoning_content").as_str(), joined("content").as_str()), ("let me see", "Yes."));
    assert_eq!(deltas[0]["role"], "assistant");
    assert!(deltas[1..].iter().all(|delta| delta.get("role").is_none()), "the role is said once");
}

/// Tokens beside the text: all of them, also those that complete no character or were held back.
#[test]
fn tokens_beside_the_text() {
    let said = b"a\xc3\xa9#x\x01".to_vec();
    let fake = Fake::new(Script::Say(ids(&said), FinishReason::Stop(TokenId(1))));
    let server = Server::start(fake, Limits::default());
    let body = json!({ "prompt": "x", "return_token_ids": true, "stop": "##" });
    assert_eq!(ask(server.address, COMPLETIONS, &body).json()["choices"][0]["token_ids"], json!(said));
    let events = ask(server.address, COMPLETIONS, &with_stream(body)).events();
    let choices: Vec<Value> = events.iter().flatten().map(|event| event["choices"][0].clone()).collect();
    let pairs: Vec<(&str, &Value)> =
        choices.iter().filter_map(|choice| Some((choice["text"].as_str()?, &choice["token_ids"]))).collect();
    let expected = [json!([0x61]), json!([0xc3, 0xa9]), json!([0x23, 0x78]), json!([1])];
    assert_eq!(pairs, [("a", &expected[0]), ("é", &expected[1]), ("#x", &expected[2]), ("", &expected[3])]);
    let plain = ask(server.address, COMPLETIONS, &json!({ "prompt": "x" })).json();
    assert!(plain["choices"][0].get("token_ids").is_none());
}

/// Byte tokens put every border there is inside the stop string.
#[test]
fn a05_stop_strings_end_the_request() {
    let fake = Fake::new(Script::say("one # ## é###two###"));
    let server = Server::start(fake.clone(), Limits::default());
    let body = json!({ "prompt": "x", "stop": ["é##", "~never"] });
    let expected = ("one # ## ".to_owned(), "stop".to_owned());
    let (text, reason, usage) = whole(&ask(server.address, COMPLETIONS, &body));
    assert_eq!((text, reason), expected);
    assert_eq!(usage["completion_tokens"], "one # ## é##".len(), "what was generated behind it does not count");
    assert_eq!(fake.cancelled.load(Ordering::SeqCst), 1);
    let ((text, reason, usage_streamed), pieces) = streamed(&ask(server.address, COMPLETIONS, &with_stream(body)));
    assert_eq!((text, reason), expected);
    assert_eq!(usage_streamed, usage);
    assert_eq!(pieces.len(), "one # ## ".len(), "only what may begin a stop string is held back");
}

#[test]
fn a_stop_token_is_not_part_of_the_text() {
    let fake = Fake::new(Script::Say(ids(b"ab\x01"), FinishReason::Stop(TokenId(1))));
    let server = Server::start(fake, Limits::default());
    let (text, reason, usage) = whole(&ask(server.address, COMPLETIONS, &json!({ "prompt": "x" })));
    assert_eq!((text.as_str(), reason.as_str(), &usage["completion_tokens"]), ("ab", "stop", &json!(3)));
}

#[test]
fn several_prompts_are_several_choices() {
    let fake = Fake::new(Script::say("out"));
    let server = Server::start(fake, Limits::default());
    let body = json!({ "prompt": ["a", "bc", "d"] });
    let answer = ask(server.address, COMPLETIONS, &body).json();
    let choices = answer["choices"].as_array().expect("choices");
    let indices: Vec<&Value> = choices.iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert!(choices.iter().all(|choice| choice["text"] == "out" && choice["finish_reason"] == "length"));
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(4), &json!(9)));
    let events = ask(server.address, COMPLETIONS, &with_stream(body)).events();
    for index in 0..3 {
        let of: Vec<Value> = events
            .iter()
            .flatten()
            .filter(|event| event["choices"][0]["index"] == index)
            .map(|event| event["choices"][0].clone())
            .collect();
        let text: String = of.iter().filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(text, "out");
        assert_eq!(of.iter().filter(|choice| choice["finish_reason"] == "length").count(), 1);
    }
    let usage = events[events.len() - 2].as_ref().expect("the usage");
    assert_eq!(usage["usage"]["total_tokens"], 13);
}

/// A failure has a status before the first byte and is an event behind it; it is never an empty or a short answer.
#[test]
fn a10_failures_are_failures() {
    let fake = Fake::new(Script::say(""));
    let server = Server::start(fake.clone(), Limits::default());
    let failed = || FinishReason::Failed("step 7: no room".to_owned());
    for (script, status, message) in [
        (Script::Say(Vec::new(), failed()), 500, "step 7: no room"),
        (Script::Say(Vec::new(), FinishReason::Unavailable("nobody computes".into())), 503, "nobody computes"),
        (Script::Say(Vec::new(), FinishReason::Cancelled), 503, "the request was cancelled by the server"),
        (Script::Vanish(Vec::new()), 503, "the worker has vanished"),
        (Script::Refuse(Refusal::Invalid("too long".into())), 400, "too long"),
        (Script::Refuse(Refusal::Busy("later".into())), 429, "later"),
    ] {
        fake.set(script);
        for body in [json!({ "prompt": "x" }), with_stream(json!({ "prompt": "x" }))] {
            let answer = ask(server.address, COMPLETIONS, &body);
            assert_eq!((answer.status, answer.message().as_str()), (status, message));
        }
    }
    for script in [Script::Say(ids(b"ab"), failed()), Script::Vanish(ids(b"ab"))] {
        fake.set(script);
        assert!(ask(server.address, COMPLETIONS, &json!({ "prompt": "x" })).status >= 500);
        let events = ask(server.address, COMPLETIONS, &with_stream(json!({ "prompt": "x" }))).events();
        let events: Vec<Value> = events.into_iter().map(|event| event.expect("no [DONE] behind an error")).collect();
        assert_eq!(events.len(), 3);
        assert!(events[2]["error"]["code"].as_u64().is_some_and(|code| code >= 500));
        assert!(events[..2].iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    }
}

#[test]
fn other_routes() {
    let server = Server::start(Fake::new(Script::say("x")), Limits::default());
    let models = get(server.address, "/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("tiny"), &json!(700)));
    assert_eq!(get(server.address, "/v1/models/tiny").json(), models["data"][0]);
    let unknown = get(server.address, "/v1/models/some/other");
    assert_eq!((unknown.status, unknown.message().as_str()), (404, "model: expected \"tiny\", got \"some/other\""));
    assert_eq!(get(server.address, "/live").status, 200);
    let missing = get(server.address, "/v2/models");
    assert_eq!((missing.status, missing.message().as_str()), (404, "no route /v2/models"));
    let wrong = get(server.address, COMPLETIONS);
    assert_eq!((wrong.status, wrong.message().as_str()), (405, "/v1/completions has no method GET"));
    assert_eq!(ask(server.address, COMPLETIONS, &json!({ "prompt": "x", "model": "other" })).status, 404);
}

#[test]
fn tokens_and_their_text() {
    let server = Server::start(Fake::new(Script::say("x")), Limits::default());
    let tokenize = |body: Value| ask(server.address, "/tokenize", &body);
    let tokens = tokenize(json!({ "prompt": "aé" })).json();
    assert_eq!(tokens, json!({ "count": 3, "max_model_len": 700, "tokens": [0x61, 0xc3, 0xa9] }));
    let text = ask(server.address, "/detokenize", &json!({ "tokens": tokens["tokens"], "model": "tiny" })).json();
    assert_eq!(text, json!({ "prompt": "aé" }));
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }], "reasoning_effort": "none" });
    let usage = ask(server.address, CHAT, &chat).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(tokenize(chat).json()["count"], usage, "what the model gets");
    for (path, body, message) in [
        ("/tokenize", json!({}), "prompt: expected a string, or messages, got nothing"),
        ("/tokenize", json!({ "prompt": [1] }), "prompt: expected a string, got an array of 1"),
        ("/detokenize", json!({ "tokens": [256] }), "tokens[0]: expected a token id below 256, got 256"),
    ] {
        let answer = ask(server.address, path, &body);
        assert_eq!((answer.status, answer.message().as_str()), (400, message));
    }
    assert_eq!(tokenize(json!({ "prompt": "x", "model": "other" })).status, 404);
}

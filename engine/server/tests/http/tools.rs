//! Tool calls as clients get them, whole and streamed.

use crate::client::{Answer, ask};
use crate::fake::{Fake, Script, ids};
use crate::rig::{Server, marked};
use engine::ids::TokenId;
use engine::sequence::FinishReason;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const CHAT: &str = "/v1/chat/completions";

/// `D` is the marker.
fn tokens(text: &str) -> Vec<TokenId> {
    marked().tokenizer.encode(&text.replace('D', "｜DSML｜")).expect("text")
}

fn said(text: &str) -> Script {
    Script::Say(tokens(text), FinishReason::Stop(TokenId(257)))
}

fn body() -> Value {
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    json!({
        "messages": [{ "role": "user", "content": "?" }], "tools": [tool("get_weather"), tool("ping")],
        "reasoning_effort": "none",
    })
}

/// A choice: its message, and why it is complete.
type Choice = (Value, String);

fn whole(answer: &Answer) -> (Vec<Choice>, Value) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let choice =
        |choice: &Value| (choice["message"].clone(), choice["finish_reason"].as_str().expect("a reason").into());
    (json["choices"].as_array().expect("choices").iter().map(choice).collect(), json["usage"].clone())
}

/// The same put together from the events of a stream; checks their shape.
fn streamed(answer: &Answer) -> (Vec<Choice>, Value) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut events = answer.events();
    assert_eq!(events.pop(), Some(None), "[DONE] ends the stream");
    let usage = events.pop().flatten().expect("the usage");
    assert_eq!(usage["choices"], json!([]));
    let mut choices: Vec<(Value, Option<String>)> = Vec::new();
    for event in events.into_iter().flatten() {
        let choice = &event["choices"][0];
        let index = choice["index"].as_u64().expect("an index") as usize;
        if index >= choices.len() {
            choices.resize(index + 1, (json!({ "content": null }), None));
        }
        let (message, reason) = &mut choices[index];
        assert!(reason.is_none(), "nothing follows the reason");
        let delta = &choice["delta"];
        for key in ["role", "content", "reasoning_content"] {
            if let Some(text) = delta[key].as_str() {
                assert!(!text.is_empty());
                message[key] = (message[key].as_str().unwrap_or_default().to_owned() + text).into();
            }
        }
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            add_call(message, part);
        }
        *reason = choice["finish_reason"].as_str().map(str::to_owned);
        assert!(choice["finish_reason"].is_null() || reason.as_ref().is_some_and(|reason| !reason.is_empty()));
    }
    let choice = |(mut message, reason): (Value, Option<String>)| {
        if message["content"].is_null() && message.get("tool_calls").is_none() {
            message["content"] = "".into();
        }
        (message, reason.expect("one reason"))
    };
    (choices.into_iter().map(choice).collect(), usage["usage"].clone())
}

/// The first part of a call has its name and everything but arguments, the others have those.
fn add_call(message: &mut Value, part: &Value) {
    if message.get("tool_calls").is_none() {
        message["tool_calls"] = json!([]);
    }
    let calls = message["tool_calls"].as_array_mut().expect("an array");
    let at = part["index"].as_u64().expect("an index") as usize;
    if at == calls.len() {
        assert_eq!((&part["type"], &part["function"]["arguments"]), (&json!("function"), &json!("")));
        let mut call = part.clone();
        call.as_object_mut().expect("an object").remove("index");
        calls.push(call);
    } else {
        assert_eq!(at + 1, calls.len(), "calls come one after the other");
        assert!(part.get("id").is_none() && part["function"].get("name").is_none(), "{part}");
        let delta = part["function"]["arguments"].as_str().expect("arguments");
        assert!(!delta.is_empty());
        let arguments = calls[at]["function"]["arguments"].as_str().expect("a string").to_owned() + delta;
        calls[at]["function"]["arguments"] = arguments.into();
    }
}

fn with_stream(mut body: Value) -> Value {
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    body
}

/// Ids are of the answer.
fn without_ids(choices: &[Choice]) -> Vec<Choice> {
    let mut choices = choices.to_vec();
    for call in choices.iter_mut().flat_map(|(message, _)| message["tool_calls"].as_array_mut().into_iter().flatten()) {
        call.as_object_mut().expect("an object").remove("id");
    }
    choices
}

/// Both forms of an answer, which are the same.
fn both(server: &Server, body: &Value) -> (Vec<Choice>, Value) {
    let (choices, usage) = whole(&ask(server.address, CHAT, body));
    let (again, usage_again) = streamed(&ask(server.address, CHAT, &with_stream(body.clone())));
    assert_eq!((without_ids(&again), usage_again), (without_ids(&choices), usage.clone()));
    (choices, usage)
}

const PING: &str = "<Dinvoke name=\"ping\">\n</Dinvoke>\n";
const CITY: &str = "<Dinvoke name=\"get_weather\">\n<Dparameter name=\"city\" string=\"true\">San \"F\"\n2>&1 你🙂";
const NUMBER: &str =
    "</Dparameter>\n<Dparameter name=\"n\" string=\"false\">[1, {\"a\": null}]</Dparameter>\n</Dinvoke>\n";

#[test]
fn a02_a07_calls_whole_and_streamed() {
    let fake = Fake::new(said(&format!("Sure.\n\n<Dtool_calls>\n{CITY}{NUMBER}{PING}</Dtool_calls>\x01")));
    let server = Server::marked(fake);
    let (choices, _) = both(&server, &body());
    let (message, reason) = &choices[0];
    assert_eq!((reason.as_str(), &message["content"]), ("tool_calls", &json!("Sure.")));
    let arguments = |at: usize| message["tool_calls"][at]["function"]["arguments"].as_str().expect("arguments");
    let values: Value = serde_json::from_str(arguments(0)).expect("JSON");
    assert_eq!(values, json!({ "city": "San \"F\"\n2>&1 你🙂", "n": [1, { "a": null }] }));
    assert_eq!(arguments(1), "{}", "no parameters");
    let ids: Vec<&str> = (0..2).map(|at| message["tool_calls"][at]["id"].as_str().expect("an id")).collect();
    assert!(ids[0].starts_with("call_00_") && ids[0] < ids[1], "{ids:?}");
    // What the server has said it understands: the next turn, with the results in any order.
    let mut next = body();
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "ok" });
    for message in [message.clone(), result(ids[1]), result(ids[0])] {
        next["messages"].as_array_mut().expect("an array").push(message);
    }
    assert_eq!(ask(server.address, CHAT, &next).status, 200);
    let thinks = json!({ "reasoning_effort": "low", "messages": body()["messages"], "tools": body()["tools"] });
    let fake = Fake::new(said(&format!("\nt\n</think>{PING}")));
    let (choices, _) = both(&Server::marked(fake), &thinks);
    let (message, reason) = &choices[0];
    assert_eq!((reason.as_str(), &message["reasoning_content"]), ("tool_calls", &json!("t")));
    assert_eq!(message["content"], Value::Null, "an answer of calls alone");
}

/// One reason, null before; a text that was cut off never says that its calls can be made.
#[test]
fn a01_truncation_beats_tool_calls() {
    let fake = Fake::new(said(""));
    let server = Server::marked(fake.clone());
    let stop = || FinishReason::Stop(TokenId(257));
    for (text, reason, finish, arguments) in [
        ("hi", stop(), "stop", None),
        ("hi", FinishReason::MaxTokens, "length", None),
        (PING, stop(), "tool_calls", Some("{}")),
        (PING, FinishReason::MaxTokens, "length", Some("{}")),
        (PING, FinishReason::ContextLimit, "length", Some("{}")),
        (CITY, FinishReason::MaxTokens, "length", Some("{\"city\": \"San \\\"F\\\"\\n2>&1 你🙂")),
        (CITY, stop(), "length", Some("{\"city\": \"San \\\"F\\\"\\n2>&1 你🙂")),
        ("<Dinvoke name=\"pi", stop(), "length", None),
        ("a <Dtool_calls> nothing", stop(), "stop", None),
    ] {
        fake.set(Script::Say(tokens(text), reason.clone()));
        let (choices, _) = both(&server, &body());
        let (message, got) = &choices[0];
        assert_eq!(got, finish, "{text} {reason:?}");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"].as_str(), arguments, "{text} {reason:?}");
    }
}

/// Markup is never shown, whether or not anybody asked for tools.
#[test]
fn a04_markup_is_not_content() {
    let server = Server::marked(Fake::new(said(&format!("Well.\n\n<Dtool_calls>\n{PING}</Dtool_calls> bye"))));
    let mut none = body();
    none["tool_choice"] = "none".into();
    let mut without = body();
    without.as_object_mut().expect("an object").remove("tools");
    for body in [none, without] {
        let (choices, _) = both(&server, &body);
        assert_eq!(choices, [(json!({ "role": "assistant", "content": "Well." }), "stop".to_owned())]);
    }
    // A look-alike of plain characters is an answer like any other.
    let bytes = "<｜DSML｜invoke name=\"ping\"></｜DSML｜invoke>";
    let server = Server::marked(Fake::new(Script::Say(ids(bytes.as_bytes()), FinishReason::Stop(TokenId(257)))));
    let (choices, _) = both(&server, &body());
    assert_eq!(choices, [(json!({ "role": "assistant", "content": bytes }), "stop".to_owned())]);
}

/// A stop string is looked for in the answer and not in calls; what was held back for it comes before the call.
#[test]
fn a05_stop_strings_and_calls() {
    let server = Server::marked(Fake::new(said(&format!("a#\n\n<Dtool_calls>{CITY}{NUMBER}</Dtool_calls>"))));
    let mut body = body();
    body["stop"] = json!(["##", "San"]);
    let (choices, _) = both(&server, &body);
    assert_eq!((&choices[0].0["content"], choices[0].1.as_str()), (&json!("a#"), "tool_calls"));
    body["stop"] = "a".into();
    let (choices, _) = both(&server, &body);
    assert_eq!(choices, [(json!({ "role": "assistant", "content": "" }), "stop".to_owned())]);
    // The beginning of the tag is that of the stop string too.
    body["stop"] = "<b".into();
    let (choices, _) = both(&server, &body);
    assert_eq!((&choices[0].0["content"], choices[0].1.as_str()), (&json!("a#"), "tool_calls"));
}

/// Chat and completions cut, stop and decode alike; a completion shows what a chat takes apart.
#[test]
fn a08_one_path_for_both_ways_in() {
    let server = Server::marked(Fake::new(said(&format!("aé🙂#b{PING}##c"))));
    let prompt = json!({ "prompt": "x", "stop": "##" });
    let completion = ask(server.address, "/v1/completions", &prompt).json();
    let marked = format!("aé🙂#b{PING}").replace('D', "｜DSML｜");
    assert_eq!(
        (&completion["choices"][0]["text"], &completion["choices"][0]["finish_reason"]),
        (&json!(marked), &json!("stop"))
    );
    let server = Server::marked(Fake::new(said("aé🙂#b##c")));
    let completion = ask(server.address, "/v1/completions", &prompt).json();
    let mut chat = body();
    chat["stop"] = "##".into();
    let (choices, usage) = both(&server, &chat);
    assert_eq!((&choices[0].0["content"], choices[0].1.as_str()), (&completion["choices"][0]["text"], "stop"));
    assert_eq!(usage["completion_tokens"], completion["usage"]["completion_tokens"]);
}

/// Calls that must be made are looked for afterwards: without them there is an error and no answer that looks like one.
#[test]
fn a10_demands_that_were_not_met() {
    let fake = Fake::new(said(PING));
    let server = Server::marked(fake.clone());
    let mut body = body();
    body["tool_choice"] = "required".into();
    let (choices, _) = both(&server, &body);
    assert_eq!(choices[0].1, "tool_calls", "the prompt has opened the block");
    fake.set(said("</Dtool_calls>"));
    for body in [body.clone(), with_stream(body.clone())] {
        let answer = ask(server.address, CHAT, &body);
        let expected = "tool_choice: expected a call, got none from the model";
        assert_eq!((answer.status, answer.message().as_str()), (500, expected));
    }
    fake.set(Script::Say(Vec::new(), FinishReason::MaxTokens));
    assert_eq!(both(&server, &body).0[0].1, "length", "it was cut off before it could");
    fake.set(said(PING));
    body["tool_choice"] = json!({ "type": "function", "function": { "name": "get_weather" } });
    for body in [body.clone(), with_stream(body.clone())] {
        let answer = ask(server.address, CHAT, &body);
        let expected = "tool_choice: expected a call of \"get_weather\", got one of \"ping\"";
        assert_eq!((answer.status, answer.message().as_str()), (500, expected));
    }
}

#[test]
fn one_call_ends_the_request_where_only_one_is_allowed() {
    let fake = Fake::new(said(&format!("{PING}{PING}")));
    let server = Server::marked(fake.clone());
    let mut one = body();
    one["parallel_tool_calls"] = false.into();
    let (choices, usage) = both(&server, &one);
    assert_eq!((choices[0].0["tool_calls"].as_array().map(Vec::len), choices[0].1.as_str()), (Some(1), "tool_calls"));
    assert_eq!(
        usage["completion_tokens"],
        tokens(PING.trim_end()).len(),
        "what was generated behind it does not count"
    );
    assert_eq!(fake.cancelled.load(Ordering::SeqCst), 2);
}

/// Several texts of one prompt, each with calls of its own.
#[test]
fn calls_of_several_texts() {
    let server = Server::marked(Fake::new(said(PING)));
    let mut three = body();
    three["n"] = 3.into();
    let (choices, usage) = both(&server, &three);
    assert_eq!(choices.len(), 3);
    let mut names: Vec<&Value> = choices.iter().map(|(message, _)| &message["tool_calls"][0]["id"]).collect();
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(usage["completion_tokens"], 3 * tokens(PING).len());
}

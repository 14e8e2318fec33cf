use super::*;
use crate::api::tools::Demand;
use engine::config::ModelConfig;
use engine::tokenizer::Tokenizer;
use serde_json::{Value, json};

fn served() -> Served {
    let config = ModelConfig::tiny();
    Served {
        name: "tiny".into(),
        created: 0,
        tokenizer: Tokenizer::bytes(&config).unwrap(),
        vocab_size: config.vocab_size,
        context: 100,
        eos: vec![TokenId(1)],
        max_prompts: 3,
    }
}

fn completion(body: Value) -> Result<Job, ApiError> {
    read(Endpoint::Completions, &served(), body.to_string().as_bytes(), 7)
}

fn chat(body: Value) -> Result<Job, ApiError> {
    read(Endpoint::Chat, &served(), body.to_string().as_bytes(), 7)
}

fn message_of(job: Result<Job, ApiError>) -> String {
    job.unwrap_err().message
}

#[test]
fn prompts_of_every_form() {
    let prompts = |prompt: Value| -> Vec<Vec<u32>> {
        let job = completion(json!({ "prompt": prompt })).unwrap();
        job.requests.iter().map(|request| request.prompt.iter().map(|id| id.0).collect()).collect()
    };
    assert_eq!(prompts(json!("ab")), [[97, 98]]);
    assert_eq!(prompts(json!([1, 2])), [[1, 2]]);
    assert_eq!(prompts(json!(["a", "b"])), [[97], [98]]);
    assert_eq!(prompts(json!([[1], [2], [3]])), [[1], [2], [3]]);
    for (prompt, message) in [
        (json!(null), "prompt: expected a string, token ids, or a list of strings or of token ids, got nothing"),
        (json!([]), "prompt: expected a string, token ids, or a list of strings or of token ids, got an array of 0"),
        (json!(""), "prompt: expected at least one token, got none"),
        (json!([[]]), "prompt: expected at least one token, got none"),
        (json!([1, "a"]), "prompt[1]: expected a token id below 256, got \"a\""),
        (json!([[1, 256]]), "prompt[0][1]: expected a token id below 256, got 256"),
        (json!([1.5]), "prompt[0]: expected a token id below 256, got 1.5"),
        (json!(["a", 1]), "prompt[1]: expected a string or token ids, got 1"),
        (json!(["a", "a", "a", "a"]), "prompt: expected at most 3 prompts, got 4"),
        (json!("a".repeat(100)), "prompt: expected fewer than 100 tokens (the context of this server), got 100"),
    ] {
        assert_eq!(message_of(completion(json!({ "prompt": prompt }))), message);
    }
}

#[test]
fn options() {
    let job = completion(json!({ "prompt": "ab" })).unwrap();
    let request = &job.requests[0];
    assert_eq!((request.max_tokens, request.stop.clone()), (16, vec![TokenId(1)]));
    assert_eq!(request.sampling, Sampling { temperature: 1.0, seed: 7 });
    assert!(!job.stream && !job.include_usage && job.stops.is_empty());
    let job = completion(json!({
        "prompt": ["a", "b"], "max_tokens": 99, "temperature": 0, "seed": -1, "stop": ["x", "yz"], "stop_token_ids": [5],
        "ignore_eos": true, "stream": true, "stream_options": { "include_usage": true }, "model": "tiny",
        "n": 1, "top_p": 1.0, "top_k": -1, "logprobs": null, "logit_bias": {}, "presence_penalty": 0.0, "user": "somebody",
    }))
    .unwrap();
    assert_eq!(job.requests[1].sampling, Sampling { temperature: 0.0, seed: 0 }, "the second text has the next seed");
    assert_eq!((job.requests[0].max_tokens, &job.requests[0].stop), (99, &vec![TokenId(5)]));
    assert!(job.stream && job.include_usage);
    assert_eq!(job.stops, ["x", "yz"]);
    assert_eq!(completion(json!({ "prompt": "a", "stop": "q" })).unwrap().stops, ["q"]);
    assert_eq!(completion(json!({ "prompt": "a".repeat(95) })).unwrap().requests[0].max_tokens, 5);
    assert_eq!(completion(json!({ "prompt": "a", "seed": u64::MAX })).unwrap().requests[0].sampling.seed, u64::MAX);
}

#[test]
fn refusals_name_the_field() {
    for (field, value, rest) in [
        ("max_tokens", json!(0), "expected a whole number from 1 to 4294967295, got 0"),
        ("max_tokens", json!(99), "expected at most 98 (a context of 100 tokens, 2 of them prompt), got 99"),
        ("max_tokens", json!(1e300), "expected a whole number from 1 to 4294967295, got 1e+300"),
        ("temperature", json!(-0.5), "expected a number from 0, got -0.5"),
        ("temperature", json!(1e39), "expected a number from 0, got 1e+39"),
        ("seed", json!(1.5), "expected a whole number of 64 bits, got 1.5"),
        ("stop", json!(""), "expected strings of 1 to 1024 bytes, got \"\""),
        ("stop", json!(vec!["a"; 17]), "expected a string or up to 16 of them, got an array of 17"),
        ("stop_token_ids", json!({}), "expected an array, got an object"),
        ("stream", json!("yes"), "expected true or false, got \"yes\""),
        ("stream_options", json!({}), "expected stream to be true beside it, got a request without a stream"),
        ("n", json!(0), "expected a whole number from 1 to 4294967295, got 0"),
        ("n", json!(4), "expected at most 3 texts of each of 1 prompts, got 4"),
        ("min_tokens", json!(1), "expected 0 (nothing else is supported), got 1"),
        ("top_p", json!(0.9), "expected 1 (nothing else is supported), got 0.9"),
        ("top_k", json!(40), "expected -1 or 0 (nothing else is supported), got 40"),
        ("logprobs", json!(5), "expected false (nothing else is supported), got 5"),
        (
            "tools",
            json!([{}]),
            "expected nothing: those go to /v1/chat/completions (nothing else is supported), got an array of 1",
        ),
        (
            "response_format",
            json!({ "type": "json_object" }),
            "expected {\"type\": \"text\"} (nothing else is supported), got an object",
        ),
        (
            "messages",
            json!([]),
            "expected nothing: those go to /v1/chat/completions (nothing else is supported), got an array of 0",
        ),
        ("ignore_eos", json!(1), "expected true or false, got 1"),
    ] {
        let mut body = json!({ "prompt": "ab" });
        body[field] = value;
        let error = completion(body).unwrap_err();
        assert_eq!(error.message, format!("{field}: {rest}"));
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(field)));
    }
    let error = completion(json!({ "prompt": "a", "model": "other" })).unwrap_err();
    assert_eq!((error.status.as_u16(), error.message.as_str()), (404, "model: expected \"tiny\", got \"other\""));
    assert_eq!(error.param.as_deref(), Some("model"));
    for body in ["", "{", "[]", "3", "{\"prompt\": \"\\ud800\"}", "{\"prompt\": 1e999}", "\u{feff}{}"] {
        assert_eq!(
            read(Endpoint::Completions, &served(), body.as_bytes(), 0).unwrap_err().status.as_u16(),
            400,
            "{body}"
        );
    }
    assert!(
        read(Endpoint::Completions, &served(), b"{\"prompt\": \"\xff\"}", 0).unwrap_err().message.starts_with("body: ")
    );
}

#[test]
fn several_texts_of_a_prompt() {
    let job = completion(json!({ "prompt": "ab", "n": 3, "seed": 5 })).unwrap();
    assert_eq!(job.requests.iter().map(|request| request.sampling.seed).collect::<Vec<_>>(), [5, 6, 7]);
    assert!(job.requests.iter().all(|request| request.prompt == job.requests[0].prompt));
    let message = message_of(completion(json!({ "prompt": ["a", "b"], "n": 2 })));
    assert_eq!(message, "n: expected at most 1 texts of each of 2 prompts, got 2");
}

#[test]
fn chats() {
    let text = |body: Value| {
        let job = chat(body).unwrap();
        (served().tokenizer.decode(&job.requests[0].prompt).unwrap(), job.start, job.requests[0].max_tokens)
    };
    let hi = json!([{ "role": "user", "content": "hi" }]);
    let off = "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>";
    // 29 + 12 + 2 + 17 + 8 bytes; the rest of the context may be generated.
    assert_eq!(
        text(json!({ "messages": hi, "thinking": { "type": "disabled" } })),
        (off.into(), Start::Answer, 100 - 68)
    );
    assert_eq!(text(json!({ "messages": hi, "reasoning_effort": "none" })).0, off);
    assert_eq!(text(json!({ "messages": hi, "chat_template_kwargs": { "thinking": false } })).0, off);
    let parts =
        json!([{ "role": "user", "content": [{ "type": "text", "text": "h" }, { "type": "text", "text": "i" }] }]);
    assert!(text(json!({ "messages": parts, "reasoning_effort": "none" })).0.contains("h\n\ni"));
    let low = text(json!({ "messages": hi, "reasoning_effort": "low", "max_completion_tokens": 3 }));
    assert!(low.0.ends_with("<｜Assistant｜><think>"));
    assert_eq!((low.1, low.2), (Start::Reasoning, 3));
    let long = message_of(chat(json!({ "messages": hi })));
    assert!(long.starts_with("messages: expected fewer than 100 tokens"), "thinking is the default: {long}");
}

#[test]
fn chat_refusals() {
    let one = |message: Value| message_of(chat(json!({ "messages": [message], "reasoning_effort": "none" })));
    assert_eq!(one(json!(1)), "messages[0]: expected an object, got 1");
    assert_eq!(
        one(json!({ "role": "user" })),
        "messages[0].content: expected a string or a list of text parts, got nothing"
    );
    assert_eq!(
        one(json!({ "role": "tool", "content": "x" })),
        "messages[0].tool_call_id: expected the id of a call, got nothing"
    );
    assert!(one(json!({ "role": "function", "content": "x" })).ends_with("got \"function\""));
    assert!(one(json!({ "role": "assistant", "function_call": {} })).contains("tool_calls has taken its place"));
    assert!(one(json!({ "role": "king", "content": "" })).ends_with("got \"king\""));
    let image = json!([{ "type": "image_url", "image_url": { "url": "x" } }]);
    assert!(one(json!({ "role": "user", "content": image })).ends_with("got \"image_url\""));
    assert_eq!(message_of(chat(json!({}))), "messages: expected at least one message, got none");
    let prefixes = json!([{ "role": "assistant", "content": "a", "prefix": true }, { "role": "user", "content": "b" }]);
    assert_eq!(
        message_of(chat(json!({ "messages": prefixes }))),
        "messages[0].prefix: expected false but in the last message, got true"
    );
    let hi = json!([{ "role": "user", "content": "hi" }]);
    assert!(message_of(chat(json!({ "messages": hi, "reasoning_effort": "huge" }))).ends_with("got \"huge\""));
    let both = json!({ "messages": hi, "max_tokens": 1, "max_completion_tokens": 2 });
    assert_eq!(message_of(chat(both)), "max_completion_tokens: expected the same as max_tokens, 1, got 2");
}

/// With room for the instructions about tools.
fn chat_with_tools(mut body: Value) -> Result<Job, ApiError> {
    if body.get("messages").is_none() {
        body["messages"] = json!([{ "role": "user", "content": "hi" }]);
    }
    if body.get("reasoning_effort").is_none() {
        body["reasoning_effort"] = "none".into();
    }
    read(Endpoint::Chat, &Served { context: 9999, ..served() }, body.to_string().as_bytes(), 7)
}

#[test]
fn tools_of_a_chat() {
    let tool =
        |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } });
    let both = json!([tool("a"), tool("b")]);
    let of = |choice: Value| {
        let job = chat_with_tools(json!({ "tools": both, "tool_choice": choice })).unwrap();
        let names = |offer: &Offer| offer.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>().concat();
        let demand = job.offer.as_ref().and_then(|offer| offer.demand.clone());
        let prompt = served().tokenizer.decode(&job.requests[0].prompt).unwrap();
        (job.offer.as_deref().map(names), demand, job.start, prompt)
    };
    let (names, demand, start, prompt) = of(json!(null));
    assert_eq!((names.as_deref(), demand, start), (Some("ab"), None, Start::Answer));
    assert!(prompt.contains(
        "{\"name\": \"a\", \"description\": \"\", \"parameters\": {\"type\": \"object\"}}\n{\"name\": \"b\""
    ));
    let (names, demand, start, prompt) = of(json!("none"));
    assert_eq!((names, demand, start), (None, None, Start::Answer));
    assert!(!prompt.contains("Tool"), "{prompt}");
    let (names, demand, start, prompt) = of(json!("required"));
    assert_eq!((names.as_deref(), demand, start), (Some("ab"), Some(Demand::Any), Start::Calls));
    assert!(prompt.ends_with("</think>\n\n<｜DSML｜tool_calls>\n"), "{prompt}");
    let (names, demand, _, _) = of(json!({ "type": "function", "function": { "name": "b" } }));
    assert_eq!((names.as_deref(), demand), (Some("b"), Some(Demand::Named("b".into()))));
    let one = chat_with_tools(json!({ "tools": both, "parallel_tool_calls": false })).unwrap();
    assert!(!one.offer.unwrap().parallel);
    let thinks = chat_with_tools(json!({ "tools": both, "reasoning_effort": "low" })).unwrap();
    assert_eq!(thinks.start, Start::Reasoning);
}

#[test]
fn refusals_of_tools_name_the_field() {
    let message = |body: Value| {
        let error = chat_with_tools(body).unwrap_err();
        assert_eq!(error.status.as_u16(), 400);
        error.message
    };
    let function = |function: Value| message(json!({ "tools": [{ "type": "function", "function": function }] }));
    for (name, got) in [(json!(""), "\"\""), (json!("a b"), "\"a b\""), (json!("é"), "\"é\""), (json!(null), "nothing")]
    {
        let expected = format!("tools[0].function.name: expected 1 to 64 letters, digits, _ and -, got {got}");
        assert_eq!(function(json!({ "name": name })), expected);
    }
    assert!(function(json!({ "name": "n".repeat(65) })).contains("1 to 64 letters"));
    assert_eq!(
        function(json!({ "name": "a", "strict": true })),
        "tools[0].function.strict: expected false, since arguments are not constrained (nothing else is supported), got true"
    );
    assert_eq!(
        function(json!({ "name": "a", "parameters": [] })),
        "tools[0].function.parameters: expected a JSON schema, an object, got an array of 0"
    );
    assert_eq!(message(json!({ "tools": [{}] })), "tools[0].type: expected \"function\", got nothing");
    assert_eq!(message(json!({ "tools": {} })), "tools: expected an array, got an object");
    let tool = json!({ "type": "function", "function": { "name": "a" } });
    assert_eq!(
        message(json!({ "tools": [tool, tool] })),
        "tools[1].function.name: expected a name that no other tool has, got \"a\" again"
    );
    let choice = |choice: Value| message(json!({ "tools": [tool], "tool_choice": choice }));
    assert!(choice(json!("any")).starts_with("tool_choice: expected none, auto, required, or {"));
    assert!(choice(json!({ "type": "function" })).ends_with("got an object"));
    let other = json!({ "type": "function", "function": { "name": "b" } });
    assert_eq!(choice(other), "tool_choice: expected a tool of the request, got \"b\"");
    assert_eq!(
        message(json!({ "tool_choice": "required" })),
        "tool_choice: expected a tool of the request, got \"required\""
    );
    let thinks = message(json!({ "tools": [tool], "tool_choice": "required", "reasoning_effort": "high" }));
    assert!(thinks.contains("while the model thinks (reasoning_effort \"none\" switches that off)"), "{thinks}");
    let prefix = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b", "prefix": true }]);
    assert_eq!(
        message(json!({ "tools": [tool], "messages": prefix })),
        "messages[1].prefix: expected false beside tools, got true"
    );
}

#[test]
fn calls_have_results() {
    let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let asks = json!({ "role": "assistant", "content": null, "tool_calls": [call("1"), call("2")] });
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": id });
    let message = |messages: Value| message_of(chat_with_tools(json!({ "messages": messages })));
    let job = chat_with_tools(json!({ "messages": [asks, result("2"), result("1")] })).unwrap();
    let prompt = served().tokenizer.decode(&job.requests[0].prompt).unwrap();
    assert!(prompt.contains("<tool_result>1</tool_result>\n\n<tool_result>2</tool_result>"), "{prompt}");
    let missing = "messages: expected a tool message with the result of call \"2\", got another or none";
    assert_eq!(message(json!([asks, result("1")])), missing);
    let user = json!({ "role": "user", "content": "x" });
    let between = missing.replace("messages:", "messages[1]:").replace("\"2\"", "\"1\"");
    assert_eq!(message(json!([asks, user, result("1")])), between);
    let unknown = "expected the id of a call that the message before has made and that has no result, got";
    assert_eq!(message(json!([asks, result("3")])), format!("messages[1].tool_call_id: {unknown} \"3\""));
    assert_eq!(message(json!([asks, result("1"), result("1")])), format!("messages[2].tool_call_id: {unknown} \"1\""));
    assert_eq!(message(json!([user, result("1")])), format!("messages[1].tool_call_id: {unknown} \"1\""));
    let twice = json!({ "role": "assistant", "tool_calls": [call("1"), call("1")] });
    let again = "messages[0].tool_calls[1].id: expected an id that no other call has, got \"1\" again";
    assert_eq!(message(json!([twice])), again);
    for (broken, expected) in [
        (json!(1), "messages[0].tool_calls[0]: expected an object, got 1"),
        (json!({ "id": "1" }), "messages[0].tool_calls[0].function: expected an object, got nothing"),
        (
            json!({ "id": "1", "function": { "name": "f", "arguments": {} } }),
            "messages[0].tool_calls[0].function.arguments: expected a string, got an object",
        ),
        (
            json!({ "function": { "name": "f", "arguments": "" } }),
            "messages[0].tool_calls[0].id: expected a string, got nothing",
        ),
    ] {
        assert_eq!(message(json!([{ "role": "assistant", "tool_calls": [broken] }])), expected);
    }
}

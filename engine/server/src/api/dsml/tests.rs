use super::tag::MAX_TAG_BYTES;
use super::*;
use crate::api::marker::{Marker, Unit};
use crate::api::tools::Tool;
use crate::api::turn::{Start, Turn};
use proptest::prelude::*;
use serde_json::Value as JsonValue;

fn offer() -> Offer {
    let schema = r#"{"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}"#;
    let tool = |name: &str, schema: &str| Tool {
        name: name.into(),
        description: String::new(),
        parameters: object(schema).unwrap(),
    };
    Offer { tools: vec![tool("get_weather", schema), tool("ping", "{}")], demand: None, parallel: true }
}

/// What comes of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    complete: Option<bool>,
}

/// Units of a text in which every spelled marker is one; text is cut into pieces of at most `most` characters.
fn units(text: &str, most: usize) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let first = [Marker::ThinkEnd, Marker::Dsml].into_iter().filter_map(|m| Some((rest.find(m.spelling())?, m)));
        let first = first.min_by_key(|(at, _)| *at);
        let (before, marker) = first.map_or((rest, None), |(at, marker)| (&rest[..at], Some(marker)));
        let chars: Vec<char> = before.chars().collect();
        units.extend(chars.chunks(most).map(|chunk| Unit::Text(chunk.iter().collect())));
        units.extend(marker.map(Unit::Marker));
        rest = &rest[before.len() + marker.map_or(0, |marker| marker.spelling().len())..];
    }
    units
}

/// Pieces put together; the order of pieces is checked on the way.
fn said(start: Start, offer: Offer, units: &[Unit], end: End) -> (Said, Vec<Piece>) {
    let mut turn = Turn::new(start, &[], Some(Arc::new(offer)));
    let mut pieces = Vec::new();
    units.iter().for_each(|unit| turn.push(unit, &mut pieces));
    turn.finish(end, &mut pieces);
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::<(String, String)>::new());
    for piece in &pieces {
        match piece {
            Piece::Reasoning(text) => reasoning += text,
            Piece::Content(text) => content += text,
            Piece::Call { index, name } => {
                assert_eq!(*index, calls.len(), "calls come in order");
                calls.push((name.clone(), String::new()));
            }
            Piece::Arguments { index, text } => {
                assert_eq!(*index + 1, calls.len(), "arguments are of the last call");
                assert!(!text.is_empty());
                calls.last_mut().unwrap().1 += text;
            }
        }
    }
    (Said { reasoning, content, calls, complete: turn.called() }, pieces)
}

/// `D` is the marker, `⏎` a newline; whole, and cut into single characters.
fn answer(text: &str) -> Said {
    spelled(&text.replace('D', DSML).replace('⏎', "\n"))
}

fn spelled(text: &str) -> Said {
    let whole = said(Start::Reasoning, offer(), &units(text, usize::MAX), End::Said).0;
    assert_eq!(said(Start::Reasoning, offer(), &units(text, 1), End::Said).0, whole, "{text}");
    whole
}

fn of(reasoning: &str, content: &str, calls: &[(&str, &str)], complete: Option<bool>) -> Said {
    let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect();
    Said { reasoning: reasoning.into(), content: content.into(), calls, complete }
}

const WEATHER: &str = "get_weather";

/// The results of DeepSeek's own parser (`deepseek-recipe` 0.2.0) for the same texts, where it hands out valid JSON.
#[test]
fn results_of_the_official_parser() {
    let two = r#"thinking</think>Sure.⏎⏎<Dtool_calls>⏎<Dinvoke name="get_weather">⏎<Dparameter name="city" string="true">San "F" ⏎ x</Dparameter>⏎<Dparameter name="n" string="false">3</Dparameter>⏎</Dinvoke>⏎<Dinvoke name="ping">⏎</Dinvoke>⏎</Dtool_calls>"#;
    let arguments = r#"{"city": "San \"F\" \n x", "n": 3}"#;
    assert_eq!(answer(two), of("thinking", "Sure.", &[(WEATHER, arguments), ("ping", "{}")], Some(true)));
    let ping = &[("ping", "{}")];
    let plain = "<Dtool_calls>⏎<Dinvoke name=\"ping\">⏎⏎</Dinvoke>⏎</Dtool_calls>";
    assert_eq!(answer(&format!("</think>{plain}")), of("", "", ping, Some(true)));
    let older = plain.replace("tool_calls", "function_calls");
    assert_eq!(answer(&format!("t</think>{older}")), of("t", "", ping, Some(true)));
    let bare = "t</think>a <Dinvoke name=\"ping\">⏎</Dinvoke> b";
    assert_eq!(answer(bare), of("t", "a ", ping, Some(true)), "no wrapper; text behind calls is dropped");
    assert_eq!(answer(&format!("t {plain}")), of("t ", "", ping, Some(true)), "inside the reasoning");
    assert_eq!(answer("t</think>x <Dtool_calls> not a call"), of("t", "x ", &[], None));
    let unknown = r#"t</think><Dtool_calls>⏎<Dinvoke name="none">⏎<Dparameter name="a" string="false">true</Dparameter>⏎</Dinvoke>⏎</Dtool_calls>tail text"#;
    assert_eq!(answer(unknown), of("t", "", &[("none", "{\"a\": true}")], Some(true)), "passed on");
    for look_alike in ["|DSML|", "||DSML||", "‖DSML‖"] {
        let text = plain.replace('D', look_alike).replace('⏎', "\n");
        assert_eq!(spelled(&format!("t</think>{text}")), of("t", &text, &[], None), "no marker");
    }
    assert_eq!(answer("t</think>hello <"), of("t", "hello <", &[], None));
}

/// Where the official parser leaves JSON broken or loses a value.
#[test]
fn a09_no_call_is_dropped_and_no_value_cut() {
    let weather = |body: &str| {
        let text = format!("t</think><Dtool_calls>⏎<Dinvoke name=\"get_weather\">{body}⏎</Dinvoke>⏎</Dtool_calls>");
        let said = answer(&text);
        assert_eq!((said.content.as_str(), said.calls.len(), said.complete), ("", 1, Some(true)), "{said:?}");
        said.calls[0].1.clone()
    };
    let value = |attributes: &str, value: &str| weather(&format!("⏎<Dparameter {attributes}>{value}</Dparameter>"));
    assert_eq!(weather("⏎{\"city\": \"X\", \"n\": 1e400}⏎"), "{}", "an object that nobody can read");
    assert_eq!(weather("⏎{\"city\": \"X\"}⏎"), "{\"city\": \"X\"}", "an object in place of parameters");
    assert_eq!(value("name=\"city\"", "X"), "{\"city\": \"X\"}", "no string attribute: text");
    assert_eq!(value("name=\"n\"", "3"), "{\"n\": 3}", "no string attribute: JSON");
    assert_eq!(value("string=\"false\" name=\"n\"", "[1, 2]"), "{\"n\": [1, 2]}", "attributes the other way round");
    assert_eq!(value("name=\"n\" string=\"false\"", "abc"), "{\"n\": \"abc\"}", "announced as JSON");
    assert_eq!(value("name=\"n\" string=\"false\"", "NaN"), "{\"n\": \"NaN\"}");
    assert_eq!(
        value("name=\"n\" string=\"false\"", "1, \"x\": 2"),
        "{\"n\": \"1, \\\"x\\\": 2\"}",
        "no way out of a value"
    );
    assert_eq!(value("name=\"n\" string=\"false\"", ""), "{\"n\": \"\"}");
    assert_eq!(value("name=\"a\"b>c\\\" string=\"true\"", "x"), "{\"a\\\"b>c\\\\\": \"x\"}", "quotes in a key");
    assert_eq!(
        value("name=\"city\" string=\"true\"", "  a/b/c\\d 2>&1 </x> <Dthing> 你好🙂\t⏎ "),
        "{\"city\": \"  a/b/c\\\\d 2>&1 </x> <｜DSML｜thing> 你好🙂\\t\\n \"}",
        "nothing of a string is cut"
    );
    let twice = "⏎<Dparameter name=\"city\" string=\"true\">a</Dparameter>⏎<Dparameter name=\"city\" string=\"true\">b</Dparameter>";
    assert_eq!(weather(twice), "{\"city\": \"a\"}", "the first of equal keys, which may be with the client already");
    let open = "⏎<Dparameter name=\"city\" string=\"true\">a<Dparameter name=\"n\" string=\"false\">1</Dinvoke>";
    assert_eq!(weather(open), "{\"city\": \"a\", \"n\": 1}", "closing tags that are missing");
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(value("name=\"n\" string=\"false\"", &deep(126)), format!("{{\"n\": {}}}", deep(126)));
    assert_eq!(
        value("name=\"n\" string=\"false\"", &deep(127)),
        format!("{{\"n\": \"{}\"}}", deep(127)),
        "too deep to be read"
    );
    let calls = "</think><Dinvoke name=\"ping\"/><Dinvoke name=\"ping\"<Dparameter name=\"a\" string=\"true\">b<Dinvoke name=\"get_weather\">";
    let expected = [("ping", "{}"), ("ping", "{\"a\": \"b\"}"), (WEATHER, "{}")];
    assert_eq!(answer(calls), of("", "", &expected, Some(true)), "tags that are missing or have no end");
    let again = "</think><Dtool_calls><Dinvoke name=\"ping\"></Dinvoke></Dtool_calls>⏎or⏎<Dtool_calls><D invoke name=\"ping\"></D invoke></D calls>";
    assert_eq!(answer(again), of("", "", &[("ping", "{}"); 2], Some(true)), "a second block, in the words of V4.1");
}

/// An object under `arguments` or `input` that the tool does not have, when nothing else is there.
#[test]
fn wrappers_that_the_model_made_up() {
    let weather =
        |body: &str| answer(&format!("</think><Dinvoke name=\"get_weather\">{body}</Dinvoke>")).calls[0].1.clone();
    let raw = |key: &str, value: &str| format!("<Dparameter name=\"{key}\" string=\"false\">{value}</Dparameter>");
    assert_eq!(weather(&raw("arguments", " {\"city\": \"X\"}")), "{\"city\": \"X\"}");
    assert_eq!(weather(&raw("input", "{}")), "{}");
    assert_eq!(weather(&raw("arguments", "{\"town\": \"X\"}")), "{\"arguments\": {\"town\": \"X\"}}");
    assert_eq!(weather(&raw("arguments", "[1]")), "{\"arguments\": [1]}");
    assert_eq!(weather(&raw("city", "{\"city\": \"X\"}")), "{\"city\": {\"city\": \"X\"}}");
    let more = raw("arguments", "{\"city\": \"X\"}") + &raw("n", "1");
    assert_eq!(weather(&more), "{\"arguments\": {\"city\": \"X\"}, \"n\": 1}", "it is not alone");
    let ping = answer(
        "</think><Dinvoke name=\"ping\"><Dparameter name=\"input\" string=\"false\">{\"a\": 1}</Dparameter></Dinvoke>",
    );
    assert_eq!(ping.calls[0].1, "{\"input\": {\"a\": 1}}", "a tool whose arguments are not known");
}

/// Every end of a text: no markup in the answer, no half call that looks whole.
#[test]
fn a04_every_end() {
    let text = "t</think>Sure.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">a\"b</x></｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">30</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    let all = units(text, 1);
    let (whole, _) = said(Start::Reasoning, offer(), &all, End::Said);
    assert_eq!(
        whole.calls,
        [
            (WEATHER.to_owned(), "{\"city\": \"a\\\"b</x>\", \"n\": 30}".to_owned()),
            ("ping".to_owned(), "{}".to_owned())
        ]
    );
    let (mut complete, mut open) = (0, 0);
    for len in 0..=all.len() {
        for end in [End::Said, End::Cut] {
            let (part, _) = said(Start::Reasoning, offer(), &all[..len], end);
            let context = format!("{end:?} behind {:?}: {part:?}", &all[len.saturating_sub(12)..len]);
            assert!(whole.reasoning.starts_with(&part.reasoning) && !part.content.contains(DSML), "{context}");
            let shown = part.content.trim_end_matches(['<', '\n']);
            assert!("Sure.".starts_with(shown) && part.content.len() <= shown.len() + 3, "{context}");
            for (call, expected) in part.calls.iter().zip(&whole.calls) {
                assert_eq!(call.0, expected.0);
                let closed = call.1.ends_with('}');
                assert_eq!(closed, serde_json::from_str::<JsonValue>(&call.1).is_ok(), "{context}");
                let begun = call.1.strip_suffix('}').filter(|_| closed).unwrap_or(&call.1);
                assert!(expected.1.starts_with(begun) || begun.ends_with('<') || begun.ends_with("</"), "{context}");
            }
            let closed = part.calls.iter().all(|(_, arguments)| arguments.ends_with('}'));
            match part.complete {
                None => assert!(part.calls.is_empty(), "{context}"),
                Some(true) => assert!(closed && !part.calls.is_empty(), "{context}"),
                // The tag of the next call may be what is not complete.
                Some(false) => {
                    assert!(end == End::Said && all[len - 1] != Unit::Marker(Marker::Dsml) || !closed, "{context}")
                }
            }
            complete += usize::from(part.complete == Some(true));
            open += usize::from(part.complete == Some(false));
        }
    }
    assert!(complete > 40 && open > 100, "{complete} {open}");
    let cut = |text: &str| answer(&format!("t</think><Dtool_calls>⏎<Dinvoke name=\"get_weather\">⏎{text}"));
    let city = "<Dparameter name=\"city\" string=\"true\">X";
    assert_eq!(cut(city), of("t", "", &[(WEATHER, "{\"city\": \"X")], Some(false)), "in a value");
    let closing = cut(&format!("{city}</Dpara"));
    assert_eq!(closing, of("t", "", &[(WEATHER, "{\"city\": \"X\"}")], Some(true)), "in the tag that closes it");
}

/// A tag without an end does not swallow the text, nor is it searched again and again.
#[test]
fn tags_have_an_end() {
    let key = "k".repeat(MAX_TAG_BYTES);
    let text =
        format!("</think><Dinvoke name=\"ping\"><Dparameter name=\"{key}\" string=\"true\">x</Dparameter></Dinvoke>");
    let said = answer(&text);
    assert_eq!((said.calls.len(), said.complete), (1, Some(true)));
    let start = std::time::Instant::now();
    answer(&format!("</think><Dinvoke name=\"ping\"><Dparameter name=\"{}", "k".repeat(2_000_000)));
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "linear in the text");
}

#[test]
fn one_call_where_only_one_is_allowed() {
    let one = || Offer { parallel: false, ..offer() };
    let text = "<｜DSML｜invoke name=\"ping\"></｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\"></｜DSML｜invoke>";
    let (all, _) = said(Start::Calls, offer(), &units(text, 3), End::Said);
    assert_eq!(all.calls.len(), 2, "from the middle of a block");
    for text in [text, "<｜DSML｜invoke name=\"ping\"><｜DSML｜invoke name=\"ping\">"] {
        let (first, _) = said(Start::Calls, one(), &units(text, 3), End::Said);
        assert_eq!((first.calls.len(), first.complete), (1, Some(true)), "{text}");
    }
}

#[test]
fn arguments_are_handed_out_as_they_come() {
    let text = "<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">San \"F\" \n x</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>";
    let mut turn = Turn::new(Start::Calls, &[], Some(Arc::new(offer())));
    let deltas: Vec<String> = units(text, 7)
        .iter()
        .flat_map(|unit| {
            let mut pieces = Vec::new();
            turn.push(unit, &mut pieces);
            pieces
        })
        .map(|piece| match piece {
            Piece::Arguments { index: 0, text } => text,
            other => format!("{other:?}"),
        })
        .collect();
    let name = "Call { index: 0, name: \"get_weather\" }";
    assert_eq!(deltas, [name, "{\"city\": \"San \\\"F", "\\\" \\n x", "\"", ", \"n\": 3", "}"]);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,12}", "[<>/\"\\\\\n a2&é🙂你DSML｜|]{0,16}"]
}

fn json() -> impl Strategy<Value = JsonValue> {
    let leaf = prop_oneof![
        Just(JsonValue::Null),
        any::<bool>().prop_map(JsonValue::from),
        any::<i64>().prop_map(JsonValue::from),
        any::<i32>().prop_map(|n| JsonValue::from(f64::from(n) / 4.0)),
        text().prop_map(JsonValue::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(JsonValue::from),
            proptest::collection::hash_map("[a-z\"]{0,4}", inner, 0..4).prop_map(|map| serde_json::json!(map)),
        ]
    })
}

/// Parts of markup in any order.
fn markup() -> impl Strategy<Value = String> {
    let parts = [
        "<｜DSML｜",
        "</｜DSML｜",
        "｜DSML｜",
        "</think>",
        "tool_calls>",
        "invoke name=\"",
        "ping",
        "get_weather",
        "parameter name=\"",
        "city",
        "arguments",
        "\" string=\"true\">",
        "\" string=\"false\">",
        "\">",
        ">",
        "\"",
        "<",
        "</",
        "/",
        "\n",
        " ",
        "{\"city\": \"X\"}",
        "invoke>",
        "parameter>",
        "1",
        "{}",
        "x",
        "é🙂",
        "<｜DSML｜invoke name=\"ping\">",
        "<｜DSML｜parameter name=\"n\" string=\"true\">",
    ];
    let part = prop_oneof![8 => proptest::sample::select(parts.to_vec()).prop_map(str::to_owned), 1 => text()];
    proptest::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    /// What the prompt says of past calls is read back as the same calls.
    #[test]
    fn a07_calls_written_and_read_again(
        calls in proptest::collection::vec(
            ("[a-zA-Z0-9_-]{1,12}", proptest::collection::hash_map("[a-zé_ .\"\\\\]{0,6}", json(), 0..4)), 1..4),
        most in 1usize..9,
    ) {
        use crate::api::prompt::{Conversation, Message, PastCall, Thinking, render};
        let past: Vec<PastCall> = calls.iter().enumerate().map(|(at, (name, arguments))| PastCall {
            id: format!("call_{at}"),
            name: name.clone(),
            arguments: object(&serde_json::json!(arguments).to_string()).unwrap(),
        }).collect();
        let assistant = Message::Assistant { content: "a".into(), reasoning: None, calls: past, prefix: false };
        let conversation = Conversation { messages: &[assistant], tools: &[], demanded: false, thinking: Thinking::Off };
        let mut written = Vec::new();
        for segment in render(&conversation) {
            match segment.text.as_str() {
                DSML if segment.marker => written.push(Unit::Marker(Marker::Dsml)),
                _ if segment.marker => {}
                text => {
                    let chars: Vec<char> = text.chars().collect();
                    written.extend(chars.chunks(most).map(|chunk| Unit::Text(chunk.iter().collect())));
                }
            }
        }
        let (read, _) = said(Start::Answer, Offer { tools: Vec::new(), ..offer() }, &written, End::Said);
        prop_assert_eq!((read.content.as_str(), read.complete), ("a", Some(true)));
        let read: Vec<(String, JsonValue)> =
            read.calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect();
        let expected: Vec<(String, JsonValue)> =
            calls.into_iter().map(|(name, arguments)| (name, serde_json::json!(arguments))).collect();
        prop_assert_eq!(read, expected);
    }

    /// Any markup: the same at every border, complete calls are objects with unique keys, markers are never in the answer.
    #[test]
    fn a03_any_markup_at_every_border(
        text in markup(),
        most in 1usize..5,
        start in proptest::sample::select(vec![Start::Reasoning, Start::Answer, Start::Calls]),
        end in proptest::sample::select(vec![End::Said, End::Cut]),
        parallel in any::<bool>(),
    ) {
        let offer = || Offer { parallel, ..offer() };
        let (whole, _) = said(start, offer(), &units(&text, usize::MAX), end);
        let (cut, _) = said(start, offer(), &units(&text, most), end);
        prop_assert_eq!(&cut, &whole);
        prop_assert!(!whole.content.contains(DSML) && !whole.reasoning.contains(DSML));
        let last = whole.calls.len().saturating_sub(1);
        for (at, (name, arguments)) in whole.calls.iter().enumerate() {
            prop_assert!(!name.is_empty());
            if at < last || whole.complete == Some(true) {
                prop_assert!(serde_json::from_str::<JsonValue>(arguments).is_ok_and(|value| value.is_object()), "{}", arguments);
            }
        }
    }
}

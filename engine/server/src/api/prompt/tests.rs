use super::*;
use crate::api::json::Json;
use sha2::{Digest, Sha256};

fn user(text: &str) -> Message {
    Message::User(text.into())
}

fn assistant(content: &str, reasoning: Option<&str>, prefix: bool) -> Message {
    Message::Assistant { content: content.into(), reasoning: reasoning.map(str::to_owned), calls: Vec::new(), prefix }
}

fn asking(messages: &[Message], thinking: Thinking) -> Conversation<'_> {
    Conversation { messages, tools: &[], demanded: false, thinking }
}

fn spelled(messages: &[Message], thinking: Thinking) -> String {
    joined(&render(&asking(messages, thinking)))
}

fn joined(segments: &[Segment]) -> String {
    segments.iter().map(|segment| segment.text.as_str()).collect()
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes of what DeepSeek's own encoder (`deepseek-recipe-encoding` 0.2.0) makes of the same conversation.
#[test]
fn prompts_of_the_official_encoder() {
    for (thinking, chars, hash) in [
        (Thinking::High, 530, "12e7a3a0adc6ca7929888fe54eae9d3bb3b4b4929e3e0a8be1f36b3bf3a10ce4"),
        (Thinking::Low, 54, "c4163c61b5dd67e92547c17c58455a2005b51177fe0c4469d7dc2e50dd94cd6c"),
        (Thinking::Max, 580, "7bdb86e3073952dc2cf45f6f19b63390f8ec1d4f7810e1260ca886a8a64509eb"),
        (Thinking::Off, 55, "afa5497cfd279bf5742dd64e8883fbccfacfd1a84a5b6451b00ca7fb77d286cc"),
    ] {
        let prompt = spelled(&[user("Hello")], thinking);
        assert_eq!(prompt.chars().count(), chars, "{thinking:?}: {prompt}");
        assert_eq!(sha256(&prompt), hash, "{thinking:?}: {prompt}");
    }
}

fn object(text: &str) -> Object {
    serde_json::from_str::<Json>(text).unwrap().as_object().unwrap().clone()
}

fn call(id: &str, name: &str, arguments: &str) -> PastCall {
    PastCall { id: id.into(), name: name.into(), arguments: object(arguments) }
}

fn result(id: &str, text: &str) -> Message {
    Message::Tool { id: id.into(), text: text.into() }
}

fn calling(content: &str, reasoning: &str, calls: Vec<PastCall>) -> Message {
    Message::Assistant { content: content.into(), reasoning: Some(reasoning.into()), calls, prefix: false }
}

fn tools() -> [Tool; 2] {
    let schema =
        r#"{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}"#;
    let tool = |name: &str, description: &str, schema| Tool {
        name: name.into(),
        description: description.into(),
        parameters: object(schema),
    };
    [tool("get_weather", "Get the weather", schema), tool("ping", "", "{}")]
}

/// Length, number of markers and hash of what the same encoder makes of conversations with tools.
#[test]
fn prompts_with_tools_of_the_official_encoder() {
    let check = |conversation: Conversation<'_>, chars: usize, markers: usize, hash: &str| {
        let segments = render(&conversation);
        let prompt = joined(&segments);
        assert_eq!(prompt.chars().count(), chars, "{prompt}");
        assert_eq!(segments.iter().filter(|segment| segment.marker).count(), markers, "{prompt}");
        assert_eq!(sha256(&prompt), hash, "{prompt}");
    };
    let tools = tools();
    let hello = [Message::System("You are helpful.".into()), user("Hello")];
    let one = Conversation { tools: &tools[..1], ..asking(&hello, Thinking::Off) };
    check(one, 1212, 17, "a33f59ea903eec495b03d2aae97009815909f79eff62543f72f2c671f4c44a79");
    let paris = calling("", "use tool", vec![call("c1", "get_weather", r#"{"city":"Paris","days":2}"#)]);
    let history = [user("Weather in Paris?"), paris, result("c1", "sunny")];
    let one = Conversation { tools: &tools[..1], ..asking(&history, Thinking::Low) };
    check(one, 1523, 30, "21ec91b246cc157a81400f7f11a9bee447dfb16f14e8cfc50748b105ea7d18a9");

    // Order of ids, markers spelled in values, nested JSON, results and questions in a row, reasoning that was not sent.
    let values = r#"{"text":"say \"hi\"\n<b> 2>&1 </｜DSML｜parameter> 你好 🙂","n":1e-7,"z":[1,2.50,{"k":null,"a":"é"}],"ok":true,"a":{}}"#;
    let calls = vec![
        call("b", "ping", "{}"),
        call("a", "get_weather", values),
        call("c", "ping", r#"{"arguments":"not json"}"#),
    ];
    let all = [
        Message::System("s1".into()),
        user("q1"),
        calling("Let me see.", "r1 <｜ref｜>x", calls),
        result("c", "3"),
        result("a", "1 <｜User｜>"),
        result("b", ""),
        user("and"),
        user("then"),
        assistant("done", None, false),
        Message::System("s2".into()),
        user("last"),
    ];
    let high = asking(&all, Thinking::High);
    let offered = Conversation { tools: &tools, ..high };
    check(offered, 2611, 48, "0002149ec6128b924b6de833f7187a0b717a26f904ffe64c292324ef489bc11e");
    check(high, 1391, 32, "cb26f74bc6665ed6f2ca1521bd2207f0b34eef27700a60733bee00173e10c857");
    let demanded = Conversation { thinking: Thinking::Off, demanded: true, ..offered };
    check(demanded, 2132, 46, "3fd58b8c8f4efdd311ab547ea7b4ad6814cc3d7d2fddfce83971f7d1e18b3a17");
}

#[test]
fn conversations() {
    let system = |text: &str| Message::System(text.into());
    let messages = [
        system("s1"),
        user("a"),
        system(""),
        system("s2"),
        user(""),
        user("b"),
        assistant("c", Some("r"), false),
        user("d"),
    ];
    assert_eq!(
        spelled(&messages, Thinking::Off),
        "<｜begin▁of▁sentence｜>s1\n\ns2<｜User｜>a\n\nb<｜Assistant｜></think>c<｜end▁of▁sentence｜><｜User｜>d<｜Assistant｜></think>"
    );
    let low = spelled(&messages, Thinking::Low);
    assert!(low.contains("<｜Assistant｜></think>c<｜end") && low.ends_with("d<｜Assistant｜><think>"), "{low}");
    let tail = |message: Message, thinking| {
        let prompt = spelled(&[user("a"), message], thinking);
        prompt.split_once("<｜User｜>a").unwrap().1.to_owned()
    };
    assert_eq!(tail(assistant("", Some("r"), true), Thinking::High), "<｜Assistant｜><think>r");
    assert_eq!(tail(assistant("c", Some("r"), true), Thinking::High), "<｜Assistant｜><think>r</think>c");
    assert_eq!(tail(assistant("c", None, true), Thinking::Off), "<｜Assistant｜></think>c");
    assert_eq!(tail(Message::Reminder("x".into()), Thinking::Off), "<｜latest_reminder｜>x<｜Assistant｜></think>");
}

#[test]
fn what_a_message_spells_is_no_marker() {
    let messages = [user("x<｜User｜></think>"), assistant("y<｜ref｜>z<think>", None, false), user("<｜ref｜>")];
    let segments = render(&asking(&messages, Thinking::Off));
    let markers: Vec<&str> = segments.iter().filter(|s| s.marker).map(|s| s.text.as_str()).collect();
    assert_eq!(markers, [BOS, USER, ASSISTANT, THINK_END, "<｜ref｜>", EOS, USER, ASSISTANT, THINK_END]);
    let texts: Vec<&str> = segments.iter().filter(|s| !s.marker).map(|s| s.text.as_str()).collect();
    assert_eq!(texts, ["x<｜User｜></think>", "y", "z<think>", "<｜ref｜>"]);
}

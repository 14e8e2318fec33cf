use super::*;
use sha2::{Digest, Sha256};

fn user(text: &str) -> Message {
    Message::User(text.into())
}

fn assistant(content: &str, reasoning: Option<&str>, prefix: bool) -> Message {
    Message::Assistant { content: content.into(), reasoning: reasoning.map(str::to_owned), prefix }
}

fn spelled(messages: &[Message], thinking: Thinking) -> String {
    render(messages, thinking).into_iter().map(|segment| segment.text).collect()
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
        let digest: String = Sha256::digest(&prompt).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, hash, "{thinking:?}: {prompt}");
    }
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
    let segments = render(&messages, Thinking::Off);
    let markers: Vec<&str> = segments.iter().filter(|s| s.marker).map(|s| s.text.as_str()).collect();
    assert_eq!(markers, [BOS, USER, ASSISTANT, THINK_END, "<｜ref｜>", EOS, USER, ASSISTANT, THINK_END]);
    let texts: Vec<&str> = segments.iter().filter(|s| !s.marker).map(|s| s.text.as_str()).collect();
    assert_eq!(texts, ["x<｜User｜></think>", "y", "z<think>", "<｜ref｜>"]);
}

//! Any tokens of an answer: calls that are complete are JSON, markers are never shown, and a vocabulary that has to spell its
//! markers, which cuts the text elsewhere, gives the same.
#![no_main]

use engine::config::ModelConfig;
use engine::ids::TokenId;
use engine::tokenizer::Tokenizer;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use server::api::json::Json;
use server::api::marker::{DSML, THINK_END};
use server::api::text::Text;
use server::api::tools::{Offer, Tool};
use server::api::turn::{End, Piece, Start};
use std::sync::{Arc, LazyLock};

static MARKED: LazyLock<Tokenizer> = LazyLock::new(server_fuzz::marked);
static SPELLED: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::bytes(&ModelConfig::tiny()).expect("room for bytes"));

#[derive(Debug, Default, PartialEq)]
struct Said {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    complete: Option<bool>,
}

fn said(
    tokenizer: &Tokenizer,
    start: Start,
    stop: &str,
    offer: &Option<Arc<Offer>>,
    end: End,
    ids: &[TokenId],
) -> Said {
    let mut text = Text::new(tokenizer, start, &[stop.to_owned()], offer.clone());
    let mut pieces = Vec::new();
    for &id in ids {
        pieces.extend(text.push(id).expect("tokens of the model"));
    }
    pieces.extend(text.finish(end).expect("tokens of the model"));
    let mut said = Said { complete: text.called(), ..Said::default() };
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => said.reasoning += &text,
            Piece::Content(text) => said.content += &text,
            Piece::Call { index, name } => {
                assert_eq!(index, said.calls.len());
                said.calls.push((name, String::new()));
            }
            Piece::Arguments { index, text } => {
                assert_eq!(index + 1, said.calls.len());
                said.calls[index].1 += &text;
            }
        }
    }
    said
}

fn offer(parallel: bool) -> Offer {
    let parameters: Json = serde_json::from_str(r#"{"properties": {"city": {}, "n": {}}}"#).expect("JSON");
    let parameters = parameters.as_object().expect("an object").clone();
    let tool = Tool { name: "get_weather".into(), description: String::new(), parameters };
    Offer { tools: vec![tool], demand: None, parallel }
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, text)) = data.split_first() else { return };
    let start = [Start::Reasoning, Start::Answer, Start::Within, Start::Calls][usize::from(how & 3)];
    let end = if how & 4 == 0 { End::Said } else { End::Cut };
    let offer = (how & 8 == 0).then(|| Arc::new(offer(how & 16 == 0)));
    let stop = ["", "#", "ab", "\n\n"][usize::from(how >> 5 & 3)];
    let marker = |byte: u8| match byte {
        0xfe => Some(THINK_END),
        0xff => Some(DSML),
        _ => None,
    };
    let mut marked = Vec::new();
    let mut bytes = Vec::new();
    for &byte in text {
        match marker(byte) {
            Some(spelling) => {
                marked.push(MARKED.marker(spelling).expect("a marker"));
                bytes.extend(spelling.bytes());
            }
            None => {
                marked.push(TokenId(byte.into()));
                bytes.push(byte);
            }
        }
    }
    let got = said(&MARKED, start, stop, &offer, end, &marked);
    let last = got.calls.len().saturating_sub(1);
    for (at, (name, arguments)) in got.calls.iter().enumerate() {
        assert!(!name.is_empty());
        if at < last || got.complete == Some(true) {
            let value = serde_json::from_str::<Value>(arguments);
            assert!(value.is_ok_and(|value| value.is_object()), "{arguments}");
        }
    }
    // Plain characters that spell a marker are text for one of the two alone.
    let plain = String::from_utf8_lossy(&bytes).into_owned();
    let markers = text.iter().filter(|&&byte| marker(byte).is_some()).count();
    let spelled = plain.matches(DSML).count() + plain.matches(THINK_END).count();
    if markers == spelled {
        assert!(!got.content.contains(DSML) && !got.reasoning.contains(DSML));
        let ids: Vec<TokenId> = bytes.iter().map(|&byte| TokenId(byte.into())).collect();
        assert_eq!(said(&SPELLED, start, stop, &offer, end, &ids), got);
    }
});

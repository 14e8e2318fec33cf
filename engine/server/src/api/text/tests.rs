use super::*;
use crate::api::marker::Marker;
use engine::config::ModelConfig;
use proptest::prelude::*;

fn bytes() -> Tokenizer {
    Tokenizer::bytes(&ModelConfig::tiny()).unwrap()
}

/// Bytes, and markers that are tokens.
fn marked() -> Tokenizer {
    Tokenizer::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/markers"), &ModelConfig::mini()).unwrap()
}

/// Reasoning and content of a text of byte tokens.
fn split(start: Start, stops: &[&str], text: &str) -> (String, String, bool) {
    let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
    let mut out = Text::new(&bytes(), start, &stops, None);
    let mut pieces = Vec::new();
    for token in bytes().encode(text).unwrap() {
        pieces.extend(out.push(token).unwrap());
        if out.stopped() {
            break;
        }
    }
    pieces.extend(out.finish(End::Said).unwrap());
    let (reasoning, content) = joined(&pieces);
    (reasoning, content, out.stopped())
}

fn joined(pieces: &[Piece]) -> (String, String) {
    let (mut reasoning, mut content) = (String::new(), String::new());
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => reasoning += text,
            Piece::Content(text) => content += text,
            Piece::Call { .. } | Piece::Arguments { .. } => panic!("no tools were offered: {piece:?}"),
        }
    }
    (reasoning, content)
}

/// Rows of the official parser's results that have no tool call, and the rules of its newlines.
#[test]
fn reasoning_and_answer() {
    let thinking = |text| {
        let (reasoning, content, _) = split(Start::Reasoning, &[], text);
        (reasoning, content)
    };
    let of = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(thinking("thinking</think>Sure."), of("thinking", "Sure."));
    assert_eq!(thinking("t</think>hello <"), of("t", "hello <"));
    assert_eq!(thinking("</think>x"), of("", "x"));
    assert_eq!(thinking("\n\nt\nu\n\n</think>\n\nx\ny\n"), of("t\nu", "x\ny\n"));
    assert_eq!(thinking("no end </thin"), of("no end </thin", ""));
    assert_eq!(thinking("no end\n"), of("no end\n", ""));
    assert_eq!(thinking("a</think>b</think>c"), of("a", "bc"));
    let (reasoning, content, _) = split(Start::Answer, &[], "\nx</think>y");
    assert_eq!((reasoning, content), of("", "xy"));
    let (_, content, _) = split(Start::Plain, &[], "\nx</think>y<｜DSML｜z");
    assert_eq!(content, "\nx</think>y<｜DSML｜z", "a completion is left as it is");
    let (_, content, _) = split(Start::Within, &[], "\nx");
    assert_eq!(content, "\nx", "an answer that is continued is in the middle of a text");
    let (reasoning, content, _) = split(Start::WithinReasoning, &[], "\nx\n</think>\ny");
    assert_eq!((reasoning, content), of("\nx", "y"));
}

#[test]
fn stop_strings_count_in_the_answer() {
    assert_eq!(split(Start::Reasoning, &["!"], "a!b</think>c!d"), ("a!b".into(), "c".into(), true));
    assert_eq!(split(Start::Plain, &["b</"], "ab</think>"), ("".into(), "a".into(), true));
    assert_eq!(split(Start::Plain, &["bx"], "ab"), ("".into(), "ab".into(), false), "held back, then handed out");
    assert_eq!(split(Start::Reasoning, &["ab"], "</think>xa"), ("".into(), "xa".into(), false));
    assert_eq!(split(Start::Answer, &["\n\n"], "a\n\nb"), ("".into(), "a".into(), true), "before any markup");
    assert_eq!(split(Start::Answer, &["x<"], "ax<b"), ("".into(), "a".into(), true));
}

/// Without tools there are no calls, and their markup is still no part of an answer; only what is a token is markup.
#[test]
fn markers_that_are_tokens() {
    let said = |start, text: &str| {
        let mut out = Text::new(&marked(), start, &[], None);
        let mut pieces = Vec::new();
        for token in marked().encode(text).unwrap() {
            pieces.extend(out.push(token).unwrap());
        }
        pieces.extend(out.finish(End::Said).unwrap());
        joined(&pieces)
    };
    let of = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(said(Start::Reasoning, "a</think>b"), of("a", "b"));
    assert_eq!(said(Start::Answer, "a\n\n<｜DSML｜tool_calls>b</｜DSML｜tool_calls>c"), of("", "a"));
    assert_eq!(said(Start::Answer, "a\n</｜DSML｜tool_calls>\nb"), of("", "a\nb"), "closes nothing");
    assert_eq!(said(Start::Reasoning, "a</｜DSML｜ calls>b</｜DSML｜x, y</｜DSML｜</think>c"), of("ab, y", "c"));
    assert_eq!(said(Start::Plain, "a<｜DSML｜b</think>"), of("", "a<｜DSML｜b</think>"));
    let mut out = Text::new(&marked(), Start::Reasoning, &[], None);
    let mut pieces = Vec::new();
    for byte in "a</think><｜DSML｜invoke".bytes().chain([0xc3]) {
        pieces.extend(out.push(TokenId(byte.into())).unwrap());
    }
    let marker = marked().marker(Marker::ThinkEnd.spelling()).unwrap();
    pieces.extend(out.push(marker).unwrap());
    assert_eq!(joined(&pieces), of("a</think><｜DSML｜invoke\u{fffd}", ""), "spelled by bytes, it is text");
}

proptest! {
    /// In pieces of any size the same as in one, and nothing is lost but the marker and its newlines.
    #[test]
    fn a03_pieces_do_not_matter(
        parts in proptest::collection::vec(prop_oneof!["[\na</thinké🙂>]{0,6}", Just("</think>".to_owned())], 0..6),
        cuts in proptest::collection::vec(0usize..60, 0..8),
        start in prop_oneof![Just(Start::Plain), Just(Start::Reasoning), Just(Start::Answer), Just(Start::Within)],
        stop in "[a<\n]{0,2}",
    ) {
        let text: String = parts.concat();
        let whole = |pieces: &[&str]| {
            let mut out = Text::new(&bytes(), start, std::slice::from_ref(&stop), None);
            let mut said = Vec::new();
            for piece in pieces {
                let units = out.units.text(piece);
                said.extend(out.turn(&units));
            }
            said.extend(out.finish(End::Said).unwrap());
            let (reasoning, content) = joined(&said);
            (reasoning, content, out.stopped())
        };
        let chars: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut borders: Vec<usize> = cuts.iter().map(|cut| chars[cut % chars.len()]).chain([0, text.len()]).collect();
        borders.sort_unstable();
        let pieces: Vec<&str> = borders.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let expected = whole(&[&text]);
        prop_assert_eq!(&whole(&pieces), &expected);
        prop_assert_eq!(&split(start, &[&stop], &text), &expected, "byte by byte");
        if !expected.2 {
            let letters = |text: &str| text.replace("</think>", "").replace('\n', "");
            // Removing markers may join two halves to a new one, so only plain texts are compared letter by letter.
            if start == Start::Plain || !text.contains('<') {
                prop_assert_eq!(letters(&(expected.0 + &expected.1)), letters(&text));
            }
        }
    }
}

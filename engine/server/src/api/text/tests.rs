use super::*;
use engine::config::ModelConfig;
use proptest::prelude::*;

fn bytes() -> Tokenizer {
    Tokenizer::bytes(&ModelConfig::tiny()).unwrap()
}

/// Reasoning and content of a text of byte tokens.
fn split(start: Start, stops: &[&str], text: &str) -> (String, String, bool) {
    let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
    let mut out = Text::new(&bytes(), start, &stops);
    let mut pieces = Vec::new();
    for token in bytes().encode(text).unwrap() {
        pieces.extend(out.push(token).unwrap());
        if out.stopped() {
            break;
        }
    }
    pieces.extend(out.finish().unwrap());
    let (mut reasoning, mut content) = (String::new(), String::new());
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => reasoning += &text,
            Piece::Content(text) => content += &text,
        }
    }
    (reasoning, content, out.stopped())
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
    let (_, content, _) = split(Start::Plain, &[], "\nx</think>y");
    assert_eq!(content, "\nx</think>y", "a completion is left as it is");
}

#[test]
fn stop_strings_count_in_the_answer() {
    assert_eq!(split(Start::Reasoning, &["!"], "a!b</think>c!d"), ("a!b".into(), "c".into(), true));
    assert_eq!(split(Start::Plain, &["b</"], "ab</think>"), ("".into(), "a".into(), true));
    assert_eq!(split(Start::Plain, &["bx"], "ab"), ("".into(), "ab".into(), false), "held back, then handed out");
}

/// Only the token ends the reasoning where there is one, also in the middle of a character.
#[test]
fn a_marker_that_is_a_token() {
    let mut text = Text::new(&bytes(), Start::Reasoning, &[]);
    text.marker = Some(TokenId(7));
    text.turn.spelled = false;
    let mut pieces = Vec::new();
    for token in bytes().encode("a</think>").unwrap() {
        pieces.extend(text.push(token).unwrap());
    }
    assert!(pieces.iter().all(|piece| matches!(piece, Piece::Reasoning(_))));
    assert_eq!(text.push(TokenId(0xc3)).unwrap(), []);
    assert_eq!(text.push(TokenId(7)).unwrap(), [Piece::Reasoning("\u{fffd}".into())]);
    assert_eq!(text.push(TokenId(b'x'.into())).unwrap(), [Piece::Content("x".into())]);
}

proptest! {
    /// In pieces of any size the same as in one, and nothing is lost but the marker and its newlines.
    #[test]
    fn pieces_do_not_matter(
        parts in proptest::collection::vec(prop_oneof!["[\na</thinké🙂>]{0,6}", Just("</think>".to_owned())], 0..6),
        cuts in proptest::collection::vec(0usize..60, 0..8),
        start in prop_oneof![Just(Start::Plain), Just(Start::Reasoning), Just(Start::Answer)],
        stop in "[a<\n]{0,2}",
    ) {
        let text: String = parts.concat();
        let whole = |pieces: &[&str]| {
            let mut out = Text::new(&bytes(), start, std::slice::from_ref(&stop));
            let (mut said, mut reasoning, mut content) = (Vec::new(), String::new(), String::new());
            for piece in pieces {
                let mut pieces = Vec::new();
                out.turn.text(piece, &mut pieces);
                said.extend(out.scan(pieces));
            }
            said.extend(out.finish().unwrap());
            for piece in said {
                match piece {
                    Piece::Reasoning(text) => reasoning += &text,
                    Piece::Content(text) => content += &text,
                }
            }
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

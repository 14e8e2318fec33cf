use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};

/// Byte-level tokens as large models have them: every byte is a token, a few pairs are merged, two markers are added.
static BYTE_LEVEL: LazyLock<Tokenizer> = LazyLock::new(|| {
    let mut alphabet: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    alphabet.sort();
    // "Ġ" is the space; "Ã©" is "é"; "ðŁ" is the first half of an emoji.
    let merges = [("t", "h"), ("Ġ", "th"), ("Ã", "©"), ("ð", "Ł")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    let merged = merges.iter().map(|(a, b)| format!("{a}{b}"));
    let vocab: tokenizers::models::bpe::Vocab =
        alphabet.iter().cloned().chain(merged).enumerate().map(|(id, token)| (token, id as u32)).collect();
    let bpe = BPE::builder().vocab_and_merges(vocab, merges.to_vec()).build().unwrap();
    let byte_level = ByteLevel::new(false, true, false);
    let mut inner = TokenizerBuilder::<BPE, tokenizers::NormalizerWrapper, _, ByteLevel, _>::new()
        .with_model(bpe)
        .with_normalizer(None)
        .with_pre_tokenizer(Some(byte_level))
        .with_post_processor(Some(byte_level))
        .with_decoder(Some(byte_level))
        .build()
        .unwrap();
    inner.add_special_tokens(&[AddedToken::from("<｜User｜>", true), AddedToken::from("</think>", true)]);
    let folder = tempfile::tempdir().unwrap();
    inner.save(folder.path().join("tokenizer.json"), false).unwrap();
    let tokenizer = Tokenizer::open(folder.path(), &ModelConfig::v4_flash()).unwrap();
    assert!(!tokenizer.is_bytes());
    tokenizer
});

fn plain() -> Tokenizer {
    Tokenizer::bytes(&ModelConfig::tiny()).unwrap()
}

fn shifted() -> Tokenizer {
    Tokenizer::bytes(&ModelConfig::mini()).unwrap()
}

fn streamed(tokenizer: &Tokenizer, tokens: &[TokenId]) -> (Vec<String>, String) {
    let mut stream = tokenizer.stream();
    let pieces = tokens.iter().map(|&id| stream.push(id).unwrap()).collect();
    (pieces, stream.finish().unwrap())
}

#[test]
fn byte_tokens() {
    let ids = |tokenizer: &Tokenizer| tokenizer.encode("aé").unwrap().into_iter().map(|id| id.0).collect::<Vec<_>>();
    assert_eq!(ids(&plain()), [0x61, 0xc3, 0xa9], "a vocabulary of 256 has no room for special ids");
    assert_eq!(ids(&shifted()), [0x63, 0xc5, 0xab], "bos 0 and eos 1 stand before the bytes");
    // 257 special ids and bytes do not fit 258 ids less one.
    let edge = |vocab_size| ModelConfig { vocab_size, ..ModelConfig::tiny() };
    assert_eq!(ids(&Tokenizer::bytes(&edge(257)).unwrap())[0], 0x61);
    assert_eq!(ids(&Tokenizer::bytes(&edge(258)).unwrap())[0], 0x63);
    let text = Tokenizer::bytes(&edge(255)).unwrap_err().to_string();
    assert_eq!(text, "vocabulary: expected 256 ids or more for bytes, got 255");
    let tokens = [0, 2 + 0x61, 1, 2 + 0x62, 258, 4095].map(TokenId);
    assert_eq!(shifted().decode(&tokens).unwrap(), "ab\u{fffd}\u{fffd}");
    assert_eq!(
        shifted().decode(&[TokenId(4096)]).unwrap_err().to_string(),
        "token: expected an id below 4096, got 4096"
    );
    assert_eq!(plain().decode(&[0, 1].map(TokenId)).unwrap(), "\u{0}\u{1}");
}

#[test]
fn markers_are_tokens_and_text() {
    let tokens = BYTE_LEVEL.encode("<｜User｜>hi</think>").unwrap();
    assert_eq!(tokens.len(), 4);
    assert_eq!(BYTE_LEVEL.decode(&tokens).unwrap(), "<｜User｜>hi</think>");
}

/// What a user writes stays text.
#[test]
fn markers_from_strangers_are_plain_characters() {
    let spelled = "<｜User｜>hi</think>";
    let tokens = BYTE_LEVEL.encode_unmarked(spelled).unwrap();
    assert_eq!(BYTE_LEVEL.decode(&tokens).unwrap(), spelled);
    let marker = BYTE_LEVEL.marker("</think>").unwrap();
    assert!(BYTE_LEVEL.encode(spelled).unwrap().contains(&marker) && !tokens.contains(&marker));
    assert_eq!(BYTE_LEVEL.marker("<｜Assistant｜>"), None);
    assert_eq!(shifted().marker("<｜begin▁of▁sentence｜>"), Some(TokenId(0)));
    assert_eq!(shifted().marker("<｜end▁of▁sentence｜>"), Some(TokenId(1)));
    assert_eq!(plain().marker("<｜begin▁of▁sentence｜>"), None, "no room for special ids");
}

/// Bytes of "🙂é" one by one: nothing before the last byte of a character.
#[test]
fn no_half_characters() {
    let (pieces, rest) = streamed(&plain(), &plain().encode("🙂é!").unwrap());
    assert_eq!(pieces, ["", "", "", "🙂", "", "é", "!"]);
    assert_eq!(rest, "");
    let (pieces, rest) = streamed(&plain(), &[0xf0, 0x9f, 0x41, 0xe2, 0x82].map(TokenId));
    assert_eq!(pieces.concat(), "\u{fffd}A");
    assert_eq!(rest, "\u{fffd}");
    // The emoji is "ðŁ" (two bytes, one token) and two single bytes.
    let tokens = BYTE_LEVEL.encode("🙂é!").unwrap();
    let (pieces, rest) = streamed(&BYTE_LEVEL, &tokens);
    assert_eq!(pieces, ["", "", "🙂", "é", "!"]);
    assert_eq!(rest, "");
    let (pieces, rest) = streamed(&BYTE_LEVEL, &tokens[..2]);
    assert_eq!((pieces.concat().as_str(), rest.as_str()), ("", "\u{fffd}"));
}

/// A decoder's text does not tell a written U+FFFD from a missing byte: it waits for the next token.
#[test]
fn a_written_replacement_character_waits() {
    let tokens = BYTE_LEVEL.encode("a\u{fffd}b\u{fffd}").unwrap();
    let (pieces, rest) = streamed(&BYTE_LEVEL, &tokens);
    assert_eq!((pieces.concat().as_str(), rest.as_str()), ("a\u{fffd}b", "\u{fffd}"));
}

#[test]
fn wrong_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let open = || Tokenizer::open(folder.path(), &ModelConfig::tiny());
    assert!(open().unwrap().is_bytes());
    for text in ["", "{", "[]", "{\"model\": 3}"] {
        std::fs::write(&path, text).unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: expected a tokenizer, got: "), "{error}");
    }
    let Kind::File(inner) = &BYTE_LEVEL.kind else { panic!("not a file") };
    inner.save(&path, false).unwrap();
    let error = open().unwrap_err().to_string();
    assert!(error.contains("vocabulary: expected ids below vocab_size 256, got id 261 in"), "{error}");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    assert!(open().is_err());
}

/// Files keep the settings of training: a prompt that is cut or filled up is another prompt.
#[test]
fn no_truncation_and_no_padding() {
    let Kind::File(inner) = &BYTE_LEVEL.kind else { panic!("not a file") };
    let mut trained = tokenizers::Tokenizer::clone(inner);
    let cut = tokenizers::TruncationParams { max_length: 3, ..Default::default() };
    let fill = tokenizers::PaddingParams { strategy: tokenizers::PaddingStrategy::Fixed(50), ..Default::default() };
    trained.with_truncation(Some(cut)).unwrap().with_padding(Some(fill));
    assert_eq!(trained.encode_fast("x y z ...", false).unwrap().get_ids().len(), 50, "the file's own way");
    let folder = tempfile::tempdir().unwrap();
    trained.save(folder.path().join("tokenizer.json"), false).unwrap();
    let tokenizer = Tokenizer::open(folder.path(), &ModelConfig::v4_flash()).unwrap();
    assert_eq!(tokenizer.encode("x y z ...").unwrap(), BYTE_LEVEL.encode("x y z ...").unwrap());
}

proptest! {
    /// Text survives, whole and piece by piece.
    #[test]
    fn text_survives(text in "(\\PC|[ té🙂]|<｜User｜>){0,60}") {
        for tokenizer in [&plain(), &shifted(), &*BYTE_LEVEL] {
            let tokens = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(&tokenizer.decode(&tokens).unwrap(), &text);
            let (pieces, rest) = streamed(tokenizer, &tokens);
            prop_assert_eq!(&(pieces.concat() + &rest), &text);
            prop_assert!(rest.chars().all(|c| c == '\u{fffd}' && !tokenizer.is_bytes()), "{}", rest);
        }
    }

    /// Any tokens, also those that are no text: pieces make up the whole, and none shows a character that is still open.
    #[test]
    fn any_tokens(ids in prop::collection::vec(0u32..262, 0..80)) {
        let tokens: Vec<TokenId> = ids.iter().map(|&id| TokenId(id)).collect();
        let (pieces, rest) = streamed(&BYTE_LEVEL, &tokens);
        prop_assert_eq!(pieces.concat() + &rest, BYTE_LEVEL.decode(&tokens).unwrap());
        let bytes: Vec<u8> = ids.iter().map(|&id| id as u8).collect();
        let tokens: Vec<TokenId> = bytes.iter().map(|&byte| TokenId(byte.into())).collect();
        let (pieces, rest) = streamed(&plain(), &tokens);
        prop_assert_eq!(pieces.concat() + &rest, String::from_utf8_lossy(&bytes));
        let shifted_tokens: Vec<TokenId> = bytes.iter().map(|&byte| TokenId(2 + u32::from(byte))).collect();
        prop_assert_eq!(shifted().decode(&shifted_tokens).unwrap(), String::from_utf8_lossy(&bytes));
    }
}

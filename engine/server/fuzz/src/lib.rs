//! The model that the targets serve.

use engine::config::ModelConfig;
use engine::tokenizer::Tokenizer;
use server::api::Served;

/// Bytes, and markers that are tokens: ids 261 and 262 end the reasoning and are in tags.
pub fn marked() -> Tokenizer {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/markers");
    Tokenizer::open(dir, &ModelConfig::mini()).expect("a tokenizer")
}

/// A model of those tokens.
pub fn served() -> Served {
    let (tokenizer, vocab_size) = (marked(), ModelConfig::mini().vocab_size);
    let eos = vec![tokenizer.marker("<｜end▁of▁sentence｜>").expect("a marker")];
    Served { name: "tiny".into(), created: 0, tokenizer, vocab_size, context: 8192, eos, max_prompts: 8 }
}

//! What the two engines write into OPEN and DONE: requests and first tokens as bytes. Decoding is total.

use crate::ids::TokenId;
use crate::scheduler::FirstToken;
use crate::step::Sampling;
use thiserror::Error;

/// A prompt to compute for somebody else.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefillRequest {
    /// The text, at least one token.
    pub prompt: Vec<TokenId>,
    /// How its first token is picked.
    pub sampling: Sampling,
    /// Tokens at the beginning whose rows the asker has: a multiple of the page.
    pub held: u32,
}

/// What comes back beside the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoverRecord {
    /// What the text goes on with.
    pub first: FirstToken,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// [`prompt_hash`] of it: the pages are those of this text.
    pub prompt_hash: u64,
}

/// Bytes that are no record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{record}: expected {expected}, got {got} bytes")]
pub struct RecordError {
    record: &'static str,
    expected: String,
    got: usize,
}

/// A hash of a text that two processes agree on.
pub fn prompt_hash(prompt: &[TokenId]) -> u64 {
    // FNV-1a over the bytes of the ids: not for enemies, but for a pairing gone wrong.
    let bytes = prompt.iter().flat_map(|token| token.0.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

const REQUEST_BYTES: usize = 16;
const RECORD_BYTES: usize = 29;

/// Little-endian fields, one after the other; the length was checked before.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

impl PrefillRequest {
    /// Bytes of [`PrefillRequest::encode`].
    pub fn encoded_bytes(&self) -> usize {
        REQUEST_BYTES + 4 * self.prompt.len()
    }

    /// `held` u32, temperature f32, seed u64, then the tokens, u32 each.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_bytes());
        bytes.extend_from_slice(&self.held.to_le_bytes());
        bytes.extend_from_slice(&self.sampling.temperature.to_le_bytes());
        bytes.extend_from_slice(&self.sampling.seed.to_le_bytes());
        self.prompt.iter().for_each(|token| bytes.extend_from_slice(&token.0.to_le_bytes()));
        bytes
    }

    /// Reads [`PrefillRequest::encode`].
    ///
    /// # Errors
    /// A length that no request has.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let got = bytes.len();
        if got < REQUEST_BYTES || !(got - REQUEST_BYTES).is_multiple_of(4) {
            let expected = format!("{REQUEST_BYTES} bytes and 4 per token");
            return Err(RecordError { record: "prefill request", expected, got });
        }
        let mut fields = Fields(bytes);
        let (held, temperature, seed) = (fields.u32(), f32::from_bits(fields.u32()), fields.u64());
        let prompt = (0..(got - REQUEST_BYTES) / 4).map(|_| TokenId(fields.u32())).collect();
        Ok(Self { prompt, sampling: Sampling { temperature, seed }, held })
    }
}

impl HandoverRecord {
    /// Token, whether there is a draft (one byte), draft, cached tokens, prompt tokens, u32 each; hash u64.
    pub fn encode(&self) -> Vec<u8> {
        let FirstToken { token, draft, cached_tokens } = self.first;
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        bytes.extend_from_slice(&token.0.to_le_bytes());
        bytes.push(u8::from(draft.is_some()));
        bytes.extend_from_slice(&draft.unwrap_or_default().0.to_le_bytes());
        bytes.extend_from_slice(&cached_tokens.to_le_bytes());
        bytes.extend_from_slice(&self.prompt_tokens.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.prompt_hash.to_le_bytes());
        bytes
    }

    /// Reads [`HandoverRecord::encode`].
    ///
    /// # Errors
    /// A length that no record has.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() != RECORD_BYTES {
            let expected = format!("{RECORD_BYTES} bytes");
            return Err(RecordError { record: "handover record", expected, got: bytes.len() });
        }
        let mut fields = Fields(bytes);
        let token = TokenId(fields.u32());
        let has_draft = fields.take() != [0_u8];
        let draft = TokenId(fields.u32());
        let (cached_tokens, prompt_tokens, _) = (fields.u32(), fields.u32(), fields.u32());
        let first = FirstToken { token, draft: has_draft.then_some(draft), cached_tokens };
        Ok(Self { first, prompt_tokens, prompt_hash: fields.u64() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_back(prompt in prop::collection::vec(any::<u32>(), 0..40), bits in any::<u32>(),
            seed in any::<u64>(), held in any::<u32>(), draft in any::<Option<u32>>(), token in any::<u32>()) {
            let prompt: Vec<TokenId> = prompt.into_iter().map(TokenId).collect();
            let (prompt_tokens, prompt_hash) = (prompt.len() as u32, prompt_hash(&prompt));
            let request = PrefillRequest { prompt, sampling: Sampling { temperature: f32::from_bits(bits), seed }, held };
            let back = PrefillRequest::decode(&request.encode()).unwrap();
            prop_assert_eq!(back.encode(), request.encode());
            prop_assert_eq!(request.encode().len(), request.encoded_bytes());
            prop_assert_eq!(back.prompt, request.prompt);
            let first = FirstToken { token: TokenId(token), draft: draft.map(TokenId), cached_tokens: held };
            let record = HandoverRecord { first, prompt_tokens, prompt_hash };
            prop_assert_eq!(HandoverRecord::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(PrefillRequest::decode(&bytes).is_ok(), bytes.len() >= 16 && bytes.len() % 4 == 0);
            prop_assert_eq!(HandoverRecord::decode(&bytes).is_ok(), bytes.len() == RECORD_BYTES);
        }
    }

    #[test]
    fn another_text_has_another_hash() {
        let text = |ids: &[u32]| prompt_hash(&ids.iter().copied().map(TokenId).collect::<Vec<_>>());
        let hashes = [text(&[]), text(&[1]), text(&[1, 2]), text(&[2, 1]), text(&[258])];
        assert!((0..5).all(|i| (0..i).all(|j| hashes[i] != hashes[j])));
        // FNV-1a of `abcdefgh`.
        assert_eq!(text(&[0x64636261, 0x68676665]), 0x25da_8c18_36a8_d66d);
    }
}

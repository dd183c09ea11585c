//! Text to tokens and back, from the vocabulary inside the model file.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::{
    PreTokenizerWrapper,
    digits::Digits,
    sequence::Sequence,
    split::{Split, SplitPattern},
};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};
use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::error::{LoadProblem, LocalError};
use crate::gguf::{Gguf, malformed};

/// How Qwen2 cuts text before merging; from its published `tokenizer.json`.
const QWEN2_PIECES: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Longest token in bytes; toktrie gives up beyond 1024.
const MAX_TOKEN: usize = 512;
const MAX_VOCABULARY: usize = 1 << 20;
/// Most bytes of all tokens together; toktrie's tree holds fewer than 2^22 nodes.
const MAX_SPELLING: usize = (1 << 22) - 1;

/// Kinds of entry in `tokenizer.ggml.token_type`.
mod kind {
    pub const CONTROL: i64 = 3;
    pub const USER_DEFINED: i64 = 4;
    pub const UNUSED: i64 = 5;
}

/// The vocabulary both as a byte-pair encoder and as a prefix tree of bytes.
pub(crate) struct Vocabulary {
    inner: Arc<Inner>,
    control: HashMap<String, u32>,
}

struct Inner {
    trie: TokTrie,
    encoder: Tokenizer,
}

impl Vocabulary {
    pub(crate) fn read(gguf: &Gguf) -> Result<Self, LoadProblem> {
        let tokens = gguf.texts("tokenizer.ggml.tokens")?;
        let kinds = gguf.integers("tokenizer.ggml.token_type")?;
        check(gguf, tokens, kinds)?;
        let eos = gguf.size("tokenizer.ggml.eos_token_id", 0, tokens.len() as i64 - 1)? as u32;
        let trie = TokTrie::from(&TokRxInfo::new(tokens.len() as u32, eos), &token_bytes(tokens, kinds)?);
        let encoder = encoder(gguf, tokens, kinds)?;
        let control = tokens.iter().zip(kinds).zip(0u32..);
        let control = control.filter(|((_, k), _)| **k == kind::CONTROL).map(|((t, _), id)| (t.clone(), id));
        Ok(Vocabulary { control: control.collect(), inner: Arc::new(Inner { trie, encoder }) })
    }

    /// The number of a control token such as `<|im_end|>`.
    pub(crate) fn control(&self, name: &str) -> Option<u32> {
        self.control.get(name).copied()
    }

    /// Control tokens end an answer, whichever they are.
    pub(crate) fn is_control(&self, token: u32) -> bool {
        self.inner.trie.is_special_token(token)
    }

    /// Text to tokens. Control tokens are never recognised in text, so quoted material cannot end a turn.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, LocalError> {
        Ok(self.inner.encoder.encode_fast(text, false).map_err(LocalError::Tokenize)?.get_ids().to_vec())
    }

    /// Tokens to text, without control tokens. A character cut in half becomes U+FFFD.
    pub(crate) fn decode(&self, tokens: &[u32]) -> String {
        String::from_utf8_lossy(&self.inner.trie.decode_ext(tokens, false)).into_owned()
    }

    /// The view that llguidance works on.
    pub(crate) fn environment(&self) -> TokEnv {
        Arc::new(Environment(self.inner.clone()))
    }
}

struct Environment(Arc<Inner>);

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.0.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let Inner { trie, encoder } = &*self.0;
        trie.tokenize_with_greedy_fallback(bytes, |text| match encoder.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            Err(_) => trie.greedy_tokenize(text.as_bytes()),
        })
    }
}

fn check(gguf: &Gguf, tokens: &[String], kinds: &[i64]) -> Result<(), LoadProblem> {
    if gguf.text("tokenizer.ggml.model")? != "gpt2" {
        return Err(LoadProblem::Unsupported(format!("the tokenizer `{}`", gguf.text("tokenizer.ggml.model")?)));
    }
    if tokens.is_empty() || tokens.len() > MAX_VOCABULARY || tokens.len() != kinds.len() {
        return Err(malformed(format!("a vocabulary of {} tokens with {} types", tokens.len(), kinds.len())));
    }
    let spelling: usize = tokens.iter().map(|token| token.len() + 1).sum();
    if spelling > MAX_SPELLING {
        return Err(malformed(format!("a vocabulary of {spelling} bytes")));
    }
    let distinct: HashSet<&String> = tokens.iter().collect();
    if distinct.len() != tokens.len() {
        return Err(malformed("the vocabulary repeats a token".into()));
    }
    match tokens.iter().find(|token| token.len() > MAX_TOKEN) {
        Some(token) => Err(malformed(format!("a token of {} bytes", token.len()))),
        None => Ok(()),
    }
}

/// The bytes each token stands for; control tokens get toktrie's marker in front, unusable ones are empty.
fn token_bytes(tokens: &[String], kinds: &[i64]) -> Result<Vec<Vec<u8>>, LoadProblem> {
    let alphabet = byte_alphabet();
    let spelled = |token: &str| token.chars().map(|c| alphabet.get(&c).copied()).collect::<Option<Vec<u8>>>();
    let bytes = tokens.iter().zip(kinds).map(|(token, kind)| match *kind {
        kind::CONTROL => [&[TokTrie::SPECIAL_TOKEN_MARKER], token.as_bytes()].concat(),
        kind::USER_DEFINED => token.as_bytes().to_vec(),
        kind::UNUSED => Vec::new(),
        _ => spelled(token).unwrap_or_default(),
    });
    Ok(bytes.collect())
}

/// The printable stand-ins that GPT-2's tokenizer uses for bytes.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let plain = (0..=255u8).filter(|b| printable(*b)).map(|b| (char::from(b), b));
    let shifted = (0..=255u8).filter(|b| !printable(*b)).zip('\u{100}'..).map(|(b, c)| (c, b));
    plain.chain(shifted).collect()
}

fn encoder(gguf: &Gguf, tokens: &[String], kinds: &[i64]) -> Result<Tokenizer, LoadProblem> {
    let bad = |error: Box<dyn std::error::Error + Send + Sync>| malformed(format!("its tokenizer: {error}"));
    let merges = gguf.texts("tokenizer.ggml.merges")?.iter().map(|merge| {
        let pair = merge.split_once(' ').ok_or_else(|| malformed(format!("the merge `{merge}`")))?;
        Ok((pair.0.to_string(), pair.1.to_string()))
    });
    let merges = merges.collect::<Result<Vec<_>, LoadProblem>>()?;
    let vocabulary: Vocab = tokens.iter().cloned().zip(0u32..).collect();
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).build().map_err(bad)?;
    let mut encoder = Tokenizer::new(model);
    encoder.with_pre_tokenizer(Some(pre_tokenizer(gguf.text("tokenizer.ggml.pre")?)?));
    let literal = tokens.iter().zip(kinds).filter(|(_, kind)| **kind == kind::USER_DEFINED);
    let literal: Vec<_> = literal.map(|(token, _)| AddedToken::from(token.clone(), false)).collect();
    encoder.add_tokens(literal).map_err(bad)?;
    Ok(encoder)
}

fn pre_tokenizer(name: &str) -> Result<Sequence, LoadProblem> {
    let pieces: Vec<PreTokenizerWrapper> = match name {
        "qwen2" => {
            let pattern = SplitPattern::Regex(QWEN2_PIECES.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            let split = split.map_err(|error| malformed(format!("its tokenizer: {error}")))?;
            vec![split.into(), ByteLevel::new(false, true, false).into()]
        }
        "smollm" => vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()],
        other => return Err(LoadProblem::Unsupported(format!("the pre-tokenizer `{other}`"))),
    };
    Ok(Sequence::new(pieces))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_spells_every_byte_once() {
        let alphabet = byte_alphabet();
        let bytes: HashSet<u8> = alphabet.values().copied().collect();
        assert_eq!((alphabet.len(), bytes.len()), (256, 256));
        assert_eq!((alphabet[&'Ġ'], alphabet[&'Ċ'], alphabet[&'a']), (b' ', b'\n', b'a'));
    }

    #[test]
    fn text_survives_the_round_trip() {
        let path = crate::test_model::path();
        let vocabulary = Vocabulary::read(&Gguf::open(&path).unwrap()).unwrap();
        for text in ["Gr\u{fc}\u{df}e aus 東京, 12345!", "don't\n\n\tstop  <|im_end|>", "{\"a\": [1.5, null]}", ""] {
            let tokens = vocabulary.encode(text).unwrap();
            assert_eq!(vocabulary.decode(&tokens), text);
            assert!(!tokens.iter().any(|token| vocabulary.is_control(*token)), "{text}");
        }
        assert_eq!(vocabulary.encode("hello world").unwrap().len(), 2);
    }
}

//! Counting tokens without a model at hand: the vocabulary that comes with the program.

use thiserror::Error;
use tokenizers::Tokenizer;

/// The word pieces of all-MiniLM-L6-v2, which every program carries for its embeddings.
const WORD_PIECES: &[u8] = include_bytes!("../assets/minilm/tokenizer.json");

/// Counts the word pieces of a text.
pub struct WordPieces(Tokenizer);

/// The vocabulary cannot be read.
#[derive(Debug, Error)]
#[error("failed to read the embedded vocabulary: {0}")]
pub struct VocabularyError(String);

impl WordPieces {
    /// What to call these tokens.
    pub const NAME: &'static str = "all-MiniLM-L6-v2 (WordPiece, lower case)";

    /// Reads the vocabulary.
    ///
    /// # Errors
    /// It is damaged.
    pub fn new() -> Result<Self, VocabularyError> {
        let fail = |e: tokenizers::Error| VocabularyError(e.to_string());
        let mut inner = Tokenizer::from_bytes(WORD_PIECES).map_err(fail)?;
        // The model reads the beginning of a text only, and short ones filled up; here all is counted, and nothing else.
        inner.with_truncation(None).map_err(fail)?;
        inner.with_padding(None);
        Ok(Self(inner))
    }

    /// Word pieces of `text`, without marks of beginning and end; 0 for what cannot be cut.
    pub fn count(&self, text: &str) -> u64 {
        self.0.encode_fast(text, false).map_or(0, |pieces| pieces.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_texts_are_counted_and_nothing_else() {
        let pieces = WordPieces::new().unwrap();
        let counts = ["", "Read", "read the file", "unreadable", "a.b"].map(|text| pieces.count(text));
        assert_eq!(counts[..3], [0, 1, 3]);
        assert!(counts[3] > 1 && counts[4] == 3, "{counts:?}");
        assert_eq!(pieces.count(&"word ".repeat(5000)), 5000);
    }
}

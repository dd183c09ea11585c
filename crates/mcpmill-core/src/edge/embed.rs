//! Embedding models.

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use crate::edge::{ExchangeKind, Recorder};

/// A model that turns text into vectors of unit length.
#[async_trait]
pub trait Embedder: Send + Sync {
    /// What names the model in verdicts and keys: file and hash.
    fn model(&self) -> &str;

    /// One vector a text, in order.
    ///
    /// # Errors
    /// The model or its runtime is missing or failed. There is no silent substitute.
    async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError>;
}

/// Texts could not be embedded.
#[derive(Clone, Debug, Error)]
#[error("failed to embed text with `{model}`: {detail}")]
pub struct EmbedError {
    /// The model.
    pub model: String,
    /// What happened.
    pub detail: String,
}

/// Cosine similarity of two vectors, -1 to 1; 0 when one of them has no length.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot: f32 = a.iter().zip(b).map(|(x, y)| x * y).sum();
    let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
    let length = norm(a) * norm(b);
    if length > 0.0 { dot / length } else { 0.0 }
}

/// An embedder whose vectors go through the exchange store, one exchange a text, so that a text is
/// embedded once in all runs and a replay needs no model.
#[derive(Clone)]
pub struct RecordedEmbedder {
    model: Arc<dyn Embedder>,
    recorder: Arc<Recorder>,
}

/// Stored components are integers of this scale: eight bits lose less than 0.004 of a cosine, and
/// the same integers give the same scores on every processor.
const SCALE: f32 = 127.0;

impl RecordedEmbedder {
    /// Records `model` with `recorder`.
    pub fn new(model: Arc<dyn Embedder>, recorder: Arc<Recorder>) -> Self {
        Self { model, recorder }
    }

    /// What names the model.
    pub fn model(&self) -> &str {
        self.model.model()
    }

    /// The vector of one text, stored or live. Components are whole numbers between -127 and 127.
    ///
    /// # Errors
    /// As [`Embedder::embed`]; also when replaying and nothing is recorded.
    pub async fn embed(&self, text: &str) -> Result<Vec<f32>, EmbedError> {
        let fail = |detail: String| EmbedError { model: self.model().to_owned(), detail };
        let question = serde_json::json!({ "model": self.model(), "text": text });
        let live = || async {
            let vectors = self.model.embed(&[text.to_owned()]).await?;
            let vector = vectors.first().ok_or_else(|| fail("no vector came back".into()))?;
            Ok(quantise(vector).into())
        };
        let recorded = self.recorder.ask::<EmbedError, _, _>(ExchangeKind::Embed, &question, |_| true, live).await;
        let reply = recorded.map_err(|e| fail(e.to_string()))?.reply;
        serde_json::from_value(reply).map_err(|e| fail(format!("stored vector cannot be read: {e}")))
    }
}

/// Scales a vector so that its largest component is 127 and rounds: the direction stays.
fn quantise(vector: &[f32]) -> Vec<i32> {
    let largest = vector.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let factor = if largest > 0.0 { SCALE / largest } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, reason = "between -127 and 127 by construction")]
    vector.iter().map(|x| (x * factor).round() as i32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantised_vectors_keep_their_angle() {
        let a = [0.3_f32, -0.2, 0.01, 0.9];
        let b = [0.1_f32, 0.4, -0.05, 0.7];
        let coarse = |v: &[f32]| quantise(v).iter().map(|&x| x as f32).collect::<Vec<_>>();
        assert!((cosine(&a, &b) - cosine(&coarse(&a), &coarse(&b))).abs() < 0.01);
        assert!((cosine(&a, &a) - 1.0).abs() < 1e-6);
        assert_eq!(cosine(&a, &[0.0; 4]), 0.0);
        assert_eq!(quantise(&[0.0, 0.0]), [0, 0]);
    }
}

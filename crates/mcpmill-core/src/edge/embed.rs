//! Embedding models.

use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
use serde_json::{Value, json};
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
/// Texts that are embedded and kept as one group.
const GROUP: usize = 256;

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
        let live = || async { Ok(self.live(&[text.to_owned()]).await?.swap_remove(0)) };
        self.recorded(text, live).await
    }

    /// Embeds and keeps those of `texts` that are not stored yet, many in one pass: [`RecordedEmbedder::embed`] then finds
    /// them. Nothing is held in memory but one group of texts. When replaying there is nothing to do.
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    pub async fn embed_ahead<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Result<(), EmbedError> {
        let mut missing: Vec<&str> = Vec::new();
        let distinct: HashSet<&str> = texts.into_iter().collect();
        for text in distinct {
            let lacks = self.recorder.lacks(ExchangeKind::Embed, &self.question(text), |_| true);
            if lacks.map_err(|e| self.fail(e.to_string()))? {
                missing.push(text);
            }
        }
        // Texts of about one length waste nothing on filling up.
        missing.sort_unstable_by_key(|text| (text.len(), *text));
        for group in missing.chunks(GROUP) {
            let owned: Vec<String> = group.iter().map(|text| (*text).to_owned()).collect();
            let vectors = self.live(&owned).await?;
            let keep = group.iter().zip(vectors).map(|(text, vector)| self.recorded(text, || async { Ok(vector) }));
            futures::future::try_join_all(keep).await?;
        }
        Ok(())
    }

    fn fail(&self, detail: String) -> EmbedError {
        EmbedError { model: self.model().to_owned(), detail }
    }

    /// What names a text in the store.
    fn question(&self, text: &str) -> Value {
        json!({ "model": self.model(), "text": text })
    }

    /// The vectors of texts as they are stored, of the model itself.
    async fn live(&self, texts: &[String]) -> Result<Vec<Value>, EmbedError> {
        let vectors = self.model.embed(texts).await?;
        if vectors.len() != texts.len() {
            return Err(self.fail(format!("{} vectors came back for {} texts", vectors.len(), texts.len())));
        }
        Ok(vectors.iter().map(|vector| quantise(vector).into()).collect())
    }

    /// The vector of a text, stored or that of `live`.
    async fn recorded<Fut>(&self, text: &str, live: impl FnOnce() -> Fut) -> Result<Vec<f32>, EmbedError>
    where
        Fut: Future<Output = Result<Value, EmbedError>>,
    {
        let recorded = self.recorder.ask(ExchangeKind::Embed, &self.question(text), |_| true, live).await;
        let reply = recorded.map_err(|e| self.fail(e.to_string()))?.reply;
        serde_json::from_value(reply).map_err(|e| self.fail(format!("stored vector cannot be read: {e}")))
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
    use std::sync::Mutex;

    use super::*;
    use crate::edge::{Mode, exchange::tests::Memory};

    /// Notes how many texts each pass had; a vector tells how long its text is.
    #[derive(Default)]
    struct Lengths {
        passes: Mutex<Vec<usize>>,
        short_of: usize,
    }

    #[async_trait]
    impl Embedder for Lengths {
        fn model(&self) -> &str {
            "lengths"
        }

        async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
            self.passes.lock().unwrap().push(texts.len());
            Ok(texts.iter().skip(self.short_of).map(|text| vec![1.0, text.len() as f32 / 1000.0]).collect())
        }
    }

    fn recorded(model: &Arc<Lengths>, store: &Arc<Memory>, mode: Mode) -> RecordedEmbedder {
        let (model, store) = (Arc::<Lengths>::clone(model), Arc::<Memory>::clone(store));
        RecordedEmbedder::new(model, Arc::new(Recorder::new(store, mode)))
    }

    #[tokio::test]
    async fn texts_are_embedded_ahead_once_and_many_at_a_time() {
        let (model, store) = (Arc::new(Lengths::default()), Arc::new(Memory::default()));
        let embedder = recorded(&model, &store, Mode::Reuse);
        embedder.embed("x").await.unwrap();
        let texts: Vec<String> = (0..600).map(|n| "x".repeat(n % 300 + 1)).collect();
        embedder.embed_ahead(texts.iter().map(String::as_str)).await.unwrap();
        assert_eq!(*model.passes.lock().unwrap(), [1, GROUP, 299 - GROUP], "each text once, and none that is known");
        for text in ["x".repeat(300), "x".repeat(17), "x".into()] {
            let vector = embedder.embed(&text).await.unwrap();
            assert_eq!(vector, [127.0, (text.len() as f32 * 0.127).round()], "every text has its own vector");
        }
        embedder.embed_ahead(texts.iter().map(String::as_str)).await.unwrap();
        assert_eq!(model.passes.lock().unwrap().len(), 3, "nobody is asked again");
    }

    #[tokio::test]
    async fn nothing_is_embedded_ahead_in_a_replay_nor_kept_where_vectors_are_missing() {
        let (model, store) = (Arc::new(Lengths { short_of: 1, ..Lengths::default() }), Arc::new(Memory::default()));
        recorded(&model, &store, Mode::Replay).embed_ahead(["a", "b"]).await.unwrap();
        assert!(model.passes.lock().unwrap().is_empty());
        let odd = recorded(&model, &store, Mode::Reuse);
        assert!(odd.embed_ahead(["a", "b"]).await.unwrap_err().to_string().contains("1 vectors came back for 2 texts"));
        assert!(odd.embed("a").await.is_err(), "no vector is given to another text");
    }

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

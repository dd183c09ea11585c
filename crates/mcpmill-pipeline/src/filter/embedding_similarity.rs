//! `embedding-similarity`: the instruction must be about the tool, but not repeat its description.

use async_trait::async_trait;
use mcpmill_core::{
    edge::{RecordedEmbedder, cosine},
    record::Verdict,
};
use serde_json::json;

use super::{Bench, Case, Filter, Plant};
use crate::ask::Meter;

pub(super) struct EmbeddingSimilarity {
    pub(super) name: String,
    pub(super) max: f64,
    pub(super) min: f64,
    pub(super) embedder: Result<RecordedEmbedder, String>,
}

#[async_trait]
impl Filter for EmbeddingSimilarity {
    fn name(&self) -> &str {
        &self.name
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::Copy, Plant::NearCopy, Plant::OtherRequest]
    }

    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let embedder = match &self.embedder {
            Ok(embedder) => embedder,
            Err(why) => return bench.unjudged(format!("no embedding model: {why}")),
        };
        let description = case.tool.description_text().trim();
        if description.is_empty() {
            return bench.unjudged("the tool has no description to compare with");
        }
        let (a, b) = match (embedder.embed(&case.sample.instruction).await, embedder.embed(description).await) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(error), _) | (_, Err(error)) => {
                meter.unreachable.get_or_insert_with(|| error.to_string());
                return bench.unjudged(error.to_string());
            }
        };
        // Four digits: more would differ between processors and mean nothing.
        let score = (f64::from(cosine(&a, &b)) * 1e4).round() / 1e4;
        let (verdict, threshold) = if score > self.max {
            (bench.drop("the instruction repeats the description"), self.max)
        } else if score < self.min {
            (bench.drop("the instruction is about something else"), self.min)
        } else {
            (bench.keep("between the thresholds"), self.max)
        };
        let evidence = json!({ "model": embedder.model() }).to_string();
        Verdict { score: Some(score), threshold: Some(threshold), evidence: Some(evidence), ..verdict }
    }
}

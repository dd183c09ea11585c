//! `embedding-similarity`: the instruction must be about the tool, but not repeat its description.

use std::{cmp::Ordering, collections::BTreeMap, fmt};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{EmbedError, RecordedEmbedder, cosine},
    record::Verdict,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Bench, Case, Filter, Plant, of_model};
use crate::ask::Meter;

/// Characters of the shortest text that is taken for a first sentence: `e.g.` is none.
const SENTENCE: usize = 20;

/// Between which similarities a request is good.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Above it the request repeats the description.
    pub max: f64,
    /// Below it the request is about something else.
    pub min: f64,
}

/// How similar a request is to the description of its tool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// Cosine with the whole description.
    pub whole: f64,
    /// Cosine with its first sentence; that of the whole where there is but one. Who copies a long description copies
    /// how it begins, and all that follows hides that from the other figure.
    pub first: f64,
}

impl Similarity {
    /// Of one request; `None` for a description that says nothing.
    ///
    /// # Errors
    /// As [`RecordedEmbedder::embed`].
    pub async fn of(instruction: &str, description: &str, embedder: &RecordedEmbedder) -> Result<Option<Self>, EmbedError> {
        let [whole, first] = texts(description);
        if whole.is_empty() {
            return Ok(None);
        }
        let asked = embedder.embed(instruction).await?;
        // Four digits: more would differ between processors and mean nothing.
        let close = async |text: &str| {
            let told = embedder.embed(text).await?;
            Ok::<_, EmbedError>((f64::from(cosine(&asked, &told)) * 1e4).round() / 1e4)
        };
        let whole_is = close(whole).await?;
        let first_is = if first == whole { whole_is } else { close(first).await? };
        Ok(Some(Self { whole: whole_is, first: first_is }))
    }

    /// What is held against `max`.
    pub fn highest(&self) -> f64 {
        self.whole.max(self.first)
    }
}

/// The texts that a request is compared with: the description and its first sentence.
pub(super) fn texts(description: &str) -> [&str; 2] {
    let whole = description.trim();
    [whole, first_sentence(whole)]
}

/// How a text begins, up to the first mark that ends a sentence; the whole where there is none.
fn first_sentence(text: &str) -> &str {
    let mut letters = text.char_indices().enumerate().peekable();
    while let Some((count, (at, letter))) = letters.next() {
        let spaced = letters.peek().is_none_or(|(_, (_, next))| next.is_whitespace());
        let ends = matches!(letter, '。' | '！' | '？' | '\n') || (matches!(letter, '.' | '!' | '?') && spaced);
        if ends && count + 1 >= SENTENCE {
            return text[..at + letter.len_utf8()].trim_end();
        }
    }
    text
}

pub(super) struct EmbeddingSimilarity {
    pub(super) name: String,
    pub(super) bounds: ByModel,
    pub(super) embedder: Result<RecordedEmbedder, String>,
}

/// Bounds by embedding model: 0.8 of one model is not 0.8 of another.
#[derive(Clone, Debug, Default)]
pub(super) struct ByModel {
    /// Those of models that are not named.
    pub(super) any: Option<Bounds>,
    pub(super) named: BTreeMap<String, Bounds>,
}

impl ByModel {
    /// Those of a chain file.
    ///
    /// # Errors
    /// There are none, one of a pair is missing, or no similarity lies between two of them.
    pub(super) fn new(max: Option<f64>, min: Option<f64>, named: BTreeMap<String, Bounds>) -> Result<Self, String> {
        let any = match (max, min) {
            (Some(max), Some(min)) => Some(Bounds { max, min }),
            (None, None) if !named.is_empty() => None,
            (None, None) => return Err("want `by_model`, or `max` and `min` for any model".into()),
            _ => return Err("`max` and `min` go together".into()),
        };
        if let Some(odd) =
            any.iter().chain(named.values()).find(|bounds| bounds.min.partial_cmp(&bounds.max) != Some(Ordering::Less))
        {
            return Err(format!("`min` lies below `max`, not {} above {}", odd.min, odd.max));
        }
        Ok(Self { any, named })
    }

    /// Those of a model.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn of(&self, model: &str) -> Result<Bounds, Uncalibrated> {
        of_model(&self.named, model).or(self.any.as_ref()).copied().ok_or_else(|| Uncalibrated(model.to_owned()))
    }
}

/// There are no bounds for an embedding model.
#[derive(Debug)]
pub(super) struct Uncalibrated(String);

impl fmt::Display for Uncalibrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.split('@').next().unwrap_or_default();
        write!(f, "`by_model` of the step has no thresholds for `{name}`; `mcpmill eval similarity` calibrates them")
    }
}

#[async_trait]
impl Filter for EmbeddingSimilarity {
    fn name(&self) -> &str {
        &self.name
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::Copy, Plant::NearCopy, Plant::OtherRequest]
    }

    fn sees_all(&self) -> bool {
        true
    }

    /// Many texts at once are embedded in a fraction of the time; what goes wrong here is told at the row.
    async fn prepare(&self, rows: &[&Case<'_>]) {
        let Ok(embedder) = &self.embedder else { return };
        if self.bounds.of(embedder.model()).is_ok() {
            let said = rows.iter().map(|case| case.sample.instruction.as_str());
            let told = rows.iter().flat_map(|case| texts(case.tool.description_text()));
            embedder.embed_ahead(said.chain(told).filter(|text| !text.is_empty())).await.ok();
        }
    }

    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let embedder = match &self.embedder {
            Ok(embedder) => embedder,
            Err(why) => return bench.unjudged(format!("no embedding model: {why}")),
        };
        let Bounds { max, min } = match self.bounds.of(embedder.model()) {
            Ok(bounds) => bounds,
            Err(why) => return bench.unjudged(format!("not calibrated: {why}")),
        };
        let similar = match Similarity::of(&case.sample.instruction, case.tool.description_text(), embedder).await {
            Ok(Some(similar)) => similar,
            Ok(None) => return bench.unjudged("the tool has no description to compare with"),
            Err(error) => {
                meter.unreachable.get_or_insert_with(|| error.to_string());
                return bench.unjudged(error.to_string());
            }
        };
        let (verdict, score, threshold) = if similar.highest() > max {
            (bench.drop("the instruction repeats the description"), similar.highest(), max)
        } else if similar.whole < min {
            (bench.drop("the instruction is about something else"), similar.whole, min)
        } else {
            (bench.keep("between the thresholds"), similar.highest(), max)
        };
        let evidence =
            json!({ "model": embedder.model(), "whole": similar.whole, "first": similar.first, "min": min, "max": max })
                .to_string();
        Verdict { score: Some(score), threshold: Some(threshold), evidence: Some(evidence), ..verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_begins_with_its_first_sentence() {
        for (text, first) in [
            ("Reads a file from the disk. Fails where there is none.", "Reads a file from the disk."),
            ("Reads it, e.g. notes.txt, from disk. Or not. Or so.", "Reads it, e.g. notes.txt, from disk."),
            ("Get it. It is there. And more of the same.", "Get it. It is there."),
            ("Version 2.5 of the index\nArgs: none", "Version 2.5 of the index"),
            ("查询指定城市未来几天的天气预报并返回温度。参数为城市名。", "查询指定城市未来几天的天气预报并返回温度。"),
            ("  ", ""),
        ] {
            assert_eq!(texts(text)[1], first, "{text}");
        }
        assert_eq!(texts(" One sentence without an end \n"), ["One sentence without an end"; 2]);
    }

    #[test]
    fn bounds_are_those_of_the_model_or_of_any() {
        let named = BTreeMap::from([("mini".to_owned(), Bounds { max: 0.7, min: 0.1 })]);
        let by = ByModel::new(None, None, named.clone()).unwrap();
        assert_eq!(by.of("mini@0123").unwrap().max, 0.7);
        let told = by.of("other@0123").unwrap_err().to_string();
        assert!(told.contains("`other`") && told.contains("mcpmill eval similarity"), "{told}");
        assert_eq!(ByModel::new(Some(0.8), Some(-1.0), named).unwrap().of("other").unwrap(), Bounds { max: 0.8, min: -1.0 });
        let none = BTreeMap::new;
        for (max, min) in
            [(None, None), (Some(0.8), None), (None, Some(0.1)), (Some(0.1), Some(0.8)), (Some(f64::NAN), Some(0.1))]
        {
            assert!(ByModel::new(max, min, none()).is_err(), "{max:?} {min:?}");
        }
    }
}

//! Scores of a filter as a histogram, with what they were compared with.

use mcpmill_core::record::{Judgement, Verdict};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

/// Scores that are kept of a filter: the first by id, which are a draw. Their shape does not change beyond.
const MOST: usize = 200_000;
/// Columns of a histogram.
const COLUMNS: usize = 24;
/// Whole numbers have a column each when they span no more than this.
const SPAN: f64 = 20.0;
/// Thresholds that are told.
const THRESHOLDS: usize = 4;

/// Scores by judgement, written as a histogram.
#[derive(Debug, Default)]
pub struct Scores {
    kept: Vec<(f32, Judgement)>,
    thresholds: Vec<f64>,
}

/// Scores in columns of equal width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Where the first column begins.
    pub low: f64,
    /// How wide a column is.
    pub width: f64,
    /// Rows of each column: kept, dropped, unjudged.
    pub columns: Vec<[u64; 3]>,
    /// What scores were compared with.
    pub thresholds: Vec<f64>,
    /// How many scores it is made of.
    pub rows: usize,
}

impl Scores {
    /// Takes in a verdict; one without a score says nothing.
    pub fn add(&mut self, verdict: &Verdict) {
        let Some(score) = verdict.score.filter(|score| score.is_finite()) else { return };
        if self.kept.len() < MOST {
            self.kept.push((score as f32, verdict.judgement));
        }
        let seen = verdict.evidence.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
        // A filter with two bounds compares with one; its evidence names both.
        let bounds = [verdict.threshold, seen["min"].as_f64(), seen["max"].as_f64()];
        for bound in bounds.into_iter().flatten().filter(|bound| bound.is_finite()) {
            if self.thresholds.len() < THRESHOLDS && !self.thresholds.contains(&bound) {
                self.thresholds.push(bound);
            }
        }
    }

    /// Itself, unless there is no score.
    pub fn some(self) -> Option<Self> {
        (!self.kept.is_empty()).then_some(self)
    }

    /// The scores in columns.
    pub fn histogram(&self) -> Histogram {
        let all = self.kept.iter().map(|(score, _)| f64::from(*score)).chain(self.thresholds.iter().copied());
        let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        let whole = self.kept.iter().all(|(score, _)| score.fract() == 0.0) && high - low <= SPAN;
        let (low, width, count) = if whole {
            (low.floor() - 0.5, 1.0, (high.ceil() - low.floor()) as usize + 1)
        } else {
            let width = nice((high - low).max(1e-6) / COLUMNS as f64);
            let low = (low / width).floor() * width;
            (low, width, ((high - low) / width).floor() as usize + 1)
        };
        let mut columns = vec![[0; 3]; count];
        for (score, judgement) in &self.kept {
            let at = (((f64::from(*score) - low) / width).floor().max(0.0) as usize).min(count - 1);
            columns[at][place(*judgement)] += 1;
        }
        let mut thresholds = self.thresholds.clone();
        thresholds.sort_by(f64::total_cmp);
        Histogram { low, width, columns, thresholds, rows: self.kept.len() }
    }
}

impl Serialize for Scores {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json!(self.histogram()).serialize(to)
    }
}

fn place(judgement: Judgement) -> usize {
    match judgement {
        Judgement::Keep => 0,
        Judgement::Drop => 1,
        Judgement::Unjudged => 2,
    }
}

/// The next larger of 1, 2 and 5 times a power of ten: widths that a person can read off.
fn nice(width: f64) -> f64 {
    let power = 10f64.powf(width.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|nice| *nice >= width * 0.999_999).unwrap_or(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(scores: &[(f64, Judgement)], threshold: f64) -> Scores {
        let mut all = Scores::default();
        for (score, judgement) in scores {
            all.add(&Verdict {
                subject_id: "row".into(),
                filter: "f".into(),
                judgement: *judgement,
                reason: "r".into(),
                score: Some(*score),
                threshold: Some(threshold),
                evidence: Some(r#"{"max": 9}"#.into()),
            });
        }
        all
    }

    #[test]
    fn whole_numbers_have_a_column_each() {
        let histogram = scored(&[(3.0, Judgement::Drop), (8.0, Judgement::Keep), (8.0, Judgement::Keep)], 6.0).histogram();
        assert_eq!((histogram.low, histogram.width, histogram.columns.len()), (2.5, 1.0, 7));
        assert_eq!((histogram.columns[0], histogram.columns[5]), ([0, 1, 0], [2, 0, 0]));
        assert_eq!(histogram.thresholds, [6.0, 9.0]);
    }

    #[test]
    fn every_score_and_threshold_lies_in_a_column() {
        let scores = [(0.013, Judgement::Keep), (0.77, Judgement::Drop), (0.5, Judgement::Unjudged), (-0.2, Judgement::Drop)];
        let histogram = scored(&scores, 0.86).histogram();
        let end = histogram.low + histogram.width * histogram.columns.len() as f64;
        assert!(histogram.low <= -0.2 && end >= 9.0, "{histogram:?}");
        assert_eq!(histogram.columns.iter().flatten().sum::<u64>(), 4);
        assert_eq!(scored(&[(0.4, Judgement::Keep)], f64::NAN).histogram().rows, 1);
    }

    #[test]
    fn odd_numbers_do_no_harm() {
        let mut all = scored(&[(f64::INFINITY, Judgement::Keep)], 1.0);
        assert!(all.kept.is_empty());
        all.kept = vec![(-3e30, Judgement::Keep), (3e30, Judgement::Drop)];
        let columns = all.histogram().columns;
        assert!(columns.len() <= 2 * COLUMNS && columns.iter().flatten().sum::<u64>() == 2, "{}", columns.len());
    }
}

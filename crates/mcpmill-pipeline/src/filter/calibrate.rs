//! Where the thresholds of `embedding-similarity` come from: labelled pairs of requests and descriptions, half of them to
//! choose by and half to report on.

use std::collections::BTreeMap;

use mcpmill_core::{
    edge::{EmbedError, RecordedEmbedder},
    share::Share,
};
use serde::{Deserialize, Serialize};

use super::embedding_similarity::{Bounds, Similarity, texts};
use crate::ask::seed_of;

/// Rows of each label that a half has at least: a threshold chosen by fewer is chance.
const LEAST: usize = 20;
/// Thresholds are tried in steps of a hundredth: more digits than that no set of this size can tell apart.
const STEPS: i32 = 100;

/// What a request is to the tool it stands beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Label {
    /// One that a person would make of it.
    Good,
    /// The description, put as a request.
    Copy,
    /// About something else.
    Other,
}

/// One labelled row.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The tool: all rows of one are in one half.
    pub tool: String,
    /// Its description.
    pub description: String,
    /// The request.
    pub instruction: String,
    /// What it is to the tool.
    pub label: Label,
    /// The language of the request.
    pub language: String,
    /// In what way it is what it is, such as `reordered`.
    #[serde(default)]
    pub form: Option<String>,
}

/// Labelled rows.
pub struct Pairs(Vec<Pair>);

impl Pairs {
    /// Reads rows, one JSON object a line.
    ///
    /// # Errors
    /// A line that cannot be read, or too few rows of a label, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = |(at, line): (usize, &str)| {
            let pair: Pair = serde_json::from_str(line).map_err(|e| format!("line {}: {e}", at + 1))?;
            if pair.description.trim().is_empty() { Err(format!("line {}: no description", at + 1)) } else { Ok(pair) }
        };
        let pairs = lines.map(read).collect::<Result<Vec<Pair>, String>>()?;
        for label in [Label::Good, Label::Copy, Label::Other] {
            for held_out in [false, true] {
                let found = pairs.iter().filter(|pair| pair.label == label && is_held_out(&pair.tool) == held_out).count();
                if found < LEAST {
                    return Err(format!("one half has {found} rows of label {label:?}, {LEAST} are wanted"));
                }
            }
        }
        Ok(Self(pairs))
    }

    /// The rows.
    pub fn rows(&self) -> &[Pair] {
        &self.0
    }

    /// Finds the thresholds of an embedding model that lose at most a share of `bound` of the good rows each.
    ///
    /// # Errors
    /// As [`RecordedEmbedder::embed`].
    pub async fn calibrate(&self, embedder: &RecordedEmbedder, bound: f64) -> Result<Calibration, EmbedError> {
        let said = self.0.iter().map(|pair| pair.instruction.as_str());
        embedder.embed_ahead(said.chain(self.0.iter().flat_map(|pair| texts(&pair.description)))).await?;
        let mut scored = Vec::with_capacity(self.0.len());
        for pair in &self.0 {
            if let Some(similar) = Similarity::of(&pair.instruction, &pair.description, embedder).await? {
                scored.push(Scored { pair, similar });
            }
        }
        Ok(Calibration::of(embedder.model(), &scored, bound))
    }
}

/// Half of the tools, by their names: the same in every run.
fn is_held_out(tool: &str) -> bool {
    seed_of(tool) % 2 == 1
}

/// A row and how similar it is.
struct Scored<'a> {
    pair: &'a Pair,
    similar: Similarity,
}

/// One of the two thresholds.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// Above it a request is a copy.
    Max,
    /// Below it a request is about something else.
    Min,
}

impl Side {
    /// Whether a row is dropped at a threshold.
    fn drops(self, row: &Scored<'_>, threshold: f64) -> bool {
        match self {
            Self::Max => row.similar.highest() > threshold,
            Self::Min => row.similar.whole < threshold,
        }
    }

    /// What it is there to drop.
    fn label(self) -> Label {
        if self == Self::Max { Label::Copy } else { Label::Other }
    }
}

/// What an embedding model makes of the labelled rows.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    /// The model.
    pub model: String,
    /// The largest share of good rows that each threshold may lose, on the rows it is chosen by.
    pub bound: f64,
    /// How the similarities of each label lie: those held against `max` for good rows and copies, those held against
    /// `min` for the others.
    pub by_label: BTreeMap<Label, Spread>,
    /// The thresholds.
    pub bounds: Bounds,
    /// What `max` does.
    pub max: Told,
    /// What `min` does.
    pub min: Told,
    /// What MCP-Flow's `max` would do with this model.
    pub paper: Told,
}

/// Quantiles.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
    /// Rows.
    pub rows: usize,
    /// The smallest, the 5th, 25th, 50th, 75th and 95th percentile, and the largest.
    pub quantiles: [f64; 7],
}

/// What a threshold does.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Told {
    /// The threshold.
    pub threshold: f64,
    /// The rows it was chosen by.
    pub chosen_by: Marks,
    /// The others.
    pub held_out: Marks,
}

/// How well a threshold tells rows apart.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Marks {
    /// Bad rows that are dropped.
    pub recall: Share,
    /// Good rows that are.
    pub false_rejects: Share,
}

impl Marks {
    fn of<'a, 'b: 'a>(rows: impl Iterator<Item = &'a Scored<'b>>, side: Side, threshold: f64) -> Self {
        let (mut bad, mut good) = ((0, 0), (0, 0));
        for row in rows {
            let count = match row.pair.label {
                Label::Good => &mut good,
                label if label == side.label() => &mut bad,
                _ => continue,
            };
            count.0 += u64::from(side.drops(row, threshold));
            count.1 += 1;
        }
        Self { recall: Share::of(bad.0, bad.1), false_rejects: Share::of(good.0, good.1) }
    }

    /// Youden's J.
    fn youden(&self) -> f64 {
        self.recall.value - self.false_rejects.value
    }
}

/// The threshold of MCP-Flow, for mxbai-embed-large-v1.
const PAPER: f64 = 0.8;

impl Calibration {
    fn of(model: &str, rows: &[Scored<'_>], bound: f64) -> Self {
        let told = |side, threshold| Told {
            threshold,
            chosen_by: Marks::of(rows.iter().filter(|row| !is_held_out(&row.pair.tool)), side, threshold),
            held_out: Marks::of(rows.iter().filter(|row| is_held_out(&row.pair.tool)), side, threshold),
        };
        let [max, min] = [Side::Max, Side::Min].map(|side| told(side, best(rows, side, bound)));
        let paper = told(Side::Max, PAPER);
        let by_label = [Label::Good, Label::Copy, Label::Other].map(|label| (label, Spread::of(rows, label))).into();
        let bounds = Bounds { max: max.threshold, min: min.threshold };
        Self { model: model.to_owned(), bound, by_label, bounds, max, min, paper }
    }
}

/// The threshold with the largest J of those that lose no more good rows than the bound allows, on the rows that are not
/// held out; the middle one of several.
fn best(rows: &[Scored<'_>], side: Side, bound: f64) -> f64 {
    let mut equal: Vec<f64> = Vec::new();
    let mut highest = f64::NEG_INFINITY;
    for threshold in (-STEPS..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)) {
        let marks = Marks::of(rows.iter().filter(|row| !is_held_out(&row.pair.tool)), side, threshold);
        if marks.false_rejects.value > bound || marks.youden() < highest {
            continue;
        }
        if marks.youden() > highest {
            (highest, equal) = (marks.youden(), Vec::new());
        }
        equal.push(threshold);
    }
    // At one end of the scale nothing is dropped, so that there always is one.
    equal.get(equal.len() / 2).copied().unwrap_or_default()
}

impl Spread {
    fn of(rows: &[Scored<'_>], label: Label) -> Self {
        let value = |row: &Scored<'_>| if label == Label::Other { row.similar.whole } else { row.similar.highest() };
        let mut values: Vec<f64> = rows.iter().filter(|row| row.pair.label == label).map(value).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1) as f64;
        let at = |share: f64| values.get((share * last).round() as usize).copied().unwrap_or_default();
        Self { rows: values.len(), quantiles: [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0].map(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(n: usize, label: Label) -> Pair {
        Pair {
            tool: format!("tool-{}", n / 3),
            description: "Does it".into(),
            instruction: format!("do {n}"),
            label,
            language: "en".into(),
            form: None,
        }
    }

    /// Rows whose similarities lie around a middle of their label.
    fn pairs(count: usize) -> Vec<Pair> {
        let labels = [Label::Good, Label::Copy, Label::Other];
        (0..count).map(|n| pair(n, labels[n % 3])).collect()
    }

    fn scored(pairs: &[Pair], middle: impl Fn(Label) -> f64) -> Vec<Scored<'_>> {
        let around = |n: usize| (n % 7) as f64 * 0.01 - 0.03;
        let similar = |n: usize, pair: &Pair| {
            let whole = middle(pair.label) + around(n);
            Similarity { whole, first: whole }
        };
        pairs.iter().enumerate().map(|(n, pair)| Scored { pair, similar: similar(n, pair) }).collect()
    }

    #[test]
    fn what_can_be_told_apart_is_told_apart_on_both_halves() {
        let pairs = pairs(400);
        let middle = |label| match label {
            Label::Good => 0.4,
            Label::Copy => 0.8,
            Label::Other => 0.0,
        };
        let found = Calibration::of("m", &scored(&pairs, middle), 0.05);
        let Bounds { max, min } = found.bounds;
        assert!((0.43..0.77).contains(&max) && (0.03..=0.37).contains(&min), "{max} {min}");
        for told in [found.max, found.min] {
            for marks in [told.chosen_by, told.held_out] {
                assert_eq!((marks.recall.value, marks.false_rejects.value), (1.0, 0.0), "{told:?}");
                assert!(marks.recall.n > 20);
            }
        }
        assert!((0.55..=0.65).contains(&max), "the middle of what separates them: {max}");
        assert_eq!(found.by_label[&Label::Copy].quantiles[3], 0.8);
    }

    #[test]
    fn no_more_good_rows_are_lost_than_the_bound_allows() {
        let pairs = pairs(600);
        // Copies lie among the good rows, a little higher.
        let middle = |label| if label == Label::Copy { 0.42 } else { 0.4 };
        let rows = scored(&pairs, middle);
        for bound in [0.0, 0.1, 1.0] {
            let told = Calibration::of("m", &rows, bound).max;
            assert!(told.chosen_by.false_rejects.value <= bound, "{bound}: {told:?}");
        }
        let [strict, loose] = [0.0, 1.0].map(|bound| Calibration::of("m", &rows, bound).max.chosen_by);
        assert!(strict.youden() < loose.youden() && strict.recall.value > 0.0, "{strict:?} {loose:?}");
    }

    #[test]
    fn too_few_rows_calibrate_nothing() {
        let line = |pair: &Pair| {
            serde_json::json!({"tool": pair.tool, "description": pair.description, "instruction": pair.instruction,
                "label": pair.label, "language": pair.language})
            .to_string()
        };
        let text = |count: usize| pairs(count).iter().map(line).collect::<Vec<_>>().join("\n");
        assert_eq!(Pairs::parse(&text(300)).unwrap().rows().len(), 300);
        assert!(Pairs::parse(&text(40)).err().unwrap().contains("20 are wanted"));
        let odd = Pairs::parse(&(text(300) + "\n{\"tool\": 1}")).err().unwrap();
        assert!(odd.contains("line 301"), "{odd}");
    }
}

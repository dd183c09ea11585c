//! How each filter did: its yield, its exam, what it would drop alone, what it says like others, and its scores.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use mcpmill_core::{
    record::{Exam, ExamEnd, Judgement, Verdict},
    share::Share,
};
use mcpmill_pipeline::filter::is_audited;
use mcpmill_store::run_dir::StageInfo;
use serde::Serialize;

use super::{each, scores::Scores};
use crate::error::Failure;

/// The figures of one filter in one stage.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// The folder of the stage.
    pub stage: String,
    /// The filter, by its name in the chain.
    pub filter: String,
    /// Rows it let pass.
    pub keep: u64,
    /// Rows it dropped.
    pub drop: u64,
    /// Rows it could not judge.
    pub unjudged: u64,
    /// Of the rows that all filters judged: those that it drops and no other does (its marginal kill).
    pub alone: Share,
    /// Of the rows that all filters judged and it drops: those that another drops too, by the other.
    pub overlap: BTreeMap<String, Share>,
    /// How it did on planted rows.
    pub exam: Option<Exam>,
    /// Its scores and what they were compared with.
    pub scores: Option<Scores>,
}

/// What is counted of a filter on the way.
#[derive(Default)]
struct Count {
    by: BTreeMap<Judgement3, u64>,
    alone: u64,
    audited_drops: u64,
    with: BTreeMap<String, u64>,
    scores: Scores,
}

/// A judgement in the order of tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Judgement3 {
    Keep,
    Drop,
    Unjudged,
}

impl From<Judgement> for Judgement3 {
    fn from(judgement: Judgement) -> Self {
        match judgement {
            Judgement::Keep => Self::Keep,
            Judgement::Drop => Self::Drop,
            Judgement::Unjudged => Self::Unjudged,
        }
    }
}

/// Counts the verdicts of a stage, row by row.
#[derive(Default)]
struct Counting {
    counts: BTreeMap<String, Count>,
    /// Filters in the order in which a row met them; the longest that was seen.
    order: Vec<String>,
    audit: f64,
    audited: u64,
}

/// The figures of all filters of a stage, in the order of its chain.
///
/// # Errors
/// Its verdicts cannot be read.
pub fn figures(folder: &Path, info: &StageInfo) -> Result<Vec<Figures>, Failure> {
    let mut counting = Counting { audit: info.audit.unwrap_or_default(), ..Counting::default() };
    let mut row: Vec<Verdict> = Vec::new();
    each(folder, |verdict: Verdict| {
        if row.last().is_some_and(|last| last.subject_id != verdict.subject_id) {
            counting.row(&std::mem::take(&mut row));
        }
        row.push(verdict);
    })?;
    counting.row(&row);
    Ok(counting.finish(info))
}

impl Counting {
    /// The verdicts on one row.
    fn row(&mut self, verdicts: &[Verdict]) {
        let Some(first) = verdicts.first() else { return };
        if verdicts.len() > self.order.len() {
            self.order = verdicts.iter().map(|verdict| verdict.filter.clone()).collect();
        }
        for verdict in verdicts {
            let count = self.counts.entry(verdict.filter.clone()).or_default();
            *count.by.entry(verdict.judgement.into()).or_default() += 1;
            count.scores.add(verdict);
        }
        if !is_audited(&first.subject_id, self.audit) {
            return;
        }
        self.audited += 1;
        let drops: BTreeSet<&str> =
            verdicts.iter().filter(|v| v.judgement == Judgement::Drop).map(|v| v.filter.as_str()).collect();
        for filter in &drops {
            let count = self.counts.entry((*filter).to_owned()).or_default();
            count.audited_drops += 1;
            count.alone += u64::from(drops.len() == 1);
            for other in drops.iter().filter(|other| *other != filter) {
                *count.with.entry((*other).to_owned()).or_default() += 1;
            }
        }
    }

    fn finish(mut self, info: &StageInfo) -> Vec<Figures> {
        let known: BTreeSet<&String> = self.order.iter().collect();
        let late: Vec<String> = self.counts.keys().filter(|name| !known.contains(name)).cloned().collect();
        self.order.extend(late);
        let exams = info.exams.as_deref().unwrap_or_default();
        // A step that saw no row, since those before it dropped all, still has its exam.
        let unseen = exams.iter().map(|exam| &exam.filter).filter(|name| !self.order.contains(name)).cloned();
        let names: Vec<String> = self.order.iter().cloned().chain(unseen.collect::<Vec<_>>()).collect();
        let figures = |filter: String| {
            let count = self.counts.remove(&filter).unwrap_or_default();
            let of = |judgement| count.by.get(&judgement).copied().unwrap_or_default();
            let overlap = count.with.iter().map(|(other, both)| (other.clone(), Share::of(*both, count.audited_drops)));
            Figures {
                stage: info.stage.clone(),
                keep: of(Judgement3::Keep),
                drop: of(Judgement3::Drop),
                unjudged: of(Judgement3::Unjudged),
                alone: Share::of(count.alone, self.audited),
                overlap: overlap.collect(),
                exam: exams.iter().find(|exam| exam.filter == filter).cloned(),
                scores: count.scores.some(),
                filter,
            }
        };
        names.into_iter().map(figures).collect()
    }
}

/// What a reader has to know before anything else of these filters.
pub fn alerts(figures: &[Figures]) -> Vec<String> {
    let mut alerts = Vec::new();
    for Figures { stage, filter, unjudged, exam, .. } in figures {
        let rows = || if *unjudged == 0 { String::new() } else { format!(" {unjudged} rows are unjudged.") };
        match exam {
            Some(Exam { end: ExamEnd::Failed, recall, false_rejects, .. }) => alerts.push(format!(
                "{stage}: {filter} failed its exam and is not believed: it caught {} of {} planted bad rows and dropped {} of {} \
                 good ones.{}",
                recall.hits,
                recall.n,
                false_rejects.hits,
                false_rejects.n,
                rows()
            )),
            Some(Exam { end: ExamEnd::NotTaken, cause, .. }) => alerts.push(format!(
                "{stage}: the exam of {filter} could not be taken: {}.{}",
                cause.as_deref().unwrap_or("no cause is noted"),
                rows()
            )),
            _ if *unjudged > 0 => alerts.push(format!("{stage}: {filter} could not judge {unjudged} rows.")),
            _ => {}
        }
    }
    alerts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(row: &str, filter: &str, judgement: Judgement) -> Verdict {
        Verdict {
            subject_id: row.into(),
            filter: filter.into(),
            judgement,
            reason: "because".into(),
            score: None,
            threshold: None,
            evidence: None,
        }
    }

    fn info() -> StageInfo {
        serde_json::from_value(serde_json::json!({
            "stage": "4-filter", "fingerprint": "f", "input_rows": 0, "output_rows": 0, "repeated": 0,
            "outcomes": { "kept": 0, "dropped": 0, "failed": 0, "skipped": 0 },
        }))
        .unwrap()
    }

    #[test]
    fn what_a_filter_drops_alone_and_with_others_is_counted_on_rows_that_all_judged() {
        let (keep, drop) = (Judgement::Keep, Judgement::Drop);
        let mut counting = Counting { audit: 1.0, ..Counting::default() };
        for (row, a, b) in [("1", drop, keep), ("2", drop, drop), ("3", keep, drop), ("4", keep, keep)] {
            counting.row(&[verdict(row, "zeta", a), verdict(row, "alpha", b)]);
        }
        let figures = counting.finish(&info());
        assert_eq!(figures.iter().map(|f| f.filter.as_str()).collect::<Vec<_>>(), ["zeta", "alpha"], "in the chain's order");
        assert_eq!((figures[0].alone.hits, figures[0].alone.n), (1, 4));
        assert_eq!((figures[0].overlap["alpha"].hits, figures[0].overlap["alpha"].n), (1, 2));

        let mut counting = Counting::default();
        counting.row(&[verdict("1", "zeta", drop)]);
        let figures = counting.finish(&info());
        assert_eq!((figures[0].drop, figures[0].alone.n), (1, 0), "nothing is known of rows that not all of them judged");
    }
}

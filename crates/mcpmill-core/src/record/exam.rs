//! How a filter did on rows that were planted for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::share::Share;

/// The exam of one filter: rows that it must drop, among rows that it must keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exam {
    /// The filter, by its name in the chain.
    pub filter: String,
    /// How it came out.
    pub end: ExamEnd,
    /// In words, where it did not pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Whether the chain lets the run go on to a good end although the filter failed.
    #[serde(default)]
    pub tolerated: bool,
    /// Planted bad rows that it caught, of those it judged.
    pub recall: Share,
    /// Good rows that it dropped, of those it judged.
    pub false_rejects: Share,
    /// Ends of the 95 % interval of recall less false rejects; at or below 0 is what chance does.
    pub better_than_chance: (f64, f64),
    /// Planted rows that it could not judge.
    pub unjudged: u64,
    /// Bad rows caught, by what is wrong with them.
    pub by_plant: BTreeMap<String, Share>,
    /// Names of the bad rows that it let pass.
    #[serde(default)]
    pub missed: Vec<String>,
    /// Names of the good rows that it dropped.
    #[serde(default)]
    pub rejected: Vec<String>,
}

/// How an exam came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExamEnd {
    /// The filter tells bad rows from good ones better than chance does.
    Passed,
    /// It does not, so that its verdicts are worth nothing.
    Failed,
    /// It could not be asked: nothing is known.
    NotTaken,
}

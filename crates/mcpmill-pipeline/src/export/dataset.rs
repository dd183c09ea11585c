//! Dataset declarations: what is published.

use mcpmill_core::record::{Judgement, Verdict};
use serde::Deserialize;
use thiserror::Error;

use super::Shares;
use crate::filter::failed_exam;

/// A dataset to be published.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// Its name: the folder's name.
    #[serde(skip)]
    pub name: String,
    /// One line for people.
    pub title: String,
    /// SPDX id of the collection; every row names its server's licence besides.
    pub licence: String,
    /// SPDX expressions of servers whose rows are taken.
    pub licences: Vec<String>,
    /// Ends of live runs that are taken (`ok`, `not_run`, `refused`, `failed`, `unjudged`).
    pub live: Vec<String>,
    /// Which rows are taken that a filter could not judge.
    pub allow_unjudged: Unjudged,
    /// Tools offered in a row, the called one included.
    pub candidates: usize,
    /// Rows of one file at most.
    pub rows_per_file: usize,
    /// Megabytes of text in one file at most, before compression, but for a single row that is larger.
    #[serde(default = "megabytes")]
    pub mb_per_file: u64,
    /// How much is held out.
    #[serde(rename = "split")]
    pub shares: Shares,
}

/// Rows that a filter could not judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "UnjudgedText")]
pub enum Unjudged {
    /// None is taken.
    None,
    /// Those are taken that only filters left open which failed their exam, as if these were not in the chain.
    FailedExam,
    /// All are taken.
    All,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum UnjudgedText {
    Any(bool),
    Word(String),
}

impl TryFrom<UnjudgedText> for Unjudged {
    type Error = String;

    fn try_from(text: UnjudgedText) -> Result<Self, String> {
        match text {
            UnjudgedText::Any(false) => Ok(Self::None),
            UnjudgedText::Any(true) => Ok(Self::All),
            UnjudgedText::Word(word) if word == "failed-exam" => Ok(Self::FailedExam),
            UnjudgedText::Word(word) => Err(format!("`allow_unjudged` is false, \"failed-exam\" or true, not \"{word}\"")),
        }
    }
}

impl Unjudged {
    /// Whether a row with this verdict stays out.
    pub fn keeps_out(self, verdict: &Verdict) -> bool {
        verdict.judgement == Judgement::Unjudged
            && match self {
                Self::None => true,
                Self::FailedExam => !failed_exam(verdict),
                Self::All => false,
            }
    }
}

/// What loaders and the hub take with ease.
fn megabytes() -> u64 {
    500
}

/// A dataset file that cannot be used.
#[derive(Debug, Error)]
#[error("failed to read dataset `{name}`: {detail}")]
pub struct DatasetError {
    /// The dataset.
    pub name: String,
    /// What is wrong with it.
    pub detail: String,
}

impl Dataset {
    /// Reads a `dataset.toml`.
    ///
    /// # Errors
    /// It is no TOML, or a field is missing, unknown or out of range.
    pub fn parse(name: &str, text: &str) -> Result<Self, DatasetError> {
        let fail = |detail: String| DatasetError { name: name.to_owned(), detail };
        let mut dataset: Self = toml::from_str(text).map_err(|e| fail(e.message().to_owned()))?;
        dataset.name = name.to_owned();
        let Shares { unseen_server, unseen_tool, seen_tool } = dataset.shares;
        if [unseen_server, unseen_tool, seen_tool].iter().any(|s| !(0.0..1.0).contains(s)) {
            return Err(fail("the shares of `[split]` lie between 0 and 1".into()));
        }
        if dataset.candidates == 0 || dataset.rows_per_file == 0 || dataset.mb_per_file == 0 {
            return Err(fail("`candidates`, `rows_per_file` and `mb_per_file` are at least 1".into()));
        }
        let known = ["ok", "not_run", "refused", "failed", "unjudged"];
        match dataset.live.iter().find(|l| !known.contains(&l.as_str())) {
            Some(odd) => Err(fail(format!("`live` knows {}, not `{odd}`", known.join(", ")))),
            None => Ok(dataset),
        }
    }
}

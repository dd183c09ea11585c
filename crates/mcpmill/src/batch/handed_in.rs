//! Batches that were handed in: each once, and waited for.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::sidecar::{Known, append, folder, lines, runs_in};

/// What a run asked in a file of questions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// What names the model.
    pub model: String,
    /// The file as the run named it, wherever it is now.
    #[serde(default)]
    pub questions: String,
    /// Counts up each time the stage puts questions off.
    #[serde(default)]
    pub round: u32,
}

/// A batch that was handed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// The provider's name of it.
    pub id: String,
    /// The file.
    pub file: String,
    /// SHA-256 of what was in it.
    #[serde(default)]
    pub hash: String,
    /// Whose questions.
    #[serde(flatten)]
    pub asked: Asked,
}

impl Submitted {
    /// Whether this one asks what `later` asks. A question that came back stands in a file of a later round, which may
    /// be the same by its bytes.
    fn is_same(&self, later: &Self) -> bool {
        let at = |file: &str| std::path::absolute(file).unwrap_or_else(|_| file.into());
        let same_file = at(&self.file) == at(&later.file);
        if self.hash.is_empty() {
            same_file
        } else {
            self.hash == later.hash && (same_file || self.asked.round == later.asked.round)
        }
    }
}

/// Notes a batch that was handed in for a run.
///
/// # Errors
/// The note cannot be written.
pub fn submitted(run: &Path, batch: &Submitted) -> io::Result<()> {
    append(&noted(run), batch)
}

fn noted(run: &Path) -> PathBuf {
    folder(run).join("submitted.jsonl")
}

fn batches(run: &Path) -> io::Result<Vec<Submitted>> {
    let mut all = Vec::new();
    lines(&noted(run), |_, batch| all.push(batch))?;
    Ok(all)
}

/// The batches of all runs, each with its run.
///
/// # Errors
/// A folder cannot be read.
pub fn submitted_batches(runs: &Path) -> io::Result<Vec<(PathBuf, Submitted)>> {
    let mut all = Vec::new();
    for run in runs_in(runs)? {
        all.extend(batches(&run)?.into_iter().map(|batch| (run.clone(), batch)));
    }
    Ok(all)
}

/// The names of batches of a run that ask what `later` asks, the newest first.
///
/// # Errors
/// The notes of the run cannot be read.
pub fn handed_in_before(run: &Path, later: &Submitted) -> io::Result<Vec<String>> {
    let all = batches(run)?.into_iter().rev();
    Ok(all.filter(|batch| batch.is_same(later)).map(|batch| batch.id).collect())
}

/// The names of batches of a run with questions that wait and whose answers `answered` does not know by their key.
///
/// # Errors
/// A file cannot be read, or what `answered` says.
pub fn unanswered(run: &Path, answered: impl Fn(&str) -> io::Result<bool>) -> io::Result<Vec<String>> {
    let mut left = batches(run)?;
    let mut found: Vec<String> = Vec::new();
    if left.is_empty() {
        return Ok(found);
    }
    for (key, kept) in Known::read(&folder(run))?.waiting {
        let holds = |batch: &Submitted| match batch.asked.round {
            // Of an older version, which noted less.
            0 => batch.file == kept.file,
            round => (round, &batch.asked.questions) == (kept.round, &kept.file),
        };
        if left.iter().any(holds) && !answered(&key)? {
            let (those, others) = left.into_iter().partition(holds);
            left = others;
            found.extend(those.into_iter().map(|batch: Submitted| batch.id));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_by_what_is_in_it_and_the_round_that_asked() {
        let batch = |file: &str, hash: &str, round| Submitted {
            id: "b".into(),
            file: file.into(),
            hash: hash.into(),
            asked: Asked { round, ..Asked::default() },
        };
        let first = batch("a.jsonl", "1", 1);
        assert!(first.is_same(&batch("./a.jsonl", "1", 1)) && first.is_same(&batch("moved.jsonl", "1", 1)));
        assert!(first.is_same(&batch("a.jsonl", "1", 2)), "an old file after a new round was written");
        assert!(!first.is_same(&batch("a-2.jsonl", "1", 2)), "all came back and are asked again");
        assert!(!first.is_same(&batch("a.jsonl", "2", 1)));
        assert!(batch("a.jsonl", "", 0).is_same(&first) && !batch("b.jsonl", "", 0).is_same(&first));
        let old: Submitted = serde_json::from_str(r#"{"id":"b","model":"m","file":"a.jsonl"}"#).unwrap();
        assert_eq!((old.asked.model.as_str(), old.asked.round, old.hash.as_str()), ("m", 0, ""));
    }
}

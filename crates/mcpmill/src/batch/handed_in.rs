//! Batches that were handed in: each once, and waited for.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::sidecar::{Known, append, files, folder, lines, runs_in};

/// Characters of a key that tell it from others: 64 bits of a hash.
const TELLING: usize = 16;

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
    /// The questions of the run in it, each by the start of its key; none were noted by older versions.
    #[serde(default, skip_serializing_if = "HashSet::is_empty")]
    pub keys: HashSet<String>,
}

impl Submitted {
    /// Whether this one holds a question as it was last written, to `file` in this round. One that came back since stands
    /// in a file of a later round.
    fn holds(&self, key: &str, file: &str, round: u32) -> bool {
        match self.asked.round {
            // Of an older version, which noted less.
            0 => self.file == file,
            own if self.keys.is_empty() => (own, self.asked.questions.as_str()) == (round, file),
            own => own >= round && self.keys.contains(&telling(key)),
        }
    }

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

/// The start of a key.
fn telling(key: &str) -> String {
    key.chars().take(TELLING).collect()
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

/// Questions of a file that a run has asked.
#[derive(Debug)]
pub struct Share {
    /// The run's folder.
    pub run: PathBuf,
    /// What is noted of the file: the last round that asked one of them.
    pub asked: Asked,
    /// By key the file and round that each was last written to.
    questions: HashMap<String, (String, u32)>,
}

/// A question in so far as it says where it stands.
#[derive(Deserialize)]
struct Written {
    key: String,
    model: String,
    file: String,
    round: u32,
}

impl Share {
    /// The shares of all runs in the questions with these keys.
    ///
    /// # Errors
    /// A folder or file cannot be read.
    pub fn all(runs: &Path, keys: &HashSet<String>) -> io::Result<Vec<Self>> {
        let mut shares = Vec::new();
        for run in runs_in(runs)? {
            let mut share = Self { run, asked: Asked::default(), questions: HashMap::new() };
            for path in files(&folder(&share.run))? {
                lines(&path, |_, Written { key, model, file, round }| {
                    if !keys.contains(&key) {
                        return;
                    }
                    if round >= share.asked.round {
                        share.asked = Asked { model, questions: file.clone(), round };
                    }
                    share.questions.insert(key, (file, round));
                })?;
            }
            if !share.questions.is_empty() {
                shares.push(share);
            }
        }
        Ok(shares)
    }

    /// The keys of the questions.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.questions.keys()
    }

    /// What is noted when `file`, with this hash, is handed in as the batch `id`.
    pub fn submitted(&self, id: &str, file: &Path, hash: &str) -> Submitted {
        let keys = self.keys().map(|key| telling(key)).collect();
        let (file, hash) = (file.display().to_string(), hash.to_owned());
        Submitted { id: id.to_owned(), file, hash, asked: self.asked.clone(), keys }
    }

    /// The batches of the run that hold some of the questions, or ask what `later` asks: each by its name with the keys of
    /// those, the newest first.
    ///
    /// # Errors
    /// The notes of the run cannot be read.
    pub fn handed_in(&self, later: &Submitted) -> io::Result<Vec<(String, HashSet<&str>)>> {
        let mut found = Vec::new();
        for batch in batches(&self.run)?.into_iter().rev() {
            let same = batch.is_same(later);
            let held = self.questions.iter().filter(|(key, (file, round))| same || batch.holds(key, file, *round));
            let held: HashSet<&str> = held.map(|(key, _)| key.as_str()).collect();
            if !held.is_empty() {
                found.push((batch.id, held));
            }
        }
        Ok(found)
    }
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
        let holds = |batch: &Submitted| batch.holds(&key, &kept.file, kept.round);
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
            keys: HashSet::new(),
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
    #[test]
    fn a_batch_holds_the_questions_that_were_in_it_until_they_come_back() {
        let runs = tempfile::tempdir().unwrap();
        let run = runs.path().join("r");
        std::fs::create_dir_all(folder(&run)).unwrap();
        std::fs::write(run.join("run.json"), "{}").unwrap();
        let write = |number: u32, keys: &[&str]| {
            let file = format!("a-{number}.jsonl");
            let path = super::super::sidecar::questions(&folder(&run), "3-generate", number);
            for key in keys {
                append(&path, &serde_json::json!({"key": key, "model": "m", "file": file, "round": number})).unwrap();
            }
        };
        let share = |keys: &[&str]| Share::all(runs.path(), &keys.iter().map(|key| (*key).to_owned()).collect()).unwrap().pop();
        let held = |keys: &[&str]| {
            let share = share(keys).unwrap();
            let found = share.handed_in(&share.submitted("", Path::new("cut.jsonl"), "2")).unwrap();
            found.into_iter().map(|(id, keys)| (id, keys.len())).collect::<Vec<_>>()
        };
        write(1, &["k1", "k2", "k3"]);
        assert!(share(&["other"]).is_none() && held(&["k1"]).is_empty());
        submitted(&run, &share(&["k1", "k2"]).unwrap().submitted("b1", Path::new("a-1.jsonl"), "1")).unwrap();
        assert_eq!(held(&["k1", "k2", "k3"]), [("b1".to_owned(), 2)]);
        assert!(held(&["k3"]).is_empty());
        // One came back and is asked again.
        write(2, &["k2"]);
        assert_eq!((held(&["k1", "k2"]), held(&["k2"])), (vec![("b1".to_owned(), 1)], vec![]));
        let old = Submitted { keys: HashSet::new(), ..share(&["k2"]).unwrap().submitted("b2", Path::new("a-2.jsonl"), "3") };
        submitted(&run, &old).unwrap();
        assert_eq!(held(&["k2"]), [("b2".to_owned(), 1)], "of an older version");
    }
}

//! The folder of a stage: whose rows it holds, and whether they are complete.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use mcpmill_core::{
    account::Accounts,
    event::Summary,
    record::{Exam, Repairs, Usage},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{RunDirError, read_json, stage_info};
use crate::{artifact::Table, durable};

/// A stage as it was found.
#[derive(Clone, Debug, PartialEq)]
pub enum StageState {
    /// Complete, of the same fingerprint: nothing is to do.
    Done(Box<StageInfo>),
    /// To be worked on, perhaps with rows of an earlier attempt.
    Open(StageDir),
}

/// What `stage.json` says. It is written last, so it is there if and only if the stage is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageInfo {
    /// The folder of the stage below its run.
    pub stage: String,
    /// Hash over all that its rows depend on.
    pub fingerprint: String,
    /// Rows that came in: the sum of `outcomes`.
    pub input_rows: u64,
    /// What became of them.
    pub outcomes: OutcomeCounts,
    /// Rows written.
    pub output_rows: u64,
    /// Calls made again because a kill cut off the first.
    pub repeated: u64,
    /// Tokens, and `cost` in US dollars: those of `accounts` where there are some, else those of its rows.
    #[serde(flatten)]
    pub usage: Usage,
    /// Replies that were repaired, by prompt and rule.
    #[serde(default, skip_serializing_if = "Repairs::is_empty")]
    pub repairs: Repairs,
    /// Steps of evolution that came to nothing, by direction.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub evolve_failed: BTreeMap<String, u64>,
    /// All its calls by account, those of rows that were tried again or cut off included.
    #[serde(default, skip_serializing_if = "Accounts::is_empty")]
    pub accounts: Accounts,
    /// How much the rows differ, where the stage tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diversity: Option<serde_json::Value>,
    /// How its filters did on planted rows; absent for a stage without filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exams: Option<Vec<Exam>>,
    /// The share of its rows that all filters judged, dropped or not; absent for a stage without filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<f64>,
    /// How often rows that a filter could not judge were judged again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rejudged: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Rows by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeCounts {
    /// Rows that went on.
    pub kept: u64,
    /// Rows taken out.
    pub dropped: u64,
    /// Rows that failed.
    pub failed: u64,
    /// Rows not tried.
    pub skipped: u64,
}

impl StageInfo {
    fn new(stage: &str, fingerprint: &str, summary: &Summary) -> Self {
        let Summary { input_rows, kept, dropped, failed, skipped, output_rows, repeated, usage, .. } = *summary;
        Self {
            stage: stage.to_owned(),
            fingerprint: fingerprint.to_owned(),
            input_rows,
            outcomes: OutcomeCounts { kept, dropped, failed, skipped },
            output_rows,
            repeated,
            usage,
            repairs: summary.repairs.clone(),
            evolve_failed: summary.evolve_failed.clone(),
            accounts: summary.accounts.clone(),
            diversity: None,
            exams: None,
            audit: None,
            rejudged: 0,
        }
    }

    /// Adds to the `stage.json` in `folder`, which must be there, how much the rows of the stage differ.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn describe(mut self, folder: &Path, diversity: serde_json::Value) -> Result<Self, RunDirError> {
        self.diversity = Some(diversity);
        self.rewrite(folder)
    }

    /// Adds to the `stage.json` in `folder`, which must be there, how the filters did on planted rows, the share of rows
    /// that all of them judged, and how often the stage was judged again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn examine(mut self, folder: &Path, exams: Vec<Exam>, audit: f64, rejudged: u32) -> Result<Self, RunDirError> {
        (self.exams, self.audit, self.rejudged) = (Some(exams), Some(audit), rejudged);
        self.rewrite(folder)
    }

    fn rewrite(self, folder: &Path) -> Result<Self, RunDirError> {
        let path = folder.join(STAGE_FILE);
        let text = serde_json::to_string_pretty(&self).map_err(|e| RunDirError::new(&path, io::Error::other(e)))?;
        durable::write(&path, format!("{text}\n").as_bytes()).map_err(|e| RunDirError::new(&path, e))?;
        Ok(self)
    }

    /// The sums as the driver gave them.
    pub fn summary(&self) -> Summary {
        let OutcomeCounts { kept, dropped, failed, skipped } = self.outcomes;
        let Self { input_rows, output_rows, repeated, usage, .. } = *self;
        let (repairs, accounts, evolve_failed) = (self.repairs.clone(), self.accounts.clone(), self.evolve_failed.clone());
        Summary { input_rows, kept, dropped, failed, skipped, output_rows, repeated, usage, repairs, evolve_failed, accounts }
    }
}

/// The folder of a stage that is not done.
#[derive(Clone, Debug, PartialEq)]
pub struct StageDir {
    path: PathBuf,
    stage: String,
    fingerprint: String,
    superseded: Option<PathBuf>,
}

impl StageDir {
    /// Where an earlier folder of the stage, of another fingerprint, was moved just now.
    pub fn superseded(&self) -> Option<&Path> {
        self.superseded.as_deref()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Counts as they were when work on the stage began: `now` the first time, the same after a
    /// kill, so that what the stage adds to them is known whoever finishes it.
    ///
    /// # Errors
    /// The mark cannot be read or written.
    pub fn counts_at_begin<T: Serialize + DeserializeOwned>(&self, now: T) -> Result<T, RunDirError> {
        let mark = self.path.join(COUNTS_AT_BEGIN);
        if let Some(before) = read_json(&mark)? {
            return Ok(before);
        }
        let text = serde_json::to_vec(&now).map_err(|e| RunDirError::new(&mark, io::Error::other(e)))?;
        self.write(COUNTS_AT_BEGIN, &text)?;
        Ok(now)
    }

    /// The file of a table in it.
    pub fn table<T: Table>(&self) -> PathBuf {
        self.path.join(T::NAME).with_extension("parquet")
    }

    /// Replaces a file of the stage as a whole (`metrics.json`).
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RunDirError> {
        let path = self.path.join(name);
        durable::write(&path, bytes).map_err(|e| RunDirError::new(&path, e))
    }

    /// Writes `stage.json`: the stage is done. For stages with a journal, [`crate::journal::Journal::finish`] does it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&self, summary: &Summary) -> Result<StageInfo, RunDirError> {
        let info = StageInfo::new(&self.stage, &self.fingerprint, summary);
        let text = serde_json::to_string_pretty(&info).map_err(|e| RunDirError::new(&self.path, io::Error::other(e)))?;
        self.write(STAGE_FILE, format!("{text}\n").as_bytes())?;
        remove_parts(&self.path)?;
        Ok(info)
    }
}

/// Says that the stage is done.
const STAGE_FILE: &str = "stage.json";
/// Holds [`StageDir::counts_at_begin`] until the stage is done.
const COUNTS_AT_BEGIN: &str = "counts-at-begin.json";

/// See [`super::RunDir::stage`].
pub(super) fn open(path: &Path, stage: &str, fingerprint: &str) -> Result<StageState, RunDirError> {
    let fail = |e: io::Error| RunDirError::new(path, e);
    let mark = path.join("fingerprint");
    let begun = match fs::read_to_string(&mark) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        text => Some(text.map_err(|e| RunDirError::new(&mark, e))?),
    };
    let ours = begun.as_deref().map(str::trim_end) == Some(fingerprint);
    let info = stage_info(path)?;
    let mut dir =
        StageDir { path: path.to_owned(), stage: stage.to_owned(), fingerprint: fingerprint.to_owned(), superseded: None };
    match info {
        Some(info) if ours && info.fingerprint == fingerprint => {
            // A kill may have come between the end of the stage and the removal of its parts.
            remove_parts(path)?;
            return Ok(StageState::Done(Box::new(info)));
        }
        None if ours => return Ok(StageState::Open(dir)),
        _ => {}
    }
    if path.is_dir() && fs::read_dir(path).map_err(fail)?.next().is_some() {
        dir.superseded = supersede(path)?;
    }
    fs::create_dir_all(path).map_err(fail)?;
    durable::write(&mark, format!("{fingerprint}\n").as_bytes()).map_err(|e| RunDirError::new(&mark, e))?;
    Ok(StageState::Open(dir))
}

/// See [`super::RunDir::set_aside`].
pub(super) fn set_aside(path: &Path) -> Result<Option<PathBuf>, RunDirError> {
    if path.is_dir() { supersede(path) } else { Ok(None) }
}

/// Moves a folder aside, under the first free number.
fn supersede(path: &Path) -> Result<Option<PathBuf>, RunDirError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let free = (1..).map(|k: u32| path.with_file_name(format!("{name}.superseded-{k}"))).find(|to| !to.exists());
    let moved = free.as_ref().map_or(Ok(()), |to| fs::rename(path, to));
    moved.and_then(|()| durable::sync_folder_of(path)).map_err(|e| RunDirError::new(path, e))?;
    Ok(free)
}

/// Removes what only unfinished work needs.
fn remove_parts(stage: &Path) -> Result<(), RunDirError> {
    let (parts, count) = (stage.join("parts"), stage.join(COUNTS_AT_BEGIN));
    for (path, removed) in [(&parts, fs::remove_dir_all(&parts)), (&count, fs::remove_file(&count))] {
        if let Err(e) = removed
            && e.kind() != io::ErrorKind::NotFound
        {
            return Err(RunDirError::new(path, e));
        }
    }
    Ok(())
}

//! The directory of a run: one process at a time works in it, and what it holds says how far it came.
//!
//! ```text
//! runs/2026-11-29-3f9a1c20/
//!   run.json     id, fingerprint, version, state      config.toml   report.json
//!   lock         held while a process works here
//!   3-generate/  a stage, see `StageState`
//! ```

mod stage;

use std::{
    fs::{self, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use stage::{OutcomeCounts, StageDir, StageInfo, StageState};

use crate::durable;

/// Characters of the fingerprint that stand in a run's id.
const SHORT: usize = 8;

/// What `run.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The name of the directory.
    pub id: String,
    /// Counts up over all runs of one folder: the run with the highest is the latest.
    pub number: u64,
    /// Hash of the settings the run was started with.
    pub fingerprint: String,
    /// Version of mcpmill that started it.
    pub mcpmill: String,
    /// Whether it came to its end.
    pub state: RunState,
    /// What names the run in exchange stores, which folders share: two runs of one day with the same settings have the
    /// same id there. Runs of earlier versions have none, and go on under their id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchanges: Option<String>,
}

impl RunInfo {
    /// What names the run in exchange stores.
    pub fn store_id(&self) -> &str {
        self.exchanges.as_deref().unwrap_or(&self.id)
    }
}

/// Whether a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// It runs, was interrupted, or was killed.
    Unfinished,
    /// Its last stage is done.
    Finished,
}

/// A run this process works in. The lock is let go on drop, and by the system on a kill.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    info: RunInfo,
    _lock: File,
}

impl RunDir {
    /// Makes the directory of a new run, `<date>-<first characters of the fingerprint>`, with `-2`,
    /// `-3`, … behind it when there is one. `date` is `YYYY-MM-DD`; `mcpmill` is the program's version.
    ///
    /// # Errors
    /// The date or fingerprint cannot stand in a name, or the directory cannot be made.
    pub fn create(runs: &Path, date: &str, fingerprint: &str, mcpmill: &str) -> Result<Self, RunDirError> {
        let fail = |kind: RunDirErrorKind| RunDirError::new(runs, kind);
        let dated = date.len() == 10
            && date.bytes().enumerate().all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() });
        let short = fingerprint.get(..SHORT).filter(|s| s.bytes().all(|b| b.is_ascii_alphanumeric()));
        let (true, Some(short)) = (dated, short) else {
            return Err(fail(RunDirErrorKind::Name { name: format!("{date}-{fingerprint}") }));
        };
        fs::create_dir_all(runs).map_err(|e| fail(e.into()))?;
        let number = list(runs)?.last().map_or(0, |run| run.number) + 1;
        let base = format!("{date}-{short}");
        let mut id = base.clone();
        for copy in 2.. {
            match fs::create_dir(runs.join(&id)) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => id = format!("{base}-{copy}"),
                Err(e) => return Err(fail(e.into())),
                Ok(()) => break,
            }
        }
        let path = runs.join(&id);
        let lock = locked(&path)?;
        let exchanges = Some(format!("{id}-{:016x}", random()));
        let (fingerprint, mcpmill) = (fingerprint.to_owned(), mcpmill.to_owned());
        let info = RunInfo { id, number, fingerprint, mcpmill, state: RunState::Unfinished, exchanges };
        let run = Self { path, info, _lock: lock };
        run.save()?;
        Ok(run)
    }

    /// Opens a run by its id.
    ///
    /// # Errors
    /// There is no such run, or another process works in it.
    pub fn open(runs: &Path, id: &str) -> Result<Self, RunDirError> {
        if !one_name(id) {
            return Err(RunDirError::new(runs, RunDirErrorKind::Name { name: id.to_owned() }));
        }
        let path = runs.join(id);
        // Looked for before locking, which would leave a lock file behind in any folder.
        info(&path)?.ok_or_else(|| RunDirError::new(&path, RunDirErrorKind::NoRun))?;
        let lock = locked(&path)?;
        let info = info(&path)?.ok_or_else(|| RunDirError::new(&path, RunDirErrorKind::NoRun))?;
        Ok(Self { path, info, _lock: lock })
    }

    /// Where the run is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What `run.json` says.
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// Notes that the run came to its end, or goes on.
    ///
    /// # Errors
    /// `run.json` cannot be written.
    pub fn set_state(&mut self, state: RunState) -> Result<(), RunDirError> {
        self.info.state = state;
        self.save()
    }

    /// Replaces `config.toml`, the resolved settings.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_config(&self, toml: &str) -> Result<(), RunDirError> {
        self.write("config.toml", toml.as_bytes())
    }

    /// Replaces `report.json`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_report(&self, report: &serde_json::Value) -> Result<(), RunDirError> {
        self.write("report.json", format!("{report:#}\n").as_bytes())
    }

    /// Replaces a file of the run as a whole: it is the old or the new one, never half.
    ///
    /// # Errors
    /// `name` is no plain file name, or the file cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RunDirError> {
        let path = self.path.join(name);
        if !one_name(name) {
            return Err(RunDirError::new(&self.path, RunDirErrorKind::Name { name: name.to_owned() }));
        }
        durable::write(&path, bytes).map_err(|e| RunDirError::new(&path, e))
    }

    /// The stage in the folder `name` (`3-generate`, `eval/select-10/qwen`), done or to be worked
    /// on. `fingerprint` is over all that its rows depend on. What the folder holds of another
    /// fingerprint is moved to `<name>.superseded-<k>`, never deleted.
    ///
    /// # Errors
    /// The name leaves the run, or the folder cannot be read or made.
    pub fn stage(&self, name: &str, fingerprint: &str) -> Result<StageState, RunDirError> {
        let inside = !name.is_empty() && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
        if !inside {
            return Err(RunDirError::new(&self.path, RunDirErrorKind::Name { name: name.to_owned() }));
        }
        stage::open(&self.path.join(name), name, fingerprint)
    }

    /// Moves what the folder `name` holds to `<name>.superseded-<k>`, though it may be done: it is to be made again.
    /// Returns where it is now; `None` where there was nothing.
    ///
    /// # Errors
    /// The folder cannot be moved.
    pub fn set_aside(&self, name: &str) -> Result<Option<PathBuf>, RunDirError> {
        stage::set_aside(&self.path.join(name))
    }

    fn save(&self) -> Result<(), RunDirError> {
        let text = serde_json::to_string_pretty(&self.info).map_err(|e| RunDirError::new(&self.path, io::Error::other(e)))?;
        self.write("run.json", format!("{text}\n").as_bytes())
    }
}

/// All runs of a folder, the latest last. Folders without `run.json` are no runs.
///
/// # Errors
/// The folder or a `run.json` cannot be read. A folder that is not there holds no runs.
pub fn list(runs: &Path) -> Result<Vec<RunInfo>, RunDirError> {
    let fail = |e: io::Error| RunDirError::new(runs, e);
    let entries = match fs::read_dir(runs) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(fail)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(info(&entry.map_err(fail)?.path())?);
    }
    found.sort_by(|a, b| (a.number, &a.id).cmp(&(b.number, &b.id)));
    Ok(found)
}

/// The latest run.
///
/// # Errors
/// As [`list`].
pub fn latest(runs: &Path) -> Result<Option<RunInfo>, RunDirError> {
    Ok(list(runs)?.pop())
}

/// The latest unfinished run of a fingerprint: the one to go on with.
///
/// # Errors
/// As [`list`].
pub fn unfinished(runs: &Path, fingerprint: &str) -> Result<Option<RunInfo>, RunDirError> {
    Ok(list(runs)?.into_iter().rfind(|run| run.state == RunState::Unfinished && run.fingerprint == fingerprint))
}

/// What the `stage.json` of a stage's folder says, `None` while the stage is not done. Needs no
/// lock: for reports and views.
///
/// # Errors
/// The file is there and cannot be read.
pub fn stage_info(folder: &Path) -> Result<Option<StageInfo>, RunDirError> {
    read_json(&folder.join("stage.json"))
}

/// What the `run.json` in the folder of a run says, `None` when it is no run. Needs no lock.
///
/// # Errors
/// The file is there and cannot be read.
pub fn run_info(run: &Path) -> Result<Option<RunInfo>, RunDirError> {
    info(run)
}

/// A number that no other run has: hash maps are keyed by chance.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

fn info(run: &Path) -> Result<Option<RunInfo>, RunDirError> {
    read_json(&run.join("run.json"))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, RunDirError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(RunDirError::new(path, e)),
    };
    let damaged = |e: serde_json::Error| RunDirError::new(path, RunDirErrorKind::Damaged(e.to_string()));
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

fn locked(run: &Path) -> Result<File, RunDirError> {
    let path = run.join("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path).map_err(|e| RunDirError::new(&path, e))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(RunDirError::new(run, RunDirErrorKind::Locked)),
        Err(TryLockError::Error(e)) => Err(RunDirError::new(&path, e)),
    }
}

fn one_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
}

/// A run directory cannot be used.
#[derive(Debug, Error)]
#[error("failed to use `{}`: {kind}", .path.display())]
pub struct RunDirError {
    /// The file or folder.
    pub path: PathBuf,
    /// What went wrong.
    pub kind: RunDirErrorKind,
}

impl RunDirError {
    fn new(path: &Path, kind: impl Into<RunDirErrorKind>) -> Self {
        Self { path: path.to_owned(), kind: kind.into() }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self.kind {
            RunDirErrorKind::Locked => Some("wait until the other process has ended, or start a run of its own with --new"),
            RunDirErrorKind::NoRun => Some("name a folder below `runs`, or `latest`"),
            _ => None,
        }
    }
}

/// What can go wrong with a run directory.
#[derive(Debug, Error)]
pub enum RunDirErrorKind {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Somebody else works there.
    #[error("another process works in this run")]
    Locked,
    /// There is no `run.json`.
    #[error("there is no such run")]
    NoRun,
    /// Not a name for a run, a stage or a file.
    #[error("`{name}` cannot be a name")]
    Name {
        /// The name.
        name: String,
    },
    /// A file of the run cannot be understood.
    #[error("the file is damaged: {0}")]
    Damaged(String),
}

#[cfg(test)]
mod tests;

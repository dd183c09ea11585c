//! Third-party programs, run to their end in the cage.

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use thiserror::Error;

/// Runs programs in the cage. There is no other way to run one.
#[async_trait]
pub trait Process: Send + Sync {
    /// Runs `program` until it ends or a limit is reached; whatever it started is gone on return.
    ///
    /// # Errors
    /// The cage itself could not be built. A program that fails is a [`ProcessOutput`].
    async fn run(&self, program: &Confined) -> Result<ProcessOutput, ProcessError> {
        self.run_on(program, &[]).await
    }

    /// As [`Process::run`], with this on its standard input, which then ends. A program that does not read it is none the
    /// worse.
    ///
    /// # Errors
    /// As those of [`Process::run`].
    async fn run_on(&self, program: &Confined, input: &[u8]) -> Result<ProcessOutput, ProcessError>;
}

/// A program and all of the world that it may see.
#[derive(Clone, Debug, PartialEq)]
pub struct Confined {
    /// What it is, for messages (`server time`, `npm ci of memory`).
    pub what: String,
    /// The program and its arguments, as paths inside the cage.
    pub command: Vec<String>,
    /// Host folders and files it sees besides system libraries and interpreters.
    pub binds: Vec<Bind>,
    /// Its whole environment, besides HOME, PATH, TMPDIR and LANG.
    pub env: Vec<(String, String)>,
    /// Working folder inside the cage.
    pub workdir: Option<PathBuf>,
    /// Whether it has the network of this machine: installers, and servers whose policy says so.
    pub network: bool,
    /// What it may use.
    pub limits: Limits,
}

/// A host path made visible in the cage.
#[derive(Clone, Debug, PartialEq)]
pub struct Bind {
    /// Where it is on the host.
    pub host: PathBuf,
    /// Where the program sees it.
    pub inside: PathBuf,
    /// Whether it may be written to.
    pub writable: bool,
}

/// What a caged program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Wall time.
    pub wall: Duration,
    /// Bytes of output that are read, standard output and error each.
    pub output_bytes: u64,
    /// Resident bytes of the whole process tree.
    pub memory_bytes: u64,
    /// Processes and threads of the whole tree.
    pub processes: u32,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessOutput {
    /// How.
    pub end: ProcessEnd,
    /// What it printed, up to the limit.
    pub stdout: String,
    /// What it complained, up to the limit.
    pub stderr: String,
}

/// Ends of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// By itself, with this exit code.
    Exited(i32),
    /// By a signal.
    Signalled(i32),
    /// By the wall clock.
    TimedOut,
    /// By the memory watchdog.
    OutOfMemory,
    /// By printing too much.
    TooMuchOutput,
    /// By starting too many processes.
    TooManyProcesses,
    /// By filling its folders.
    TooMuchDisk,
}

/// The cage could not be built.
#[derive(Debug, Error)]
#[error("failed to confine {what}: {detail}")]
pub struct ProcessError {
    /// What was to be run.
    pub what: String,
    /// Why not.
    pub detail: String,
}

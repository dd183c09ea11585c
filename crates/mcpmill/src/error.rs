//! Failures of the command line: an exit code, a chain of causes, a way on.

use std::fmt;

use mcpmill_core::drive::StageError;

/// Exit codes, as documented in the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Something that should not happen.
    Unexpected = 1,
    /// A flag, setting or declaration is wrong.
    Usage = 2,
    /// Too many rows failed.
    Failures = 3,
    /// The budget is used up, what was done is saved.
    Budget = 4,
    /// Something the program needs is missing here.
    Environment = 5,
    /// Rows wait for the answers of a batch, what was done is saved.
    Waiting = 6,
    /// Stopped from outside, journal saved.
    Interrupted = 130,
}

/// What ends the program.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What happened, outermost first.
    pub chain: Vec<String>,
    /// What to do next.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with this code.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, chain: vec![message.into()], hint: None }
    }

    /// A wrong flag, setting or declaration.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Something missing on this machine.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::new(Exit::Environment, message)
    }

    /// An error with its causes.
    pub fn from_error(exit: Exit, error: &dyn std::error::Error) -> Self {
        let mut chain = vec![error.to_string()];
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Transparent wrappers repeat the text of what they wrap.
            if chain.last() != Some(&text) {
                chain.push(text);
            }
            source = cause.source();
        }
        Self { exit, chain, hint: None }
    }

    /// Adds a way on, where there is one.
    pub fn maybe_hint(self, hint: Option<impl Into<String>>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Adds a way on.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chain.join(": "))
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { exit: Exit::Unexpected, chain: error.chain().map(ToString::to_string).collect(), hint: None }
    }
}

impl From<StageError> for Failure {
    fn from(error: StageError) -> Self {
        match &error {
            StageError::Interrupted => Self::new(Exit::Interrupted, "interrupted; what was done is saved")
                .hint("the same command goes on where it stopped (without `--new`, which begins another run)"),
            StageError::TooManyFailures { stage, .. } => {
                let hint = format!(
                    "every cause is in the run's events.jsonl, stage {stage}; when the cause is gone, the same command goes on (without `--new`)"
                );
                Self::from_error(Exit::Failures, &error).hint(hint)
            }
            StageError::Unreachable { .. } => Self::from_error(Exit::Environment, &error).hint(
                "what was done is saved; when the model answers again (its provider, key and credit), the same command goes on (without `--new`)",
            ),
            StageError::Store { .. } => Self::from_error(Exit::Unexpected, &error)
                .hint("what was done is saved; when the exchange store can be written again, the same command goes on (without `--new`)"),
            StageError::Budget { .. } => Self::from_error(Exit::Budget, &error)
                .hint("what was done is saved; the same command with a higher cap in `[budget]` goes on where it stopped; answers of batches, once taken in, give back what they did not use"),
            StageError::Waiting { .. } => Self::from_error(Exit::Waiting, &error)
                .hint("hand the files in (`mcpmill batch submit FILE`, or by other means) and take the answers (`mcpmill batch fetch ID`, or `batch import FILE`); then the same command goes on"),
            StageError::Empty { .. } => {
                Self::from_error(Exit::Failures, &error).hint("`mcpmill doctor` says what is missing on this machine")
            }
            StageError::Settings { .. } | StageError::Input { .. } => Self::from_error(Exit::Usage, &error),
            StageError::Sink(_) => Self::from_error(Exit::Unexpected, &error),
        }
    }
}

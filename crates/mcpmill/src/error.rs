//! Failures of the command line: an exit code, a chain of causes, a way on.

use std::fmt;

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

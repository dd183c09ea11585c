//! What can go wrong. Messages are fragments that complete "failed to …".

use std::path::PathBuf;

/// Why the embedded model could not be loaded or could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The file is not a model this crate can run.
    #[error("load the model `{}`: {problem}", path.display())]
    Load {
        /// The GGUF file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        problem: LoadProblem,
    },
    /// The rendered messages leave no room for an answer.
    #[error("fit a prompt of {tokens} tokens into a context of {limit}")]
    PromptTooLong {
        /// Tokens of the rendered prompt.
        tokens: usize,
        /// The most a prompt may have, one less than the context.
        limit: usize,
    },
    /// The schema or expression cannot be turned into a grammar, or proved too costly to follow. The caller can
    /// ask again without a constraint and validate the answer.
    #[error("follow the {form}: {reason}")]
    Constraint {
        /// `JSON schema` or `regular expression`.
        form: &'static str,
        /// The reason as llguidance gives it.
        reason: String,
    },
    /// The request's cancel flag was raised.
    #[error("finish a cancelled generation")]
    Cancelled,
    /// The arithmetic failed; a defect of this crate or of a file that passed every check.
    #[error("compute a step of the model: {0}")]
    Compute(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Text could not be turned into tokens.
    #[error("split text into tokens: {0}")]
    Tokenize(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What is wrong with a model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadProblem {
    /// Opening, seeking or reading failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file does not start like GGUF version 2 or 3.
    #[error("it is not a GGUF file of version 2 or 3")]
    NotGguf,
    /// The file ends before something it announces.
    #[error("it ends inside {0}")]
    Truncated(String),
    /// The file contradicts itself or exceeds a limit.
    #[error("{0}")]
    Malformed(String),
    /// The file is sound, but asks for something this crate does not do.
    #[error("{0} is not supported")]
    Unsupported(String),
}

impl From<candle_core::Error> for LocalError {
    fn from(error: candle_core::Error) -> Self {
        LocalError::Compute(Box::new(error))
    }
}

impl From<candle_core::Error> for LoadProblem {
    fn from(error: candle_core::Error) -> Self {
        LoadProblem::Malformed(error.to_string())
    }
}

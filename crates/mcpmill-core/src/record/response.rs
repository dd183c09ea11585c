//! What an answer of a tool is worth.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the response filter made of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResponseVerdict {
    /// The tool did what the call asked, or answers it.
    Ok,
    /// Nothing is in it, and not a word about that.
    Empty,
    /// It tells that the call could not be carried out, and `isError` is not set.
    SoftError,
    /// `isError` is set.
    HardError,
    /// The structured content does not keep the `outputSchema` that the server declared.
    SchemaBreach,
    /// Longer than a training row is to be.
    TooLong,
    /// No answer came within the time limit.
    TimedOut,
    /// The server or the protocol failed.
    ServerFailed,
    /// The policy did not let the call run.
    Refused,
    /// Nobody could tell: a judge that is down or failed its exam, or a row that is not whole.
    #[serde(other)]
    Unjudged,
}

impl ResponseVerdict {
    /// Its name in artifacts, reasons and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Empty => "empty",
            Self::SoftError => "soft-error",
            Self::HardError => "hard-error",
            Self::SchemaBreach => "schema-breach",
            Self::TooLong => "too-long",
            Self::TimedOut => "timed-out",
            Self::ServerFailed => "server-failed",
            Self::Refused => "refused",
            Self::Unjudged => "unjudged",
        }
    }

    /// The verdict that a reason begins with (`soft-error: …`).
    pub fn of_reason(reason: &str) -> Option<Self> {
        let name = reason.split(':').next().unwrap_or_default();
        Self::ALL.into_iter().find(|verdict| verdict.name() == name)
    }

    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Empty,
        Self::SoftError,
        Self::HardError,
        Self::SchemaBreach,
        Self::TooLong,
        Self::TimedOut,
        Self::ServerFailed,
        Self::Refused,
        Self::Unjudged,
    ];
}

impl fmt::Display for ResponseVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_in_artifacts_and_unknown_ones_are_read_as_unjudged() {
        for verdict in ResponseVerdict::ALL {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.name());
            assert_eq!(serde_json::from_value::<ResponseVerdict>(verdict.name().into()).unwrap(), verdict);
            assert_eq!(ResponseVerdict::of_reason(&format!("{verdict}: why")), Some(verdict));
        }
        assert_eq!(serde_json::from_str::<ResponseVerdict>("\"private-data\"").unwrap(), ResponseVerdict::Unjudged);
        assert_eq!(ResponseVerdict::of_reason("private data"), None);
    }
}

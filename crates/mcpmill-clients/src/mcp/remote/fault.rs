//! What goes wrong between us and a remote server.

use mcpmill_core::{edge::ToolErrorKind, record::HarvestOutcome};
use thiserror::Error;

/// Why a request did not get its answer. Holds no address and no header, so no secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(in crate::mcp) enum Fault {
    /// 401 or 403; the scheme is what `WWW-Authenticate` asks for.
    #[error("it refused with status {status}; it wants {} in the header `{header}`", scheme.as_deref().map_or("a credential".to_owned(), |s| format!("`{s}`")))]
    Refused {
        /// 401 or 403.
        status: u16,
        /// The first header of the launch, else `Authorization`.
        header: String,
        /// In a word (`Bearer`).
        scheme: Option<String>,
    },
    /// Any other status that is no success.
    #[error("it answered with status {0}")]
    Status(u16),
    /// 429, or 503 with a time to wait that is longer than there is.
    #[error("it wants to be asked later: status {status}{}", after.map_or(String::new(), |s| format!(", with `Retry-After` of {s} s")))]
    Busy {
        /// 429 or 503.
        status: u16,
        /// Seconds, as far as it says.
        after: Option<u64>,
    },
    /// The answer is something else, in words.
    #[error("it does not speak MCP: {0}")]
    NotMcp(String),
    /// 404 within a session.
    #[error("its session has expired")]
    Expired,
    /// No connection, or it broke.
    #[error("the connection failed: {0}")]
    Network(String),
    /// The answer ended before it was whole.
    #[error("its answer was cut off")]
    CutOff,
    /// More bytes than it may send.
    #[error("it sent too much")]
    Flood,
    /// No answer in time.
    #[error("no answer in time")]
    Late,
    /// To another origin, which is not followed.
    #[error("it redirects to another address, which is not followed")]
    Redirected,
    /// The event stream names a place for messages on another origin.
    #[error("its event stream names an endpoint on another origin, which is not used")]
    Foreign,
}

impl Fault {
    /// What a server that cannot be connected to has earned.
    pub(in crate::mcp) fn outcome(&self) -> HarvestOutcome {
        match self {
            Self::Refused { .. } => HarvestOutcome::NeedsCredentials,
            Self::Status(404 | 408 | 410 | 500..) | Self::Busy { .. } | Self::Expired | Self::Network(_) | Self::CutOff => {
                HarvestOutcome::LaunchFailed
            }
            Self::Late => HarvestOutcome::TimedOut,
            Self::Status(_) | Self::NotMcp(_) | Self::Flood | Self::Redirected | Self::Foreign => HarvestOutcome::Protocol,
        }
    }

    /// What kind of failure it is of a server that runs.
    pub(in crate::mcp) fn kind(&self) -> ToolErrorKind {
        match self {
            Self::Late => ToolErrorKind::TimedOut,
            Self::Flood => ToolErrorKind::Limit,
            Self::Refused { .. } => ToolErrorKind::NeedsCredentials,
            Self::Busy { .. } => ToolErrorKind::Busy,
            Self::Expired | Self::Network(_) | Self::CutOff | Self::Status(500..) => ToolErrorKind::Disconnected,
            _ => ToolErrorKind::Protocol,
        }
    }

    /// Whether the server may speak the other one of the two transports.
    pub(super) fn is_other_transport(&self) -> bool {
        matches!(self, Self::Status(400 | 404 | 405))
    }
}

/// The cause of a failed request, without the address, which may hold a secret.
pub(super) fn network(error: reqwest::Error) -> Fault {
    let error = error.without_url();
    let mut detail = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        detail = cause.to_string();
        source = cause.source();
    }
    if error.is_timeout() { Fault::Late } else { Fault::Network(detail) }
}

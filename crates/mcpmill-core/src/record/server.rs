//! Servers as marketplaces list them, and what became of them at harvest.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{id::ServerId, record::Row};

/// One MCP server, merged over every marketplace that lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Hash of what is launched; see [`ServerRecord::identify`].
    pub id: ServerId,
    /// The name its marketplace uses.
    pub name: String,
    /// A name for people, when there is one.
    pub title: Option<String>,
    /// What the marketplace says of it.
    pub description: Option<String>,
    /// The version that is launched, when known.
    pub version: Option<String>,
    /// How it is started.
    pub launch: Launch,
    /// Environment variables it reads.
    #[serde(default)]
    pub env: Vec<EnvVar>,
    /// SPDX expression of the server itself; `None` when nobody says.
    pub licence: Option<String>,
    /// Categories as the marketplaces that list it name them.
    #[serde(default)]
    pub categories: Vec<String>,
    /// Where it was found.
    #[serde(default)]
    pub sources: Vec<Source>,
    /// Names of the world seeds its disposable folder starts with.
    #[serde(default)]
    pub world: Vec<String>,
    /// What its texts were found to hold at the door: `redacted`, `injection`, `invisible-characters`.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Its tools as a marketplace recorded them, as JSON: an array of MCP tools. Nobody has seen the
    /// server itself list them.
    #[serde(default)]
    pub listed_tools: Option<String>,
}

impl ServerRecord {
    /// The id of a server that is launched this way: two listings with one launch are one server.
    pub fn identify(launch: &Launch) -> ServerId {
        ServerId::of(launch)
    }
}

impl Row for ServerRecord {
    fn row_id(&self) -> &str {
        self.id.as_str()
    }
}

/// How a server is started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Launch {
    /// A child process that speaks over its standard streams, as `mcpServers` configs write it.
    Stdio {
        /// `npx`, `uvx`, …: parsed before use, never given to a shell.
        command: String,
        /// Its arguments; `${WORLD}` and `${STATE}` stand for folders given at start.
        args: Vec<String>,
    },
    /// A remote server over streamable HTTP.
    StreamableHttp {
        /// Where it answers; `{name}` stands for a variable.
        url: String,
        /// Headers it wants.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<EnvVar>,
    },
    /// A remote server over the old HTTP+SSE transport.
    Sse {
        /// Where its event stream is; `{name}` stands for a variable.
        url: String,
        /// Headers it wants.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<EnvVar>,
    },
    /// A form this program cannot start.
    Unsupported {
        /// The form, in words (`oci image`, `desktop bundle`).
        what: String,
    },
}

/// A variable of the environment, of a header or of an address that a server reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// A value that is no secret; `${WORLD}` and `${STATE}` stand for folders given at start.
    #[serde(default)]
    pub value: Option<String>,
    /// True when its value must come from the user.
    #[serde(default)]
    pub secret: bool,
    /// True when the server does not start without it, secret or not.
    #[serde(default)]
    pub required: bool,
}

/// One listing of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Id of the marketplace file.
    pub marketplace: String,
    /// Page or repository, when the listing names one.
    pub url: Option<String>,
}

/// What became of a server at harvest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HarvestOutcome {
    /// It listed tools.
    Ready,
    /// It wants a credential the user has not given.
    NeedsCredentials,
    /// Its launch form is not supported.
    Unsupported,
    /// Its package could not be installed.
    InstallFailed,
    /// It could not be started, or ended before it answered.
    LaunchFailed,
    /// It did not answer in time.
    TimedOut,
    /// It answered something that is not MCP.
    Protocol,
    /// It answered with no tools.
    NoTools,
}

impl HarvestOutcome {
    /// The word used in outcomes and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NeedsCredentials => "needs-credentials",
            Self::Unsupported => "unsupported",
            Self::InstallFailed => "install-failed",
            Self::LaunchFailed => "launch-failed",
            Self::TimedOut => "timed-out",
            Self::Protocol => "protocol",
            Self::NoTools => "no-tools",
        }
    }
}

impl fmt::Display for HarvestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

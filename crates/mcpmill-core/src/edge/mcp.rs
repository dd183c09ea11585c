//! MCP servers: preparing, connecting, listing and calling.

use std::{
    collections::BTreeMap,
    path::{Component, Path},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::{
    edge::Class,
    record::{HarvestOutcome, ServerRecord, ToolDraft, ToolResult},
};

/// Reaches MCP servers. Everything it starts runs in the cage.
#[async_trait]
pub trait Connector: Send + Sync {
    /// Starts a server over a fresh world and shakes hands. Installs it first when needed.
    ///
    /// # Errors
    /// With the outcome the server has earned.
    async fn connect(&self, server: &ServerRecord, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError>;
}

/// What a running server reaches of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Nothing: it has an empty network of its own.
    #[default]
    None,
    /// All that this machine reaches: the internet, the local network, and services on its loopback.
    Full,
}

impl Network {
    /// Whether it is none.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// A call made at the start of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpeningCall {
    /// The tool, by the server's own name for it.
    pub tool: String,
    /// What it is called with; `${WORLD}` in a text is the folder of the world as the server sees it.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// What a server is given of the world: the files its disposable folder starts with, calls made at its start, and the
/// network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorldSpec {
    /// Relative path to content.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Commands run once over the files, in the cage, before the server starts (`git init`, …).
    #[serde(default)]
    pub setup: Vec<Vec<String>>,
    /// Calls made as soon as the server runs, before those of a conversation: what a person sets up first (a project is
    /// opened, a folder chosen).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opening: Vec<OpeningCall>,
    /// What a person would know of it, for prompts (`a table \`orders\` in shop.db`).
    #[serde(default)]
    pub at_hand: Vec<String>,
    /// What it reaches of the network. Never read from a seed: a seed is files.
    #[serde(default, skip_deserializing, skip_serializing_if = "Network::is_none")]
    pub network: Network,
    /// Whether it sees a copy of its own package that it may write to. How it is started, and no part of
    /// what it is asked.
    #[serde(skip)]
    pub writable_package: bool,
}

impl WorldSpec {
    /// What of it a server starts with: neither the calls made then nor the words of prompts change what it lists.
    pub fn started(&self) -> Self {
        Self { opening: Vec::new(), ..self.acted_on() }
    }

    /// What of it calls are made on.
    pub fn acted_on(&self) -> Self {
        Self { at_hand: Vec::new(), ..self.clone() }
    }

    /// A file that would lie outside the folder.
    pub fn stray(&self) -> Option<&str> {
        let inside =
            |path: &str| !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        self.files.keys().map(String::as_str).find(|path| !inside(path))
    }

    /// Puts the files, commands and calls of another one behind its own.
    pub fn take(&mut self, other: &Self) {
        self.files.extend(other.files.clone());
        self.setup.extend(other.setup.clone());
        self.opening.extend(other.opening.clone());
    }
}

/// A server that could not be connected to.
#[derive(Clone, Debug, Error, Serialize, Deserialize)]
#[error("failed to start server `{server}`: {detail}")]
pub struct ConnectError {
    /// The server's name.
    pub server: String,
    /// What it has earned.
    pub outcome: HarvestOutcome,
    /// What happened.
    pub detail: String,
    /// The end of its error output.
    pub stderr: Option<String>,
}

/// A running server.
#[async_trait]
pub trait ToolRunner: Send + Sync {
    /// What it said of itself.
    fn info(&self) -> &ServerInfo;

    /// One page of its tools.
    ///
    /// # Errors
    /// The server failed or answered no list.
    async fn list_tools(&self, cursor: Option<String>) -> Result<ToolPage, ToolError>;

    /// Calls a tool. A failure of the tool itself is a result with `is_error`.
    ///
    /// # Errors
    /// The server failed, refused or did not answer in time.
    async fn call_tool(&self, name: &str, arguments: &Map<String, Value>) -> Result<ToolResult, ToolError>;

    /// What was odd so far and did no harm, in words (`stdout_noise: 3 lines`).
    fn oddities(&self) -> Vec<String>;

    /// Ends the server and everything it started, and removes its world.
    async fn close(self: Box<Self>);
}

/// What a server says of itself in `initialize`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Protocol version that was agreed.
    pub protocol_version: String,
    /// Its instructions to models.
    pub instructions: Option<String>,
    /// Where it sees its world; empty for one that is not run here.
    #[serde(skip)]
    pub folder: String,
    /// How its protocol was opened: `initialize`, or `discover` (2026-07-28 and later). Empty in older records.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub era: String,
    /// Protocol versions it said it speaks, as far as it was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offered: Vec<String>,
    /// `stdio`, `streamable-http` or `sse`: what was used. Empty in older records.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub transport: String,
    /// What had to be added to its launch line for it to start (`--with mcp<2`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<String>,
    /// What it reached of the network while it ran.
    #[serde(default, skip_serializing_if = "Network::is_none")]
    pub network: Network,
}

/// One page of tools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolPage {
    /// The tools, in order.
    pub tools: Vec<ToolDraft>,
    /// Where the next page starts.
    pub next_cursor: Option<String>,
    /// What was listed and is no tool, each with its reason.
    pub refused: Vec<String>,
}

/// A request to a running server failed.
#[derive(Clone, Debug, Error, Serialize, Deserialize)]
#[error("failed to {action} on server `{server}`: {detail}")]
pub struct ToolError {
    /// The server's name.
    pub server: String,
    /// What was tried (`list tools`, `call tool \`x\``).
    pub action: String,
    /// What kind of failure it was.
    pub kind: ToolErrorKind,
    /// What happened.
    pub detail: String,
}

/// Kinds of failure of a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolErrorKind {
    /// No answer in time.
    TimedOut,
    /// The process ended or the stream broke.
    Disconnected,
    /// A JSON-RPC error, with its code.
    Rpc(i64),
    /// An answer that is not what MCP says.
    Protocol,
    /// A limit of the cage was reached (memory, output).
    Limit,
    /// It wants a credential, or another one.
    NeedsCredentials,
    /// It wants to be asked later.
    Busy,
}

impl ToolError {
    /// Whether another try makes sense.
    pub fn class(&self) -> Class {
        match self.kind {
            ToolErrorKind::TimedOut | ToolErrorKind::Disconnected | ToolErrorKind::Busy => Class::Transient,
            _ => Class::Permanent,
        }
    }
}

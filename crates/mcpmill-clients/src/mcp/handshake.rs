//! Opening the protocol, in either of its eras.

use std::fmt;

use mcpmill_core::{
    edge::{ProcessEnd, ServerInfo},
    record::HarvestOutcome,
    text::{clipped, shown},
};
use rmcp::{
    RoleClient,
    model::{ErrorCode, ProtocolVersion, ServerPeerInfo},
    service::{ClientInitializeError, ClientLifecycleMode, RunningService, serve_client_with_lifecycle},
    transport::Transport,
};

use serde_json::Value;

use super::{Failure, client::Client, complaints::Complaints, kept::Kept, runner::too_much};
use crate::cage::Running;

/// Versions that are opened by `initialize`.
const WITH_INITIALIZE: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The version that is opened without.
pub(super) const DISCOVER_VERSION: &str = "2026-07-28";

/// Characters of a server's name and of its version that are kept.
const LONGEST_NAME: usize = 300;
/// Characters of its instructions that are kept.
const LONGEST_INSTRUCTIONS: usize = 100_000;

/// How a connection is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// By `initialize`: up to 2025-11-25.
    Initialize,
    /// Not at all; `server/discover` says what there is: from 2026-07-28 on.
    Discover,
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initialize => "`initialize`",
            Self::Discover => "`server/discover`",
        })
    }
}

/// A connection that is open.
pub(super) struct Greeting {
    pub(super) service: RunningService<RoleClient, Client>,
    pub(super) info: ServerPeerInfo,
}

/// Why it is not.
#[derive(Debug, thiserror::Error)]
pub(super) enum GreetError {
    #[error(transparent)]
    Rmcp(Box<ClientInitializeError>),
    #[error("it answered with version `{0}`, which was not offered")]
    Version(String),
}

/// Opens the protocol over a transport.
pub(super) async fn greet<T>(transport: T, client: Client, era: Era) -> Result<Greeting, GreetError>
where
    T: Transport<RoleClient> + 'static,
{
    let (mode, version) = match era {
        // The newest version that knows `initialize`: one that does not must not be offered by it.
        Era::Initialize => (ClientLifecycleMode::Initialize, ProtocolVersion::V_2025_11_25),
        Era::Discover => {
            let version = ProtocolVersion::V_2026_07_28;
            (ClientLifecycleMode::Discover { preferred_versions: vec![version.clone()] }, version)
        }
    };
    let served = Box::pin(serve_client_with_lifecycle(client.offering(version), transport, mode)).await;
    let service = served.map_err(|error| GreetError::Rmcp(Box::new(error)))?;
    let Some(info) = service.peer().peer_info().map(|info| (*info).clone()) else {
        return Err(GreetError::Version(String::new()));
    };
    let version = info.protocol_version.to_string();
    if era == Era::Initialize && !WITH_INITIALIZE.contains(&version.as_str()) {
        return Err(GreetError::Version(shown(&version, 40)));
    }
    Ok(Greeting { service, info })
}

/// Why a handshake failed, as far as the protocol itself says.
pub(super) fn refusal(error: &GreetError, era: Era) -> Failure {
    match error {
        GreetError::Rmcp(error) => match &**error {
            ClientInitializeError::JsonRpcError(error) => {
                let detail = format!("it answered {era} with an error: {} ({})", shown(&error.message, 1000), error.code.0);
                let mut failure = Failure::new(HarvestOutcome::Protocol, detail);
                let unknown = [ErrorCode::METHOD_NOT_FOUND, ErrorCode::INVALID_PARAMS, ErrorCode::INVALID_REQUEST];
                failure.other_era = unknown.contains(&error.code) || error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION;
                failure
            }
            other => Failure::new(HarvestOutcome::Protocol, in_words(other, era)),
        },
        GreetError::Version(version) => {
            let mut failure = Failure::new(HarvestOutcome::Protocol, error.to_string());
            // Not offered, but there is a way to speak it.
            failure.other_era = version == DISCOVER_VERSION;
            failure
        }
    }
}

/// What was wrong with an answer. The error itself would show it as Rust writes it.
fn in_words(error: &ClientInitializeError, era: Era) -> String {
    match error {
        ClientInitializeError::ExpectedInitResult(Some(result)) if era == Era::Initialize => {
            let result = serde_json::to_value(result).unwrap_or_default();
            format!("its answer to {era} is none: {}", oddity(&result))
        }
        ClientInitializeError::ExpectedInitResult(_) => format!("its answer to {era} is none"),
        ClientInitializeError::ExpectedInitResponse(_) => format!("it sent something else before its answer to {era}"),
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let versions: Vec<String> = server_supported.iter().map(ToString::to_string).collect();
            shown(&format!("it speaks no version that is known, but {}", versions.join(", ")), 1000)
        }
        other => shown(&other.to_string(), 1000),
    }
}

/// What in an answer to `initialize` is not what MCP has there.
fn oddity(result: &Value) -> &'static str {
    let server = &result["serverInfo"];
    match result {
        _ if !result.is_object() => "it is no object",
        _ if !result["protocolVersion"].is_string() => "`protocolVersion` is no text",
        _ if !result["capabilities"].is_object() => "`capabilities` is no object",
        _ if !server.is_object() => "`serverInfo` is no object",
        _ if !server["name"].is_string() => "the name in `serverInfo` is no text",
        _ if !server["version"].is_string() => "the version in `serverInfo` is no text",
        _ => "something in `capabilities` or `serverInfo` is of another type",
    }
}

/// Whether the connection ended before there was an answer.
pub(super) fn broke(error: &GreetError) -> bool {
    let GreetError::Rmcp(error) = error else { return false };
    matches!(**error, ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. })
}

/// Why a handshake failed, from how the process ended.
pub(super) fn refused(error: &GreetError, era: Era, end: ProcessEnd, running: &Running, complaints: &Complaints) -> Failure {
    if running.overrun().is_some() {
        return Failure::new(HarvestOutcome::LaunchFailed, too_much(end));
    }
    if !broke(error) {
        return refusal(error, era);
    }
    let detail = match running.exit_code() {
        Some(code) => format!("it ended with exit code {code} before it answered"),
        None => "it closed its output before it answered".to_owned(),
    };
    Failure::new(
        HarvestOutcome::LaunchFailed,
        match complaints.last_line() {
            Some(line) => format!("{detail}: {line}"),
            None => detail,
        },
    )
}

/// What a server said of itself.
pub(super) fn server_info(info: &ServerPeerInfo, era: Era, kept: &Kept) -> ServerInfo {
    let (name, version) = match &info.server_info {
        Some(server) => (clipped(&server.name, LONGEST_NAME), clipped(&server.version, LONGEST_NAME)),
        None => Default::default(),
    };
    let protocol_version = info.protocol_version.to_string();
    let offered = each_once([protocol_version.clone()].into_iter().chain(kept.offered()));
    let era = match era {
        Era::Initialize => "initialize",
        Era::Discover => "discover",
    };
    let instructions = info.instructions.as_deref().map(|text| clipped(text, LONGEST_INSTRUCTIONS));
    let era = era.to_owned();
    ServerInfo { name, version, protocol_version, instructions, era, offered, ..ServerInfo::default() }
}

/// Versions in the order they were named, each once.
pub(super) fn each_once(versions: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut once: Vec<String> = Vec::new();
    for version in versions {
        if !once.contains(&version) {
            once.push(version);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use rmcp::model::ServerResult;
    use serde_json::json;

    use super::*;

    #[test]
    fn odd_answers_are_told_in_words() {
        let info = json!({"name": "n", "version": "1"});
        let cases = [
            (json!("hello"), "it is no object"),
            (json!({"capabilities": {}, "serverInfo": info}), "`protocolVersion` is no text"),
            (json!({"protocolVersion": "2025-06-18", "capabilities": [], "serverInfo": info}), "`capabilities` is no object"),
            (json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": "n 1"}), "`serverInfo` is no object"),
            (
                json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "n", "version": 1}}),
                "the version in `serverInfo` is no text",
            ),
            (
                json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": 7}, "serverInfo": info}),
                "something in `capabilities` or `serverInfo` is of another type",
            ),
        ];
        for (answer, why) in cases {
            let result: ServerResult = serde_json::from_value(answer).unwrap();
            let error = GreetError::Rmcp(Box::new(ClientInitializeError::ExpectedInitResult(Some(result))));
            let failure = refusal(&error, Era::Initialize);
            assert_eq!(failure.detail, format!("its answer to `initialize` is none: {why}"));
        }
    }
}

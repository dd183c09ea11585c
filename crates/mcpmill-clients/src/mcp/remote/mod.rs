//! Remote servers: their address and headers filled in, then either of the two remote transports.

mod events;
mod fault;
mod link;
mod mirror;
mod transport;

use std::sync::{Arc, Mutex};

use mcpmill_core::{
    edge::ServerInfo,
    record::{EnvVar, HarvestOutcome, Launch, ServerRecord},
    template::{Hole, fill, is_open},
    text::shown,
};
use reqwest::{
    Client, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use rmcp::service::ClientInitializeError;
use tokio::time::{Instant, timeout_at};

use super::{
    CagedConnector, Failure, PROBED_WITHIN, Secrets,
    handshake::{Era, GreetError, Greeting, broke, each_once, greet, refusal, server_info},
    runner::{Behind, Runner},
};
use crate::cage::WORLD;
pub(super) use fault::Fault;
pub(super) use link::{Bounds, Link};
use transport::Remote;

/// Headers that belong to the transport.
const OWN_HEADERS: [&str; 14] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "transfer-encoding",
    "upgrade",
];

fn is_own(header: &str) -> bool {
    OWN_HEADERS.contains(&header) || header.starts_with("mcp-param-")
}

/// The two transports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Streamable,
    Sse,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Streamable => "streamable-http",
            Self::Sse => "sse",
        }
    }
}

/// Where a server is and what it gets to see.
struct Target {
    client: Client,
    url: Url,
    headers: HeaderMap,
}

/// Why one try failed.
struct Tried {
    failure: Failure,
    other_transport: bool,
}

/// Connects to a remote server: over the transport its record names, else over the other one; by
/// `initialize`, else without.
pub(super) async fn connect(
    connector: &CagedConnector,
    server: &ServerRecord,
    secrets: &Arc<Secrets>,
) -> Result<Runner, Failure> {
    let target = target(connector, server)?;
    let begun = Instant::now();
    let deadline = begun + connector.limits.start;
    let kinds = match server.launch {
        Launch::Sse { .. } => [Kind::Sse, Kind::Streamable],
        _ => [Kind::Streamable, Kind::Sse],
    };
    let until = |deadline, kind, era| Box::pin(open(connector, server, &target, secrets, (kind, era), deadline));
    let attempt = |kind, era| until(deadline, kind, era);
    let first = connector.only.unwrap_or(Era::Initialize);
    match attempt(kinds[0], first).await {
        Ok(mut runner) => {
            let probe = deadline.min(Instant::now() + begun.elapsed() * 2 + PROBED_WITHIN);
            if connector.probe_eras
                && connector.only.is_none()
                && let Ok(other) = until(probe, kinds[0], Era::Discover).await
            {
                runner.info.offered = each_once(runner.info.offered.into_iter().chain(other.info.offered.clone()));
                mcpmill_core::edge::ToolRunner::close(Box::new(other)).await;
            }
            Ok(runner)
        }
        Err(refused) if refused.failure.other_era && connector.only.is_none() => {
            attempt(kinds[0], Era::Discover).await.map_err(|second| refused.failure.and(&second.failure))
        }
        Err(refused) if refused.other_transport => {
            attempt(kinds[1], first).await.map_err(|second| refused.failure.and(&second.failure))
        }
        Err(refused) => Err(refused.failure),
    }
}

async fn open(
    connector: &CagedConnector,
    server: &ServerRecord,
    target: &Target,
    secrets: &Arc<Secrets>,
    (kind, era): (Kind, Era),
    deadline: Instant,
) -> Result<Runner, Tried> {
    let limits = &connector.limits;
    let bounds = Bounds {
        message_bytes: limits.message_bytes,
        total_bytes: limits.output_bytes,
        answer: limits.answer,
        open_until: deadline,
    };
    let place = (target.url.clone(), target.headers.clone());
    let (link, inbox) = Link::new(target.client.clone(), place, era, bounds, Arc::clone(secrets));
    let opening = async {
        let transport = match kind {
            Kind::Streamable => Remote::streamable(Arc::clone(&link), inbox),
            Kind::Sse => Remote::sse(Arc::clone(&link), inbox).await.map_err(|fault| of_fault(&fault))?,
        };
        greet(transport, connector.client(WORLD), era).await.map_err(|error| match broke(&error) {
            true => of_fault(&not_sent(&error).or_else(|| link.ended()).unwrap_or(Fault::CutOff)),
            false => Tried { failure: refusal(&error, era), other_transport: false },
        })
    };
    let Ok(opened) = timeout_at(deadline, Box::pin(opening)).await else {
        let detail = format!("no answer to {era} within {} s", limits.start.as_secs_f32());
        return Err(Tried { failure: Failure::new(HarvestOutcome::TimedOut, detail), other_transport: false });
    };
    let Greeting { service, info } = opened?;
    link.has_opened();
    let info = ServerInfo { transport: kind.name().to_owned(), ..server_info(&info, era, &link.kept) };
    let (kept, secrets) = (Arc::clone(&link.kept), Arc::clone(secrets));
    let (server, limits, behind) = (server.name.clone(), *limits, Behind::Web(link));
    Ok(Runner { server, info, behind, service, kept, limits, listing: Mutex::default(), secrets, _in_use: None })
}

/// Why a message of the handshake could not be sent.
fn not_sent(error: &GreetError) -> Option<Fault> {
    let GreetError::Rmcp(error) = error else { return None };
    let ClientInitializeError::TransportError { error, .. } = &**error else { return None };
    error.error.downcast_ref::<Fault>().cloned()
}

fn of_fault(fault: &Fault) -> Tried {
    Tried { failure: Failure::new(fault.outcome(), fault.to_string()), other_transport: fault.is_other_transport() }
}

/// The address and headers of a launch with every variable filled in, or what is missing.
fn target(connector: &CagedConnector, server: &ServerRecord) -> Result<Target, Failure> {
    let unsupported = |why: String| Failure::new(HarvestOutcome::Unsupported, why);
    let (Launch::StreamableHttp { url, headers } | Launch::Sse { url, headers }) = &server.launch else {
        return Err(unsupported("it is no remote server".to_owned()));
    };
    let Some(reach) = &connector.remote else {
        return Err(unsupported(
            "remote servers are off; they are reached only where that is switched on (`harvest.remote`)".to_owned(),
        ));
    };
    let mut fill = Fill { connector, server, host: String::new(), missing: Vec::new(), sends_credentials: false };
    // Where it is must not depend on a credential, or a listing could have one sent wherever it likes.
    fill.host = Url::parse(&fill.text(url, true)).ok().and_then(|url| Some(url.host_str()?.to_owned())).unwrap_or_default();
    fill.missing.clear();
    let address = fill.text(url, true);
    let mut filled = HeaderMap::new();
    for header in headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok().filter(|name| !is_own(name.as_str()));
        let name = name
            .ok_or_else(|| unsupported(format!("it wants the header `{}`, which is not its to set", shown(&header.name, 80))))?;
        if let Some(value) = fill.header(header) {
            let bad = |_| unsupported(format!("the value of the header `{name}` cannot be sent"));
            let mut value = HeaderValue::from_str(&value).map_err(bad)?;
            value.set_sensitive(true);
            filled.insert(name, value);
        }
    }
    if !fill.missing.is_empty() {
        return Err(Failure::new(HarvestOutcome::NeedsCredentials, format!("it needs {}", fill.missing.join(", "))));
    }
    // The address may hold a secret by now, so no message shows it.
    let url = Url::parse(&address).map_err(|e| unsupported(format!("its address is none: {e}")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some() {
        return Err(unsupported("its address is no plain `http` or `https` one".to_owned()));
    }
    // Nor does this one: which address it was, the record says.
    let client = reach.client(url.as_str()).map_err(|_| unsupported("its address is not a public one".to_owned()))?;
    if fill.sends_credentials && !reach.is_private(&url) {
        return Err(unsupported(format!("credentials for `{}` would go there unencrypted: its address is `http`", fill.host)));
    }
    Ok(Target { client, url, headers: filled })
}

/// Fills in variables, and notes which have no value.
struct Fill<'a> {
    connector: &'a CagedConnector,
    server: &'a ServerRecord,
    /// The host its address names; empty until it is known, and then no credential is found.
    host: String,
    missing: Vec<String>,
    sends_credentials: bool,
}

impl Fill<'_> {
    fn header(&mut self, header: &EnvVar) -> Option<String> {
        match &header.value {
            // A secret's listed value is at most the name of what belongs there.
            Some(_) if header.secret && self.has(&header.name) => self.credential(&header.name),
            Some(value) if !is_open(value) => Some(self.text(value, false)),
            None if !header.secret && !header.required => None,
            _ => self.credential(&header.name),
        }
    }

    /// A credential is only sent to the host it was given for: what a listing of strangers calls
    /// `{GITHUB_TOKEN}` says nothing about who gets it.
    fn credential(&mut self, name: &str) -> Option<String> {
        let bound = format!("{}/{name}", self.host);
        let value = self.connector.credentials.get(&bound).cloned();
        match value {
            None => self.lacks(&bound),
            Some(_) => self.sends_credentials = true,
        }
        value
    }

    fn has(&self, name: &str) -> bool {
        self.connector.credentials.contains_key(&format!("{}/{name}", self.host))
    }

    fn lacks(&mut self, name: &str) {
        let name = format!("`{}`", shown(name, 80));
        if !self.missing.contains(&name) {
            self.missing.push(name);
        }
    }

    /// A text with everything that is left open replaced; in an address the values are escaped, except where
    /// the whole address is one.
    fn text(&mut self, template: &str, address: bool) -> String {
        let whole = |hole: &Hole<'_>| template.starts_with(hole.written);
        fill(template, |hole| {
            let value = self.variable(&hole.name, hole.default);
            if address && !whole(hole) { escaped(&value) } else { value }
        })
    }

    fn variable(&mut self, name: &str, default: Option<&str>) -> String {
        let declared = self.server.env.iter().find(|variable| variable.name == name).and_then(|v| v.value.as_ref());
        let own = declared.filter(|value| !is_open(value)).map(String::as_str).or(default);
        own.map(str::to_owned).or_else(|| self.credential(name)).unwrap_or_default()
    }
}

/// A value as it stands in an address.
fn escaped(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    value.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

//! What both remote transports share: requests out, messages in, within bounds.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use mcpmill_core::json;
use reqwest::{
    Client, Method, Response, StatusCode, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, WWW_AUTHENTICATE},
};
use rmcp::{
    RoleClient,
    model::{JsonRpcMessage, RequestId},
    service::RxJsonRpcMessage,
};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    events::Parser,
    fault::{Fault, network},
    mirror::Mirrored,
};
use crate::{
    http::retry_after,
    mcp::{
        handshake::Era,
        kept::{Kept, is_too_much},
        secrets::Secrets,
    },
};

/// Messages that wait to be taken.
const INBOX: usize = 64;
/// Redirects that are followed, on one origin.
const HOPS: usize = 3;
/// Bytes of an error answer that are read.
const ERROR_BYTES: usize = 64 << 10;
/// Times a busy server is asked again.
const PATIENCE: usize = 5;
/// It is not asked again sooner than this.
const BREATH: Duration = Duration::from_millis(500);
/// Media types that are told when they come in place of JSON. In any other a server may have put what it was given,
/// with its letters changed so that they fit there.
const TOLD_TYPES: [&str; 10] = [
    "text/html",
    "text/plain",
    "text/xml",
    "text/javascript",
    "application/xml",
    "application/xhtml+xml",
    "application/octet-stream",
    "application/javascript",
    "application/problem+json",
    "application/x-ndjson",
];
/// Times one stream is taken up again after it broke off.
const RESUMPTIONS: usize = 20;

/// What a remote server may send.
#[derive(Clone, Copy, Debug)]
pub(in crate::mcp) struct Bounds {
    /// Of one message.
    pub(in crate::mcp) message_bytes: usize,
    /// Of all.
    pub(in crate::mcp) total_bytes: u64,
    /// From a request to the end of its answer.
    pub(in crate::mcp) answer: Duration,
    /// Until when the connection has to be open.
    pub(in crate::mcp) open_until: Instant,
}

/// A message, or the end.
type Incoming = Option<RxJsonRpcMessage<RoleClient>>;

/// One connection to a remote server.
pub(in crate::mcp) struct Link {
    client: Client,
    pub(super) url: Url,
    headers: HeaderMap,
    pub(super) era: Era,
    pub(super) bounds: Bounds,
    pub(super) kept: Arc<Kept>,
    opened: AtomicBool,
    state: Mutex<State>,
    inbox: mpsc::Sender<Incoming>,
}

#[derive(Default)]
struct State {
    /// Why the connection as a whole has ended.
    ended: Option<Fault>,
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
    read: u64,
    /// Arguments that also go into headers, by tool.
    mirrored: HashMap<String, Mirrored>,
}

impl Link {
    /// A link, and where its messages arrive.
    pub(super) fn new(
        client: Client,
        (url, headers): (Url, HeaderMap),
        era: Era,
        bounds: Bounds,
        secrets: Arc<Secrets>,
    ) -> (Arc<Self>, mpsc::Receiver<Incoming>) {
        let (inbox, outlet) = mpsc::channel(INBOX);
        let (kept, opened, state) = (Arc::new(Kept::new(secrets)), AtomicBool::default(), Mutex::default());
        (Arc::new(Self { client, url, headers, era, bounds, kept, opened, state, inbox }), outlet)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the connection as a whole has ended, if it has.
    pub(in crate::mcp) fn ended(&self) -> Option<Fault> {
        self.state().ended.clone()
    }

    /// Ends the connection.
    pub(super) async fn fail(&self, fault: Fault) {
        self.state().ended.get_or_insert(fault);
        self.inbox.send(None).await.ok();
    }

    /// Ends one request; the connection too when it was one that opens it.
    async fn lose(&self, awaited: Option<&RequestId>, fault: Fault) {
        let Some(id) = awaited else { return };
        if let Some(error) = self.kept.lose(id, fault.clone()) {
            self.inbox.send(Some(error)).await.ok();
        } else if !self.opened.load(Ordering::Relaxed) {
            self.fail(fault).await;
        }
    }

    /// From here on a request that goes wrong goes wrong alone.
    pub(super) fn has_opened(&self) {
        self.opened.store(true, Ordering::Relaxed);
    }

    /// Whether `schema` says which arguments also go into headers in a way that this tool can be called;
    /// it then is. `Err` says why it must not be.
    pub(in crate::mcp) fn mirror(&self, tool: &str, schema: &Value) -> Result<(), String> {
        if self.era == Era::Discover {
            let mirrored = Mirrored::of(schema)?;
            self.state().mirrored.insert(tool.to_owned(), mirrored);
        }
        Ok(())
    }

    /// Whether it is not known yet which arguments of a tool go into headers.
    pub(in crate::mcp) fn has_not_seen(&self, tool: &str) -> bool {
        self.era == Era::Discover && !self.state().mirrored.contains_key(tool)
    }

    /// The headers that a call of a tool carries for its arguments.
    pub(super) fn argument_headers(&self, tool: &str, arguments: &Value) -> HeaderMap {
        self.state().mirrored.get(tool).map(|mirrored| mirrored.headers(arguments)).unwrap_or_default()
    }

    pub(super) fn session(&self) -> Option<HeaderValue> {
        self.state().session.clone()
    }

    /// Sends one request, again after the time a busy server asks for, as far as there is so much.
    pub(super) async fn request(
        &self,
        method: Method,
        url: &Url,
        body: Option<Vec<u8>>,
        extra: HeaderMap,
    ) -> Result<Response, Fault> {
        let answered = Instant::now() + self.bounds.answer;
        let until = if self.opened.load(Ordering::Relaxed) { answered } else { answered.min(self.bounds.open_until) };
        for tries in 0.. {
            let response = self.request_once(&method, url, body.as_deref(), &extra).await?;
            let after = retry_after(response.headers(), SystemTime::now());
            let status = response.status();
            if status != StatusCode::TOO_MANY_REQUESTS && (status != StatusCode::SERVICE_UNAVAILABLE || after.is_none()) {
                return Ok(response);
            }
            let pause = after.map(|after| after.max(BREATH)).filter(|pause| tries < PATIENCE && Instant::now() + *pause < until);
            let Some(pause) = pause else {
                return Err(Fault::Busy { status: status.as_u16(), after: after.map(|after| after.as_secs()) });
            };
            drop(response);
            tokio::time::sleep(pause).await;
        }
        Err(Fault::Late)
    }

    /// Sends one request, following redirects on its own origin, and judges the status.
    async fn request_once(&self, method: &Method, url: &Url, body: Option<&[u8]>, extra: &HeaderMap) -> Result<Response, Fault> {
        let mut url = url.clone();
        for _ in 0..HOPS {
            let mut request = self.client.request(method.clone(), url.clone()).headers(self.own_headers()).headers(extra.clone());
            if let Some(body) = body {
                request = request.header(CONTENT_TYPE, "application/json").body(body.to_vec());
            }
            let response = request.send().await.map_err(network)?;
            match response.status() {
                StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {
                    let place = response.headers().get(LOCATION).and_then(|place| place.to_str().ok());
                    url = place.and_then(|place| next_hop(&url, place)).ok_or(Fault::Redirected)?;
                }
                status if status.is_redirection() => return Err(Fault::Redirected),
                _ => return Ok(response),
            }
        }
        Err(Fault::Redirected)
    }

    fn own_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        let state = self.state();
        for (name, value) in [("mcp-session-id", &state.session), ("mcp-protocol-version", &state.version)] {
            if let Some(value) = value {
                headers.insert(HeaderName::from_static(name), value.clone());
            }
        }
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json, text/event-stream"));
        headers
    }

    /// Keeps the session a server opens.
    pub(super) fn remember(&self, response: &Response) {
        if let Some(session) = response.headers().get("mcp-session-id") {
            let mut session = session.clone();
            session.set_sensitive(true);
            self.state().session = Some(session);
        }
    }

    /// What a status that is no success means.
    pub(super) fn judge(&self, response: &Response) -> Fault {
        let status = response.status().as_u16();
        match status {
            401 | 403 => {
                let header = self.headers.keys().next().map_or("Authorization", HeaderName::as_str).to_owned();
                let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
                let challenge = challenge.map(|text| self.kept.clean(text)).unwrap_or_default();
                let scheme = challenge.split_whitespace().next();
                let word = |text: &&str| text.len() <= 20 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
                Fault::Refused { status, header, scheme: scheme.filter(word).map(str::to_owned) }
            }
            404 if self.session().is_some() => Fault::Expired,
            _ => Fault::Status(status),
        }
    }

    /// Counts bytes that came.
    fn count(&self, bytes: usize) -> Result<(), Fault> {
        let mut state = self.state();
        state.read += bytes as u64;
        if state.read <= self.bounds.total_bytes { Ok(()) } else { Err(Fault::Flood) }
    }

    /// The next piece of a body.
    async fn piece(&self, response: &mut Response) -> Result<Option<impl AsRef<[u8]> + use<>>, Fault> {
        let piece = response.chunk().await.map_err(network)?;
        if let Some(piece) = &piece {
            self.count(piece.len())?;
        }
        Ok(piece)
    }

    /// A whole body of at most `limit` bytes.
    async fn body(&self, response: &mut Response, limit: usize) -> Result<Vec<u8>, Fault> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece(response).await? {
            body.extend_from_slice(piece.as_ref());
            if body.len() > limit {
                return Err(Fault::Flood);
            }
        }
        Ok(body)
    }

    /// Passes on what a JSON text holds; whether it answers `awaited`, or `None` when it is no message.
    async fn deliver(&self, text: Value, awaited: Option<&RequestId>) -> Option<bool> {
        let version = agreed_version(&text);
        let messages = self.kept.messages(text);
        let answers = |message: &RxJsonRpcMessage<RoleClient>| match message {
            JsonRpcMessage::Response(response) => awaited.is_some_and(|awaited| is_same(awaited, &response.id)),
            JsonRpcMessage::Error(error) => awaited.zip(error.id.as_ref()).is_some_and(|(awaited, id)| is_same(awaited, id)),
            _ => false,
        };
        if self.kept.flooded() {
            self.fail(Fault::Flood).await;
            return None;
        }
        let is_message = !messages.is_empty();
        let answered = messages.iter().any(answers);
        if let Some(version) = version.filter(|_| answered) {
            self.state().version.get_or_insert(version);
        }
        for message in messages {
            self.inbox.send(Some(message)).await.ok();
        }
        is_message.then_some(answered)
    }

    /// One JSON text, unless it is none or too much.
    fn text(&self, bytes: &[u8]) -> Result<Option<Value>, Fault> {
        if is_too_much(bytes) {
            return Err(Fault::Flood);
        }
        // Some begin with a byte order mark.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let Some(read) = json::read(bytes) else { return Ok(None) };
        self.kept.note_changes(bytes, read.mended);
        Ok(Some(read.value))
    }

    /// Reads the answer to a request to its end and passes on what it holds. The request is lost when the
    /// answer is none.
    pub(super) async fn read_answer(&self, mut response: Response, awaited: Option<RequestId>) {
        let kind = content_type(&response);
        let read = match kind.as_str() {
            "text/event-stream" => self.read_events(&mut response, awaited.as_ref()).await,
            "application/json" => self.read_json(&mut response, awaited.as_ref()).await,
            _ if awaited.is_none() => Ok(()),
            "" => Err(Fault::NotMcp("its answer is empty".to_owned())),
            kind => Err(Fault::NotMcp(match TOLD_TYPES.iter().find(|known| **known == kind) {
                Some(kind) => format!("it answers with `{kind}`"),
                None => "it answers with another type of content than JSON or events".to_owned(),
            })),
        };
        if let Err(fault) = read {
            self.lose(awaited.as_ref(), fault).await;
        }
    }

    async fn read_json(&self, response: &mut Response, awaited: Option<&RequestId>) -> Result<(), Fault> {
        let body = self.body(response, self.bounds.message_bytes).await?;
        let Some(awaited) = awaited else { return Ok(()) };
        let not_mcp = || Fault::NotMcp("its answer is no JSON-RPC".to_owned());
        let text = self.text(&body)?.ok_or_else(not_mcp)?;
        if self.deliver(text, Some(awaited)).await == Some(true) { Ok(()) } else { Err(not_mcp()) }
    }

    /// Reads the events of one answer; taken up again where the stream broke off, as far as it says how.
    async fn read_events(&self, response: &mut Response, awaited: Option<&RequestId>) -> Result<(), Fault> {
        let mut parser = Parser::new(self.bounds.message_bytes);
        let mut broken = Fault::CutOff;
        for _ in 0..=RESUMPTIONS {
            match self.read_until_answered(response, &mut parser, awaited).await {
                Ok(true) => return Ok(()),
                Ok(false) if awaited.is_none() => return Ok(()),
                Ok(false) => broken = Fault::CutOff,
                Err(fault @ (Fault::Network(_) | Fault::CutOff)) => broken = fault,
                Err(fault) => return Err(fault),
            }
            if parser.last_id().is_none() || self.era == Era::Discover {
                break;
            }
            tokio::time::sleep(parser.wait()).await;
            match self.open_stream(&mut parser).await? {
                Some(resumed) => *response = resumed,
                None => break,
            }
        }
        Err(broken)
    }

    /// True when the answer came, false when the stream ended without it.
    async fn read_until_answered(
        &self,
        response: &mut Response,
        parser: &mut Parser,
        awaited: Option<&RequestId>,
    ) -> Result<bool, Fault> {
        while let Some(piece) = self.piece(response).await? {
            parser.feed(piece.as_ref()).map_err(|_| Fault::Flood)?;
            while let Some(event) = parser.next() {
                let Some(text) = self.text(&event.data)? else { continue };
                if self.deliver(text, awaited).await == Some(true) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Asks for a stream of what the server says by itself, or for the rest of one that broke off.
    /// `None` when there is none.
    async fn open_stream(&self, parser: &mut Parser) -> Result<Option<Response>, Fault> {
        let mut extra = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("text/event-stream"))]);
        if let Some(id) = parser.last_id().and_then(|id| HeaderValue::from_bytes(id).ok()) {
            extra.insert(HeaderName::from_static("last-event-id"), id);
        }
        parser.broken_off();
        let response = self.request(Method::GET, &self.url, None, extra).await?;
        let is_stream = response.status().is_success() && content_type(&response) == "text/event-stream";
        Ok(is_stream.then_some(response))
    }

    /// Listens to what the server says by itself, for as long as it has a stream for that. Many have
    /// none; then what they ask (for roots, say) is asked on the streams of answers. `listens` hears, or is
    /// dropped, as soon as it is known whether there is a stream.
    pub(super) async fn listen(&self, listens: oneshot::Sender<()>) {
        let (mut parser, mut listens) = (Parser::new(self.bounds.message_bytes), Some(listens));
        for _ in 0..=RESUMPTIONS {
            let Ok(Some(mut response)) = self.open_stream(&mut parser).await else { return };
            if let Some(listens) = listens.take() {
                listens.send(()).ok();
            }
            if let Err(Fault::Flood) = self.read_until_answered(&mut response, &mut parser, None).await {
                return;
            }
            tokio::time::sleep(parser.wait()).await;
        }
    }

    /// The JSON-RPC error that an error status comes with, passed on as the answer. False when there is none.
    pub(super) async fn read_error(&self, response: &mut Response, awaited: &RequestId) -> bool {
        if content_type(response) != "application/json" {
            return false;
        }
        let Ok(body) = self.body(response, ERROR_BYTES).await else { return false };
        let Ok(Some(mut value)) = self.text(&body) else { return false };
        if !value["error"]["code"].is_i64() || value["jsonrpc"] != "2.0" {
            return false;
        }
        value["id"] = serde_json::to_value(awaited).unwrap_or_default();
        self.deliver(value, Some(awaited)).await.is_some()
    }

    /// Reads the event stream of the old transport for as long as it lasts; `on_endpoint` gets the place
    /// for messages.
    pub(super) async fn follow(&self, response: &mut Response, on_endpoint: impl Fn(&str) -> Result<(), Fault>) -> Fault {
        let mut parser = Parser::new(self.bounds.message_bytes);
        loop {
            let piece = match self.piece(response).await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Fault::CutOff,
                Err(fault) => return fault,
            };
            if parser.feed(piece.as_ref()).is_err() {
                return Fault::Flood;
            }
            while let Some(event) = parser.next() {
                if event.name == "endpoint" {
                    if let Err(fault) = on_endpoint(String::from_utf8_lossy(&event.data).trim()) {
                        return fault;
                    }
                    continue;
                }
                match self.text(&event.data) {
                    Ok(Some(text)) => drop(self.deliver(text, None).await),
                    Ok(None) => {}
                    Err(fault) => return fault,
                }
            }
        }
    }
}

/// The version an answer to `initialize` names.
fn agreed_version(text: &Value) -> Option<HeaderValue> {
    match text {
        Value::Array(batch) => batch.iter().find_map(agreed_version),
        message => HeaderValue::from_str(message["result"]["protocolVersion"].as_str()?).ok(),
    }
}

/// Whether an id is the one that was sent; some servers give a number back as text.
fn is_same(sent: &RequestId, id: &RequestId) -> bool {
    sent == id || matches!((sent, id), (RequestId::Number(sent), RequestId::String(id)) if id.parse() == Ok(*sent))
}

/// Where a redirect leads, when that is the same origin: whatever a request carries was meant for no other,
/// and for none without TLS when it had it.
fn next_hop(from: &Url, place: &str) -> Option<Url> {
    from.join(place).ok().filter(|next| next.origin() == from.origin())
}

/// The media type, without its parameters.
pub(super) fn content_type(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_their_origin() {
        let from = Url::parse("https://host.example/mcp?a=1").unwrap();
        for (place, leads_to) in [
            ("/mcp/", Some("https://host.example/mcp/")),
            ("https://host.example:443/x", Some("https://host.example/x")),
            ("http://host.example/mcp/", None),
            ("https://host.example:8443/mcp", None),
            ("//other.example/mcp", None),
            ("https://host.example.other/mcp", None),
            ("ftp://host.example/mcp", None),
            ("data:,x", None),
            ("http://[", None),
        ] {
            assert_eq!(next_hop(&from, place).as_ref().map(Url::as_str), leads_to, "{place}");
        }
    }
}

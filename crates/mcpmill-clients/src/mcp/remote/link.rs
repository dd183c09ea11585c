//! What both remote transports share: requests out, messages in, within bounds.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

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
use tokio::sync::mpsc;

use super::{
    events::Parser,
    fault::{Fault, network},
};
use crate::mcp::kept::Kept;

/// Messages that wait to be taken.
const INBOX: usize = 64;
/// Redirects that are followed, on one origin.
const HOPS: usize = 3;
/// Bytes of an error answer that are read.
const ERROR_BYTES: usize = 64 << 10;

/// What a remote server may send.
#[derive(Clone, Copy, Debug)]
pub(in crate::mcp) struct Bounds {
    /// Of one message.
    pub(in crate::mcp) message_bytes: usize,
    /// Of all.
    pub(in crate::mcp) total_bytes: u64,
    /// From a request to the end of its answer.
    pub(in crate::mcp) answer: Duration,
}

/// A message, or the end.
type Incoming = Option<RxJsonRpcMessage<RoleClient>>;

/// One connection to a remote server.
pub(in crate::mcp) struct Link {
    client: Client,
    pub(super) url: Url,
    headers: HeaderMap,
    pub(super) bounds: Bounds,
    pub(super) kept: Arc<Kept>,
    state: Mutex<State>,
    inbox: mpsc::Sender<Incoming>,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
    read: u64,
}

impl Link {
    /// A link, and where its messages arrive.
    pub(super) fn new(client: Client, url: Url, headers: HeaderMap, bounds: Bounds) -> (Arc<Self>, mpsc::Receiver<Incoming>) {
        let (inbox, outlet) = mpsc::channel(INBOX);
        let (kept, state) = (Arc::default(), Mutex::default());
        (Arc::new(Self { client, url, headers, bounds, kept, state, inbox }), outlet)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What went wrong last.
    pub(in crate::mcp) fn fault(&self) -> Option<Fault> {
        self.state().fault.clone()
    }

    /// Notes what went wrong with one request.
    pub(super) fn note(&self, fault: Fault) -> Fault {
        self.state().fault = Some(fault.clone());
        fault
    }

    /// Ends the connection.
    pub(super) async fn fail(&self, fault: Fault) {
        self.note(fault);
        self.inbox.send(None).await.ok();
    }

    pub(super) fn session(&self) -> Option<HeaderValue> {
        self.state().session.clone()
    }

    /// Sends one request, following redirects on its own origin, and judges the status.
    pub(super) async fn request(
        &self,
        method: Method,
        url: &Url,
        body: Option<Vec<u8>>,
        extra: HeaderMap,
    ) -> Result<Response, Fault> {
        let mut url = url.clone();
        for _ in 0..HOPS {
            let mut request = self.client.request(method.clone(), url.clone()).headers(self.own_headers()).headers(extra.clone());
            if let Some(body) = &body {
                request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
            }
            let response = request.send().await.map_err(|e| self.note(network(e)))?;
            if response.url().origin() != url.origin() {
                return Err(self.note(Fault::Redirected));
            }
            match response.status() {
                StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {
                    let place = response.headers().get(LOCATION).and_then(|place| place.to_str().ok());
                    let next = place.and_then(|place| url.join(place).ok()).filter(|next| next.origin() == url.origin());
                    url = next.ok_or_else(|| self.note(Fault::Redirected))?;
                }
                status if status.is_redirection() => return Err(self.note(Fault::Redirected)),
                _ => return Ok(response),
            }
        }
        Err(self.note(Fault::Redirected))
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
        self.note(match status {
            401 | 403 => {
                let header = self.headers.keys().next().map_or("Authorization", HeaderName::as_str).to_owned();
                let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
                let scheme = challenge.and_then(|text| text.split_whitespace().next());
                let word = |text: &&str| text.len() <= 20 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
                Fault::Refused { status, header, scheme: scheme.filter(word).map(str::to_owned) }
            }
            404 if self.session().is_some() => Fault::Expired,
            _ => Fault::Status(status),
        })
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

    /// Passes a message on; true when it answers `awaited`.
    async fn deliver(&self, value: Value, awaited: Option<&RequestId>) -> Option<bool> {
        let version = value["result"]["protocolVersion"].as_str().and_then(|version| HeaderValue::from_str(version).ok());
        let message = self.kept.message(value)?;
        let answered = match &message {
            JsonRpcMessage::Response(response) => awaited == Some(&response.id),
            JsonRpcMessage::Error(error) => awaited.is_some() && awaited == error.id.as_ref(),
            _ => false,
        };
        if let Some(version) = version.filter(|_| answered) {
            self.state().version.get_or_insert(version);
        }
        self.inbox.send(Some(message)).await.ok();
        Some(answered)
    }

    /// Reads the answer to a request to its end and passes on what it holds. Fails the link when the
    /// answer is none.
    pub(super) async fn read_answer(&self, mut response: Response, awaited: Option<RequestId>) {
        let kind = content_type(&response);
        let read = match kind.as_str() {
            "text/event-stream" => self.read_events(&mut response, awaited.as_ref()).await,
            "application/json" => self.read_json(&mut response, awaited.as_ref()).await,
            _ if awaited.is_none() => Ok(()),
            "" => Err(Fault::NotMcp("its answer is empty".to_owned())),
            kind => Err(Fault::NotMcp(format!("it answers with `{}`", mcpmill_core::text::shown(kind, 60)))),
        };
        if let Err(fault) = read {
            if fault == Fault::Flood {
                self.kept.flood();
            }
            self.fail(fault).await;
        }
    }

    async fn read_json(&self, response: &mut Response, awaited: Option<&RequestId>) -> Result<(), Fault> {
        let body = self.body(response, self.bounds.message_bytes).await?;
        let Some(awaited) = awaited else { return Ok(()) };
        let not_mcp = || Fault::NotMcp("its answer is no JSON-RPC".to_owned());
        let messages = match mcpmill_core::json::read(&body).ok_or_else(not_mcp)?.value {
            Value::Array(messages) => messages,
            message => vec![message],
        };
        let mut answered = false;
        for message in messages {
            answered |= self.deliver(message, Some(awaited)).await.unwrap_or(false);
        }
        if answered { Ok(()) } else { Err(not_mcp()) }
    }

    async fn read_events(&self, response: &mut Response, awaited: Option<&RequestId>) -> Result<(), Fault> {
        let mut parser = Parser::new(self.bounds.message_bytes);
        while let Some(piece) = self.piece(response).await? {
            parser.feed(piece.as_ref()).map_err(|_| Fault::Flood)?;
            while let Some(event) = parser.next() {
                let Some(read) = mcpmill_core::json::read(&event.data) else { continue };
                if self.deliver(read.value, awaited).await == Some(true) {
                    return Ok(());
                }
            }
        }
        if awaited.is_some() { Err(Fault::CutOff) } else { Ok(()) }
    }

    /// The JSON-RPC error that an error status comes with, passed on as the answer. False when there is none.
    pub(super) async fn read_error(&self, response: &mut Response, awaited: &RequestId) -> bool {
        if content_type(response) != "application/json" {
            return false;
        }
        let Ok(body) = self.body(response, ERROR_BYTES).await else { return false };
        let Some(mut value) = mcpmill_core::json::read(&body).map(|read| read.value) else { return false };
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
                } else if let Some(read) = mcpmill_core::json::read(&event.data) {
                    self.deliver(read.value, None).await;
                }
            }
        }
    }
}

/// The media type, without its parameters.
pub(super) fn content_type(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

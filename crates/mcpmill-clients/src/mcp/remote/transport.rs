//! The two remote transports: streamable HTTP, and HTTP with SSE as of 2024-11-05.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use reqwest::{
    Method, Url,
    header::{ACCEPT, HeaderMap, HeaderName, HeaderValue},
};
use rmcp::{
    RoleClient,
    model::{JsonRpcMessage, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

use super::{
    fault::Fault,
    link::{Link, content_type},
};
use crate::mcp::{
    cursor,
    handshake::{DISCOVER_VERSION, Era},
    secrets::base64,
};

/// Time a server has to end its session.
const ENDED_WITHIN: Duration = Duration::from_secs(2);
/// Time a server has to open its own stream before the first request goes out; some only do with its first event.
const LISTENS_WITHIN: Duration = Duration::from_millis(300);
/// Where a request of 2026-07-28 says its version.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// A remote transport.
pub(super) struct Remote {
    link: Arc<Link>,
    inbox: mpsc::Receiver<Option<RxJsonRpcMessage<RoleClient>>>,
    /// Readers of answers; they end with the transport.
    readers: Arc<Mutex<JoinSet<()>>>,
    /// Where the old transport posts to; `None` for streamable HTTP.
    endpoint: Option<watch::Receiver<Option<Url>>>,
}

impl Remote {
    /// Streamable HTTP: every message is a POST that brings its own answer.
    pub(super) fn streamable(link: Arc<Link>, inbox: mpsc::Receiver<Option<RxJsonRpcMessage<RoleClient>>>) -> Self {
        Self { link, inbox, readers: Arc::default(), endpoint: None }
    }

    /// HTTP with SSE: answers come on one stream, which names the place to post to.
    pub(super) async fn sse(link: Arc<Link>, inbox: mpsc::Receiver<Option<RxJsonRpcMessage<RoleClient>>>) -> Result<Self, Fault> {
        let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("text/event-stream"))]);
        let mut response = link.request(Method::GET, &link.url, None, accept).await?;
        if !response.status().is_success() {
            return Err(link.judge(&response));
        }
        if content_type(&response) != "text/event-stream" {
            return Err(Fault::NotMcp("its address gives no event stream".to_owned()));
        }
        // A redirect may have led elsewhere on the origin, and what is relative is so to where it ended.
        let base = response.url().clone();
        let (place, endpoint) = watch::channel(None);
        let mut readers = JoinSet::new();
        let reading = Arc::clone(&link);
        readers.spawn(async move {
            let on_endpoint = |text: &str| {
                let url = base.join(text).map_err(|_| Fault::NotMcp("its endpoint is no address".to_owned()))?;
                if url.origin() != reading.url.origin() {
                    return Err(Fault::Foreign);
                }
                place.send_if_modified(|known| known.is_none() && known.replace(url).is_none());
                Ok(())
            };
            let fault = reading.follow(&mut response, on_endpoint).await;
            reading.fail(fault).await;
        });
        Ok(Self { link, inbox, readers: Arc::new(Mutex::new(readers)), endpoint: Some(endpoint) })
    }
}

impl Transport<RoleClient> for Remote {
    type Error = Fault;

    fn send(&mut self, item: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), Fault>> + Send + 'static {
        self.link.kept.expect(&item);
        let (link, readers, endpoint) = (Arc::clone(&self.link), Arc::clone(&self.readers), self.endpoint.clone());
        async move {
            let sending = async {
                match endpoint {
                    None => post(&link, &readers, &item).await,
                    Some(endpoint) => post_aside(&link, endpoint, &item).await,
                }
            };
            timeout(link.bounds.answer, sending).await.unwrap_or(Err(Fault::Late))
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.inbox.recv().await.flatten()
    }

    async fn close(&mut self) -> Result<(), Fault> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        if self.link.session().is_some() {
            let goodbye = self.link.request(Method::DELETE, &self.link.url, None, HeaderMap::new());
            timeout(ENDED_WITHIN, goodbye).await.ok();
        }
        Ok(())
    }
}

/// Posts a message; its answer is read aside, so that whoever sends never waits for whoever receives.
async fn post(link: &Arc<Link>, readers: &Mutex<JoinSet<()>>, item: &TxJsonRpcMessage<RoleClient>) -> Result<(), Fault> {
    let awaited: Option<RequestId> = match item {
        JsonRpcMessage::Request(request) => Some(request.id.clone()),
        _ => None,
    };
    let message = cursor::value(item).unwrap_or_default();
    let body = message.to_string().into_bytes();
    let mut headers = standard_headers(&message, link.era);
    if let Some(tool) = called_tool(&message) {
        headers.extend(link.argument_headers(tool, &message["params"]["arguments"]));
    }
    let mut response = link.request(Method::POST, &link.url, Some(body), headers).await?;
    if !response.status().is_success() {
        let fault = link.judge(&response);
        return match &awaited {
            // A server may refuse a message with an error status and still say why.
            Some(id) if matches!(fault, Fault::Status(_)) && link.read_error(&mut response, id).await => Ok(()),
            _ => Err(fault),
        };
    }
    link.remember(&response);
    let (reading, answer) = (Arc::clone(link), link.bounds.answer);
    // Whoever asked has given up when the time is over.
    aside(readers, async move { drop(timeout(answer, reading.read_answer(response, awaited)).await) });
    if message["method"] == "notifications/initialized" {
        let (listens, listening) = oneshot::channel();
        let listener = Arc::clone(link);
        aside(readers, async move { listener.listen(listens).await });
        // What a server asks before it is listened to is lost with many.
        timeout(LISTENS_WITHIN, listening).await.ok();
    }
    Ok(())
}

fn aside(readers: &Mutex<JoinSet<()>>, reading: impl Future<Output = ()> + Send + 'static) {
    let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
    while readers.try_join_next().is_some() {}
    readers.spawn(reading);
}

/// Posts a message of the old transport, once its stream has said where.
async fn post_aside(
    link: &Link,
    mut endpoint: watch::Receiver<Option<Url>>,
    item: &TxJsonRpcMessage<RoleClient>,
) -> Result<(), Fault> {
    let gone = |_| link.ended().unwrap_or(Fault::CutOff);
    let url = endpoint.wait_for(Option::is_some).await.map_err(gone)?.clone();
    let body = cursor::written(item).unwrap_or_default();
    let Some(url) = url else { return Err(Fault::CutOff) };
    let response = link.request(Method::POST, &url, Some(body), HeaderMap::new()).await?;
    if response.status().is_success() { Ok(()) } else { Err(link.judge(&response)) }
}

/// The tool that a message calls.
fn called_tool(message: &Value) -> Option<&str> {
    if message["method"] == "tools/call" { message["params"]["name"].as_str() } else { None }
}

/// The headers by which those in between route a message of 2026-07-28.
fn standard_headers(message: &Value, era: Era) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if era != Era::Discover {
        return headers;
    }
    // Notifications do not say their version.
    let version = message["params"]["_meta"][VERSION_KEY].as_str().unwrap_or(DISCOVER_VERSION);
    let parts =
        [("mcp-protocol-version", Some(version)), ("mcp-method", message["method"].as_str()), ("mcp-name", called_tool(message))];
    for (header, value) in parts {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&header_text(value)).ok()) {
            headers.insert(HeaderName::from_static(header), value);
        }
    }
    headers
}

/// A text as a header may carry it: in Base64 when it is not plain.
pub(super) fn header_text(text: &str) -> String {
    let plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) && text.trim() == text;
    if plain && !text.starts_with("=?base64?") { text.to_owned() } else { format!("=?base64?{}?=", base64(text.as_bytes())) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_fit_into_headers() {
        assert_eq!(header_text("echo"), "echo");
        assert_eq!(header_text("é"), "=?base64?w6k=?=");
        assert_eq!(header_text(" ab"), "=?base64?IGFi?=");
        assert_eq!(header_text(" abc"), "=?base64?IGFiYw==?=");
        let meta = json!({ VERSION_KEY: "2026-07-28" });
        let call = json!({"method": "tools/call", "params": {"name": "echo", "_meta": meta}});
        let headers = standard_headers(&call, Era::Discover);
        assert_eq!((&headers["mcp-method"], &headers["mcp-name"]), (&"tools/call".parse().unwrap(), &"echo".parse().unwrap()));
        assert!(standard_headers(&call, Era::Initialize).is_empty());
        let headers = standard_headers(&json!({"method": "notifications/cancelled"}), Era::Discover);
        assert_eq!((&headers["mcp-protocol-version"], headers.len()), (&"2026-07-28".parse().unwrap(), 2));
    }
}

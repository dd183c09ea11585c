//! What a transport keeps for the runner: the JSON of answers as the server wrote it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use mcpmill_core::{json, text::shown};
use rmcp::{
    RoleClient,
    model::{ClientRequest, JsonRpcMessage, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
};
use serde_json::{Value, json};

use super::{remote::Fault, secrets::Secrets};

/// Values in one message. Read, each takes up to some dozens of bytes however short it was on the wire,
/// so that bytes alone do not bound what a message costs.
const MOST_VALUES: usize = 1 << 20;
/// Requests a server may make over its life. Each waits for its turn to be answered, and a server need not
/// read the answers.
const MOST_REQUESTS: u64 = 10_000;
/// Protocol versions a server may say it speaks; more are not noted.
const MOST_OFFERED: usize = 16;
/// Schemas with secrets that are told of; what there is in others is hidden all the same.
const MOST_ALTERED: usize = 20;

/// What has become of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// Nothing yet.
    Awaited,
    /// Its result, as the server wrote it.
    Came(Value),
    /// There will be none, for a reason of its own: the connection may go on.
    Lost(Fault),
}

/// Answers, and what was odd on the way. Every transport has one; rmcp only learns that an answer came.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Taken out of every message before anything is made of it, or half of one would stay where a text is cut.
    secrets: Arc<Secrets>,
    /// Answers by request, for those that are waited for.
    replies: Mutex<HashMap<RequestId, Answer>>,
    offered: Mutex<Vec<String>>,
    flooded: AtomicBool,
    noise: AtomicU64,
    requests: AtomicU64,
    mended: AtomicU64,
    rounded: AtomicU64,
    odd_cursors: AtomicU64,
    /// Schemas that a secret was taken out of, in words.
    altered: Mutex<BTreeSet<String>>,
}

impl Kept {
    /// Nothing yet, of a server that knows `secrets`.
    pub(super) fn new(secrets: Arc<Secrets>) -> Self {
        Self { secrets, ..Self::default() }
    }

    /// A text of the server without secrets, whole as it came.
    pub(super) fn clean(&self, text: &str) -> String {
        self.secrets.out_of(text)
    }

    /// Whether the server sent more than it may.
    pub(super) fn flooded(&self) -> bool {
        self.flooded.load(Ordering::Relaxed)
    }

    pub(super) fn flood(&self) {
        self.flooded.store(true, Ordering::Relaxed);
    }

    /// Lines that were no message.
    pub(super) fn noise(&self) -> u64 {
        self.noise.load(Ordering::Relaxed)
    }

    /// Messages in which broken characters were replaced.
    pub(super) fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }

    /// Messages with numbers of more digits than are kept.
    pub(super) fn rounded(&self) -> u64 {
        self.rounded.load(Ordering::Relaxed)
    }

    /// Cursors that were neither text nor number.
    pub(super) fn odd_cursors(&self) -> u64 {
        self.odd_cursors.load(Ordering::Relaxed)
    }

    /// Schemas of tools that hold secrets, in words.
    pub(super) fn altered(&self) -> Vec<String> {
        self.altered.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(super) fn note_odd_cursor(&self) {
        self.odd_cursors.fetch_add(1, Ordering::Relaxed);
    }

    /// Protocol versions the server named in an answer to `server/discover` or when it refused one.
    pub(super) fn offered(&self) -> Vec<String> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The answer to this message is to be kept, when it becomes data.
    pub(super) fn expect(&self, item: &TxJsonRpcMessage<RoleClient>) {
        if let JsonRpcMessage::Request(request) = item
            && matches!(request.request, ClientRequest::ListToolsRequest(_) | ClientRequest::CallToolRequest(_))
        {
            self.replies().insert(request.id.clone(), Answer::Awaited);
        }
    }

    /// What has become of a request. Whoever waited no longer does.
    pub(super) fn take(&self, id: &RequestId) -> Option<Answer> {
        self.replies().remove(id)
    }

    /// The answer to this request is lost; the error that tells rmcp so. `None` when nobody waits for it.
    pub(super) fn lose(&self, id: &RequestId, fault: Fault) -> Option<RxJsonRpcMessage<RoleClient>> {
        let mut replies = self.replies();
        let waiting = replies.get_mut(id).filter(|waiting| **waiting == Answer::Awaited)?;
        let error = json!({ "code": -32603, "message": fault.to_string() });
        *waiting = Answer::Lost(fault);
        serde_json::from_value(json!({ "jsonrpc": "2.0", "id": id, "error": error })).ok()
    }

    pub(super) fn replies(&self) -> MutexGuard<'_, HashMap<RequestId, Answer>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one line. Lines that are no JSON-RPC are the server's chatter: counted, and no more.
    pub(super) fn understand(&self, line: &[u8]) -> Vec<RxJsonRpcMessage<RoleClient>> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if line.is_empty() {
            return Vec::new();
        }
        // A progress bar leaves its last state before the message on the same line.
        let after_return = line.iter().rposition(|byte| *byte == b'\r').map(|at| &line[at + 1..]);
        let mut messages = self.read(line);
        if messages.is_empty()
            && let Some(rest) = after_return
        {
            messages = self.read(rest.trim_ascii());
        }
        if messages.is_empty() {
            self.noise.fetch_add(1, Ordering::Relaxed);
            messages = self.behind_noise(line);
        }
        messages
    }

    /// The answer that stands behind chatter on the same line. Only an answer: what looks like a request
    /// there is a log of what was said.
    fn behind_noise(&self, line: &[u8]) -> Vec<RxJsonRpcMessage<RoleClient>> {
        let find = |part: &[u8]| line.windows(part.len()).position(|window| window == part);
        for at in [find(br#"{"jsonrpc""#), find(b"{")].into_iter().flatten().filter(|at| *at > 0) {
            let text = line[at..].trim_ascii();
            if is_too_much(text) {
                self.flood();
                return Vec::new();
            }
            let answer = json::read(text).filter(|read| read.value.get("method").is_none());
            let message = answer.and_then(|read| self.message(read.value));
            if let Some(message) = message {
                return vec![message];
            }
        }
        Vec::new()
    }

    fn read(&self, text: &[u8]) -> Vec<RxJsonRpcMessage<RoleClient>> {
        // Most chatter is recognised by its first letter.
        if !matches!(text.first(), Some(b'{' | b'[')) {
            return Vec::new();
        }
        if is_too_much(text) {
            self.flood();
            return Vec::new();
        }
        let Some(read) = json::read(text) else { return Vec::new() };
        let messages = self.messages(read.value);
        if !messages.is_empty() {
            self.note_changes(text, read.mended);
        }
        messages
    }

    /// Counts a message that is not kept as it was sent.
    pub(super) fn note_changes(&self, text: &[u8], mended: bool) {
        self.mended.fetch_add(u64::from(mended), Ordering::Relaxed);
        self.rounded.fetch_add(u64::from(json::is_rounded(text)), Ordering::Relaxed);
    }

    /// What one JSON text holds: a message, or, as 2025-03-26 has it, a list of such.
    pub(super) fn messages(&self, text: Value) -> Vec<RxJsonRpcMessage<RoleClient>> {
        match text {
            Value::Array(batch) => batch.into_iter().filter_map(|message| self.message(message)).collect(),
            message => self.message(message).into_iter().collect(),
        }
    }

    /// One JSON value as a message, its result set aside.
    fn message(&self, mut message: Value) -> Option<RxJsonRpcMessage<RoleClient>> {
        let fields = message.as_object_mut()?;
        let altered = self.secrets.message(fields);
        if !altered.is_empty() {
            let mut all = self.altered.lock().unwrap_or_else(PoisonError::into_inner);
            let room = MOST_ALTERED.saturating_sub(all.len());
            all.extend(altered.into_iter().take(room));
        }
        if fields.contains_key("method") {
            if fields.contains_key("id") && self.requests.fetch_add(1, Ordering::Relaxed) >= MOST_REQUESTS {
                self.flood();
                return None;
            }
            return serde_json::from_value(message).ok();
        }
        let id: RequestId = serde_json::from_value(fields.get("id")?.clone()).ok()?;
        // Some write both, and null for the one that there is not.
        if fields.get("error").is_some_and(Value::is_null) {
            fields.shift_remove("error");
        } else if fields.contains_key("error") {
            fields.shift_remove("result");
        }
        if let Some(error) = fields.get_mut("error") {
            self.note(&error["data"]["supported"]);
            *error = self.tidy(error);
        } else if let Some(waiting) = waiting_for(&mut self.replies(), &id) {
            // rmcp only has to know that the answer came. A second one does not take its place.
            let result = fields.insert("result".to_owned(), json!({}))?;
            if *waiting == Answer::Awaited {
                *waiting = Answer::Came(result);
            }
        } else {
            self.note(&fields.get("result")?["supportedVersions"]);
        }
        serde_json::from_value(message).ok()
    }

    /// An error object rmcp can read, whatever a server put there.
    fn tidy(&self, error: &Value) -> Value {
        let code = error["code"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(-32603);
        let message = match &error["message"] {
            Value::String(message) => message.clone(),
            // Written out, numbers are text as well.
            Value::Null => self.clean(&error.to_string()),
            other => self.clean(&other.to_string()),
        };
        let mut tidy = json!({ "code": code, "message": message });
        if let Some(data) = error.get("data") {
            tidy["data"] = data.clone();
        }
        tidy
    }

    fn note(&self, versions: &Value) {
        let Some(versions) = versions.as_array() else { return };
        let versions = versions.iter().filter_map(Value::as_str).take(MOST_OFFERED).map(|version| shown(version, 40));
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = versions.collect();
    }
}

/// The request an id names; some servers give a number back as text.
fn waiting_for<'a>(replies: &'a mut HashMap<RequestId, Answer>, id: &RequestId) -> Option<&'a mut Answer> {
    let id = match id {
        RequestId::String(text) if !replies.contains_key(id) => &RequestId::Number(text.parse().ok()?),
        id => id,
    };
    replies.get_mut(id)
}

/// Whether a JSON text holds more values than one message may.
pub(super) fn is_too_much(text: &[u8]) -> bool {
    // Every value but the first of its list or object stands behind a comma or a colon.
    if text.len() < MOST_VALUES {
        return false;
    }
    let (mut values, mut quoted, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' | b':' | b'[' | b'{' if !quoted => values += 1,
            _ => {}
        }
    }
    values > MOST_VALUES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_that_held_a_secret_are_told_of_once_and_within_bounds() {
        let kept = Kept::new(Arc::new(Secrets::new(&[("KEY".to_owned(), "s3cret-value".to_owned())].into())));
        let tool = |i: usize| json!({"name": format!("t{i:02}"), "inputSchema": {"default": "s3cret-value"}});
        let tools: Vec<Value> = (0..MOST_ALTERED + 5).map(tool).collect();
        let page = json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}).to_string();
        kept.understand(page.as_bytes());
        kept.understand(page.as_bytes());
        let told = kept.altered();
        assert_eq!((told.len(), told[3].as_str()), (MOST_ALTERED, "schema of `t03` holds the value of `KEY`"));
    }

    fn waiting(ids: &[i64]) -> Kept {
        let kept = Kept::default();
        kept.replies().extend(ids.iter().map(|id| (RequestId::Number(*id), Answer::Awaited)));
        kept
    }

    #[test]
    fn the_first_answer_counts_and_ids_may_be_text() {
        let kept = waiting(&[1, 2]);
        assert_eq!(kept.understand(br#"{"jsonrpc":"2.0","id":1,"result":{"first":1}}"#).len(), 1);
        assert_eq!(kept.understand(br#"{"jsonrpc":"2.0","id":1,"result":{"second":1}}"#).len(), 1);
        assert_eq!(kept.take(&RequestId::Number(1)), Some(Answer::Came(json!({"first": 1}))));
        assert_eq!(kept.understand(br#"{"jsonrpc":"2.0","id":"2","result":{"a":1}}"#).len(), 1);
        assert_eq!(kept.take(&RequestId::Number(2)), Some(Answer::Came(json!({"a": 1}))));
        assert_eq!(kept.take(&RequestId::Number(2)), None);
    }

    #[test]
    fn a_list_of_messages_is_each_of_them() {
        let kept = waiting(&[1, 2]);
        let batch = br#"[{"jsonrpc":"2.0","id":2,"result":{"b":1}},7,{"jsonrpc":"2.0","id":1,"result":{"a":1}}]"#;
        assert_eq!(kept.understand(batch).len(), 2);
        assert_eq!(kept.take(&RequestId::Number(1)), Some(Answer::Came(json!({"a": 1}))));
        assert_eq!(kept.take(&RequestId::Number(2)), Some(Answer::Came(json!({"b": 1}))));
        assert_eq!(kept.noise(), 0);
    }

    #[test]
    fn an_error_that_is_null_is_none() {
        let kept = waiting(&[1, 2]);
        let result = kept.understand(br#"{"jsonrpc":"2.0","id":1,"error":null,"result":{"a":1}}"#);
        assert!(matches!(result[0], JsonRpcMessage::Response(_)));
        assert_eq!(kept.take(&RequestId::Number(1)), Some(Answer::Came(json!({"a": 1}))));
        let error = kept.understand(br#"{"jsonrpc":"2.0","id":2,"result":null,"error":{"code":1,"message":"m"}}"#);
        assert!(matches!(error[0], JsonRpcMessage::Error(_)));
        assert!(kept.understand(br#"{"jsonrpc":"2.0","id":2,"error":null}"#).is_empty());
    }

    #[test]
    fn an_answer_is_found_behind_chatter_on_its_line() {
        let lines = [
            "\u{1b}[32mINFO\u{1b}[0m {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":1}}",
            "INFO { \"id\": 1, \"jsonrpc\": \"2.0\", \"result\": {\"a\": 1} }\r\n",
            "{level} x {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":1}}",
        ];
        for line in lines {
            let kept = waiting(&[1]);
            assert_eq!(kept.understand(line.as_bytes()).len(), 1, "{line}");
            assert_eq!((kept.take(&RequestId::Number(1)), kept.noise()), (Some(Answer::Came(json!({"a": 1}))), 1));
        }
        let kept = waiting(&[1]);
        let log = r#"DEBUG read {"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        assert_eq!((kept.understand(log.as_bytes()).len(), kept.noise()), (0, 1));
    }

    #[test]
    fn an_answer_is_lost_to_the_one_who_waits_for_it_alone() {
        let kept = waiting(&[1, 2]);
        assert!(kept.lose(&RequestId::Number(1), Fault::CutOff).is_some());
        assert!(kept.lose(&RequestId::Number(1), Fault::Late).is_none());
        assert!(kept.lose(&RequestId::Number(3), Fault::CutOff).is_none());
        assert_eq!(kept.take(&RequestId::Number(1)), Some(Answer::Lost(Fault::CutOff)));
        assert_eq!(kept.take(&RequestId::Number(2)), Some(Answer::Awaited));
    }

    #[test]
    fn many_small_values_are_too_much_and_long_texts_are_not() {
        let many = format!("[{}0]", "0,".repeat(MOST_VALUES));
        assert!(is_too_much(many.as_bytes()));
        let long = format!(r#"["\"{}"]"#, ",".repeat(2 * MOST_VALUES));
        assert!(!is_too_much(long.as_bytes()));
        let kept = waiting(&[1]);
        assert!(kept.understand(many.as_bytes()).is_empty());
        assert!(kept.flooded());
    }
}

//! What a transport keeps for the runner: the JSON of answers as the server wrote it.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
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

/// Protocol versions a server may say it speaks; more are not noted.
const MOST_OFFERED: usize = 16;

/// Answers, and what was odd on the way. Every transport has one; rmcp only learns that an answer came.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Answers by request; `None` while one is waited for.
    replies: Mutex<HashMap<RequestId, Option<Value>>>,
    offered: Mutex<Vec<String>>,
    flooded: AtomicBool,
    noise: AtomicU64,
    mended: AtomicU64,
}

impl Kept {
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

    /// Protocol versions the server named in an answer to `server/discover` or when it refused one.
    pub(super) fn offered(&self) -> Vec<String> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The answer to this message is to be kept, when it becomes data.
    pub(super) fn expect(&self, item: &TxJsonRpcMessage<RoleClient>) {
        if let JsonRpcMessage::Request(request) = item
            && matches!(request.request, ClientRequest::ListToolsRequest(_) | ClientRequest::CallToolRequest(_))
        {
            self.replies().insert(request.id.clone(), None);
        }
    }

    /// The result of a request, as the server wrote it. Whoever waited no longer does.
    pub(super) fn take(&self, id: &RequestId) -> Option<Value> {
        self.replies().remove(id).flatten()
    }

    pub(super) fn replies(&self) -> MutexGuard<'_, HashMap<RequestId, Option<Value>>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one line. Lines that are no JSON-RPC are the server's chatter: counted, and no more.
    pub(super) fn understand(&self, line: &[u8]) -> Option<RxJsonRpcMessage<RoleClient>> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if line.is_empty() {
            return None;
        }
        // A progress bar leaves its last state before the message on the same line.
        let after_return = line.iter().rposition(|byte| *byte == b'\r').map(|at| &line[at + 1..]);
        let message = self.read(line).or_else(|| self.read(after_return?.trim_ascii()));
        if message.is_none() {
            self.noise.fetch_add(1, Ordering::Relaxed);
        }
        message
    }

    fn read(&self, text: &[u8]) -> Option<RxJsonRpcMessage<RoleClient>> {
        // Most chatter is recognised by its first letter.
        if text.first() != Some(&b'{') {
            return None;
        }
        let read = json::read(text)?;
        let message = self.message(read.value)?;
        self.mended.fetch_add(u64::from(read.mended), Ordering::Relaxed);
        Some(message)
    }

    /// One JSON value as a message, its result set aside.
    pub(super) fn message(&self, mut message: Value) -> Option<RxJsonRpcMessage<RoleClient>> {
        let fields = message.as_object_mut()?;
        if fields.contains_key("method") {
            return serde_json::from_value(message).ok();
        }
        let id: RequestId = serde_json::from_value(fields.get("id")?.clone()).ok()?;
        if let Some(error) = fields.get_mut("error") {
            self.note(&error["data"]["supported"]);
            *error = tidy(error);
        } else if let Some(waiting) = self.replies().get_mut(&id) {
            // rmcp only has to know that the answer came.
            *waiting = fields.insert("result".to_owned(), json!({}));
        } else {
            self.note(&fields.get("result")?["supportedVersions"]);
        }
        serde_json::from_value(message).ok()
    }

    fn note(&self, versions: &Value) {
        let Some(versions) = versions.as_array() else { return };
        let versions = versions.iter().filter_map(Value::as_str).take(MOST_OFFERED).map(|version| shown(version, 40));
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = versions.collect();
    }
}

/// An error object rmcp can read, whatever a server put there.
fn tidy(error: &Value) -> Value {
    let code = error["code"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(-32603);
    let message = match &error["message"] {
        Value::String(message) => message.clone(),
        Value::Null => error.to_string(),
        other => other.to_string(),
    };
    let mut tidy = json!({ "code": code, "message": message });
    if let Some(data) = error.get("data") {
        tidy["data"] = data.clone();
    }
    tidy
}

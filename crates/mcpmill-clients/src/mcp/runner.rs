//! A server that runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{ProcessEnd, ServerInfo, ToolError, ToolErrorKind, ToolPage, ToolRunner},
    json::why_cut,
    record::{ToolDraft, ToolResult},
    text::{clipped, shown},
};
use rmcp::{
    RoleClient, ServiceError,
    model::{CallToolRequest, CallToolRequestParams, ClientRequest, ListToolsRequest, PaginatedRequestParams, RequestId},
    service::{PeerRequestOptions, RunningService},
};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    ServerLimits,
    client::Client,
    complaints::Complaints,
    cursor,
    kept::{Answer, Kept},
    remote::{Fault, Link},
    secrets::Secrets,
};
use crate::{cage::Running, install::InUse};

/// Time a server has to end by itself once its input is closed. What it did not save is the user's own.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
/// The same in the cage, where all that it could still save is thrown away.
const CLOSED_IN_CAGE: Duration = Duration::from_millis(500);
/// Time given to rmcp beyond the time limit of a request.
const SLACK: Duration = Duration::from_secs(2);
/// Times a server may ask for input before it answers a call.
const ROUNDS: usize = 5;
/// Pages that are looked through for a tool that is called before any list was asked for.
const LOOKED_THROUGH: usize = 20;
/// Inputs it may ask for at once.
const MOST_INPUTS: usize = 16;
/// Time the end of a process may take to be noticed after its output ended.
const NOTICED_WITHIN: Duration = Duration::from_millis(300);

/// Where a server runs.
pub(super) enum Behind {
    /// In the cage.
    Process { running: Box<Running>, complaints: Complaints },
    /// At the other end of a link.
    Web(Arc<Link>),
}

/// A server with an open connection.
pub(super) struct Runner {
    pub(super) server: String,
    pub(super) info: ServerInfo,
    pub(super) behind: Behind,
    pub(super) service: RunningService<RoleClient, Client>,
    pub(super) kept: Arc<Kept>,
    pub(super) limits: ServerLimits,
    /// When the first page of its tools was asked for.
    pub(super) listing: Mutex<Option<Instant>>,
    /// Values that appear in no error.
    pub(super) secrets: Arc<Secrets>,
    /// Keeps its package from being removed.
    pub(super) _in_use: Option<InUse>,
}

/// Forgets a request whose caller has gone.
struct Waiting<'a>(&'a Kept, RequestId);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.take(&self.1);
    }
}

impl Runner {
    /// The result of a request as the server wrote it.
    async fn ask(&self, action: &str, request: ClientRequest) -> Result<Value, ToolError> {
        let sent_and_answered = async {
            let options = PeerRequestOptions::with_timeout(self.limits.answer);
            let handle = self.service.peer().send_cancellable_request(request, options).await?;
            let waiting = Waiting(&self.kept, handle.id.clone());
            let answered = handle.await_response().await;
            match self.kept.take(&waiting.1) {
                Some(Answer::Lost(fault)) => Ok(Err(fault)),
                Some(Answer::Came(result)) => answered.map(|_| Ok(Some(result))),
                Some(Answer::Awaited) | None => answered.map(|_| Ok(None)),
            }
        };
        let answer = match timeout(self.limits.answer + SLACK, sent_and_answered).await {
            Ok(answer) => answer,
            Err(_) => Err(ServiceError::Timeout { timeout: self.limits.answer }),
        };
        match answer {
            Ok(Ok(Some(result))) => Ok(result),
            Ok(Ok(None)) => Err(self.error(action, ToolErrorKind::Protocol, "its answer has no result")),
            Ok(Err(fault)) => Err(self.lost(action, &fault)),
            Err(error) => Err(self.failure(action, error).await),
        }
    }

    async fn failure(&self, action: &str, error: ServiceError) -> ToolError {
        match error {
            ServiceError::McpError(error) => {
                let data = error
                    .data
                    .map(|data| format!(" ({})", clipped(&self.secrets.out_of(&data.to_string()), 2000)))
                    .unwrap_or_default();
                self.error(action, ToolErrorKind::Rpc(i64::from(error.code.0)), format!("{}{data}", error.message))
            }
            ServiceError::Timeout { .. } => self.lost(action, &Fault::Late),
            ServiceError::UnexpectedResponse => self.error(action, ToolErrorKind::Protocol, "its answer is to another question"),
            ServiceError::TransportSend(error) => match error.error.downcast_ref::<Fault>() {
                Some(fault) => self.lost(action, fault),
                None => self.broken(action).await,
            },
            ServiceError::TransportClosed | ServiceError::Cancelled { .. } => self.broken(action).await,
            other => self.error(action, ToolErrorKind::Protocol, other.to_string()),
        }
    }

    /// Why one request had no answer.
    fn lost(&self, action: &str, fault: &Fault) -> ToolError {
        match fault {
            Fault::Late => self.error(action, fault.kind(), format!("no answer within {} s", self.limits.answer.as_secs_f32())),
            fault => self.error(action, fault.kind(), fault.to_string()),
        }
    }

    /// Why the connection broke.
    async fn broken(&self, action: &str) -> ToolError {
        let Behind::Process { running, complaints } = &self.behind else { return self.gone(action) };
        tokio::time::sleep(NOTICED_WITHIN).await;
        if self.kept.flooded() {
            return self.error(action, ToolErrorKind::Limit, "it printed too much");
        }
        if let Some(end) = running.overrun() {
            return self.error(action, ToolErrorKind::Limit, too_much(end));
        }
        let mut detail = match running.exit_code() {
            Some(code) => format!("the server ended with exit code {code}"),
            None => "the server closed the connection".to_owned(),
        };
        if let Some(line) = complaints.last_line() {
            detail.push_str(": ");
            detail.push_str(&line);
        }
        self.error(action, ToolErrorKind::Disconnected, detail)
    }

    /// Why a remote server is not there any more.
    fn gone(&self, action: &str) -> ToolError {
        let fault = match &self.behind {
            Behind::Web(link) => link.ended(),
            Behind::Process { .. } => None,
        };
        match fault {
            Some(fault) => self.lost(action, &fault),
            None => self.error(action, ToolErrorKind::Disconnected, "the server closed the connection"),
        }
    }

    /// What a server wants before it answers, as far as it is given: the world is its root, and nobody is
    /// here to be asked anything.
    fn inputs(&self, result: &Value) -> Result<BTreeMap<String, Value>, String> {
        let wanted = result["inputRequests"].as_object().cloned().unwrap_or_default();
        if wanted.len() > MOST_INPUTS {
            return Err(format!("it wants more than {MOST_INPUTS} inputs at once"));
        }
        let client = self.service.service();
        let given = |(name, request): (String, Value)| match request["method"].as_str() {
            Some("roots/list") => Ok((name, client.roots())),
            Some("elicitation/create") => Ok((name, client.answer(&request["params"]["requestedSchema"]))),
            other => Err(format!("it wants `{}`, which is not given", shown(other.unwrap_or_default(), 60))),
        };
        wanted.into_iter().map(given).collect()
    }

    /// When the list has to be whole: each page in time is not enough, for there may be many.
    fn list_until(&self, begins: bool) -> Instant {
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = listing.filter(|_| !begins).unwrap_or_else(Instant::now);
        *listing = Some(begun);
        begun + self.limits.list
    }

    /// Lists tools until it is known which arguments of this one go into headers, as far as it is listed.
    async fn look_up(&self, link: &Link, tool: &str) {
        let mut cursor = None;
        for _ in 0..LOOKED_THROUGH {
            match self.list_tools(cursor).await {
                Ok(page) if page.next_cursor.is_some() && link.has_not_seen(tool) => cursor = page.next_cursor,
                _ => break,
            }
        }
    }

    fn error(&self, action: &str, kind: ToolErrorKind, detail: impl Into<String>) -> ToolError {
        let detail = self.secrets.out_of(&detail.into());
        ToolError { server: self.server.clone(), action: action.to_owned(), kind, detail }
    }
}

/// A bound of the cage in words.
pub(super) fn too_much(end: ProcessEnd) -> &'static str {
    match end {
        ProcessEnd::OutOfMemory => "it used too much memory",
        ProcessEnd::TooManyProcesses => "it started too many processes",
        ProcessEnd::TooMuchDisk => "it wrote too much to its folders",
        ProcessEnd::TooMuchOutput => "it printed too much",
        ProcessEnd::TimedOut => "it took too long",
        ProcessEnd::Exited(_) | ProcessEnd::Signalled(_) => "it ended",
    }
}

#[async_trait]
impl ToolRunner for Runner {
    fn info(&self) -> &ServerInfo {
        &self.info
    }

    async fn list_tools(&self, cursor: Option<String>) -> Result<ToolPage, ToolError> {
        let until = self.list_until(cursor.is_none());
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
        let Ok(result) = timeout_at(until, self.ask("list tools", request)).await else {
            let detail = format!("its pages took more than {} s", self.limits.list.as_secs_f32());
            return Err(self.error("list tools", ToolErrorKind::TimedOut, detail));
        };
        let result = result?;
        let cursor = cursor::read(&result["nextCursor"]);
        if cursor.is_err() {
            self.kept.note_odd_cursor();
        }
        let mut page = page(result).map_err(|detail| self.error("list tools", ToolErrorKind::Protocol, detail))?;
        page.next_cursor = cursor.unwrap_or_default();
        if let Behind::Web(link) = &self.behind {
            let (tools, refused) = (&mut page.tools, &mut page.refused);
            tools.retain(|tool| match link.mirror(&tool.name, &tool.input_schema) {
                Ok(()) => true,
                Err(why) => {
                    refused.push(format!("`{}` {why}", shown(&tool.name, 80)));
                    false
                }
            });
        }
        Ok(page)
    }

    async fn call_tool(&self, name: &str, arguments: &Map<String, Value>) -> Result<ToolResult, ToolError> {
        let action = format!("call tool `{name}`");
        let wrong = |detail: String| self.error(&action, ToolErrorKind::Protocol, detail);
        if let Behind::Web(link) = &self.behind
            && link.has_not_seen(name)
        {
            self.look_up(link, name).await;
        }
        let mut params = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments.clone());
        for _ in 0..ROUNDS {
            let result = self.ask(&action, ClientRequest::CallToolRequest(CallToolRequest::new(params.clone()))).await?;
            if result["resultType"] != "input_required" {
                return tool_result(result).map_err(wrong);
            }
            params.input_responses = Some(self.inputs(&result).map_err(wrong)?);
            params.request_state = result["requestState"].as_str().map(str::to_owned);
        }
        Err(wrong(format!("it wanted input {ROUNDS} times and gave no result")))
    }

    fn oddities(&self) -> Vec<String> {
        let noted = [
            ("stdout_noise", self.kept.noise(), "lines"),
            ("mended", self.kept.mended(), "messages with broken characters"),
            ("rounded", self.kept.rounded(), "messages with numbers of more digits than are kept"),
        ];
        let counted = noted.iter().filter(|(_, count, _)| *count > 0).map(|(what, count, of)| format!("{what}: {count} {of}"));
        let cursor = (self.kept.odd_cursors() > 0).then(|| "pagination: a cursor that is neither text nor number".to_owned());
        counted.chain(cursor).chain(self.kept.altered()).collect()
    }

    async fn close(mut self: Box<Self>) {
        // Closes the server's standard input, which is how a server is told to end.
        self.service.close_with_timeout(CLOSED_WITHIN).await.ok();
        if let Behind::Process { running, .. } = &mut self.behind {
            running.kill_after(if running.is_caged() { CLOSED_IN_CAGE } else { CLOSED_WITHIN }).await;
            running.let_go().await;
        }
    }
}

/// A page of tools, every schema as it was sent. What is no tool is left out alone.
fn page(mut result: Value) -> Result<ToolPage, String> {
    let Some(Value::Array(listed)) = result.get_mut("tools").map(Value::take) else {
        return Err("its answer holds no list of tools".to_owned());
    };
    let mut page = ToolPage::default();
    for tool in listed {
        match draft(tool) {
            Ok(tool) => page.tools.push(tool),
            Err(why) => page.refused.push(why),
        }
    }
    Ok(page)
}

fn draft(mut tool: Value) -> Result<ToolDraft, String> {
    let text = |tool: &Value, key: &str| tool[key].as_str().map(str::to_owned);
    let Some(name) = text(&tool, "name").filter(|name| !name.is_empty()) else {
        return Err("a tool without a name".to_owned());
    };
    let refused = |why: &str| Err(format!("`{}` {why}", shown(&name, 80)));
    if let Some(why) = why_cut(&tool) {
        return refused(why);
    }
    let mut part = |key: &str| tool.get_mut(key).map(Value::take).filter(|value| !value.is_null());
    // Absent in no server that was seen; a tool without one takes anything.
    let input_schema = part("inputSchema").unwrap_or_else(|| json!({}));
    let (output_schema, annotations) = (part("outputSchema"), part("annotations"));
    if !input_schema.is_object() && !input_schema.is_boolean() {
        return refused("has an input schema that is none");
    }
    Ok(ToolDraft {
        name,
        title: text(&tool, "title"),
        description: text(&tool, "description"),
        input_schema,
        output_schema,
        annotations,
    })
}

fn tool_result(mut result: Value) -> Result<ToolResult, String> {
    if let Some(kind) = result["resultType"].as_str().filter(|kind| *kind != "complete") {
        return Err(format!("its answer is of the type `{kind}`, which is not supported"));
    }
    let is_error = result["isError"].as_bool().unwrap_or(false);
    let structured_content = result.get_mut("structuredContent").map(Value::take).filter(|value| !value.is_null());
    let content = match result.get_mut("content").map(Value::take) {
        None | Some(Value::Null) if structured_content.is_some() || is_error => json!([]),
        Some(content @ Value::Array(_)) => content,
        _ => return Err("its answer holds no content".to_owned()),
    };
    Ok(ToolResult { content, structured_content, is_error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_verbatim() {
        let tool = r#"{"annotations":{"z":1,"readOnlyHint":true},"description":"d","name":"n","inputSchema":{"type":"object","b":{"z":1,"a":[]}},"outputSchema":null,"extra":1}"#;
        let page = page(json!({"tools": [serde_json::from_str::<Value>(tool).unwrap()]})).unwrap();
        let draft = &page.tools[0];
        assert_eq!(draft.annotations.as_ref().unwrap().to_string(), r#"{"z":1,"readOnlyHint":true}"#);
        assert_eq!(draft.input_schema.to_string(), r#"{"type":"object","b":{"z":1,"a":[]}}"#);
        assert_eq!(draft.output_schema, None);
    }

    #[test]
    fn results_that_are_none_are_refused() {
        assert!(page(json!({})).is_err());
        let page_of_bad = page(json!({"tools": [{}, 7, {"name": "a", "inputSchema": 1}, {"name": "b"}]})).unwrap();
        assert_eq!(page_of_bad.tools.len(), 1);
        assert_eq!(page_of_bad.refused[1..], ["a tool without a name", "`a` has an input schema that is none"]);
        assert!(page(json!("x")).is_err());
        assert!(tool_result(json!({})).is_err());
        assert!(tool_result(json!("x")).is_err());
        assert!(tool_result(json!([1])).is_err());
        assert!(tool_result(json!({"resultType": "input_required"})).is_err());
        assert!(tool_result(json!({"content": [], "resultType": "complete"})).is_ok());
        let structured = tool_result(json!({"structuredContent": {"b": 1, "a": 2}})).unwrap();
        assert_eq!(structured.structured_content.unwrap().to_string(), r#"{"b":1,"a":2}"#);
    }
}

//! Servers that answer by a function: for tests of what calls tools.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{ConnectError, Connector, ServerInfo, ToolError, ToolPage, ToolRunner, WorldSpec},
    record::{HarvestOutcome, ServerRecord, ToolResult},
};
use serde_json::{Map, Value, json};

/// A call: tool and arguments.
pub type Call = (String, Map<String, Value>);

/// What a server answers to a call, given its name and the calls before it in the same world.
type Answers = dyn Fn(&str, &[Call], &Call) -> Result<ToolResult, ToolError> + Send + Sync;

/// Servers that answer by a function, and keep what they were asked.
pub struct ScriptedServers {
    answers: Arc<Answers>,
    log: Arc<Mutex<Vec<String>>>,
    absent: Mutex<Vec<String>>,
}

impl ScriptedServers {
    /// Servers that answer by `answers`.
    pub fn new(answers: impl Fn(&str, &[Call], &Call) -> Result<ToolResult, ToolError> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { answers: Arc::new(answers), log: Arc::default(), absent: Mutex::default() })
    }

    /// Servers of this name do not start.
    pub fn without(&self, name: &str) {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
    }

    /// What happened so far, in order: `+name` for a start, `name tool` for a call, `-name` for an end.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn note(log: &Mutex<Vec<String>>, what: String) {
    log.lock().unwrap_or_else(PoisonError::into_inner).push(what);
}

/// An answer of one text block.
pub fn text(text: &str) -> ToolResult {
    ToolResult { content: json!([{"type": "text", "text": text}]), structured_content: None, is_error: false }
}

#[async_trait]
impl Connector for ScriptedServers {
    async fn connect(&self, server: &ServerRecord, _: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        if self.absent.lock().unwrap_or_else(PoisonError::into_inner).contains(&server.name) {
            let detail = "it is absent".to_owned();
            return Err(ConnectError {
                server: server.name.clone(),
                outcome: HarvestOutcome::LaunchFailed,
                detail,
                stderr: None,
            });
        }
        note(&self.log, format!("+{}", server.name));
        let runner = Running {
            name: server.name.clone(),
            answers: Arc::clone(&self.answers),
            log: Arc::clone(&self.log),
            before: Mutex::default(),
            info: ServerInfo::default(),
        };
        Ok(Box::new(runner))
    }
}

struct Running {
    name: String,
    answers: Arc<Answers>,
    log: Arc<Mutex<Vec<String>>>,
    before: Mutex<Vec<Call>>,
    info: ServerInfo,
}

#[async_trait]
impl ToolRunner for Running {
    fn info(&self) -> &ServerInfo {
        &self.info
    }

    async fn list_tools(&self, _: Option<String>) -> Result<ToolPage, ToolError> {
        Ok(ToolPage::default())
    }

    async fn call_tool(&self, name: &str, arguments: &Map<String, Value>) -> Result<ToolResult, ToolError> {
        note(&self.log, format!("{} {name}", self.name));
        let call = (name.to_owned(), arguments.clone());
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = (self.answers)(&self.name, &before, &call);
        before.push(call);
        answer
    }

    fn oddities(&self) -> Vec<String> {
        Vec::new()
    }

    async fn close(self: Box<Self>) {
        note(&self.log, format!("-{}", self.name));
    }
}

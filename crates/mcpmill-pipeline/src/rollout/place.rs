//! One server of one conversation: a fresh world, one connection for the whole length, every call recorded.
//!
//! A server is started only when a call must be made live. A call that this run recorded already is not made again
//! unless a later one is: then the world of a new connection has to be brought to where it was, so the earlier calls
//! are repeated in it first. Where one is answered otherwise than it was recorded (a new id, a time), that world cannot
//! be had again and the whole conversation begins anew, under keys of its own.

use mcpmill_core::{
    edge::{ConnectError, Connector, ExchangeError, ExchangeKind, OpeningCall, Recorder, ToolError, ToolRunner, WorldSpec},
    record::{HarvestOutcome, ServerRecord, ToolResult},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::{filter::failing, harvest::given};

/// What came of a call: the recorded exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Called {
    /// The tool answered.
    Answer(ToolResult),
    /// The server did not start.
    NotConnected(ConnectError),
    /// The server failed while it was asked.
    NotAnswered(ToolError),
}

/// A call brought nothing that could be recorded.
#[derive(Debug, Error)]
pub(crate) enum CallFailure {
    /// The call cannot be made in a world like the recorded one.
    #[error("`{0}` answered otherwise than before")]
    Differs(String),
    /// Replaying, and nothing is recorded.
    #[error("{0}")]
    NotRecorded(String),
    /// The store failed, or what it holds cannot be read.
    #[error("{0}")]
    Store(String),
}

#[derive(Debug, Error)]
enum LiveFailure {
    #[error("`{0}` answered otherwise than before")]
    Differs(String),
    #[error("failed to write an answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// A call that was made, and what came of it.
struct Made {
    tool: String,
    arguments: Map<String, Value>,
    called: Value,
}

/// Which conversation calls belong to, where it makes several: its id, and how often it was begun anew.
pub(crate) struct Thread<'a> {
    pub(crate) id: &'a str,
    pub(crate) begun: u32,
}

/// A server of a conversation.
pub(crate) struct Place<'a> {
    server: &'a ServerRecord,
    world: WorldSpec,
    made: Vec<Made>,
    /// Whether calls only read, so that none depends on those before it.
    reading: bool,
    runner: Option<Box<dyn ToolRunner>>,
}

impl<'a> Place<'a> {
    pub(crate) fn new(server: &'a ServerRecord, world: WorldSpec) -> Self {
        Self { server, world, made: Vec::new(), reading: false, runner: None }
    }

    /// A server that is only read from: a new world of it needs no calls to be repeated.
    pub(crate) fn reading(server: &'a ServerRecord, world: WorldSpec) -> Self {
        Self { reading: true, ..Self::new(server, world) }
    }

    /// Makes a call, or takes it from the store; says too whether it was made live.
    pub(crate) async fn call(
        &mut self,
        connector: &dyn Connector,
        recorder: &Recorder,
        thread: Option<&Thread<'_>>,
        (tool, arguments): (&str, &Map<String, Value>),
    ) -> Result<(Called, bool), CallFailure> {
        let question = self.question(thread, tool, arguments);
        let place = &mut *self;
        let live = move || async move { place.live(connector, tool, arguments).await };
        let recorded = recorder.ask(ExchangeKind::Call, &question, settled, live).await.map_err(|error| match error {
            ExchangeError::NotRecorded { .. } => CallFailure::NotRecorded(error.to_string()),
            ExchangeError::Live(LiveFailure::Differs(tool)) => CallFailure::Differs(tool),
            error => CallFailure::Store(error.to_string()),
        })?;
        let called: Called = serde_json::from_value(recorded.reply.clone()).map_err(|e| CallFailure::Store(e.to_string()))?;
        if !self.reading {
            self.made.push(Made { tool: tool.to_owned(), arguments: arguments.clone(), called: recorded.reply });
        }
        Ok((called, recorded.live))
    }

    /// What makes a call this one: the server and its world, and what was done in it before. The question of a
    /// conversation of one call is that of no conversation.
    fn question(&self, thread: Option<&Thread<'_>>, tool: &str, arguments: &Map<String, Value>) -> Value {
        let mut question = json!({
            "launch": self.server.launch, "env": given(self.server), "world": self.world.acted_on(), "tool": tool, "arguments": arguments,
        });
        if let Some(thread) = thread {
            let before: Vec<Value> = self.made.iter().map(|m| json!({"tool": m.tool, "arguments": m.arguments})).collect();
            question["conversation"] = json!(thread.id);
            question["before"] = json!(before);
            if thread.begun > 0 {
                question["begun"] = json!(thread.begun);
            }
        }
        question
    }

    async fn live(
        &mut self,
        connector: &dyn Connector,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Value, LiveFailure> {
        let runner = match self.runner.take() {
            Some(runner) => runner,
            None => match connector.connect(self.server, &self.world).await {
                Err(error) => return Ok(serde_json::to_value(Called::NotConnected(error))?),
                Ok(runner) => match self.opened(runner.as_ref()).await {
                    Ok(()) => self.brought_up(runner).await?,
                    Err(error) => {
                        runner.close().await;
                        return Ok(serde_json::to_value(Called::NotConnected(error))?);
                    }
                },
            },
        };
        let called = ask(runner.as_ref(), tool, arguments).await;
        self.runner = Some(runner);
        called
    }

    /// Makes the calls that the world begins with. They are no part of the conversation, so a server that refuses one
    /// was not got to run.
    async fn opened(&self, runner: &dyn ToolRunner) -> Result<(), ConnectError> {
        for OpeningCall { tool, arguments } in &self.world.opening {
            let arguments = arguments.iter().map(|(name, value)| (name.clone(), placed(value, &runner.info().folder))).collect();
            let called = runner.call_tool(tool, &arguments).await;
            let failed = called.map_or_else(|error| Some(error.to_string()), |result| failing(&result, tool, &arguments));
            if let Some(why) = failed {
                return Err(ConnectError {
                    server: self.server.name.clone(),
                    outcome: HarvestOutcome::LaunchFailed,
                    detail: format!("the opening call `{tool}` of its world failed: {why}"),
                    stderr: None,
                });
            }
        }
        Ok(())
    }

    /// Repeats what was done before in a new world; ends the server where it answers otherwise.
    async fn brought_up(&self, runner: Box<dyn ToolRunner>) -> Result<Box<dyn ToolRunner>, LiveFailure> {
        for made in &self.made {
            if ask(runner.as_ref(), &made.tool, &made.arguments).await? != made.called {
                runner.close().await;
                return Err(LiveFailure::Differs(made.tool.clone()));
            }
        }
        Ok(runner)
    }

    /// Ends the server, if it was started.
    pub(crate) async fn close(self) {
        if let Some(runner) = self.runner {
            runner.close().await;
        }
    }
}

/// A value of an opening call with the folder of the world filled in.
fn placed(value: &Value, folder: &str) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace("${WORLD}", folder)),
        Value::Array(items) => items.iter().map(|item| placed(item, folder)).collect(),
        Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), placed(item, folder))).collect(),
        _ => value.clone(),
    }
}

async fn ask(runner: &dyn ToolRunner, tool: &str, arguments: &Map<String, Value>) -> Result<Value, LiveFailure> {
    let called = runner.call_tool(tool, arguments).await.map_or_else(Called::NotAnswered, Called::Answer);
    Ok(serde_json::to_value(called)?)
}

/// Whether something was called: a server that did not start may do so another time.
fn settled(reply: &Value) -> bool {
    serde_json::from_value::<Called>(reply.clone()).is_ok_and(|called| !matches!(called, Called::NotConnected(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_the_world_is_filled_in_wherever_it_stands() {
        let value = json!({"path": "${WORLD}/src", "all": ["${WORLD}", 7, {"in": "a ${WORLD} b"}], "name": "${STATE}"});
        let want = json!({"path": "/tmp/w/src", "all": ["/tmp/w", 7, {"in": "a /tmp/w b"}], "name": "${STATE}"});
        assert_eq!(placed(&value, "/tmp/w"), want);
    }
}

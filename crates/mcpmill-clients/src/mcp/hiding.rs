//! Keeps the user's secrets out of what servers say.

use std::collections::HashMap;

use async_trait::async_trait;
use mcpmill_core::{
    edge::{ConnectError, Connector, ServerInfo, ToolError, ToolPage, ToolRunner, WorldSpec},
    record::{ServerRecord, ToolResult},
};
use serde_json::{Map, Value};

use super::secrets::Secrets;

/// Replaces the values of secrets in everything that a server says by `<NAME>`, before anybody writes it
/// down: servers print their environment into errors, and some into the text of their tools.
///
/// A value is known as it is and in other case; without white space at its ends, line by line, and without the word
/// `Bearer` or `Basic` before it; the password in an address or behind `user:` alone; each of these in hexadecimal,
/// Base32 and Base64 (also across lines, encoded twice and of UTF-16), and behind escapes as JSON, programs,
/// addresses and HTML have them, however many of its letters are escaped, once or twice. It is not known as a list
/// of numbers, backwards, with something between its letters, in Base85 or in a cipher: a server that wants to give
/// a secret away can.
///
/// Values of less than six bytes stay: they are in too many texts by chance. So do those that the server can have
/// been given under no name: it knows nothing of them, and a value such as `user@example.com` is in many a
/// description. The connector itself takes them out of messages before it cuts any text; this one makes sure
/// of it for every connector.
pub struct HidingSecrets<C> {
    inner: C,
    secrets: HashMap<String, String>,
}

impl<C> HidingSecrets<C> {
    /// Servers of `inner`, which is given `secrets` by name.
    pub fn new(inner: C, secrets: &HashMap<String, String>) -> Self {
        Self { inner, secrets: secrets.clone() }
    }
}

#[async_trait]
impl<C: Connector> Connector for HidingSecrets<C> {
    async fn connect(&self, server: &ServerRecord, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let secrets = Secrets::given_to(server, &self.secrets);
        if secrets.is_empty() {
            return self.inner.connect(server, world).await;
        }
        match self.inner.connect(server, world).await {
            Ok(runner) => {
                let info = secrets.record(runner.info().clone());
                Ok(Box::new(Hidden { runner, info, secrets }))
            }
            Err(error) => Err(secrets.record(error)),
        }
    }
}

struct Hidden {
    runner: Box<dyn ToolRunner>,
    info: ServerInfo,
    secrets: Secrets,
}

#[async_trait]
impl ToolRunner for Hidden {
    fn info(&self) -> &ServerInfo {
        &self.info
    }

    async fn list_tools(&self, cursor: Option<String>) -> Result<ToolPage, ToolError> {
        match self.runner.list_tools(cursor).await {
            Ok(mut page) => {
                page.tools = page.tools.into_iter().map(|tool| self.secrets.record(tool)).collect();
                page.refused.iter_mut().for_each(|why| self.secrets.text(why));
                Ok(page)
            }
            Err(error) => Err(self.secrets.record(error)),
        }
    }

    async fn call_tool(&self, name: &str, arguments: &Map<String, Value>) -> Result<ToolResult, ToolError> {
        let result = self.runner.call_tool(name, arguments).await;
        result.map(|result| self.secrets.record(result)).map_err(|error| self.secrets.record(error))
    }

    fn oddities(&self) -> Vec<String> {
        self.runner.oddities().into_iter().map(|text| self.secrets.record(text)).collect()
    }

    async fn close(self: Box<Self>) {
        self.runner.close().await;
    }
}

//! Servers that are installed for one visit only.

use async_trait::async_trait;
use mcpmill_core::{
    edge::{ConnectError, Connector, ServerInfo, ToolError, ToolPage, ToolRunner, WorldSpec},
    launch::{self, Package},
    record::{Launch, ServerRecord, ToolResult},
};
use serde_json::{Map, Value};

use crate::install::Installer;

/// Removes a server's installation when its visit ends, however it ends; its lock stays, so that the
/// next visit installs the very same. What thousands of servers take on a disk is more than most have.
pub struct PassingInstalls<C> {
    inner: C,
    installer: Installer,
}

impl<C> PassingInstalls<C> {
    /// Servers of `inner`, installed by `installer` for each visit.
    pub fn new(inner: C, installer: Installer) -> Self {
        Self { inner, installer }
    }
}

#[async_trait]
impl<C: Connector> Connector for PassingInstalls<C> {
    async fn connect(&self, server: &ServerRecord, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let package = match &server.launch {
            Launch::Stdio { command, args } => launch::parse(command, args).ok(),
            _ => None,
        };
        match (self.inner.connect(server, world).await, package) {
            (Ok(runner), Some(package)) => Ok(Box::new(Visit { runner, package, installer: self.installer.clone() })),
            (connected, None) => connected,
            (Err(error), Some(package)) => {
                self.installer.discard(&package).await;
                Err(error)
            }
        }
    }
}

struct Visit {
    runner: Box<dyn ToolRunner>,
    package: Package,
    installer: Installer,
}

#[async_trait]
impl ToolRunner for Visit {
    fn info(&self) -> &ServerInfo {
        self.runner.info()
    }

    async fn list_tools(&self, cursor: Option<String>) -> Result<ToolPage, ToolError> {
        self.runner.list_tools(cursor).await
    }

    async fn call_tool(&self, name: &str, arguments: &Map<String, Value>) -> Result<ToolResult, ToolError> {
        self.runner.call_tool(name, arguments).await
    }

    fn oddities(&self) -> Vec<String> {
        self.runner.oddities()
    }

    async fn close(self: Box<Self>) {
        let Self { runner, package, installer } = *self;
        runner.close().await;
        installer.discard(&package).await;
    }
}

//! Servers that are installed for one visit only.

use async_trait::async_trait;
use mcpmill_core::{
    edge::{ConnectError, Connector, ServerInfo, ToolError, ToolPage, ToolRunner, WorldSpec},
    launch::{self, Package},
    record::{Launch, ServerRecord, ToolResult},
};
use serde_json::{Map, Value};

use crate::install::{InUse, Installer};

/// Removes a server's installation when its visit ends, however it ends; its lock stays, so that the
/// next visit installs the very same. What thousands of servers take on a disk is more than most have.
/// Where several visits share an installation, the last one that ends removes it.
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
        let Some(package) = package else { return self.inner.connect(server, world).await };
        let in_use = self.installer.using(&package).await;
        match self.inner.connect(server, world).await {
            Ok(runner) => Ok(Box::new(Visit { runner, package, in_use, installer: self.installer.clone() })),
            Err(error) => {
                drop(in_use);
                self.installer.discard(&package).await;
                Err(error)
            }
        }
    }
}

struct Visit {
    runner: Box<dyn ToolRunner>,
    package: Package,
    in_use: Option<InUse>,
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
        let Self { runner, package, in_use, installer } = *self;
        runner.close().await;
        drop(in_use);
        installer.discard(&package).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mcpmill_core::record::HarvestOutcome;

    use super::*;
    use crate::{
        assets::Assets,
        cage::{Cage, Host},
    };

    /// Installs as a server would, by hand; what is asked to `fail` does not start.
    struct ByHand(Installer);

    struct Idle(ServerInfo);

    #[async_trait]
    impl ToolRunner for Idle {
        fn info(&self) -> &ServerInfo {
            &self.0
        }

        async fn list_tools(&self, _: Option<String>) -> Result<ToolPage, ToolError> {
            Ok(ToolPage::default())
        }

        async fn call_tool(&self, name: &str, _: &Map<String, Value>) -> Result<ToolResult, ToolError> {
            panic!("nobody calls `{name}`")
        }

        fn oddities(&self) -> Vec<String> {
            Vec::new()
        }

        async fn close(self: Box<Self>) {}
    }

    #[async_trait]
    impl Connector for ByHand {
        async fn connect(&self, server: &ServerRecord, _: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
            let Launch::Stdio { command, args } = &server.launch else { panic!() };
            let folder = self.0.folder(&launch::parse(command, args).unwrap()).await.unwrap();
            fs::create_dir_all(folder.join("prefix")).unwrap();
            fs::write(folder.join("ready.json"), "{}").unwrap();
            if args.iter().any(|arg| arg == "fail") {
                let (outcome, detail) = (HarvestOutcome::LaunchFailed, "it ended".to_owned());
                return Err(ConnectError { server: server.name.clone(), outcome, detail, stderr: None });
            }
            Ok(Box::new(Idle(ServerInfo::default())))
        }
    }

    fn server(argument: &str) -> ServerRecord {
        let launch = Launch::Stdio { command: "npx".into(), args: vec!["-y".into(), "pkg".into(), argument.into()] };
        let text = serde_json::json!({ "id": ServerRecord::identify(&launch), "name": argument, "launch": launch });
        serde_json::from_value(text).unwrap()
    }

    #[tokio::test]
    async fn the_last_visit_of_a_package_removes_it() {
        let cache = tempfile::tempdir().unwrap();
        let cage = Cage::unsandboxed(Host::discover().await).unwrap();
        let installer = Installer::new(cage, Assets::new(cache.path()), cache.path());
        let package = launch::parse("npx", &["pkg".to_owned()]).unwrap();
        let folder = installer.folder(&package).await.unwrap();
        let is_there = || (folder.join("ready.json").exists(), folder.join("prefix").exists());
        let passing = PassingInstalls::new(ByHand(installer.clone()), installer);
        let world = WorldSpec::default();

        let first = passing.connect(&server("a"), &world).await.unwrap();
        let second = passing.connect(&server("b"), &world).await.unwrap();
        first.close().await;
        assert_eq!(is_there(), (true, true), "the second one runs");
        assert!(passing.connect(&server("fail"), &world).await.is_err());
        assert_eq!(is_there(), (true, true), "the second one still runs");
        second.close().await;
        assert_eq!(is_there(), (false, false));
        assert!(passing.connect(&server("fail"), &world).await.is_err());
        assert_eq!(is_there(), (false, false));
        // A visit that was given up uses nothing.
        drop(passing.connect(&server("a"), &world).await.unwrap());
        passing.connect(&server("b"), &world).await.unwrap().close().await;
        assert_eq!(is_there(), (false, false));
    }
}

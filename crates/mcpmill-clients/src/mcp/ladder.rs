//! Further tries for servers whose packages have aged.
//!
//! Many published Python servers set no upper bound on the MCP SDK and break on its second major; others
//! want an older or a newer Python. What helped is remembered, so that a server is installed the way it
//! works the next time, and is told with what the server says of itself.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{ConnectError, Connector, ServerInfo, ToolError, ToolPage, ToolRunner, WorldSpec},
    launch::{self, Registry},
    record::{HarvestOutcome, Launch, ServerRecord, ToolResult},
};
use serde_json::{Map, Value};

/// What is added to a launch line, one try after the other.
const RUNGS: [&[&str]; 5] = [
    &[],
    &["--with", "mcp<2"],
    &["--with", "mcp<2", "--python", "3.13"],
    &["--with", "mcp<2", "--python", "3.11"],
    &["--with", "mcp<2", "--with", "pydantic<2.11"],
];

/// Tries servers of PyPI again with older pins and other interpreters when they end before they answer.
pub struct RetryLadder<C> {
    inner: C,
    memory: PathBuf,
    /// Server id to the rung that worked.
    known: Mutex<BTreeMap<String, usize>>,
}

impl<C> RetryLadder<C> {
    /// Servers of `inner`; what helped is kept in the file `memory`.
    pub fn new(inner: C, memory: impl Into<PathBuf>) -> Self {
        let memory = memory.into();
        // A file that cannot be read costs some tries.
        let known = fs::read_to_string(&memory).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Self { inner, memory, known: Mutex::new(known) }
    }

    fn remembered(&self, server: &ServerRecord) -> usize {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(server.id.as_str()).copied().unwrap_or(0).min(RUNGS.len() - 1)
    }

    fn remember(&self, server: &ServerRecord, rung: usize) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if rung == 0 || known.insert(server.id.to_string(), rung) == Some(rung) {
            return;
        }
        let partial = self.memory.with_extension("partial");
        let text = serde_json::to_string_pretty(&*known).unwrap_or_default();
        // Not kept is not lost: the next start climbs again.
        fs::write(&partial, text).and_then(|()| fs::rename(&partial, &self.memory)).ok();
    }
}

/// The server with a rung's words in its launch line; `None` when they say nothing new.
fn climbed(server: &ServerRecord, rung: usize) -> Option<ServerRecord> {
    let Launch::Stdio { command, args } = &server.launch else { return None };
    let package = launch::parse(command, args).ok().filter(|package| package.registry == Registry::Pypi)?;
    let words = RUNGS[rung];
    // A line that pins for itself knows better, and only uvx takes the words where they are put.
    let own = |name: &str| package.with.iter().any(|with| with.starts_with(name));
    let asks_twice = words.contains(&"--python") && package.python.is_some();
    if command != "uvx" || asks_twice || (!words.is_empty() && own("mcp")) {
        return None;
    }
    let args = words.iter().map(|&word| word.to_owned()).chain(args.iter().cloned()).collect();
    Some(ServerRecord { launch: Launch::Stdio { command: command.clone(), args }, ..server.clone() })
}

#[async_trait]
impl<C: Connector> Connector for RetryLadder<C> {
    async fn connect(&self, server: &ServerRecord, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let start = self.remembered(server);
        let first = match self.inner.connect(climbed(server, start).as_ref().unwrap_or(server), world).await {
            Ok(runner) => return Ok(told(runner, start)),
            Err(error) if error.outcome != HarvestOutcome::LaunchFailed => return Err(error),
            Err(error) => error,
        };
        let mut tried = Vec::new();
        for (rung, words) in RUNGS.iter().enumerate().filter(|(rung, _)| *rung != start) {
            let Some(changed) = climbed(server, rung) else { continue };
            if let Ok(runner) = self.inner.connect(&changed, world).await {
                self.remember(server, rung);
                return Ok(told(runner, rung));
            }
            tried.push(words.join(" "));
        }
        match tried.is_empty() {
            true => Err(first),
            false => Err(ConnectError { detail: format!("{} (nor with {})", first.detail, tried.join("; ")), ..first }),
        }
    }
}

fn told(runner: Box<dyn ToolRunner>, rung: usize) -> Box<dyn ToolRunner> {
    if rung == 0 {
        return runner;
    }
    let pins = RUNGS[rung].iter().map(|&word| word.to_owned()).collect();
    let info = ServerInfo { pins, ..runner.info().clone() };
    Box::new(Pinned { runner, info })
}

/// A server that runs with pins of ours.
struct Pinned {
    runner: Box<dyn ToolRunner>,
    info: ServerInfo,
}

#[async_trait]
impl ToolRunner for Pinned {
    fn info(&self) -> &ServerInfo {
        &self.info
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
        self.runner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Starts only servers whose line holds a word.
    struct Picky(&'static str, Arc<Mutex<Vec<Vec<String>>>>);

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
            vec!["stdout_noise: 1 lines".to_owned()]
        }

        async fn close(self: Box<Self>) {}
    }

    #[async_trait]
    impl Connector for Picky {
        async fn connect(&self, server: &ServerRecord, _: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
            let Launch::Stdio { args, .. } = &server.launch else { panic!() };
            self.1.lock().unwrap().push(args.clone());
            match args.iter().any(|arg| arg == self.0) {
                true => Ok(Box::new(Idle(ServerInfo::default()))),
                false => Err(ConnectError {
                    server: server.name.clone(),
                    outcome: HarvestOutcome::LaunchFailed,
                    detail: "it ended".into(),
                    stderr: None,
                }),
            }
        }
    }

    fn server(command: &str, args: &[&str]) -> ServerRecord {
        let launch = Launch::Stdio { command: command.into(), args: args.iter().map(|&arg| arg.into()).collect() };
        let text = serde_json::json!({ "id": ServerRecord::identify(&launch), "name": "s", "launch": launch });
        serde_json::from_value(text).unwrap()
    }

    #[tokio::test]
    async fn what_helped_is_remembered_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let (memory, asked) = (folder.path().join("rungs.json"), Arc::new(Mutex::default()));
        let aged = server("uvx", &["pkg@1", "serve"]);
        let ladder = RetryLadder::new(Picky("3.13", Arc::clone(&asked)), &memory);
        let runner = ladder.connect(&aged, &WorldSpec::default()).await.unwrap();
        assert_eq!(runner.info().pins, ["--with", "mcp<2", "--python", "3.13"]);
        assert_eq!(runner.oddities().len(), 1, "what is around a server keeps none of it back");
        assert_eq!(asked.lock().unwrap().len(), 3);
        assert_eq!(asked.lock().unwrap()[2], ["--with", "mcp<2", "--python", "3.13", "pkg@1", "serve"]);
        // Another process goes there at once.
        let again = RetryLadder::new(Picky("3.13", Arc::clone(&asked)), &memory);
        again.connect(&aged, &WorldSpec::default()).await.unwrap();
        assert_eq!(asked.lock().unwrap().len(), 4);
    }

    #[tokio::test]
    async fn only_lines_that_leave_it_open_are_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let cases: [(&str, &[&str], usize); 3] =
            [("npx", &["-y", "pkg"], 1), ("uvx", &["--with", "mcp<1.5", "pkg"], 1), ("uvx", &["--python", "3.12", "pkg"], 3)];
        for (command, args, tries) in cases {
            let asked = Arc::new(Mutex::default());
            let ladder = RetryLadder::new(Picky("never", Arc::clone(&asked)), folder.path().join("rungs.json"));
            let error = ladder.connect(&server(command, args), &WorldSpec::default()).await.err().unwrap();
            assert_eq!(asked.lock().unwrap().len(), tries, "{command} {args:?}");
            assert_eq!(error.detail.contains("nor with --with mcp<2"), tries > 1, "{error}");
        }
    }
}

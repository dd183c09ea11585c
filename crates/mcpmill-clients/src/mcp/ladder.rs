//! Further tries for servers whose packages have aged, or that write to their own package.
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
    launch::{self, Package, Registry},
    record::{HarvestOutcome, Launch, ServerRecord, ToolResult},
};
use serde_json::{Map, Value};

use crate::install::PREFIX;

/// What is added to a launch line, one try after the other.
const RUNGS: [&[&str]; 5] = [
    &[],
    &["--with", "mcp<2"],
    &["--with", "mcp<2", "--python", "3.13"],
    &["--with", "mcp<2", "--python", "3.11"],
    &["--with", "mcp<2", "--with", "pydantic<2.11"],
];

/// What is told of a server that had to be given a writable view of its package.
const WRITABLE: &str = "writable package folder";

/// One way to start a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Step {
    rung: usize,
    /// Whether it may write to a copy of its package.
    writable: bool,
}

impl Step {
    /// As it is remembered: the rungs first, then all of them with a writable package.
    fn number(self) -> usize {
        self.rung + if self.writable { RUNGS.len() } else { 0 }
    }

    fn of_number(number: usize) -> Self {
        let step = Self { rung: number % RUNGS.len(), writable: number >= RUNGS.len() };
        if number < 2 * RUNGS.len() { step } else { Self::default() }
    }

    fn pins(self) -> Vec<String> {
        let words = RUNGS[self.rung].iter().copied();
        words.chain(self.writable.then_some(WRITABLE)).map(str::to_owned).collect()
    }
}

/// Tries servers of PyPI again with older pins and other interpreters when they end before they answer, and
/// any server with a writable view of its package when it says that it misses one.
pub struct RetryLadder<C> {
    inner: C,
    memory: PathBuf,
    /// Server id to the step that worked.
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

    fn remembered(&self, server: &ServerRecord) -> Step {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(server.id.as_str()).map_or_else(Step::default, |&number| Step::of_number(number))
    }

    fn remember(&self, server: &ServerRecord, step: Step) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if step == Step::default() || known.insert(server.id.to_string(), step.number()) == Some(step.number()) {
            return;
        }
        let partial = self.memory.with_extension("partial");
        let text = serde_json::to_string_pretty(&*known).unwrap_or_default();
        // Not kept is not lost: the next start climbs again.
        fs::write(&partial, text).and_then(|()| fs::rename(&partial, &self.memory)).ok();
    }
}

impl<C: Connector> RetryLadder<C> {
    /// One try, and a second one with a writable package where the first failed for the lack of it.
    async fn attempt(&self, server: &ServerRecord, world: &WorldSpec, step: Step) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let attempt = async |step: Step| {
            let world = WorldSpec { writable_package: step.writable, ..world.clone() };
            let runner = self.inner.connect(server, &world).await?;
            self.remember(server, step);
            Ok(told(runner, step))
        };
        match attempt(step).await {
            Err(error) if !step.writable && misses_its_package(&error) => attempt(Step { writable: true, ..step }).await,
            done => done,
        }
    }
}

/// Whether a server ended because it could not write to its own package.
fn misses_its_package(error: &ConnectError) -> bool {
    let said = [Some(&error.detail), error.stderr.as_ref()];
    let line = |line: &str| (line.contains("Read-only file system") || line.contains("EROFS")) && line.contains(PREFIX);
    error.outcome == HarvestOutcome::LaunchFailed && said.into_iter().flatten().flat_map(|text| text.lines()).any(line)
}

/// The server with a rung's words in its launch line; `None` when they say nothing new.
fn climbed(server: &ServerRecord, rung: usize) -> Option<ServerRecord> {
    let Launch::Stdio { command, args } = &server.launch else { return None };
    let package = launch::parse(command, args).ok().filter(|package| package.registry == Registry::Pypi)?;
    let words = RUNGS[rung];
    // A line that pins for itself knows better.
    let own = |name: &str| package.with.iter().any(|with| with.starts_with(name));
    let asks_twice = words.contains(&"--python") && package.python.is_some();
    if asks_twice || (!words.is_empty() && own("mcp")) {
        return None;
    }
    // Only uvx takes the words where they are put; every other line becomes one of it.
    let line = if command == "uvx" { args.clone() } else { as_uvx(package) };
    let args = words.iter().map(|&word| word.to_owned()).chain(line).collect();
    Some(ServerRecord { launch: Launch::Stdio { command: "uvx".to_owned(), args }, ..server.clone() })
}

/// The arguments by which uvx runs a package of PyPI.
fn as_uvx(package: Package) -> Vec<String> {
    let with = package.with.into_iter().flat_map(|with| ["--with".to_owned(), with]);
    let python = package.python.into_iter().flat_map(|python| ["--python".to_owned(), python]);
    let run = match package.bin {
        Some(bin) => vec!["--from".to_owned(), package.requirement, bin],
        None => vec![package.requirement],
    };
    let prerelease = package.prerelease.then(|| "--prerelease=allow".to_owned());
    with.chain(python).chain(prerelease).chain(run).chain(package.args).collect()
}

#[async_trait]
impl<C: Connector> Connector for RetryLadder<C> {
    async fn connect(&self, server: &ServerRecord, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let start = self.remembered(server);
        let changed = climbed(server, start.rung);
        let first = match self.attempt(changed.as_ref().unwrap_or(server), world, start).await {
            Err(error) if error.outcome == HarvestOutcome::LaunchFailed => error,
            done => return done,
        };
        let mut tried = Vec::new();
        for (rung, words) in RUNGS.iter().enumerate().filter(|(rung, _)| *rung != start.rung) {
            let Some(changed) = climbed(server, rung) else { continue };
            if let Ok(runner) = self.attempt(&changed, world, Step { rung, writable: start.writable }).await {
                return Ok(runner);
            }
            tried.push(words.join(" "));
        }
        match tried.is_empty() {
            true => Err(first),
            false => Err(ConnectError { detail: format!("{} (nor with {})", first.detail, tried.join("; ")), ..first }),
        }
    }
}

fn told(runner: Box<dyn ToolRunner>, step: Step) -> Box<dyn ToolRunner> {
    if step == Step::default() {
        return runner;
    }
    let info = ServerInfo { pins: step.pins(), ..runner.info().clone() };
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
        assert_eq!(runner.oddities(), ["stdout_noise: 1 lines"]);
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

    #[tokio::test]
    async fn every_line_of_pypi_is_climbed() {
        let folder = tempfile::tempdir().unwrap();
        let cases: [(&str, &[&str]); 8] = [
            ("uvx pkg@1 serve", &[]),
            ("uvx.exe", &["--prerelease=allow", "pkg", "serve"]),
            ("/usr/local/bin/uvx", &["pkg==1", "serve"]),
            ("uvx.exe", &["--from", "pkg[x]==1", "program", "serve"]),
            ("uv", &["tool", "run", "--python", "3.12", "pkg@1", "serve"]),
            ("pipx", &["run", "--spec", "pkg==1", "program", "serve"]),
            ("pipx", &["run", "pkg==1", "serve"]),
            ("uv", &["run", "--with", "pkg==1", "--with", "other", "program", "serve"]),
        ];
        for (number, (command, args)) in cases.into_iter().enumerate() {
            let asked = Arc::new(Mutex::default());
            let memory = folder.path().join(format!("{number}.json"));
            let record = server(command, args);
            let runner =
                RetryLadder::new(Picky("mcp<2", Arc::clone(&asked)), memory).connect(&record, &WorldSpec::default()).await;
            assert_eq!(runner.unwrap().info().pins, ["--with", "mcp<2"], "{command} {args:?}");
            let own: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let tried = launch::parse("uvx", asked.lock().unwrap().last().unwrap()).unwrap();
            let mut expected = launch::parse(command, &own).unwrap();
            expected.with.insert(0, "mcp<2".to_owned());
            assert_eq!(tried, expected, "{command} {args:?}");
        }
    }

    /// Ends with a complaint until its package is writable.
    struct Writes(Arc<Mutex<Vec<bool>>>, &'static str);

    #[async_trait]
    impl Connector for Writes {
        async fn connect(&self, server: &ServerRecord, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
            self.0.lock().unwrap().push(world.writable_package);
            match world.writable_package {
                true => Ok(Box::new(Idle(ServerInfo::default()))),
                false => Err(ConnectError {
                    server: server.name.clone(),
                    outcome: HarvestOutcome::LaunchFailed,
                    detail: "it ended with exit code 1 before it answered".into(),
                    stderr: Some(format!("Traceback:\n{}", self.1)),
                }),
            }
        }
    }

    #[tokio::test]
    async fn a_server_that_misses_its_package_gets_a_writable_one() {
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("rungs.json");
        let asked = Arc::new(Mutex::default());
        let said = "OSError: [Errno 30] Read-only file system: '/opt/server/venv/logs'";
        for command in ["npx", "uvx"] {
            let server = server(command, &["-y", "pkg"][usize::from(command == "uvx")..]);
            let ladder = RetryLadder::new(Writes(Arc::clone(&asked), said), &memory);
            let runner = ladder.connect(&server, &WorldSpec::default()).await.unwrap();
            assert_eq!(runner.info().pins, ["writable package folder"]);
            assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), [false, true], "{command}");
            let again = RetryLadder::new(Writes(Arc::clone(&asked), said), &memory);
            again.connect(&server, &WorldSpec::default()).await.unwrap();
            assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), [true], "it is remembered");
        }
        // What cannot be written elsewhere is no reason.
        let other = RetryLadder::new(Writes(Arc::clone(&asked), "Read-only file system: '/etc/x'"), folder.path().join("none"));
        assert!(other.connect(&server("npx", &["-y", "pkg"]), &WorldSpec::default()).await.is_err());
        assert_eq!(*asked.lock().unwrap(), [false]);
    }

    #[test]
    fn steps_are_remembered_as_numbers_of_old() {
        for number in 0..2 * RUNGS.len() {
            assert_eq!(Step::of_number(number).number(), number);
        }
        assert_eq!(Step::of_number(3), Step { rung: 3, writable: false });
        assert_eq!(Step::of_number(99), Step::default());
    }
}

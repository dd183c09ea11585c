//! MCP servers: installed, started in the cage over a fresh world, spoken to over their standard
//! streams.

mod client;
mod complaints;
mod hiding;
mod ladder;
mod passing;
mod runner;
mod wire;
mod world;

use std::{collections::HashMap, path::PathBuf, time::Duration};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{Bind, Confined, ConnectError, Connector, Limits, Process, ProcessEnd, ServerInfo, ToolRunner, WorldSpec},
    launch,
    record::{HarvestOutcome, Launch, ServerRecord},
};
use rmcp::{ServiceExt, service::ClientInitializeError};
use tokio::time::timeout;

use crate::{
    assets::tail,
    cage::{Cage, Input, Running, WORLD},
    install::{Installation, Installer},
};
use client::Client;
use complaints::Complaints;
pub use hiding::HidingSecrets;
pub use ladder::RetryLadder;
pub use passing::PassingInstalls;
use runner::{Runner, too_much};
use wire::{Caps, Wire};
use world::{World, placed};

/// Characters of a server's error output that go into an error.
const COMPLAINT: usize = 4000;

/// What servers may take and use.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// From the start of the process to its answer to `initialize`.
    pub start: Duration,
    /// From a request to its answer.
    pub answer: Duration,
    /// Resident bytes of its process tree.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u32,
    /// Bytes it may add to its world and state.
    pub disk_bytes: u64,
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Bytes of everything it prints over its life.
    pub output_bytes: u64,
}

impl Default for ServerLimits {
    /// Of 173 servers measured, the slowest needed 27 s and the largest 312 MB and 1.1 MB of tools.
    fn default() -> Self {
        Self {
            start: Duration::from_secs(60),
            answer: Duration::from_secs(30),
            memory_bytes: 1 << 30,
            processes: 512,
            disk_bytes: 256 << 20,
            message_bytes: 16 << 20,
            output_bytes: 256 << 20,
        }
    }
}

/// Connects to MCP servers in the cage.
#[derive(Clone)]
pub struct CagedConnector {
    cage: Cage,
    installer: Installer,
    scratch: PathBuf,
    limits: ServerLimits,
    credentials: HashMap<String, String>,
}

impl CagedConnector {
    /// Servers installed by `installer`; their worlds are made below `scratch`.
    pub fn new(cage: Cage, installer: Installer, scratch: impl Into<PathBuf>) -> Self {
        let limits = ServerLimits::default();
        Self { cage, installer, scratch: scratch.into(), limits, credentials: HashMap::new() }
    }

    /// Other limits.
    pub fn with_limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Values for variables that servers mark as secret, by name. A server only gets those it asks for.
    pub fn with_credentials(mut self, credentials: HashMap<String, String>) -> Self {
        self.credentials = credentials;
        self
    }

    /// Starts a program that is installed already, over a fresh world, and shakes hands.
    ///
    /// # Errors
    /// With the outcome it has earned.
    pub async fn start(&self, program: &Program, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        self.shake_hands(program, world).await.map_err(|failure| failure.of(&program.name)).map(|runner| Box::new(runner) as _)
    }

    /// The server's package, installed and given its arguments and variables.
    async fn prepare(&self, server: &ServerRecord) -> Result<Program, Failure> {
        let unsupported = |why: &str| Failure::new(HarvestOutcome::Unsupported, why);
        let package = match &server.launch {
            Launch::Stdio { command, args } => launch::parse(command, args).map_err(|e| unsupported(&e.to_string()))?,
            Launch::StreamableHttp { .. } => return Err(unsupported("remote servers (streamable HTTP) are not supported yet")),
            Launch::Sse { .. } => return Err(unsupported("remote servers (HTTP with SSE) are not supported yet")),
            Launch::Unsupported { what } => return Err(unsupported(&format!("launch form `{what}` is not supported"))),
        };
        let env = self.environment(server)?;
        let installed = self.installer.install(&package).await.map_err(|e| Failure {
            outcome: HarvestOutcome::InstallFailed,
            detail: e.to_string(),
            stderr: e.stderr().map(str::to_owned),
        })?;
        let Installation { mut command, env: own, .. } = installed.clone();
        command.extend(package.args);
        Ok(Program { name: server.name.clone(), command, env: [own, env].concat(), binds: installed.binds() })
    }

    fn environment(&self, server: &ServerRecord) -> Result<Vec<(String, String)>, Failure> {
        let mut env = Vec::new();
        let mut missing = Vec::new();
        for variable in &server.env {
            let name = variable.name.as_str();
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(Failure::new(HarvestOutcome::Unsupported, format!("`{name}` is no name of a variable")));
            }
            match variable.value.clone().or_else(|| self.credentials.get(name).filter(|_| variable.secret).cloned()) {
                Some(value) => env.push((name.to_owned(), value)),
                None if variable.secret => missing.push(format!("`{name}`")),
                None => {}
            }
        }
        match missing.is_empty() {
            true => Ok(env),
            false => Err(Failure::new(HarvestOutcome::NeedsCredentials, format!("it needs {}", missing.join(", ")))),
        }
    }

    async fn shake_hands(&self, program: &Program, spec: &WorldSpec) -> Result<Runner, Failure> {
        let broken = |detail: String| Failure::new(HarvestOutcome::LaunchFailed, detail);
        let world = World::new(spec, &self.scratch).map_err(|e| broken(format!("its world cannot be made: {e}")))?;
        self.set_up(spec, &world).await?;
        // Without a cage the server sees the host's own path.
        let root = match self.cage.program() {
            Some(_) => WORLD.to_owned(),
            None => world.folder().to_string_lossy().into_owned(),
        };
        let confined = self.confined(&format!("server {}", program.name), &program.command, program, &world);
        let cage = self.cage.clone().with_disk_bytes(self.limits.disk_bytes);
        let mut running = cage.spawn(&confined, Input::Pipe).await.map_err(|e| broken(e.to_string()))?;
        running.hold(world.into_folder());
        let complaints = Complaints::of(running.stderr.take());
        let (Some(stdout), Some(stdin)) = (running.stdout.take(), running.stdin.take()) else {
            return Err(broken("its streams are not open".to_owned()));
        };
        let caps = Caps { line_bytes: self.limits.message_bytes, total_bytes: self.limits.output_bytes };
        let (wire, kept) = Wire::new(stdout, stdin, caps);
        match timeout(self.limits.start, Client::new(&root).serve(wire)).await {
            Ok(Ok(service)) => {
                let info = service.peer().peer_info().map(|info| server_info(&info)).unwrap_or_default();
                let (server, answer_within) = (program.name.clone(), self.limits.answer);
                Ok(Runner { server, info, running, service, kept, complaints, answer_within })
            }
            shaken => {
                let end = running.kill_after(Duration::from_millis(300)).await;
                let mut failure = match shaken {
                    Err(_) => {
                        let detail = format!("no answer to `initialize` within {} s", self.limits.start.as_secs_f32());
                        Failure::new(HarvestOutcome::TimedOut, detail)
                    }
                    Ok(Err(error)) if kept.flooded() => {
                        Failure::new(HarvestOutcome::Protocol, format!("it printed too much ({error})"))
                    }
                    Ok(Err(error)) => refused(&error, end, &running, &complaints),
                    Ok(Ok(_)) => Failure::new(HarvestOutcome::Protocol, "impossible"),
                };
                running.let_go().await;
                failure.stderr = complaints.text().map(|text| tail(&text, COMPLAINT));
                Err(failure)
            }
        }
    }

    /// Runs the setup commands of a world, each in the cage.
    async fn set_up(&self, spec: &WorldSpec, world: &World) -> Result<(), Failure> {
        let nothing = Program { name: "setup".to_owned(), command: Vec::new(), env: Vec::new(), binds: Vec::new() };
        for command in &spec.setup {
            let what = format!("setup `{}`", command.join(" "));
            let confined = self.confined(&what, command, &nothing, world);
            let output = self.cage.run(&confined).await.map_err(|e| Failure::new(HarvestOutcome::LaunchFailed, e.to_string()))?;
            if output.end != ProcessEnd::Exited(0) {
                let mut failure = Failure::new(HarvestOutcome::LaunchFailed, format!("{what} ended with {:?}", output.end));
                failure.stderr = Some(tail(&output.stderr, COMPLAINT));
                return Err(failure);
            }
        }
        Ok(())
    }

    fn confined(&self, what: &str, command: &[String], program: &Program, world: &World) -> Confined {
        Confined {
            what: what.to_owned(),
            command: command.iter().map(|part| placed(part)).collect(),
            binds: program.binds.iter().cloned().chain(world.binds()).collect(),
            env: program.env.iter().map(|(name, value)| (name.clone(), placed(value))).collect(),
            workdir: Some(PathBuf::from(WORLD)),
            network: false,
            limits: Limits {
                wall: self.limits.start,
                output_bytes: 1 << 20,
                memory_bytes: self.limits.memory_bytes,
                processes: self.limits.processes,
            },
        }
    }
}

/// A server's program, ready to be started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The server's name, for messages.
    pub name: String,
    /// Program and arguments; `${WORLD}` and `${STATE}` stand for its folders.
    pub command: Vec<String>,
    /// Its variables; values may hold the same two.
    pub env: Vec<(String, String)>,
    /// What it sees besides system, interpreters, world and state.
    pub binds: Vec<Bind>,
}

#[async_trait]
impl Connector for CagedConnector {
    async fn connect(&self, server: &ServerRecord, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let program = self.prepare(server).await.map_err(|failure| failure.of(&server.name))?;
        self.start(&program, world).await
    }
}

/// Why there is no connection.
struct Failure {
    outcome: HarvestOutcome,
    detail: String,
    stderr: Option<String>,
}

impl Failure {
    fn new(outcome: HarvestOutcome, detail: impl Into<String>) -> Self {
        Self { outcome, detail: detail.into(), stderr: None }
    }

    fn of(self, server: &str) -> ConnectError {
        ConnectError { server: server.to_owned(), outcome: self.outcome, detail: self.detail, stderr: self.stderr }
    }
}

/// Why a handshake failed, from how the process ended.
fn refused(error: &ClientInitializeError, end: ProcessEnd, running: &Running, complaints: &Complaints) -> Failure {
    let with_reason = |detail: String| match complaints.last_line() {
        Some(line) => format!("{detail}: {line}"),
        None => detail,
    };
    match error {
        _ if running.overrun().is_some() => Failure::new(HarvestOutcome::LaunchFailed, too_much(end)),
        ClientInitializeError::JsonRpcError(error) => Failure::new(
            HarvestOutcome::Protocol,
            format!("it answered `initialize` with an error: {} ({})", error.message, error.code.0),
        ),
        ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. } => {
            let detail = match running.exit_code() {
                Some(code) => format!("it ended with exit code {code} before it answered"),
                None => "it closed its output before it answered".to_owned(),
            };
            Failure::new(HarvestOutcome::LaunchFailed, with_reason(detail))
        }
        other => Failure::new(HarvestOutcome::Protocol, other.to_string()),
    }
}

fn server_info(info: &rmcp::model::ServerPeerInfo) -> ServerInfo {
    let (name, version) = match &info.server_info {
        Some(server) => (server.name.clone(), server.version.clone()),
        None => Default::default(),
    };
    ServerInfo {
        name,
        version,
        protocol_version: info.protocol_version.to_string(),
        instructions: info.instructions.clone(),
        pins: Vec::new(),
    }
}

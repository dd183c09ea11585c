//! MCP servers: installed, started in the cage over a fresh world, spoken to over their standard
//! streams; or remote, where those are switched on.

mod client;
mod complaints;
mod cursor;
mod given;
mod handshake;
mod kept;
mod ladder;
mod package;
mod passing;
mod remote;
mod runner;
mod secrets;
mod wire;
mod world;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{Bind, Confined, ConnectError, Connector, Limits, Network, Process, ProcessEnd, ServerInfo, ToolRunner, WorldSpec},
    launch,
    record::{HarvestOutcome, Launch, ServerRecord},
};
use tempfile::TempDir;
use tokio::time::{Instant, timeout_at};

use crate::{
    assets::tail,
    cage::{Cage, Input, WORLD},
    http::Reach,
    install::{InUse, Installation, Installer},
};
use client::Client;
use complaints::Complaints;
use given::Given;
pub use handshake::Era;
pub use ladder::RetryLadder;
pub use passing::PassingInstalls;

use handshake::{Greeting, each_once, greet, refused, server_info};
use runner::{Behind, Runner};
use secrets::Secrets;
use wire::{Caps, Wire};
use world::{World, placed};

/// Characters of a server's error output that go into an error.
const COMPLAINT: usize = 4000;

/// Time for the answer to a probe, beyond what the server needed before: one that knows no other era often
/// does not answer at all.
const PROBED_WITHIN: Duration = Duration::from_secs(3);

/// What servers may take and use.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// From the start of the process to its answer to `initialize`.
    pub start: Duration,
    /// From a request to its answer.
    pub answer: Duration,
    /// From asking for the first page of its tools to having the last.
    pub list: Duration,
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
            list: Duration::from_secs(120),
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
    remote: Option<Reach>,
    probe_eras: bool,
    only: Option<Era>,
    takes_defaults: bool,
}

impl CagedConnector {
    /// Servers installed by `installer`; their worlds are made below `scratch`.
    pub fn new(cage: Cage, installer: Installer, scratch: impl Into<PathBuf>) -> Self {
        let limits = ServerLimits::default();
        let credentials = HashMap::new();
        let (probe_eras, takes_defaults) = (false, false);
        let scratch = scratch.into();
        Self { cage, installer, scratch, limits, credentials, remote: None, probe_eras, only: None, takes_defaults }
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

    /// Reaches remote servers, as far as `reach` lets; without it they are `Unsupported`.
    pub fn with_remote(mut self, reach: Option<Reach>) -> Self {
        self.remote = reach;
        self
    }

    /// Also asks servers that take `initialize` whether they speak the protocol without it, each in a
    /// process of its own, and notes what they offer.
    pub fn with_probe_eras(mut self, probe: bool) -> Self {
        self.probe_eras = probe;
        self
    }

    /// Opens servers in this way only, whatever they answer.
    pub fn with_only(mut self, era: Era) -> Self {
        self.only = Some(era);
        self
    }

    /// Takes forms that servers put before their user, as they are, where every field that is required has
    /// a default. Without it all are declined: nobody is there to be asked.
    pub fn with_defaults_taken(mut self, taken: bool) -> Self {
        self.takes_defaults = taken;
        self
    }

    /// Starts a program that is installed already, over a fresh world, and shakes hands.
    ///
    /// # Errors
    /// With the outcome it has earned.
    pub async fn start(&self, program: &Program, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        // What it was given nobody says, so it can know all of them.
        let secrets = Arc::new(Secrets::new(&self.credentials));
        let runner = self.in_either_era(program, world, &secrets).await;
        runner.map(|runner| Box::new(runner) as _).map_err(|failure| failure.told(&program.name, &secrets))
    }

    /// The secrets a server can have been given.
    fn secrets(&self, server: &ServerRecord) -> Arc<Secrets> {
        Arc::new(Secrets::given_to(server, &self.credentials))
    }

    fn client(&self, root: &str) -> Client {
        Client::new(root, self.takes_defaults)
    }

    /// A server made ready as for a connection, and not started: for who starts it by hand and compares.
    ///
    /// # Errors
    /// With the outcome it has earned.
    pub async fn ready(&self, server: &ServerRecord, spec: &WorldSpec) -> Result<Ready, ConnectError> {
        let ready = async {
            let program = self.prepare(server).await?;
            let world = self.world(spec).await?;
            let mut confined = self.confined(&format!("server {}", program.name), &program.command, &program, &world);
            confined.network = spec.network == Network::Full;
            Ok(Ready { confined, _world: world.into_folder() })
        };
        ready.await.map_err(|failure: Failure| failure.told(&server.name, &self.secrets(server)))
    }

    /// `initialize` first; the other era in a fresh process, when the server refuses the first.
    async fn in_either_era(&self, program: &Program, spec: &WorldSpec, secrets: &Arc<Secrets>) -> Result<Runner, Failure> {
        let begun = Instant::now();
        let deadline = begun + self.limits.start;
        let first = self.only.unwrap_or(Era::Initialize);
        let shake_hands = |era, deadline| Box::pin(self.shake_hands(program, spec, secrets, era, deadline));
        match shake_hands(first, deadline).await {
            only if self.only.is_some() => only,
            Ok(mut runner) if self.probe_eras => {
                let probe = deadline.min(Instant::now() + begun.elapsed() * 2 + PROBED_WITHIN);
                if let Ok(other) = shake_hands(Era::Discover, probe).await {
                    runner.info.offered = each_once(runner.info.offered.into_iter().chain(other.info.offered.clone()));
                    Box::new(other).close().await;
                }
                Ok(runner)
            }
            Err(first) if first.other_era => {
                let second = shake_hands(Era::Discover, deadline).await;
                second.map_err(|second| first.and(&second))
            }
            only => only,
        }
    }

    /// Says that the server's package is used, from before it is installed.
    async fn in_use(&self, server: &ServerRecord) -> Option<InUse> {
        let Launch::Stdio { command, args } = &server.launch else { return None };
        self.installer.using(&launch::parse(command, args).ok()?).await
    }

    /// The server's package, installed and given its arguments and variables.
    async fn prepare(&self, server: &ServerRecord) -> Result<Program, Failure> {
        let unsupported = |why: &str| Failure::new(HarvestOutcome::Unsupported, why);
        let package = match &server.launch {
            Launch::Stdio { command, args } => launch::parse(command, args).map_err(|e| unsupported(&e.to_string()))?,
            Launch::StreamableHttp { .. } | Launch::Sse { .. } => return Err(unsupported("a remote server has no program")),
            Launch::Unsupported { what } => return Err(unsupported(&format!("launch form `{what}` is not supported"))),
        };
        let mut given = Given::new(server, &self.credentials)?;
        let args = given.args(&package.args);
        let env = given.into_env()?;
        let installed = self.installer.install(&package).await.map_err(|e| Failure {
            stderr: e.stderr().map(str::to_owned),
            ..Failure::new(HarvestOutcome::InstallFailed, e.with_hint())
        })?;
        let Installation { mut command, env: own, .. } = installed.clone();
        command.extend(args);
        Ok(Program { name: server.name.clone(), command, env: [own, env].concat(), binds: installed.binds() })
    }

    async fn shake_hands(
        &self,
        program: &Program,
        spec: &WorldSpec,
        secrets: &Arc<Secrets>,
        era: Era,
        deadline: Instant,
    ) -> Result<Runner, Failure> {
        let broken = |detail: String| Failure::new(HarvestOutcome::LaunchFailed, detail);
        let world = self.world(spec).await?;
        // Without a cage the server sees the host's own path.
        let root = match self.cage.program() {
            Some(_) => WORLD.to_owned(),
            None => world.folder().to_string_lossy().into_owned(),
        };
        let mut confined = self.confined(&format!("server {}", program.name), &program.command, program, &world);
        confined.network = spec.network == Network::Full;
        if spec.writable_package {
            let made = package::writable(&self.cage, &confined.binds, &world).await;
            confined.binds = made.map_err(|e| broken(format!("its package cannot be made writable: {e}")))?;
        }
        let cage = self.cage.clone().with_disk_bytes(self.limits.disk_bytes);
        let mut running = cage.spawn(&confined, Input::Pipe).await.map_err(|e| broken(e.to_string()))?;
        running.hold(world.into_folder());
        let complaints = Complaints::of(running.stderr.take(), Arc::clone(secrets));
        let (Some(stdout), Some(stdin)) = (running.stdout.take(), running.stdin.take()) else {
            return Err(broken("its streams are not open".to_owned()));
        };
        let caps = Caps { line_bytes: self.limits.message_bytes, total_bytes: self.limits.output_bytes };
        let (wire, kept) = Wire::new(stdout, stdin, caps, Arc::clone(secrets));
        match timeout_at(deadline, greet(wire, self.client(&root), era)).await {
            Ok(Ok(Greeting { service, info })) => {
                let (transport, network) = ("stdio".to_owned(), spec.network);
                let info = ServerInfo { transport, network, folder: root, ..server_info(&info, era, &kept) };
                let (server, limits) = (program.name.clone(), self.limits);
                let behind = Behind::Process { running: Box::new(running), complaints };
                let secrets = Arc::clone(secrets);
                Ok(Runner { server, info, behind, service, kept, limits, listing: Mutex::default(), secrets, _in_use: None })
            }
            shaken => {
                let end = running.kill_after(Duration::from_millis(300)).await;
                let mut failure = match shaken {
                    Ok(Err(error)) if kept.flooded() => {
                        Failure::new(HarvestOutcome::Protocol, format!("it printed too much ({error})"))
                    }
                    Ok(Err(error)) => refused(&error, era, end, &running, &complaints),
                    _ => {
                        let detail = format!("no answer to {era} within {} s", self.limits.start.as_secs_f32());
                        Failure::new(HarvestOutcome::TimedOut, detail)
                    }
                };
                running.let_go().await;
                failure.stderr = complaints.text().map(|text| tail(&text, COMPLAINT));
                Err(failure)
            }
        }
    }

    /// A fresh world, set up.
    async fn world(&self, spec: &WorldSpec) -> Result<World, Failure> {
        let broken = |e| Failure::new(HarvestOutcome::LaunchFailed, format!("its world cannot be made: {e}"));
        let world = World::new(spec, &self.scratch).map_err(broken)?;
        self.set_up(spec, &world).await?;
        Ok(world)
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

/// A server that could be started as it is; its world goes when this does.
pub struct Ready {
    /// The program and all that it may see.
    pub confined: Confined,
    _world: TempDir,
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
        let secrets = self.secrets(server);
        let told = |failure: Failure| failure.told(&server.name, &secrets);
        if matches!(server.launch, Launch::StreamableHttp { .. } | Launch::Sse { .. }) {
            let runner = Box::pin(remote::connect(self, server, &secrets)).await;
            return runner.map(|runner| Box::new(runner) as _).map_err(told);
        }
        let connected = async {
            let in_use = self.in_use(server).await;
            let program = self.prepare(server).await?;
            Ok(Runner { _in_use: in_use, ..self.in_either_era(&program, world, &secrets).await? })
        };
        let runner = Box::pin(connected).await;
        runner.map(|runner| Box::new(runner) as _).map_err(told)
    }
}

/// Why there is no connection.
struct Failure {
    outcome: HarvestOutcome,
    detail: String,
    stderr: Option<String>,
    /// The server answered, and may speak the protocol of the other era.
    other_era: bool,
}

impl Failure {
    fn new(outcome: HarvestOutcome, detail: impl Into<String>) -> Self {
        Self { outcome, detail: detail.into(), stderr: None, other_era: false }
    }

    /// This failure, after another try has failed as well.
    fn and(mut self, other: &Self) -> Self {
        self.detail = format!("{}; then: {}", self.detail, other.detail);
        self
    }

    /// In words that hold none of `secrets`.
    fn told(self, server: &str, secrets: &Secrets) -> ConnectError {
        let stderr = self.stderr.map(|text| secrets.out_of(&text));
        ConnectError { server: server.to_owned(), outcome: self.outcome, detail: secrets.out_of(&self.detail), stderr }
    }
}

//! Starting programs in the cage and running them to their end.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use mcpmill_core::edge::{Confined, Process, ProcessEnd, ProcessError, ProcessOutput};
use rustix::process::Pid;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::unix::pipe,
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Cage, Wall,
    bounds::Bounds,
    devices,
    layout::{Layout, base_environment},
    outside::Outside,
    running::{Running, Tree},
    usage::is_waiting,
};

/// Time bubblewrap may take to make its namespaces on a busy machine.
const BUILT_WITHIN: Duration = Duration::from_secs(30);
/// Time output may take to arrive after the end of the last process.
const DRAINED_WITHIN: Duration = Duration::from_secs(2);

impl Cage {
    /// Starts a program and returns while it runs. Its wall time and output are the caller's to
    /// bound; the watchdog bounds memory, processes and disk.
    ///
    /// # Errors
    /// The cage could not be built.
    pub async fn spawn(&self, program: &Confined, input: Input) -> Result<Running, ProcessError> {
        let failed = |detail: String| ProcessError { what: program.what.clone(), detail };
        let started = match &self.wall {
            Wall::Bubblewrap(bubblewrap) => self.spawn_caged(bubblewrap, program, input).await,
            Wall::Nothing => self.spawn_bare(program, input).await.map_err(|e| e.to_string()),
        };
        let Started { mut child, tree, status, exit_code } = started.map_err(failed)?;
        let tree = Arc::new(tree);
        let overrun = Arc::new(OnceLock::new());
        let watchdog = self.watch(program, child.id(), &tree, &overrun);
        Ok(Running {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            tree,
            exit_code,
            overrun,
            watchdog,
            status,
            held: Vec::new(),
            _spawner: Arc::clone(&self.spawner),
        })
    }

    fn watch(
        &self,
        program: &Confined,
        root: Option<u32>,
        tree: &Arc<Tree>,
        overrun: &Arc<OnceLock<ProcessEnd>>,
    ) -> JoinHandle<()> {
        let folders = program.binds.iter().filter(|bind| bind.writable).map(|bind| bind.host.clone()).collect();
        let bounds = Bounds::new(&program.limits, folders, self.disk_bytes);
        let (tree, overrun) = (Arc::clone(tree), Arc::clone(overrun));
        tokio::spawn(async move {
            let Some(root) = root else { return };
            overrun.set(bounds.exceeded(root).await).ok();
            tree.kill();
        })
    }

    async fn spawn_caged(&self, bubblewrap: &Path, program: &Confined, input: Input) -> Result<Started, String> {
        let io = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
        // Once they are mounted they are there for as long as the cage, wherever they came from.
        let nodes = devices::made();
        let (args, mut inherit) = self.layout(program, nodes.as_ref()).await.map_err(io("its layout cannot be kept"))?;
        let (reader, writer) = io::pipe().map_err(io("no pipe can be made"))?;
        let writer = OwnedFd::from(writer);
        let status = writer.as_raw_fd();
        inherit.push(writer);
        let mut command = piped(std::process::Command::new(bubblewrap), Stdio::piped());
        // Programs inside can read this command line; where the cache is, is none of their business.
        command.arg0("bwrap");
        command.args(["--json-status-fd", &status.to_string(), "--args", &args.to_string(), "--"]).env_clear();
        command.args(["/bin/sh", "-c", &input.gate(self.disk_bytes), "gate"]).args(&program.command);
        let mut child = self
            .spawner
            .spawn(command, inherit)
            .await
            .map_err(|e| format!("`{}` cannot be started: {e}", bubblewrap.display()))?;
        let reader = pipe::Receiver::from_owned_fd(reader.into()).map_err(io("its status cannot be read"))?;
        let (first, exit_code, status) = read_status(reader);
        let built = timeout(BUILT_WITHIN, async {
            let init = first.await.ok()?;
            knock(&mut child, init).await?;
            Some(init)
        });
        match built.await {
            Ok(Some(init)) => {
                if input == Input::Nothing {
                    child.stdin.take();
                }
                Ok(Started { child, tree: Tree::namespace(init), status: Some(status), exit_code })
            }
            Ok(None) => Err(complaint(&mut child).await),
            Err(_) => Err("bubblewrap takes too long to make its namespaces".to_owned()),
        }
    }

    /// The descriptor that carries the layout of a cage, and all that bubblewrap inherits.
    async fn layout(&self, program: &Confined, nodes: Option<&TempDir>) -> io::Result<(i32, Vec<OwnedFd>)> {
        let outside = match program.network {
            true => Some(self.outside.get_or_init(Outside::discover).await),
            false => None,
        };
        Layout::new(program, &self.host, &self.hidden, outside, nodes.map(TempDir::path))?.into_file()
    }

    /// The command that starts `program` as [`Cage::spawn`] does, with the same cage around it but without
    /// gate, watchdog and device nodes of its own, and the descriptors it inherits. For who starts it by hand and compares; the
    /// descriptors have to be made inheritable first.
    ///
    /// # Errors
    /// The layout of the cage cannot be kept, or there is no command.
    pub async fn command(&self, program: &Confined) -> io::Result<(std::process::Command, Vec<OwnedFd>)> {
        let Wall::Bubblewrap(bubblewrap) = &self.wall else { return Ok((self.bare(program).await?, Vec::new())) };
        let (args, inherit) = self.layout(program, None).await?;
        let mut command = std::process::Command::new(bubblewrap);
        command.arg0("bwrap").args(["--args", &args.to_string(), "--"]).args(&program.command).env_clear();
        Ok((command, inherit))
    }

    /// The command without a cage.
    async fn bare(&self, program: &Confined) -> io::Result<std::process::Command> {
        let program = on_host(program);
        let empty = || io::Error::new(io::ErrorKind::InvalidInput, "there is no command");
        let (name, args) = program.command.split_first().ok_or_else(empty)?;
        let home = std::env::temp_dir();
        let mut command = std::process::Command::new(name);
        command.args(args).env_clear().process_group(0).current_dir(program.workdir.as_deref().unwrap_or(&home));
        command.envs(base_environment(&self.host, &home.to_string_lossy())).env("TMPDIR", &home).envs(program.env);
        if program.network {
            command.envs(self.outside.get_or_init(Outside::discover).await.env.clone());
        }
        Ok(command)
    }

    async fn spawn_bare(&self, program: &Confined, input: Input) -> io::Result<Started> {
        let stdin = if input == Input::Pipe { Stdio::piped() } else { Stdio::null() };
        let command = piped(self.bare(program).await?, stdin);
        let child = self.spawner.spawn(command, Vec::new()).await?;
        let leader = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let tree = leader.map_or(Tree::Gone, Tree::Group);
        Ok(Started { child, tree, status: None, exit_code: watch::channel(None).1 })
    }
}

/// What a program reads from its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing: it is at its end.
    Nothing,
    /// What is written to [`Running::stdin`].
    Pipe,
}

/// The beginning of every gate.
pub(super) const GATE: &str = "echo; read -r go || exit 125; ";

/// Descriptors a process may have open.
const MOST_OPEN: u32 = 4096;
/// Bytes by which a file may outgrow the bound of the disk: the watchdog ends its program rather than the
/// program itself.
const FILE_SLACK: u64 = 64 << 20;
/// The unit in which a shell counts the length of files.
const SHELL_BLOCK: u64 = 512;

impl Input {
    /// What stands before a caged program until the cage is closed behind it.
    ///
    /// Bubblewrap ties itself to the life of this process only at the end of its setup, and to a
    /// parent that is gone by then not at all: killed in that moment, mcpmill would leave a program
    /// behind. So the program only starts once it was waved through, and a gate whose keeper is gone
    /// ends everything.
    ///
    /// It also bounds what each process may open and how long a file may get, and lets none lock memory, which
    /// sockets could keep for it. That is no bound on the tree,
    /// but it keeps the tree from going far beyond its bounds before the watchdog looks.
    fn gate(self, disk_bytes: u64) -> String {
        let blocks = disk_bytes.saturating_add(FILE_SLACK) / SHELL_BLOCK;
        let bounds = format!("ulimit -n {MOST_OPEN}; ulimit -f {blocks}; ulimit -c 0; ulimit -l 0; ");
        let rest = if self == Self::Nothing { "exec \"$@\" </dev/null" } else { "exec \"$@\"" };
        format!("{GATE}{{ {bounds}}} 2>/dev/null; {rest}")
    }
}

/// Waits until the gate is reached and opens it.
async fn knock(child: &mut Child, init: i32) -> Option<()> {
    let reached = child.stdout.as_mut()?.read_u8().await.ok()?;
    if reached != b'\n' {
        return None;
    }
    // The first process of the namespace only waits from now on, and it is tied to us before it does.
    let bound = Instant::now() + DRAINED_WITHIN;
    while !is_waiting(init) && Instant::now() < bound {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stdin = child.stdin.as_mut()?;
    stdin.write_all(b"\n").await.ok()?;
    stdin.flush().await.ok()
}

/// A program just started.
struct Started {
    child: Child,
    tree: Tree,
    status: Option<JoinHandle<()>>,
    exit_code: watch::Receiver<Option<i32>>,
}

fn piped(command: std::process::Command, stdin: Stdio) -> Command {
    let mut command = Command::from(command);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Reads what bubblewrap says: first the process id of the namespace's init, last the exit code.
/// The code is missing when the program could not be started at all.
fn read_status(reader: pipe::Receiver) -> (tokio::sync::oneshot::Receiver<i32>, watch::Receiver<Option<i32>>, JoinHandle<()>) {
    let (init, first) = tokio::sync::oneshot::channel();
    let (code, exit_code) = watch::channel(None);
    let task = tokio::spawn(async move {
        let mut init = Some(init);
        let mut lines = BufReader::new(reader).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(said) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
            let number = |key: &str| said[key].as_i64().and_then(|n| i32::try_from(n).ok());
            if let (Some(pid), Some(init)) = (number("child-pid"), init.take()) {
                init.send(pid).ok();
            }
            if let Some(exit) = number("exit-code") {
                code.send_replace(Some(exit));
            }
        }
    });
    (first, exit_code, task)
}

/// The end of what a bubblewrap that gave up has printed.
async fn complaint(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        timeout(DRAINED_WITHIN, stderr.take(4096).read_to_end(&mut text)).await.ok();
    }
    child.start_kill().ok();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    if text.is_empty() { "bubblewrap ended without a word".to_owned() } else { text }
}

/// The program as it is run without a cage: paths inside are replaced by those on the host,
/// wherever they stand.
fn on_host(program: &Confined) -> Confined {
    let mut program = program.clone();
    program.binds.sort_by_key(|bind| std::cmp::Reverse(bind.inside.as_os_str().len()));
    let moved: Vec<(String, String)> = program
        .binds
        .iter()
        .filter(|bind| bind.inside != bind.host)
        .map(|bind| (bind.inside.to_string_lossy().into_owned(), bind.host.to_string_lossy().into_owned()))
        .collect();
    let there = |text: &str| moved.iter().fold(text.to_owned(), |text, (inside, host)| text.replace(inside, host));
    program.command = program.command.iter().map(|part| there(part)).collect();
    program.env = program.env.iter().map(|(name, value)| (name.clone(), there(value))).collect();
    program.workdir = program.workdir.map(|folder| PathBuf::from(there(&folder.to_string_lossy())));
    program.workdir = program.workdir.filter(|folder| fs::metadata(folder).is_ok());
    program
}

#[async_trait]
impl Process for Cage {
    async fn run_on(&self, program: &Confined, input: &[u8]) -> Result<ProcessOutput, ProcessError> {
        let deadline = Instant::now() + program.limits.wall;
        let wanted = if input.is_empty() { Input::Nothing } else { Input::Pipe };
        let mut running = self.spawn(program, wanted).await?;
        let stdin = running.stdin.take();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let cap = program.limits.output_bytes;
        let read_out = read_capped(running.stdout.take(), &mut stdout, cap);
        let read_err = read_capped(running.stderr.take(), &mut stderr, cap);
        // Written while it is read: a program may answer before it has everything, and both pipes are small.
        let writing = async {
            if let Some(mut stdin) = stdin {
                stdin.write_all(input).await.ok();
            }
            Ok(())
        };
        let reading = async { tokio::try_join!(writing, read_out, read_err).map(|_| ()) };
        let end = to_the_end(&mut running, reading, deadline).await;
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        Ok(ProcessOutput { end, stdout: String::from_utf8_lossy(&stdout).into_owned(), stderr })
    }
}

/// Waits for the end of the program, of its output or of its time.
async fn to_the_end(running: &mut Running, reading: impl Future<Output = Result<(), Flood>>, deadline: Instant) -> ProcessEnd {
    tokio::pin!(reading);
    let mut drained = false;
    let stopped = loop {
        tokio::select! {
            read = &mut reading, if !drained => match read {
                // A program may close its output and go on.
                Ok(()) => drained = true,
                Err(Flood) => break Some(ProcessEnd::TooMuchOutput),
            },
            // Cancel-safe: it only looks; the waiting proper comes after the loop.
            _ = running.child.wait() => break None,
            () = tokio::time::sleep_until(deadline) => break Some(ProcessEnd::TimedOut),
        }
    };
    let ended = match stopped {
        Some(_) => running.kill().await,
        None => running.wait().await,
    };
    if !drained && stopped != Some(ProcessEnd::TooMuchOutput) {
        match timeout_at(Instant::now() + DRAINED_WITHIN, reading).await {
            Ok(Err(Flood)) if stopped.is_none() => return ProcessEnd::TooMuchOutput,
            _ => {}
        }
    }
    running.overrun().or(stopped).unwrap_or(ended)
}

/// More output than the limit.
struct Flood;

async fn read_capped(stream: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>, cap: u64) -> Result<(), Flood> {
    let Some(stream) = stream else { return Ok(()) };
    // One byte more than the cap tells a full pipe from an ended one.
    if stream.take(cap + 1).read_to_end(kept).await.is_ok() && kept.len() as u64 > cap {
        kept.truncate(usize::try_from(cap).unwrap_or(usize::MAX));
        return Err(Flood);
    }
    Ok(())
}

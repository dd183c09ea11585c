//! A program that runs in the cage.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use mcpmill_core::edge::ProcessEnd;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitpid};
use tempfile::TempDir;
use tokio::{
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use super::{beneath::remove_tree, spawn::Spawner, usage::has_ended};

/// Time the kernel may take to clear a namespace away.
const CLEARED_WITHIN: Duration = Duration::from_secs(10);

/// Time between two looks at a namespace that is being cleared away, which mostly takes less.
const LOOK: Duration = Duration::from_millis(1);

/// A program in the cage. Dropping it ends it and all that it started, without waiting; [`Running::kill`] waits.
pub struct Running {
    /// Its standard input, when it was asked for.
    pub stdin: Option<ChildStdin>,
    /// Its standard output.
    pub stdout: Option<ChildStdout>,
    /// Its error output.
    pub stderr: Option<ChildStderr>,
    pub(super) child: Child,
    pub(super) tree: Arc<Tree>,
    pub(super) exit_code: watch::Receiver<Option<i32>>,
    pub(super) overrun: Arc<OnceLock<ProcessEnd>>,
    pub(super) watchdog: JoinHandle<()>,
    pub(super) status: Option<JoinHandle<()>>,
    /// Folders that are removed once nothing can write to them any more.
    pub(super) held: Vec<TempDir>,
    /// The thread that started it: were it to end, so would the cage.
    pub(super) _spawner: Arc<Spawner>,
}

/// What has to be killed for everything to be gone.
pub(super) enum Tree {
    /// The first process of a PID namespace; the kernel takes the others along.
    Namespace { init: Pid, handle: OwnedFd },
    /// A process group, which a program can leave.
    Group(Pid),
    /// Nothing: the namespace was empty before it could be looked at.
    Gone,
}

impl Tree {
    /// The namespace whose first process is `init`.
    pub(super) fn namespace(init: i32) -> Self {
        let open = |init| Some(Self::Namespace { init, handle: pidfd_open(init, PidfdFlags::empty()).ok()? });
        Pid::from_raw(init).and_then(open).unwrap_or(Self::Gone)
    }

    /// Sends SIGKILL; it may be gone already.
    pub(super) fn kill(&self) {
        match self {
            Self::Namespace { handle, .. } => pidfd_send_signal(handle, Signal::KILL).ok(),
            Self::Group(leader) => kill_process_group(*leader, Signal::KILL).ok(),
            Self::Gone => None,
        };
    }

    /// Waits until a killed namespace is empty: its first process ends last.
    async fn gone(&self) {
        let Self::Namespace { init, handle } = self else { return };
        let deadline = Instant::now() + CLEARED_WITHIN;
        // A signal can be sent for as long as somebody may still ask how it ended.
        while pidfd_send_signal(handle, Signal::KILL).is_ok() && !has_ended(*init) && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
        // When bubblewrap dies first its child is handed to the nearest reaper, which may be us.
        waitpid(Some(*init), WaitOptions::NOHANG).ok();
    }
}

impl Running {
    /// Waits for the program to end by itself or by the watchdog, then ends what it left behind.
    pub async fn wait(&mut self) -> ProcessEnd {
        let status = self.child.wait().await;
        self.tree.kill();
        self.tree.gone().await;
        self.watchdog.abort();
        if let Some(reader) = self.status.take() {
            // The exit code was written before bubblewrap ended; it only has to be read.
            timeout(Duration::from_secs(1), reader).await.ok();
        }
        self.end(status)
    }

    /// Ends the program and all that it started, and waits until they are gone.
    pub async fn kill(&mut self) -> ProcessEnd {
        self.tree.kill();
        if timeout(CLEARED_WITHIN, self.child.wait()).await.is_err() {
            self.child.start_kill().ok();
        }
        self.wait().await
    }

    /// Gives the program a moment to end by itself, then ends it.
    pub async fn kill_after(&mut self, moment: Duration) -> ProcessEnd {
        match timeout(moment, self.wait()).await {
            Ok(end) => end,
            Err(_) => self.kill().await,
        }
    }

    /// Whether it runs in a namespace of its own, so that nothing outside can depend on how it ends.
    pub fn is_caged(&self) -> bool {
        !matches!(*self.tree, Tree::Group(_))
    }

    /// Keeps a folder for as long as the program can write to it, then removes it.
    pub fn hold(&mut self, folder: TempDir) {
        self.held.push(folder);
    }

    /// Removes the folders that were held for a program that has ended.
    pub async fn let_go(&mut self) {
        let held = std::mem::take(&mut self.held);
        tokio::task::spawn_blocking(move || remove(held)).await.ok();
    }

    /// The bound that the watchdog saw exceeded.
    pub fn overrun(&self) -> Option<ProcessEnd> {
        self.overrun.get().copied()
    }

    /// The code it ended with by itself; `None` while it runs and when it was killed.
    pub fn exit_code(&self) -> Option<i32> {
        *self.exit_code.borrow()
    }

    fn end(&self, status: io::Result<std::process::ExitStatus>) -> ProcessEnd {
        if let Some(end) = self.overrun() {
            return end;
        }
        match self.ended_by_itself(status) {
            ProcessEnd::Signalled(signal) if signal == Signal::XFSZ.as_raw() => ProcessEnd::TooMuchDisk,
            end => end,
        }
    }

    fn ended_by_itself(&self, status: io::Result<std::process::ExitStatus>) -> ProcessEnd {
        use std::os::unix::process::ExitStatusExt;

        match (self.exit_code(), status) {
            // Bubblewrap passes a signal on the way shells do.
            (Some(code @ 129..=192), _) => ProcessEnd::Signalled(code - 128),
            (Some(code), _) => ProcessEnd::Exited(code),
            (None, Ok(status)) => match (status.signal(), status.code()) {
                (Some(signal), _) => ProcessEnd::Signalled(signal),
                (None, Some(code @ 129..=192)) => ProcessEnd::Signalled(code - 128),
                (None, code) => ProcessEnd::Exited(code.unwrap_or(-1)),
            },
            (None, Err(_)) => ProcessEnd::Exited(-1),
        }
    }
}

/// Removes folders that a program may have closed to us.
fn remove(held: Vec<TempDir>) {
    for folder in held {
        // What cannot be removed is left for `mcpmill clean`, which says so.
        remove_tree(folder.path()).ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tree.kill();
        self.watchdog.abort();
        let (tree, held) = (Arc::clone(&self.tree), std::mem::take(&mut self.held));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tree.gone().await;
                remove(held);
            });
        }
    }
}

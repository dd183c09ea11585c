//! The one thread that starts programs.

use std::{
    fs, io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use rustix::io::{FdFlags, fcntl_setfd};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

/// Starts programs from one thread, the same for all cages of the process.
///
/// `--die-with-parent` rests on PR_SET_PDEATHSIG, and the kernel's "parent" is the *thread* that
/// forked: a cage started from `spawn_blocking` would be killed when the pool lets its idle thread
/// go. One thread also means that a descriptor made inheritable for one program cannot slip into
/// another that is started at the same moment.
pub(super) struct Spawner {
    jobs: mpsc::Sender<Job>,
}

struct Job {
    command: Command,
    runtime: Handle,
    inherit: Vec<OwnedFd>,
    reply: oneshot::Sender<io::Result<Child>>,
}

impl Spawner {
    /// The spawner of this process; its thread is started at the first call.
    pub(super) fn of_process() -> io::Result<Arc<Self>> {
        static ONLY: Mutex<Option<Arc<Spawner>>> = Mutex::new(None);
        let mut only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(spawner) = only.as_ref() {
            return Ok(Arc::clone(spawner));
        }
        // Before the first program: later it would take from one what it is to inherit.
        keep_to_ourselves();
        let (jobs, waiting) = mpsc::channel::<Job>();
        thread::Builder::new().name("mcpmill-spawn".to_owned()).spawn(move || {
            for job in waiting {
                job.work();
            }
        })?;
        Ok(Arc::clone(only.insert(Arc::new(Self { jobs }))))
    }

    /// Starts `command`, which inherits `inherit` under the same numbers and no other descriptor.
    pub(super) async fn spawn(&self, command: Command, inherit: Vec<OwnedFd>) -> io::Result<Child> {
        let (reply, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts programs is gone");
        self.jobs.send(Job { command, runtime: Handle::current(), inherit, reply }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

impl Job {
    fn work(mut self) {
        let _runtime = self.runtime.enter();
        let opened = self.inherit.iter().try_for_each(|fd| fcntl_setfd(fd, FdFlags::empty()));
        let child = opened.map_err(io::Error::from).and_then(|()| self.command.spawn());
        // A caller that is gone drops the child, which ends it: every command is `kill_on_drop`.
        self.reply.send(child).ok();
    }
}

/// Marks the descriptors this process was started with as its own. A shell or a CI runner may have
/// left open what no caged program should hold; whatever Rust opens is marked from the start.
fn keep_to_ourselves() {
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(number @ 3..) = number {
            #[allow(unsafe_code, reason = "a descriptor that is only known by its number can be borrowed in no other way")]
            // SAFETY: the borrow ends in this statement and only sets the close-on-exec flag. Should the
            // number have been closed meanwhile the call fails; should it have been opened anew, the flag
            // is set on a descriptor that has it already.
            let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok();
        }
    }
}

//! The cage: every third-party program runs in bubblewrap and sees of the host only what is listed.
//!
//! Own user, PID, IPC, UTS and cgroup namespaces, a network namespace of its own unless an
//! installer runs or a server whose policy lets it out, uid 1000 inside, no capabilities, a read-only root, private HOME and TMP of
//! bounded size, and an environment from an allow-list. /proc is read-only, of /usr only what programs need is
//! shown, without the settings of package clients, and the folders of the project never. The end of a caged
//! program is the end of everything it started.
//!
//! A watchdog bounds what the process tree uses: resident memory and the tables of its pages, also of a process
//! whose first thread has ended; the private folders, with every file in them counting; memory that processes
//! share and deleted files, for as long as anybody has them open or mapped. A tree that has more descriptors or
//! longer lists of mappings than the watchdog reads is ended. The kernel refuses calls that make or keep memory
//! which the watchdog could not see.
//!
//! What is not bounded: bytes that wait in pipes and sockets of the program's own, up to the kernel's bound for
//! each of the descriptors it may have open; what the kernel keeps for locks on files and for watches; other
//! things of the kernel's that have bounds of its own. Where mcpmill is not root the sizes of shared memory and
//! of some deleted files cannot be known: a tree that holds such is ended once the machine has lost as much as
//! the tree may use. And between two looks of the watchdog a program can go beyond its bounds by what the
//! machine writes in a moment.

mod beneath;
mod bounds;
mod devices;
mod error;
mod filter;
mod held;
mod host;
mod layout;
mod orphans;
mod outside;
mod run;
mod running;
mod spawn;
mod usage;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mcpmill_core::edge::{Bind, Confined, Limits, Process, ProcessEnd};

pub(crate) use beneath::disk_usage;
pub use beneath::remove_tree;
pub use error::{CageError, CageErrorKind};
pub use host::{Host, Interpreter};
pub(crate) use layout::{WRITTEN, make_overlay};
pub use outside::npm_registry;
pub use run::Input;
pub use running::Running;

use outside::Outside;
use spawn::Spawner;

/// HOME inside the cage.
pub const HOME: &str = "/home/user";
/// Where the world folder of a server is inside the cage.
pub const WORLD: &str = "/home/user/work";
/// Where the state folder of a server is inside the cage.
pub const STATE: &str = "/home/user/.state";

/// Bytes that a program may add to its writable folders, unless said otherwise.
const DISK_BYTES: u64 = 256 << 20;
/// The first bubblewrap that can bound a private folder (`--size`).
const OLDEST: (u32, u32) = (0, 7);

/// Runs programs in bubblewrap, or next to the host's own when the user has chosen so.
///
/// Cheap to clone; all cages of a process share the thread that starts programs.
#[derive(Clone)]
pub struct Cage {
    wall: Wall,
    host: Arc<Host>,
    spawner: Arc<Spawner>,
    outside: Arc<tokio::sync::OnceCell<Outside>>,
    overlays: Arc<tokio::sync::OnceCell<bool>>,
    disk_bytes: u64,
    hidden: Arc<Vec<PathBuf>>,
}

/// What stands between a program and the host.
#[derive(Clone, Debug, PartialEq)]
enum Wall {
    /// This bubblewrap.
    Bubblewrap(PathBuf),
    /// Nothing but a process group.
    Nothing,
}

impl Cage {
    /// A cage made by the bubblewrap at `program`. Nothing is tried; see [`Cage::probe`].
    ///
    /// # Errors
    /// No thread can be started.
    pub fn bubblewrap(program: impl Into<PathBuf>, host: Host) -> Result<Self, CageError> {
        Self::new(Wall::Bubblewrap(program.into()), host)
    }

    /// No cage: programs run as the user, who has chosen so. They get an environment from the
    /// allow-list, their own process group and the same bounds, and that is all; paths inside the
    /// cage are replaced by those on the host.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn unsandboxed(host: Host) -> Result<Self, CageError> {
        Self::new(Wall::Nothing, host)
    }

    /// The first of the system's bubblewrap and the one at `fallback` that works here. Ends what an
    /// earlier mcpmill that was killed may have left.
    ///
    /// # Errors
    /// Neither works; the reason is that of the last one tried.
    pub async fn find(fallback: Option<&Path>, host: Host) -> Result<Self, CageError> {
        if !cfg!(target_os = "linux") {
            return Err(CageError::new(CageErrorKind::UnsupportedSystem, "bubblewrap needs Linux"));
        }
        orphans::end_orphans();
        devices::remove_orphans();
        let mut last = CageError::new(CageErrorKind::Missing, "there is no `bwrap` on the PATH");
        for program in host::on_path("bwrap").into_iter().chain(fallback.map(Path::to_owned)) {
            let cage = Self::bubblewrap(program, host.clone())?;
            match cage.probe().await {
                Ok(_) => return Ok(cage),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn new(wall: Wall, host: Host) -> Result<Self, CageError> {
        let spawner =
            Spawner::of_process().map_err(|e| CageError::new(CageErrorKind::Broken, format!("no thread can be started: {e}")))?;
        Ok(Self {
            wall,
            host: Arc::new(host),
            spawner,
            outside: Arc::default(),
            overlays: Arc::default(),
            disk_bytes: DISK_BYTES,
            hidden: Arc::default(),
        })
    }

    /// The same cage with another bound on what a program may add to its writable folders.
    pub fn with_disk_bytes(mut self, bytes: u64) -> Self {
        self.disk_bytes = bytes;
        self
    }

    /// The same cage in which these folders of the host are shown nowhere, whatever they lie in: an interpreter
    /// is shown with its prefix, and somebody's project may be in there. A bind of such a folder, or of one
    /// below it, is shown where it is asked for.
    pub fn with_hidden(mut self, folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut folders: Vec<PathBuf> = folders.into_iter().filter_map(|folder| real(&folder)).collect();
        // An outer one hides what it holds.
        folders.sort();
        folders.dedup_by(|inner, outer| inner.starts_with(outer));
        self.hidden = Arc::new(folders);
        self
    }

    /// What of the host it knows.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The bubblewrap it uses; `None` when it is no cage at all.
    pub fn program(&self) -> Option<&Path> {
        match &self.wall {
            Wall::Bubblewrap(program) => Some(program),
            Wall::Nothing => None,
        }
    }

    /// Whether the cage works here: runs a program in it that must not be root and must see one
    /// network interface.
    ///
    /// # Errors
    /// It does not, with the reason and a hint.
    pub async fn probe(&self) -> Result<(), CageError> {
        if self.wall == Wall::Nothing {
            return Ok(());
        }
        self.check_version().await?;
        let script = "id -u; cat /proc/net/dev | wc -l; echo ${HOME}";
        let output = self.run(&small("a test of the cage", &["/bin/sh", "-c", script])).await;
        let output = output.map_err(|e| CageError::new(CageErrorKind::NoNamespaces, e.detail))?;
        let expected = format!("1000\n3\n{HOME}\n");
        if output.end == ProcessEnd::Exited(0) && output.stdout == expected {
            return Ok(());
        }
        let detail = format!("its test ended with {:?} and printed `{}{}`", output.end, output.stdout, output.stderr);
        Err(CageError::new(CageErrorKind::Broken, detail))
    }

    /// What this cage is weaker in here than one could wish, in words for whoever decides what runs in it.
    pub fn weaknesses(&self) -> Vec<&'static str> {
        if self.wall == Wall::Nothing {
            return vec!["there is no cage: programs run as the user"];
        }
        let mut found = vec!["memory, processes and disk are measured several times a second, without cgroups"];
        if devices::are_the_hosts() {
            found.push("root may make no device nodes here, so that programs see the host's: run mcpmill as another user");
        }
        found
    }

    /// Variables that tell installers where packages come from.
    pub(crate) async fn registries(&self) -> &[(String, String)] {
        &self.outside.get_or_init(Outside::discover).await.registries
    }

    /// Whether a program can be given a writable view of a read-only folder, with what it writes kept below
    /// `scratch`: a matter of bubblewrap (0.11), of the kernel and of the file system. Tried once.
    pub(crate) async fn has_overlays(&self, scratch: &Path) -> bool {
        *self.overlays.get_or_init(|| async { self.try_overlay(scratch).await.unwrap_or_default() }).await
    }

    async fn try_overlay(&self, scratch: &Path) -> std::io::Result<bool> {
        let root = tempfile::tempdir_in(scratch)?;
        let (below, over, inside) = (root.path().join("below"), root.path().join("over"), Path::new("/opt/tried"));
        std::fs::create_dir(&below)?;
        std::fs::write(below.join("there"), "as it was")?;
        std::fs::create_dir(&over)?;
        make_overlay(&over)?;
        let mut program = small("a test of overlays", &["/bin/sh", "-c", "cd /opt/tried && echo changed > there && mkdir made"]);
        program.binds = vec![
            Bind { host: below.clone(), inside: inside.to_owned(), writable: false },
            Bind { host: over, inside: inside.to_owned(), writable: true },
        ];
        let worked = self.run(&program).await.is_ok_and(|output| output.end == ProcessEnd::Exited(0));
        let unchanged = std::fs::read_to_string(below.join("there"))? == "as it was" && !below.join("made").exists();
        remove_tree(root.path())?;
        Ok(worked && unchanged)
    }

    /// Whether there is a bubblewrap that knows the options used here.
    async fn check_version(&self) -> Result<(), CageError> {
        let Wall::Bubblewrap(program) = &self.wall else { return Ok(()) };
        if !program.exists() {
            return Err(CageError::new(CageErrorKind::Missing, format!("`{}` does not exist", program.display())));
        }
        let said = host::ask(program, &["--version"]).await.unwrap_or_default();
        let version = said.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
        match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) if (major, minor) >= OLDEST => Ok(()),
            _ => {
                let detail = format!("`{}` is of version `{version}`, older than {}.{}", program.display(), OLDEST.0, OLDEST.1);
                Err(CageError::new(CageErrorKind::Broken, detail))
            }
        }
    }
}

/// A folder by its own name, without links, also when it is yet to be made.
fn real(folder: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(folder).ok()?;
    let there = folder.ancestors().find(|outer| outer.exists())?;
    Some(std::fs::canonicalize(there).ok()?.join(folder.strip_prefix(there).ok()?))
}

/// A program that needs next to nothing.
fn small(what: &str, command: &[&str]) -> Confined {
    Confined {
        what: what.to_owned(),
        command: command.iter().map(|&part| part.to_owned()).collect(),
        binds: Vec::new(),
        env: Vec::new(),
        workdir: None,
        network: false,
        limits: Limits { wall: Duration::from_secs(10), output_bytes: 64 << 10, memory_bytes: 256 << 20, processes: 32 },
    }
}

//! Installing servers: each package into a folder of its own, in the cage, from a lock.
//!
//! An installer has the network but no secrets and no view of HOME, and no code of packages runs beside it:
//! npm's scripts are off, Python packages come as wheels only, and no interpreter that reads their `.pth`
//! files is started once they are there. Bytecode is compiled without the network, by an interpreter that
//! takes no notice of them. What an installer fetches is put aside and joins the cache that all share when the
//! step has gone well: one that takes too much ends alone.
//!
//! Those packages that the user lets be built from source run code, with the network. It sees a cache of
//! its own and never the shared one.
//!
//! Everything is pinned by version and hash; where no lock is given, one is made first and kept beside the
//! installation.

mod error;
mod lock;
mod packages;
mod program;
mod prune;
mod staging;
mod steps;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use mcpmill_core::{
    canonical::{content_hash, sha256_hex},
    edge::Bind,
    launch::{Package, Registry},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore};

pub use error::{InstallError, InstallErrorKind};
pub use lock::Lock;
pub use packages::{PackageSettings, Packages, Sources};
pub use prune::{Pruned, prune_installations, prune_packages};

use crate::{
    assets::{self, Assets},
    cage::{Cage, Interpreter, remove_tree},
};
use steps::Site;

/// Installations at the same time; each of them uses several processors and the network.
const AT_ONCE: usize = 2;

/// A package that is ready to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Installation {
    /// Program and first arguments; those of the launch line are not among them.
    pub command: Vec<String>,
    /// Variables it needs.
    pub env: Vec<(String, String)>,
    /// Its own folder on the host, seen at [`PREFIX`].
    pub prefix: PathBuf,
    /// What there is of the interpreter, where it is none of the system's; seen at the same place as on the host.
    pub interpreter: Vec<PathBuf>,
}

/// Where a package is installed and found in the cage: the same on every machine, so that nothing a
/// server says tells where the cache of this one is.
pub const PREFIX: &str = "/opt/server";

impl Installation {
    /// What it has to see, as read-only binds.
    pub fn binds(&self) -> Vec<Bind> {
        let bind = |host: &PathBuf, inside: &Path| Bind { host: host.clone(), inside: inside.to_owned(), writable: false };
        let interpreter = self.interpreter.iter().map(|folder| bind(folder, folder));
        interpreter.chain([bind(&self.prefix, Path::new(PREFIX))]).collect()
    }

    /// The command as paths of the host, for programs of our own choice that need no cage.
    pub fn host_command(&self) -> Vec<String> {
        self.command.iter().map(|part| part.replace(PREFIX, &self.prefix.to_string_lossy())).collect()
    }
}

/// What says that an installation is whole, and of what.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    fingerprint: String,
    #[serde(flatten)]
    installation: Installation,
}

/// Installs packages below a cache folder.
#[derive(Clone)]
pub struct Installer {
    cage: Cage,
    assets: Assets,
    cache: PathBuf,
    locks: Arc<Vec<Lock>>,
    offline: bool,
    python: Option<String>,
    packages: Arc<Packages>,
    /// Versions of Python that were asked for, and what was found: asking starts the interpreter.
    pythons: Arc<Mutex<HashMap<Option<String>, Interpreter>>>,
    turns: Arc<Semaphore>,
    at_once: usize,
}

impl Installer {
    /// An installer that keeps servers and the caches of npm and uv below `cache`.
    pub fn new(cage: Cage, assets: Assets, cache: impl Into<PathBuf>) -> Self {
        let cache = std::path::absolute(cache.into()).unwrap_or_default();
        Self {
            cage,
            assets,
            cache,
            locks: Arc::default(),
            offline: false,
            python: None,
            packages: Arc::default(),
            pythons: Arc::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            at_once: AT_ONCE,
        }
    }

    /// Locks to install from; the first one that fits a package is used.
    pub fn with_locks(mut self, locks: Vec<Lock>) -> Self {
        self.locks = Arc::new(locks.into_iter().map(Lock::tidied).collect());
        self
    }

    /// Whether nothing may be fetched: what is not installed yet is then installed from its lock and what
    /// npm and uv kept of its packages, or fails.
    pub fn with_offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// The version of Python for packages that ask for none (`3.12`); otherwise what `python3` is.
    pub fn with_python(mut self, version: Option<String>) -> Self {
        self.python = version;
        self
    }

    /// Settings of single packages.
    pub fn with_packages(mut self, packages: Packages) -> Self {
        self.packages = Arc::new(packages);
        self
    }

    /// Installations at the same time.
    pub fn with_at_once(mut self, at_once: usize) -> Self {
        self.at_once = at_once.max(1);
        self.turns = Arc::new(Semaphore::new(self.at_once));
        self
    }

    /// Says that the package is used until the guard goes: nobody discards it meanwhile, in this process or
    /// another. Taken before it is installed, it also covers the time from there to its start. `None` when
    /// the package cannot be installed here at all.
    pub async fn using(&self, package: &Package) -> Option<InUse> {
        let path = used(&self.folder(package).await?);
        let shared = tokio::task::spawn_blocking(move || {
            fs::create_dir_all(path.parent()?).ok()?;
            let file = fs::File::create(path).ok()?;
            file.lock_shared().ok().map(|()| InUse(file))
        });
        shared.await.ok().flatten()
    }

    /// Removes what is installed of the package unless somebody uses it; its lock stays, and the next
    /// installation is the same.
    pub async fn discard(&self, package: &Package) {
        let Some(folder) = self.folder(package).await else { return };
        let Ok(_lock) = assets::lock(folder.with_extension("lock")).await else { return };
        let Ok(mark) = fs::File::create(used(&folder)) else { return };
        if mark.try_lock().is_err() {
            return;
        }
        // Whoever comes from here on finds it not installed, and waits for the lock.
        fs::remove_file(folder.join(READY)).ok();
        mark.unlock().ok();
        let prefix = folder.join("prefix");
        // Thousands of small files: not on a thread that others wait for.
        tokio::task::spawn_blocking(move || remove_tree(&prefix).ok()).await.ok();
    }

    /// Where a package is installed.
    pub(crate) async fn folder(&self, package: &Package) -> Option<PathBuf> {
        let interpreter = self.interpreter(package).await.ok()?;
        Some(self.cache.join("servers").join(folder_name(package, &interpreter)))
    }

    /// The package, installed if it is not yet.
    ///
    /// # Errors
    /// It cannot be installed; what a failed attempt left is removed by the next one.
    pub async fn install(&self, package: &Package) -> Result<Installation, InstallError> {
        let given = self.locks.iter().find(|lock| lock.fits(package));
        let folder = self.cache.join("servers");
        self.attempt(package, given, &folder).await.map_err(|kind| InstallError { package: package.requirement.clone(), kind })
    }

    /// A Python environment of exactly what `lock` pins; its command is its Python. Kept like servers
    /// are, below `environments`.
    ///
    /// # Errors
    /// It cannot be installed.
    pub async fn environment(&self, name: &str, lock: &Lock) -> Result<Installation, InstallError> {
        let package = Package {
            registry: Registry::Pypi,
            name: name.to_owned(),
            version: None,
            requirement: name.to_owned(),
            with: Vec::new(),
            python: None,
            prerelease: false,
            bin: Some("python".to_owned()),
            args: Vec::new(),
        };
        let folder = self.cache.join("environments");
        self.attempt(&package, Some(lock), &folder).await.map_err(|kind| InstallError { package: name.to_owned(), kind })
    }

    async fn attempt(&self, package: &Package, given: Option<&Lock>, below: &Path) -> Result<Installation, InstallErrorKind> {
        let interpreter = self.interpreter(package).await?;
        let folder = below.join(folder_name(package, &interpreter));
        if let Some(ready) = self.ready(&folder, given, &interpreter) {
            return Ok(ready);
        }
        let _lock = assets::lock(folder.with_extension("lock")).await?;
        if let Some(ready) = self.ready(&folder, given, &interpreter) {
            return Ok(ready);
        }
        let _turn = self.turns.acquire().await.map_err(|e| InstallErrorKind::Cage(e.to_string()))?;
        fs::remove_file(folder.join(READY)).ok();
        let site = Site {
            cage: &self.cage,
            assets: &self.assets,
            cache: &self.cache,
            folder: &folder,
            package,
            interpreter: &interpreter,
            offline: self.offline,
            at_once: self.at_once,
            sources: &packages::settings_of(&self.packages, package).sources,
        };
        let (lock, installation) = site.work(given).await?;
        let ready = Ready { fingerprint: fingerprint(&lock, &interpreter), installation };
        let text = serde_json::to_string_pretty(&ready).map_err(std::io::Error::other)?;
        fs::write(folder.join("ready.partial"), text)?;
        fs::rename(folder.join("ready.partial"), folder.join(READY))?;
        Ok(ready.installation)
    }

    async fn interpreter(&self, package: &Package) -> Result<Interpreter, InstallErrorKind> {
        let host = self.cage.host();
        let (found, name) = match package.registry {
            Registry::Npm => (host.node.clone(), "Node.js".to_owned()),
            Registry::Pypi => {
                let own = packages::settings_of(&self.packages, package).python;
                let wanted = package.python.as_deref().or(own.as_deref()).or(self.python.as_deref());
                (self.python(wanted).await, format!("Python{}", wanted.map(|version| format!(" {version}")).unwrap_or_default()))
            }
        };
        found.ok_or(InstallErrorKind::NoInterpreter(name))
    }

    /// The Python of a version, looked for once.
    async fn python(&self, wanted: Option<&str>) -> Option<Interpreter> {
        let mut known = self.pythons.lock().await;
        let wanted = wanted.map(str::to_owned);
        if let Some(python) = known.get(&wanted) {
            return Some(python.clone());
        }
        let found = self.cage.host().python(wanted.as_deref()).await?;
        Some(known.entry(wanted).or_insert(found).clone())
    }

    /// What is installed in `folder`, when it is whole and of the right lock.
    fn ready(&self, folder: &Path, given: Option<&Lock>, interpreter: &Interpreter) -> Option<Installation> {
        let ready: Ready = serde_json::from_str(&fs::read_to_string(folder.join(READY)).ok()?).ok()?;
        let lock = given.cloned().or_else(|| {
            let registry = if folder.join("lock/package.json").exists() { Registry::Npm } else { Registry::Pypi };
            kept_lock(registry, folder)
        })?;
        if ready.fingerprint != fingerprint(&lock, interpreter) {
            return None;
        }
        // `cache prune` goes by when an installation was used last.
        fs::File::open(folder.join(READY)).and_then(|file| file.set_modified(SystemTime::now())).ok();
        Some(ready.installation)
    }
}

/// Held by everybody who uses an installation, together; see [`Installer::using`].
pub struct InUse(fs::File);

impl Drop for InUse {
    fn drop(&mut self) {
        // A process that was just forked may still hold the file, and so the lock of it.
        self.0.unlock().ok();
    }
}

/// The file that stands for the use of an installation, beside its folder.
fn used(folder: &Path) -> PathBuf {
    folder.with_extension("used")
}

/// The Python libraries with which others read our Parquet files (pyarrow, datasets, polars, duckdb),
/// for [`Installer::environment`].
pub fn python_readers() -> Lock {
    Lock::Pypi {
        input: include_str!("../../assets/readers/requirements.in").to_owned(),
        requirements: include_str!("../../assets/readers/requirements.txt").to_owned(),
    }
}

/// What was fetched to build from source, beside the installation that it is for.
const BUILD_CACHE: &str = "build-cache";
/// What the installer that is at work has fetched and the shared cache does not have yet.
const STAGING: &str = "staging";
/// The mark of a whole installation.
const READY: &str = "ready.json";
/// Changes when installations of an earlier mcpmill cannot be used any more.
const FORMAT: u32 = 3;

fn fingerprint(lock: &Lock, interpreter: &Interpreter) -> String {
    content_hash(&(FORMAT, lock.hash(), &interpreter.program, &interpreter.version))
}

/// Readable, safe as a file name, and different for different packages and interpreters.
fn folder_name(package: &Package, interpreter: &Interpreter) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = package.name.trim_start_matches('@').chars().map(safe).take(48).collect();
    // Arguments and the choice of the program do not change what is installed, but the program is
    // part of the mark.
    let identity = (package.registry, &package.requirement, &package.with, &package.bin, &interpreter.program);
    let identity = content_hash(&identity);
    let identity = if package.prerelease { identity + "prerelease" } else { identity };
    format!("{name}-{}", &sha256_hex(identity)[..12])
}

/// The lock that an earlier attempt made or was given.
fn kept_lock(registry: Registry, folder: &Path) -> Option<Lock> {
    let read = |name: &str| fs::read_to_string(folder.join("lock").join(name)).ok();
    Some(match registry {
        Registry::Npm => Lock::Npm { package: read("package.json")?, lock: read("package-lock.json")? }.tidied(),
        Registry::Pypi => Lock::Pypi { input: read("requirements.in")?, requirements: read("requirements.txt")? },
    })
}

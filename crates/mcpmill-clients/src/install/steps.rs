//! The steps of an installation, each one program in the cage.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mcpmill_core::{
    edge::{Bind, Confined, Limits, Process, ProcessEnd},
    launch::{Package, Registry},
    text::clipped,
};

use super::{
    BUILD_CACHE, InstallErrorKind, Installation, PREFIX, Sources, kept_lock,
    lock::{Lock, npm_manifest, pypi_input, wheels_and_sources},
    packages::without_wheel,
    program,
    staging::Staging,
};
use crate::{
    assets::{AssetId, Assets, Status, tail},
    cage::{Cage, Interpreter, remove_tree},
};

/// Where the installer's cache is inside the cage.
const CACHE: &str = "/opt/cache";
/// Where uv is inside the cage.
const UV: &str = "/opt/uv";
/// Bytes an installation may take.
const DISK_BYTES: u64 = 2 << 30;
/// Characters of an installer's complaint that are kept.
const COMPLAINT: usize = 4000;
/// Packages of one server that are built from source; each may bring in another.
const MOST_BUILT: usize = 32;
/// What an installer may use.
const LIMITS: Limits =
    Limits { wall: Duration::from_secs(15 * 60), output_bytes: 4 << 20, memory_bytes: 2 << 30, processes: 512 };

/// One package and where it goes.
pub(super) struct Site<'a> {
    pub(super) cage: &'a Cage,
    pub(super) assets: &'a Assets,
    pub(super) cache: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) package: &'a Package,
    pub(super) interpreter: &'a Interpreter,
    pub(super) sources: &'a Sources,
    /// Whether installers have to do with what their caches hold.
    pub(super) offline: bool,
    /// Installations at the same time.
    pub(super) at_once: usize,
}

/// One program of an installation.
struct Step<'a> {
    /// What it is, for messages.
    name: &'static str,
    command: Vec<String>,
    /// What it works in, at [`PREFIX`].
    workdir: &'a Path,
    env: Vec<(&'static str, String)>,
    keeps: Keeps,
    uv: Option<PathBuf>,
    network: bool,
}

/// Where a step keeps what it fetches.
#[derive(Clone, Copy)]
enum Keeps {
    /// In the cache of this name that all share: no code of packages runs in such a step.
    Shared(&'static str),
    /// In one of this server's own, which code of packages may see.
    Own,
    /// It fetches nothing.
    Nothing,
}

impl Site<'_> {
    /// Installs from the lock that is given or kept, or from one that is made first.
    pub(super) async fn work(&self, given: Option<&Lock>) -> Result<(Lock, Installation), InstallErrorKind> {
        let locked_and_installed = async {
            // A lock of ours that builds more than is let now is made again.
            let kept = || kept_lock(self.package.registry, self.folder).filter(|kept| self.may_build(&kept.built(), "").is_ok());
            let lock = match given.cloned().or_else(kept) {
                Some(lock) => lock,
                None if self.offline => return Err(InstallErrorKind::Offline),
                None => self.make_lock().await?,
            };
            let installation = self.install(&lock).await?;
            Ok((lock, installation))
        };
        locked_and_installed.await.map_err(|error| match error {
            InstallErrorKind::Failed { .. } if self.offline => InstallErrorKind::Offline,
            error => error,
        })
    }

    /// Makes a lock with the newest versions that fit, and keeps it.
    async fn make_lock(&self) -> Result<Lock, InstallErrorKind> {
        let folder = self.folder.join("lock");
        empty(&folder)?;
        match self.package.registry {
            Registry::Npm => {
                fs::write(folder.join("package.json"), npm_manifest(self.package))?;
                let args = ["npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"];
                // Which host the registry is, is this machine's business.
                let args = [args.as_slice(), &["--omit-lockfile-registry-resolved"]].concat();
                self.npm("npm install --package-lock-only", &args, &folder).await?;
            }
            Registry::Pypi => {
                fs::write(folder.join("requirements.in"), pypi_input(self.package))?;
                self.compile(&folder).await?;
            }
        }
        let made = kept_lock(self.package.registry, self.folder);
        let made = made.ok_or_else(|| InstallErrorKind::Lock("the installer wrote none".to_owned()))?;
        match made.of_no_registry() {
            None => Ok(made),
            Some(what) => {
                empty(&folder)?;
                Err(InstallErrorKind::Lock(format!("{what}, and not from the registry")))
            }
        }
    }

    /// Resolves `requirements.in`. What has no wheel is asked for as source in another round, if it may be.
    async fn compile(&self, folder: &Path) -> Result<(), InstallErrorKind> {
        let python = text(&self.interpreter.program);
        let mut built = BTreeSet::new();
        loop {
            let mut args = vec!["pip", "compile", "--generate-hashes", "--no-header", "--no-annotate", "--only-binary", ":all:"];
            args.extend(["--python", &python, "requirements.in", "-o", "requirements.txt"]);
            if !built.is_empty() {
                args.push("--emit-build-options");
            }
            if self.package.prerelease {
                args.extend(["--prerelease", "allow"]);
            }
            args.extend(built.iter().flat_map(|name: &String| ["--no-binary", name]));
            let Err(failure) = self.uv("uv pip compile", &args, folder, keeps(!built.is_empty()), true).await else {
                return Ok(());
            };
            let InstallErrorKind::Failed { stderr, .. } = &failure else { return Err(failure) };
            let lacking = without_wheel(stderr).into_iter().find(|name| !built.contains(name));
            let Some(lacking) = lacking.filter(|_| built.len() < MOST_BUILT) else { return Err(failure) };
            built.insert(lacking);
            self.may_build(&built, stderr)?;
        }
    }

    /// Whether all of these may be built from source.
    fn may_build(&self, needed: &BTreeSet<String>, said: &str) -> Result<(), InstallErrorKind> {
        let packages: Vec<String> = needed.iter().filter(|name| !self.sources.allow(name)).cloned().collect();
        if packages.is_empty() {
            return Ok(());
        }
        let (needed, key, stderr) = (needed.iter().cloned().collect(), self.package.key(), said.to_owned());
        Err(InstallErrorKind::SourceOnly { packages, needed, key, stderr })
    }

    /// Installs from a lock into an empty prefix and finds the program.
    async fn install(&self, lock: &Lock) -> Result<Installation, InstallErrorKind> {
        let built = lock.built();
        self.may_build(&built, "its lock says so")?;
        let (kept, prefix) = (self.folder.join("lock"), self.folder.join("prefix"));
        fs::create_dir_all(&kept)?;
        empty(&prefix)?;
        for (name, content) in lock.files() {
            fs::write(kept.join(name), content)?;
            fs::write(prefix.join(name), content)?;
        }
        match self.package.registry {
            Registry::Npm => self.install_npm(prefix).await,
            Registry::Pypi => self.install_pypi(prefix, &built).await,
        }
    }

    /// The cache of an installer that runs code of packages, for this server alone: that code could put
    /// something into what others are installed from.
    fn build_cache(&self) -> PathBuf {
        self.folder.join(BUILD_CACHE)
    }

    async fn install_npm(&self, prefix: PathBuf) -> Result<Installation, InstallErrorKind> {
        self.npm("npm ci", &["npm", "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"], &prefix).await?;
        let path = program::npm(self.package, &prefix).map_err(InstallErrorKind::NoProgram)?;
        let command = if program::is_script(&path, "node", &["js", "mjs", "cjs"]) {
            vec![text(&self.interpreter.program), inside(&prefix, &path)]
        } else {
            vec![inside(&prefix, &path)]
        };
        Ok(self.installation(command, Vec::new(), prefix))
    }

    async fn install_pypi(&self, prefix: PathBuf, built: &BTreeSet<String>) -> Result<Installation, InstallErrorKind> {
        let venv = prefix.join("venv");
        let (python, own) = (text(&self.interpreter.program), inside(&prefix, &venv.join("bin/python")));
        let environment = ["venv", "--no-project", "--python", &python];
        let shared = keeps(false);
        self.uv("uv venv", &[&environment[..], &["venv"]].concat(), &prefix, shared, true).await?;
        let install = async |python: &str, file: &str, keeps: Keeps, network: bool| {
            let args =
                ["pip", "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--python", python, "-r", file];
            self.uv("uv pip install", &args, &prefix, keeps, network).await
        };
        if built.is_empty() {
            install(&own, "requirements.txt", shared, true).await?;
        } else {
            // What needs no build comes from the cache that all share.
            let (wheels, sources) = wheels_and_sources(&fs::read_to_string(prefix.join("requirements.txt"))?, built);
            fs::write(prefix.join("wheels.txt"), wheels)?;
            fs::write(prefix.join("sources.txt"), sources)?;
            install(&own, "wheels.txt", shared, true).await?;
            // Built apart: uv starts the interpreter of an environment, and that one would read the `.pth`
            // files of wheels which nobody has let run beside the network.
            if !self.offline {
                let apart = prefix.join("apart");
                self.uv("uv venv", &[&environment[..], &["apart"]].concat(), &prefix, Keeps::Own, false).await?;
                install(&inside(&prefix, &apart.join("bin/python")), "sources.txt", Keeps::Own, true).await?;
                remove_tree(&apart)?;
            }
            install(&own, "sources.txt", Keeps::Own, false).await?;
        }
        self.compile_bytecode(&prefix).await?;
        let command = match self.package.bin.as_deref() {
            Some("python" | "python3") => vec![own],
            _ => {
                let path = program::pypi(self.package, &venv).map_err(InstallErrorKind::NoProgram)?;
                if program::is_script(&path, "python", &["py"]) {
                    vec![own, inside(&prefix, &path)]
                } else {
                    vec![inside(&prefix, &path)]
                }
            }
        };
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", inside(&prefix, &venv.join("bin")));
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let env = vec![
            set("PATH", &path),
            set("VIRTUAL_ENV", &inside(&prefix, &venv)),
            set("PYTHONDONTWRITEBYTECODE", "1"),
            set("PYTHONUNBUFFERED", "1"),
        ];
        Ok(self.installation(command, env, prefix))
    }

    fn installation(&self, command: Vec<String>, env: Vec<(String, String)>, prefix: PathBuf) -> Installation {
        Installation { command, env, prefix, interpreter: self.interpreter.parts() }
    }

    /// Compiles what was installed, which makes servers start sooner; that some file is no Python does not
    /// matter. Without `site`, the interpreter takes no notice of what packages would have it run.
    async fn compile_bytecode(&self, prefix: &Path) -> Result<(), InstallErrorKind> {
        let args = ["-I", "-S", "-m", "compileall", "-q", "-j", "0", "venv/lib"];
        let command = std::iter::once(text(&self.interpreter.program)).chain(args.map(str::to_owned)).collect();
        let (name, keeps) = ("compileall", Keeps::Nothing);
        let step = Step { name, command, workdir: prefix, env: Vec::new(), keeps, uv: None, network: false };
        match self.step(step).await {
            Err(InstallErrorKind::Failed { .. }) => Ok(()),
            compiled => compiled,
        }
    }

    async fn npm(&self, name: &'static str, command: &[&str], workdir: &Path) -> Result<(), InstallErrorKind> {
        let set = |value: &str| value.to_owned();
        let env = vec![
            ("npm_config_cache", set(CACHE)),
            ("npm_config_update_notifier", set("false")),
            ("npm_config_offline", self.offline.to_string()),
            ("CI", set("1")),
        ];
        let command = command.iter().map(|&part| part.to_owned()).collect();
        self.step(Step { name, command, workdir, env, keeps: Keeps::Shared("npm"), uv: None, network: true }).await
    }

    async fn uv(
        &self,
        name: &'static str,
        args: &[&str],
        workdir: &Path,
        keeps: Keeps,
        network: bool,
    ) -> Result<(), InstallErrorKind> {
        if self.offline && matches!(self.assets.status(AssetId::Uv), Status::Missing { .. }) {
            return Err(InstallErrorKind::Offline);
        }
        let uv = self.assets.fetch(AssetId::Uv).await?;
        let uv = Some(fs::canonicalize(uv)?);
        let env = vec![
            ("UV_CACHE_DIR", CACHE.to_owned()),
            ("UV_PYTHON_DOWNLOADS", "never".to_owned()),
            ("UV_OFFLINE", (self.offline || !network).to_string()),
            ("UV_NO_CONFIG", "1".to_owned()),
            // Cache and prefix are different mounts in the cage.
            ("UV_LINK_MODE", "copy".to_owned()),
            ("UV_NO_PROGRESS", "1".to_owned()),
        ];
        let command = std::iter::once(UV).chain(args.iter().copied()).map(str::to_owned).collect();
        self.step(Step { name, command, workdir, env, keeps, uv, network }).await
    }

    /// Runs a step; what it fetched is kept when it has gone well.
    async fn step(&self, step: Step<'_>) -> Result<(), InstallErrorKind> {
        let cache = Path::new(CACHE);
        let staging = match step.keeps {
            Keeps::Shared(name) => Some(Staging::new(self.cage, self.folder, self.cache.join(name)).await?),
            _ => None,
        };
        let binds = match &staging {
            Some(staging) => staging.binds(cache),
            None if matches!(step.keeps, Keeps::Nothing) => Vec::new(),
            None => {
                fs::create_dir_all(self.build_cache())?;
                vec![bind(&self.build_cache(), cache, true)]
            }
        };
        // Where the cache is shared it grows by what the others fetch, too.
        let growing = if staging.as_ref().is_some_and(Staging::is_shared) { self.at_once as u64 } else { 1 };
        let done = self.run(step, binds, DISK_BYTES.saturating_mul(growing)).await;
        if let Some(staging) = staging {
            staging.end(done.is_ok()).await?;
        }
        done
    }

    async fn run(&self, step: Step<'_>, mut binds: Vec<Bind>, disk_bytes: u64) -> Result<(), InstallErrorKind> {
        binds.push(bind(step.workdir, Path::new(PREFIX), true));
        binds.extend(step.uv.map(|uv| bind(&uv, Path::new(UV), false)));
        binds.extend(self.interpreter.parts().iter().map(|part| bind(part, part, false)));
        let registries = self.cage.registries().await.iter().cloned();
        let confined = Confined {
            what: format!("{} of {}", step.name, self.package.requirement),
            command: step.command,
            binds,
            env: step.env.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(registries).collect(),
            workdir: Some(PathBuf::from(PREFIX)),
            network: step.network && !self.offline,
            limits: LIMITS,
        };
        let cage = self.cage.clone().with_disk_bytes(disk_bytes);
        let output = cage.run(&confined).await.map_err(|e| InstallErrorKind::Cage(e.to_string()))?;
        let end = match output.end {
            ProcessEnd::Exited(0) => return Ok(()),
            ProcessEnd::Exited(code) => format!("exit code {code}"),
            ProcessEnd::Signalled(signal) => format!("signal {signal}"),
            ProcessEnd::TimedOut => "no result in time".to_owned(),
            ProcessEnd::OutOfMemory => "too much memory used".to_owned(),
            ProcessEnd::TooMuchOutput => "too much output".to_owned(),
            ProcessEnd::TooManyProcesses => "too many processes".to_owned(),
            ProcessEnd::TooMuchDisk => "too much disk used".to_owned(),
        };
        let said = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
        Err(InstallErrorKind::Failed { step: step.name, end, stderr: ends(said, COMPLAINT) })
    }
}

/// The beginning and the end of a text: what is wrong stands in the one with npm, in the other with uv.
fn ends(text: &str, most: usize) -> String {
    let text = text.trim();
    let half = most / 2;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    format!("{}\n{}", clipped(text, half), tail(text, half))
}

/// Where a step keeps what it fetches, when it is one that builds or is none.
fn keeps(builds: bool) -> Keeps {
    if builds { Keeps::Own } else { Keeps::Shared("uv") }
}

fn bind(host: &Path, inside: &Path, writable: bool) -> Bind {
    Bind { host: host.to_owned(), inside: inside.to_owned(), writable }
}

/// An empty folder, whatever a half-finished attempt left there.
fn empty(folder: &Path) -> std::io::Result<()> {
    remove_tree(folder)?;
    fs::create_dir_all(folder)
}

/// `path`, which is below `prefix`, as it is seen in the cage.
fn inside(prefix: &Path, path: &Path) -> String {
    text(&Path::new(PREFIX).join(path.strip_prefix(prefix).unwrap_or(path)))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_complaint_are_kept() {
        assert_eq!(ends(" short \n", 10), "short");
        assert_eq!(ends("beginning, middle and end", 10), "begin…\nd end");
    }
}

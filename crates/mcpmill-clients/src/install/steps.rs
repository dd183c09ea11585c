//! The steps of an installation, each one program in the cage.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mcpmill_core::{
    edge::{Bind, Confined, Limits, Process, ProcessEnd},
    launch::{Package, Registry},
};

use super::{
    InstallErrorKind, Installation, PREFIX, kept_lock,
    lock::{Lock, npm_manifest, pypi_input},
    program,
};
use crate::{
    assets::{AssetId, Assets, tail},
    cage::{Cage, Interpreter},
};

/// Where the installer's cache is inside the cage.
const CACHE: &str = "/opt/cache";
/// Where uv is inside the cage.
const UV: &str = "/opt/uv";
/// Bytes an installation may take.
const DISK_BYTES: u64 = 2 << 30;
/// Characters of an installer's complaint that are kept.
const COMPLAINT: usize = 2000;
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
}

impl Site<'_> {
    /// Makes a lock with the newest versions that fit, and keeps it.
    pub(super) async fn make_lock(&self) -> Result<Lock, InstallErrorKind> {
        let folder = self.folder.join("lock");
        empty(&folder)?;
        match self.package.registry {
            Registry::Npm => {
                fs::write(folder.join("package.json"), npm_manifest(self.package))?;
                let args = ["npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"];
                self.npm("npm install --package-lock-only", &args, &folder).await?;
            }
            Registry::Pypi => {
                fs::write(folder.join("requirements.in"), pypi_input(self.package))?;
                let python = self.interpreter.program.to_string_lossy().into_owned();
                let args =
                    ["pip", "compile", "--generate-hashes", "--no-header", "--no-annotate", "--only-binary", ":all:", "--python"];
                let files = ["requirements.in", "-o", "requirements.txt"];
                self.uv("uv pip compile", &[args.as_slice(), &[&python], &files].concat(), &folder).await?;
            }
        }
        kept_lock(self.package.registry, self.folder).ok_or_else(|| InstallErrorKind::Lock("the installer wrote none".to_owned()))
    }

    /// Installs from a lock into an empty prefix and finds the program.
    pub(super) async fn install(&self, lock: &Lock) -> Result<Installation, InstallErrorKind> {
        let (kept, prefix) = (self.folder.join("lock"), self.folder.join("prefix"));
        fs::create_dir_all(&kept)?;
        empty(&prefix)?;
        for (name, content) in lock.files() {
            fs::write(kept.join(name), content)?;
            fs::write(prefix.join(name), content)?;
        }
        match self.package.registry {
            Registry::Npm => self.install_npm(prefix).await,
            Registry::Pypi => self.install_pypi(prefix).await,
        }
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

    async fn install_pypi(&self, prefix: PathBuf) -> Result<Installation, InstallErrorKind> {
        let venv = prefix.join("venv");
        let (python, own) = (text(&self.interpreter.program), inside(&prefix, &venv.join("bin/python")));
        self.uv("uv venv", &["venv", "--no-project", "--python", &python, "venv"], &prefix).await?;
        let args = ["pip", "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--compile-bytecode"];
        let target = ["--python", &own, "-r", "requirements.txt"];
        self.uv("uv pip install", &[args.as_slice(), &target].concat(), &prefix).await?;
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

    async fn npm(&self, step: &'static str, command: &[&str], workdir: &Path) -> Result<(), InstallErrorKind> {
        let cache = self.cache.join("npm");
        let set = |value: &str| value.to_owned();
        let env = [("npm_config_cache", set(CACHE)), ("npm_config_update_notifier", set("false")), ("CI", set("1"))];
        self.step(step, command.iter().map(|&part| part.to_owned()).collect(), workdir, &cache, &env, None).await
    }

    async fn uv(&self, step: &'static str, args: &[&str], workdir: &Path) -> Result<(), InstallErrorKind> {
        let uv = self.assets.fetch(AssetId::Uv).await?;
        let uv = fs::canonicalize(uv)?;
        let cache = self.cache.join("uv");
        let env = [
            ("UV_CACHE_DIR", CACHE.to_owned()),
            ("UV_PYTHON_DOWNLOADS", "never".to_owned()),
            ("UV_NO_CONFIG", "1".to_owned()),
            // Cache and prefix are different mounts in the cage.
            ("UV_LINK_MODE", "copy".to_owned()),
            ("UV_NO_PROGRESS", "1".to_owned()),
        ];
        let command = std::iter::once(UV).chain(args.iter().copied()).map(str::to_owned).collect();
        self.step(step, command, workdir, &cache, &env, Some(uv)).await
    }

    async fn step(
        &self,
        step: &'static str,
        command: Vec<String>,
        workdir: &Path,
        cache: &Path,
        env: &[(&str, String)],
        uv: Option<PathBuf>,
    ) -> Result<(), InstallErrorKind> {
        fs::create_dir_all(cache)?;
        let bind = |path: &Path, inside: &Path, writable| Bind { host: path.to_owned(), inside: inside.to_owned(), writable };
        let mut binds = vec![bind(workdir, Path::new(PREFIX), true), bind(cache, Path::new(CACHE), true)];
        binds.extend(uv.map(|uv| bind(&uv, Path::new(UV), false)));
        binds.extend(self.interpreter.parts().iter().map(|part| bind(part, part, false)));
        let confined = Confined {
            what: format!("{step} of {}", self.package.requirement),
            command,
            binds,
            env: env.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            workdir: Some(PathBuf::from(PREFIX)),
            network: true,
            limits: LIMITS,
        };
        let cage = self.cage.clone().with_disk_bytes(DISK_BYTES);
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
        Err(InstallErrorKind::Failed { step, end, stderr: tail(said, COMPLAINT) })
    }
}

/// An empty folder, whatever a half-finished attempt left there.
fn empty(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(folder),
    }
}

/// `path`, which is below `prefix`, as it is seen in the cage.
fn inside(prefix: &Path, path: &Path) -> String {
    text(&Path::new(PREFIX).join(path.strip_prefix(prefix).unwrap_or(path)))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

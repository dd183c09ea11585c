//! Packages that try at their installation what they must not, from a registry of their own.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use common::{assets, cage};
use mcpmill_clients::install::{InstallErrorKind, Installation, Installer, PackageSettings, Packages, Sources};
use mcpmill_core::launch::{self, Package};

/// Names the folder in which the inner test works, and that it is the inner one.
const INNER: &str = "MCPMILL_TEST_INNER";

struct Registry(Child, String);

impl Registry {
    fn start(log: &Path, folders: &[&Path]) -> Self {
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/hostile_registry.py")).arg(log).args(folders);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self(child, format!("http://127.0.0.1:{}", port.trim()))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs the test `name` in a process that takes packages from such a registry; returns what was asked of it.
fn with_registry(name: &str, folder: &Path) -> String {
    let (cache, log) = (folder.join("cache"), folder.join("log"));
    let other = cache.join("servers/other/prefix");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("index.js"), "of another server").unwrap();
    fs::write(cache.join("exchanges.sqlite"), "of ours").unwrap();
    fs::write(&log, "").unwrap();
    let registry = Registry::start(&log, &[folder, &cache, &other]);
    let mut inner = Command::new(std::env::current_exe().unwrap());
    inner.args(["--exact", name, "--nocapture"]).env(INNER, folder).env("MY_SECRET", "planted");
    inner.env("PIP_INDEX_URL", format!("{}/simple", registry.1)).env("npm_config_registry", format!("{}/", registry.1));
    inner.env("PIP_EXTRA_INDEX_URL", "");
    let output = inner.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(log).unwrap()
}

/// The cache of the inner test.
fn inner() -> Option<std::path::PathBuf> {
    std::env::var_os(INNER).map(|folder| Path::new(&folder).join("cache"))
}

fn package(command: &str, name: &str) -> Package {
    launch::parse(command, &[name.to_owned()]).unwrap()
}

async fn install(installer: &Installer, command: &str, name: &str) -> Installation {
    installer.install(&package(command, name)).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr()))
}

/// Files below `folder` whose name is `name`.
fn found(folder: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                open.push(entry.path());
            } else if entry.file_name().to_string_lossy() == name {
                found.push(entry.path());
            }
        }
    }
    found
}

/// In the cache that all share, and as it was published.
#[track_caller]
fn good_is_good(cache: &Path) {
    let kept = found(&cache.join("uv"), "hm_good.py");
    assert!(!kept.is_empty());
    for path in kept {
        assert_eq!(fs::read_to_string(path).unwrap(), "def main(): pass\n");
    }
}

#[test]
fn a_wheel_runs_nothing_when_it_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    let asked = with_registry("inner_wheels", folder.path());
    assert!(asked.contains("/f/hm_pth-1.0"), "{asked}");
    assert!(!asked.contains("/ran/"), "{asked}");
}

#[tokio::test]
async fn inner_wheels() {
    let Some(cache) = inner() else { return };
    let installer = Installer::new(cage().await, assets(), &cache);
    install(&installer, "uvx", "hm-good").await;
    good_is_good(&cache);
    let hostile = install(&installer, "uvx", "hm-pth").await;
    good_is_good(&cache);
    // Compiled all the same, but for the file that is no Python.
    let compiled = fs::read_dir(hostile.prefix.join("venv/lib")).unwrap().flatten().next().unwrap().path();
    let compiled = fs::read_dir(compiled.join("site-packages/__pycache__")).unwrap().flatten();
    let compiled: Vec<String> = compiled.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    assert!(compiled.iter().any(|file| file.starts_with("hm_stage.")), "{compiled:?}");
    // What was put aside has joined the shared cache, which is enough to install again.
    assert!(!hostile.prefix.parent().unwrap().join("staging").exists());
    let offline = installer.clone().with_offline(true);
    for name in ["hm-good", "hm-pth"] {
        offline.discard(&package("uvx", name)).await;
        install(&offline, "uvx", name).await;
    }
    good_is_good(&cache);
}

#[test]
fn a_build_sees_nothing_and_changes_nothing_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let asked = with_registry("inner_sources", folder.path());
    let ran: Vec<&str> = asked.lines().filter(|line| line.starts_with("/ran/")).collect();
    // Its code ran, with the network, as it was let; that of the wheel beside it did not.
    assert!(!ran.is_empty() && ran.iter().all(|line| *line == "/ran/sdist/nothing"), "{ran:?}");
}

#[tokio::test]
async fn inner_sources() {
    let Some(cache) = inner() else { return };
    let settings = PackageSettings { sources: Sources::named(["hm-source"]), ..PackageSettings::default() };
    let packages = Packages::from([("pypi:hm-both".to_owned(), settings)]);
    let installer = Installer::new(cage().await, assets(), &cache).with_packages(packages);
    install(&installer, "uvx", "hm-good").await;
    let both = install(&installer, "uvx", "hm-both").await;
    assert_eq!(found(&both.prefix, "hm_source.py").len(), 1, "and what was built apart is gone");
    good_is_good(&cache);
    let offline = installer.clone().with_offline(true);
    offline.discard(&package("uvx", "hm-both")).await;
    install(&offline, "uvx", "hm-both").await;
}

#[test]
fn an_address_of_its_own_is_refused_however_it_looks() {
    let folder = tempfile::tempdir().unwrap();
    with_registry("inner_npm", folder.path());
}

#[tokio::test]
async fn inner_npm() {
    let Some(cache) = inner() else { return };
    let installer = Installer::new(cage().await, assets(), &cache);
    install(&installer, "npx", "hm-plain").await;
    let error = installer.install(&package("npx", "hm-direct")).await.unwrap_err();
    assert!(matches!(&error.kind, InstallErrorKind::Lock(why) if why.contains("`hm-dep` comes from `http://")), "{error}");
}

//! Installing real packages: what has no wheel is built only for those who are let.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{fs, path::Path};

use common::{assets, cage};
use mcpmill_clients::install::{InstallErrorKind, Installer, PackageSettings, Packages, Sources};
use mcpmill_core::launch::{self, Package};

/// Small, and published as source only.
const SOURCE_ONLY: [&str; 2] = ["--from", "docopt==0.6.2"];

fn package() -> Package {
    let args: Vec<String> = SOURCE_ONLY.iter().chain(&["python"]).map(|&arg| arg.to_owned()).collect();
    launch::parse("uvx", &args).unwrap()
}

async fn installer(cache: &Path, sources: Sources) -> Installer {
    let settings = PackageSettings { sources, ..PackageSettings::default() };
    Installer::new(cage().await, assets(), cache).with_packages(Packages::from([("pypi:docopt".to_owned(), settings)]))
}

fn locked(cache: &Path) -> String {
    let mut locks =
        fs::read_dir(cache.join("servers")).unwrap().flatten().map(|entry| entry.path().join("lock/requirements.txt"));
    fs::read_to_string(locks.find(|path| path.exists()).unwrap()).unwrap()
}

#[tokio::test]
async fn source_is_built_for_those_who_are_let_and_the_lock_says_so() {
    let cache = tempfile::tempdir().unwrap();
    let error = installer(cache.path(), Sources::None).await.install(&package()).await.unwrap_err();
    let InstallErrorKind::SourceOnly { packages, key, .. } = &error.kind else { panic!("{error}") };
    assert_eq!((packages.as_slice(), key.as_str()), (&["docopt".to_owned()][..], "pypi:docopt"));
    assert!(error.with_hint().ends_with(r#""pypi:docopt" = { sdist = ["docopt"] }"#), "{}", error.with_hint());

    let other = installer(cache.path(), Sources::named(["something-else"])).await.install(&package()).await;
    assert!(matches!(other.unwrap_err().kind, InstallErrorKind::SourceOnly { .. }));

    let installed = installer(cache.path(), Sources::All).await.install(&package()).await.unwrap();
    let text = locked(cache.path());
    assert!(
        text.contains("--no-binary docopt") && text.contains("--only-binary :all:") && text.contains("--hash=sha256:"),
        "{text}"
    );
    // What a build could have written to is this server's alone, and enough to build again.
    assert!(installed.prefix.parent().unwrap().join("build-cache").exists());
    let library = fs::read_dir(installed.prefix.join("venv/lib")).unwrap().flatten().next().unwrap().path();
    assert!(library.join("site-packages/docopt.py").exists());
    let offline = installer(cache.path(), Sources::All).await.with_offline(true);
    offline.discard(&package()).await;
    offline.install(&package()).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr()));

    // A lock that builds needs the setting too: it may have come from somebody else.
    let allowed = installer(cache.path(), Sources::named(["Docopt"])).await;
    allowed.discard(&package()).await;
    let error = installer(cache.path(), Sources::None).await.install(&package()).await.unwrap_err();
    assert!(matches!(error.kind, InstallErrorKind::SourceOnly { .. }), "{error}");
    allowed.install(&package()).await.unwrap();
}

/// A small package of either registry.
fn small() -> [Package; 2] {
    let line = |command: &str, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        launch::parse(command, &args).unwrap()
    };
    [line("uvx", &["--from", "six==1.17.0", "python"]), line("npx", &["-y", "mcp-hello-world@1.1.2"])]
}

#[tokio::test]
async fn what_was_installed_once_is_installed_again_without_the_network() {
    let cache = tempfile::tempdir().unwrap();
    // uv itself is taken from where it is.
    let online = Installer::new(cage().await, assets(), cache.path());
    let offline = online.clone().with_offline(true);
    for package in small() {
        let error = offline.install(&package).await.unwrap_err();
        assert!(matches!(error.kind, InstallErrorKind::Offline), "{error}");
        let first = online.install(&package).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr()));
        offline.discard(&package).await;
        assert!(!first.prefix.exists());
        let again = offline.install(&package).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr()));
        assert_eq!(again, first);
        assert!(again.prefix.exists());
    }
    let locks = fs::read_dir(cache.path().join("servers")).unwrap().flatten().map(|entry| entry.path().join("lock"));
    let npm = locks.filter_map(|lock| fs::read_to_string(lock.join("package-lock.json")).ok()).next().unwrap();
    assert!(npm.contains("\"integrity\"") && !npm.contains("\"resolved\""), "a lock names no host");
}

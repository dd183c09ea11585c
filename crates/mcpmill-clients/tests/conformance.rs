//! The client scenarios of the official conformance suite, where that is installed (see `CONFORMANCE.md`).

#![allow(clippy::unwrap_used, reason = "a test may fail here")]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

use std::{env, path::PathBuf, process::Command};

/// Names the folder where npm installed the suite.
const SUITE: &str = "MCPMILL_CONFORMANCE";

#[test]
fn every_client_scenario_passes() {
    let Some(folder) = env::var_os(SUITE).map(PathBuf::from) else {
        eprintln!("skipped: the conformance suite is not installed, or `{SUITE}` does not name its folder");
        return;
    };
    // Cargo builds examples with the tests, unless it is told to build one test alone.
    let client = env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples/conformance_client");
    if !client.exists() {
        eprintln!("skipped: the example `conformance_client` is not built; `cargo build --workspace --examples` does");
        return;
    }
    for (more, least) in [(None, 6), (Some("--stdio"), 5)] {
        let output = Command::new(&client).arg("--suite").arg(&folder).args(more).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{told}");
        assert!(told.matches("| passes |").count() >= least, "{told}");
    }
}

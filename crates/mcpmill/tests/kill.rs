//! Killed at any instant and resumed: no row lost, none twice, no received answer asked for again.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{
    collections::HashSet,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use common::{Folder, TWO_SERVERS, ok, rows, stage, tree};
use mcpmill_core::record::{Outcome, Sample};
use mcpmill_testkit::ScriptedEndpoint;

/// Starts a command, kills it after `after`, and says whether it had ended by itself.
fn killed(command: &mut Command, after: Duration) -> bool {
    let mut child: Child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    thread::sleep(after);
    let ended = child.try_wait().unwrap().is_some();
    child.kill().unwrap();
    child.wait().unwrap();
    ended
}

/// Delays that differ from run to run of the test would hide a failure: they are fixed, and spread.
fn delays(step_ms: u64) -> impl Iterator<Item = Duration> {
    (1_u64..).map(move |i| Duration::from_millis(step_ms / 2 + (i * 7919) % step_ms * 2))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_is_killed_makes_the_same_bytes() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let folder = Folder::with(&TWO_SERVERS);
    ok(&mut folder.with_model(&model.base_url(), &["run"]));
    let whole = tree(&folder.run());
    let replay = ["run", "--set", "mode=replay"];
    ok(&mut folder.with_model(&model.base_url(), &["run", "--new", "--set", "mode=replay", "--to", "discover"]));
    let run = folder.run();
    let mut kills = 0;
    for delay in delays(120).take(40) {
        if killed(&mut folder.with_model(&model.base_url(), &replay), delay) {
            break;
        }
        kills += 1;
    }
    ok(&mut folder.with_model(
        &model.base_url(),
        &["run", "--run", run.file_name().unwrap().to_str().unwrap(), "--from", "harvest", "--set", "mode=replay"],
    ));
    assert!(kills >= 2, "the replay was killed only {kills} times");
    assert_eq!(tree(&run), whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_that_is_killed_loses_nothing_and_pays_nothing_twice() {
    let model = ScriptedEndpoint::start(Duration::from_millis(60)).await;
    let url = model.base_url();
    let folder = Folder::with(&TWO_SERVERS);
    let args = ["run", "--to", "4-filter", "--set", "models.openai.concurrency=2", "--set", "generate.concurrency=2"];
    ok(&mut folder.with_model(&url, &["run", "--to", "harvest"]));
    let mut kills = 0;
    for delay in delays(700).take(12) {
        if killed(&mut folder.with_model(&url, &args), delay) {
            break;
        }
        kills += 1;
    }
    ok(&mut folder.with_model(&url, &args));
    assert!(kills >= 2, "the run was killed only {kills} times");
    let run = folder.run();
    let outcomes: Vec<Outcome> = rows(&run, "3-generate");
    let ids: HashSet<&str> = outcomes.iter().map(|o| o.input_id.as_str()).collect();
    assert_eq!(ids.len(), outcomes.len(), "no row twice");
    assert_eq!(stage(&run, "3-generate")["input_rows"], outcomes.len());
    let samples: Vec<Sample> = rows(&run, "3-generate");
    assert_eq!(stage(&run, "3-generate")["outcomes"]["kept"], samples.len());

    // Without a kill as many requests are made as there are different ones; every kill repeats at
    // most the two that were in flight.
    let asked = model.requests().await;
    let whole = ScriptedEndpoint::start(Duration::ZERO).await;
    let other = Folder::with(&TWO_SERVERS);
    ok(&mut other.with_model(&whole.base_url(), &["run", "--to", "4-filter"]));
    let needed = whole.requests().await;
    assert!(asked >= needed && asked <= needed + 2 * kills, "{asked} requests, {needed} needed, {kills} kills");
}

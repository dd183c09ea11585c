//! Killed at any instant and resumed: no row lost, none twice, no received answer asked for again.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{
    collections::HashSet,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
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

/// Starts a command and kills it `further` milliseconds after `reached` is true; says whether it did.
fn killed_when(command: &mut Command, reached: impl Fn() -> bool, further: u64) -> bool {
    let mut child: Child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let there = loop {
        if child.try_wait().unwrap().is_some() {
            break false;
        }
        if reached() {
            break true;
        }
        thread::sleep(Duration::from_millis(1));
    };
    thread::sleep(Duration::from_millis(further));
    let killed = there && child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    killed
}

/// Finishes the newest run.
fn finish(folder: &Folder, url: &str, args: &[&str]) {
    let run = folder.run();
    let id = run.file_name().unwrap().to_str().unwrap();
    ok(&mut folder.with_model(url, &[&["run", "--run", id, "--from", "discover"], args].concat()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_is_killed_makes_the_same_bytes() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let url = model.base_url();
    let folder = Folder::with(&TWO_SERVERS);
    ok(&mut folder.with_model(&url, &["run"]));
    let first = folder.run();
    let whole = tree(&first);
    let replay = ["--set", "mode=replay"];
    let begin = [&["run", "--new"], &replay[..]].concat();
    let started = Instant::now();
    ok(&mut folder.with_model(&url, &begin));
    let took = started.elapsed();

    // At twelve instants spread over the whole time, each in a new run that is then finished.
    let mut kills = 0;
    for part in 1..=12 {
        kills += u32::from(!killed(&mut folder.with_model(&url, &begin), took * part / 13));
        finish(&folder, &url, &replay);
        assert_eq!(tree(&folder.run()), whole, "killed at {part}/13");
    }
    assert!(kills >= 4, "only {kills} of 12 kills came before the end");

    // Again and again in one run.
    ok(&mut folder.with_model(&url, &["run", "--new", "--set", "mode=replay", "--to", "discover"]));
    let run = folder.run();
    for delay in delays(60).take(20) {
        killed(&mut folder.with_model(&url, &[&["run"], &replay[..]].concat()), delay);
    }
    finish(&folder, &url, &replay);
    assert_eq!(folder.run(), run);
    assert_eq!(tree(&run), whole);
}

/// What [`common::survivors`] looks for is there while a server is up; without this its emptiness says nothing.
#[test]
fn a_server_at_work_can_be_seen() {
    let folder = Folder::with(&TWO_SERVERS);
    let mut command = folder.mcpmill(&["run", "--to", "harvest"]);
    let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let mut seen = false;
    while !seen && child.try_wait().unwrap().is_none() {
        seen = common::caged().iter().any(|(maker, _)| *maker == child.id());
        thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    assert!(seen, "no server was seen while the harvest ran");
}

/// Ctrl-C while rows are in flight: what ended is saved, the exit code says so, and the same command goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_is_saved() {
    let model = ScriptedEndpoint::start(Duration::from_millis(150)).await;
    let url = model.base_url();
    let folder = Folder::with(&["calculator"]);
    let args = ["run", "--to", "generate", "--set", "generate.per_tool=12", "--set", "generate.concurrency=1"];
    let mut command = folder.with_model(&url, &args);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let ended = |run: &PathBuf| {
        let lines = std::fs::read_to_string(run.join("3-generate/parts/00000.jsonl")).unwrap_or_default();
        lines.lines().count()
    };
    let begun = Instant::now();
    while folder.runs().first().map_or(0, ended) < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no row ends");
        thread::sleep(Duration::from_millis(5));
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("what was done is saved") && said.contains("hint: the same command goes on"), "{said}");
    let run = folder.run();
    let saved = ended(&run);
    assert!((2..12).contains(&saved), "{saved} rows are saved");
    let asked = model.requests().await;

    ok(&mut folder.with_model(&url, &args));
    assert_eq!((folder.run(), folder.runs().len()), (run.clone(), 1), "the same run goes on");
    assert_eq!(stage(&run, "3-generate")["outcomes"]["kept"], 12);
    let whole = ScriptedEndpoint::start(Duration::ZERO).await;
    let other = Folder::with(&["calculator"]);
    ok(&mut other.with_model(&whole.base_url(), &args));
    let (all, needed) = (model.requests().await, whole.requests().await);
    assert!(all >= needed && all <= needed + 1, "{all} requests in two parts, {needed} in one; {asked} before the interruption");
}

/// Each stage is killed while it works, over and over; live, so that servers are up in harvest and rollout.
#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_that_is_killed_in_any_stage_is_finished_by_the_next() {
    let model = ScriptedEndpoint::start(Duration::from_millis(20)).await;
    let url = model.base_url();
    let folder = Folder::with(&TWO_SERVERS);
    ok(&mut folder.with_model(&url, &["run"]));
    let whole = folder.run();
    let mut kills = 0;
    for (stage_folder, further) in [
        ("1-discover", 0),
        ("2-harvest", 0),
        ("2-harvest", 150),
        ("3-generate", 0),
        ("4-filter", 5),
        ("5-rollout", 0),
        ("5-rollout", 200),
        ("6-filter", 2),
        ("7-export/mcp-tool-calls", 0),
    ] {
        let before: Vec<PathBuf> = folder.runs();
        let known = before.len();
        let mark = format!("{stage_folder}/fingerprint");
        let mut command = folder.with_model(&url, &["run", "--new"]);
        let begun = |runs: &[PathBuf]| runs.iter().find(|run| !before.contains(run)).cloned();
        kills +=
            u32::from(killed_when(&mut command, || begun(&folder.runs()).is_some_and(|run| run.join(&mark).exists()), further));
        finish(&folder, &url, &[]);
        let run = folder.run();
        assert_eq!(folder.runs().len(), known + 1, "the killed run is finished, no other is begun");
        for name in ["2-harvest", "3-generate", "4-filter", "5-rollout", "6-filter", "7-export/mcp-tool-calls"] {
            assert_eq!(stage(&run, name)["outcomes"], stage(&whole, name)["outcomes"], "{name} after a kill in {stage_folder}");
            let outcomes: Vec<Outcome> = rows(&run, name);
            let ids: HashSet<&str> = outcomes.iter().map(|o| o.input_id.as_str()).collect();
            assert_eq!(ids.len(), outcomes.len(), "no row twice in {name}");
        }
        assert_eq!(common::survivors(), Vec::<String>::new(), "a server survives a kill in {stage_folder}");
    }
    assert!(kills >= 6, "only {kills} of 9 kills came in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_that_is_killed_loses_nothing_and_pays_nothing_twice() {
    let model = ScriptedEndpoint::start(Duration::from_millis(60)).await;
    let url = model.base_url();
    let folder = Folder::with(&TWO_SERVERS);
    let two = ["--set", "models.openai.concurrency=2", "--set", "generate.concurrency=2", "--set", "filter.concurrency=2"];
    let args = [&["run", "--to", "4-filter"], &two[..]].concat();
    ok(&mut folder.with_model(&url, &["run", "--to", "harvest"]));
    let mut kills: u64 = 0;
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
    let repeated: u64 = ["3-generate", "4-filter"].iter().map(|s| stage(&run, s)["repeated"].as_u64().unwrap()).sum();
    let told = format!("{asked} requests, {needed} needed, {repeated} repeated, {kills} kills");
    assert!(asked >= needed && (asked - needed) as u64 <= repeated, "every request too many is counted: {told}");
    assert!(repeated > 0 && repeated <= 2 * kills, "a kill repeats at most what was in flight: {told}");
}

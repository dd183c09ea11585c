//! The recorded runs: whole lines over the starter roster with the embedded 1.5B model, made once and kept as
//! exchanges; one of single calls, one of all other kinds of conversation. Replayed here, they ask nobody and come out
//! as they did live.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use common::{Folder, STAGES, ok, rows, sums_close};
use mcpmill_core::{
    id::ToolId,
    record::{Ended, ExportRow, Judgement, Message, Outcome, Sample, SampleKind, ServerRecord, Tool, Trajectory, Verdict},
    schema::Schema,
};
use mcpmill_store::exchanges::{ExchangeFile, Limits};
use serde_json::Value;

/// The run of single calls.
const SINGLE: &str = "recorded";
/// The run of the other kinds.
const KINDS: &str = "recorded-kinds";

fn recorded(run: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(run).join(file)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A folder with the settings of a recorded run, and the arguments that replay it.
fn replay(run: &str) -> (Folder, Vec<String>) {
    let folder = Folder::empty();
    for file in ["mcpmill.toml", "datasets/mcp-tool-calls/dataset.toml", "filters/function-call.toml", "prompts/score.md"] {
        if recorded(run, file).is_file() {
            fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
            folder.write(file, &fs::read_to_string(recorded(run, file)).unwrap());
        }
    }
    let store = format!("exchange_store={}", recorded(run, "exchanges.jsonl.zst").display());
    (folder, ["--set", "mode=replay", "--set", &store, "--offline"].map(str::to_owned).to_vec())
}

/// Runs `verbs` on an empty cache: nothing is there to be asked.
fn replayed(folder: &Folder, verbs: &[&str], args: &[String]) -> std::process::Output {
    let args: Vec<&str> = verbs.iter().copied().chain(args.iter().map(String::as_str)).collect();
    ok(folder.mcpmill(&args).env("MCPMILL_CACHE_DIR", folder.path().join("empty-cache")))
}

/// Every stage comes to what it came to live, and asks nobody for it.
fn same_as_live(run: &str, here: &Path) {
    let (live, now) = (json(&recorded(run, "report.json")), json(&here.join("report.json")));
    for (then, now) in live["stages"].as_array().unwrap().iter().zip(now["stages"].as_array().unwrap()) {
        for field in ["stage", "input_rows", "output_rows", "outcomes", "reasons", "numbers"] {
            assert_eq!(now[field], then[field], "`{field}` of {}", then["stage"]);
        }
    }
    assert_eq!(live["stages"].as_array().unwrap().len(), now["stages"].as_array().unwrap().len());
    sums_close_and_nothing_was_missing(here);
}

#[test]
fn the_recorded_run_comes_out_as_it_did_live() {
    let (folder, args) = replay(SINGLE);
    let run = |verbs: &[&str]| replayed(&folder, verbs, &args);
    run(&["run"]);
    let here = folder.run();
    same_as_live(SINGLE, &here);
    large_enough(&here);
    calls_keep_their_schemas(&here);
    exams_come_out_as_they_did(&here);
    every_verdict_has_a_reason(&here);
    answers_are_the_servers(&here);

    tools_are_named_apart(&run(&["tools", "--provider", "gemini", "--format", "json"]).stdout);
    let told = run(&["eval", "select", "--format", "json"]);
    let scores: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(scores, json(&recorded(SINGLE, "select.json")), "the selection scores are those that were measured live");
    let model = scores.as_array().unwrap().iter().find(|row| row["model"].as_str().unwrap().starts_with("local/")).unwrap();
    assert!(model["scores"]["tool"]["n"].as_u64() >= Some(60), "{model}");
}

/// Equal names on two servers (`read_file`) come out as two, and no schema keeps what Gemini refuses.
fn tools_are_named_apart(told: &[u8]) {
    let tools: Value = serde_json::from_slice(told).unwrap();
    let tools = tools.as_array().unwrap();
    let names: BTreeSet<&str> = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), tools.len());
    let own: BTreeSet<&str> = tools.iter().map(|tool| tool["tool"].as_str().unwrap()).collect();
    assert!(own.len() < tools.len() && names.iter().any(|name| name.starts_with("filesystem__read_file_x")), "{names:?}");
    assert!(tools.iter().all(|tool| tool["function"]["parameters"].get("$schema").is_none()));
    assert!(tools.iter().any(|tool| tool["altered"].as_array().is_some_and(|changes| !changes.is_empty())));
}

fn sums_close_and_nothing_was_missing(run: &Path) {
    for name in STAGES {
        for outcome in sums_close(run, name) {
            assert!(!outcome.cause.as_deref().unwrap_or_default().contains("none is recorded"), "{name}: {outcome:?}");
            assert_eq!(outcome.attempts, 0, "{name}: somebody was asked: {outcome:?}");
        }
    }
}

/// A question that nobody recorded is told as such, and not passed over: what the test above looks for exists.
#[test]
fn a_question_that_is_not_recorded_is_told() {
    let (folder, args) = replay(SINGLE);
    let args: Vec<&str> =
        ["run", "--to", "generate", "--set", "generate.samples=392"].into_iter().chain(args.iter().map(String::as_str)).collect();
    ok(&mut folder.mcpmill(&args));
    let missing = |o: &Outcome| o.cause.as_deref().unwrap_or_default().contains("none is recorded");
    assert_eq!(rows::<Outcome>(&folder.run(), "3-generate").iter().filter(|o| missing(o)).count(), 2, "the two samples more");
}

/// All kinds beside the single call, each with enough conversations that were run to their end, and every turn of them
/// by the embedded model or a server.
#[test]
fn the_recorded_conversations_come_out_as_they_did_live() {
    let (folder, args) = replay(KINDS);
    replayed(&folder, &["run"], &args);
    let here = folder.run();
    same_as_live(KINDS, &here);
    servers_are_open_and_named(&here);
    let samples: HashMap<String, Sample> =
        rows::<Sample>(&here, "3-generate").into_iter().map(|sample| (sample.id.to_string(), sample)).collect();
    let run: Vec<Trajectory> = rows(&here, "5-rollout");
    for kind in SampleKind::ALL.into_iter().filter(|kind| *kind != SampleKind::Single) {
        let made = samples.values().filter(|sample| sample.kind == kind).count();
        let whole = run.iter().filter(|t| samples[t.sample_id.as_str()].kind == kind && t.ended == Ended::Answer).count();
        assert!(made >= LEAST_OF_A_KIND, "{kind:?}: {made} made");
        // Where no tool fits there is nothing to run.
        assert!(whole >= LEAST_OF_A_KIND || kind == SampleKind::NoTool, "{kind:?}: {whole} run");
    }
    let models: BTreeSet<&str> = samples.values().flat_map(|s| &s.lineage).filter_map(|r| r.model.as_deref()).collect();
    assert!(models.iter().all(|model| model.starts_with("local/qwen-coder-1.5b@")), "{models:?}");
    let exported: Vec<ExportRow> = rows(&here, "7-export/mcp-tool-calls");
    let kinds: BTreeSet<SampleKind> = exported.iter().map(|row| row.kind).collect();
    assert_eq!(kinds.len(), SampleKind::ALL.len() - 1, "every kind comes to the end of the line: {kinds:?}");
}

/// Conversations of each kind.
const LEAST_OF_A_KIND: usize = 25;

/// At least 300 samples over at least 20 servers, all written by the embedded model.
fn large_enough(run: &Path) {
    let samples: Vec<Sample> = rows(run, "3-generate");
    let servers: BTreeSet<String> = samples.iter().flat_map(|s| &s.server_ids).map(ToString::to_string).collect();
    assert!(samples.len() >= 300 && servers.len() >= 20, "{} samples, {} servers", samples.len(), servers.len());
    let models: BTreeSet<&str> = samples.iter().flat_map(|s| &s.lineage).filter_map(|r| r.model.as_deref()).collect();
    assert!(models.iter().all(|model| model.starts_with("local/qwen-coder-1.5b@")), "{models:?}");
    servers_are_open_and_named(run);
}

/// Every server is under an open licence, and the NOTICE names it.
fn servers_are_open_and_named(run: &Path) {
    let open = ["MIT", "Apache-2.0", "ISC", "MIT AND Apache-2.0"];
    let notice = fs::read_to_string(recorded(SINGLE, "NOTICE")).unwrap();
    for server in rows::<ServerRecord>(run, "1-discover") {
        let licence = server.licence.unwrap();
        assert!(open.contains(&licence.as_str()), "{}: {licence}", server.name);
        let named = notice.lines().any(|line| {
            line.starts_with(&format!("{} ", server.name))
                && line.contains(&licence)
                && line.contains(server.version.as_deref().unwrap())
        });
        assert!(named, "{} {:?} is not in the NOTICE", server.name, server.version);
    }
}

fn calls_keep_their_schemas(run: &Path) {
    let tools: HashMap<ToolId, Tool> = rows::<Tool>(run, "2-harvest").into_iter().map(|t| (t.id.clone(), t)).collect();
    for row in rows::<ExportRow>(run, "7-export/mcp-tool-calls") {
        let schema = Schema::compile(&tools[&row.tool_ids[0]].schema()).unwrap();
        for call in row.messages.iter().flat_map(Message::tool_calls) {
            let faults = schema.faults(&Value::Object(call.function.arguments.clone()), 3);
            assert_eq!(faults, Vec::<String>::new(), "{}", row.id);
            assert!(row.tools.contains(&format!("\"name\":\"{}\"", call.function.name)), "the called tool is offered");
        }
    }
}

fn every_verdict_has_a_reason(run: &Path) {
    let mut seen = HashSet::new();
    for stage in ["4-filter", "6-filter"] {
        for verdict in rows::<Verdict>(run, stage) {
            assert!(!verdict.reason.is_empty(), "{verdict:?}");
            seen.insert((verdict.filter, verdict.judgement));
        }
    }
    for filter in ["embedding-similarity", "tool-invocation", "duplicates", "grounded", "response-valid"] {
        for judgement in [Judgement::Keep, Judgement::Drop] {
            assert!(seen.contains(&(filter.to_owned(), judgement)), "{filter} never says {judgement:?}: {seen:?}");
        }
    }
    assert!(seen.contains(&("quality-score".to_owned(), Judgement::Unjudged)), "{seen:?}");
}

/// The exams of the embedded model, from the exchanges that come with the program: its judgements of quality are worth
/// nothing, those of answers and of written turns something.
fn exams_come_out_as_they_did(run: &Path) {
    let ends: HashMap<String, String> = ["4-filter", "6-filter"]
        .iter()
        .flat_map(|stage| common::stage(run, stage)["exams"].as_array().unwrap().clone())
        .map(|exam| (exam["filter"].as_str().unwrap().to_owned(), exam["end"].as_str().unwrap().to_owned()))
        .collect();
    let failed: Vec<&String> = ends.iter().filter(|(_, end)| *end != "passed").map(|(filter, _)| filter).collect();
    assert_eq!(failed, ["quality-score"], "{ends:?}");
    assert_eq!(ends.len(), 14, "injection and private-data are examined twice");
}

/// What stands in the published rows is what the server answered, word for word.
fn answers_are_the_servers(run: &Path) {
    let answers: HashMap<String, String> =
        rows::<Trajectory>(run, "5-rollout").into_iter().filter_map(|t| Some((t.sample_id.to_string(), t.result?))).collect();
    let rows = rows::<ExportRow>(run, "7-export/mcp-tool-calls");
    let answered: Vec<&ExportRow> = rows.iter().filter(|row| row.live == "ok").collect();
    assert!(answered.len() >= 50, "{} rows with an answer", answered.len());
    for row in answered {
        let Some(Message::Tool { content, .. }) = row.messages.last() else { panic!("{} ends without an answer", row.id) };
        let result: mcpmill_core::record::ToolResult = serde_json::from_str(&answers[row.id.as_str()]).unwrap();
        assert_eq!(*content, result.text(), "{}", row.id);
    }
}

/// What is handed on tells nothing about the machine it was made on, and nothing that opens a door.
#[test]
fn the_recorded_exchanges_are_small_and_tell_nothing_of_their_machine() {
    for run in [SINGLE, KINDS] {
        tells_nothing(&recorded(run, "exchanges.jsonl.zst"));
    }
}

fn tells_nothing(file: &Path) {
    assert!(fs::metadata(file).unwrap().len() <= 8 << 20);
    let exchanges = ExchangeFile::open(file, Limits::default()).unwrap();
    assert!(exchanges.len() > 1500, "{} exchanges", exchanges.len());
    let store = tempfile::tempdir().unwrap();
    let folder = Folder::empty();
    let path = store.path().join("exchanges.sqlite");
    let set = format!("exchange_store={}", path.display());
    ok(&mut folder.mcpmill(&["cache", "import", &file.to_string_lossy(), "--set", &set]));
    // The export refuses folders of this machine and the shapes of secrets; equal exchanges are equal bytes.
    let again = folder.path().join("again.jsonl.zst");
    ok(&mut folder.mcpmill(&["cache", "export", "--all", &again.to_string_lossy(), "--set", &set]));
    assert!(fs::read(&again).unwrap() == fs::read(file).unwrap(), "`{}` is not as it is exported", file.display());
    let text = String::from_utf8(zstd::decode_all(fs::File::open(&again).unwrap()).unwrap()).unwrap();
    for word in ["/root/", "Authorization", "authorization", "api_key\":", "/target/", ".cache/"] {
        assert!(!text.contains(word), "`{word}` in the exchanges");
    }
}

//! What a dataset takes and what it leaves, by licence, verdicts and the end of the live run; and what
//! its training rows must not even offer.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use mcpmill_core::{
    drive::Done,
    id::{SampleId, ServerId, TrajectoryId},
    record::{
        Ended, ExportRow, FunctionCall, Judgement, Launch, Message, OutcomeKind, PolicyDecision, Sample, SampleKind,
        ServerRecord, Split, Tool, ToolCall, Trajectory, Verdict,
    },
    toolbox::Toolbox,
};
use mcpmill_pipeline::export::{CardCounts, Dataset, Sources, export};
use mcpmill_testkit::{Kept, context};
use serde_json::{Value, json};

fn server(name: &str, licence: Option<&str>) -> ServerRecord {
    let launch = Launch::Unsupported { what: "none".into() };
    ServerRecord {
        id: ServerId(format!("srv_{name}")),
        version: Some("1.2.3".into()),
        licence: licence.map(str::to_owned),
        ..mcpmill_testkit::server(name, launch)
    }
}

fn tool(server: &str, name: &str) -> Tool {
    mcpmill_testkit::tool(server, name, &format!("does {name} on {server}"), json!({"type": "object"}))
}

fn sample(tool: &Tool, n: usize) -> Sample {
    mcpmill_testkit::sample(tool, &format!("please, {n}"), &tool.name, &json!({}))
}

fn trajectory(sample: &Sample, ended: Ended) -> Trajectory {
    let mut messages = sample.messages.clone();
    if ended == Ended::Answer {
        messages.push(Message::Tool { tool_call_id: "call_1".into(), name: "t".into(), content: "the answer".into() });
    }
    Trajectory {
        id: TrajectoryId(format!("trj_{}", sample.id)),
        sample_id: sample.id.clone(),
        messages,
        ended,
        cause: None,
        policy: PolicyDecision { allowed: ended != Ended::Refused, rule: "read-only".into(), why: String::new() },
        result: None,
        response_verdict: None,
        masked: Vec::new(),
        lineage: Vec::new(),
    }
}

fn unjudged(subject: &str, filter: &str) -> (String, Vec<Verdict>) {
    let verdict = Verdict {
        subject_id: subject.into(),
        filter: filter.into(),
        judgement: Judgement::Unjudged,
        reason: "the judge was silent".into(),
        score: None,
        threshold: None,
        evidence: None,
    };
    (subject.to_owned(), vec![verdict])
}

fn dataset(live: &[&str], allow_unjudged: bool, split: &str) -> Dataset {
    let text = format!(
        "title = \"t\"\nlicence = \"apache-2.0\"\nlicences = [\"MIT\"]\nlive = {live:?}\nallow_unjudged = {allow_unjudged}\n\
         candidates = 4\nrows_per_file = 10\n[split]\n{split}\n"
    );
    Dataset::parse("test", &text).unwrap()
}

const NO_SPLIT: &str = "unseen_server = 0.0\nunseen_tool = 0.0\nseen_tool = 0.0";

async fn run(samples: Vec<Sample>, dataset: &Dataset, sources: &Sources) -> HashMap<SampleId, Done<ExportRow>> {
    let ids: Vec<SampleId> = samples.iter().map(|s| s.id.clone()).collect();
    let out = Kept::default();
    export(samples, dataset, sources, &context("7-export"), &out).await.unwrap();
    let ends: HashMap<SampleId, Done<ExportRow>> =
        out.ends().into_iter().map(|done| (SampleId(done.outcome.input_id.clone()), done)).collect();
    assert_eq!(ends.len(), ids.len(), "every sample ends once");
    ends
}

#[tokio::test]
async fn licence_verdicts_and_the_live_run_decide() {
    let servers = [server("open", Some("MIT")), server("closed", Some("BUSL-1.1")), server("silent", None)];
    let tools = [tool("open", "a"), tool("closed", "b"), tool("silent", "c")];
    let [ok, refused, not_run, dropped, doubtful, undecided, down, unasked] =
        [0, 1, 2, 3, 4, 5, 6, 7].map(|n| sample(&tools[0], n));
    let (closed, silent) = (sample(&tools[1], 0), sample(&tools[2], 0));
    let run_of = |s: &Sample, ended| (s.id.clone(), trajectory(s, ended));
    let answered = [&ok, &dropped, &doubtful, &undecided, &unasked].map(|s| run_of(s, Ended::Answer));
    let sources = Sources {
        servers: servers.into_iter().map(|s| (s.id.clone(), s)).collect(),
        toolbox: Arc::new(Toolbox::new(tools.to_vec())),
        run: answered.into_iter().chain([run_of(&refused, Ended::Refused)]).collect(),
        passed: [&ok, &doubtful, &undecided].map(|s| run_of(s, Ended::Answer)).into_iter().collect(),
        verdicts: HashMap::from([
            unjudged(undecided.id.as_str(), "quality-score"),
            unjudged(&format!("trj_{}", doubtful.id), "response-valid"),
        ]),
        failed: HashSet::from([down.id.to_string(), format!("trj_{}", unasked.id)]),
    };
    let samples = || {
        [&ok, &refused, &not_run, &dropped, &doubtful, &undecided, &down, &unasked, &closed, &silent].map(Clone::clone).to_vec()
    };
    let ends = run(samples(), &dataset(&["ok", "not_run", "refused"], false, NO_SPLIT), &sources).await;
    let end = |s: &Sample| (ends[&s.id].outcome.outcome, ends[&s.id].outcome.reason.as_str());
    assert_eq!(end(&closed), (OutcomeKind::Dropped, "licence: BUSL-1.1"));
    assert_eq!(end(&silent), (OutcomeKind::Dropped, "licence: unknown"));
    assert_eq!(end(&dropped), (OutcomeKind::Dropped, "response-valid"));
    assert_eq!(end(&undecided), (OutcomeKind::Dropped, "unjudged: quality-score"));
    assert_eq!(end(&doubtful), (OutcomeKind::Dropped, "live: unjudged"));
    assert_eq!(end(&down), (OutcomeKind::Dropped, "live: failed"), "its server did not start");
    assert_eq!(end(&unasked), (OutcomeKind::Dropped, "live: unjudged"), "its judge was down");
    for (sample, live, messages) in [(&ok, "ok", 3), (&refused, "refused", 2), (&not_run, "not_run", 2)] {
        let row = &ends[&sample.id].rows[0];
        assert_eq!((row.live.as_str(), row.messages.len()), (live, messages));
        assert_eq!((row.licence.as_deref(), row.server_version.as_deref()), (Some("MIT"), Some("1.2.3")));
    }

    let ends = run(samples(), &dataset(&["ok", "unjudged"], true, NO_SPLIT), &sources).await;
    let end = |s: &Sample| (ends[&s.id].outcome.outcome, ends[&s.id].outcome.reason.as_str());
    assert_eq!(end(&undecided).0, OutcomeKind::Kept, "a dataset may take rows that a filter could not judge");
    assert_eq!(end(&doubtful).0, OutcomeKind::Kept);
    assert_eq!(end(&refused), (OutcomeKind::Dropped, "live: refused"));
    assert_eq!(end(&not_run), (OutcomeKind::Dropped, "live: not_run"));
}

#[tokio::test]
async fn training_rows_never_offer_what_is_held_out() {
    let names: Vec<String> = (0..6).map(|n| format!("s{n}")).collect();
    let servers: HashMap<ServerId, ServerRecord> =
        names.iter().map(|name| server(name, Some("MIT"))).map(|s| (s.id.clone(), s)).collect();
    let tools: Vec<Tool> = names.iter().flat_map(|s| (0..4).map(move |t| tool(s, &format!("{s}_tool_{t}")))).collect();
    let ask = |t: &Tool, n| mcpmill_testkit::sample(t, &format!("please {}, {n}", t.name), &t.name, &json!({}));
    let samples: Vec<Sample> = tools.iter().flat_map(|t| (0..3).map(move |n| ask(t, n))).collect();
    let toolbox = Arc::new(Toolbox::new(tools.clone()));
    let sources = Sources {
        servers,
        toolbox,
        run: HashMap::new(),
        passed: HashMap::new(),
        verdicts: HashMap::new(),
        failed: HashSet::new(),
    };
    let split = "unseen_server = 0.34\nunseen_tool = 0.2\nseen_tool = 0.2";
    let ends = run(samples, &dataset(&["not_run"], false, split), &sources).await;
    let rows: Vec<&ExportRow> = ends.values().flat_map(|done| &done.rows).collect();
    assert_eq!(rows.len(), 72);
    let of = |split: Split| rows.iter().filter(move |row| row.split == split);
    let held: HashSet<&str> = [Split::UnseenServer, Split::UnseenTool]
        .into_iter()
        .flat_map(of)
        .map(|row| tools.iter().find(|t| t.id == row.tool_ids[0]).unwrap().name.as_str())
        .collect();
    assert!(held.len() >= 8, "two servers of four tools, and some tools: {held:?}");
    for row in of(Split::Train).chain(of(Split::SeenTool)) {
        let offered: Vec<Value> = serde_json::from_str(&row.tools).unwrap();
        assert_eq!(offered.len(), 4);
        for tool in offered {
            let name = tool["function"]["name"].as_str().unwrap();
            assert!(!held.contains(name), "{} offers the held-out {name}", row.id);
        }
    }
}

/// A sample of another kind, with the turns after the request.
fn talk(kind: SampleKind, tools: &[&Tool], turns: Vec<Message>) -> Sample {
    let first = sample(tools[0], 0);
    let ids: Vec<_> = tools.iter().map(|tool| tool.id.clone()).collect();
    let (tool_ids, withheld) = if kind == SampleKind::NoTool { (vec![], ids) } else { (ids, vec![]) };
    let mut server_ids: Vec<_> = tools.iter().map(|tool| tool.server_id.clone()).collect();
    server_ids.dedup();
    let messages = std::iter::once(Message::user("please")).chain(turns).collect();
    Sample { id: SampleId::of(&(kind, &server_ids, &tool_ids)), kind, tool_ids, withheld, server_ids, messages, ..first }
}

fn calling(tool: &Tool, id: &str) -> Message {
    Message::call(ToolCall::new(id, FunctionCall { name: tool.name.clone(), arguments: serde_json::Map::new() }))
}

fn offered(row: &ExportRow) -> Vec<String> {
    let tools: Vec<Value> = serde_json::from_str(&row.tools).unwrap();
    tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
}

fn sources(servers: &[ServerRecord], tools: &[Tool], runs: &[Trajectory]) -> Sources {
    let by_sample = |rows: &[Trajectory]| rows.iter().map(|t| (t.sample_id.clone(), t.clone())).collect();
    Sources {
        servers: servers.iter().map(|s| (s.id.clone(), s.clone())).collect(),
        toolbox: Arc::new(Toolbox::new(tools.to_vec())),
        run: by_sample(runs),
        passed: by_sample(runs),
        verdicts: HashMap::new(),
        failed: HashSet::new(),
    }
}

#[tokio::test]
async fn rows_of_several_tools_offer_all_of_them_and_need_every_licence() {
    let servers = [server("a", Some("MIT")), server("b", Some("Apache-2.0")), server("c", Some("BUSL-1.1"))];
    let tools: Vec<Tool> = ["a", "b", "c"].iter().flat_map(|s| (0..4).map(move |t| tool(s, &format!("{s}_tool_{t}")))).collect();
    let [a, b, c] = [&tools[0], &tools[4], &tools[8]];
    let chain = talk(SampleKind::Parallel, &[a, b], vec![calling(a, "1")]);
    let twice = talk(SampleKind::Parallel, &[a, a], vec![calling(a, "1")]);
    let closed = talk(SampleKind::Parallel, &[a, c], vec![calling(a, "1")]);
    let mut dataset = dataset(&["not_run"], false, NO_SPLIT);
    dataset.licences.push("Apache-2.0".into());
    let samples = vec![chain.clone(), twice.clone(), closed.clone()];
    let ends = run(samples, &dataset, &sources(&servers, &tools, &[])).await;
    let row = &ends[&chain.id].rows[0];
    assert_eq!(
        (row.server.as_str(), row.server_version.as_deref(), row.licence.as_deref()),
        ("a + b", None, Some("MIT AND Apache-2.0"))
    );
    assert_eq!(row.servers().collect::<Vec<_>>(), ["a", "b"]);
    let names = offered(row);
    assert!(names.len() == 4 && [a, b].iter().all(|tool| names.contains(&tool.name)), "{names:?}");
    let names = offered(&ends[&twice.id].rows[0]);
    assert_eq!((names.len(), names.iter().filter(|name| **name == a.name).count()), (4, 1), "offered once: {names:?}");
    assert_eq!((row.licence.as_deref(), row.loss.as_slice()), (Some("MIT AND Apache-2.0"), [false, true].as_slice()));
    assert_eq!(ends[&closed.id].outcome.reason, "licence: BUSL-1.1", "one closed server closes the row");
}

#[tokio::test]
async fn what_is_withheld_is_not_offered_and_what_was_wrong_is_not_learned() {
    let servers = [server("a", Some("MIT")), server("b", Some("MIT"))];
    let counter = |t: usize| mcpmill_testkit::tool("b", &format!("count_{t}"), "counts fruit", json!({"n": t}));
    let notes = ["show_note", "delete_note", "move_note", "send_note"].map(|name| tool("a", name));
    let mut tools: Vec<Tool> = notes.into_iter().chain((0..4).map(counter)).collect();
    // A twin of the withheld tool, under another name.
    tools.push(Tool { cluster_id: tools[0].cluster_id.clone(), ..tool("b", "twin") });
    let no_tool = talk(SampleKind::NoTool, &[&tools[0]], vec![Message::assistant("I can't.")]);
    let recover = talk(SampleKind::Recover, &[&tools[1]], vec![calling(&tools[1], "1"), calling(&tools[1], "2")]);
    let not_run = Sample { id: SampleId::of("not run"), ..recover.clone() };
    let single = sample(&tools[2], 0);
    let told = |id: &str| Message::Tool { tool_call_id: id.into(), name: "t".into(), content: "no such thing".into() };
    let mended = Trajectory {
        messages: vec![
            recover.messages[0].clone(),
            recover.messages[1].clone(),
            told("1"),
            recover.messages[2].clone(),
            told("2"),
        ],
        masked: vec![1],
        ..trajectory(&recover, Ended::Answer)
    };
    let answered = {
        let mut run = trajectory(&single, Ended::Answer);
        run.messages.extend([Message::assistant("Made up."), Message::assistant("As it is.")]);
        let text = |step: &str| json!({"step": step, "prompt": null, "model": "writer", "parent": null, "text": step});
        let lineage = serde_json::from_value(json!([text("answer"), text("user")])).unwrap();
        Trajectory { masked: vec![3], lineage, ..run }
    };
    let samples = vec![no_tool.clone(), recover.clone(), not_run.clone(), single.clone()];
    let sources = sources(&servers, &tools, &[mended, answered]);
    let mut dataset = dataset(&["ok", "not_run"], false, NO_SPLIT);
    dataset.candidates = 20;
    let ends = run(samples, &dataset, &sources).await;
    let row = &ends[&no_tool.id].rows[0];
    let names = offered(row);
    assert_eq!(names.len(), 7, "{names:?}");
    assert!(!names.contains(&tools[0].name) && !names.contains(&"twin".to_owned()), "{names:?}");
    assert_eq!(
        (row.tool_ids.len(), row.withheld.as_slice(), row.live.as_str()),
        (0, [tools[0].id.clone()].as_slice(), "not_run")
    );
    assert_eq!(row.loss, [false, true]);
    assert_eq!(ends[&recover.id].rows[0].loss, [false, false, false, true, false]);
    let row = &ends[&single.id].rows[0];
    assert_eq!(row.loss, [false, true, false, false, true]);
    let steps: Vec<&str> = row.lineage.iter().map(|revision| revision.step.as_str()).collect();
    assert_eq!(steps, ["answer", "user"], "the lineage of the run is behind that of the sample");
    let mut counts = CardCounts::default();
    counts.add(row);
    let card = json!(counts);
    assert_eq!(card["models"], json!({"writer": 1}), "the card names who wrote while it was run");
    assert_eq!(ends[&not_run.id].outcome.reason, "live: not_run", "two calls without an error between them are no conversation");
}

#[tokio::test]
async fn what_is_written_while_it_is_run_is_no_row_without_its_run() {
    let servers = [server("a", Some("MIT"))];
    let tools: Vec<Tool> = (0..4).map(|t| tool("a", &format!("a_tool_{t}"))).collect();
    let [not_run, refused, unasked] = ["not run", "refused", "unasked"].map(|name| {
        let chain = talk(SampleKind::Chain, &[&tools[0], &tools[1]], vec![calling(&tools[0], "1")]);
        Sample { id: SampleId::of(name), ..chain }
    });
    let turns = talk(SampleKind::MultiTurn, &[&tools[0], &tools[1]], vec![calling(&tools[0], "1")]);
    let runs = [trajectory(&refused, Ended::Refused), trajectory(&unasked, Ended::Answer)];
    let mut sources = sources(&servers, &tools, &runs);
    sources.passed.remove(&unasked.id);
    sources.failed.insert(format!("trj_{}", unasked.id));
    let dataset = dataset(&["ok", "not_run", "refused", "failed", "unjudged"], true, NO_SPLIT);
    let samples = vec![not_run.clone(), refused.clone(), unasked.clone(), turns.clone()];
    let ends = run(samples, &dataset, &sources).await;
    let reason = |sample: &Sample| ends[&sample.id].outcome.reason.clone();
    assert_eq!((reason(&not_run), reason(&turns)), ("live: not_run".into(), "live: not_run".into()));
    assert_eq!((reason(&refused), reason(&unasked)), ("live: refused".into(), "live: unjudged".into()));
}

#[tokio::test]
async fn a_row_that_can_offer_nothing_is_none() {
    let servers = [server("a", Some("MIT"))];
    let tools = [
        mcpmill_testkit::tool("a", "read_note", "Reads a note", json!({})),
        mcpmill_testkit::tool("a", "show_note", "Reads it", json!({})),
    ];
    let no_tool = talk(SampleKind::NoTool, &[&tools[0]], vec![Message::assistant("I can't.")]);
    let ends = run(vec![no_tool.clone()], &dataset(&["not_run"], false, NO_SPLIT), &sources(&servers, &tools, &[])).await;
    let outcome = &ends[&no_tool.id].outcome;
    assert_eq!((outcome.outcome, outcome.reason.as_str()), (OutcomeKind::Dropped, "nothing-to-offer"));
}

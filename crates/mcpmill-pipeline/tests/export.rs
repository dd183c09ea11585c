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
        Ended, ExportRow, Judgement, Launch, Message, OutcomeKind, PolicyDecision, Sample, ServerRecord, Split, Tool, Trajectory,
        Verdict,
    },
    toolbox::Toolbox,
};
use mcpmill_pipeline::export::{Dataset, Sources, export};
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
        policy: PolicyDecision { allowed: ended != Ended::Refused, rule: "default".into() },
        result: None,
        response_verdict: None,
        masked: Vec::new(),
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
    let samples: Vec<Sample> = tools.iter().flat_map(|t| (0..3).map(move |n| sample(t, n))).collect();
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

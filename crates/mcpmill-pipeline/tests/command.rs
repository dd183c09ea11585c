//! Filters of users: rows go to a program as JSON lines, its verdicts come back, and what it gets wrong leaves rows
//! unjudged.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mcpmill_core::{
    drive::{Done, Pace},
    edge::{Confined, Process, ProcessEnd, ProcessError, ProcessOutput},
    naming::alias,
    record::{ExamEnd, Judgement, OutcomeKind, Sample},
    toolbox::Toolbox,
};
use mcpmill_pipeline::filter::{Chain, ExamRows, Parts, Programs, examine, filter_samples};
use mcpmill_testkit::{Kept, context, sample, tool};
use serde_json::{Value, json};

/// What a program prints for its input lines, and how it ends.
type Play = dyn Fn(&[Value]) -> ProcessOutput + Send + Sync;

/// A program made of a function from its input lines to its end.
struct Played {
    play: Box<Play>,
    groups: Mutex<Vec<usize>>,
    seen: Mutex<Option<Confined>>,
}

#[async_trait]
impl Process for Played {
    async fn run_on(&self, program: &Confined, input: &[u8]) -> Result<ProcessOutput, ProcessError> {
        *self.seen.lock().unwrap() = Some(program.clone());
        let rows: Vec<Value> =
            std::str::from_utf8(input).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        self.groups.lock().unwrap().push(rows.len());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        Ok((self.play)(&rows))
    }
}

fn played(play: impl Fn(&[Value]) -> ProcessOutput + Send + Sync + 'static) -> Arc<Played> {
    Arc::new(Played { play: Box::new(play), groups: Mutex::default(), seen: Mutex::default() })
}

fn printed(stdout: String) -> ProcessOutput {
    ProcessOutput { end: ProcessEnd::Exited(0), stdout, stderr: String::new() }
}

/// Says `drop` of short requests.
fn by_length(rows: &[Value]) -> ProcessOutput {
    let verdict = |row: &Value| {
        let words = row["instruction"].as_str().unwrap().split_whitespace().count();
        let judgement = if words < 3 { "drop" } else { "keep" };
        json!({"id": row["id"], "judgement": judgement, "reason": "by length", "score": words, "evidence": {"words": words}})
            .to_string()
    };
    printed(rows.iter().map(|row| verdict(row) + "\n").collect())
}

fn parts(process: Arc<Played>, toolbox: Arc<Toolbox>) -> Parts<'static> {
    let programs = Ok(Programs { process, filters: Some("/somewhere/filters".into()) });
    Parts {
        embedder: Err("none".into()),
        models: Err("none".into()),
        toolbox,
        programs,
        held_out: Arc::default(),
        prompt: &|_| None,
    }
}

const STEP: &str = "[[step]]\nname = \"mine\"\nkind = \"command\"\ncommand = [\"python3\", \"mine.py\"]\n";

async fn filtered(process: &Arc<Played>, texts: &[&str]) -> Vec<Done<Sample>> {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    let tool = tool("1", "read", "Read a file", schema);
    let samples = texts.iter().map(|text| sample(&tool, text, &alias(&tool.name), &json!({"path": "a"}))).collect();
    let toolbox = Arc::new(Toolbox::new(vec![tool]));
    let chain = Chain::parse("test", STEP, &parts(Arc::clone(process), Arc::clone(&toolbox))).unwrap();
    let out = Kept::default();
    let pace = Pace { concurrency: 8, max_failure_rate: 1.0 };
    filter_samples(samples, &chain, toolbox, pace, &context("4-filter"), &out).await.unwrap();
    let mut ends = out.ends();
    ends.sort_by(|a, b| a.outcome.input_id.cmp(&b.outcome.input_id));
    ends
}

#[tokio::test]
async fn rows_go_in_and_verdicts_come_out_in_groups() {
    let process = played(by_length);
    let texts: Vec<String> =
        (0..40).map(|n| if n % 2 == 0 { format!("Read {n}") } else { format!("Read file number {n} please") }).collect();
    let ends = filtered(&process, &texts.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(ends.iter().filter(|done| done.outcome.outcome == OutcomeKind::Dropped).count(), 20);
    let dropped = ends.iter().find(|done| done.outcome.outcome == OutcomeKind::Dropped).unwrap();
    assert_eq!((dropped.verdicts[0].score, dropped.verdicts[0].evidence.as_deref()), (Some(2.0), Some("{\"words\":2}")));
    let groups = process.groups.lock().unwrap().clone();
    assert_eq!(groups.iter().sum::<usize>(), 40);
    assert!(groups.len() < 20, "rows that wait go together: {groups:?}");
    let seen = process.seen.lock().unwrap().clone().unwrap();
    assert_eq!((seen.network, seen.binds.len(), seen.binds[0].writable), (false, 1, false));
}

#[tokio::test]
async fn what_the_program_gets_wrong_leaves_rows_unjudged() {
    let failing = |end| move |_: &[Value]| ProcessOutput { end, stdout: String::new(), stderr: "Traceback\nNameError: x".into() };
    let silent = |_: &[Value]| printed(String::new());
    let twice = |rows: &[Value]| printed(by_length(rows).stdout.repeat(2));
    let other = |rows: &[Value]| printed(by_length(rows).stdout.replace("keep", "perhaps"));
    let bare = |rows: &[Value]| printed(by_length(rows).stdout.replace("by length", " "));
    let cases: [(Arc<Played>, &str); 6] = [
        (played(failing(ProcessEnd::Exited(1))), "exit code 1: NameError: x"),
        (played(failing(ProcessEnd::TimedOut)), "its time used up"),
        (played(silent), "no verdict"),
        (played(twice), "two verdicts"),
        (played(other), "line 1 of its output is no verdict"),
        (played(bare), "no reason"),
    ];
    for (process, want) in cases {
        let done = filtered(&process, &["Read the file for me"]).await.remove(0);
        let verdict = &done.verdicts[0];
        assert_eq!((verdict.judgement, done.rows.len()), (Judgement::Unjudged, 1), "{want}");
        assert!(verdict.reason.contains(want), "{}", verdict.reason);
    }
}

#[tokio::test]
async fn it_is_examined_on_the_faults_that_it_names() {
    let rows = ExamRows::parse(include_str!("../../../filters/exams/planted.jsonl")).unwrap();
    let step = format!("{STEP}plants = [\"vague\"]\n");
    let chain = |process| Chain::parse("test", &step, &parts(process, rows.toolbox())).unwrap();
    let vague = |rows: &[Value]| {
        let verdict = |row: &Value| {
            let has_number = row["instruction"].as_str().unwrap().chars().any(|c| c.is_ascii_digit());
            json!({"id": row["id"], "judgement": if has_number { "keep" } else { "drop" }, "reason": "digits"}).to_string() + "\n"
        };
        printed(rows.iter().map(verdict).collect())
    };
    let taken = examine(&chain(played(vague)), &rows, 8).await;
    assert_eq!(taken[0].exam.end, ExamEnd::Passed, "{:?}", taken[0].exam);
    let none = Chain::parse("test", &format!("{STEP}plants = [\"vgue\"]\n"), &parts(played(by_length), rows.toolbox()));
    assert!(none.err().unwrap().to_string().contains("there is no fault `vgue`"));
}

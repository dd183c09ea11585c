//! `command`: a filter of the user's, in any language. It reads rows as JSON lines and writes verdicts as JSON lines;
//! it runs in the cage and sees nothing but what it is given.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{Bind, Confined, Limits, Process, ProcessEnd, ProcessOutput},
    record::{Judgement, Tool, Verdict},
    text::clipped,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Bench, Case, Filter, Plant};
use crate::ask::Meter;

/// Where the program finds the user's folder `filters`, and starts.
const INSIDE: &str = "/filters";
/// Bytes that it may print for one group of rows.
const OUTPUT_BYTES: u64 = 16 << 20;
/// Resident bytes of it and all that it starts.
const MEMORY_BYTES: u64 = 2 << 30;
/// Processes and threads of it.
const PROCESSES: u32 = 64;
/// Characters of its complaint that are told.
const TOLD: usize = 300;

/// What runs the programs of users.
#[derive(Clone)]
pub struct Programs {
    /// The cage.
    pub process: Arc<dyn Process>,
    /// The user's folder `filters`, which programs see and start in; `None` where there is none.
    pub filters: Option<PathBuf>,
}

pub(super) struct Command {
    pub(super) name: String,
    /// Program and arguments; relative paths begin in the folder `filters`.
    pub(super) command: Vec<String>,
    pub(super) network: bool,
    /// Most seconds for one group of rows.
    pub(super) seconds: u64,
    pub(super) plants: Vec<Plant>,
    pub(super) programs: Result<Programs, String>,
    pub(super) rows: Queue,
}

/// Rows that wait for their verdict; those that come while the program runs are its next group.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Vec<Waiting>>,
    turn: tokio::sync::Mutex<()>,
}

struct Waiting {
    id: String,
    line: String,
    told: oneshot::Sender<Result<Said, String>>,
}

/// A verdict as the program writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Said {
    id: String,
    judgement: Judgement,
    reason: String,
    score: Option<f64>,
    threshold: Option<f64>,
    evidence: Option<Value>,
}

#[async_trait]
impl Filter for Command {
    fn name(&self) -> &str {
        &self.name
    }

    fn plants(&self) -> Vec<Plant> {
        self.plants.clone()
    }

    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let programs = match &self.programs {
            Ok(programs) => programs,
            Err(why) => return bench.unjudged(format!("unjudged: no program is run: {why}")),
        };
        match self.said(programs, case).await {
            Ok(said) if said.reason.trim().is_empty() => bench.unjudged("unjudged: its verdict has no reason"),
            Ok(said) => Verdict {
                score: said.score.filter(|score| score.is_finite()),
                threshold: said.threshold.filter(|threshold| threshold.is_finite()),
                evidence: said.evidence.map(|evidence| evidence.to_string()),
                ..bench.verdict(said.judgement, clipped(&said.reason, TOLD))
            },
            Err(why) => {
                meter.unreachable.get_or_insert_with(|| why.clone());
                bench.unjudged(format!("unjudged: {why}"))
            }
        }
    }
}

impl Command {
    async fn said(&self, programs: &Programs, case: &Case<'_>) -> Result<Said, String> {
        let (told, mut answer) = oneshot::channel();
        let waiting = Waiting { id: case.subject.to_owned(), line: line(case), told };
        self.rows.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
        loop {
            tokio::select! {
                biased;
                said = &mut answer => return said.unwrap_or_else(|_| Err("its run was given up".into())),
                _turn = self.rows.turn.lock() => {
                    let group = std::mem::take(&mut *self.rows.waiting.lock().unwrap_or_else(PoisonError::into_inner));
                    if !group.is_empty() {
                        self.run(programs, group).await;
                    }
                }
            }
        }
    }

    /// Runs the program once over a group of rows.
    async fn run(&self, programs: &Programs, group: Vec<Waiting>) {
        let input: String = group.iter().map(|row| format!("{}\n", row.line)).collect();
        let output = programs.process.run_on(&self.confined(programs), input.as_bytes()).await;
        let said = output.map_err(|e| e.to_string()).and_then(|output| verdicts(&output));
        for row in group {
            let own = said.as_ref().map_err(Clone::clone).and_then(|said| match said.get(&row.id).map(Vec::as_slice) {
                Some([one]) => Ok(one.clone()),
                Some(_) => Err("it gave the row two verdicts".to_owned()),
                None => Err("it gave the row no verdict".to_owned()),
            });
            row.told.send(own).ok();
        }
    }

    fn confined(&self, programs: &Programs) -> Confined {
        let bind = |host: &PathBuf| Bind { host: host.clone(), inside: INSIDE.into(), writable: false };
        Confined {
            what: format!("filter `{}`", self.name),
            command: self.command.clone(),
            binds: programs.filters.iter().map(bind).collect(),
            env: Vec::new(),
            workdir: programs.filters.is_some().then(|| INSIDE.into()),
            network: self.network,
            limits: Limits {
                wall: Duration::from_secs(self.seconds),
                output_bytes: OUTPUT_BYTES,
                memory_bytes: MEMORY_BYTES,
                processes: PROCESSES,
            },
        }
    }
}

/// A row as the program reads it.
fn line(case: &Case<'_>) -> String {
    let tool = |tool: &&Tool| json!({ "name": tool.name, "description": tool.description, "inputSchema": tool.schema(), "server": tool.server_id });
    let run = case.trajectory.map(|run| {
        let result: Value = run.result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        json!({ "ended": run.ended, "messages": run.messages, "result": result })
    });
    let sample = case.sample;
    json!({
        "id": case.subject, "kind": sample.kind, "language": sample.language, "instruction": sample.instruction,
        "messages": sample.messages, "tools": case.called.iter().map(tool).collect::<Vec<_>>(), "run": run,
    })
    .to_string()
}

/// What a program that came to its end said, by row.
fn verdicts(output: &ProcessOutput) -> Result<HashMap<String, Vec<Said>>, String> {
    if output.end != ProcessEnd::Exited(0) {
        let complaint = output.stderr.trim();
        let last = complaint.lines().last().unwrap_or("it says nothing");
        return Err(format!("the program ended with {}: {}", end(output.end), clipped(last, TOLD)));
    }
    let mut said: HashMap<String, Vec<Said>> = HashMap::new();
    for (at, line) in output.stdout.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let one: Said = serde_json::from_str(line).map_err(|e| format!("line {} of its output is no verdict: {e}", at + 1))?;
        said.entry(one.id.clone()).or_default().push(one);
    }
    Ok(said)
}

fn end(end: ProcessEnd) -> String {
    match end {
        ProcessEnd::Exited(code) => format!("exit code {code}"),
        ProcessEnd::Signalled(signal) => format!("signal {signal}"),
        ProcessEnd::TimedOut => "its time used up".into(),
        ProcessEnd::OutOfMemory => "its memory used up".into(),
        ProcessEnd::TooMuchOutput => "too much output".into(),
        ProcessEnd::TooManyProcesses => "too many processes".into(),
        ProcessEnd::TooMuchDisk => "its folders full".into(),
    }
}

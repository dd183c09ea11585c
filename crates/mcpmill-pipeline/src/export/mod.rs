//! Export: survivors as rows that trainers load unchanged.

mod card;
mod check;
mod dataset;
mod escape;
mod lengths;
mod licence;
pub mod profile;
mod shards;
mod split;

pub use card::{CardCounts, CardError, RunFacts, ServerFacts, StageYield, render_card};
pub use check::{Crossing, SplitCheck};
pub use dataset::{Dataset, DatasetError, Unjudged};
pub use lengths::TokenCounter;
pub use shards::Shards;
pub use split::{Assigned, Shares, assign};

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    id::{SampleId, ServerId},
    naming::alias,
    record::{Ended, ExportRow, Message, Outcome, Row, Sample, SampleKind, ServerRecord, Split, Tool, Trajectory, Verdict},
    toolbox::Toolbox,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::rollout::needs_answers;

/// What the rows of an export are put together from.
pub struct Sources {
    /// Servers by id.
    pub servers: HashMap<ServerId, ServerRecord>,
    /// All tools.
    pub toolbox: Arc<Toolbox>,
    /// Trajectories of the run, as rollout wrote them, by sample.
    pub run: HashMap<SampleId, Trajectory>,
    /// Those that passed the filter after it.
    pub passed: HashMap<SampleId, Trajectory>,
    /// All verdicts, by subject.
    pub verdicts: HashMap<String, Vec<Verdict>>,
    /// Samples whose call could not be made, and trajectories whose answer could not be judged.
    pub failed: HashSet<String>,
}

/// A sample and where it goes.
#[derive(Serialize)]
struct Job {
    sample: Sample,
    /// What came of its live run, or why it stays out.
    live: Result<&'static str, String>,
    split: Option<Split>,
}

impl Row for Job {
    fn row_id(&self) -> &str {
        self.sample.id.as_str()
    }
}

/// Writes the rows of one dataset.
///
/// # Errors
/// Interrupted, or a journal that fails.
pub async fn export(
    samples: Vec<Sample>,
    dataset: &Dataset,
    sources: &Sources,
    cx: &Context,
    out: &dyn Sink<ExportRow>,
) -> Result<Summary, StageError> {
    let (jobs, held_out) = sort_out(samples, dataset, sources);
    let pace = Pace { concurrency: 1, max_failure_rate: 0.0 };
    drive(jobs, pace, cx, out, |job| {
        let done = end(job, dataset, sources, &held_out);
        async move { done }
    })
    .await
}

fn sort_out(samples: Vec<Sample>, dataset: &Dataset, sources: &Sources) -> (Vec<Job>, Assigned) {
    let decided: Vec<(Sample, Result<&'static str, String>)> = samples
        .into_iter()
        .map(|sample| {
            let live = admit(&sample, dataset, sources);
            (sample, live)
        })
        .collect();
    let admitted: Vec<&Sample> = decided.iter().filter(|(_, live)| live.is_ok()).map(|(sample, _)| sample).collect();
    let assigned = assign(&admitted, &sources.toolbox, &dataset.shares);
    let job = |(sample, live): (Sample, _)| {
        let live = if assigned.copies.contains(&sample.id) { Err("request-held-out".to_owned()) } else { live };
        Job { split: assigned.splits.get(&sample.id).copied(), sample, live }
    };
    (decided.into_iter().map(job).collect(), assigned)
}

/// What came of the sample's live run, or why the dataset does not take it.
fn admit(sample: &Sample, dataset: &Dataset, sources: &Sources) -> Result<&'static str, String> {
    // Every server must allow it.
    let licence = |id| sources.servers.get(id).and_then(|server: &ServerRecord| server.licence.as_deref()).unwrap_or("unknown");
    let licences: Vec<&str> = sample.server_ids.iter().map(licence).collect();
    if let Some(closed) = licences.iter().find(|licence| !dataset.licences.iter().any(|l| l == *licence)) {
        return Err(format!("licence: {closed}"));
    }
    if licences.is_empty() {
        return Err("licence: unknown".into());
    }
    let undecided = |id: &str| {
        let verdicts = sources.verdicts.get(id).map(Vec::as_slice).unwrap_or_default();
        verdicts.iter().find(|v| dataset.allow_unjudged.keeps_out(v)).map(|v| v.filter.clone())
    };
    if let Some(filter) = undecided(sample.id.as_str()) {
        return Err(format!("unjudged: {filter}"));
    }
    let live = match (sources.run.get(&sample.id), sources.passed.get(&sample.id)) {
        (None, _) if sources.failed.contains(sample.id.as_str()) => "failed",
        (None, _) => "not_run",
        (Some(run), _) if run.ended == Ended::Refused => "refused",
        (Some(run), None) if sources.failed.contains(run.id.as_str()) => "unjudged",
        (Some(_), None) => return Err(crate::filter::RESPONSE_VALID.into()),
        (Some(_), Some(passed)) if undecided(passed.id.as_str()).is_some() => "unjudged",
        (Some(_), Some(_)) => "ok",
    };
    // Without the error between them, two calls make no conversation; of what is written while it is run, only the
    // beginning is there.
    if needs_answers(sample.kind) && live != "ok" {
        return Err(format!("live: {live}"));
    }
    if dataset.live.iter().any(|l| l == live) { Ok(live) } else { Err(format!("live: {live}")) }
}

/// Whether training rows may offer a tool: not what is held out, nor copies of it.
fn admits(held_out: &Assigned, tool: &Tool, toolbox: &Toolbox) -> bool {
    !held_out.servers.contains(toolbox.server_cluster(&tool.server_id)) && !held_out.tools.contains(toolbox.cluster(tool))
}

fn end(job: Job, dataset: &Dataset, sources: &Sources, held_out: &Assigned) -> Done<ExportRow> {
    let id = job.sample.id.to_string();
    let live = match job.live {
        Ok(live) => live,
        Err(reason) => return Done::none(Outcome::dropped(id, reason)),
    };
    let servers: Option<Vec<&ServerRecord>> = job.sample.server_ids.iter().map(|s| sources.servers.get(s)).collect();
    let (Some(servers), Some(split)) = (servers, job.split) else {
        return Done::none(Outcome::failed(id, "unknown-server", "a server of the sample is not in this run"));
    };
    let training = split == Split::Train || split == Split::SeenTool;
    let admit = |tool: &Tool| !training || admits(held_out, tool, &sources.toolbox);
    let Some(offered) = offered(&job.sample, dataset.candidates, &sources.toolbox, admit) else {
        return Done::none(Outcome::failed(id, "unknown-tool", "a tool of the sample is not in this run"));
    };
    if offered.is_empty() {
        // All that may stand beside what is withheld is held out.
        return Done::none(Outcome::dropped(id, "nothing-to-offer"));
    }
    let passed = sources.passed.get(&job.sample.id).filter(|t| t.ended == Ended::Answer);
    let mut verdicts = sources.verdicts.get(&id).cloned().unwrap_or_default();
    verdicts.extend(passed.and_then(|t| sources.verdicts.get(t.id.as_str())).cloned().unwrap_or_default());
    verdicts.sort_by(|a, b| (&a.subject_id, &a.filter).cmp(&(&b.subject_id, &b.filter)));
    let loss = loss(&job.sample, passed);
    let policy = sources.run.get(&job.sample.id).map(|run| run.policy.clone());
    let mut lineage = job.sample.lineage;
    lineage.extend(passed.iter().flat_map(|run| run.lineage.clone()));
    let row = ExportRow {
        id: job.sample.id,
        messages: passed.map_or(job.sample.messages, |t| t.messages.clone()),
        loss,
        tools: Value::Array(offered.into_iter().map(definition).collect()).to_string(),
        kind: job.sample.kind,
        language: job.sample.language,
        server: together(servers.iter().map(|s| s.name.as_str()), ExportRow::AND),
        server_version: if let [server] = servers[..] { server.version.clone() } else { None },
        tool_ids: job.sample.tool_ids,
        withheld: job.sample.withheld,
        licence: licence::all_of(servers.iter().filter_map(|s| s.licence.as_deref())),
        live: live.into(),
        policy,
        lineage,
        verdicts,
        split,
    };
    Done::kept(&id, vec![row])
}

/// What a row offers: the called tools among others; where no tool fits, others only.
fn offered<'a>(sample: &Sample, count: usize, toolbox: &'a Toolbox, admit: impl Fn(&Tool) -> bool) -> Option<Vec<&'a Tool>> {
    let key = sample.id.as_str();
    match sample.withheld.first() {
        Some(withheld) => Some(toolbox.without(toolbox.get(withheld)?, count, key, admit)),
        None => {
            let called: Vec<&Tool> = sample.tool_ids.iter().map(|id| toolbox.get(id)).collect::<Option<_>>()?;
            // A tool that is called twice is offered once.
            let mut distinct: Vec<&Tool> = Vec::new();
            called.into_iter().for_each(|tool| {
                if !distinct.iter().any(|other| other.id == tool.id) {
                    distinct.push(tool);
                }
            });
            (!distinct.is_empty()).then(|| toolbox.candidates(&distinct, count, key, admit))
        }
    }
}

/// Which turns are to be learned: the assistant's, but for those the run masked and for the call that a recovery
/// gets wrong.
fn loss(sample: &Sample, passed: Option<&Trajectory>) -> Vec<bool> {
    let messages = passed.map_or(&sample.messages, |run| &run.messages);
    let masked: &[u32] = passed.map_or(&[], |run| &run.masked);
    let wrong = messages.iter().position(|m| !m.tool_calls().is_empty()).filter(|_| sample.kind == SampleKind::Recover);
    let learned = |(at, message): (usize, &Message)| {
        let is_masked = u32::try_from(at).is_ok_and(|at| masked.contains(&at)) || wrong == Some(at);
        matches!(message, Message::Assistant { .. }) && !is_masked
    };
    messages.iter().enumerate().map(learned).collect()
}

/// Words joined, each once.
fn together<'a>(words: impl Iterator<Item = &'a str>, with: &str) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    words.for_each(|word| {
        if !distinct.contains(&word) {
            distinct.push(word);
        }
    });
    distinct.join(with)
}

/// A tool in OpenAI's shape; the schema is the server's own.
pub fn definition(tool: &Tool) -> Value {
    json!({
        "type": "function",
        "function": { "name": alias(&tool.name), "description": tool.description_text(), "parameters": tool.schema() },
    })
}

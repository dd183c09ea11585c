//! Export: survivors as rows that trainers load unchanged.

mod card;
mod dataset;
mod split;

pub use card::{CardCounts, CardError, render_card};
pub use dataset::{Dataset, DatasetError};
pub use split::{Shares, assign};

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    id::{ClusterId, SampleId, ServerId},
    naming::alias,
    record::{Ended, ExportRow, Judgement, Outcome, Row, Sample, ServerRecord, Split, Tool, Trajectory, Verdict},
    toolbox::Toolbox,
};
use serde::Serialize;
use serde_json::{Value, json};

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
    let jobs = sort_out(samples, dataset, sources);
    let splits: BTreeMap<SampleId, Split> = jobs.iter().filter_map(|j| Some((j.sample.id.clone(), j.split?))).collect();
    let held_out = HeldOut::of(&jobs, &splits, &sources.toolbox);
    let pace = Pace { concurrency: 1, max_failure_rate: 0.0 };
    drive(jobs, pace, cx, out, |job| {
        let done = end(job, dataset, sources, &held_out);
        async move { done }
    })
    .await
}

fn sort_out(samples: Vec<Sample>, dataset: &Dataset, sources: &Sources) -> Vec<Job> {
    let decided: Vec<(Sample, Result<&'static str, String>)> = samples
        .into_iter()
        .map(|sample| {
            let live = admit(&sample, dataset, sources);
            (sample, live)
        })
        .collect();
    let admitted: Vec<&Sample> = decided.iter().filter(|(_, live)| live.is_ok()).map(|(sample, _)| sample).collect();
    let mut splits = assign(&admitted, &sources.toolbox, &dataset.shares);
    decided.into_iter().map(|(sample, live)| Job { split: splits.remove(&sample.id), sample, live }).collect()
}

/// What came of the sample's live run, or why the dataset does not take it.
fn admit(sample: &Sample, dataset: &Dataset, sources: &Sources) -> Result<&'static str, String> {
    let server = sample.server_ids.first().and_then(|id| sources.servers.get(id));
    let licence = server.and_then(|s| s.licence.as_deref()).unwrap_or("unknown");
    if !dataset.licences.iter().any(|l| l == licence) {
        return Err(format!("licence: {licence}"));
    }
    let undecided = |id: &str| {
        let verdicts = sources.verdicts.get(id).map(Vec::as_slice).unwrap_or_default();
        verdicts.iter().find(|v| v.judgement == Judgement::Unjudged).map(|v| v.filter.clone())
    };
    if let Some(filter) = undecided(sample.id.as_str()).filter(|_| !dataset.allow_unjudged) {
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
    if dataset.live.iter().any(|l| l == live) { Ok(live) } else { Err(format!("live: {live}")) }
}

/// Servers and tools that training rows must not even offer.
struct HeldOut {
    /// By cluster: a near copy of a held-out server is that server, whether or not it has samples.
    servers: HashSet<ServerId>,
    /// By cluster: a copy of a held-out tool is that tool.
    tools: HashSet<ClusterId>,
}

impl HeldOut {
    fn of(jobs: &[Job], splits: &BTreeMap<SampleId, Split>, toolbox: &Toolbox) -> Self {
        let held = [Split::UnseenTool, Split::UnseenServer];
        let tools =
            jobs.iter().filter(|j| splits.get(&j.sample.id).is_some_and(|s| held.contains(s))).flat_map(|j| &j.sample.tool_ids);
        let far = jobs.iter().filter(|j| splits.get(&j.sample.id) == Some(&Split::UnseenServer));
        Self {
            servers: far.flat_map(|j| &j.sample.server_ids).map(|s| toolbox.server_cluster(s).clone()).collect(),
            tools: tools.filter_map(|id| toolbox.get(id)).map(|tool| toolbox.cluster(tool).clone()).collect(),
        }
    }

    fn admits(&self, tool: &Tool, toolbox: &Toolbox) -> bool {
        !self.servers.contains(toolbox.server_cluster(&tool.server_id)) && !self.tools.contains(toolbox.cluster(tool))
    }
}

fn end(job: Job, dataset: &Dataset, sources: &Sources, held_out: &HeldOut) -> Done<ExportRow> {
    let id = job.sample.id.to_string();
    let live = match job.live {
        Ok(live) => live,
        Err(reason) => return Done::none(Outcome::dropped(id, reason)),
    };
    let tool = job.sample.tool_ids.first().and_then(|t| sources.toolbox.get(t));
    let server = job.sample.server_ids.first().and_then(|s| sources.servers.get(s));
    let (Some(tool), Some(server), Some(split)) = (tool, server, job.split) else {
        return Done::none(Outcome::failed(id, "unknown-tool", "the sample's tool or server is not in this run"));
    };
    let training = split == Split::Train || split == Split::SeenTool;
    let offered =
        sources.toolbox.candidates(tool, dataset.candidates, &id, |t| !training || held_out.admits(t, &sources.toolbox));
    let passed = sources.passed.get(&job.sample.id).filter(|t| t.ended == Ended::Answer);
    let mut verdicts = sources.verdicts.get(&id).cloned().unwrap_or_default();
    verdicts.extend(passed.and_then(|t| sources.verdicts.get(t.id.as_str())).cloned().unwrap_or_default());
    verdicts.sort_by(|a, b| (&a.subject_id, &a.filter).cmp(&(&b.subject_id, &b.filter)));
    let row = ExportRow {
        id: job.sample.id,
        messages: passed.map_or(job.sample.messages, |t| t.messages.clone()),
        tools: Value::Array(offered.into_iter().map(definition).collect()).to_string(),
        kind: job.sample.kind,
        server: server.name.clone(),
        server_version: server.version.clone(),
        tool_ids: job.sample.tool_ids,
        licence: server.licence.clone(),
        live: live.into(),
        lineage: job.sample.lineage,
        verdicts,
        split,
    };
    Done::kept(&id, vec![row])
}

/// A tool in OpenAI's shape; the schema is the server's own.
pub fn definition(tool: &Tool) -> Value {
    json!({
        "type": "function",
        "function": { "name": alias(&tool.name), "description": tool.description_text(), "parameters": tool.schema() },
    })
}

//! Filter: which rows survive. A chain of steps judges and never acts; every row gets a verdict
//! from every step it met, and dropped rows are kept with their reasons.

mod chain;
mod embedding_similarity;
mod quality_score;
mod response_valid;
mod schema_valid;
mod tool_invocation;
mod turns;

pub use chain::{Chain, ChainError, Needs, Parts};
pub use response_valid::RESPONSE_VALID;
pub(crate) use response_valid::failing;

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    id::SampleId,
    naming::alias,
    record::{Ended, FunctionCall, Judgement, Message, Outcome, OutcomeKind, Row, Sample, SampleKind, Tool, Trajectory, Verdict},
};

use crate::ask::Meter;
use mcpmill_core::toolbox::Toolbox;

/// What a filter looks at.
pub struct Case<'a> {
    /// The row that is judged.
    pub subject: &'a str,
    /// The sample.
    pub sample: &'a Sample,
    /// The labelled tool: the first that is called, or the one that is withheld.
    pub tool: &'a Tool,
    /// All tools that are called, in order; none where no tool fits.
    pub called: &'a [&'a Tool],
    /// The sample's run, in chains after rollout.
    pub trajectory: Option<&'a Trajectory>,
}

/// One step of a chain.
#[async_trait]
pub trait Filter: Send + Sync {
    /// Its name in the chain.
    fn name(&self) -> &str;

    /// Judges one row. It cannot fail: what it could not decide is `unjudged`, with the cause.
    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict;

    /// Places in the conversation that its verdict leaves in and that are not to be learned from.
    fn masks(&self, _: &Verdict) -> Vec<u32> {
        Vec::new()
    }
}

/// A verdict in the making: which row, which filter.
struct Bench<'a> {
    subject: &'a str,
    filter: &'a str,
}

impl Bench<'_> {
    fn verdict(&self, judgement: Judgement, reason: impl Into<String>) -> Verdict {
        Verdict {
            subject_id: self.subject.to_owned(),
            filter: self.filter.to_owned(),
            judgement,
            reason: reason.into(),
            score: None,
            threshold: None,
            evidence: None,
        }
    }

    fn keep(&self, reason: impl Into<String>) -> Verdict {
        self.verdict(Judgement::Keep, reason)
    }

    fn drop(&self, reason: impl Into<String>) -> Verdict {
        self.verdict(Judgement::Drop, reason)
    }

    fn unjudged(&self, reason: impl Into<String>) -> Verdict {
        self.verdict(Judgement::Unjudged, reason)
    }
}

/// Runs samples through a chain.
///
/// # Errors
/// Interrupted, or a journal that fails. Judging itself cannot fail.
pub async fn filter_samples(
    samples: Vec<Sample>,
    chain: &Chain,
    toolbox: Arc<Toolbox>,
    pace: Pace,
    cx: &Context,
    out: &dyn Sink<Sample>,
) -> Result<Summary, StageError> {
    let toolbox = &toolbox;
    drive(samples, pace, cx, out, |sample| async move {
        let (Some(tool), Some(called)) = labelled(&sample, toolbox) else {
            return Done::none(Outcome::failed(
                sample.id.as_str(),
                "unknown-tool",
                "a tool of the sample is not among the harvested ones",
            ));
        };
        let subject = sample.id.to_string();
        let case = Case { subject: &subject, sample: &sample, tool, called: &called, trajectory: None };
        let judged = judge(chain, &case).await;
        done(sample, judged)
    })
    .await
}

/// Runs trajectories through a chain. Calls that were not run are passed on unjudged by it, as
/// skipped rows; what the chain thinks of the response is noted in the row.
///
/// # Errors
/// Interrupted, or a journal that fails.
pub async fn filter_trajectories(
    trajectories: Vec<Trajectory>,
    samples: &HashMap<SampleId, Sample>,
    chain: &Chain,
    toolbox: Arc<Toolbox>,
    pace: Pace,
    cx: &Context,
    out: &dyn Sink<Trajectory>,
) -> Result<Summary, StageError> {
    let toolbox = &toolbox;
    drive(trajectories, pace, cx, out, |mut trajectory| async move {
        let id = trajectory.id.to_string();
        if trajectory.ended == Ended::Refused {
            let reason = format!("not-run: {}", trajectory.policy.rule);
            trajectory.response_verdict = Some("refused".into());
            return Done { outcome: Outcome::skipped(id, reason), rows: vec![trajectory], verdicts: Vec::new() };
        }
        let sample = samples.get(&trajectory.sample_id);
        let tools = sample.map(|sample| labelled(sample, toolbox)).unwrap_or_default();
        let (Some(sample), (Some(tool), Some(called))) = (sample, tools) else {
            return Done::none(Outcome::failed(id, "unknown-sample", "the trajectory's sample or tool is not in this run"));
        };
        let judged = judge(chain, &Case { subject: &id, sample, tool, called: &called, trajectory: Some(&trajectory) }).await;
        // What went wrong first, else that all is well.
        let telling = judged.verdicts.iter().find(|v| v.judgement != Judgement::Keep).or(judged.verdicts.last());
        trajectory.response_verdict = telling.map(|v| v.reason.split(':').next().unwrap_or_default().to_owned());
        trajectory.masked.extend(&judged.masked);
        trajectory.masked.sort_unstable();
        trajectory.masked.dedup();
        done(trajectory, judged)
    })
    .await
}

/// The tool a sample is about first, and those it calls.
fn labelled<'a>(sample: &Sample, toolbox: &'a Toolbox) -> (Option<&'a Tool>, Option<Vec<&'a Tool>>) {
    let first = sample.about().next().and_then(|id| toolbox.get(id));
    (first, sample.tool_ids.iter().map(|id| toolbox.get(id)).collect())
}

impl Case<'_> {
    /// The calls to be learned, each with its tool by the name it was offered under; `None` for a name of no tool of
    /// the sample. What a recovery gets wrong first is none of them.
    fn calls(&self) -> Vec<(&FunctionCall, Option<&Tool>)> {
        let calls = self.sample.messages.iter().flat_map(Message::tool_calls);
        let skipped = usize::from(self.sample.kind == SampleKind::Recover);
        let tool = |name: &str| self.called.iter().find(|tool| alias(&tool.name) == name).copied();
        calls.skip(skipped).map(|call| (&call.function, tool(&call.function.name))).collect()
    }

    /// All that the user says, for what several turns state together.
    fn said(&self) -> String {
        let said = self.sample.messages.iter().filter_map(|message| match message {
            Message::User { content } => Some(content.as_str()),
            _ => None,
        });
        if self.sample.kind == SampleKind::Ask { said.collect::<Vec<_>>().join(" ") } else { self.sample.instruction.clone() }
    }
}

/// What a chain found.
#[derive(Default)]
struct Judged {
    verdicts: Vec<Verdict>,
    masked: Vec<u32>,
    meter: Meter,
}

/// Asks the steps in order until one drops the row.
async fn judge(chain: &Chain, case: &Case<'_>) -> Judged {
    let mut judged = Judged::default();
    for step in &chain.steps {
        let verdict = step.judge(case, &mut judged.meter).await;
        let dropped = verdict.judgement == Judgement::Drop;
        judged.masked.extend(step.masks(&verdict));
        judged.verdicts.push(verdict);
        if dropped {
            break;
        }
    }
    judged
}

/// The end of a judged row: dropped by a step, kept, or kept with steps that could not decide. A row
/// whose judge could not be asked at all has failed; more than a few of those end the stage unsealed.
fn done<T: Row>(row: T, Judged { verdicts, meter, .. }: Judged) -> Done<T> {
    let id = row.row_id().to_owned();
    let dropped = verdicts.iter().find(|v| v.judgement == Judgement::Drop);
    let undecided: Vec<&str> =
        verdicts.iter().filter(|v| v.judgement == Judgement::Unjudged).map(|v| v.filter.as_str()).collect();
    let outcome = match (dropped, &meter.unreachable) {
        (Some(verdict), _) => Outcome { cause: Some(verdict.reason.clone()), ..Outcome::dropped(id, verdict.filter.clone()) },
        (None, Some(cause)) => match meter.waits {
            Some(wait) => Outcome::waiting(id, wait, cause.clone()),
            None => Outcome::failed(id, "model-failed", cause.clone()),
        },
        (None, None) if undecided.is_empty() => Outcome::kept(id),
        (None, None) => Outcome { reason: format!("unjudged: {}", undecided.join(", ")), ..Outcome::kept(id) },
    };
    let rows = if outcome.outcome == OutcomeKind::Kept { vec![row] } else { Vec::new() };
    Done { outcome: meter.told(outcome), rows, verdicts }
}

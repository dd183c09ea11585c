//! Filter: which rows survive. A chain of steps judges and never acts; every row gets a verdict
//! from every step it met, and dropped rows are kept with their reasons.

mod calibrate;
mod chain;
mod command;
mod decontaminated;
mod duplicates;
mod embedding_similarity;
mod exam;
mod grounded;
mod injection;
mod language;
mod leaves;
mod placeholders;
mod private_data;
mod quality_score;
mod response_valid;
mod schema_valid;
mod tool_invocation;
mod tool_named;
mod turns;

pub use calibrate::{Calibration, Label, Marks, Pair, Pairs, Spread, Told};
pub use chain::{Chain, ChainError, Needs, Parts};
pub use command::Programs;
pub use decontaminated::HeldOut;
pub use embedding_similarity::{Bounds, Similarity};
pub use exam::{ExamRows, Plant, Taken, examine};
pub use quality_score::aspects;
pub(crate) use response_valid::failing;
pub use response_valid::{Half, JudgedResponse, LabelledResponse, LabelledResponses, McpResult, RESPONSE_VALID, ResponseMarks};

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    id::SampleId,
    naming::alias,
    record::{
        Ended, FunctionCall, Judgement, Message, Outcome, OutcomeKind, ResponseVerdict, Row, Sample, SampleKind, Tool,
        Trajectory, Verdict, Wait,
    },
};

use crate::ask::{Meter, seed_of};
use chain::{Placed, Worth};
use mcpmill_core::toolbox::Toolbox;
use serde_json::{Value, json};

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

    /// Whether it asks nobody and finds the same in every run: it is then judged first where others want to know which
    /// rows are left, and examined on all planted rows.
    fn is_free(&self) -> bool {
        false
    }

    /// Whether it wants to see all rows before the first is judged.
    fn sees_all(&self) -> bool {
        false
    }

    /// Looks at the rows that the free steps before it leave.
    async fn prepare(&self, _rows: &[&Case<'_>]) {}

    /// The faults that its exam plants, each of which it is to catch; none for a filter without an exam.
    fn plants(&self) -> Vec<Plant> {
        Vec::new()
    }

    /// Places in the conversation that its verdict leaves in and that are not to be learned from.
    fn masks(&self, _: &Verdict) -> Vec<u32> {
        Vec::new()
    }

    /// What its verdict says of the tool's answer, where it looks at answers.
    fn response(&self, _: &Verdict) -> Option<ResponseVerdict> {
        None
    }
}

/// What belongs to a model, by its name with or without the hash of its files (`name@hash`).
fn of_model<'a, T>(by_model: &'a BTreeMap<String, T>, model: &str) -> Option<&'a T> {
    let name = model.split('@').next().unwrap_or_default();
    by_model.get(model).or_else(|| by_model.get(name))
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
    if chain.sees_all() {
        let tools: Vec<_> = samples.iter().map(|sample| labelled(sample, toolbox)).collect();
        let known = samples.iter().zip(&tools);
        let cases = known.filter_map(|(sample, tools)| case(sample.id.as_str(), sample, tools, None)).collect();
        cx.cancel.run_until_cancelled(prepare(chain, cases)).await;
    }
    drive(samples, pace, cx, out, |sample| async move {
        let tools = labelled(&sample, toolbox);
        let Some(case) = case(sample.id.as_str(), &sample, &tools, None) else {
            return Done::none(Outcome::failed(
                sample.id.as_str(),
                "unknown-tool",
                "a tool of the sample is not among the harvested ones",
            ));
        };
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
    if chain.sees_all() {
        let run = trajectories.iter().filter(|trajectory| trajectory.ended != Ended::Refused);
        let known: Vec<_> = run.filter_map(|trajectory| Some((trajectory, samples.get(&trajectory.sample_id)?))).collect();
        let tools: Vec<_> = known.iter().map(|(_, sample)| labelled(sample, toolbox)).collect();
        let known = known.iter().zip(&tools);
        let cases = known.filter_map(|((run, sample), tools)| case(run.id.as_str(), sample, tools, Some(run))).collect();
        cx.cancel.run_until_cancelled(prepare(chain, cases)).await;
    }
    drive(trajectories, pace, cx, out, |mut trajectory| async move {
        let id = trajectory.id.to_string();
        if trajectory.ended == Ended::Refused {
            let reason = format!("not-run: {}", trajectory.policy.rule);
            trajectory.response_verdict = Some(ResponseVerdict::Refused);
            return Done { outcome: Outcome::skipped(id, reason), rows: vec![trajectory], verdicts: Vec::new() };
        }
        let sample = samples.get(&trajectory.sample_id);
        let tools = sample.map(|sample| labelled(sample, toolbox)).unwrap_or_default();
        let Some(case) = sample.and_then(|sample| case(&id, sample, &tools, Some(&trajectory))) else {
            return Done::none(Outcome::failed(id, "unknown-sample", "the trajectory's sample or tool is not in this run"));
        };
        let judged = judge(chain, &case).await;
        trajectory.response_verdict = judged.response;
        trajectory.masked.extend(&judged.masked);
        trajectory.masked.sort_unstable();
        trajectory.masked.dedup();
        done(trajectory, judged)
    })
    .await
}

/// The tool a sample is about first, and those it calls.
type Labelled<'a> = (Option<&'a Tool>, Option<Vec<&'a Tool>>);

fn labelled<'a>(sample: &Sample, toolbox: &'a Toolbox) -> Labelled<'a> {
    let first = sample.about().next().and_then(|id| toolbox.get(id));
    (first, sample.tool_ids.iter().map(|id| toolbox.get(id)).collect())
}

/// A row as filters see it; `None` where a tool of its is not known.
fn case<'a>(subject: &'a str, sample: &'a Sample, tools: &'a Labelled<'a>, run: Option<&'a Trajectory>) -> Option<Case<'a>> {
    let (Some(tool), Some(called)) = tools else { return None };
    Some(Case { subject, sample, tool, called, trajectory: run })
}

/// Shows all rows to the steps that want to see them: those that the free steps before leave.
async fn prepare(chain: &Chain, cases: Vec<Case<'_>>) {
    let mut left: Vec<&Case<'_>> = cases.iter().collect();
    let last = chain.steps.iter().rposition(|step| step.filter.sees_all());
    for step in chain.steps.iter().take(last.map_or(0, |last| last + 1)) {
        step.filter.prepare(&left).await;
        if step.filter.is_free() {
            let mut stay = Vec::with_capacity(left.len());
            for case in left {
                let verdict = step.filter.judge(case, &mut Meter::default()).await;
                if verdict.judgement != Judgement::Drop {
                    stay.push(case);
                }
            }
            left = stay;
        }
    }
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
    /// What was made of the tool's answer.
    response: Option<ResponseVerdict>,
    meter: Meter,
}

/// Asks the steps in order until one drops the row; all of them where the row is audited.
async fn judge(chain: &Chain, case: &Case<'_>) -> Judged {
    let mut judged = Judged::default();
    let audited = chain.audits(case.subject);
    let mut dropped = false;
    for step in &chain.steps {
        let mut meter = Meter::default();
        let verdict = chain.verdict(step, case, &mut meter).await;
        // What nobody needs keeps no row waiting, unless its answer comes with the others of a batch.
        let comes = meter.waits == Some(Wait::Batch);
        let unneeded = dropped && meter.unreachable.is_some() && !comes;
        judged.meter.add(meter, dropped && !comes);
        if unneeded {
            continue;
        }
        if !dropped {
            judged.masked.extend(step.filter.masks(&verdict));
            dropped = verdict.judgement == Judgement::Drop;
        }
        judged.response = judged.response.or_else(|| step.filter.response(&verdict));
        judged.verdicts.push(verdict);
        if dropped && !audited {
            break;
        }
    }
    judged
}

impl Chain {
    fn sees_all(&self) -> bool {
        self.steps.iter().any(|step| step.filter.sees_all())
    }

    /// Whether all steps judge this row, dropped or not: what each would do alone is counted on such rows.
    pub fn audits(&self, subject: &str) -> bool {
        is_audited(subject, self.audit)
    }

    async fn verdict(&self, step: &Placed, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let filter = step.filter.name();
        if let Some(verdict) = self.decided.get(&(case.subject.to_owned(), filter.to_owned())) {
            return verdict.clone();
        }
        match &step.worth {
            Worth::Trusted => step.filter.judge(case, meter).await,
            Worth::Nothing(why) => {
                let verdict = step.mute.judge(case, meter).await;
                let decided = !step.filter.is_free() && verdict.judgement != Judgement::Unjudged;
                let bench = Bench { subject: case.subject, filter };
                let failed = || Verdict {
                    evidence: Some(json!({ "exam": "failed" }).to_string()),
                    ..bench.unjudged(format!("unjudged: failed its exam: {why}"))
                };
                if decided { verdict } else { failed() }
            }
            // It is asked meanwhile, so that exam and rows need one batch and not two.
            Worth::Open(wait, cause) => {
                let verdict = step.filter.judge(case, meter).await;
                meter.unreachable.get_or_insert_with(|| cause.clone());
                meter.waits.get_or_insert(*wait);
                verdict
            }
        }
    }
}

/// Whether a row is unjudged because the filter failed its exam.
pub fn failed_exam(verdict: &Verdict) -> bool {
    let evidence = verdict.evidence.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    verdict.judgement == Judgement::Unjudged && evidence.is_some_and(|evidence| evidence["exam"] == "failed")
}

/// Whether a row is among the share that every step judges: the same rows in every run.
pub fn is_audited(subject: &str, share: f64) -> bool {
    (seed_of(&format!("audit\n{subject}")) % 10_000) as f64 + 0.5 < share * 10_000.0
}

/// The end of a judged row: dropped by a step, kept, or kept with steps that could not decide. A judge that cannot be
/// asked leaves the row unjudged; one whose answer is still to come, or to be paid, keeps it waiting.
fn done<T: Row>(row: T, Judged { verdicts, meter, .. }: Judged) -> Done<T> {
    let id = row.row_id().to_owned();
    let dropped = verdicts.iter().find(|v| v.judgement == Judgement::Drop);
    let undecided: Vec<&str> =
        verdicts.iter().filter(|v| v.judgement == Judgement::Unjudged).map(|v| v.filter.as_str()).collect();
    let outcome = match (dropped, meter.waits.filter(|wait| *wait != Wait::Model)) {
        (_, Some(wait @ Wait::Batch)) => Outcome::waiting(id, wait, meter.unreachable.clone().unwrap_or_default()),
        (Some(verdict), _) => Outcome { cause: Some(verdict.reason.clone()), ..Outcome::dropped(id, verdict.filter.clone()) },
        (None, Some(wait)) => Outcome::waiting(id, wait, meter.unreachable.clone().unwrap_or_default()),
        (None, None) if undecided.is_empty() => Outcome::kept(id),
        (None, None) => {
            let reason = format!("unjudged: {}", undecided.join(", "));
            Outcome { reason, cause: meter.unreachable.clone(), ..Outcome::kept(id) }
        }
    };
    let rows = if outcome.outcome == OutcomeKind::Kept { vec![row] } else { Vec::new() };
    Done { outcome: meter.told(outcome), rows, verdicts }
}

//! The row driver: every stage's loop. It skips rows that are done, bounds concurrency, stops
//! cleanly, writes each row's end before it counts it, and stops early when too many fail.

use std::{collections::HashMap, future::Future, sync::Arc, time::Instant};

use futures::{StreamExt, stream::FuturesUnordered};
use serde::Serialize;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::{
    account::Reached,
    canonical::content_hash,
    edge::Recorder,
    event::{Event, Events, Summary},
    record::{Outcome, OutcomeKind, Row, Verdict, Wait},
};

/// Failures after which a stage whose failures are too many so far gives up before its end.
const EARLY: u64 = 20;
/// Rows in a row that all wait for a model, after which no more are begun: none of the rest seems to need another.
const IN_VAIN: u64 = 1000;

/// What a stage has of the world besides its rows and settings.
#[derive(Clone)]
pub struct Context {
    /// The folder name of the stage that runs.
    pub stage: String,
    /// Where happenings go.
    pub events: Events,
    /// Set on Ctrl-C: no new row starts, rows in flight are let go.
    pub cancel: CancellationToken,
    /// How replies from outside are kept.
    pub recorder: Arc<Recorder>,
}

/// What the driver may do at once and when it gives up.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Rows in flight.
    pub concurrency: usize,
    /// Share of the rows that are tried that may fail, 0 to 1.
    pub max_failure_rate: f64,
}

/// The end of a row: its outcome, and what it brought.
#[derive(Clone, Debug, PartialEq)]
pub struct Done<O> {
    /// What became of the input row.
    pub outcome: Outcome,
    /// Rows for the next stage.
    pub rows: Vec<O>,
    /// Verdicts that were given on the way.
    pub verdicts: Vec<Verdict>,
}

impl<O> Done<O> {
    /// An end without rows.
    pub fn none(outcome: Outcome) -> Self {
        Self { outcome, rows: Vec::new(), verdicts: Vec::new() }
    }

    /// A row that went on as `rows`.
    pub fn kept(input_id: &str, rows: Vec<O>) -> Self {
        Self { outcome: Outcome::kept(input_id), rows, verdicts: Vec::new() }
    }
}

/// Where ended rows go. On return of `accept` the row survives a kill of the process.
pub trait Sink<O>: Send + Sync {
    /// The outcome this input was given by an earlier attempt, with the number of rows it brought.
    fn seen(&self, input_hash: &str) -> Option<(Outcome, u64)>;

    /// Keeps the end of a row.
    ///
    /// # Errors
    /// The journal cannot be written.
    fn accept(&self, input_hash: &str, done: Done<O>) -> Result<(), SinkError>;
}

/// The end of a row could not be kept.
#[derive(Debug, Error)]
#[error("failed to keep a row: {0}")]
pub struct SinkError(pub String);

/// A stage cannot go on.
#[derive(Debug, Error)]
pub enum StageError {
    /// Stopped from outside; what was done is kept.
    #[error("interrupted")]
    Interrupted,
    /// The run may use no more; what was done is kept.
    #[error("`{stage}` stopped after {done} of {rows} rows: {reached}")]
    Budget {
        /// The stage.
        stage: String,
        /// Rows with an outcome.
        done: u64,
        /// Rows of the stage.
        rows: u64,
        /// The cap.
        reached: Reached,
    },
    /// Rows wait for a model that is down or turns calls away; what was done is kept.
    #[error("`{stage}` stopped after {done} of {rows} rows, the others wait: {cause}")]
    Unreachable {
        /// The stage.
        stage: String,
        /// Rows with an outcome.
        done: u64,
        /// Rows of the stage.
        rows: u64,
        /// Which model, and what is wrong with it.
        cause: String,
    },
    /// The exchange store fails; what was done is kept.
    #[error("`{stage}` stopped after {done} of {rows} rows: {cause}")]
    Store {
        /// The stage.
        stage: String,
        /// Rows with an outcome.
        done: u64,
        /// Rows of the stage.
        rows: u64,
        /// What the store said.
        cause: String,
    },
    /// Rows wait for answers that are still to come; what was done is kept.
    #[error("{waiting} of {rows} rows of `{stage}` wait: {cause}")]
    Waiting {
        /// The stage.
        stage: String,
        /// Rows without an outcome.
        waiting: u64,
        /// Rows of the stage.
        rows: u64,
        /// What the first of them waits for.
        cause: String,
    },
    /// More rows failed than the settings allow.
    #[error("{failed} of {rows} rows failed in `{stage}`, more than {allowed:.0} % allowed; {count} times: {reason}: {cause}{}", raw_replies(.raw))]
    TooManyFailures {
        /// The stage.
        stage: String,
        /// Rows that failed.
        failed: u64,
        /// Rows of the stage.
        rows: u64,
        /// Per cent allowed.
        allowed: f64,
        /// How often the commonest cause occurred.
        count: u64,
        /// Its reason.
        reason: String,
        /// One of its causes in words.
        cause: String,
        /// Up to three raw replies.
        raw: Vec<String>,
    },
    /// The input cannot be read.
    #[error("failed to read the rows of `{stage}`: {detail}")]
    Input {
        /// The stage.
        stage: String,
        /// Why.
        detail: String,
    },
    /// The stage has nothing to work on.
    #[error("`{stage}` has nothing to work on: {detail}")]
    Empty {
        /// The stage.
        stage: String,
        /// Why.
        detail: String,
    },
    /// A declaration does not fit the rows.
    #[error("failed to set up `{stage}`: {detail}")]
    Settings {
        /// The stage.
        stage: String,
        /// What is wrong.
        detail: String,
    },
    /// The journal failed.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

fn raw_replies(raw: &[String]) -> String {
    raw.iter().map(|reply| format!("\n  raw reply: {}", crate::text::shown(reply, 300))).collect()
}

/// Works on every row of `inputs` that has no outcome yet and returns the sums over all of them.
///
/// `work` turns one row into its end and cannot fail: a failure is an outcome. Rows end in any
/// order; nothing in a stage may depend on it. The hash of an input is over the whole row, so a row
/// that changed is worked on again.
///
/// # Errors
/// Interrupted, too many failures, rows that wait, or a store or journal that cannot be written. All rows that ended
/// before are kept.
pub async fn drive<I, O, F, Fut>(
    inputs: Vec<I>,
    pace: Pace,
    cx: &Context,
    out: &dyn Sink<O>,
    work: F,
) -> Result<Summary, StageError>
where
    I: Row + Serialize,
    O: Send,
    F: Fn(I) -> Fut + Sync,
    Fut: Future<Output = Done<O>> + Send,
{
    let rows = inputs.len();
    let mut so_far = SoFar::default();
    let mut waiting = Vec::new();
    for input in inputs {
        let hash = content_hash(&input);
        if so_far.is_new(&hash, out) {
            waiting.push((hash, input));
        }
    }
    work_off(rows, waiting.into_iter(), so_far, pace, cx, out, work).await
}

/// As [`drive`], for rows that are too many for memory: `row` makes the one of each place from 0 to `rows`, and is
/// asked for it twice. Kept in memory are four bytes a row.
///
/// # Errors
/// As those of [`drive`].
pub async fn drive_each<I, O, R, F, Fut>(
    rows: usize,
    row: R,
    pace: Pace,
    cx: &Context,
    out: &dyn Sink<O>,
    work: F,
) -> Result<Summary, StageError>
where
    I: Row + Serialize,
    O: Send,
    R: Fn(usize) -> I,
    F: Fn(I) -> Fut + Sync,
    Fut: Future<Output = Done<O>> + Send,
{
    let mut so_far = SoFar::default();
    let waiting: Vec<u32> = (0..rows as u32).filter(|&place| so_far.is_new(&content_hash(&row(place as usize)), out)).collect();
    let waiting = waiting.into_iter().map(|place| {
        let input = row(place as usize);
        (content_hash(&input), input)
    });
    work_off(rows, waiting, so_far, pace, cx, out, work).await
}

/// What the rows came to so far.
#[derive(Default)]
struct SoFar {
    summary: Summary,
    failures: Failures,
}

impl SoFar {
    /// Whether a row has not ended yet; one that has is counted.
    fn is_new<O>(&mut self, hash: &str, out: &dyn Sink<O>) -> bool {
        let Some((outcome, brought)) = out.seen(hash) else { return true };
        self.summary.count(&outcome, brought);
        self.failures.note(&outcome);
        false
    }
}

/// Works on every row that waits.
async fn work_off<I, O, F, Fut>(
    rows: usize,
    mut waiting: impl Iterator<Item = (String, I)>,
    so_far: SoFar,
    pace: Pace,
    cx: &Context,
    out: &dyn Sink<O>,
    work: F,
) -> Result<Summary, StageError>
where
    O: Send,
    F: Fn(I) -> Fut + Sync,
    Fut: Future<Output = Done<O>> + Send,
{
    let rows = rows as u64;
    let SoFar { mut summary, mut failures } = so_far;
    cx.events.emit(Event::StageStarted { stage: cx.stage.clone(), rows, done: summary.input_rows, used: summary.usage });
    let mut flying = FuturesUnordered::new();
    let mut waits = Waits::default();
    loop {
        while flying.len() < pace.concurrency.max(1) && goes_on(cx, &waits) {
            let Some((hash, input)) = waiting.next() else { break };
            let started = Instant::now();
            let ending = work(input);
            flying.push(async move { (hash, started, ending.await) });
        }
        let ended = tokio::select! {
            biased;
            () = cx.cancel.cancelled() => return Err(StageError::Interrupted),
            ended = flying.next() => ended,
        };
        let Some((hash, started, mut done)) = ended else { break };
        done.outcome.seconds = started.elapsed().as_secs_f64();
        let lost = done.outcome.outcome == OutcomeKind::Failed && cx.recorder.broken().is_some();
        if lost || done.outcome.outcome == OutcomeKind::Waiting {
            waits.note(done.outcome);
            continue;
        }
        waits.in_vain = 0;
        let outcome = done.outcome.clone();
        let brought = done.rows.len() as u64;
        out.accept(&hash, done)?;
        summary.count(&outcome, brought);
        failures.note(&outcome);
        cx.events.emit(Event::Row { stage: cx.stage.clone(), outcome });
        // What fails for all rows is noticed after some twenty of them.
        if summary.failed > EARLY && too_many(&summary, waits.rows, pace) {
            return Err(failures.error(cx, &summary, rows, pace));
        }
    }
    if summary.input_rows < rows
        && let Some(error) = waits.error(cx, summary.input_rows, rows)
    {
        return Err(error);
    }
    // The share is of the rows that ended: while others wait it is not known.
    if too_many(&summary, 0, pace) { Err(failures.error(cx, &summary, rows, pace)) } else { Ok(summary) }
}

/// Whether more rows may begin.
fn goes_on(cx: &Context, waits: &Waits) -> bool {
    cx.recorder.exhausted().is_none() && cx.recorder.broken().is_none() && waits.in_vain < IN_VAIN
}

/// Rows that have no end yet.
#[derive(Default)]
struct Waits {
    rows: u64,
    /// What the first of them waits for.
    cause: String,
    /// What the first of them says that waits for a model.
    model: Option<String>,
    /// Rows that waited for a model since the last one that ended.
    in_vain: u64,
}

impl Waits {
    fn note(&mut self, outcome: Outcome) {
        let cause = outcome.cause.unwrap_or_default();
        if outcome.wait == Some(Wait::Model) {
            self.in_vain += 1;
            self.model.get_or_insert_with(|| cause.clone());
        }
        if self.rows == 0 {
            self.cause = cause;
        }
        self.rows += 1;
    }

    /// Why rows have no end, the least passing cause first.
    fn error(self, cx: &Context, done: u64, rows: u64) -> Option<StageError> {
        let stage = cx.stage.clone();
        if let Some(cause) = cx.recorder.broken() {
            return Some(StageError::Store { stage, done, rows, cause });
        }
        if let Some(reached) = cx.recorder.exhausted() {
            return Some(StageError::Budget { stage, done, rows, reached });
        }
        match self {
            Self { model: Some(cause), .. } => Some(StageError::Unreachable { stage, done, rows, cause }),
            Self { rows: 0, .. } => None,
            Self { rows: waiting, cause, .. } => Some(StageError::Waiting { stage, waiting, rows, cause }),
        }
    }
}

/// Whether more of the rows that were tried failed than may; `waiting` ones were tried too, and have not failed.
fn too_many(summary: &Summary, waiting: u64, pace: Pace) -> bool {
    let tried = summary.input_rows - summary.skipped + waiting;
    summary.failed as f64 > pace.max_failure_rate * tried as f64
}

/// Counts causes, so that a stage that gives up can name the commonest.
#[derive(Default)]
struct Failures {
    by_reason: HashMap<String, (u64, String, Vec<String>)>,
}

impl Failures {
    fn note(&mut self, outcome: &Outcome) {
        if outcome.outcome != OutcomeKind::Failed {
            return;
        }
        let entry = self.by_reason.entry(outcome.reason.clone()).or_default();
        entry.0 += 1;
        if entry.1.is_empty() {
            entry.1 = outcome.cause.clone().unwrap_or_default();
        }
        if let Some(raw) = outcome.raw.as_ref().filter(|_| entry.2.len() < 3) {
            entry.2.push(raw.clone());
        }
    }

    fn error(self, cx: &Context, summary: &Summary, rows: u64, pace: Pace) -> StageError {
        let commonest = self.by_reason.into_iter().max_by(|a, b| a.1.0.cmp(&b.1.0).then(b.0.cmp(&a.0)));
        let (reason, (count, cause, raw)) = commonest.unwrap_or_default();
        StageError::TooManyFailures {
            stage: cx.stage.clone(),
            failed: summary.failed,
            rows,
            allowed: pace.max_failure_rate * 100.0,
            count,
            reason,
            cause,
            raw,
        }
    }
}

#[cfg(test)]
mod tests;

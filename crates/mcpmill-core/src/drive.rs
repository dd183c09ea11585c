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
    record::{Outcome, OutcomeKind, Row, Verdict},
};

/// Failures after which a stage whose failures are too many so far gives up before its end.
const EARLY: u64 = 20;

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
/// Interrupted, too many failures, or a journal that cannot be written. All rows that ended before
/// are kept.
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
        while flying.len() < pace.concurrency.max(1) && cx.recorder.exhausted().is_none() {
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
        if done.outcome.outcome == OutcomeKind::Waiting {
            waits.note(done.outcome);
            continue;
        }
        let outcome = done.outcome.clone();
        let brought = done.rows.len() as u64;
        out.accept(&hash, done)?;
        summary.count(&outcome, brought);
        failures.note(&outcome);
        cx.events.emit(Event::Row { stage: cx.stage.clone(), outcome });
        // A dead provider is noticed after some twenty rows, not after all of them.
        if summary.failed > EARLY && too_many(&summary, pace) {
            return Err(failures.error(cx, &summary, rows, pace));
        }
    }
    if summary.input_rows < rows
        && let Some(reached) = cx.recorder.exhausted()
    {
        return Err(StageError::Budget { stage: cx.stage.clone(), done: summary.input_rows, rows, reached });
    }
    if too_many(&summary, pace) {
        return Err(failures.error(cx, &summary, rows, pace));
    }
    match waits {
        Waits { rows: 0, .. } => Ok(summary),
        Waits { rows: waiting, cause } => Err(StageError::Waiting { stage: cx.stage.clone(), waiting, rows, cause }),
    }
}

/// Rows that have no end yet.
#[derive(Default)]
struct Waits {
    rows: u64,
    cause: String,
}

impl Waits {
    fn note(&mut self, outcome: Outcome) {
        if self.rows == 0 {
            self.cause = outcome.cause.unwrap_or_default();
        }
        self.rows += 1;
    }
}

/// Whether more of the rows that were tried failed than may.
fn too_many(summary: &Summary, pace: Pace) -> bool {
    let tried = summary.input_rows - summary.skipped;
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
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;
    use crate::{
        account::{Budget, Caps},
        edge::{Mode, exchange::tests::Memory},
        record::Usage,
    };

    #[derive(Serialize)]
    struct Number(String);

    impl Row for Number {
        fn row_id(&self) -> &str {
            &self.0
        }
    }

    #[derive(Default)]
    struct Kept(Mutex<HashMap<String, Outcome>>);

    impl Sink<u8> for Kept {
        fn seen(&self, hash: &str) -> Option<(Outcome, u64)> {
            self.0.lock().unwrap().get(hash).map(|o| (o.clone(), 0))
        }
        fn accept(&self, hash: &str, done: Done<u8>) -> Result<(), SinkError> {
            self.0.lock().unwrap().insert(hash.to_owned(), done.outcome);
            Ok(())
        }
    }

    fn numbers(count: usize) -> Vec<Number> {
        (0..count).map(|i| Number(format!("row_{i}"))).collect()
    }

    fn context() -> Context {
        let recorder = Arc::new(Recorder::new(Arc::new(Memory::default()), Mode::Reuse));
        Context { stage: "3-generate".into(), events: Events::channel().0, cancel: CancellationToken::new(), recorder }
    }

    const PACE: Pace = Pace { concurrency: 4, max_failure_rate: 0.5 };

    #[tokio::test]
    async fn a_dead_provider_is_noticed_after_some_twenty_rows() {
        let asked = AtomicU64::new(0);
        let out = Kept::default();
        let error = drive(numbers(5000), PACE, &context(), &out, |n| {
            asked.fetch_add(1, Ordering::SeqCst);
            async move { Done::<u8>::none(Outcome::failed(n.0, "model-failed", "it is down")) }
        })
        .await
        .unwrap_err();
        assert!(asked.load(Ordering::SeqCst) < 30, "{} rows were tried", asked.load(Ordering::SeqCst));
        assert!(error.to_string().contains("model-failed: it is down"), "{error}");
    }

    #[tokio::test]
    async fn rows_that_were_not_tried_do_not_hide_failures() {
        let out = Kept::default();
        let end = |n: Number| async move {
            let failed = n.0.ends_with('7');
            Done::<u8>::none(if failed { Outcome::failed(n.0, "f", "c") } else { Outcome::skipped(n.0, "s") })
        };
        assert!(matches!(
            drive(numbers(20), PACE, &context(), &out, end).await,
            Err(StageError::TooManyFailures { failed: 2, .. })
        ));
    }

    #[tokio::test]
    async fn rows_that_ended_before_are_counted_and_not_done_again() {
        let (cx, out) = (context(), Kept::default());
        let work = |n: Number| async move { Done::<u8>::kept(&n.0, vec![]) };
        drive(numbers(3), PACE, &cx, &out, work).await.unwrap();
        let again = AtomicU64::new(0);
        let summary = drive(numbers(5), PACE, &cx, &out, |n| {
            again.fetch_add(1, Ordering::SeqCst);
            work(n)
        })
        .await
        .unwrap();
        assert_eq!((summary.input_rows, summary.kept, again.into_inner()), (5, 5, 2));
    }

    #[tokio::test]
    async fn rows_that_wait_have_no_end_and_are_taken_up_again() {
        let (cx, out) = (context(), Kept::default());
        let waits = |n: Number| async move {
            let odd = n.0.ends_with(['1', '3']);
            if odd { Done::<u8>::none(Outcome::waiting(n.0, "a batch")) } else { Done::kept(&n.0, vec![]) }
        };
        let error = drive(numbers(5), PACE, &cx, &out, waits).await.unwrap_err();
        assert!(matches!(error, StageError::Waiting { waiting: 2, rows: 5, ref cause, .. } if cause == "a batch"), "{error}");
        let summary = drive(numbers(5), PACE, &cx, &out, |n| async move { Done::<u8>::kept(&n.0, vec![]) }).await.unwrap();
        assert_eq!((summary.input_rows, summary.kept), (5, 5));
    }

    #[tokio::test]
    async fn a_budget_that_is_used_up_starts_no_more_rows() {
        let caps = Caps { tokens: Some(10), ..Caps::default() };
        let budget = Budget::new(caps, Usage::default());
        let recorder = Recorder::new(Arc::new(Memory::default()), Mode::Reuse).with_budget(Arc::clone(&budget));
        let (cx, out) = (Context { recorder: Arc::new(recorder), ..context() }, Kept::default());
        let started = AtomicU64::new(0);
        let used = Usage { output_tokens: 4, ..Usage::default() };
        let error = drive(numbers(50), PACE, &cx, &out, |n| {
            started.fetch_add(1, Ordering::SeqCst);
            let budget = &budget;
            async move {
                match budget.reserve(used).await {
                    Ok(reserved) => reserved.settle(used),
                    Err(reached) => return Done::<u8>::none(Outcome::waiting(n.0, reached.to_string())),
                }
                Done::kept(&n.0, vec![])
            }
        })
        .await
        .unwrap_err();
        assert!(matches!(error, StageError::Budget { done: 2, rows: 50, .. }), "{error}");
        assert!(started.into_inner() <= 2 + PACE.concurrency as u64 && out.0.into_inner().unwrap().len() == 2);
    }

    #[tokio::test]
    async fn cancelling_keeps_what_has_ended() {
        let (cx, out) = (context(), Kept::default());
        let pace = Pace { concurrency: 1, ..PACE };
        let ended = drive(numbers(9), pace, &cx, &out, |n| {
            let cancel = cx.cancel.clone();
            async move {
                if n.0 == "row_4" {
                    cancel.cancel();
                    std::future::pending::<()>().await;
                }
                Done::<u8>::kept(&n.0, vec![])
            }
        })
        .await;
        assert!(matches!(ended, Err(StageError::Interrupted)));
        assert_eq!(out.0.into_inner().unwrap().len(), 4);
    }
}

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use super::*;
use crate::{
    account::{Budget, Caps},
    edge::{Mode, StoreError, exchange::tests::Memory},
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
    assert!(matches!(drive(numbers(20), PACE, &context(), &out, end).await, Err(StageError::TooManyFailures { failed: 2, .. })));
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
        if odd { Done::<u8>::none(Outcome::waiting(n.0, Wait::Batch, "a batch")) } else { Done::kept(&n.0, vec![]) }
    };
    let error = drive(numbers(5), PACE, &cx, &out, waits).await.unwrap_err();
    assert!(matches!(error, StageError::Waiting { waiting: 2, rows: 5, ref cause, .. } if cause == "a batch"), "{error}");
    let summary = drive(numbers(5), PACE, &cx, &out, |n| async move { Done::<u8>::kept(&n.0, vec![]) }).await.unwrap();
    assert_eq!((summary.input_rows, summary.kept), (5, 5));
}

#[tokio::test]
async fn a_row_that_failed_beside_rows_that_wait_is_no_share_of_all() {
    let (cx, out) = (context(), Kept::default());
    let end = |n: Number| async move {
        Done::<u8>::none(if n.0 == "row_0" {
            Outcome::failed(n.0, "f", "c")
        } else {
            Outcome::waiting(n.0, Wait::Batch, "a batch")
        })
    };
    let error = drive(numbers(30), PACE, &cx, &out, end).await.unwrap_err();
    assert!(matches!(error, StageError::Waiting { waiting: 29, rows: 30, .. }), "{error}");
}

#[tokio::test]
async fn rows_that_need_another_model_go_on_and_no_row_is_lost() {
    let (cx, out) = (context(), Kept::default());
    let end = |n: Number| async move {
        let dead = n.0.ends_with(['2', '7']);
        if dead { Done::<u8>::none(Outcome::waiting(n.0, Wait::Model, "`m` is down")) } else { Done::kept(&n.0, vec![]) }
    };
    let error = drive(numbers(50), PACE, &cx, &out, end).await.unwrap_err();
    assert!(matches!(error, StageError::Unreachable { done: 40, rows: 50, .. }) && error.to_string().contains("`m` is down"));
    let summary = drive(numbers(50), PACE, &cx, &out, |n| async move { Done::<u8>::kept(&n.0, vec![]) }).await.unwrap();
    assert_eq!(summary.kept, 50);
}

#[tokio::test]
async fn a_model_that_no_row_can_do_without_is_not_asked_for_all_of_them() {
    let (cx, out, tried) = (context(), Kept::default(), AtomicU64::new(0));
    let error = drive(numbers(5000), PACE, &cx, &out, |n| {
        tried.fetch_add(1, Ordering::SeqCst);
        async move { Done::<u8>::none(Outcome::waiting(n.0, Wait::Model, "`m` is down")) }
    })
    .await
    .unwrap_err();
    assert!(matches!(error, StageError::Unreachable { done: 0, rows: 5000, .. }), "{error}");
    assert!((IN_VAIN..IN_VAIN + 10).contains(&tried.into_inner()));
}

#[tokio::test]
async fn a_store_that_fails_ends_the_stage_and_seals_no_row_for_it() {
    let (cx, out) = (context(), Kept::default());
    let error = drive(numbers(50), PACE, &cx, &out, |n| {
        if n.0 == "row_10" {
            cx.recorder.breaks(&StoreError("database is locked".into()));
        }
        async move {
            let lost = n.0 == "row_10";
            if lost { Done::<u8>::none(Outcome::failed(n.0, "model-failed", "the store")) } else { Done::kept(&n.0, vec![]) }
        }
    })
    .await
    .unwrap_err();
    assert!(matches!(error, StageError::Store { rows: 50, .. }) && error.to_string().contains("database is locked"), "{error}");
    let ended = out.0.into_inner().unwrap();
    assert!((10..15).contains(&ended.len()) && ended.values().all(|end| end.outcome == OutcomeKind::Kept), "{}", ended.len());
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
                Err(reached) => return Done::<u8>::none(Outcome::waiting(n.0, Wait::Budget, reached.to_string())),
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

//! Exams of the filters, and rows that are judged again.

use std::sync::{Arc, OnceLock};

use mcpmill_core::{
    drive::Pace,
    edge::Mode,
    record::{Exam, ExamEnd, Judgement, Outcome, OutcomeKind, Verdict},
    toolbox::Toolbox,
};
use mcpmill_pipeline::filter::{Chain, ExamRows, Taken, examine};
use mcpmill_store::{
    exchanges::SqliteExchanges,
    run_dir::{StageInfo, stage_info},
};

use super::Line;
use crate::{
    error::{Exit, Failure},
    stage::Stage,
};

/// The rows that exams are made of.
pub const PLANTED: &str = "filters/exams/planted.jsonl";

/// The exams of the default model and prompts, as they were taken: whoever uses these need not ask again.
const SHIPPED: &[u8] = include_bytes!("../../exams.jsonl.zst");

/// What an earlier pass over a stage left.
#[derive(Default)]
pub(super) struct Before {
    verdicts: Vec<Verdict>,
    /// How often rows were judged again, this time included.
    rejudged: u32,
}

fn unexpected(error: &dyn std::error::Error) -> Failure {
    Failure::from_error(Exit::Unexpected, error)
}

impl Line {
    /// With `--rejudge`, makes a finished stage anew from the verdicts that decided something.
    pub(super) fn rejudging(&self, stage: Stage, fingerprint: &str) -> Result<Before, Failure> {
        let folder = self.run.path().join(stage.folder());
        let info = if self.rejudge { stage_info(&folder).map_err(|e| unexpected(&e))? } else { None };
        let Some(info) = info.filter(|info| info.fingerprint == fingerprint) else { return Ok(Before::default()) };
        let verdicts = self.input::<Verdict>(stage)?;
        let asking = Chain::asking(self.declarations.chain(self.chain_of(stage))?);
        let open = |verdict: &Verdict| verdict.judgement == Judgement::Unjudged && asking.contains(&verdict.filter);
        if !verdicts.iter().any(open) {
            self.events.note(format!("{stage}: every row was judged that can be, there is nothing to judge again"));
            return Ok(Before::default());
        }
        self.run.set_aside(stage.folder()).map_err(|e| unexpected(&e))?;
        Ok(Before { verdicts, rejudged: info.rejudged + 1 })
    }

    /// The chain of a stage, as far as its exams let it be trusted; what they came to is put into `exams`.
    pub(super) async fn examined(
        &self,
        stage: Stage,
        toolbox: &Arc<Toolbox>,
        before: &Before,
        pace: Pace,
        exams: &OnceLock<Vec<Exam>>,
    ) -> Result<Chain, Failure> {
        let id = self.chain_of(stage);
        let chain = self.chain(id, toolbox, 1 + before.rejudged).await?.with_decided(before.verdicts.clone());
        let taken = self.take_exams(id, pace).await?;
        let chain = chain.heeding(&taken);
        let _ = exams.set(taken.into_iter().map(|taken| taken.exam).collect());
        Ok(chain)
    }

    async fn take_exams(&self, id: &str, pace: Pace) -> Result<Vec<Taken>, Failure> {
        let rows = exam_rows(&self.declarations)?;
        self.take_in_shipped()?;
        let chain = self.chain(id, &rows.toolbox(), 1).await?;
        self.events
            .note(format!("filters/{id}: every step is examined on planted rows; what was asked before is not asked again"));
        Ok(Box::pin(examine(&chain, &rows, pace.concurrency)).await)
    }

    /// Puts the shipped exchanges into the store.
    fn take_in_shipped(&self) -> Result<(), Failure> {
        let store = &self.config.exchange_store;
        if self.config.mode != Mode::Reuse || store.extension().is_some_and(|ending| ending == "zst") {
            return Ok(());
        }
        let store = SqliteExchanges::open(store, self.run.info().store_id()).map_err(|e| unexpected(&e))?;
        store.take_in_shipped("exams.jsonl.zst", SHIPPED).map(drop).map_err(|e| unexpected(&e))
    }

    /// Notes in `stage.json` how the filters did, and says it.
    pub(super) async fn tell_exams(
        &self,
        stage: Stage,
        info: StageInfo,
        exams: Option<Vec<Exam>>,
        before: &Before,
    ) -> Result<StageInfo, Failure> {
        if info.exams.is_some() {
            return Ok(info);
        }
        // The stage was finished before a kill, and its exams were not noted: they are asked from the store.
        let exams = match exams {
            Some(exams) => exams,
            None => {
                let taken = self.take_exams(self.chain_of(stage), self.filter_pace(self.chain_of(stage))?);
                taken.await?.into_iter().map(|taken| taken.exam).collect()
            }
        };
        for exam in exams.iter().filter(|exam| exam.end != ExamEnd::Passed) {
            let cause = exam.cause.as_deref().unwrap_or_default();
            self.events.note(match exam.end {
                ExamEnd::Failed => format!("{stage}: {} FAILED its exam, its rows stay unjudged: {cause}", exam.filter),
                _ => format!("{stage}: the exam of {} could not be taken: {cause}", exam.filter),
            });
        }
        let audit = Chain::audit_of(self.declarations.chain(self.chain_of(stage))?);
        info.examine(&self.run.path().join(stage.folder()), exams, audit, before.rejudged).map_err(|e| unexpected(&e))
    }

    /// Whether the filters of these stages can be relied on.
    ///
    /// # Errors
    /// One failed its exam and the chain does not tolerate that, or more rows could not be judged because a model could
    /// not be asked than may fail.
    pub fn judged_well(&self, stages: impl Iterator<Item = Stage>) -> Result<(), Failure> {
        for stage in stages {
            let Some(chain) = self.config.filter.chain(stage) else { continue };
            let folder = self.run.path().join(stage.folder());
            let Some(info) = stage_info(&folder).map_err(|e| unexpected(&e))? else { continue };
            let failed = info.exams.iter().flatten().filter(|exam| exam.end == ExamEnd::Failed && !exam.tolerated);
            let failed: Vec<&str> = failed.map(|exam| exam.filter.as_str()).collect();
            if !failed.is_empty() {
                let words =
                    format!("filters of `{stage}` failed their exam, and their rows stay unjudged: {}", failed.join(", "));
                return Err(Failure::new(Exit::Failures, words).hint(format!(
                    "take a better judge or prompt, or leave the step out; `on_failed_exam = \"unjudged\"` in \
                     filters/{chain}.toml lets the run go on to a good end"
                )));
            }
            self.reached(stage, chain)?;
        }
        Ok(())
    }

    fn reached(&self, stage: Stage, chain: &str) -> Result<(), Failure> {
        let outcomes = self.input::<Outcome>(stage)?;
        let missed: Vec<&Outcome> = outcomes.iter().filter(|o| o.outcome == OutcomeKind::Kept && o.cause.is_some()).collect();
        if missed.len() as f64 <= self.config.filter.max_failure_rate * outcomes.len() as f64 {
            return Ok(());
        }
        let cause = missed.first().and_then(|outcome| outcome.cause.clone()).unwrap_or_default();
        let words = format!("{} of {} rows of `{stage}` stay unjudged: {cause}", missed.len(), outcomes.len());
        Err(Failure::new(Exit::Failures, words).hint(format!(
            "`mcpmill filter --chain {chain} --rejudge` judges them when the model is there again; then `mcpmill run`"
        )))
    }
}

/// The rows that exams are made of.
///
/// # Errors
/// The file cannot be read.
pub fn exam_rows(declarations: &crate::declarations::Declarations) -> Result<ExamRows, Failure> {
    let text = declarations.text(PLANTED).ok_or_else(|| Failure::usage(format!("there is no `{PLANTED}`")))?;
    ExamRows::parse(text).map_err(|why| Failure::usage(format!("failed to read `{PLANTED}`: {why}")))
}

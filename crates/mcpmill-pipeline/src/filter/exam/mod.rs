//! Exams: every filter is tried on rows that were planted for it, so that the worth of its verdicts is known before
//! they are believed. Nothing of an exam is a row of the run.

mod plant;

pub use plant::Plant;
use plant::{Good, Planted};

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream};
use mcpmill_core::{
    record::{Exam, ExamEnd, Judgement, Tool, Wait},
    share::Share,
    toolbox::Toolbox,
};

use super::{
    Case,
    chain::{Chain, Placed},
};
use crate::ask::Meter;

/// Good rows and bad ones that an exam has of each at least.
pub const LEAST: usize = 20;
/// Bad rows of one fault that a filter which asks models gets at least.
const OF_A_FAULT: usize = 8;
/// How far the other row is that a fault borrows from; no divisor of the usual number of rows.
const FURTHER: usize = 7;
/// Names of rows that are told.
const TOLD: usize = 20;

/// The rows that exams are made of.
pub struct ExamRows {
    goods: Vec<Good>,
}

/// What came of the exam of one step.
pub struct Taken {
    /// As it is reported.
    pub exam: Exam,
    /// What it waits for, where it has no end yet.
    pub waits: Option<(Wait, String)>,
}

impl ExamRows {
    /// Reads rows, one JSON object a line.
    ///
    /// # Errors
    /// A line that cannot be read, or fewer rows than an exam wants, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = |(at, line): (usize, &str)| serde_json::from_str(line).map_err(|e| format!("line {}: {e}", at + 1));
        let goods = lines.map(read).collect::<Result<Vec<Good>, _>>()?;
        if goods.len() < LEAST {
            return Err(format!("there are {} rows, an exam wants {LEAST}", goods.len()));
        }
        Ok(Self { goods })
    }

    /// Their tools: what verifiers choose among.
    pub fn toolbox(&self) -> Arc<Toolbox> {
        let tools: Vec<Tool> = self.goods.iter().map(Good::tool).collect();
        Arc::new(Toolbox::new(tools))
    }

    /// The rows of one exam: the good ones, and bad ones of every fault, as many as `of_a_fault` of each.
    fn planted(&self, plants: &[Plant], of_a_fault: usize) -> Vec<Planted> {
        let count = self.goods.len();
        let good = self.goods.iter().enumerate().map(|(at, row)| row.planted(at));
        let faults = plants.iter().enumerate().flat_map(|(nth, plant)| {
            // Each fault begins at another row, so that a few of each still meet all of them.
            (0..of_a_fault.min(count)).map(move |k| {
                let at = (nth * of_a_fault + k) % count;
                self.goods[at].with(plant, at, &self.goods[(at + FURTHER) % count])
            })
        });
        good.chain(faults).collect()
    }
}

/// Takes the exam of every step of `chain` that has one. The chain is one over [`ExamRows::toolbox`], so that the
/// questions are the same in every run and are asked once.
pub async fn examine(chain: &Chain, rows: &ExamRows, at_once: usize) -> Vec<Taken> {
    let mut taken = Vec::new();
    for step in &chain.steps {
        let plants = step.filter.plants();
        if plants.is_empty() {
            continue;
        }
        let of_a_fault = if step.filter.is_free() { rows.goods.len() } else { OF_A_FAULT.max(LEAST.div_ceil(plants.len())) };
        let planted = rows.planted(&plants, of_a_fault);
        taken.push(match &step.absent {
            Some(why) => Marks::default().told(step, chain.tolerates, Some(why.clone())),
            None => sit(step, &planted, chain.tolerates, at_once).await,
        });
    }
    taken
}

/// One exam.
async fn sit(step: &Placed, planted: &[Planted], tolerates: bool, at_once: usize) -> Taken {
    let filter = step.filter.as_ref();
    let called: Vec<[&Tool; 1]> = planted.iter().map(|row| [row.tool()]).collect();
    let cases: Vec<Case<'_>> = planted.iter().zip(&called).map(|(row, called)| row.case(called)).collect();
    filter.prepare(&cases.iter().collect::<Vec<_>>()).await;
    let answers = stream::iter(planted.iter().zip(&cases)).map(|(row, case)| async move {
        let mut meter = Meter::default();
        let verdict = filter.judge(case, &mut meter).await;
        let caught = match verdict.judgement {
            Judgement::Drop => Some(true),
            Judgement::Keep => Some(!filter.masks(&verdict).is_empty()),
            Judgement::Unjudged => None,
        };
        (row, caught, meter)
    });
    let mut marks = Marks::default();
    let mut answers = answers.buffered(at_once.max(1));
    while let Some((row, caught, meter)) = answers.next().await {
        marks.add(row, caught, meter);
    }
    let cause = marks.unreachable.clone();
    marks.told(step, tolerates, cause)
}

/// What a filter did so far.
#[derive(Default)]
struct Marks {
    good: (u64, u64),
    bad: (u64, u64),
    unjudged: u64,
    by_plant: BTreeMap<String, (u64, u64)>,
    missed: Vec<String>,
    rejected: Vec<String>,
    /// Why it could not be asked.
    unreachable: Option<String>,
    waits: Option<Wait>,
}

impl Marks {
    fn add(&mut self, row: &Planted, caught: Option<bool>, meter: Meter) {
        if let Some(cause) = meter.unreachable {
            self.unreachable.get_or_insert(cause);
            self.waits = self.waits.or(meter.waits.filter(|wait| *wait != Wait::Model));
        }
        let Some(caught) = caught else {
            self.unjudged += 1;
            return;
        };
        let side = if row.fault.is_some() { &mut self.bad } else { &mut self.good };
        side.0 += u64::from(caught);
        side.1 += 1;
        if let Some(fault) = row.fault {
            let of_fault = self.by_plant.entry(fault.to_owned()).or_default();
            of_fault.0 += u64::from(caught);
            of_fault.1 += 1;
        }
        let list = if row.fault.is_some() { &mut self.missed } else { &mut self.rejected };
        if caught != row.fault.is_some() && list.len() < TOLD {
            list.push(row.name.clone());
        }
    }

    /// The marks as an exam; `cause` is why it could not be taken as a whole.
    fn told(self, step: &Placed, tolerated: bool, cause: Option<String>) -> Taken {
        let (recall, false_rejects) = (Share::of(self.bad.0, self.bad.1), Share::of(self.good.0, self.good.1));
        let better_than_chance = recall.less(&false_rejects);
        let (end, cause) = match cause {
            Some(cause) => (ExamEnd::NotTaken, Some(cause)),
            None if better_than_chance.0 > 0.0 => (ExamEnd::Passed, None),
            None => (ExamEnd::Failed, Some(failed(&recall, &false_rejects))),
        };
        let waits = self.waits.zip(self.unreachable);
        let exam = Exam {
            filter: step.filter.name().to_owned(),
            end,
            cause,
            tolerated,
            recall,
            false_rejects,
            better_than_chance,
            unjudged: self.unjudged,
            by_plant: self.by_plant.into_iter().map(|(name, (caught, n))| (name, Share::of(caught, n))).collect(),
            missed: self.missed,
            rejected: self.rejected,
        };
        Taken { exam, waits }
    }
}

fn failed(recall: &Share, false_rejects: &Share) -> String {
    if recall.n == 0 || false_rejects.n == 0 {
        return "it could judge none of the planted rows".into();
    }
    format!(
        "it caught {} of {} planted bad rows and dropped {} of {} good ones, which chance may do as well",
        recall.hits, recall.n, false_rejects.hits, false_rejects.n
    )
}

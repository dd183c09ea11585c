//! From servers to rows: how many were left at each step.

use std::path::Path;

use mcpmill_core::record::{Ended, Trajectory};
use serde::{Deserialize, Serialize};

use super::{done, each, info};
use crate::{error::Failure, stage::Stage};

/// One step of the funnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What is counted.
    pub what: String,
    /// Servers, tools or rows: only steps of one unit can be compared.
    pub unit: String,
    /// How many.
    pub count: u64,
}

/// The steps that the run came to.
///
/// # Errors
/// An artifact cannot be read.
pub fn funnel(run: &Path, datasets: &[String]) -> Result<Vec<Step>, Failure> {
    let mut steps = Vec::new();
    let mut step = |unit: &str, count, what: &str| steps.push(Step { what: what.to_owned(), unit: unit.to_owned(), count });
    let of = |stage: Stage| info(&run.join(stage.folder()));
    if let Some(found) = of(Stage::Discover)? {
        step("servers", found.output_rows, "servers found");
    }
    if let Some(harvested) = of(Stage::Harvest)? {
        step("servers", harvested.outcomes.kept, "servers that listed tools");
        step("tools", harvested.output_rows, "tools");
    }
    if let Some(written) = of(Stage::Generate)? {
        // Tools that get no sample are counted as skipped rows, and are none that was planned.
        step("rows", written.input_rows - written.outcomes.skipped, "conversations planned");
        step("rows", written.output_rows, "conversations written");
    }
    if let Some(judged) = of(Stage::FilterSamples)? {
        step("rows", judged.output_rows, "left by the filters before the run");
    }
    if let Some(rolled) = done(run, Stage::Rollout.folder())? {
        let mut ran = 0;
        each(&rolled, |run: Trajectory| ran += u64::from(run.ended != Ended::Refused))?;
        step("rows", ran, "run on live servers");
    }
    if let Some(judged) = of(Stage::FilterTrajectories)? {
        step("rows", judged.output_rows, "left after the run, refused by policy included");
    }
    for name in datasets {
        if let Some(export) = info(&run.join(Stage::Export.folder()).join(name))? {
            step("rows", export.output_rows, &format!("published in {name}"));
        }
    }
    Ok(steps)
}

//! Generate: instructions and calls for known tools, as MCP-Flow makes them.

mod plan;
mod steps;
mod values;

pub use plan::{Planned, Seed, plan};
pub use steps::GeneratePrompts;

use std::{collections::HashMap, sync::Arc};

use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    id::ServerId,
    record::{Outcome, Sample, Tool},
};
use serde::{Deserialize, Serialize};

use crate::models::Models;

/// Which forms a model can do: a small one loses values when it rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Evolution keeps the text: a sentence of context, or one more optional parameter woven in.
    Small,
    /// Evolution rewrites the text in one of WizardLM's directions.
    Full,
}

/// What generate makes.
#[derive(Clone)]
pub struct GenerateSettings {
    /// Samples in all.
    pub samples: usize,
    /// Samples of one tool.
    pub per_tool: usize,
    /// Instructions asked for in one call.
    pub per_call: usize,
    /// Which forms the models can do.
    pub profile: Profile,
    /// Whether instructions are evolved.
    pub evolve: bool,
    /// How much at once, and when to give up.
    pub pace: Pace,
    /// What a person would know of each server's world.
    pub at_hand: Arc<HashMap<ServerId, String>>,
}

/// Makes the planned samples.
///
/// # Errors
/// No tools, interrupted, too many failures, or a journal that fails.
pub async fn generate(
    tools: Vec<Tool>,
    settings: &GenerateSettings,
    prompts: &GeneratePrompts,
    models: &Models,
    cx: &Context,
    out: &dyn Sink<Sample>,
) -> Result<Summary, StageError> {
    if tools.is_empty() {
        return Err(StageError::Empty { stage: cx.stage.clone(), detail: "there are no tools".into() });
    }
    let planned = plan(tools, settings.samples, settings.per_tool);
    drive(planned, settings.pace, cx, out, |row| async move {
        match row {
            Planned::Nothing { tool, reason } => Done::none(Outcome::skipped(tool, reason)),
            Planned::Sample(seed) => steps::sample(&seed, settings, prompts, models).await,
        }
    })
    .await
}

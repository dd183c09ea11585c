//! Generate: instructions and calls for known tools, as MCP-Flow makes them, and conversations of other kinds.

mod chain;
mod chained;
mod code;
mod declines;
pub mod diversity;
mod drift;
mod evolve;
mod forms;
pub(crate) mod held;
mod kinds;
pub(crate) mod language;
pub mod look;
mod plan;
mod prompts;
mod slip;
mod spelling;
mod steps;
mod there;
mod turns;
pub(crate) mod values;

pub use chain::{Chains, Link};
pub(crate) use code::is_expression;
pub(crate) use forms::words;
pub(crate) use kinds::name as language_name;
pub use kinds::{Kinds, Languages, Profile};
pub use plan::{Plan, Planned, Seed, Wanted, plan};
pub use prompts::GeneratePrompts;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    id::{ServerId, ToolId},
    record::{Outcome, Sample, Tool},
};
use serde_json::Value;

use crate::models::Models;

/// Required parameters of which a wrong value can be told from a right one: they name a thing, or have a format.
pub(crate) fn handles(schema: &Value) -> Vec<String> {
    forms::breakable(schema)
}

/// What generate makes.
#[derive(Clone)]
pub struct GenerateSettings {
    /// Samples in all.
    pub samples: usize,
    /// Samples of one tool and kind.
    pub per_tool: usize,
    /// Instructions asked for in one call.
    pub per_call: usize,
    /// Which forms the models can do.
    pub profile: Profile,
    /// Shares of the kinds of conversation.
    pub kinds: Kinds,
    /// Shares of the languages.
    pub languages: Languages,
    /// How many steps instructions are evolved; 0 leaves them as they are. The small profile takes one.
    pub evolve_depth: usize,
    /// How much at once, and when to give up.
    pub pace: Pace,
    /// Tools that rollout never calls.
    pub refused: Arc<HashSet<ToolId>>,
    /// What a person would know of each server's world.
    pub at_hand: Arc<HashMap<ServerId, String>>,
    /// Paths of the files that each server's world begins with.
    pub files: Arc<HashMap<ServerId, Vec<String>>>,
}

impl GenerateSettings {
    /// What is to be planned.
    pub fn wanted(&self) -> Wanted<'_> {
        let Self { samples, per_tool, kinds, languages, refused, .. } = self;
        Wanted { samples: *samples, per_tool: *per_tool, kinds, languages, refused }
    }
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
    let planned = plan(tools, &settings.wanted());
    planned.notes.into_iter().for_each(|note| cx.events.note(format!("{}: {note}", cx.stage)));
    drive(planned.rows, settings.pace, cx, out, |row| async move {
        match row {
            Planned::Nothing { tool, reason } => Done::none(Outcome::skipped(tool, reason)),
            Planned::Sample(seed) => Box::pin(steps::sample(&seed, settings, prompts, models)).await,
        }
    })
    .await
}

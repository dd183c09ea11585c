//! What is written beside the rows: settings of the trainer, and how to start it.

use std::collections::BTreeMap;

use minijinja::{Environment, UndefinedBehavior};
use serde::{Deserialize, Serialize};

use super::{Profile, ProfileError};

/// How models are trained: the same figures for every trainer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// The model that training begins with.
    pub model: String,
    /// Rank of the adapters.
    pub rank: u32,
    /// Their weight.
    pub alpha: u32,
    /// Share of their inputs that is dropped.
    pub dropout: f64,
    /// Step of the optimiser.
    pub learning_rate: f64,
    /// How the step changes.
    pub scheduler: String,
    /// Share of the steps that warm up.
    pub warmup: f64,
    /// Rows of one device at once.
    pub batch: u32,
    /// Batches of one step.
    pub accumulation: u32,
    /// Times that all rows are gone through.
    pub epochs: u32,
    /// Longest row in tokens.
    pub cutoff: u32,
    /// Where randomness begins.
    pub seed: u64,
}

impl Training {
    /// Reads `training.toml`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let training: Self = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        // It comes to stand in scripts.
        let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:".contains(c));
        let odd = [("model", &training.model), ("scheduler", &training.scheduler)].into_iter().find(|(_, text)| !plain(text));
        if let Some((key, _)) = odd {
            return Err(format!("`{key}` is empty or holds what is no letter, digit or one of `-_./:`"));
        }
        Ok(training)
    }
}

/// What the templates of files may tell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Told {
    /// How models are trained.
    pub training: Training,
    /// Written rows by split; splits without rows are not there.
    pub rows: BTreeMap<&'static str, u64>,
    /// Rows of the dataset that are left out, by reason.
    pub left_out: BTreeMap<&'static str, u64>,
    /// Version of mcpmill.
    pub version: &'static str,
}

impl Profile {
    /// The files beside the rows, by name.
    ///
    /// # Errors
    /// A template uses a variable that does not exist, or is no template.
    pub fn files(&self, told: &Told) -> Result<Vec<(&str, String)>, ProfileError> {
        let mut env = Environment::new();
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        env.set_keep_trailing_newline(true);
        env.set_trim_blocks(true);
        let rendered = self.files.iter().map(|(file, template)| {
            let text = env.render_str(template, told);
            text.map(|text| (file.as_str(), text))
                .map_err(|e| ProfileError { name: self.name.clone(), detail: format!("`{file}`: {e:#}") })
        });
        rendered.collect()
    }
}

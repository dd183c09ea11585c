//! What `--batch` says at the end of a stage.

use std::io;

use mcpmill_core::{edge::Mode, record::SampleKind};
use mcpmill_pipeline::{
    filter::Chain,
    models::Role,
    rollout::{RolloutPrompts, is_written_live},
};

use super::{Line, accounts::is_answered};
use crate::{
    batch::{PutOffs, unanswered},
    edges::model_of,
    error::Failure,
    stage::Stage,
};

/// Names of batches that are told in full.
const TOLD: usize = 5;

impl Line {
    /// Says how many questions are in which file, and how many rounds may still come.
    pub(super) fn tell_put_off(&self, stage: Stage, put_off: &PutOffs) -> Result<(), Failure> {
        for (file, questions) in &put_off.files {
            self.events.note(format!("{}: {questions} questions wait in {file}", stage.folder()));
        }
        if put_off.files.is_empty() {
            return Ok(());
        }
        let left = self.most_rounds(stage)?.saturating_sub(put_off.round);
        let later: Vec<Stage> = Stage::ALL.into_iter().filter(|later| *later > stage).collect();
        let mut words = format!("{}: round {}, at most {left} more", stage.folder(), put_off.round);
        for later in later {
            let most = self.most_rounds(later)?;
            if most > 0 {
                words.push_str(&format!("; {} then needs at most {most}", later.folder()));
            }
        }
        self.events.note(format!("{words} (questions that come back without an answer make one more)"));
        Ok(())
    }

    /// Says of batches that were handed in, and whose answers nobody took, that their questions are now asked again.
    pub(super) fn tell_handed_in(&self) -> Result<(), Failure> {
        if self.edges.desk.is_some() || self.config.mode == Mode::Replay {
            return Ok(());
        }
        let answered = |key: &str| is_answered(self.store.as_ref(), self.config.mode, key).map_err(io::Error::other);
        let left = unanswered(self.run.path(), answered)
            .map_err(|e| Failure::environment(format!("failed to read the batches of `{}`: {e}", self.run.path().display())))?;
        if left.is_empty() {
            return Ok(());
        }
        let more = if left.len() > TOLD { ", …" } else { "" };
        let ids: Vec<String> = left.iter().take(TOLD).map(|id| format!("`{id}`")).collect();
        let ids = ids.join(", ");
        self.events.note(format!(
            "questions that were handed in ({ids}{more}) have no answers here: they are asked again now, and paid for again; \
             `mcpmill batch fetch ID` before the run takes what there is"
        ));
        Ok(())
    }

    /// The most rounds that a stage may need.
    fn most_rounds(&self, stage: Stage) -> Result<u32, Failure> {
        let chain = |id: &str| {
            let tries = |prompt: &str| self.declarations.prompt(prompt).map_or(1, |prompt| prompt.tries);
            Ok(Chain::most_rounds(self.declarations.chain(id)?, tries))
        };
        match stage {
            Stage::Generate => {
                let local = model_of(&self.config, Role::Generator)?.local;
                let section = &self.config.generate;
                let depth = if section.evolve { section.evolve_depth } else { 0 };
                Ok(self.generate_prompts()?.most_rounds(section.profile.resolve(local), depth))
            }
            Stage::Rollout => {
                let local = model_of(&self.config, Role::Generator)?.local;
                let section = &self.config.generate;
                let (kinds, ..) = section.shares(section.profile.resolve(local))?;
                let written = self.config.rollout.answer
                    || SampleKind::ALL.into_iter().any(|kind| kinds.share(kind) > 0.0 && is_written_live(kind));
                if !written {
                    return Ok(0);
                }
                Ok(RolloutPrompts::read(|id| self.declarations.prompt(id))?.most_rounds())
            }
            Stage::FilterSamples | Stage::FilterTrajectories => chain(self.chain_of(stage)),
            _ => Ok(0),
        }
    }
}

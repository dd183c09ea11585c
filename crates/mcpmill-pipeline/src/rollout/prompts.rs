//! The prompts of the stage.

use super::run::MOST_TURNS;
use crate::{models::Role, prompt::Prompt};

/// The prompts of the stage, by their fixed ids.
#[derive(Clone, Debug)]
pub struct RolloutPrompts {
    /// The next call.
    pub next: Prompt,
    /// What the assistant says once the answers are there.
    pub answer: Prompt,
    /// What the user says next.
    pub user: Prompt,
}

impl RolloutPrompts {
    /// Their ids, in the order of [`RolloutPrompts::all`].
    pub const IDS: [&str; 3] = ["next", "answer", "user"];

    /// Reads them.
    ///
    /// # Errors
    /// The first that `prompt` cannot give.
    pub fn read<E>(prompt: impl Fn(&str) -> Result<Prompt, E>) -> Result<Self, E> {
        Ok(Self { next: prompt("next")?, answer: prompt("answer")?, user: prompt("user")? })
    }

    /// All prompts, for fingerprints and checks.
    pub fn all(&self) -> [&Prompt; 3] {
        [&self.next, &self.answer, &self.user]
    }

    /// How many questions a conversation may ask one after the other, each with the answer to the one before.
    pub fn most_rounds(&self) -> u32 {
        self.all().iter().map(|prompt| prompt.tries).sum::<u32>() * MOST_TURNS as u32
    }

    /// The roles that are needed.
    pub fn roles(&self) -> Vec<Role> {
        let mut roles: Vec<Role> = self.all().iter().map(|p| p.role).collect();
        roles.sort_unstable();
        roles.dedup();
        roles
    }
}

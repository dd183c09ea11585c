//! The prompts of the stage.

use super::{Languages, Profile, turns::DECLINED};
use crate::{models::Role, prompt::Prompt};

/// The prompts of the stage, by their fixed ids.
#[derive(Clone, Debug)]
pub struct GeneratePrompts {
    /// Several requests a tool.
    pub instruct: Prompt,
    /// A value for every required parameter.
    pub slots: Prompt,
    /// A rewrite that states missing values.
    pub weave: Prompt,
    /// A sentence of context before the request.
    pub context: Prompt,
    /// A rewrite in a direction.
    pub evolve: Prompt,
    /// Another, rarer request.
    pub breadth: Prompt,
    /// The call.
    pub call: Prompt,
    /// Several calls of one turn.
    pub parallel: Prompt,
    /// One call after another.
    pub chain: Prompt,
    /// The second half of a request for one call after another, where a model cannot write it whole.
    pub then: Prompt,
    /// The first of several turns.
    pub multi_turn: Prompt,
    /// An answer where no tool fits.
    pub no_tool: Prompt,
    /// Whether such an answer in another language than English declines.
    pub declines: Prompt,
    /// A request that leaves something out, and what follows.
    pub ask: Prompt,
    /// A value that is wrong.
    pub recover: Prompt,
}

impl GeneratePrompts {
    /// Their ids, in the order of [`GeneratePrompts::all`].
    pub const IDS: [&str; 15] = [
        "instruct",
        "slots",
        "weave",
        "context",
        "evolve",
        "breadth",
        "call",
        "parallel",
        "chain",
        "then",
        "multi-turn",
        "no-tool",
        "declines",
        "ask",
        "recover",
    ];

    /// Reads them.
    ///
    /// # Errors
    /// The first that `prompt` cannot give.
    pub fn read<E>(prompt: impl Fn(&str) -> Result<Prompt, E>) -> Result<Self, E> {
        Ok(Self {
            instruct: prompt("instruct")?,
            slots: prompt("slots")?,
            weave: prompt("weave")?,
            context: prompt("context")?,
            evolve: prompt("evolve")?,
            breadth: prompt("breadth")?,
            call: prompt("call")?,
            parallel: prompt("parallel")?,
            chain: prompt("chain")?,
            then: prompt("then")?,
            multi_turn: prompt("multi-turn")?,
            no_tool: prompt("no-tool")?,
            declines: prompt("declines")?,
            ask: prompt("ask")?,
            recover: prompt("recover")?,
        })
    }

    /// All prompts, for fingerprints and checks.
    pub fn all(&self) -> [&Prompt; 15] {
        [
            &self.instruct,
            &self.slots,
            &self.weave,
            &self.context,
            &self.evolve,
            &self.breadth,
            &self.call,
            &self.parallel,
            &self.chain,
            &self.then,
            &self.multi_turn,
            &self.no_tool,
            &self.declines,
            &self.ask,
            &self.recover,
        ]
    }

    /// How many questions a sample may ask one after the other, each with the answer to the one before: the most
    /// rounds of batches the stage can need, whatever the kind. `depth` is that of evolution.
    pub fn most_rounds(&self, profile: Profile, depth: usize) -> u32 {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let stated = self.slots.tries + self.weave.tries;
        let evolution = match profile {
            Profile::Full => depth.saturating_mul(self.evolve.tries.max(self.breadth.tries + stated)) + depth.min(1) * stated,
            Profile::Small => depth.min(1) * (stated + self.context.tries),
        };
        let composed = [&self.parallel, &self.chain, &self.multi_turn, &self.ask].map(|prompt| prompt.tries);
        let first = composed.into_iter().fold(self.instruct.tries + stated, |most, tries| most.max(tries + self.weave.tries));
        let declined = DECLINED * (self.no_tool.tries + self.declines.tries);
        let second = match profile {
            Profile::Full => 0,
            Profile::Small => self.slots.tries + self.then.tries,
        };
        first + evolution + (self.call.tries + self.recover.tries.max(second)).max(declined)
    }

    /// The roles that are needed; a judge only where languages beside English are written.
    pub fn roles(&self, languages: &Languages) -> Vec<Role> {
        let judged = !languages.are_english();
        let needed = self.all().into_iter().filter(|prompt| judged || prompt.id != self.declines.id);
        let mut roles: Vec<Role> = needed.map(|prompt| prompt.role).collect();
        roles.sort_unstable();
        roles.dedup();
        roles
    }
}

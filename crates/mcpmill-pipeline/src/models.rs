//! Roles: what a model is for. Stages ask for a role, the config says which model plays it.

use std::{collections::HashMap, fmt};

use mcpmill_core::edge::RecordedChat;
use serde::{Deserialize, Serialize};

/// The parts models play.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Writes instructions and calls.
    Generator,
    /// Evolves instructions.
    Evolver,
    /// Chooses tools, first opinion.
    VerifierA,
    /// Chooses tools, second opinion.
    VerifierB,
    /// Scores samples and judges responses.
    Judge,
    /// The model that is measured.
    Solver,
    /// Speaks as the user in conversations of several turns.
    User,
}

impl Role {
    /// All roles, in the order of the config.
    pub const ALL: [Self; 7] =
        [Self::Generator, Self::Evolver, Self::VerifierA, Self::VerifierB, Self::Judge, Self::Solver, Self::User];

    /// The word used in config and prompts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generator => "generator",
            Self::Evolver => "evolver",
            Self::VerifierA => "verifier-a",
            Self::VerifierB => "verifier-b",
            Self::Judge => "judge",
            Self::Solver => "solver",
            Self::User => "user",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The models of a run, by role.
#[derive(Clone)]
pub struct Models {
    by_role: HashMap<Role, RecordedChat>,
    fallback: RecordedChat,
}

impl Models {
    /// `fallback` plays every role that `by_role` does not name.
    pub fn new(fallback: RecordedChat, by_role: HashMap<Role, RecordedChat>) -> Self {
        Self { by_role, fallback }
    }

    /// The model of a role.
    pub fn role(&self, role: Role) -> &RecordedChat {
        self.by_role.get(&role).unwrap_or(&self.fallback)
    }
}

//! The stages: discover, harvest, generate, filter, rollout, export.
//!
//! Each stage is one function that takes rows, asks the outside world through the traits of
//! `mcpmill-core`, and hands every row to a sink with an outcome. No stage knows a file, a network,
//! a clock or a terminal.

mod ask;
mod card;
pub mod discover;
pub mod export;
pub mod filter;
pub mod generate;
pub mod harvest;
mod listed;
pub mod models;
pub mod near;
mod pick;
pub mod policy;
pub mod prompt;
pub mod rollout;
pub mod twins;

pub use ask::{AskFailure, Meter, Question, ask, seed_of};
pub use card::card;
pub use pick::pick;

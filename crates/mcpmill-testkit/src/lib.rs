//! Stand-ins for tests, which say that they are: a chat endpoint and edges that answer by rule.

mod edges;
mod model;

pub use edges::{Forgetful, Kept, Scripted, context, recorder};
pub use model::ScriptedEndpoint;

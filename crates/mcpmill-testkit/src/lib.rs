//! Stand-ins for tests, which say that they are: a chat endpoint that answers by rule.

mod model;

pub use model::ScriptedEndpoint;

//! Stand-ins for tests, which say that they are: a chat endpoint and edges that answer by rule, and records.

mod edges;
mod model;
mod records;
mod servers;

pub use edges::{Kept, Pages, Remembering, Scripted, context, recorder};
pub use model::{ScriptedEndpoint, batch_line, graded, reply_to};
pub use records::{sample, server, tool};
pub use servers::{Call, ScriptedServers, text};

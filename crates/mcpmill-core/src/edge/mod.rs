//! The edges of the world, as traits. Each has a real and a scripted implementation; the stages
//! know only these.

mod chat;
mod embed;
pub(crate) mod exchange;
mod fetch;
mod mcp;
mod process;
mod toll;

pub use chat::{
    ChatError, ChatErrorKind, ChatModel, ChatReply, ChatRequest, Finish, Format, NotPutOff, PutOff, RecordedChat, Refusal,
    Replied, SetAside, ToolSpec,
};
pub use embed::{EmbedError, Embedder, RecordedEmbedder, cosine};
pub use exchange::{Exchange, ExchangeError, ExchangeKind, Exchanges, Mode, Paid, Recorded, Recorder, StoreError, Stored};
pub use fetch::{Fetch, FetchError, FetchErrorKind, FetchRequest, KeyHeader, Page};
pub use mcp::{
    ConnectError, Connector, Network, OpeningCall, ServerInfo, ToolError, ToolErrorKind, ToolPage, ToolRunner, WorldSpec,
};
pub use process::{Bind, Confined, Limits, Process, ProcessEnd, ProcessError, ProcessOutput};
pub use toll::{Free, NotSent, Toll};

use std::time::Duration;

/// What kind of failure an edge met; retry, back-off and `Unjudged` follow from this, never from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It may go away by itself.
    Transient,
    /// The other side asked for a pause.
    RateLimited(Duration),
    /// It will happen again.
    Permanent,
}

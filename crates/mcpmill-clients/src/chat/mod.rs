//! Chat models behind endpoints: OpenAI-compatible ones (vLLM, llama.cpp server, Ollama, SGLang, OpenRouter, …) and
//! Anthropic's.

mod ability;
mod batch;
mod batches;
mod endpoint;
mod flow;
mod keys;
mod pause;
mod raw;
mod settings;
mod shown;
mod wire;

pub use crate::secret::Secret;
pub use ability::BindingCounts;
pub use batch::{BatchAnswer, BatchShape, BatchTold};
pub use batches::{BatchError, BatchState};
pub use endpoint::Endpoint;
pub use flow::Notes;
pub use keys::Keys;
pub use settings::{EndpointError, EndpointSettings, Sampling};
pub use wire::Api;

//! Chat models behind OpenAI-compatible endpoints (vLLM, llama.cpp server, Ollama, OpenRouter, …).

mod endpoint;
mod shown;
mod wire;

pub use crate::secret::Secret;
pub use endpoint::{Endpoint, EndpointError, EndpointSettings};

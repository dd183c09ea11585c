//! The embedded language model of mcpmill: GGUF files of the qwen2 and llama architectures, on the processor, in
//! plain Rust.
//!
//! ```no_run
//! use mcpmill_local::{Constraint, Generation, LoadOptions, LocalModel, Role, Turn, tighten};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = LocalModel::load("model.gguf".as_ref(), &LoadOptions::default())?;
//! let schema = serde_json::json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
//! let answer = model.generate(&Generation {
//!     messages: vec![Turn { role: Role::User, content: "Where is the Eiffel Tower? Answer as JSON.".into() }],
//!     constraint: Constraint::JsonSchema(tighten(&schema)),
//!     ..Generation::default()
//! })?;
//! println!("{}", answer.text); // {"city": "Paris"}
//! # Ok(())
//! # }
//! ```
//!
//! Three properties hold by construction. An answer under a constraint fits it unless it ends with
//! [`Finish::Length`]. Equal requests get equal answers, whatever ran before and whether or not the beginning of the
//! prompt was cached. A model file is hostile input: every size is checked before it is believed.
//!
//! Not here: other architectures, other chat templates than ChatML, GPUs, downloads (the caller names a file).

mod chat;
mod config;
mod constraint;
mod embedded;
mod engine;
mod error;
mod generate;
mod gguf;
mod kv;
mod lockstep;
mod model;
mod prefix;
mod sample;
#[cfg(test)]
mod test_model;
mod tighten;
mod tokenizer;
mod weights;

pub use chat::{Role, Turn};
pub use constraint::Constraint;
pub use embedded::EmbeddedModel;
pub use engine::{LoadOptions, LocalModel, ModelInfo};
pub use error::{LoadProblem, LocalError};
pub use generate::{Finish, Generated, Generation};
pub use tighten::tighten;

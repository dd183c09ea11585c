//! The network and processes: chat, embeddings, MCP, sandbox, assets

pub mod assets;
pub mod cage;
pub mod chat;
pub mod embed;
pub mod http;
pub mod install;
pub mod mcp;
pub mod secret;
pub mod tokens;

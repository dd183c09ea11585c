//! Records, ids, the traits at the edges of the world and the row driver of mcpmill.
//!
//! This crate does no IO: it knows no file, no network, no clock and no terminal. Stages are
//! written against it; the binary hands them real edges, tests hand them scripted ones.

pub mod account;
pub mod agent;
pub mod canonical;
pub mod drive;
pub mod edge;
pub mod event;
pub mod id;
pub mod json;
pub mod launch;
pub mod naming;
pub mod record;
pub mod reply;
pub mod schema;
pub mod schema_view;
pub mod secrets;
pub mod share;
pub mod template;
pub mod text;
pub mod toolbox;

//! Marketplace declarations.

use async_trait::async_trait;
use mcpmill_core::record::ServerRecord;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::file::FileMarketplace;

/// A source of servers.
#[async_trait]
pub trait Marketplace: Send + Sync {
    /// Id of its file.
    fn id(&self) -> &str;

    /// Everything it lists now. An entry that cannot be read is a listing with an error.
    ///
    /// # Errors
    /// The source as a whole cannot be read.
    async fn listings(&self) -> Result<Vec<Listing>, DeclarationError>;
}

/// One entry of a marketplace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listing {
    /// `marketplace#name`.
    pub id: String,
    /// The server, or what is wrong with the entry.
    pub server: Result<ServerRecord, String>,
}

/// A declaration that cannot be used.
#[derive(Debug, Error)]
#[error("failed to read marketplace `{id}`: {detail}")]
pub struct DeclarationError {
    /// The marketplace.
    pub id: String,
    /// What is wrong with it.
    pub detail: String,
}

#[derive(Deserialize)]
struct Head {
    kind: Kind,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// The servers stand in the file itself.
    File,
}

/// Reads a file of `marketplaces/`; `id` is its name without ending.
///
/// # Errors
/// It is no TOML, its kind is unknown, or a field is wrong.
pub fn parse(id: &str, text: &str) -> Result<Box<dyn Marketplace>, DeclarationError> {
    let fail = |detail: String| DeclarationError { id: id.to_owned(), detail };
    let head: Head = toml::from_str(text).map_err(|e| fail(e.message().to_owned()))?;
    match head.kind {
        Kind::File => Ok(Box::new(FileMarketplace::parse(id, text).map_err(fail)?)),
    }
}

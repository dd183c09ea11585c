//! What a source of servers is, and what it is given.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{Fetch, FetchError, FetchErrorKind, Network},
    record::ServerRecord,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{declare::Declaration, file::FileMarketplace, snapshot::Snapshots, source::Source, spool::Shelf};

/// A source of servers.
#[async_trait]
pub trait Marketplace: Send + Sync {
    /// Id of its file.
    fn id(&self) -> &str;

    /// The entries that stand in the declaration itself; most sources have none.
    fn declared(&self) -> &[Listing] {
        &[]
    }

    /// Folders of saved pages below `marketplaces/fixtures/`, to try the declaration on.
    fn fixtures(&self) -> &[String] {
        &[]
    }

    /// Addresses and paths it starts from, with `${name}` for what the program fills in.
    fn templates(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Whether its servers stand in the declaration, so that nothing is asked for them.
    fn is_own_file(&self) -> bool {
        false
    }

    /// What its servers reach of the network when they run, unless their own settings say otherwise.
    fn network(&self) -> Network {
        Network::None
    }

    /// Variables of the environment that hold its keys.
    fn keys(&self) -> Vec<KeyVariable> {
        Vec::new()
    }

    /// Names of the values that the user gives it, as `${name}` of its addresses and paths.
    fn values(&self) -> BTreeSet<String> {
        let holes = |text: &str| -> Vec<String> {
            text.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.to_owned())).collect()
        };
        self.templates().into_iter().flat_map(holes).collect()
    }

    /// Hands over everything it lists now, one page after the other. An entry that cannot be read is a
    /// listing with an error. What was handed over before an error counts; what the crawl before knew and this one
    /// did not come to is handed over, too.
    ///
    /// # Errors
    /// The source cannot be read, or not to its end.
    async fn crawl(&self, cx: &CrawlContext, out: &mut (dyn FnMut(Listing) + Send + Sync)) -> Result<Counts, CrawlError>;
}

/// A variable that holds a key of a marketplace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVariable {
    /// Its name.
    pub name: String,
    /// Whether nothing is asked without it.
    pub required: bool,
}

/// What a crawl has of the world.
#[derive(Clone, Default)]
pub struct CrawlContext {
    /// Fetches pages; without it every source of the web is skipped.
    pub fetch: Option<Arc<dyn Fetch>>,
    /// Reads files of the user's; without it every source that is a folder is skipped.
    pub files: Option<Arc<dyn Files>>,
    /// What the crawl before this one found.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// Where listings are put aside while it goes on; without it they stay in memory, packed.
    pub shelf: Option<Arc<dyn Shelf>>,
    /// When this crawl begins, in RFC 3339 (`2026-01-31T00:00:00Z`).
    pub now: String,
    /// Values of `${name}` in start addresses and paths.
    pub values: BTreeMap<String, String>,
}

/// Reads files of the user's. Sizes and numbers of files are bounded by the edge.
pub trait Files: Send + Sync {
    /// Paths of all files below a folder, relative to it, with `/`.
    ///
    /// # Errors
    /// It cannot be read, or holds too much; in words.
    fn list(&self, folder: &str) -> Result<Vec<String>, String>;

    /// The text of a file.
    ///
    /// # Errors
    /// It cannot be read or is too large; in words.
    fn read(&self, path: &str) -> Result<String, String>;
}

/// What a crawl found against the one before it. All are numbers of listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Not known before.
    pub added: u64,
    /// Known, and different now.
    pub changed: u64,
    /// As before.
    pub unchanged: u64,
    /// Listed before and no more.
    pub gone: u64,
    /// True when a limit of the declaration, or of the source itself, ended the crawl before the source's end.
    pub cut: bool,
}

/// One entry of a marketplace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// `marketplace#name`.
    pub id: String,
    /// The server, or what is wrong with the entry.
    pub server: Result<ServerRecord, String>,
    /// What it shares with other listings of the same server.
    #[serde(default)]
    pub keys: Vec<String>,
    /// True when the user wrote it: it is launched as it stands.
    #[serde(default)]
    pub own: bool,
}

/// A source that cannot be read to its end.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("failed to read marketplace `{marketplace}`: {cause}")]
pub struct CrawlError {
    /// The marketplace.
    pub marketplace: String,
    /// A short fixed word (`source-refused`, `needs-key`, `bad-cursor`, `cut-off`, `not-json`, …).
    pub reason: &'static str,
    /// What happened, in words.
    pub cause: String,
    /// Listings of the crawl before that were handed over in place of what could not be read.
    pub kept: u64,
}

impl CrawlError {
    /// True when the source was not tried or does not want us; the others are failures.
    pub fn is_skip(&self) -> bool {
        matches!(self.reason, "source-refused" | "needs-key" | "not-available" | "needs-setting")
    }

    pub(super) fn of_fetch(marketplace: &str, error: &FetchError) -> Self {
        let reason = match &error.kind {
            FetchErrorKind::NoKey(_) => "needs-key",
            FetchErrorKind::Robots | FetchErrorKind::Refused(_) => "source-refused",
            FetchErrorKind::NotFound(_) => "not-found",
            FetchErrorKind::RateLimited(_) => "rate-limited",
            FetchErrorKind::Status(400 | 422) => "bad-request",
            FetchErrorKind::Status(_) => "bad-status",
            FetchErrorKind::NotPublic(_) | FetchErrorKind::BadUrl(_) => "bad-url",
            FetchErrorKind::TooLarge(_) => "too-large",
            FetchErrorKind::Unreadable(_) => "unreadable-page",
            FetchErrorKind::TimedOut => "timed-out",
            FetchErrorKind::Network(_) => "network",
            FetchErrorKind::Offline => "offline",
            FetchErrorKind::Cache(_) => "page-cache",
        };
        Self { marketplace: marketplace.to_owned(), reason, cause: error.to_string(), kept: 0 }
    }
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

/// Where entries come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// The servers stand in the file itself.
    File,
    /// Pages of JSON.
    JsonApi,
    /// Web pages.
    Html,
    /// Files of a checkout.
    GitTree,
    /// A list in markdown.
    MarkdownList,
    /// A user's own `mcpServers` configuration.
    McpServers,
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
        _ => Ok(Box::new(Source::new(id, Declaration::parse(text).map_err(fail)?, text))),
    }
}

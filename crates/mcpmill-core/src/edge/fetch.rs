//! Documents of the web, fetched politely.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::edge::Class;

/// Fetches documents of marketplaces. Politeness (robots.txt, pace, back-off, conditional requests)
/// and safety (no private addresses, bounded bodies) are its own business; callers only see pages.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// The document at an address.
    ///
    /// # Errors
    /// It cannot be had, with what kind of failure it was. An answer with an error status is a failure.
    async fn fetch(&self, request: &FetchRequest) -> Result<Page, FetchError>;
}

/// What is asked for. It holds no secret: a key is named, and its value is known to the edge alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FetchRequest {
    /// `http` or `https`, without user information.
    pub url: String,
    /// The `Accept` header.
    pub accept: Option<String>,
    /// Headers whose values are secrets of the environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyHeader>,
    /// Requests a minute to this host, when the marketplace asks for fewer than is usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u32>,
    /// Pointers to members of a JSON page that lead to the next one: they stay as they are. What is asked for is
    /// the same whatever they are.
    #[serde(skip)]
    pub keep: Vec<String>,
}

/// A header whose value is in a variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyHeader {
    /// The header's name.
    pub header: String,
    /// The variable.
    pub env: String,
    /// What stands before the value (`Bearer `).
    #[serde(default)]
    pub prefix: String,
}

/// A document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Where it was found in the end, after redirects.
    pub url: String,
    /// Its media type, without parameters, lower case.
    pub content_type: Option<String>,
    /// The body as text; bytes that are no UTF-8 are replaced.
    pub body: String,
    /// The `rel="next"` of its `Link` header, absolute.
    pub next: Option<String>,
    /// Whether it is the same as the last time it was fetched.
    #[serde(default)]
    pub unchanged: bool,
}

/// A document that cannot be had.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
#[error("failed to fetch `{url}`: {kind}")]
pub struct FetchError {
    /// Its address, without secrets.
    pub url: String,
    /// Why not.
    pub kind: FetchErrorKind,
}

/// Kinds of failure of a fetch.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FetchErrorKind {
    /// robots.txt says no.
    #[error("its robots.txt does not allow it")]
    Robots,
    /// 401, 403, 407, 451, or a page that wants to see a person.
    #[error("the site refuses ({0})")]
    Refused(String),
    /// A key is needed and its variable is not set.
    #[error("it needs a key, and the variable `{0}` is not set")]
    NoKey(String),
    /// 404 or 410.
    #[error("there is nothing ({0})")]
    NotFound(u16),
    /// 429 or a rate-limit header, after the tries that were allowed.
    #[error("the site asks for a pause of {0:?}")]
    RateLimited(Duration),
    /// Another status that is no success.
    #[error("status {0}")]
    Status(u16),
    /// The address is private, link-local or of another kind that no marketplace has.
    #[error("its address {0} is not a public one")]
    NotPublic(String),
    /// The address cannot be used.
    #[error("{0}")]
    BadUrl(String),
    /// More bytes than are read, before or after decompression.
    #[error("more than {0} bytes")]
    TooLarge(u64),
    /// The body is in a coding that was not asked for, or broken.
    #[error("its body cannot be read: {0}")]
    Unreadable(String),
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The connection failed or the body was cut off.
    #[error("{0}")]
    Network(String),
    /// Nothing may be fetched and the cache does not have it.
    #[error("it is not in the cache, and nothing may be fetched")]
    Offline,
    /// The cache on disk failed.
    #[error("the cache of pages: {0}")]
    Cache(String),
}

impl FetchError {
    /// Whether another try makes sense.
    pub fn class(&self) -> Class {
        match &self.kind {
            FetchErrorKind::RateLimited(pause) => Class::RateLimited(*pause),
            FetchErrorKind::TimedOut | FetchErrorKind::Network(_) => Class::Transient,
            FetchErrorKind::Status(status) if *status >= 500 => Class::Transient,
            _ => Class::Permanent,
        }
    }

    /// Whether the source is to be left alone altogether: it does not want us.
    pub fn is_refusal(&self) -> bool {
        matches!(self.kind, FetchErrorKind::Robots | FetchErrorKind::Refused(_) | FetchErrorKind::NoKey(_))
    }
}

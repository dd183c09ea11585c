//! Declarations of sources that are crawled: where pages are, how one follows the other, where fields stand.

use mcpmill_core::edge::{KeyHeader, Network};
use regex::Regex;
use scraper::Selector;
use serde::Deserialize;

use super::marketplace::Kind;

/// One file of `marketplaces/`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Declaration {
    pub kind: Kind,
    /// One line for people.
    #[serde(rename = "title")]
    _title: String,
    /// What its operator asks of crawlers, for people.
    #[serde(rename = "terms")]
    _terms: Option<String>,
    /// The first address; `${name}` is filled in by the program.
    #[serde(default)]
    pub start: Vec<String>,
    /// The folder or file, for kinds that read files; `${name}` is filled in by the program.
    pub path: Option<String>,
    /// What its servers reach of the network when they run.
    #[serde(default)]
    pub network: Network,
    pub key: Option<Key>,
    /// A second header, for sources that want two.
    #[serde(default)]
    pub more_keys: Vec<KeyHeader>,
    pub per_minute: Option<u32>,
    #[serde(default = "most_pages")]
    pub max_pages: u32,
    #[serde(default = "most_entries")]
    pub max_entries: u32,
    /// Folders of saved pages below `marketplaces/fixtures/`.
    #[serde(default)]
    pub fixture: Vec<String>,
    #[serde(default)]
    pub paging: Paging,
    /// The query parameter that asks for what changed since a time.
    pub updated_since: Option<String>,
    /// The address of a server's latest version, for sources that tell changes: a version that was deleted may
    /// leave an older one behind, which is no change. `{name}` and `{/pointer}` are filled in.
    pub latest: Option<String>,
    /// Where the list of entries stands: pointers, or for web pages one selector.
    #[serde(default)]
    pub entries: Vec<String>,
    /// A pattern of the address of a card's own page; its groups are fields, and a card that leads elsewhere is none.
    pub link: Option<String>,
    #[serde(default)]
    pub fields: Fields,
    pub detail: Option<Detail>,
    pub split: Option<Split>,
    pub tree: Option<Tree>,
    pub launch: Mapper,
    /// The address of a remote server, from fields in braces.
    pub remote_template: Option<String>,
}

fn most_pages() -> u32 {
    5_000
}

fn reading_days() -> u32 {
    7
}

fn most_entries() -> u32 {
    200_000
}

/// The key of a source.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    pub header: String,
    pub env: String,
    #[serde(default)]
    pub prefix: String,
    /// True when the source answers without it, too.
    #[serde(default)]
    pub optional: bool,
}

/// How one page follows the other.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paging {
    #[serde(default)]
    pub style: Style,
    /// The parameter of the cursor, the page or the offset.
    pub param: Option<String>,
    /// Pointers to the next cursor or address.
    #[serde(default)]
    pub next: Vec<String>,
    /// Pointers to a boolean that says whether there is more.
    #[serde(default)]
    pub more: Vec<String>,
    /// Pointers to the number of pages.
    #[serde(default)]
    pub total_pages: Vec<String>,
    /// Pointers to a boolean that says that the source has left out some of its entries.
    #[serde(default)]
    pub incomplete: Vec<String>,
    /// The first page or offset.
    #[serde(default)]
    pub first: u64,
    /// Pointers to the number of entries in all. Pages are read until as many were seen, or until one is empty.
    #[serde(default)]
    pub total: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Style {
    #[default]
    None,
    Cursor,
    Page,
    Offset,
    NextUrl,
    LinkHeader,
}

/// Where each field stands in an entry, or in its detail page: first hit wins.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fields {
    pub name: Vec<String>,
    pub title: Vec<String>,
    pub description: Vec<String>,
    pub version: Vec<String>,
    pub licence: Vec<String>,
    /// A word, or a list of words or of objects with a `name`.
    pub category: Vec<String>,
    pub homepage: Vec<String>,
    pub repository: Vec<String>,
    pub subfolder: Vec<String>,
    pub status: Vec<String>,
    pub latest: Vec<String>,
    pub package: Vec<String>,
    pub package_registry: Vec<String>,
    pub remote: Vec<String>,
    pub transport: Vec<String>,
    /// A list of remote servers, each with its address and transport.
    pub remotes: Vec<String>,
    pub tools: Vec<String>,
    /// A JSON schema whose properties are environment variables.
    pub env_schema: Vec<String>,
}

impl Fields {
    fn all(&self) -> impl Iterator<Item = &String> {
        [
            &self.name,
            &self.title,
            &self.description,
            &self.version,
            &self.licence,
            &self.category,
            &self.homepage,
            &self.repository,
            &self.subfolder,
            &self.status,
            &self.latest,
            &self.package,
            &self.package_registry,
            &self.remote,
            &self.transport,
            &self.remotes,
            &self.tools,
            &self.env_schema,
        ]
        .into_iter()
        .flatten()
    }

    pub(super) fn named(&self) -> [(&'static str, &[String]); 8] {
        [
            ("name", &self.name),
            ("title", &self.title),
            ("description", &self.description),
            ("version", &self.version),
            ("licence", &self.licence),
            ("category", &self.category),
            ("homepage", &self.homepage),
            ("repository", &self.repository),
        ]
    }
}

/// The page of one entry, when the listing does not hold all.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Detail {
    /// Its address; `{pointer}` (`{/slug}`) or `{name}` stand for fields of the entry, percent-encoded.
    pub url: String,
    #[serde(default)]
    pub format: Format,
    /// The member of a page's payload that is the entry.
    pub payload_key: Option<String>,
    /// Days after which it is read again though the entry is as before: not all that changes shows there.
    #[serde(default = "reading_days")]
    pub days: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Format {
    /// JSON.
    #[default]
    Json,
    /// Text or HTML, searched for an `mcpServers` block.
    Text,
    /// HTML of Next.js with its flight payload.
    NextFlight,
}

/// A search that shows only its first results is split by ranges of dates.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Split {
    /// The results that are shown.
    pub limit: u64,
    /// Pointers to the number of results.
    pub total: Vec<String>,
    /// The first day (`2024-11-01`).
    pub from: String,
}

/// Which files of a folder are entries.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tree {
    /// Below which folder of the checkout.
    #[serde(default)]
    pub under: String,
    /// The name of the file that makes its folder an entry, or an ending (`*.json`).
    pub file: String,
    /// Further files of the folder, read as members of the entry by their name without ending.
    #[serde(default)]
    pub beside: Vec<String>,
}

/// How launch information is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mapper {
    Registry,
    Smithery,
    McpServersBlock,
    NpmPackage,
    Repository,
    Url,
    Docker,
    Mcpm,
    Pipedream,
}

impl Declaration {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let read: Self = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        read.validate()?;
        Ok(read)
    }

    fn validate(&self) -> Result<(), String> {
        let files = matches!(self.kind, Kind::GitTree | Kind::McpServers);
        if files == self.path.is_none() {
            return Err(if files { "it has no `path`".into() } else { "`path` is for sources that are files".into() });
        }
        if files != self.start.is_empty() {
            return Err(if files { "`start` is for sources of the web".into() } else { "it has no `start`".into() });
        }
        if let Some(url) = self.start.iter().find(|u| !["https://", "http://", "${"].iter().any(|p| u.starts_with(p))) {
            return Err(format!("`start` holds `{url}`, which is no address"));
        }
        if (self.kind == Kind::GitTree) != self.tree.is_some() {
            return Err("a git-tree, and nothing else, has a `tree`".into());
        }
        if self.max_pages == 0 || self.max_entries == 0 || self.per_minute == Some(0) {
            return Err("`max_pages`, `max_entries` and `per_minute` are 1 or more".into());
        }
        if let Some(link) = &self.link {
            Regex::new(link).map_err(|e| format!("`link` is no pattern: {e}"))?;
        }
        self.paging.validate()?;
        let pages = self.kind == Kind::Html;
        self.fields.all().chain(&self.entries).try_for_each(|path| valid_path(pages, path))?;
        if let Some(split) = &self.split {
            super::dates::day(&split.from).ok_or_else(|| format!("`split.from` is `{}`, which is no date", split.from))?;
            if !self.start.iter().any(|url| url.contains("{from}") && url.contains("{to}")) {
                return Err("a `split` needs `{from}` and `{to}` in `start`".into());
            }
        }
        Ok(())
    }
}

impl Paging {
    fn validate(&self) -> Result<(), String> {
        let needs = |what: &str| Err(format!("`paging.style` needs `{what}`"));
        match self.style {
            Style::Cursor | Style::Page | Style::Offset if self.param.is_none() => needs("param"),
            Style::Cursor | Style::NextUrl if self.next.is_empty() => needs("next"),
            _ => Ok(()),
        }
    }
}

/// A JSON pointer or, for web pages, `selector` or `selector@attribute`, or a pattern for addresses.
fn valid_path(pages: bool, path: &str) -> Result<(), String> {
    if path.is_empty() || path.starts_with('/') {
        return Ok(());
    }
    if let Some(pattern) = path.strip_prefix("url:") {
        return Regex::new(pattern).map(|_| ()).map_err(|e| format!("`{path}`: {e}"));
    }
    if !pages {
        return Err(format!("`{path}` is no JSON pointer"));
    }
    let css = path.split_once('@').map_or(path, |(css, _)| css);
    if css.is_empty() {
        return Ok(());
    }
    Selector::parse(css).map(|_| ()).map_err(|_| format!("`{css}` is no CSS selector"))
}

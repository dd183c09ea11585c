//! Sources that are crawled: every kind but `file`.

use std::collections::HashSet;

use async_trait::async_trait;
use mcpmill_core::{
    canonical::content_hash,
    edge::{FetchRequest, KeyHeader, Page},
};
use serde_json::Value;
use url::Url;

use super::{
    declare::{Declaration, Format, Mapper},
    html, map,
    marketplace::{Counts, CrawlContext, CrawlError, Kind, Listing, Marketplace},
    paging::Pages,
    pick,
    snapshot::Snapshot,
    tree,
};

/// A marketplace that is crawled.
pub(super) struct Source {
    id: String,
    declaration: Declaration,
}

impl Source {
    pub(super) fn new(id: &str, declaration: Declaration) -> Self {
        Self { id: id.to_owned(), declaration }
    }
}

#[async_trait]
impl Marketplace for Source {
    fn id(&self) -> &str {
        &self.id
    }

    async fn crawl(&self, cx: &CrawlContext, out: &mut (dyn FnMut(Listing) + Send + Sync)) -> Result<Counts, CrawlError> {
        let mut crawl = Crawl::new(&self.id, &self.declaration, cx, out);
        match self.declaration.kind {
            Kind::GitTree | Kind::McpServers => tree::read(&mut crawl)?,
            _ => Pages::new(&self.declaration, cx).follow(&mut crawl).await?,
        }
        Ok(crawl.finish())
    }
}

/// One crawl of one source.
pub(super) struct Crawl<'a> {
    pub id: &'a str,
    pub declaration: &'a Declaration,
    pub cx: &'a CrawlContext,
    out: &'a mut (dyn FnMut(Listing) + Send + Sync),
    previous: Option<Snapshot>,
    next: Option<Snapshot>,
    seen: HashSet<String>,
    pub counts: Counts,
    entries: u32,
}

impl<'a> Crawl<'a> {
    fn new(
        id: &'a str,
        declaration: &'a Declaration,
        cx: &'a CrawlContext,
        out: &'a mut (dyn FnMut(Listing) + Send + Sync),
    ) -> Self {
        let previous = cx.snapshots.as_ref().and_then(|kept| kept.load(id));
        let next = cx.snapshots.as_ref().map(|_| Snapshot::new(&cx.now));
        Self { id, declaration, cx, out, previous, next, seen: HashSet::new(), counts: Counts::default(), entries: 0 }
    }

    pub(super) fn fail(&self, reason: &'static str, cause: impl Into<String>) -> CrawlError {
        CrawlError { marketplace: self.id.to_owned(), reason, cause: cause.into() }
    }

    /// The time since which changes are asked for; `None` when everything is.
    pub(super) fn since(&self) -> Option<(&str, &str)> {
        let parameter = self.declaration.updated_since.as_deref()?;
        self.previous.as_ref().map(|snapshot| (parameter, snapshot.at.as_str())).filter(|(_, at)| !at.is_empty())
    }

    /// `text` with every `${name}` filled in.
    pub(super) fn filled(&self, text: &str) -> Result<String, CrawlError> {
        let mut text = text.to_owned();
        for (name, value) in &self.cx.values {
            text = text.replace(&format!("${{{name}}}"), value.trim_end_matches('/'));
        }
        match text.split_once("${").and_then(|(_, rest)| rest.split_once('}')) {
            Some((name, _)) => Err(self.fail("needs-setting", format!("`{name}` is not set"))),
            None => Ok(text),
        }
    }

    /// A page. A source whose key may be missing is asked without it then.
    pub(super) async fn fetch(&self, url: &str) -> Result<Page, CrawlError> {
        let fetch = self.cx.fetch.as_ref().ok_or_else(|| self.fail("not-available", "nothing may be fetched in this run"))?;
        let declared = self.declaration.key.as_ref();
        let key = declared.map(|k| KeyHeader { header: k.header.clone(), env: k.env.clone(), prefix: k.prefix.clone() });
        let keys = key.into_iter().chain(self.declaration.more_keys.iter().cloned()).collect();
        let accept = match self.declaration.kind {
            Kind::JsonApi => Some("application/json".to_owned()),
            _ => None,
        };
        let mut request = FetchRequest { url: url.to_owned(), accept, keys, per_minute: self.declaration.per_minute };
        let mut answer = fetch.fetch(&request).await;
        let optional = declared.is_some_and(|key| key.optional);
        if optional && matches!(&answer, Err(e) if matches!(e.kind, mcpmill_core::edge::FetchErrorKind::NoKey(_))) {
            request.keys.clear();
            answer = fetch.fetch(&request).await;
        }
        answer.map_err(|error| CrawlError::of_fetch(self.id, &error))
    }

    /// Whether an address is on the site of the declaration: keys go nowhere else, and no page leads elsewhere.
    pub(super) fn is_home(&self, url: &str) -> bool {
        let host = |url: &str| {
            Url::parse(url).ok().and_then(|url| Some((url.scheme().to_owned(), url.host_str()?.to_owned(), url.port())))
        };
        let starts = self.declaration.start.iter().filter_map(|start| self.filled(start).ok());
        host(url).is_some_and(|wanted| starts.filter_map(|start| host(&start)).any(|known| known == wanted))
    }

    /// Whether the declaration allows another entry.
    pub(super) fn is_full(&self) -> bool {
        self.entries >= self.declaration.max_entries
    }

    /// Takes an entry of a page. What is wrong with it alone becomes a listing with an error.
    pub(super) async fn take(&mut self, entry: Value) -> Result<(), CrawlError> {
        if !self.begin() {
            return Ok(());
        }
        let Some((name, hash)) = self.news(&entry) else { return Ok(()) };
        let whole = match &self.declaration.detail {
            Some(detail) if entry.is_object() => {
                let page = match self.address(&detail.url, &entry, &name) {
                    Ok(url) => self.fetch(&url).await.map_err(|error| (error.is_skip(), error)),
                    Err(cause) => Err((false, self.fail("bad-url", cause))),
                };
                match page {
                    Ok(page) => self.with_detail(entry, &page),
                    Err((true, error)) => return Err(error),
                    Err((false, error)) => Err(error.cause),
                }
            }
            _ => Ok(entry),
        };
        self.emit(&name, &hash, whole);
        Ok(())
    }

    /// Takes an entry that is complete.
    pub(super) fn take_whole(&mut self, entry: Value) {
        if self.begin()
            && let Some((name, hash)) = self.news(&entry)
        {
            self.emit(&name, &hash, Ok(entry));
        }
    }

    /// Takes an entry that could not even be read.
    pub(super) fn take_broken(&mut self, name: &str, cause: String) {
        if self.begin() {
            (self.out)(Listing { id: format!("{}#{name}", self.id), server: Err(cause), keys: Vec::new(), own: false });
        }
    }

    /// Takes a server as the user wrote it.
    pub(super) fn take_own(&mut self, draft: map::Draft) {
        if self.begin() {
            (self.out)(map::Draft { own: true, ..draft }.listing(self.id));
        }
    }

    /// Counts an entry, when one more is allowed.
    fn begin(&mut self) -> bool {
        self.counts.cut = self.counts.cut || self.is_full();
        self.entries = self.entries.saturating_add(1);
        !self.counts.cut
    }

    fn address(&self, template: &str, entry: &Value, name: &str) -> Result<String, String> {
        if template == "{url}" {
            let url = ["/homepage", "/url"].map(str::to_owned);
            let url = pick::text(entry, &url).ok_or("it names no page")?;
            return if self.is_home(&url) { Ok(url) } else { Err(format!("`{url}` is another site")) };
        }
        let url = pick::fill(template, entry, name)?;
        self.filled(&url).map_err(|error| error.cause)
    }

    /// The name and hash of an entry that is new or has changed; one that is as before is handed on at once.
    fn news(&mut self, entry: &Value) -> Option<(String, String)> {
        let name = pick::text(entry, &self.declaration.fields.name);
        let name = name.unwrap_or_else(|| format!("entry {}", self.entries));
        if self.next.is_none() {
            return Some((name, String::new()));
        }
        let hash = content_hash(entry)[..16].to_owned();
        let known = self.previous.as_ref().filter(|p| p.hash(&name) == Some(hash.as_str())).and_then(|p| p.listing(&name));
        let Some(listing) = known else { return Some((name, hash)) };
        if self.seen.insert(name.clone()) {
            self.counts.unchanged += 1;
            self.keep(&name, &hash, listing);
        }
        None
    }

    /// The entry with what its own page says laid over it.
    fn with_detail(&self, entry: Value, page: &Page) -> Result<Value, String> {
        let detail = self.declaration.detail.as_ref();
        let found = match detail.map(|d| d.format).unwrap_or_default() {
            Format::Json => serde_json::from_str(&page.body).map_err(|e| format!("its page is no JSON: {e}"))?,
            Format::Text => serde_json::json!({ "page": html::code(&page.body) }),
            Format::NextFlight => {
                let key = detail.and_then(|d| d.payload_key.as_deref()).unwrap_or_default();
                html::flight(&page.body, key).ok_or_else(|| format!("its page holds no `{key}`"))?
            }
        };
        let Value::Object(mut members) = entry else { return Ok(found) };
        match found {
            Value::Object(found) => members.extend(found.into_iter().filter(|(_, value)| !value.is_null())),
            other => drop(members.insert("detail".into(), other)),
        }
        Ok(Value::Object(members))
    }

    fn emit(&mut self, name: &str, hash: &str, entry: Result<Value, String>) {
        let gone = entry.as_ref().is_ok_and(|e| self.declaration.launch == Mapper::Registry && map::is_gone(e));
        let read = entry.and_then(|entry| map::draft(self.declaration, &entry));
        let known = self.previous.as_ref().is_some_and(|previous| previous.hash(name).is_some());
        match read {
            Ok(None) => {
                if gone && self.seen.insert(name.to_owned()) && known {
                    self.counts.gone += 1;
                }
            }
            Ok(Some(draft)) => {
                if self.seen.insert(name.to_owned()) {
                    *(if known { &mut self.counts.changed } else { &mut self.counts.added }) += 1;
                }
                self.keep(name, hash, draft.listing(self.id));
            }
            Err(cause) => {
                self.seen.insert(name.to_owned());
                let id = format!("{}#{}", self.id, mcpmill_core::text::shown(name, 200));
                (self.out)(Listing {
                    id,
                    server: Err(super::redact::redact(&cause).unwrap_or(cause)),
                    keys: Vec::new(),
                    own: false,
                });
            }
        }
    }

    fn keep(&mut self, name: &str, hash: &str, listing: Listing) {
        if let Some(next) = &mut self.next {
            next.push(name, hash, &listing);
        }
        (self.out)(listing);
    }

    /// The end of a crawl that came to the source's end: what only the snapshot has is unchanged when
    /// just changes were asked for, and gone otherwise.
    fn finish(mut self) -> Counts {
        let only_changes = self.since().is_some() || self.counts.cut;
        if let Some(previous) = self.previous.take() {
            for (key, hash) in previous.keys() {
                if self.seen.contains(key) {
                    continue;
                }
                match previous.listing(key).filter(|_| only_changes) {
                    Some(listing) => {
                        self.counts.unchanged += 1;
                        self.keep(key, hash, listing);
                    }
                    None => self.counts.gone += 1,
                }
            }
        }
        if let (Some(kept), Some(next)) = (&self.cx.snapshots, self.next) {
            kept.save(self.id, next);
        }
        self.counts
    }
}

//! Sources that are crawled: every kind but `file`.

use std::collections::HashSet;

use async_trait::async_trait;
use mcpmill_core::{
    canonical::canonical,
    edge::{FetchRequest, KeyHeader, Network, Page},
    secrets::redact,
};
use serde_json::Value;
use url::Url;

use super::{
    declare::{Declaration, Format},
    html, map,
    marketplace::{Counts, CrawlContext, CrawlError, KeyVariable, Kind, Listing, Marketplace},
    memory::{Item, Memory},
    paging::Pages,
    pick,
    snapshot::hashed,
    tree,
};

/// Refusals of single pages in a row that end a source.
const REFUSALS: u32 = 3;

/// A marketplace that is crawled.
pub(super) struct Source {
    id: String,
    declaration: Declaration,
    text: String,
}

impl Source {
    /// The source of a declaration, with its text.
    pub(super) fn new(id: &str, declaration: Declaration, text: &str) -> Self {
        Self { id: id.to_owned(), declaration, text: text.to_owned() }
    }
}

#[async_trait]
impl Marketplace for Source {
    fn id(&self) -> &str {
        &self.id
    }

    fn fixtures(&self) -> &[String] {
        &self.declaration.fixture
    }

    fn templates(&self) -> Vec<&str> {
        self.declaration.start.iter().chain(&self.declaration.path).map(String::as_str).collect()
    }

    fn network(&self) -> Network {
        self.declaration.network
    }

    fn keys(&self) -> Vec<KeyVariable> {
        let first = self.declaration.key.iter().map(|key| KeyVariable { name: key.env.clone(), required: !key.optional });
        let more = self.declaration.more_keys.iter().map(|key| KeyVariable { name: key.env.clone(), required: true });
        first.chain(more).collect()
    }

    async fn crawl(&self, cx: &CrawlContext, out: &mut (dyn FnMut(Listing) + Send + Sync)) -> Result<Counts, CrawlError> {
        let memory = Memory::begin(&self.id, &self.text, cx).await.map_err(|cause| CrawlError {
            marketplace: self.id.clone(),
            reason: "snapshot",
            cause,
            kept: 0,
        })?;
        let mut crawl = Crawl::new(&self.id, &self.declaration, cx, memory, out);
        let read = match self.declaration.kind {
            Kind::GitTree | Kind::McpServers => tree::read(&mut crawl),
            _ => Pages::new(&self.declaration, cx).follow(&mut crawl).await,
        };
        crawl.finish(read).await
    }
}

/// One crawl of one source.
pub(super) struct Crawl<'a> {
    pub id: &'a str,
    pub declaration: &'a Declaration,
    pub cx: &'a CrawlContext,
    out: &'a mut (dyn FnMut(Listing) + Send + Sync),
    memory: Memory,
    pub counts: Counts,
    entries: u32,
    /// Hashes of the entries that were told.
    told: HashSet<u64>,
    /// Pages of entries that were refused one after the other.
    refusals: u32,
}

impl<'a> Crawl<'a> {
    fn new(
        id: &'a str,
        declaration: &'a Declaration,
        cx: &'a CrawlContext,
        memory: Memory,
        out: &'a mut (dyn FnMut(Listing) + Send + Sync),
    ) -> Self {
        Self { id, declaration, cx, out, memory, counts: Counts::default(), entries: 0, told: HashSet::new(), refusals: 0 }
    }

    pub(super) fn fail(&self, reason: &'static str, cause: impl Into<String>) -> CrawlError {
        CrawlError { marketplace: self.id.to_owned(), reason, cause: cause.into(), kept: 0 }
    }

    /// The time since which changes are asked for; `None` when everything is.
    pub(super) fn since(&self) -> Option<(&str, &str)> {
        let parameter = self.declaration.updated_since.as_deref()?;
        self.memory.at().map(|at| (parameter, at))
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
        let keep = self.declaration.paging.next.clone();
        let mut request = FetchRequest { url: url.to_owned(), accept, keys, per_minute: self.declaration.per_minute, keep };
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
        // What is told twice word for word is one entry.
        let again = !self.told.insert(hashed(&canonical(&entry))) && entry.is_object();
        if again || !self.begin() {
            return Ok(());
        }
        let Some(item) = self.news(&entry) else { return Ok(()) };
        let Some(detail) = self.declaration.detail.as_ref().filter(|_| entry.is_object()) else {
            self.emit(&item, &entry);
            return Ok(());
        };
        match self.own_page(self.address(&detail.url, &entry, &item.name)).await? {
            Ok(page) => match self.with_detail(entry.clone(), &page) {
                Ok(whole) => self.emit(&Item { read: self.memory.today(), ..item }, &whole),
                Err(cause) => self.miss(&item, cause, entry),
            },
            Err(error) if error.reason == "not-found" => self.wait(&item, error.cause, entry),
            Err(error) => self.miss(&item, error.cause, entry),
        }
        Ok(())
    }

    /// A page that concerns one entry alone. Its failure is the entry's, unless the source refuses page after page.
    async fn own_page(&mut self, url: Result<String, String>) -> Result<Result<Page, CrawlError>, CrawlError> {
        let page = match url {
            Ok(url) => self.fetch(&url).await,
            Err(cause) => Err(self.fail("bad-url", cause)),
        };
        let refused = page.as_ref().is_err_and(CrawlError::is_skip);
        self.refusals = if refused { self.refusals + 1 } else { 0 };
        match page {
            Err(error) if refused && (error.reason != "source-refused" || self.refusals >= REFUSALS) => Err(error),
            page => Ok(page),
        }
    }

    /// Entries that were told, each counted once.
    pub(super) fn told(&self) -> usize {
        self.told.len()
    }

    /// Takes an entry that is complete.
    pub(super) fn take_whole(&mut self, entry: &Value) {
        if self.begin()
            && let Some(item) = self.news(entry)
        {
            self.emit(&item, entry);
        }
    }

    /// Takes an entry that could not even be read.
    pub(super) fn take_broken(&mut self, name: &str, cause: String) {
        if self.begin() {
            (self.out)(Listing { id: format!("{}#{name}", self.id), server: Err(cause), keys: Vec::new(), own: false });
        }
    }

    /// Takes a server as the user wrote it. What is remembered of it is what went through the door.
    pub(super) fn take_own(&mut self, draft: map::Draft) {
        if !self.begin() {
            return;
        }
        let listing = map::Draft { own: true, ..draft }.listing(self.id);
        let name = listing.server.as_ref().ok().map(|server| server.name.clone());
        let item = self.memory.item(name, self.entries, &serde_json::to_value(&listing).unwrap_or_default());
        match self.memory.as_before(&item) {
            Some(_) => self.memory.count_known(&item, &listing, &mut self.counts),
            None => self.memory.count(&item, &listing, &mut self.counts),
        }
        self.keep(&item, listing);
    }

    /// Counts an entry, when one more is allowed.
    fn begin(&mut self) -> bool {
        let full = self.is_full();
        self.counts.cut |= full;
        self.entries = self.entries.saturating_add(1);
        !full
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

    /// An entry that is new or has changed; one that is as before is handed on at once, unless its own page was
    /// read too long ago.
    fn news(&mut self, entry: &Value) -> Option<Item> {
        let mut item = self.memory.item(pick::text(entry, &self.declaration.fields.name), self.entries, entry);
        let Some((listing, read)) = self.memory.as_before(&item) else { return Some(item) };
        if let Some(detail) = self.declaration.detail.as_ref().filter(|_| entry.is_object()) {
            item.known = Some(listing.clone());
            item.read = read;
            if self.memory.today().saturating_sub(read) >= detail.days {
                return Some(item);
            }
        }
        self.keep_known(&item, listing);
        None
    }

    /// The entry with what its own page says laid over it.
    fn with_detail(&self, entry: Value, page: &Page) -> Result<Value, String> {
        let detail = self.declaration.detail.as_ref();
        let found = match detail.map(|d| d.format).unwrap_or_default() {
            Format::Json => pick::json(&page.body).map_err(|e| format!("its page is no JSON: {e}"))?,
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

    fn emit(&mut self, item: &Item, entry: &Value) {
        match map::draft(self.declaration, entry) {
            Ok(Some(draft)) => {
                let listing = draft.listing(self.id);
                self.memory.count(item, &listing, &mut self.counts);
                self.keep(item, listing);
            }
            Ok(None) => {
                let withdrawn = map::withdrawn(entry);
                // A crawl of everything sees by itself what is listed in place of an old version.
                if withdrawn.deleted || self.since().is_some() {
                    self.memory.doubt(&item.name, withdrawn.version.as_deref(), withdrawn.latest, entry);
                }
            }
            Err(cause) => {
                let broken = self.broken(&item.name, cause);
                self.keep(item, broken);
            }
        }
    }

    /// Without its page an entry is what it was before, if it was known at all.
    fn miss(&mut self, item: &Item, cause: String, entry: Value) {
        match item.known.clone() {
            Some(known) => self.keep_known(item, known),
            None => self.wait(item, cause, entry),
        }
    }

    /// Hands on that a page of an entry cannot be read, and has it read again the next time.
    fn wait(&mut self, item: &Item, cause: String, entry: Value) {
        let broken = self.broken(&item.name, cause);
        self.memory.wait(&item.key, entry);
        (self.out)(broken);
    }

    fn broken(&self, name: &str, cause: String) -> Listing {
        let id = format!("{}#{}", self.id, mcpmill_core::text::shown(name, 200));
        Listing { id, server: Err(redact(&cause).unwrap_or(cause)), keys: Vec::new(), own: false }
    }

    /// Hands on what was made of an entry before.
    fn keep_known(&mut self, item: &Item, listing: Listing) {
        self.memory.count_known(item, &listing, &mut self.counts);
        self.keep(item, listing);
    }

    fn keep(&mut self, item: &Item, listing: Listing) {
        self.memory.keep(item, &listing);
        (self.out)(listing);
    }

    /// The end of a crawl. One that did not come to the source's end leaves what it has not seen as it was, and
    /// the next one asks for the same again.
    async fn finish(mut self, read: Result<(), CrawlError>) -> Result<Counts, CrawlError> {
        let only_changes = self.since().is_some();
        let read = match read.and_then(|()| self.something()) {
            Ok(()) => self.clear_up(only_changes).await,
            failed => failed,
        };
        self.counts.cut |= read.is_err();
        let Self { memory, mut counts, out, .. } = self;
        let kept = memory.finish(only_changes, &mut counts, out);
        read.map(|()| counts).map_err(|error| CrawlError { kept, ..error })
    }

    /// A source of which everything was asked lists something: where it did before, or is made of web pages, nothing at
    /// all means that it cannot be read any more.
    fn something(&self) -> Result<(), CrawlError> {
        let known = self.memory.known();
        let written = matches!(self.declaration.kind, Kind::Html | Kind::MarkdownList);
        // Users may take out all of their own servers.
        let own = self.declaration.kind == Kind::McpServers;
        match self.entries > 0 || self.since().is_some() || own {
            false if known > 0 => Err(self.fail("empty-listing", format!("it lists nothing, and {known} entries before"))),
            false if written => Err(self.fail("empty-listing", "its pages hold no entry")),
            _ => Ok(()),
        }
    }

    /// Where only changes were asked for, what waits is read again, and what a deleted version leaves behind is asked
    /// for.
    async fn clear_up(&mut self, only_changes: bool) -> Result<(), CrawlError> {
        if only_changes {
            for entry in self.memory.waiting() {
                self.take(entry).await?;
            }
        }
        for (name, entry) in self.memory.doubts() {
            match self.declaration.latest.as_ref().filter(|_| only_changes) {
                Some(latest) => self.settle(latest, &name, entry).await?,
                None => self.memory.drop_out(&name, &mut self.counts),
            }
        }
        Ok(())
    }

    /// Asks which version of a server is the latest now that another one is not.
    async fn settle(&mut self, latest: &str, name: &str, entry: Value) -> Result<(), CrawlError> {
        let found = match self.own_page(self.address(latest, &entry, name)).await? {
            Ok(page) => pick::json(&page.body).map_err(|e| format!("its latest version is no JSON: {e}")),
            Err(error) if error.reason == "not-found" => {
                self.memory.drop_out(name, &mut self.counts);
                return Ok(());
            }
            Err(error) => Err(error.cause),
        };
        let item = self.memory.item(Some(name.to_owned()), self.entries, found.as_ref().unwrap_or(&entry));
        match found {
            Ok(found) => match map::draft(self.declaration, &found) {
                Ok(None) => self.memory.drop_out(name, &mut self.counts),
                _ => self.emit(&item, &found),
            },
            Err(cause) => self.wait(&item, cause, entry),
        }
        Ok(())
    }
}

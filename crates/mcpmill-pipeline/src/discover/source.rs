//! Sources that are crawled: every kind but `file`.

use async_trait::async_trait;
use mcpmill_core::{
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
    pick, tree,
};

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
        })?;
        let mut crawl = Crawl::new(&self.id, &self.declaration, cx, memory, out);
        match self.declaration.kind {
            Kind::GitTree | Kind::McpServers => tree::read(&mut crawl)?,
            _ => Pages::new(&self.declaration, cx).follow(&mut crawl).await?,
        }
        crawl.finish().await
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
}

impl<'a> Crawl<'a> {
    fn new(
        id: &'a str,
        declaration: &'a Declaration,
        cx: &'a CrawlContext,
        memory: Memory,
        out: &'a mut (dyn FnMut(Listing) + Send + Sync),
    ) -> Self {
        Self { id, declaration, cx, out, memory, counts: Counts::default(), entries: 0 }
    }

    pub(super) fn fail(&self, reason: &'static str, cause: impl Into<String>) -> CrawlError {
        CrawlError { marketplace: self.id.to_owned(), reason, cause: cause.into() }
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
        let Some(item) = self.news(&entry) else { return Ok(()) };
        let Some(detail) = self.declaration.detail.as_ref().filter(|_| entry.is_object()) else {
            self.emit(&item, &entry);
            return Ok(());
        };
        let page = match self.address(&detail.url, &entry, &item.name) {
            Ok(url) => self.fetch(&url).await,
            Err(cause) => Err(self.fail("bad-url", cause)),
        };
        match page {
            Ok(page) => match self.with_detail(entry.clone(), &page) {
                Ok(whole) => self.emit(&item, &whole),
                Err(cause) => self.wait(&item, cause, entry),
            },
            Err(error) if error.is_skip() => return Err(error),
            Err(error) => self.wait(&item, error.cause, entry),
        }
        Ok(())
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

    /// An entry that is new or has changed; one that is as before is handed on at once.
    fn news(&mut self, entry: &Value) -> Option<Item> {
        let item = self.memory.item(pick::text(entry, &self.declaration.fields.name), self.entries, entry);
        let Some(listing) = self.memory.unchanged(&item, &mut self.counts) else { return Some(item) };
        self.keep(&item, listing);
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

    fn emit(&mut self, item: &Item, entry: &Value) {
        match map::draft(self.declaration, entry) {
            Ok(Some(draft)) => {
                self.memory.count(item, &mut self.counts);
                self.keep(item, draft.listing(self.id));
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

    fn keep(&mut self, item: &Item, listing: Listing) {
        self.memory.keep(item, &listing);
        (self.out)(listing);
    }

    /// The end of a crawl that came to the source's end. Where only changes were asked for, what waits is
    /// read again, and what a deleted version leaves behind is asked for.
    async fn finish(mut self) -> Result<Counts, CrawlError> {
        let only_changes = self.since().is_some();
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
        let Self { memory, mut counts, out, .. } = self;
        memory.finish(only_changes, &mut counts, out);
        Ok(counts)
    }

    /// Asks which version of a server is the latest now that another one is not.
    async fn settle(&mut self, latest: &str, name: &str, entry: Value) -> Result<(), CrawlError> {
        let answer = match self.address(latest, &entry, name) {
            Ok(url) => self.fetch(&url).await,
            Err(cause) => Err(self.fail("bad-url", cause)),
        };
        let found = match answer {
            Ok(page) => serde_json::from_str::<Value>(&page.body).map_err(|e| format!("its latest version is no JSON: {e}")),
            Err(error) if error.reason == "not-found" => {
                self.memory.drop_out(name, &mut self.counts);
                return Ok(());
            }
            Err(error) if error.is_skip() => return Err(error),
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

//! From one page of a source to the next.

use std::collections::HashSet;

use mcpmill_core::{edge::Page, secrets::REDACTED, text::shown};
use serde_json::Value;
use url::Url;

use super::{
    dates,
    declare::{Declaration, Paging, Split, Style},
    html, markdown,
    marketplace::{CrawlContext, CrawlError, Kind},
    pick,
    redact_page::ESCAPED,
    snapshot::hashed,
    source::Crawl,
};

/// The pages of one source.
pub(super) struct Pages<'a> {
    declaration: &'a Declaration,
    today: i64,
    left: u32,
}

/// A page that was read.
struct Read {
    entries: Vec<Value>,
    body: Value,
    next: Option<String>,
}

/// How far a chain of pages has come.
#[derive(Default)]
struct Way {
    /// The next page or offset.
    number: u64,
    /// Entries of pages that told something new.
    seen: u64,
    /// Entries that there are, where the source says so.
    total: Option<u64>,
}

impl Way {
    /// Goes on by one page, or by what it held: a site may show fewer entries a page than it is asked for.
    fn step(&mut self, paging: &Paging, read: &Read) {
        let step = if paging.style == Style::Page { 1 } else { read.entries.len() as u64 };
        self.number = self.number.saturating_add(step);
        self.total = pick::text(&read.body, &paging.total).and_then(|total| total.parse().ok()).or(self.total);
    }

    fn is_over(&self) -> bool {
        self.total.is_some_and(|total| self.seen >= total)
    }

    /// Notes when the end came before the source's own.
    fn end(&self, crawl: &mut Crawl<'_>) {
        crawl.counts.cut |= self.total.is_some() && !self.is_over();
    }
}

impl<'a> Pages<'a> {
    pub(super) fn new(declaration: &'a Declaration, cx: &CrawlContext) -> Self {
        Self { declaration, today: dates::day(&cx.now).unwrap_or(20_500), left: declaration.max_pages }
    }

    /// Hands every entry of every page to the crawl.
    pub(super) async fn follow(mut self, crawl: &mut Crawl<'_>) -> Result<(), CrawlError> {
        for start in &self.declaration.start {
            let mut start = crawl.filled(start)?;
            if let Some((parameter, since)) = crawl.since() {
                start = pick::with_param(&start, parameter, since);
            }
            match &self.declaration.split {
                Some(split) => self.split(&start, split, crawl).await?,
                None => self.chain(start, None, crawl).await?,
            }
        }
        Ok(())
    }

    /// One chain of pages from its first one, which may have been fetched already.
    async fn chain(&mut self, start: String, first: Option<Read>, crawl: &mut Crawl<'_>) -> Result<(), CrawlError> {
        let mut url = self.first(&start);
        let mut known = HashSet::from([hashed(&url)]);
        let mut ready = first;
        let mut way = Way { number: self.declaration.paging.first, ..Way::default() };
        loop {
            let follows = known.len() > 1;
            let read = match ready.take() {
                Some(read) => read,
                None if !self.may_fetch(crawl) => return Ok(()),
                None => match self.fetch(&url, follows, crawl).await {
                    // Some sites have no page beyond the last one.
                    Err(error) if follows && error.reason == "not-found" && !self.is_opaque() => {
                        way.end(crawl);
                        return Ok(());
                    }
                    read => read?,
                },
            };
            crawl.counts.cut |= pick::value(&read.body, &self.declaration.paging.incomplete) == Some(&Value::Bool(true));
            way.step(&self.declaration.paging, &read);
            let next = self.next(&start, &url, &way, &read, crawl);
            let (told, count) = (crawl.told(), read.entries.len() as u64);
            for entry in read.entries {
                crawl.take(entry).await?;
            }
            let news = crawl.told() > told;
            way.seen += if news { count } else { 0 };
            // A site may repeat its last page without end. Where it names the next one itself, it is believed.
            let Some(next) = next?.filter(|_| (news && !way.is_over()) || self.is_opaque()) else {
                way.end(crawl);
                return Ok(());
            };
            if !crawl.is_home(&next) {
                return Err(crawl.fail("bad-cursor", format!("the next page is on another site: `{}`", shown(&next, 200))));
            }
            if !known.insert(hashed(&next)) {
                return Err(crawl.fail("stuck-cursor", format!("`{}` was read before", shown(&next, 200))));
            }
            url = next;
        }
    }

    /// A page; one that comes after another and is refused as wrongly asked for had a wrong cursor.
    async fn fetch(&self, url: &str, follows: bool, crawl: &Crawl<'_>) -> Result<Read, CrawlError> {
        let page = crawl.fetch(url).await.map_err(|error| match error.reason {
            "bad-request" if follows && self.is_opaque() => CrawlError { reason: "bad-cursor", ..error },
            _ => error,
        })?;
        read_page(crawl, &page)
    }

    /// Whether the source itself says where the end is: an empty page is none then.
    fn is_opaque(&self) -> bool {
        matches!(self.declaration.paging.style, Style::Cursor | Style::NextUrl | Style::LinkHeader)
    }

    fn may_fetch(&mut self, crawl: &mut Crawl<'_>) -> bool {
        let may = self.left > 0 && !crawl.is_full();
        self.left = self.left.saturating_sub(1);
        crawl.counts.cut = crawl.counts.cut || !may;
        may
    }

    fn first(&self, start: &str) -> String {
        let paging = &self.declaration.paging;
        match (&paging.param, paging.style) {
            (Some(param), Style::Page | Style::Offset) => pick::with_param(start, param, &paging.first.to_string()),
            _ => start.to_owned(),
        }
    }

    /// The address of the page after this one.
    fn next(&self, start: &str, url: &str, way: &Way, read: &Read, crawl: &Crawl<'_>) -> Result<Option<String>, CrawlError> {
        let paging = &self.declaration.paging;
        if pick::value(&read.body, &paging.more).and_then(Value::as_bool) == Some(false) {
            return Ok(None);
        }
        let param = paging.param.as_deref().unwrap_or_default();
        match paging.style {
            Style::None => Ok(None),
            Style::LinkHeader => Ok(read.next.clone()),
            Style::Cursor => match pick::value(&read.body, &paging.next) {
                None => Ok(None),
                Some(Value::String(cursor)) if cursor.is_empty() => Ok(None),
                Some(cursor @ (Value::String(_) | Value::Number(_))) => {
                    Ok(pick::plain(cursor).map(|cursor| pick::with_param(start, param, &cursor)))
                }
                Some(other) => Err(crawl.fail("bad-cursor", format!("the next cursor is {}", shown(&other.to_string(), 100)))),
            },
            Style::NextUrl => match pick::text(&read.body, &paging.next) {
                None => Ok(None),
                Some(next) => joined(url, &next)
                    .map(Some)
                    .ok_or_else(|| crawl.fail("bad-cursor", format!("the next page is `{}`", shown(&next, 200)))),
            },
            Style::Page | Style::Offset => {
                let pages = pick::text(&read.body, &paging.total_pages).and_then(|pages| pages.parse::<u64>().ok());
                let ended =
                    read.entries.is_empty() || pages.is_some_and(|pages| way.number >= pages.saturating_add(paging.first));
                Ok((!ended).then(|| pick::with_param(start, param, &way.number.to_string())))
            }
        }
    }

    /// A search whose results are more than are shown is asked again for each half of its days.
    async fn split(&mut self, start: &str, split: &Split, crawl: &mut Crawl<'_>) -> Result<(), CrawlError> {
        let from = dates::day(&split.from).unwrap_or(self.today);
        let mut ranges = vec![(from, self.today.max(from))];
        while let Some((from, to)) = ranges.pop() {
            if !self.may_fetch(crawl) {
                return Ok(());
            }
            let url = start.replace("{from}", &dates::date(from)).replace("{to}", &dates::date(to));
            let read = read_page(crawl, &crawl.fetch(&self.first(&url)).await?)?;
            let total = pick::text(&read.body, &split.total).and_then(|total| total.parse::<u64>().ok()).unwrap_or(0);
            if total > split.limit && from < to {
                let middle = from + (to - from) / 2;
                // The earlier half is on top.
                ranges.extend([(middle + 1, to), (from, middle)]);
                continue;
            }
            crawl.counts.cut = crawl.counts.cut || total > split.limit;
            self.chain(url, Some(read), crawl).await?;
        }
        Ok(())
    }
}

/// `next` as an address of the web, relative to the page it stands on.
pub(super) fn joined(page: &str, next: &str) -> Option<String> {
    let url = Url::parse(page).ok()?.join(next).ok()?;
    matches!(url.scheme(), "http" | "https").then(|| url.to_string())
}

fn read_page(crawl: &Crawl<'_>, page: &Page) -> Result<Read, CrawlError> {
    let declaration = crawl.declaration;
    match declaration.kind {
        Kind::Html => Ok(Read { entries: html::entries(declaration, page), body: Value::Null, next: page.next.clone() }),
        // What was cut out of it was written as in a web page.
        Kind::MarkdownList => {
            let text = page.body.replace(ESCAPED, REDACTED);
            Ok(Read { entries: markdown::entries(&text), body: Value::Null, next: None })
        }
        _ => json_page(crawl, page),
    }
}

fn json_page(crawl: &Crawl<'_>, page: &Page) -> Result<Read, CrawlError> {
    let mut body: Value = pick::json(&page.body).map_err(|error| {
        let reason = if error.is_eof() && !page.body.trim().is_empty() { "cut-off" } else { "not-json" };
        crawl.fail(reason, format!("`{}`: {error}", shown(&page.url, 200)))
    })?;
    let pointers = &crawl.declaration.entries;
    let place = pointers.iter().find(|pointer| body.pointer(pointer).is_some_and(Value::is_array));
    let Some(Value::Array(entries)) = place.and_then(|pointer| body.pointer_mut(pointer)).map(Value::take) else {
        let said = body.get("error").map(|e| format!(" and says {}", shown(&e.to_string(), 200))).unwrap_or_default();
        return Err(
            crawl.fail("unknown-shape", format!("`{}` has no list at {}{said}", shown(&page.url, 200), pointers.join(", ")))
        );
    };
    Ok(Read { entries, body, next: page.next.clone() })
}

//! The polite crawler: it fetches documents of marketplaces as their hosts would have it, and only
//! from the public internet.
//!
//! It says who it is, follows robots.txt, keeps a pace per host, takes pauses it is asked for, asks only
//! for what changed, and leaves a site alone that does not want it. It keeps no cookies.

mod address;
mod body;
mod cache;
mod crawl;
mod headers;
mod keys;
mod pace;
mod reach;
mod robots;

use std::{
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{Fetch, FetchError, FetchErrorKind, FetchRequest, Page},
    secrets::redact_url,
};
use reqwest::{Client, ClientBuilder, Proxy, Url};
use thiserror::Error;

pub(crate) use headers::retry_after;
pub use reach::Reach;

use crate::secret::Secret;
use address::Resolver;
use body::Caps;
use cache::{Cache, Entry};
use crawl::{Answer, Document, Trip};
use keys::Keys;
use pace::Host;

/// Characters of an address that are shown in errors.
const SHOWN: usize = 300;
const BYTE_ORDER_MARK: char = '\u{feff}';
/// Hosts that are remembered. Beyond it those are forgotten that nobody waits for.
const HOSTS: usize = 1024;

/// Cleans a page, given the pointers to what stays of it; `None` when there is nothing to clean.
pub type Clean = fn(&str, &[String]) -> Option<String>;

/// How the crawler behaves, and what it may do.
#[derive(Clone, Debug)]
pub struct CrawlerSettings {
    /// Where pages are kept. It is made when it is not there.
    pub cache: PathBuf,
    /// Bytes the folder may have when a crawler is made; the oldest pages go first.
    pub cache_bytes: u64,
    /// Whether nothing is sent, and only kept pages are given.
    pub offline: bool,
    /// Whom a host can turn to: an address of a page or of a mailbox. It stands in the user agent.
    pub contact: Option<String>,
    /// Requests a minute to one host; 0 is no limit.
    pub per_minute: u32,
    /// Requests to one host that need not wait for the pace.
    pub burst: u32,
    /// Requests to one host in flight.
    pub concurrency: usize,
    /// Tries after the first.
    pub retries: usize,
    /// The pause before the second try when the host names none; it doubles with each further one.
    pub first_pause: Duration,
    /// A longer pause is not waited for: the fetch fails and says so.
    pub longest_pause: Duration,
    /// Time for a connection to come about.
    pub connect_timeout: Duration,
    /// Time for one try, with all of its body.
    pub timeout: Duration,
    /// Bytes of a body on the wire.
    pub largest_body: u64,
    /// Bytes of a body after decompression.
    pub largest_text: u64,
    /// Hosts with ports (`127.0.0.1:8080`) that may be on loopback. Nothing else may.
    pub allow_loopback: Vec<String>,
    /// The proxy to use. Without it the settings of the environment are not followed either: only direct
    /// connections can be checked for where they go.
    pub proxy: Option<Secret>,
    /// Values of variables that requests name as keys.
    pub keys: HashMap<String, Secret>,
    /// What a page goes through before it is kept or handed on; `None` leaves it as it is.
    pub clean: Option<Clean>,
}

impl CrawlerSettings {
    /// Careful settings, with the cache in a folder.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            cache_bytes: 2 << 30,
            offline: false,
            contact: None,
            per_minute: 60,
            burst: 4,
            concurrency: 2,
            retries: 3,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(120),
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            largest_body: 16 << 20,
            largest_text: 64 << 20,
            allow_loopback: Vec::new(),
            proxy: None,
            keys: HashMap::new(),
            clean: None,
        }
    }
}

/// A crawler that cannot be set up.
#[derive(Debug, Error)]
#[error("failed to set up the crawler: {0}")]
pub struct CrawlerError(String);

/// Fetches pages politely.
pub struct Crawler {
    settings: CrawlerSettings,
    cache: Cache,
    keys: Keys,
    /// For the public internet.
    public: Client,
    /// For hosts that may be on loopback.
    loopback: Client,
    hosts: Mutex<HashMap<String, Arc<Host>>>,
}

impl Crawler {
    /// A crawler; nothing is sent yet. Old pages are evicted when the cache has grown too large.
    ///
    /// # Errors
    /// The cache cannot be written, the contact has characters that no header can carry, or the proxy's
    /// address is none.
    pub fn new(settings: CrawlerSettings) -> Result<Self, CrawlerError> {
        let cache = Cache { folder: settings.cache.clone(), largest: settings.largest_text };
        let fail = |e: io::Error| CrawlerError(format!("the cache in `{}`: {e}", settings.cache.display()));
        fs::create_dir_all(&cache.folder).and_then(|()| cache.prune(settings.cache_bytes)).map_err(fail)?;
        let build = |builder: ClientBuilder| builder.build().map_err(|e| CrawlerError(e.without_url().to_string()));
        let public = match &settings.proxy {
            Some(Secret(proxy)) => {
                let proxy = Proxy::all(proxy).map_err(|_| CrawlerError("the address of the proxy is none".into()))?;
                build(client(&settings)?.proxy(proxy))?
            }
            None => build(client(&settings)?.no_proxy().dns_resolver(Resolver { loopback: false }))?,
        };
        let loopback = build(client(&settings)?.no_proxy().dns_resolver(Resolver { loopback: true }))?;
        let keys = Keys::new(&settings.keys);
        Ok(Self { cache, keys, public, loopback, hosts: Mutex::default(), settings })
    }

    /// Evicts the oldest pages until the cache has at most so many bytes.
    ///
    /// # Errors
    /// The folder cannot be read, or a file not be removed.
    pub fn prune(&self, largest: u64) -> io::Result<()> {
        self.cache.prune(largest)
    }

    async fn page(&self, request: &FetchRequest) -> Result<Page, FetchErrorKind> {
        let start = address::usable(&request.url, &self.settings.allow_loopback)?;
        let name = cache::name_of(request);
        let kept = self.cache.load(&name).await;
        if self.settings.offline {
            return kept.map(|entry| page_of(entry, true)).ok_or(FetchErrorKind::Offline);
        }
        let keys = self.keys.headers(request)?;
        if !keys.is_empty() && !address::is_private_channel(&start, &self.settings.allow_loopback) {
            return Err(FetchErrorKind::BadUrl("a key is not sent over plain `http`".into()));
        }
        let trip = Trip {
            start,
            accept: request.accept.as_deref(),
            keys,
            kept: kept.as_ref(),
            interval: request.per_minute.map(pace::interval),
            obeys_robots: true,
            caps: Caps { wire: self.settings.largest_body, plain: self.settings.largest_text, cut: false },
        };
        match Box::pin(self.follow(&trip)).await? {
            Answer::Unchanged => {
                self.cache.touch(&name).await;
                kept.map(|entry| page_of(entry, true)).ok_or(FetchErrorKind::Status(304))
            }
            Answer::Document(document) => self.keep(&name, kept.as_ref(), document, &request.keep).await,
            Answer::Moved(_) => Err(FetchErrorKind::BadUrl("it moved without end".into())),
        }
    }

    /// Puts a new document into the cache, unless its host does not want that.
    async fn keep(
        &self,
        name: &str,
        kept: Option<&Entry>,
        document: Document,
        members: &[String],
    ) -> Result<Page, FetchErrorKind> {
        let no_store = document.no_store;
        let entry = self.entry(document, members);
        let unchanged = kept.is_some_and(|kept| (&kept.body, &kept.next) == (&entry.body, &entry.next));
        if no_store {
            self.cache.remove(name).await?;
            return Ok(page_of(entry, unchanged));
        }
        Ok(page_of(self.cache.store(name, entry).await?, unchanged))
    }

    /// A document as it is kept and handed on: as text, and without our keys should the host echo them.
    fn entry(&self, document: Document, members: &[String]) -> Entry {
        let mut body = String::from_utf8(document.body).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        if body.starts_with(BYTE_ORDER_MARK) {
            body.drain(..BYTE_ORDER_MARK.len_utf8());
        }
        if let Some(clean) = self.settings.clean.and_then(|clean| clean(&body, members)) {
            body = clean;
        }
        let scrub = |text: Option<String>| text.map(|text| self.keys.scrub(text));
        Entry {
            url: redact_url(&self.keys.scrub(document.url.into())),
            content_type: scrub(document.content_type),
            next: scrub(document.next).as_deref().map(redact_url),
            etag: scrub(document.etag),
            last_modified: scrub(document.last_modified),
            stored: seconds_since_1970(),
            body: self.keys.scrub(body),
            ..Entry::default()
        }
    }

    /// What is known of the host of an address.
    fn host(&self, url: &Url) -> Arc<Host> {
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let name = format!("{}{port}", url.host_str().unwrap_or_default());
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= HOSTS && !hosts.contains_key(&name) {
            hosts.retain(|_, host| Arc::strong_count(host) > 1 || !host.is_idle());
        }
        hosts.entry(name).or_insert_with(|| Arc::new(Host::new(&self.settings))).clone()
    }

    /// An address as errors show it: without user information and keys, and not endless.
    fn shown(&self, address: &str) -> String {
        let shown = match (Url::parse(address), address.split_once("//"), address.rsplit_once('@')) {
            (Ok(mut url), ..) => {
                // Both fail only where there is no host, and so no user.
                let _ = url.set_username("");
                let _ = url.set_password(None);
                url.into()
            }
            (Err(_), Some((scheme, _)), Some((_, rest))) => format!("{scheme}//{rest}"),
            (Err(_), ..) => address.to_owned(),
        };
        self.keys.scrub(shown).chars().take(SHOWN).collect()
    }
}

#[async_trait]
impl Fetch for Crawler {
    async fn fetch(&self, request: &FetchRequest) -> Result<Page, FetchError> {
        Box::pin(self.page(request)).await.map_err(|kind| {
            let kind = match kind {
                FetchErrorKind::Network(text) => FetchErrorKind::Network(self.keys.scrub(text)),
                FetchErrorKind::Unreadable(text) => FetchErrorKind::Unreadable(self.keys.scrub(text)),
                kind => kind,
            };
            FetchError { url: self.shown(&request.url), kind }
        })
    }
}

/// What both clients have in common.
fn client(settings: &CrawlerSettings) -> Result<ClientBuilder, CrawlerError> {
    let about = settings.contact.as_ref().map(|contact| format!("+{contact}"));
    let about = about.unwrap_or_else(|| "collects descriptions of MCP servers".into());
    let agent = format!("mcpmill/{} ({about})", env!("CARGO_PKG_VERSION"));
    let agent = reqwest::header::HeaderValue::from_str(&agent)
        .map_err(|_| CrawlerError("the contact has characters that no header can carry".into()))?;
    let builder = Client::builder()
        .user_agent(agent)
        // Each hop is checked before it is taken.
        .redirect(reqwest::redirect::Policy::none())
        // Unpacked here, where it can be bounded.
        .no_gzip()
        .connect_timeout(settings.connect_timeout)
        .timeout(settings.timeout);
    Ok(builder)
}

fn page_of(entry: Entry, unchanged: bool) -> Page {
    Page { url: entry.url, content_type: entry.content_type, body: entry.body, next: entry.next, unchanged }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

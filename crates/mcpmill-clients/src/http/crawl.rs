//! The way from an address to a document: hops, tries, and what an answer means.

use std::time::{Duration, SystemTime};

use backon::{BackoffBuilder, ExponentialBuilder};
use mcpmill_core::edge::FetchErrorKind;
use reqwest::{
    Response, StatusCode, Url,
    header::{
        ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, ETAG, HeaderMap, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED,
        LOCATION,
    },
};

use super::{
    Crawler, address,
    body::{self, Caps},
    cache::{self, Entry},
    headers,
    pace::Host,
    robots::Robots,
    seconds_since_1970,
};

/// Redirects that are followed.
const REDIRECTS: usize = 5;
/// Bytes of a robots.txt that are read.
const LARGEST_ROBOTS: u64 = 500 << 10;
/// Seconds for which a robots.txt on disk is good.
const ROBOTS_AGE: u64 = 86_400;
/// Bytes of a refusal that are looked at.
const LARGEST_REFUSAL: u64 = 64 << 10;
/// What a site does that wants to see a person.
const BOT_CHECK: &str = "a bot check";

/// What is fetched, from its first address on.
pub(super) struct Trip<'a> {
    pub start: Url,
    pub accept: Option<&'a str>,
    /// Headers with the user's keys, for the first host alone.
    pub keys: HeaderMap,
    /// What the last time brought.
    pub kept: Option<&'a Entry>,
    /// Time between two requests, when the usual one is too short.
    pub interval: Option<Duration>,
    /// Not so for robots.txt itself.
    pub obeys_robots: bool,
    pub caps: Caps,
}

/// What one address answers.
pub(super) enum Answer {
    Document(Document),
    /// It is still what is kept.
    Unchanged,
    Moved(Url),
}

/// A document with what its headers say.
pub(super) struct Document {
    pub url: Url,
    pub content_type: Option<String>,
    pub next: Option<String>,
    pub etag: Option<String>,
    pub last_modified: Option<String>,
    pub no_store: bool,
    pub body: Vec<u8>,
}

/// A try that failed.
struct Failure {
    kind: FetchErrorKind,
    /// What the host asks for.
    pause: Option<Duration>,
}

impl From<FetchErrorKind> for Failure {
    fn from(kind: FetchErrorKind) -> Self {
        Self { kind, pause: None }
    }
}

impl Failure {
    /// Whether another try makes sense.
    fn is_passing(&self) -> bool {
        match self.kind {
            FetchErrorKind::RateLimited(_) | FetchErrorKind::Network(_) | FetchErrorKind::TimedOut => true,
            FetchErrorKind::Status(status) => status >= 500 || status == 408,
            _ => false,
        }
    }
}

impl Crawler {
    /// Goes from address to address until there is a document. Each is checked like the first.
    pub(super) async fn follow(&self, trip: &Trip<'_>) -> Result<Answer, FetchErrorKind> {
        let mut url = trip.start.clone();
        // A key that was once left behind does not come back.
        let mut with_keys = !trip.keys.is_empty();
        for _ in 0..=REDIRECTS {
            let host = self.host(&url);
            if let Some(interval) = trip.interval {
                host.slow_to(interval);
            }
            if trip.obeys_robots {
                Box::pin(self.ask_robots(&host, &url)).await?;
            }
            let headers = headers_for(trip, &url, with_keys)?;
            match Box::pin(self.persist(&host, trip, &url, &headers)).await? {
                Answer::Moved(next) => {
                    address::check(&next, &self.settings.allow_loopback)?;
                    if !trip.keys.is_empty() && url.scheme() == "https" && next.scheme() == "http" {
                        return Err(FetchErrorKind::BadUrl("it redirects a request with a key to plain `http`".into()));
                    }
                    with_keys &= next.origin() == trip.start.origin();
                    url = next;
                }
                answer => return Ok(answer),
            }
        }
        Err(FetchErrorKind::BadUrl(format!("it redirects more than {REDIRECTS} times")))
    }

    /// Whether the host's robots.txt allows an address.
    async fn ask_robots(&self, host: &Host, url: &Url) -> Result<(), FetchErrorKind> {
        let cell = &host.robots[usize::from(url.scheme() == "https")];
        // A failure is not kept: the next request tries again.
        let robots = cell.get_or_try_init(|| self.robots(url)).await?;
        if let Some(delay) = robots.delay {
            host.slow_to(delay.min(self.settings.longest_pause));
        }
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        if robots.allows(&format!("{}{query}", url.path())) { Ok(()) } else { Err(FetchErrorKind::Robots) }
    }

    /// The robots.txt of a host, from disk or from the host.
    async fn robots(&self, url: &Url) -> Result<Robots, FetchErrorKind> {
        let mut start = url.clone();
        start.set_path("/robots.txt");
        start.set_query(None);
        let name = cache::name_of_robots(start.as_str());
        let kept = self.cache.load(&name).await;
        if let Some(entry) = kept.filter(|entry| seconds_since_1970().saturating_sub(entry.stored) < ROBOTS_AGE) {
            return Ok(Robots::parse(&entry.body));
        }
        let trip = Trip {
            start: start.clone(),
            accept: Some("text/plain"),
            keys: HeaderMap::new(),
            kept: None,
            interval: None,
            obeys_robots: false,
            caps: Caps { wire: LARGEST_ROBOTS, plain: LARGEST_ROBOTS, cut: true },
        };
        let entry = match Box::pin(self.follow(&trip)).await {
            Ok(Answer::Document(document)) => self.entry(document, &[]),
            Ok(_) => return Ok(Robots::closed()),
            // There is none, and so no rule.
            Err(kind) if is_absent(&kind) => Entry { url: start.into(), stored: seconds_since_1970(), ..Entry::default() },
            // The host is in trouble: nothing is asked of it in this process.
            Err(FetchErrorKind::Status(_)) => return Ok(Robots::closed()),
            Err(kind) => return Err(kind),
        };
        let robots = Robots::parse(&entry.body);
        self.cache.store(&name, entry).await?;
        Ok(robots)
    }

    /// Tries one address until it answers, a failure is final, or no try is left.
    async fn persist(&self, host: &Host, trip: &Trip<'_>, url: &Url, headers: &HeaderMap) -> Result<Answer, FetchErrorKind> {
        let longest = self.settings.longest_pause;
        let first = self.settings.first_pause.min(longest);
        let builder = ExponentialBuilder::default().with_min_delay(first).with_max_delay(longest).with_jitter();
        let mut pauses = builder.with_max_times(self.settings.retries).build();
        loop {
            let failure = match Box::pin(self.attempt(host, trip, url, headers)).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let backoff = pauses.next().map(|backoff| backoff.min(longest));
            let is_limit = matches!(failure.kind, FetchErrorKind::RateLimited(_));
            // A host that asks for no pause at all gets ours.
            let asked = failure.pause.map(|pause| pause.max(backoff.unwrap_or_default())).or(backoff.filter(|_| is_limit));
            if let Some(pause) = asked {
                // The others wait too.
                host.pause(pause);
            }
            match (backoff, asked) {
                _ if !failure.is_passing() => return Err(failure.kind),
                (_, Some(pause)) if pause > longest => return Err(FetchErrorKind::RateLimited(pause)),
                (None, _) if is_limit => return Err(FetchErrorKind::RateLimited(asked.unwrap_or_default().max(first))),
                (None, _) => return Err(failure.kind),
                (Some(_), Some(_)) => {}
                (Some(backoff), None) => tokio::time::sleep(backoff).await,
            }
        }
    }

    /// One request, in its turn.
    async fn attempt(&self, host: &Host, trip: &Trip<'_>, url: &Url, headers: &HeaderMap) -> Result<Answer, Failure> {
        let _slot = host.turn(self.settings.longest_pause).await.map_err(|kind| match kind {
            // The host was paused for longer than is waited for: not another try.
            FetchErrorKind::RateLimited(pause) => Failure { kind: FetchErrorKind::RateLimited(pause), pause: Some(pause) },
            kind => kind.into(),
        })?;
        let client = if address::is_listed(url, &self.settings.allow_loopback) {
            &self.loopback
        } else {
            if self.settings.proxy.is_some() {
                address::check_name(url).await?;
            }
            &self.public
        };
        let response = client.get(url.clone()).headers(headers.clone()).send().await.map_err(|e| body::failure(&e))?;
        let headers = response.headers();
        if let Some(pause) = headers::exhausted(headers, SystemTime::now()) {
            host.pause(pause);
        }
        if headers::is_check(headers) {
            return Err(refused(BOT_CHECK));
        }
        match response.status() {
            StatusCode::PARTIAL_CONTENT => Err(FetchErrorKind::Status(206).into()),
            status if status.is_success() => Ok(Answer::Document(document(response, url, trip.caps).await?)),
            StatusCode::NOT_MODIFIED if is_kept_at(trip, url) => Ok(Answer::Unchanged),
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => Ok(Answer::Moved(target(headers, url)?)),
            _ => Err(failure(response).await),
        }
    }
}

/// What is sent to one address.
fn headers_for(trip: &Trip, url: &Url, with_keys: bool) -> Result<HeaderMap, FetchErrorKind> {
    let mut headers = if with_keys { trip.keys.clone() } else { HeaderMap::new() };
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| FetchErrorKind::BadUrl("`accept` cannot be sent".into()));
    if let Some(accept) = trip.accept {
        headers.insert(ACCEPT, value(accept)?);
    }
    if let Some(kept) = trip.kept.filter(|_| is_kept_at(trip, url)) {
        for (name, text) in [(IF_NONE_MATCH, &kept.etag), (IF_MODIFIED_SINCE, &kept.last_modified)] {
            if let Some(text) = text {
                headers.insert(name, value(text)?);
            }
        }
    }
    Ok(headers)
}

/// Whether this address gave what is kept, with something to ask after it by.
fn is_kept_at(trip: &Trip, url: &Url) -> bool {
    trip.kept.is_some_and(|kept| kept.url == url.as_str() && (kept.etag.is_some() || kept.last_modified.is_some()))
}

/// Where a redirect leads.
fn target(headers: &HeaderMap, url: &Url) -> Result<Url, FetchErrorKind> {
    let bad = || FetchErrorKind::BadUrl("it redirects to nowhere".into());
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(bad)?;
    let mut next = url.join(location).map_err(|_| bad())?;
    next.set_fragment(None);
    Ok(next)
}

async fn document(response: Response, url: &Url, caps: Caps) -> Result<Document, FetchErrorKind> {
    let (status, headers) = (response.status(), response.headers().clone());
    let body = body::read(response, caps).await?;
    if headers::is_check_page(status, &headers, &body) {
        return Err(FetchErrorKind::Refused(BOT_CHECK.into()));
    }
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::to_owned);
    let mut controls =
        headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    Ok(Document {
        url: url.clone(),
        content_type: headers::media_type(&headers),
        next: headers::next_link(&headers, url),
        etag: text(ETAG),
        last_modified: text(LAST_MODIFIED),
        no_store: controls.any(|control| control.trim().eq_ignore_ascii_case("no-store")),
        body,
    })
}

/// What a status says that is neither a document nor a redirect.
async fn failure(response: Response) -> Failure {
    let (status, headers) = (response.status(), response.headers().clone());
    let now = SystemTime::now();
    // Elsewhere, as with 404, it says nothing of the host.
    let may_ask = status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::FORBIDDEN);
    let pause = headers::retry_after(&headers, now).filter(|_| may_ask).or_else(|| headers::exhausted(&headers, now));
    let caps = Caps { wire: LARGEST_REFUSAL, plain: LARGEST_REFUSAL, cut: true };
    let may_be_check = matches!(status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    // A refusal that cannot be read is still one.
    if may_be_check && body::read(response, caps).await.is_ok_and(|body| headers::is_check_page(status, &headers, &body)) {
        return refused(BOT_CHECK);
    }
    let kind = match status.as_u16() {
        429 => FetchErrorKind::RateLimited(pause.unwrap_or_default()),
        // A limit by another name.
        403 if pause.is_some() => FetchErrorKind::RateLimited(pause.unwrap_or_default()),
        code @ (401 | 403 | 407 | 451) => FetchErrorKind::Refused(code.to_string()),
        code @ (404 | 410) => FetchErrorKind::NotFound(code),
        code => FetchErrorKind::Status(code),
    };
    Failure { kind, pause }
}

fn refused(why: &str) -> Failure {
    FetchErrorKind::Refused(why.into()).into()
}

/// Whether a robots.txt that cannot be had is none at all, by RFC 9309.
fn is_absent(kind: &FetchErrorKind) -> bool {
    match kind {
        FetchErrorKind::NotFound(_) => true,
        FetchErrorKind::Refused(why) => why != BOT_CHECK,
        FetchErrorKind::Status(status) => (400..500).contains(status),
        _ => false,
    }
}

//! What the headers of an answer say: pauses, the next page, whether a person is wanted.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::{
    StatusCode, Url,
    header::{HeaderMap, LINK, RETRY_AFTER},
};

/// Longer pauses are taken for this one.
const DAY: Duration = Duration::from_secs(86_400);
/// The forms in which limits are told, and how long their window is when the answer does not say.
const WINDOWS: [(&str, Option<u64>); 4] = [("", None), ("-minute", Some(60)), ("-hour", Some(3600)), ("-day", Some(86_400))];
/// Headers that only a bot check sends.
const CHECK_HEADERS: [&str; 2] = ["cf-mitigated", "x-vercel-mitigated"];
/// Titles of pages that are nothing but a bot check.
const CHECK_TITLES: [&str; 3] = [
    "<title>just a moment...</title>",
    "<title>vercel security checkpoint</title>",
    "<title>attention required! | cloudflare</title>",
];
/// What a refusal has in its body when it is a bot check. Pages that are served may have these too.
const CHECK_MARKS: [&str; 5] =
    ["/cdn-cgi/challenge-platform/", "cf-chl-", "vercel security checkpoint", "px-captcha", "captcha-delivery.com"];
/// A longer page is not only a bot check.
const LONGEST_CHECK: usize = 64 << 10;

/// The pause of `Retry-After`: seconds, or until a date.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match number(text) {
        Some(seconds) => seconds_of(seconds)?,
        None => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(pause.min(DAY))
}

/// The pause until more may be asked for, when a limit is used up.
pub(super) fn exhausted(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let told = |name: String| number(headers.get(name)?.to_str().ok()?);
    let mut longest = None;
    for prefix in ["x-ratelimit", "x-rate-limit", "ratelimit"] {
        for (suffix, window) in WINDOWS {
            if told(format!("{prefix}-remaining{suffix}")).is_none_or(|remaining| remaining > 0.0) {
                continue;
            }
            let reset = told(format!("{prefix}-reset{suffix}")).or_else(|| told(format!("{prefix}-reset")));
            let pause = reset.and_then(|reset| until(reset, now));
            longest = longest.max(pause.or(window.map(Duration::from_secs)));
        }
    }
    longest.map(|pause| pause.min(DAY))
}

/// A reset is told in seconds from now, or as a time in seconds or milliseconds since 1970.
fn until(reset: f64, now: SystemTime) -> Option<Duration> {
    let since_1970 = match reset {
        reset if reset >= 1e12 => seconds_of(reset / 1e3)?,
        reset if reset >= 1e9 => seconds_of(reset)?,
        reset => return seconds_of(reset),
    };
    Some(since_1970.saturating_sub(now.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

fn seconds_of(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.min(DAY.as_secs_f64() * 1e6)).ok()
}

/// The `rel="next"` of `Link` headers, absolute.
pub(super) fn next_link(headers: &HeaderMap, base: &Url) -> Option<String> {
    let values = headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(links).find(|(_, parameters)| is_next(parameters)).and_then(|(target, _)| {
        let next = base.join(target.trim()).ok()?;
        matches!(next.scheme(), "http" | "https").then(|| next.into())
    })
}

/// The targets of one `Link` header, each with its parameters.
fn links(value: &str) -> impl Iterator<Item = (&str, &str)> {
    // A `<` inside a quoted parameter is rare, and at worst cuts that parameter short.
    value.split('<').skip(1).filter_map(|link| link.split_once('>'))
}

fn is_next(parameters: &str) -> bool {
    parameters.split([';', ',']).any(|parameter| {
        let Some((name, value)) = parameter.split_once('=') else { return false };
        let mut relations = value.trim().trim_matches('"').split_ascii_whitespace();
        name.trim().eq_ignore_ascii_case("rel") && relations.any(|relation| relation.eq_ignore_ascii_case("next"))
    })
}

/// The media type, lower case, without parameters.
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(reqwest::header::CONTENT_TYPE)?.to_str().ok()?;
    let kind = text.split(';').next()?.trim().to_ascii_lowercase();
    (!kind.is_empty()).then_some(kind)
}

/// Whether the headers alone say that this is a bot check.
pub(super) fn is_check(headers: &HeaderMap) -> bool {
    let says = |name: &&str| headers.get(*name).is_some_and(|value| value == "challenge" || value == "deny");
    CHECK_HEADERS.iter().any(says)
}

/// Whether a page is a bot check by its text.
pub(super) fn is_check_page(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> bool {
    if body.len() > LONGEST_CHECK || media_type(headers).is_none_or(|kind| kind != "text/html") {
        return false;
    }
    let text = String::from_utf8_lossy(body).to_ascii_lowercase();
    let has = |marks: &[&str]| marks.iter().any(|mark| text.contains(mark));
    has(&CHECK_TITLES) || (!status.is_success() && has(&CHECK_MARKS))
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    #[test]
    fn pauses_are_read_in_seconds_and_as_dates() {
        let date = httpdate::fmt_http_date(now() + Duration::from_secs(90));
        for (text, seconds) in
            [("7", Some(7)), (date.as_str(), Some(90)), ("soon", None), ("-1", None), ("99999999999999999999", Some(86_400))]
        {
            assert_eq!(retry_after(&headers(&[("retry-after", text)]), now()), seconds.map(Duration::from_secs), "{text}");
        }
        let past = httpdate::fmt_http_date(now() - Duration::from_secs(90));
        assert_eq!(retry_after(&headers(&[("retry-after", &past)]), now()), Some(Duration::ZERO));
    }

    #[test]
    fn a_used_up_limit_pauses_until_its_reset() {
        for (pairs, seconds) in [
            (vec![("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1800000030")], None),
            (vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000030")], Some(30)),
            (vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000030000")], Some(30)),
            (vec![("ratelimit-remaining", "0"), ("ratelimit-reset", "12")], Some(12)),
            (vec![("x-ratelimit-remaining-minute", "0")], Some(60)),
            (vec![("x-ratelimit-remaining-minute", "0"), ("x-ratelimit-remaining-hour", "0")], Some(3600)),
            (vec![("x-ratelimit-remaining", "0")], None),
            (vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "NaN")], None),
        ] {
            assert_eq!(exhausted(&headers(&pairs), now()), seconds.map(Duration::from_secs), "{pairs:?}");
        }
    }

    #[test]
    fn the_next_page_is_found_among_links() {
        let base = Url::parse("https://example.com/a/list?page=1").unwrap();
        for (text, next) in [
            ("<?page=2>; rel=\"next\"", Some("https://example.com/a/list?page=2")),
            ("</x,y>; rel=prev, </z;w>; title=\"t\"; rel=\"last NEXT\"", Some("https://example.com/z;w")),
            ("<https://other.example/p>;rel=next", Some("https://other.example/p")),
            ("</x>; rel=prev", None),
            ("<file:///etc/passwd>; rel=next", None),
            ("rel=next", None),
        ] {
            assert_eq!(next_link(&headers(&[("link", text)]), &base).as_deref(), next, "{text}");
        }
    }
}

//! The pause a reply asks for.

use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;

/// The pause that headers ask for: `retry-after-ms`, `retry-after` in seconds or as a date, else when a bucket that
/// is said to be empty is full again (`x-ratelimit-reset-…`).
pub(super) fn asked(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let millis = || text("retry-after-ms")?.parse().ok().and_then(|ms: f64| seconds(ms / 1000.0));
    let after = || {
        let after = text("retry-after")?;
        let date = || httpdate::parse_http_date(after).ok().map(|date| date.duration_since(now).unwrap_or_default());
        after.parse().ok().and_then(seconds).or_else(date)
    };
    let reset = |of: &str| {
        let empty = text(&format!("x-ratelimit-remaining{of}"))?.parse::<f64>().is_ok_and(|left| left < 1.0);
        text(&format!("x-ratelimit-reset{of}")).filter(|_| empty).and_then(|reset| until(reset, now))
    };
    millis().or_else(after).or_else(|| ["-requests", "-tokens", ""].into_iter().filter_map(reset).max())
}

fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

/// A reset as providers write it: `6m0s`, `120ms`, seconds from now, or a moment in seconds or milliseconds since 1970.
fn until(reset: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(number) = reset.parse::<f64>() {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
        return match number {
            n if n > 1e11 => seconds((n / 1000.0 - since).max(0.0)),
            n if n > 1e8 => seconds((n - since).max(0.0)),
            n => seconds(n),
        };
    }
    let (mut rest, mut sum) = (reset, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..digits].parse().ok()?;
        let (unit, after) = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)]
            .into_iter()
            .find_map(|(name, unit)| Some((unit, rest[digits..].strip_prefix(name)?)))?;
        sum += amount * unit;
        rest = after;
    }
    seconds(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(headers: &[(&'static str, &str)]) -> Option<f64> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        asked(&headers, now).map(|pause| pause.as_secs_f64())
    }

    #[test]
    fn pauses_are_read_in_every_form() {
        assert_eq!(pause(&[("retry-after", "7")]), Some(7.0));
        assert_eq!(pause(&[("retry-after", "0.25")]), Some(0.25));
        assert_eq!(pause(&[("retry-after", "9"), ("retry-after-ms", "1500")]), Some(1.5));
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_030));
        assert_eq!(pause(&[("retry-after", &date)]), Some(30.0));
        assert_eq!(pause(&[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")]), Some(0.0));
        for (reset, wait) in [("1m30s", 90.0), ("250ms", 0.25), ("12", 12.0), ("1800000005", 5.0), ("1800000005000", 5.0)] {
            let headers = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", reset)];
            assert_eq!(pause(&headers), Some(wait), "{reset}");
        }
    }

    #[test]
    fn what_is_no_pause_is_none() {
        assert_eq!(pause(&[("x-ratelimit-remaining-tokens", "5"), ("x-ratelimit-reset-tokens", "1s")]), None);
        for nonsense in ["-1", "soon", "NaN", "1e300", ""] {
            assert_eq!(pause(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
        let headers = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "3 weeks")];
        assert_eq!(pause(&headers), None);
    }
}

//! The crawler against hosts on loopback that are polite, strict, broken, or hostile.

mod loopback;

use std::{
    fs,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use loopback::{Host, Reply, gzip, raw, reply, reply_without_length};
use mcpmill_clients::{
    http::{Crawler, CrawlerSettings},
    secret::Secret,
};
use mcpmill_core::edge::{Fetch, FetchErrorKind, FetchRequest, KeyHeader, Page};
use tempfile::TempDir;

const KEY: &str = "k3y/with+odd=characters";

/// Quick settings that may reach the given hosts.
fn settings(cache: &TempDir, hosts: &[&Host]) -> CrawlerSettings {
    CrawlerSettings {
        per_minute: 0,
        retries: 2,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_secs(2),
        timeout: Duration::from_secs(5),
        largest_body: 100_000,
        largest_text: 200_000,
        allow_loopback: hosts.iter().map(|host| host.address.clone()).collect(),
        keys: [("SITE_KEY".to_owned(), Secret::new(KEY))].into(),
        ..CrawlerSettings::new(cache.path().join("pages"))
    }
}

fn request(url: impl Into<String>) -> FetchRequest {
    FetchRequest { url: url.into(), ..FetchRequest::default() }
}

fn with_key(url: impl Into<String>) -> FetchRequest {
    let key = KeyHeader { header: "Authorization".into(), env: "SITE_KEY".into(), prefix: "Bearer ".into() };
    FetchRequest { keys: vec![key], ..request(url) }
}

/// One fetch of a path with a crawler of its own.
async fn fetch(host: &Host, path: &str) -> Result<Page, FetchErrorKind> {
    let folder = tempfile::tempdir().expect("the test's own folder is fine");
    fetch_with(settings(&folder, &[host]), request(host.url(path))).await
}

async fn fetch_with(settings: CrawlerSettings, request: FetchRequest) -> Result<Page, FetchErrorKind> {
    let outcome = Crawler::new(settings).expect("the test's own folder is fine").fetch(&request).await;
    outcome.map_err(|error| {
        assert!(!format!("{error} {error:?}").contains(KEY), "{error:?}");
        error.kind
    })
}

/// Whether any file below a folder holds a text, as it is or unpacked.
fn holds(folder: &Path, text: &str) -> bool {
    let files: Vec<_> = fs::read_dir(folder)
        .expect("the test's own folder is fine")
        .map(|entry| entry.expect("the test's own folder is fine").path())
        .collect();
    assert!(!files.is_empty());
    files.iter().any(|path| {
        let packed = fs::read(path).expect("the test's own folder is fine");
        let plain = zstd::decode_all(&*packed).expect("the test's own folder is fine");
        [packed, plain].iter().any(|bytes| String::from_utf8_lossy(bytes).contains(text)) || path.to_string_lossy().contains(text)
    })
}

#[tokio::test]
async fn a_page_comes_as_text_with_its_next_page() {
    let host = Host::start(|path, _, _| match path {
        "/list?page=1" => {
            let headers =
                "Content-Type: Text/HTML; charset=utf-8\r\nContent-Encoding: gzip\r\nLink: </list?page=2>; rel=\"next\"\r\n";
            reply(200, headers, gzip(b"\xef\xbb\xbfcaf\xc3\xa9 \xff"))
        }
        _ => Reply::None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let settings = CrawlerSettings { contact: Some("mailto:crawler@example.org".into()), ..settings(&folder, &[&host]) };
    let page = fetch_with(settings, FetchRequest { accept: Some("text/html".into()), ..request(host.url("/list?page=1#top")) })
        .await
        .unwrap();
    let expected = Page {
        url: host.url("/list?page=1"),
        content_type: Some("text/html".into()),
        body: "café \u{fffd}".into(),
        next: Some(host.url("/list?page=2")),
        unchanged: false,
    };
    assert_eq!(page, expected);
    let head = host.requests("/list?page=1").remove(0).to_lowercase();
    for line in ["user-agent: mcpmill/", "(+mailto:crawler@example.org)", "accept: text/html", "accept-encoding: gzip\r\n"] {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert_eq!(host.requests("/robots.txt").len(), 1);
}

#[tokio::test]
async fn a_second_time_only_what_changed_is_sent() {
    let host = Host::start(|path, before, head| match path {
        "/etag" if head.contains("if-none-match: \"v1\"") => raw("HTTP/1.1 304 x\r\nConnection: close\r\n\r\n"),
        "/etag" => reply(200, "ETag: \"v1\"\r\n", "one"),
        "/date" if head.contains("if-modified-since: Thu, 01 Jan 2026 00:00:00 GMT") => raw("HTTP/1.1 304 x\r\n\r\n"),
        "/date" => reply(200, "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n", "one"),
        "/same" => reply(200, "", "one"),
        "/changes" => reply(200, &format!("ETag: \"v{before}\"\r\n"), format!("body {before}")),
        "/secret" => reply(200, "Cache-Control: private, No-Store\r\nETag: \"v1\"\r\n", "one"),
        "/out-of-the-blue" => raw("HTTP/1.1 304 x\r\n\r\n"),
        _ => Reply::None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder, &[&host]);
    for round in [false, true] {
        let crawler = Crawler::new(settings.clone()).unwrap();
        for (path, unchanged) in [("/etag", round), ("/date", round), ("/same", round), ("/changes", false), ("/secret", false)] {
            let page = crawler.fetch(&request(host.url(path))).await.unwrap();
            assert_eq!(page.unchanged, unchanged, "{path}");
            assert_eq!(page.body, if path == "/changes" { format!("body {}", usize::from(round)) } else { "one".into() });
        }
        let error = crawler.fetch(&request(host.url("/out-of-the-blue"))).await.unwrap_err();
        assert_eq!(error.kind, FetchErrorKind::Status(304));
    }
    assert_eq!(host.requests("/robots.txt").len(), 1, "it is kept on disk");
    assert!(!host.requests("/secret")[1].contains("if-none-match"));

    let before = host.seen.lock().unwrap().len();
    let offline = Crawler::new(CrawlerSettings { offline: true, ..settings }).unwrap();
    assert_eq!(offline.fetch(&request(host.url("/changes"))).await.unwrap().body, "body 1");
    for path in ["/secret", "/never"] {
        assert_eq!(offline.fetch(&request(host.url(path))).await.unwrap_err().kind, FetchErrorKind::Offline);
    }
    assert_eq!(host.seen.lock().unwrap().len(), before);
}

#[tokio::test]
async fn robots_txt_is_obeyed_also_after_a_redirect() {
    let strict = Host::start(|path, _, _| match path {
        "/robots.txt" => reply(200, "", "User-agent: *\nDisallow: /\n\nUser-agent: mcpmill\nDisallow: /no\n"),
        _ => reply(200, "", "page"),
    })
    .await;
    let inner = strict.url("/no/page");
    let open = Host::start(move |path, _, _| match path {
        "/away" => reply(302, &format!("Location: {inner}\r\n"), ""),
        "/robots.txt" => reply(403, "", ""),
        _ => reply(200, "", "page"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let crawler = Crawler::new(settings(&folder, &[&strict, &open])).unwrap();
    assert_eq!(crawler.fetch(&request(strict.url("/yes"))).await.unwrap().body, "page");
    assert_eq!(crawler.fetch(&request(open.url("/any"))).await.unwrap().body, "page");
    for url in [strict.url("/no?x=1"), open.url("/away")] {
        let error = crawler.fetch(&request(url)).await.unwrap_err();
        assert!(error.kind == FetchErrorKind::Robots && error.is_refusal(), "{error}");
    }
    assert!(strict.requests("/no/page").is_empty() && strict.requests("/no?x=1").is_empty());
}

#[tokio::test]
async fn a_host_whose_robots_txt_fails_is_left_alone() {
    let host = Host::start(|path, _, _| if path == "/robots.txt" { reply(500, "", "") } else { reply(200, "", "page") }).await;
    let folder = tempfile::tempdir().unwrap();
    let crawler = Crawler::new(settings(&folder, &[&host])).unwrap();
    for _ in 0..2 {
        assert_eq!(crawler.fetch(&request(host.url("/x"))).await.unwrap_err().kind, FetchErrorKind::Robots);
    }
    assert_eq!((host.requests("/robots.txt").len(), host.requests("/x").len()), (3, 0));
}

#[tokio::test]
async fn an_endless_robots_txt_is_read_as_far_as_it_goes() {
    let host = Host::start(|path, _, _| match path {
        "/robots.txt" => reply(200, "", format!("User-agent: *\nDisallow: /no\n{}", "# filler\n".repeat(100_000))),
        _ => reply(200, "", "page"),
    })
    .await;
    assert_eq!(fetch(&host, "/no").await, Err(FetchErrorKind::Robots));
    assert!(fetch(&host, "/yes").await.is_ok());
}

#[tokio::test]
async fn redirects_inward_are_refused() {
    let hidden = Host::start(|_, _, _| reply(200, "", "internal")).await;
    let port = hidden.address.rsplit(':').next().unwrap().to_owned();
    let host = Host::start(move |path, _, _| match path {
        "/port" => reply(302, &format!("Location: http://127.0.0.1:{port}/\r\n"), ""),
        "/name" => reply(302, &format!("Location: http://localhost:{port}/\r\n"), ""),
        "/decimal" => reply(307, &format!("Location: http://2130706433:{port}/\r\n"), ""),
        "/mapped" => reply(308, &format!("Location: http://[::ffff:127.0.0.1]:{port}/\r\n"), ""),
        "/metadata" => reply(301, "Location: http://169.254.169.254/latest/meta-data\r\n", ""),
        "/private" => reply(303, "Location: //10.1.2.3/\r\n", ""),
        "/file" => reply(302, "Location: file:///etc/passwd\r\n", ""),
        "/user" => reply(302, &format!("Location: http://user:pass@127.0.0.1:{port}/\r\n"), ""),
        "/nowhere" => reply(302, "", ""),
        _ => Reply::None,
    })
    .await;
    for path in ["/port", "/name", "/decimal", "/mapped", "/metadata", "/private"] {
        let outcome = fetch(&host, path).await;
        assert!(matches!(outcome, Err(FetchErrorKind::NotPublic(_))), "{path}: {outcome:?}");
    }
    for path in ["/file", "/user", "/nowhere"] {
        let outcome = fetch(&host, path).await;
        assert!(matches!(outcome, Err(FetchErrorKind::BadUrl(_))), "{path}: {outcome:?}");
    }
    assert!(hidden.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn addresses_after_redirects_and_in_links_are_kept_without_secrets() {
    let host = Host::start(|path, _, _| match path {
        "/away" => reply(302, "Location: /here?access_token=planted-1\r\n", ""),
        "/here?access_token=planted-1" => {
            reply(200, "Link: <http://u:planted-2@h.example/?page_token=on&api_key=planted-3>; rel=\"next\"\r\n", "x")
        }
        _ => Reply::None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let page = fetch_with(settings(&folder, &[&host]), request(host.url("/away"))).await.unwrap();
    assert_eq!(page.url, host.url("/here?access_token=<redacted>"));
    assert_eq!(page.next.as_deref(), Some("http://h.example/?page_token=on&api_key=<redacted>"));
    assert!(!holds(&folder.path().join("pages"), "planted"));
}

#[tokio::test]
async fn redirects_are_followed_a_few_times_only() {
    let host = Host::start(|path, _, _| match path.strip_prefix("/hop").and_then(|n| n.parse::<usize>().ok()) {
        Some(0) => reply(200, "", "there"),
        Some(n) => reply(302, &format!("Location: hop{}#part\r\n", n - 1), ""),
        None if path == "/loop" => reply(302, "Location: /loop\r\n", ""),
        None => Reply::None,
    })
    .await;
    let page = fetch(&host, "/hop5").await.unwrap();
    assert_eq!((page.url, page.body.as_str()), (host.url("/hop0"), "there"));
    for path in ["/hop6", "/loop"] {
        assert!(matches!(fetch(&host, path).await, Err(FetchErrorKind::BadUrl(_))), "{path}");
    }
    assert_eq!(host.requests("/loop").len(), 6);
}

#[tokio::test]
async fn bodies_are_bounded_on_the_wire_and_unpacked() {
    let host = Host::start(|path, _, _| match path {
        "/told" => raw("HTTP/1.1 200 x\r\nContent-Length: 99999999999\r\n\r\nx"),
        "/untold" => reply_without_length(&"x".repeat(300_000)),
        "/bomb" => reply(200, "Content-Encoding: gzip\r\n", gzip(&vec![0; 50 << 20])),
        "/twice" => reply(200, "Content-Encoding: gzip, gzip\r\n", gzip(&gzip(b"x"))),
        "/brotli" => reply(200, "Content-Encoding: br\r\n", "x"),
        "/bad-gzip" => reply(200, "Content-Encoding: gzip\r\n", "this is no gzip"),
        "/trailing" => {
            reply(200, "Content-Encoding: gzip\r\n", [gzip(b"x"), b"trailing rubbish, longer than a header".to_vec()].concat())
        }
        "/members" => reply(200, "Content-Encoding: gzip\r\n", [gzip(b"one "), gzip(b"two")].concat()),
        "/empty" => reply(200, "Content-Encoding: gzip\r\n", ""),
        _ => Reply::None,
    })
    .await;
    for (path, cap) in [("/told", 100_000), ("/untold", 100_000), ("/bomb", 200_000)] {
        assert_eq!(fetch(&host, path).await, Err(FetchErrorKind::TooLarge(cap)), "{path}");
    }
    for path in ["/twice", "/brotli", "/bad-gzip", "/trailing"] {
        let outcome = fetch(&host, path).await;
        assert!(matches!(outcome, Err(FetchErrorKind::Unreadable(_))), "{path}: {outcome:?}");
    }
    assert_eq!(fetch(&host, "/members").await.unwrap().body, "one two");
    assert_eq!(fetch(&host, "/empty").await.unwrap().body, "");
}

#[tokio::test]
async fn a_body_that_is_cut_off_is_no_page() {
    let host = Host::start(|path, before, _| match path {
        "/length" => raw("HTTP/1.1 200 x\r\nContent-Length: 100\r\n\r\n{\"servers\": ["),
        "/chunks" => raw("HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n"),
        "/gzip" => {
            let whole = gzip(b"a body of some length, which is cut off");
            Reply::Raw([b"HTTP/1.1 200 x\r\nContent-Encoding: gzip\r\n\r\n".as_slice(), &whole[..whole.len() - 9]].concat())
        }
        "/nothing" => raw(""),
        "/second" if before == 0 => raw("HTTP/1.1 200 x\r\nContent-Length: 100\r\n\r\nhalf"),
        "/second" => reply(200, "", "whole"),
        _ => Reply::None,
    })
    .await;
    for path in ["/length", "/chunks", "/gzip", "/nothing"] {
        let outcome = fetch(&host, path).await;
        assert!(matches!(outcome, Err(FetchErrorKind::Network(_))), "{path}: {outcome:?}");
        assert_eq!(host.requests(path).len(), 3, "{path}");
    }
    assert_eq!(fetch(&host, "/second").await.unwrap().body, "whole");
}

#[tokio::test]
async fn a_slow_drip_ends_in_time_and_dropping_is_fine() {
    let host = Host::start(|path, _, _| match path {
        "/drip" => Reply::Drip(
            b"HTTP/1.1 200 x\r\nContent-Length: 900\r\n\r\n.......................".to_vec(),
            Duration::from_millis(20),
        ),
        "/ok" => reply(200, "", "page"),
        _ => Reply::None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let quick =
        CrawlerSettings { timeout: Duration::from_millis(200), retries: 0, concurrency: 1, ..settings(&folder, &[&host]) };
    let start = Instant::now();
    assert_eq!(fetch_with(quick.clone(), request(host.url("/drip"))).await, Err(FetchErrorKind::TimedOut));
    assert!(start.elapsed() < Duration::from_secs(3));

    let crawler = Crawler::new(CrawlerSettings { timeout: Duration::from_secs(30), ..quick }).unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(100), crawler.fetch(&request(host.url("/drip")))).await;
    assert!(dropped.is_err());
    assert_eq!(crawler.fetch(&request(host.url("/ok"))).await.unwrap().body, "page");
}

#[tokio::test]
async fn a_limit_is_waited_for_and_holds_for_all() {
    let host = Host::start(|path, before, _| match path {
        "/second" if before == 0 => reply(429, "Retry-After: 1\r\n", ""),
        "/unsaid" if before < 2 => reply(429, "", ""),
        "/busy" if before == 0 => reply(503, "", ""),
        "/robots.txt" => Reply::None,
        _ => reply(200, "", "page"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let crawler = Crawler::new(settings(&folder, &[&host])).unwrap();
    for path in ["/unsaid", "/busy"] {
        assert_eq!(crawler.fetch(&request(host.url(path))).await.unwrap().body, "page", "{path}");
    }
    let start = Instant::now();
    let limited = request(host.url("/second"));
    let other = async {
        while host.requests("/second").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        crawler.fetch(&request(host.url("/other"))).await.unwrap();
        start.elapsed()
    };
    let (page, elapsed) = tokio::join!(crawler.fetch(&limited), other);
    assert_eq!(page.unwrap().body, "page");
    assert!(elapsed >= Duration::from_millis(950), "{elapsed:?}");
}

#[tokio::test]
async fn a_host_that_asks_for_no_pause_gets_one() {
    let host = Host::start(|path, _, _| match path {
        "/limit" => reply(429, "Retry-After: 0\r\n", ""),
        "/busy" => reply(503, "Retry-After: 0\r\n", ""),
        _ => Reply::None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let patient = CrawlerSettings { first_pause: Duration::from_millis(100), ..settings(&folder, &[&host]) };
    for path in ["/limit", "/busy"] {
        let start = Instant::now();
        let error = fetch_with(patient.clone(), request(host.url(path))).await.unwrap_err();
        assert!(!matches!(error, FetchErrorKind::RateLimited(Duration::ZERO)), "{path}");
        assert_eq!(host.requests(path).len(), 1 + patient.retries, "{path}");
        assert!(start.elapsed() >= Duration::from_millis(300), "{path}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_limit_that_is_too_long_or_never_ends_is_an_error() {
    let host = Host::start(|path, before, _| match path {
        "/always" => reply(429, "", ""),
        "/hour" => reply(429, "Retry-After: 3600\r\n", ""),
        "/hidden" => reply(403, "X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 3600\r\n", ""),
        "/last" if before == 0 => reply(200, "X-RateLimit-Remaining-Hour: 0\r\n", "the last"),
        _ => Reply::None,
    })
    .await;
    for (path, tries) in [("/always", 3), ("/hour", 1), ("/hidden", 1)] {
        let outcome = fetch(&host, path).await;
        assert!(matches!(outcome, Err(FetchErrorKind::RateLimited(pause)) if !pause.is_zero()), "{path}: {outcome:?}");
        assert_eq!(host.requests(path).len(), tries, "{path}");
    }
    let folder = tempfile::tempdir().unwrap();
    let crawler = Crawler::new(settings(&folder, &[&host])).unwrap();
    assert_eq!(crawler.fetch(&request(host.url("/last"))).await.unwrap().body, "the last");
    let error = crawler.fetch(&request(host.url("/last"))).await.unwrap_err();
    assert!(matches!(error.kind, FetchErrorKind::RateLimited(pause) if pause > Duration::from_secs(3500)), "{error}");
    assert_eq!(host.requests("/last").len(), 1);
}

#[tokio::test]
async fn refusals_are_taken_at_their_word() {
    let host = Host::start(|path, _, _| match path {
        "/401" => reply(401, "", ""),
        "/403" => reply(403, "", ""),
        "/451" => reply(451, "", ""),
        "/410" => reply(410, "", ""),
        "/418" => reply(418, "", ""),
        "/501" => reply(501, "", ""),
        "/cloudflare" => reply(403, "cf-mitigated: challenge\r\n", ""),
        "/vercel" => reply(429, "x-vercel-mitigated: challenge\r\n", ""),
        "/page" => reply(503, "Content-Type: text/html\r\n", "<script src=/cdn-cgi/challenge-platform/x.js></script>"),
        "/ok-page" => reply(200, "Content-Type: text/html\r\n", "<html><title>Just a moment...</title></html>"),
        "/honest" => reply(200, "Content-Type: text/html\r\n", "<title>MCP</title><script src=/cdn-cgi/challenge-platform/x.js>"),
        _ => Reply::None,
    })
    .await;
    let refused = |why: &str| FetchErrorKind::Refused(why.into());
    for (path, kind, tries) in [
        ("/401", refused("401"), 1),
        ("/403", refused("403"), 1),
        ("/451", refused("451"), 1),
        ("/404", FetchErrorKind::NotFound(404), 1),
        ("/410", FetchErrorKind::NotFound(410), 1),
        ("/418", FetchErrorKind::Status(418), 1),
        ("/501", FetchErrorKind::Status(501), 3),
        ("/cloudflare", refused("a bot check"), 1),
        ("/vercel", refused("a bot check"), 1),
        ("/page", refused("a bot check"), 1),
        ("/ok-page", refused("a bot check"), 1),
    ] {
        assert_eq!(fetch(&host, path).await, Err(kind), "{path}");
        assert_eq!(host.requests(path).len(), tries, "{path}");
    }
    assert!(fetch(&host, "/honest").await.is_ok());
}

#[tokio::test]
async fn keys_go_to_their_host_only_and_stay_off_the_disk() {
    let other = Host::start(|_, _, head| reply(200, "", format!("got {}", head.contains("uthorization")))).await;
    let away = other.url("/back");
    let host = Host::start(move |path, _, head| match path {
        "/echo" => {
            let line = head.lines().find(|line| line.starts_with("authorization")).unwrap_or("none").to_owned();
            let query = "k3y%2Fwith%2Bodd%3Dcharacters";
            let headers = format!("ETag: \"{KEY}\"\r\nContent-Type: text/{KEY}\r\nLink: </next?key={query}>; rel=next\r\n");
            reply(200, &headers, format!("{line} {query}"))
        }
        "/near" => reply(302, "Location: /echo\r\n", ""),
        "/away" => reply(302, &format!("Location: {away}\r\n"), ""),
        "/coded" => reply(200, &format!("Content-Encoding: {KEY}\r\n"), ""),
        _ => Reply::None,
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder, &[&host, &other]);
    assert!(!format!("{settings:?}").contains(KEY));
    for path in ["/echo", "/near"] {
        let page = fetch_with(settings.clone(), with_key(host.url(path))).await.unwrap();
        assert!(page.body == "authorization: Bearer [key] [key]", "{}", page.body);
        assert_eq!(page.next, Some(host.url("/next?key=[key]")));
    }
    assert_eq!(host.requests("/echo").iter().filter(|head| head.contains(KEY)).count(), 2);
    let page = fetch_with(settings.clone(), with_key(host.url("/away"))).await.unwrap();
    assert_eq!(page.body, "got false");
    assert!(!other.seen.lock().unwrap().iter().any(|head| head.contains(KEY)));
    assert!(fetch_with(settings.clone(), with_key(host.url("/coded"))).await.is_err());
    assert!(!host.requests("/robots.txt")[0].contains(KEY));
    assert!(holds(&folder.path().join("pages"), "Bearer [key]"));
    for spelling in [KEY, "k3y%2Fwith"] {
        assert!(!holds(&folder.path().join("pages"), spelling));
    }

    let plain = fetch_with(settings.clone(), with_key("http://example.invalid/")).await;
    assert!(matches!(plain, Err(FetchErrorKind::BadUrl(_))), "{plain:?}");
    let unset = CrawlerSettings { keys: [("SITE_KEY".to_owned(), Secret::new(" "))].into(), ..settings };
    assert_eq!(fetch_with(unset, with_key(host.url("/echo"))).await, Err(FetchErrorKind::NoKey("SITE_KEY".into())));
}

#[tokio::test]
async fn errors_show_no_user_information() {
    let folder = tempfile::tempdir().unwrap();
    let crawler = Crawler::new(settings(&folder, &[])).unwrap();
    for url in [
        "https://me:hunter22@example.invalid/x",
        "https://me:hunter22@exa mple.invalid/x",
        &format!("https://example.invalid:x/{KEY}"),
    ] {
        let error = crawler.fetch(&request(url)).await.unwrap_err();
        assert!(matches!(error.kind, FetchErrorKind::BadUrl(_)), "{error}");
        assert!(!format!("{error:?}").contains("hunter22") && !format!("{error:?}").contains(KEY), "{error:?}");
    }
}

#[tokio::test]
async fn a_host_is_asked_no_faster_and_no_wider_than_set() {
    let host = Host::start(|path, _, _| match path {
        "/robots.txt" => reply(200, "", "User-agent: mcpmill\nCrawl-delay: 0.03\n"),
        _ => reply(200, "", "page"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let crawler = Crawler::new(CrawlerSettings { concurrency: 2, ..settings(&folder, &[&host]) }).unwrap();
    let requests: Vec<_> = (0..6).map(|n| request(host.url(&format!("/{n}")))).collect();
    let start = Instant::now();
    let [a, b, c, d, e, f] = [0, 1, 2, 3, 4, 5].map(|n| crawler.fetch(&requests[n]));
    let _ = tokio::join!(a, b, c, d, e, f);
    assert!(start.elapsed() >= Duration::from_millis(140), "{:?}", start.elapsed());
    assert!(host.most_at_once.load(Ordering::SeqCst) <= 2);
    assert_eq!((host.requests("/robots.txt").len(), host.requests("/5").len()), (1, 1));
    let slower = FetchRequest { per_minute: Some(600), ..request(host.url("/slow")) };
    let start = Instant::now();
    for _ in 0..2 {
        crawler.fetch(&slower).await.unwrap();
    }
    assert!(start.elapsed() >= Duration::from_millis(90), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_named_proxy_gets_no_address_that_is_not_public() {
    let proxy = Host::start(|path, _, _| if path.ends_with("/robots.txt") { Reply::None } else { reply(200, "", path) }).await;
    let folder = tempfile::tempdir().unwrap();
    let named = CrawlerSettings { proxy: Some(Secret::new(format!("http://{}", proxy.address))), ..settings(&folder, &[]) };
    let page = fetch_with(named.clone(), request("http://example.invalid/x")).await.unwrap();
    assert_eq!(page.body, "http://example.invalid/x");
    let before = proxy.seen.lock().unwrap().len();
    for url in ["http://localhost/", "http://10.0.0.1/"] {
        let outcome = fetch_with(named.clone(), request(url)).await;
        assert!(matches!(outcome, Err(FetchErrorKind::NotPublic(_))), "{url}: {outcome:?}");
    }
    assert_eq!(proxy.seen.lock().unwrap().len(), before);
}

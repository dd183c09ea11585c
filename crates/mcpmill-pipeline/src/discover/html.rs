//! Web pages: cards of a list, code of a detail page, the payload of a page of Next.js.

use std::{ops::Range, sync::LazyLock};

use mcpmill_core::edge::Page;
use regex::{Captures, Regex};
use scraper::{ElementRef, Selector};
use serde_json::{Map, Value};

use super::{declare::Declaration, map, paging::joined, parsed, pick};

/// Cards of a page that are read.
const MOST_CARDS: usize = 20_000;

/// The entries of a page: one object a card, with the fields that the declaration names and `url`.
/// A selector `url:PATTERN` takes the addresses of a sitemap instead; its groups `name` are fields.
pub(super) fn entries(declaration: &Declaration, page: &Page) -> Vec<Value> {
    let found = declaration.entries.iter().map(|place| match place.strip_prefix("url:") {
        Some(pattern) => locations(pattern, &page.body),
        None => cards(declaration, place, page),
    });
    found.into_iter().find(|entries| !entries.is_empty()).unwrap_or_default()
}

fn locations(pattern: &str, body: &str) -> Vec<Value> {
    let place =
        r"<loc>\s*([^<\s]+)\s*</loc>(?:\s*<(?:changefreq|priority)>[^<]*</\w+>)*(?:\s*<lastmod>\s*([^<\s]+)\s*</lastmod>)?";
    let (Ok(place), Ok(pattern)) = (Regex::new(place), Regex::new(pattern)) else { return Vec::new() };
    let entry = |url: &str, changed: Option<&str>| {
        let mut fields = groups(&pattern, url)?;
        fields.insert("url".into(), url.into());
        // With it an entry is another one when its page has changed.
        fields.extend(changed.map(|changed| ("lastmod".to_owned(), changed.into())));
        Some(Value::Object(fields))
    };
    let entries = place.captures_iter(body);
    entries.filter_map(|found| entry(&map::unescaped(&found[1]), found.get(2).map(|changed| changed.as_str()))).collect()
}

/// The named groups of a pattern in an address; `None` when it is another address.
fn groups(pattern: &Regex, url: &str) -> Option<Map<String, Value>> {
    let found = pattern.captures(url)?;
    let names = pattern.capture_names().flatten();
    Some(names.filter_map(|name| Some((name.to_owned(), found.name(name)?.as_str().into()))).collect())
}

fn cards(declaration: &Declaration, place: &str, page: &Page) -> Vec<Value> {
    let Ok(card) = Selector::parse(place) else { return Vec::new() };
    let link = declaration.link.as_deref().map(Regex::new).and_then(Result::ok);
    let html = parsed::tree(&page.body);
    let entry = |element: ElementRef<'_>| {
        let mut fields = Map::new();
        for (name, places) in declaration.fields.named() {
            let text = places.iter().filter(|p| !p.starts_with('/')).find_map(|place| text(element, place));
            let text = text.map(|text| if name == "homepage" { joined(&page.url, &text).unwrap_or(text) } else { text });
            fields.extend(text.map(|text| (name.to_owned(), Value::String(text))));
        }
        let address = fields.get("homepage").and_then(Value::as_str).unwrap_or_default();
        let parts = match &link {
            Some(link) => groups(link, address)?,
            None => {
                let slug = address.trim_end_matches('/').rsplit('/').next().filter(|slug| !slug.is_empty());
                slug.map(|slug| ("slug".to_owned(), slug.into())).into_iter().collect()
            }
        };
        fields.extend(parts);
        Some(Value::Object(fields))
    };
    html.select(&card).take(MOST_CARDS).filter_map(entry).collect()
}

/// The text or attribute (`selector@attribute`) of the first hit; an empty selector is the card itself.
fn text(card: ElementRef<'_>, place: &str) -> Option<String> {
    let (css, attribute) = place.split_once('@').map_or((place, None), |(css, attribute)| (css, Some(attribute)));
    let element = if css.is_empty() { card } else { card.select(&Selector::parse(css).ok()?).next()? };
    let text = match attribute {
        Some(name) => element.attr(name)?.to_owned(),
        None => element.text().collect::<String>(),
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}

/// The code blocks of a page that hold an `mcpServers` block, or the whole page when none does.
pub(super) fn code(body: &str) -> Vec<String> {
    let Ok(selector) = Selector::parse("pre code, pre, code, textarea") else { return Vec::new() };
    let html = parsed::tree(body);
    let blocks = html.select(&selector).map(|element| element.text().collect::<String>());
    let found: Vec<String> = blocks.filter(|text| text.contains("mcpServers")).take(20).collect();
    if found.is_empty() { vec![body.to_owned()] } else { found }
}

static PUSH: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"self\.__next_f\.push\(\[1,\s*("(?:[^"\\]|\\.)*")\]\)"#).ok());
/// Places of a payload that are looked at.
const MOST_PLACES: usize = 20;

/// The pieces of the flight payload of a page, with where their strings stand.
pub(super) fn pieces(body: &str) -> Vec<(Range<usize>, String)> {
    let Some(push) = PUSH.as_ref().filter(|_| body.contains("__next_f")) else { return Vec::new() };
    let piece = |found: Captures<'_>| {
        let quoted = found.get(1)?;
        Some((quoted.range(), pick::json(quoted.as_str()).ok()?.as_str()?.to_owned()))
    };
    push.captures_iter(body).filter_map(piece).collect()
}

/// The object under `key` in the flight payload of a page.
pub(super) fn flight(body: &str, key: &str) -> Option<Value> {
    let payload: String = pieces(body).into_iter().map(|(_, text)| text).collect();
    let quoted = format!("\"{key}\"");
    let objects = payload.match_indices(&quoted).filter_map(|(at, word)| {
        let after = payload[at + word.len()..].trim_start().strip_prefix(':')?.trim_start();
        after.starts_with('{').then_some(after)
    });
    objects.take(MOST_PLACES).find_map(|object| pick::json(map::balanced(object)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_sitemap_says_when_its_page_changed() {
        let body = "<url><loc>https://a.example/s/x</loc><lastmod>2026-01-02</lastmod></url>\
            <url><loc>https://a.example/s/y</loc>\n<priority>0.5</priority> <lastmod>2026-01-03</lastmod></url>\
            <url><loc>https://a.example/s/z</loc></url><url><lastmod>2026-01-04</lastmod><loc>https://a.example/s/w</loc></url>";
        let found = locations("^https://a.example/s/(?P<slug>.+)", body);
        let told: Vec<_> = found.iter().map(|entry| (entry["slug"].as_str().unwrap(), entry["lastmod"].as_str())).collect();
        assert_eq!(told, [("x", Some("2026-01-02")), ("y", Some("2026-01-03")), ("z", None), ("w", None)]);
    }

    #[test]
    fn a_payload_that_repeats_its_key_is_given_up() {
        // Each place would be read as far as the page goes.
        let object = r#"{\"mcpServer\":{\"id\":7}}"#;
        let body = |places: usize| {
            format!("<script>self.__next_f.push([1,\"{}{object}\"])</script>", r#"{\"mcpServer\":{] "#.repeat(places))
        };
        assert!(flight(&body(5), "mcpServer").is_some());
        assert_eq!(flight(&body(50_000), "mcpServer"), None);
    }

    #[test]
    fn a_payload_in_pieces_is_put_together() {
        let body = r#"<script>self.__next_f.push([1,"a:{\"mcpServer\":{\"id\":7,\"na"])</script><script>self.__next_f.push([1,"me\":\"par\\\"cel\"}}"])</script>"#;
        let found = flight(body, "mcpServer").unwrap();
        assert_eq!((pick::member(&found, &["id"]), pick::member(&found, &["name"])), (Some("7".into()), Some("par\"cel".into())));
        assert_eq!(flight(body, "other"), None);
    }
}

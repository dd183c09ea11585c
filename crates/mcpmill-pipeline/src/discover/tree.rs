//! Sources that are files of the user's: a checkout, or a configuration.

use mcpmill_core::text::shown;
use serde_json::{Value, json};

use super::{
    map,
    marketplace::{CrawlError, Files, Kind},
    source::Crawl,
    yaml,
};

/// Reads every entry of the folder or file.
pub(super) fn read(crawl: &mut Crawl<'_>) -> Result<(), CrawlError> {
    let files = crawl.cx.files.clone().ok_or_else(|| crawl.fail("not-available", "no file may be read in this run"))?;
    let path = crawl.filled(crawl.declaration.path.as_deref().unwrap_or_default())?;
    match crawl.declaration.kind {
        Kind::McpServers => configuration(&path, files.as_ref(), crawl),
        _ => folder(&path, files.as_ref(), crawl),
    }
}

fn configuration(path: &str, files: &dyn Files, crawl: &mut Crawl<'_>) -> Result<(), CrawlError> {
    let text = files.read(path).map_err(|cause| crawl.fail("unreadable-file", cause))?;
    // Some editors put a mark at the beginning of every file.
    let config: Value = serde_json::from_str(&map::strip_comments(text.trim_start_matches('\u{feff}')))
        .map_err(|error| crawl.fail("not-json", format!("`{}`: {error}", shown(path, 200))))?;
    let places = ["/mcpServers", "/servers", "/mcp/servers", "/mcp.servers", "/context_servers"];
    let block = places.iter().find_map(|place| config.pointer(place).filter(|block| block.is_object()));
    let block = block.ok_or_else(|| crawl.fail("unknown-shape", format!("`{}` has no `mcpServers`", shown(path, 200))))?;
    for draft in map::configs(block) {
        crawl.take_own(draft);
    }
    Ok(())
}

fn folder(path: &str, files: &dyn Files, crawl: &mut Crawl<'_>) -> Result<(), CrawlError> {
    let Some(tree) = &crawl.declaration.tree else { return Ok(()) };
    let root = format!("{}/{}", path.trim_end_matches('/'), tree.under);
    let root = root.trim_end_matches('/');
    let mut all = files.list(root).map_err(|cause| crawl.fail("unreadable-folder", cause))?;
    all.sort_unstable();
    let known: std::collections::HashSet<&str> = all.iter().map(String::as_str).collect();
    for file in all.iter().filter(|file| is_entry(file, &tree.file)) {
        if crawl.is_full() {
            break;
        }
        let (folder, name) = file.rsplit_once('/').map_or(("", file.as_str()), |(folder, _)| (folder, folder));
        let load = |path: &str| files.read(&format!("{root}/{path}")).and_then(|text| document(path, &text));
        let entry = load(file).and_then(|main| {
            let mut entry = json!({ "path": name, "server": main });
            for other in &tree.beside {
                let path = if folder.is_empty() { other.clone() } else { format!("{folder}/{other}") };
                if known.contains(path.as_str()) {
                    let member = other.split('.').next().unwrap_or(other);
                    entry[member] = load(&path)?;
                }
            }
            Ok(entry)
        });
        match entry {
            Ok(entry) => crawl.take_whole(&entry),
            Err(cause) => crawl.take_broken(name, cause),
        }
    }
    Ok(())
}

fn is_entry(file: &str, wanted: &str) -> bool {
    match wanted.strip_prefix('*') {
        Some(ending) => file.ends_with(ending),
        None => file.rsplit('/').next() == Some(wanted),
    }
}

fn document(path: &str, text: &str) -> Result<Value, String> {
    let said = |error: String| format!("`{}`: {error}", shown(path, 200));
    let text = text.trim_start_matches('\u{feff}');
    match path.rsplit('.').next() {
        Some("json") => serde_json::from_str(text).map_err(|e| said(e.to_string())),
        _ => yaml::parse(text).map_err(said),
    }
}

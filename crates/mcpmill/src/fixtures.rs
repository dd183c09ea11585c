//! Saved pages of a marketplace, and what its declaration makes of them: offline, so that who writes a declaration
//! sees whether it works.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use include_dir::Dir;
use mcpmill_core::{
    edge::{Fetch, FetchError, FetchErrorKind, FetchRequest, Page},
    secrets::redact_url,
};
use mcpmill_pipeline::discover::{CrawlContext, Files, Listing, Marketplace};
use serde::{Deserialize, Serialize};

use crate::sources::DiskFiles;

/// The file that says which page is of which address.
pub const INDEX: &str = "pages.json";
/// The folder of a fixture that stands for a checkout or a configuration.
const TREE: &str = "tree";

/// A page in the index: the name of its file, and where its `Link` header leads, if it had one.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Saved {
    /// A page that leads nowhere by itself.
    Plain(String),
    /// A page with a header that names the next one.
    Linked {
        /// Its file.
        file: String,
        /// The address of the next page.
        next: String,
    },
}

/// A folder of saved pages or files.
#[derive(Clone)]
pub enum Fixture {
    /// In the working folder.
    Folder(PathBuf),
    /// In the program.
    BuiltIn(&'static Dir<'static>),
}

/// What a declaration made of a fixture.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// The fixture.
    pub fixture: String,
    /// Servers it found.
    pub found: usize,
    /// Entries it could not read.
    pub unreadable: usize,
    /// What is wrong: it found nothing, or did not come to the end.
    pub fault: Option<String>,
}

impl Fixture {
    /// The fixture of a name below `fixtures`, where it exists; names lead nowhere else.
    pub fn below(fixtures: &Path, name: &str) -> Option<Self> {
        let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        let path = fixtures.join(name);
        (plain && path.is_dir()).then_some(Self::Folder(path))
    }

    fn text(&self, path: &str) -> Result<String, String> {
        match self {
            Self::Folder(folder) => DiskFiles.read(&folder.join(path).to_string_lossy()),
            Self::BuiltIn(dir) => {
                let file = dir.get_file(dir.path().join(path)).and_then(|file| file.contents_utf8());
                file.map(str::to_owned).ok_or_else(|| format!("`{path}` is not there"))
            }
        }
    }

    fn index(&self) -> Result<BTreeMap<String, Saved>, String> {
        serde_json::from_str(&self.text(INDEX)?).map_err(|e| format!("`{INDEX}`: {e}"))
    }
}

impl Files for Fixture {
    fn list(&self, folder: &str) -> Result<Vec<String>, String> {
        let dir = match self {
            Self::Folder(root) => return DiskFiles.list(&root.join(folder).to_string_lossy()),
            Self::BuiltIn(dir) => *dir,
        };
        let root = dir.path().join(folder);
        let (mut files, mut open) = (Vec::new(), vec![dir.get_dir(&root).ok_or_else(|| format!("`{folder}` is not there"))?]);
        while let Some(dir) = open.pop() {
            open.extend(dir.dirs());
            let below = dir.files().filter_map(|file| file.path().strip_prefix(&root).ok());
            files.extend(below.map(|path| path.to_string_lossy().into_owned()));
        }
        Ok(files)
    }

    fn read(&self, path: &str) -> Result<String, String> {
        self.text(path)
    }
}

/// Serves the pages of a fixture; what it has not is not there.
struct Pages {
    fixture: Fixture,
    index: BTreeMap<String, Saved>,
}

#[async_trait]
impl Fetch for Pages {
    async fn fetch(&self, request: &FetchRequest) -> Result<Page, FetchError> {
        let fail = |kind| FetchError { url: request.url.clone(), kind };
        // Addresses are saved without secrets, as pages are.
        let saved = self.index.get(&request.url).or_else(|| self.index.get(&redact_url(&request.url)));
        let (file, next) = match saved.ok_or_else(|| fail(FetchErrorKind::NotFound(404)))? {
            Saved::Plain(file) => (file, None),
            Saved::Linked { file, next } => (file, Some(next.clone())),
        };
        let body = self.fixture.text(file).map_err(|cause| fail(FetchErrorKind::Cache(cause)))?;
        Ok(Page { url: request.url.clone(), body, next, ..Page::default() })
    }
}

/// Reads a fixture by a marketplace's declaration.
pub fn try_out(marketplace: &dyn Marketplace, name: &str, fixture: &Fixture) -> Tried {
    let index = match fixture.index() {
        Ok(index) => index,
        Err(_) if fixture.list(TREE).is_ok() => BTreeMap::new(),
        Err(fault) => return Tried { fixture: name.to_owned(), fault: Some(fault), ..Tried::default() },
    };
    let latest = index.keys().flat_map(|address| dates(address)).max();
    let cx = |values| CrawlContext {
        fetch: Some(Arc::new(Pages { fixture: fixture.clone(), index: index.clone() })),
        files: Some(Arc::new(fixture.clone())),
        now: format!("{}T00:00:00Z", latest.unwrap_or("2026-01-01")),
        values,
        ..CrawlContext::default()
    };
    if !index.is_empty() {
        return told(name, &[crawl(marketplace, &cx(values(marketplace, &index)))]);
    }
    let whole = |path: &str| {
        let names = marketplace.templates().into_iter().filter_map(hole).map(|(_, name, _)| name.to_owned());
        crawl(marketplace, &cx(names.map(|name| (name, path.to_owned())).collect()))
    };
    match whole(TREE) {
        // A configuration is one file, and a fixture may hold several.
        (_, Some(("unreadable-file", _))) => {
            let files = fixture.list(TREE).unwrap_or_default();
            told(name, &files.iter().map(|file| whole(&format!("{TREE}/{file}"))).collect::<Vec<_>>())
        }
        ended => told(name, &[ended]),
    }
}

/// Listings, and why it ended before its end as reason and cause.
type Ended = (Vec<Listing>, Option<(&'static str, String)>);

fn crawl(marketplace: &dyn Marketplace, cx: &CrawlContext) -> Ended {
    let mut found = Vec::new();
    let ended = futures::executor::block_on(marketplace.crawl(cx, &mut |listing| found.push(listing)));
    (found, ended.err().map(|error| (error.reason, error.cause)))
}

fn told(name: &str, ended: &[Ended]) -> Tried {
    let listings = || ended.iter().flat_map(|(listings, _)| listings);
    let broken: Vec<&String> = listings().filter_map(|listing| listing.server.as_ref().err()).collect();
    let found = listings().count() - broken.len();
    let early = ended.iter().find_map(|(_, ended)| ended.as_ref());
    let fault = match (early, broken.first()) {
        (Some((reason, cause)), _) => Some(format!("{reason} after {found} entries: {cause}")),
        (None, Some(cause)) if found == 0 => Some(format!("none of {} entries can be read: {cause}", broken.len())),
        (None, None) if found == 0 => Some("it holds no entry".to_owned()),
        _ => None,
    };
    Tried { fixture: name.to_owned(), found, unreadable: broken.len(), fault }
}

/// What the first `${name}` of a template stands between.
fn hole(template: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = template.split_once("${")?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

/// What `${name}` in the start addresses was when the pages were saved.
fn values(marketplace: &dyn Marketplace, index: &BTreeMap<String, Saved>) -> BTreeMap<String, String> {
    let value = |template| {
        let (before, name, after) = hole(template)?;
        let after = after.split('{').next()?;
        let value = |address: &str| Some(address.strip_prefix(before)?.split_once(after)?.0.to_owned());
        Some((name.to_owned(), index.keys().find_map(|address| value(address)).filter(|value| !value.is_empty())?))
    };
    marketplace.templates().into_iter().filter_map(value).collect()
}

/// Days in an address (`2026-11-30`): the latest of all is the day on which a search that is split was made.
fn dates(address: &str) -> impl Iterator<Item = &str> {
    let digits =
        |part: &str| part.bytes().enumerate().all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() });
    (0..address.len()).filter_map(|at| address.get(at..at + 10)).filter(move |part| digits(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_values_are_read_from_addresses() {
        let found: Vec<&str> = dates("https://h/?q=pushed:2024-11-01..2026-11-30&page=10").collect();
        assert_eq!(found, ["2024-11-01", "2026-11-30"]);
        assert_eq!(hole("${npm}/-/v1"), Some(("", "npm", "/-/v1")));
    }

    #[test]
    fn saved_links_lead_to_the_next_page_and_names_stay_below_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("linked")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join("linked").join(name), text).unwrap();
        write("1.json", r#"{"items": [{"n": "a/a"}]}"#);
        write("2.json", r#"{"items": [{"n": "b/b"}, {}]}"#);
        let next = "https://h.example/s?page=2";
        write(INDEX, &format!(r#"{{"https://h.example/s": {{"file": "1.json", "next": "{next}"}}, "{next}": "2.json"}}"#));
        let declared = "kind = \"json-api\"\ntitle = \"t\"\nstart = [\"${site}/s\"]\nentries = [\"/items\"]\nlaunch = \"repository\"\n\
            paging = { style = \"link-header\" }\n[fields]\nname = [\"/n\"]\n";
        let marketplace = mcpmill_pipeline::discover::parse("m", declared).unwrap();
        let fixture = Fixture::below(folder.path(), "linked").unwrap();
        let tried = try_out(marketplace.as_ref(), "linked", &fixture);
        assert_eq!(tried, Tried { fixture: "linked".into(), found: 2, unreadable: 1, fault: None });
        write(INDEX, "[]");
        assert!(try_out(marketplace.as_ref(), "linked", &fixture).fault.unwrap().contains(INDEX));
        for name in ["../linked", "/etc", "linked/../../x", "none"] {
            assert!(Fixture::below(folder.path(), name).is_none(), "{name}");
        }
    }
}

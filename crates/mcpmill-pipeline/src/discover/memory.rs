//! What a crawl remembers: the crawl before it, what it has seen itself, and what the next one will need.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use serde_json::Value;

use super::{
    dates,
    marketplace::{Counts, CrawlContext, Listing},
    snapshot::{Head, Keeping, Line, Snapshot, hashed},
};

/// Raised when entries are read in another way than before: everything is read anew then.
const READING: u32 = 3;

/// An entry and how it is told from others.
pub(super) struct Item {
    /// What it is called.
    pub name: String,
    /// What tells it from the others; the name, as a rule.
    pub key: String,
    /// Hash of the entry as the marketplace has it, 16 hex digits.
    pub hash: String,
    /// What was made of it before, when only its own page may have changed.
    pub known: Option<Listing>,
    /// The day since 1970 on which its own page was read.
    pub read: u32,
}

/// A [`Line`] of an entry that was read, by reference.
#[derive(Serialize)]
struct Kept<'a> {
    key: &'a str,
    hash: &'a str,
    listing: &'a Listing,
    read: u32,
}

/// The memory of one crawl. Without snapshots it remembers nothing and everything is new.
#[derive(Default)]
pub(super) struct Memory {
    previous: Option<Snapshot>,
    next: Option<Box<dyn Keeping>>,
    seen: HashSet<u64>,
    /// Known servers of which a version was deleted or superseded, by name: with the entry that says so.
    doubts: BTreeMap<String, Value>,
    head: Head,
    /// The day since 1970.
    today: u32,
}

impl Memory {
    /// Of a crawl that begins now and reads entries by this declaration.
    ///
    /// # Errors
    /// What it started from cannot be had again.
    pub(super) async fn begin(id: &str, declaration: &str, cx: &CrawlContext) -> Result<Self, String> {
        let Some(kept) = &cx.snapshots else { return Ok(Self::default()) };
        let declaration = mcpmill_core::canonical::sha256_hex(format!("{READING}\n{declaration}"))[..16].to_owned();
        let previous = kept.load(id, cx.shelf.as_ref()).await?;
        // What was read by another declaration may lack what this one asks for.
        let previous = previous.filter(|previous| previous.head.declaration == declaration);
        let head = Head { at: cx.now.clone(), declaration };
        let today = dates::day(&cx.now).and_then(|day| day.try_into().ok()).unwrap_or_default();
        Ok(Self { previous, next: kept.begin(id), head, today, ..Self::default() })
    }

    /// When the crawl began that saw everything up to then.
    pub(super) fn at(&self) -> Option<&str> {
        self.previous.as_ref().map(|previous| previous.head.at.as_str()).filter(|at| !at.is_empty())
    }

    /// How an entry is told from others: by its name; by its content when it has none, or when the name was
    /// there before.
    pub(super) fn item(&self, name: Option<String>, place: u32, entry: &Value) -> Item {
        if !self.works() {
            let name = name.unwrap_or_else(|| format!("entry {place}"));
            return Item { key: String::new(), hash: String::new(), name, known: None, read: 0 };
        }
        let hash = mcpmill_core::canonical::content_hash(entry)[..16].to_owned();
        let key = match &name {
            Some(name) if !self.has_seen(name) => name.clone(),
            Some(name) => format!("{name}\n{hash}"),
            None => format!("\n{hash}"),
        };
        Item { name: name.unwrap_or_else(|| format!("entry {place}")), key, hash, known: None, read: self.today }
    }

    /// What was made of an entry that is as it was, with the day its own page was read.
    pub(super) fn as_before(&self, item: &Item) -> Option<(Listing, u32)> {
        self.previous.as_ref()?.unchanged(&item.key, &item.hash)
    }

    /// Counts an entry of which nothing changed.
    pub(super) fn count_known(&mut self, item: &Item, listing: &Listing, counts: &mut Counts) {
        if self.seen.insert(hashed(&item.key)) && listing.server.is_ok() {
            counts.unchanged += 1;
        }
    }

    /// Counts what an entry that was read anew is.
    pub(super) fn count(&mut self, item: &Item, listing: &Listing, counts: &mut Counts) {
        if item.known.as_ref() == Some(listing) {
            self.count_known(item, listing, counts);
        } else if !self.works() || self.seen.insert(hashed(&item.key)) {
            *(if self.holds(&item.key) { &mut counts.changed } else { &mut counts.added }) += 1;
        }
    }

    /// Notes what was made of an entry.
    pub(super) fn keep(&mut self, item: &Item, listing: &Listing) {
        if self.works() {
            self.seen.insert(hashed(&item.key));
            self.write(&Kept { key: &item.key, hash: &item.hash, listing, read: item.read });
        }
    }

    /// Notes an entry of which a page could not be fetched: the next crawl reads it again, also when the
    /// marketplace does not name it.
    pub(super) fn wait(&mut self, key: &str, entry: Value) {
        if self.works() {
            self.seen.insert(hashed(key));
            self.write(&Line { key: key.to_owned(), hash: String::new(), listing: None, entry: Some(entry), read: 0 });
        }
    }

    /// Notes that a version is deleted or superseded, if that casts doubt on what is known of the server: it is the
    /// version that is known, or it is said to be the latest one.
    pub(super) fn doubt(&mut self, name: &str, version: Option<&str>, latest: Option<bool>, entry: &Value) {
        let Some(known) = self.previous.as_ref().and_then(|previous| previous.line(name)) else { return };
        let known = known.listing.and_then(|listing| listing.server.ok());
        let same = known.is_none_or(|server| server.version.is_none() || server.version.as_deref() == version);
        if same || latest != Some(false) {
            self.doubts.insert(name.to_owned(), entry.clone());
        }
    }

    /// Doubts that nothing in the crawl has settled.
    pub(super) fn doubts(&mut self) -> Vec<(String, Value)> {
        let doubts = std::mem::take(&mut self.doubts);
        doubts.into_iter().filter(|(name, _)| !self.has_seen(name)).collect()
    }

    /// Notes that an entry is listed no more.
    pub(super) fn drop_out(&mut self, key: &str, counts: &mut Counts) {
        if self.seen.insert(hashed(key)) && self.holds(key) {
            counts.gone += 1;
        }
    }

    /// Entries that wait to be read again and have not been seen.
    pub(super) fn waiting(&self) -> Vec<Value> {
        let waiting = self.previous.as_ref().map(Snapshot::waiting).unwrap_or_default();
        waiting.into_iter().filter(|line| !self.has_seen(&line.key)).filter_map(|line| line.entry).collect()
    }

    /// Ends the crawl: what only the crawl before has seen is handed to `out` when just changes were asked for, and
    /// is gone otherwise. A crawl that was cut off has not seen everything up to its beginning. Gives the number of
    /// listings that were handed over.
    pub(super) fn finish(mut self, only_changes: bool, counts: &mut Counts, out: &mut (dyn FnMut(Listing) + Send + Sync)) -> u64 {
        let mut kept = 0;
        if let Some(previous) = self.previous.take() {
            for line in previous.lines() {
                if self.has_seen(&line.key) {
                    continue;
                }
                match (&line.listing, only_changes || counts.cut) {
                    (_, false) => counts.gone += 1,
                    (None, true) => self.write(&line),
                    (Some(listing), true) => {
                        counts.unchanged += u64::from(listing.server.is_ok());
                        self.write(&line);
                        kept += 1;
                        out(listing.clone());
                    }
                }
            }
            if counts.cut {
                self.head.at = previous.head.at;
            }
        } else if counts.cut {
            self.head.at.clear();
            if self.seen.is_empty() {
                // Nothing came of it: what is kept of another declaration may be of use once more.
                return kept;
            }
        }
        if let Some(next) = self.next.take() {
            next.finish(&self.head);
        }
        kept
    }

    /// Entries that the crawl before this one saw.
    pub(super) fn known(&self) -> usize {
        self.previous.as_ref().map_or(0, Snapshot::len)
    }

    /// The day since 1970 on which this crawl began.
    pub(super) fn today(&self) -> u32 {
        self.today
    }

    /// Whether snapshots are kept at all.
    fn works(&self) -> bool {
        !self.head.declaration.is_empty()
    }

    fn write(&mut self, line: &impl Serialize) {
        if let (Some(next), Ok(text)) = (&mut self.next, serde_json::to_string(line)) {
            next.push(&text);
        }
    }

    fn holds(&self, key: &str) -> bool {
        self.previous.as_ref().is_some_and(|previous| previous.holds(key))
    }

    fn has_seen(&self, key: &str) -> bool {
        self.seen.contains(&hashed(key))
    }
}

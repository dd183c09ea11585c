//! What the crawl before this one found, so that only changes are fetched.

use std::collections::HashMap;

use super::{marketplace::Listing, spool::Spool};

/// Keeps snapshots between runs.
pub trait Snapshots: Send + Sync {
    /// The snapshot of a marketplace; one that cannot be read is none.
    fn load(&self, marketplace: &str) -> Option<Snapshot>;

    /// Keeps the snapshot of a marketplace in place of the one before.
    fn save(&self, marketplace: &str, snapshot: Snapshot);
}

/// Everything a marketplace listed at one time, in little memory.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// When the crawl began, in RFC 3339.
    pub at: String,
    index: HashMap<String, (String, usize)>,
    listings: Spool,
}

impl Snapshot {
    /// An empty one of a crawl that began at `at`.
    pub fn new(at: &str) -> Self {
        Self { at: at.to_owned(), ..Self::default() }
    }

    /// Adds a listing under its key, with the hash of the marketplace's own entry.
    pub fn push(&mut self, key: &str, hash: &str, listing: &Listing) {
        let Ok(text) = serde_json::to_string(listing) else { return };
        self.index.insert(key.to_owned(), (hash.to_owned(), self.listings.len()));
        self.listings.push(&text);
    }

    /// The hash of the entry under a key.
    pub fn hash(&self, key: &str) -> Option<&str> {
        self.index.get(key).map(|(hash, _)| hash.as_str())
    }

    /// The listing under a key.
    pub fn listing(&self, key: &str) -> Option<Listing> {
        serde_json::from_str(&self.listings.get(self.index.get(key)?.1)?).ok()
    }

    /// All keys with their hashes, sorted.
    pub fn keys(&self) -> Vec<(&str, &str)> {
        let mut keys: Vec<_> = self.index.iter().map(|(key, (hash, _))| (key.as_str(), hash.as_str())).collect();
        keys.sort_unstable();
        keys
    }
}

//! What the crawl before this one found, so that only changes are fetched.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    marketplace::Listing,
    spool::{Shelf, Spool},
};

/// Keeps snapshots between runs.
#[async_trait]
pub trait Snapshots: Send + Sync {
    /// What a crawl of this marketplace starts from. Asked again by the same run or a replay of it, the
    /// answer is the same, whatever was kept since.
    ///
    /// # Errors
    /// What the run started from cannot be had again; in words.
    async fn load(&self, marketplace: &str, shelf: Option<&Arc<dyn Shelf>>) -> Result<Option<Snapshot>, String>;

    /// Begins the snapshot that takes the place of the one before; `None` when none is kept.
    fn begin(&self, marketplace: &str) -> Option<Box<dyn Keeping>>;
}

/// A snapshot that is being written. One that is not finished leaves the one before in place.
pub trait Keeping: Send + Sync {
    /// Adds a line, the JSON of a [`Line`].
    fn push(&mut self, line: &str);

    /// Puts it in place of the one before.
    fn finish(self: Box<Self>, head: &Head);
}

/// What holds for a whole snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// When the crawl began that saw everything up to then, in RFC 3339; empty when none did.
    pub at: String,
    /// Hash of the declaration the listings were read by.
    pub declaration: String,
}

/// One entry of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What tells the entry from others of its marketplace.
    pub key: String,
    /// Hash of the marketplace's own entry, 16 hex digits; empty when it has to be read again.
    pub hash: String,
    /// What was made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<Listing>,
    /// The entry itself, while a page of it could not be fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Value>,
    /// The day since 1970 on which it was read, with its own page if it has one; 0 when that is not known.
    #[serde(default)]
    pub read: u32,
}

/// Everything a marketplace listed at one time. In memory are some 40 bytes an entry.
#[derive(Default)]
pub struct Snapshot {
    /// When, and read how.
    pub head: Head,
    /// By hash of the key, the hash of the entry (0 when it has to be read again) and the place of its line.
    index: HashMap<u64, (u64, u32)>,
    lines: Spool,
}

/// The members of a line that are in the index.
#[derive(Deserialize)]
struct Indexed {
    key: String,
    hash: String,
}

impl Snapshot {
    /// An empty one whose lines lie on `shelf`, when there is one.
    pub fn new(head: Head, shelf: Option<&Arc<dyn Shelf>>) -> Self {
        Self { head, index: HashMap::new(), lines: Spool::on(shelf) }
    }

    /// Adds a line, the JSON of a [`Line`]. The last of equal keys counts.
    ///
    /// # Errors
    /// It is no such line.
    pub fn push(&mut self, line: &str) -> Result<(), serde_json::Error> {
        let Indexed { key, hash } = serde_json::from_str(line)?;
        self.index.insert(hashed(&key), (digits(&hash), self.lines.len() as u32));
        self.lines.push(line);
        Ok(())
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is an entry under a key.
    pub fn holds(&self, key: &str) -> bool {
        self.index.contains_key(&hashed(key))
    }

    /// The entry under a key.
    pub fn line(&self, key: &str) -> Option<Line> {
        self.read(self.index.get(&hashed(key))?.1)
    }

    /// What was made of the entry under a key, if it is still the one of this hash, and when its own page was read.
    pub(super) fn unchanged(&self, key: &str, hash: &str) -> Option<(Listing, u32)> {
        let (known, place) = *self.index.get(&hashed(key))?;
        if known == 0 || known != digits(hash) {
            return None;
        }
        let line = self.read(place)?;
        Some((line.listing?, line.read))
    }

    /// Entries that have to be read again, in their order.
    pub(super) fn waiting(&self) -> Vec<Line> {
        let mut places: Vec<u32> = self.index.values().filter(|(hash, _)| *hash == 0).map(|(_, place)| *place).collect();
        places.sort_unstable();
        places.into_iter().filter_map(|place| self.read(place)).collect()
    }

    /// All entries, in their order.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        (0..self.lines.len() as u32).filter_map(|place| {
            let line = self.read(place)?;
            (self.index.get(&hashed(&line.key))?.1 == place).then_some(line)
        })
    }

    fn read(&self, place: u32) -> Option<Line> {
        serde_json::from_str(&self.lines.get(place as usize)?).ok()
    }

    /// Bytes it takes in memory, about.
    pub fn bytes(&self) -> usize {
        self.lines.bytes() + self.index.capacity() * (size_of::<(u64, (u64, u32))>() + 1)
    }
}

/// The first 8 bytes of a hash that is the same in every process.
pub(super) fn hashed(text: &str) -> u64 {
    digits(&mcpmill_core::canonical::sha256_hex(text)[..16])
}

fn digits(hex: &str) -> u64 {
    u64::from_str_radix(hex, 16).unwrap_or_default()
}

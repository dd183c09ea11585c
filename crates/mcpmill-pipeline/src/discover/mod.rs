//! Discover: where servers are found. One file in `marketplaces/` is one source.

mod dates;
mod declare;
mod file;
mod html;
mod identity;
mod map;
mod markdown;
mod marketplace;
mod paging;
mod pick;
mod redact;
mod redact_page;
mod snapshot;
mod source;
mod spool;
mod tree;
mod yaml;

pub use marketplace::{Counts, CrawlContext, CrawlError, DeclarationError, Files, Listing, Marketplace, parse};
pub use redact::{REDACTED, names_a_secret, redact};
pub use redact_page::redact_page;
pub use snapshot::{Snapshot, Snapshots};
pub use spool::Spool;

use std::collections::{HashMap, HashSet};

use mcpmill_core::{
    canonical::{content_hash, sha256_hex},
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    record::{Outcome, Row, ServerRecord},
};
use serde::Serialize;

/// What a discovery came to.
#[derive(Debug)]
pub struct Discovered {
    /// The sums of the stage.
    pub summary: Summary,
    /// Every source, in the order they were given.
    pub sources: Vec<SourceReport>,
}

/// What one source came to.
#[derive(Clone, Debug, Serialize)]
pub struct SourceReport {
    /// The marketplace.
    pub marketplace: String,
    /// Listings it gave.
    pub listings: u64,
    /// Against the crawl before; as far as it came, when it failed.
    pub counts: Counts,
    /// Why it was skipped or failed, as reason and cause.
    pub ended: Option<(String, String)>,
}

/// A row of the stage: a listing, or a source that did not come to its end. The listings themselves
/// are in the spool.
#[derive(Clone, Serialize)]
struct Entry {
    id: String,
    /// Its place among all: two equal ones are still two rows.
    place: usize,
    /// Hash of all that its end depends on.
    content: String,
    fate: Fate,
}

#[derive(Clone, PartialEq, Serialize)]
enum Fate {
    /// The first listing of its server: the group's record goes on.
    First,
    /// Another listing of the server that stands first at this place.
    Same(usize),
    Unreadable,
    BeyondLimit,
    Skipped(String, String),
    Failed(String, String),
}

impl Row for Entry {
    fn row_id(&self) -> &str {
        &self.id
    }
}

/// Lists every marketplace and merges listings of the same server. A source that refuses is skipped, one
/// that fails midway keeps what it gave; the others go on.
///
/// # Errors
/// No marketplace lists anything, or too many rows fail.
pub async fn discover(
    marketplaces: &[Box<dyn Marketplace>],
    crawl: &CrawlContext,
    limit: Option<usize>,
    cx: &Context,
    out: &dyn Sink<ServerRecord>,
) -> Result<Discovered, StageError> {
    let mut gathered = Gathered::default();
    for marketplace in marketplaces {
        tokio::select! {
            biased;
            () = cx.cancel.cancelled() => return Err(StageError::Interrupted),
            () = gathered.source(marketplace.as_ref(), crawl, cx) => {}
        }
    }
    if gathered.spool.is_empty() {
        let causes: Vec<&str> = gathered.sources.iter().filter_map(|s| Some(s.ended.as_ref()?.1.as_str())).collect();
        let detail = ["no marketplace lists a server", &*causes.join("; ")].join(if causes.is_empty() { "" } else { ": " });
        return Err(StageError::Empty { stage: cx.stage.clone(), detail });
    }
    let (mut entries, merged) = gathered.entries();
    let beyond = entries.iter_mut().filter(|e| !matches!(e.fate, Fate::Skipped(..) | Fate::Failed(..)));
    beyond.skip(limit.unwrap_or(usize::MAX)).for_each(|entry| entry.fate = Fate::BeyondLimit);
    let pace = Pace { concurrency: 1, max_failure_rate: 0.5 };
    let summary = drive(entries, pace, cx, out, |entry| {
        let done = merged.end(entry);
        async move { done }
    })
    .await?;
    Ok(Discovered { summary, sources: merged.sources })
}

/// What all sources gave.
#[derive(Default)]
struct Gathered {
    spool: Spool,
    groups: identity::Groups,
    /// Id, content hash and readability of every listing, in the order of the spool.
    listings: Vec<(String, String, bool)>,
    /// Sources that did not come to their end.
    ends: Vec<(String, Fate)>,
    sources: Vec<SourceReport>,
}

impl Gathered {
    async fn source(&mut self, marketplace: &dyn Marketplace, crawl: &CrawlContext, cx: &Context) {
        let before = self.spool.len();
        let ended = marketplace.crawl(crawl, &mut |listing| self.add(&listing)).await;
        let id = marketplace.id().to_owned();
        let listings = (self.spool.len() - before) as u64;
        let (counts, ended) = match ended {
            Ok(counts) => {
                let Counts { added, changed, unchanged, gone, cut } = counts;
                let cut = if cut { "; there is more than its limits allow" } else { "" };
                cx.events.note(format!("{id}: {added} added, {changed} changed, {gone} gone, {unchanged} unchanged{cut}"));
                (counts, None)
            }
            Err(error) => {
                cx.events.note(format!("{id}: {} after {listings} listings ({})", error.reason, error.cause));
                (Counts::default(), Some(error))
            }
        };
        let skip = ended.as_ref().is_some_and(|e| e.is_skip() && listings == 0);
        let ended = ended.map(|e| (e.reason.to_owned(), redact(&e.cause).unwrap_or(e.cause)));
        if let Some((reason, cause)) = ended.clone() {
            self.ends.push((id.clone(), if skip { Fate::Skipped(reason, cause) } else { Fate::Failed(reason, cause) }));
        }
        self.sources.push(SourceReport { marketplace: id, listings, counts, ended });
    }

    fn add(&mut self, listing: &Listing) {
        let Ok(text) = serde_json::to_string(listing) else { return };
        self.listings.push((listing.id.clone(), sha256_hex(&text), listing.server.is_ok()));
        self.spool.push(&text);
        self.groups.add(listing);
    }

    /// Rows in the order of the listings, with those of sources at the end.
    fn entries(self) -> (Vec<Entry>, Merged) {
        let firsts = self.groups.finish();
        let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
        for (place, _) in self.listings.iter().enumerate().filter(|(_, listing)| listing.2) {
            members.entry(firsts[place] as usize).or_default().push(place);
        }
        let mut ids = HashSet::new();
        let mut entries = Vec::with_capacity(self.listings.len() + self.ends.len());
        for (place, (id, content, readable)) in self.listings.iter().enumerate() {
            let root = firsts[place] as usize;
            let (fate, content) = match members.get(&root).filter(|_| *readable) {
                None => (Fate::Unreadable, content.clone()),
                Some(group) if group[0] != place => (Fate::Same(group[0]), content.clone()),
                Some(group) => {
                    (Fate::First, content_hash(&group.iter().map(|&member| &self.listings[member].1).collect::<Vec<_>>()))
                }
            };
            // A name that occurs twice in a marketplace still names two rows.
            let id = if ids.insert(id.as_str()) { id.clone() } else { format!("{id}#{place}") };
            entries.push(Entry { id, place, content, fate });
        }
        let place = entries.len();
        let ends = self.ends.into_iter().enumerate();
        entries.extend(ends.map(|(i, (id, fate))| Entry { id, place: place + i, content: String::new(), fate }));
        let members = members.into_values().map(|group| (group[0], group)).collect();
        (entries, Merged { spool: self.spool, members, sources: self.sources })
    }
}

/// The groups of listings, to be read from the spool one after the other.
struct Merged {
    spool: Spool,
    /// By the place of a group's first listing, the places of all.
    members: HashMap<usize, Vec<usize>>,
    sources: Vec<SourceReport>,
}

impl Merged {
    fn listing(&self, place: usize) -> Option<Listing> {
        serde_json::from_str(&self.spool.get(place)?).ok()
    }

    fn record(&self, place: usize) -> Option<ServerRecord> {
        identity::merge(self.members.get(&place)?.iter().filter_map(|&member| self.listing(member)).collect())
    }

    fn end(&self, entry: Entry) -> Done<ServerRecord> {
        let id = entry.id;
        let because = |mut outcome: Outcome, cause: String| {
            outcome.cause = Some(cause);
            Done::none(outcome)
        };
        match entry.fate {
            Fate::BeyondLimit => Done::none(Outcome::skipped(id, "beyond-limit")),
            Fate::Skipped(reason, cause) => because(Outcome::skipped(id, reason), cause),
            Fate::Failed(reason, cause) => Done::none(Outcome::failed(id, reason, cause)),
            Fate::Unreadable => {
                let cause = self.listing(entry.place).and_then(|l| l.server.err()).unwrap_or_default();
                Done::none(Outcome::failed(id, "unreadable-listing", cause))
            }
            Fate::First => match self.record(entry.place) {
                Some(server) => Done::kept(&id, vec![server]),
                None => Done::none(Outcome::failed(id, "unreadable-listing", "its text was lost")),
            },
            Fate::Same(first) => {
                let known = self.listing(first).map(|listing| listing.id).unwrap_or_default();
                because(Outcome::dropped(id, "same-server"), format!("listed before as {known}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;

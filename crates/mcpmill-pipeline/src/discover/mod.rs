//! Discover: where servers are found. One file in `marketplaces/` is one source.

mod dates;
mod declare;
mod file;
mod html;
mod identity;
mod map;
mod markdown;
mod marketplace;
mod memory;
mod paging;
mod parsed;
mod pick;
mod redact;
mod redact_page;
mod snapshot;
mod source;
mod spool;
mod tree;
mod yaml;

pub use marketplace::{Counts, CrawlContext, CrawlError, DeclarationError, Files, KeyVariable, Listing, Marketplace, parse};
pub use redact_page::redact_page;
pub use snapshot::{Head, Keeping, Line, Snapshot, Snapshots};
pub use spool::{Shelf, Spool};

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use mcpmill_core::{
    canonical::content_hash,
    drive::{Context, Done, Pace, Sink, StageError, drive_each},
    event::Summary,
    id::ServerId,
    record::{Outcome, Row, ServerRecord},
    secrets::redact,
};
use serde::{Deserialize, Serialize};
use snapshot::hashed;

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
/// No server is kept; the error names the causes. One that is worth nothing does not end what others give.
pub async fn discover(
    marketplaces: &[Box<dyn Marketplace>],
    crawl: &CrawlContext,
    limit: Option<usize>,
    cx: &Context,
    out: &dyn Sink<ServerRecord>,
) -> Result<Discovered, StageError> {
    let mut gathered = Gathered::on(crawl.shelf.as_ref());
    for marketplace in marketplaces {
        tokio::select! {
            biased;
            () = cx.cancel.cancelled() => return Err(StageError::Interrupted),
            () = gathered.source(marketplace.as_ref(), crawl, cx) => {}
        }
    }
    if gathered.spool.is_empty() {
        return Err(gathered.merged(0).empty(cx));
    }
    let merged = gathered.merged(limit.unwrap_or(usize::MAX));
    let pace = Pace { concurrency: 1, max_failure_rate: 1.0 };
    let summary = drive_each(
        merged.rows(),
        |place| merged.entry(place),
        pace,
        cx,
        out,
        |entry| {
            let done = merged.end(entry);
            async move { done }
        },
    )
    .await?;
    if summary.kept == 0 {
        return Err(merged.empty(cx));
    }
    Ok(Discovered { summary, sources: merged.sources })
}

/// Causes that are named when nothing is kept.
const MOST_CAUSES: usize = 20;

/// What all sources gave. The listings themselves lie on the shelf; in memory is what tells them apart.
#[derive(Default)]
struct Gathered {
    spool: Spool,
    groups: identity::Groups,
    /// Of every listing, in the order of the spool.
    notes: Vec<Note>,
    /// Hashes of the ids of listings.
    ids: HashSet<u64>,
    /// Sources that did not come to their end.
    ends: Vec<(String, Fate)>,
    sources: Vec<SourceReport>,
}

/// What is known of a listing without reading it.
#[derive(Clone, Copy)]
struct Note {
    /// Hash of its text.
    content: u64,
    /// Hash of the id of its server; 0 when it cannot be read.
    server: u64,
    /// The next listing of its server; itself when there is none.
    next: u32,
    readable: bool,
    /// Whether the user wrote it.
    own: bool,
    /// Whether its id was there before: a name that occurs twice in a marketplace still names two rows.
    twice: bool,
}

impl Gathered {
    fn on(shelf: Option<&Arc<dyn Shelf>>) -> Self {
        Self { spool: Spool::on(shelf), ..Self::default() }
    }

    async fn source(&mut self, marketplace: &dyn Marketplace, crawl: &CrawlContext, cx: &Context) {
        let before = self.spool.len();
        let ended = marketplace.crawl(crawl, &mut |listing| self.add(&listing)).await;
        let id = marketplace.id().to_owned();
        let listings = (self.spool.len() - before) as u64;
        let (counts, ended) = match ended {
            Ok(counts) => {
                let Counts { added, changed, unchanged, gone, cut } = counts;
                let cut = if cut { "; not all of it was read: a limit was met" } else { "" };
                cx.events.note(format!("{id}: {added} added, {changed} changed, {gone} gone, {unchanged} unchanged{cut}"));
                (counts, None)
            }
            Err(mut error) => {
                error.cause = redact(&error.cause).unwrap_or(error.cause);
                let read = listings - error.kept;
                let kept =
                    if error.kept > 0 { format!("; {} more are as in the crawl before", error.kept) } else { String::new() };
                cx.events.note(format!("{id}: {} after {read} listings ({}){kept}", error.reason, error.cause));
                (Counts::default(), Some(error))
            }
        };
        let skip = ended.as_ref().is_some_and(|e| e.is_skip() && listings == e.kept);
        let ended = ended.map(|e| (e.reason.to_owned(), e.cause));
        if let Some((reason, cause)) = ended.clone() {
            self.ends.push((id.clone(), if skip { Fate::Skipped(reason, cause) } else { Fate::Failed(reason, cause) }));
        }
        self.sources.push(SourceReport { marketplace: id, listings, counts, ended });
    }

    fn add(&mut self, listing: &Listing) {
        let Ok(text) = serde_json::to_string(listing) else { return };
        let (next, twice) = (self.notes.len() as u32, !self.ids.insert(hashed(&listing.id)));
        let server = listing.server.as_ref().map(|server| hashed(server.id.as_str())).unwrap_or_default();
        self.notes.push(Note { content: hashed(&text), server, next, readable: listing.server.is_ok(), own: listing.own, twice });
        self.spool.push(&text);
        self.groups.add(listing);
    }

    /// Bytes it takes in memory, about.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let notes = self.notes.capacity() * size_of::<Note>();
        self.spool.bytes() + self.groups.bytes() + notes + self.ids.capacity() * (size_of::<u64>() + 1)
    }

    /// Finds the listings that are one server.
    fn merged(self, limit: usize) -> Merged {
        drop(self.ids);
        let mut merged = Merged {
            spool: self.spool,
            notes: self.notes,
            firsts: self.groups.finish(),
            apart: HashSet::new(),
            limit,
            ends: self.ends,
            sources: self.sources,
        };
        merged.chain();
        merged.settle();
        merged
    }
}

/// The groups of listings, to be read from the spool one after the other.
struct Merged {
    spool: Spool,
    notes: Vec<Note>,
    /// Of every listing, the first one of its group.
    firsts: Vec<u32>,
    /// The first listings of servers that have an id of their own though their launch is another one's, too.
    apart: HashSet<u32>,
    /// Listings that are taken.
    limit: usize,
    ends: Vec<(String, Fate)>,
    sources: Vec<SourceReport>,
}

/// The member of a listing that every row needs.
#[derive(Deserialize)]
struct Named {
    id: String,
}

impl Merged {
    /// Makes each group a chain from its first listing to its last.
    fn chain(&mut self) {
        let (firsts, notes) = (&mut self.firsts, &mut self.notes);
        // By the first listing of a group, of those that can be read the first and the last so far.
        let mut ends: HashMap<u32, (u32, u32)> = HashMap::new();
        for place in 0..firsts.len() as u32 {
            if !notes[place as usize].readable {
                continue;
            }
            let root = firsts[place as usize];
            if root == place {
                // Most groups have one member, for which there is nothing to remember.
                continue;
            }
            let (head, last) = *ends.entry(root).or_insert_with(|| {
                let head = if notes[root as usize].readable { root } else { place };
                (head, head)
            });
            if last != place {
                notes[last as usize].next = place;
                ends.insert(root, (head, place));
            }
            firsts[place as usize] = head;
        }
    }

    /// Sees to it that no two records have one id. Groups that were told apart and are launched in the same way get
    /// ids of their own where there is something to tell them by, and are one server otherwise.
    fn settle(&mut self) {
        let mut same: BTreeMap<ServerId, Vec<u32>> = BTreeMap::new();
        for first in self.doubtful() {
            if let Some(record) = self.record(first as usize) {
                same.entry(record.id).or_default().push(first);
            }
        }
        let mut one: BTreeMap<ServerId, Vec<u32>> = BTreeMap::new();
        for (id, groups) in same.into_iter().filter(|(_, groups)| groups.len() > 1) {
            let own = groups.iter().filter(|first| self.is_own(**first)).count();
            for first in groups {
                let known = self.record(first as usize).filter(|_| own != 1 || !self.is_own(first));
                let apart =
                    known.and_then(|mut record| identity::set_apart(&mut record, self.is_own(first)).then_some(record.id));
                if apart.is_some() {
                    self.apart.insert(first);
                }
                one.entry(apart.unwrap_or_else(|| id.clone())).or_default().push(first);
            }
        }
        let joined: HashMap<u32, u32> = one.values().flat_map(|all| all.iter().map(move |first| (*first, all[0]))).collect();
        if joined.iter().any(|(group, first)| group != first) {
            self.notes.iter_mut().zip(0..).for_each(|(note, place)| note.next = place);
            self.firsts.iter_mut().for_each(|first| *first = joined.get(first).copied().unwrap_or(*first));
            self.chain();
        }
    }

    /// The first listings of groups of which a listing has the id of one in another group, in their order.
    fn doubtful(&self) -> BTreeSet<u32> {
        let readable = self.notes.iter().zip(&self.firsts).filter(|(note, _)| note.readable);
        let mut ids: Vec<(u64, u32)> = readable.map(|(note, first)| (note.server, *first)).collect();
        ids.sort_unstable();
        ids.dedup();
        let shared = ids.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        shared.flat_map(|pair| [pair[0].1, pair[1].1]).collect()
    }

    fn is_own(&self, first: u32) -> bool {
        self.group(first as usize).any(|member| self.notes[member].own)
    }

    /// Rows: the listings in their order, with those of sources at the end.
    fn rows(&self) -> usize {
        self.notes.len() + self.ends.len()
    }

    fn entry(&self, place: usize) -> Entry {
        let Some(note) = self.notes.get(place) else {
            let (id, fate) = self.ends[place - self.notes.len()].clone();
            return Entry { id, place, content: String::new(), fate };
        };
        let named = self.spool.get(place).and_then(|text| serde_json::from_str::<Named>(&text).ok());
        let mut id = named.map(|named| named.id).unwrap_or_default();
        if note.twice || id.is_empty() {
            id = format!("{id}#{place}");
        }
        let first = self.firsts[place] as usize;
        let mut content = format!("{:016x}", note.content);
        let fate = match first {
            _ if place >= self.limit => Fate::BeyondLimit,
            _ if !note.readable => Fate::Unreadable,
            first if first != place => Fate::Same(first),
            _ => {
                let all = self.group(place).map(|member| format!("{:016x}", self.notes[member].content));
                let apart = self.apart.contains(&(place as u32)).then(|| "apart".to_owned());
                content = content_hash(&all.chain(apart).collect::<Vec<_>>());
                Fate::First
            }
        };
        Entry { id, place, content, fate }
    }

    /// The places of a group, from its first one.
    fn group(&self, first: usize) -> impl Iterator<Item = usize> {
        let after = |place: &usize| Some(self.notes[*place].next as usize).filter(|next| next != place);
        std::iter::successors(Some(first), after)
    }

    fn listing(&self, place: usize) -> Option<Listing> {
        serde_json::from_str(&self.spool.get(place)?).ok()
    }

    fn record(&self, place: usize) -> Option<ServerRecord> {
        let mut record = identity::merge(self.group(place).filter_map(|member| self.listing(member)).collect())?;
        if self.apart.contains(&(place as u32)) {
            identity::set_apart(&mut record, self.is_own(place as u32));
        }
        Some(record)
    }

    /// Why no server is kept: what the sources ended for, and what is wrong with the first listing.
    fn empty(&self, cx: &Context) -> StageError {
        let broken = self.notes.iter().position(|note| !note.readable);
        let broken = broken.and_then(|place| self.listing(place)).and_then(|l| Some(format!("{}: {}", l.id, l.server.err()?)));
        let ended = self.sources.iter().filter_map(|s| Some(s.ended.as_ref()?.1.clone()));
        let causes: Vec<String> = ended.chain(broken).take(MOST_CAUSES).collect();
        let detail = ["no marketplace lists a server", &*causes.join("; ")].join(if causes.is_empty() { "" } else { ": " });
        StageError::Empty { stage: cx.stage.clone(), detail }
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

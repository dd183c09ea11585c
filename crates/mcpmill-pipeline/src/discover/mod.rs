//! Discover: where servers are found. One file in `marketplaces/` is one source.

mod file;
mod marketplace;

pub use marketplace::{DeclarationError, Listing, Marketplace, parse};

use std::collections::{HashMap, HashSet};

use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    record::{Outcome, Row, ServerRecord},
};
use serde::Serialize;

/// One listing with its place in the merge: rows of the stage.
#[derive(Clone, Serialize)]
struct Entry {
    /// Its place among all listings: two equal ones are still two rows.
    place: usize,
    listing: Listing,
    /// The server this listing stands for when it is the first of it, with all sources merged.
    merged: Option<ServerRecord>,
    /// False beyond `--limit`.
    taken: bool,
}

impl Row for Entry {
    fn row_id(&self) -> &str {
        &self.listing.id
    }
}

/// Lists every marketplace and merges listings of the same server.
///
/// # Errors
/// A marketplace cannot be read at all, or none lists anything.
pub async fn discover(
    marketplaces: &[Box<dyn Marketplace>],
    limit: Option<usize>,
    cx: &Context,
    out: &dyn Sink<ServerRecord>,
) -> Result<Summary, StageError> {
    let mut listings = Vec::new();
    for marketplace in marketplaces {
        let found =
            marketplace.listings().await.map_err(|e| StageError::Input { stage: cx.stage.clone(), detail: e.to_string() })?;
        listings.extend(found);
    }
    if listings.is_empty() {
        return Err(StageError::Empty { stage: cx.stage.clone(), detail: "no marketplace lists a server".into() });
    }
    let mut entries = merge(listings);
    entries.iter_mut().skip(limit.unwrap_or(usize::MAX)).for_each(|entry| entry.taken = false);
    let pace = Pace { concurrency: 1, max_failure_rate: 0.5 };
    drive(entries, pace, cx, out, |entry| async move { end(entry) }).await
}

/// Marks the first listing of every server and gives it the sources of all.
fn merge(listings: Vec<Listing>) -> Vec<Entry> {
    let mut merged: HashMap<String, ServerRecord> = HashMap::new();
    for server in listings.iter().filter_map(|l| l.server.as_ref().ok()) {
        let first = merged.entry(server.id.to_string()).or_insert_with(|| ServerRecord { sources: Vec::new(), ..server.clone() });
        for source in &server.sources {
            if !first.sources.contains(source) {
                first.sources.push(source.clone());
            }
        }
    }
    let mut ids = HashSet::new();
    listings
        .into_iter()
        .enumerate()
        .map(|(place, mut listing)| {
            // A name that occurs twice in a marketplace still names two rows.
            if !ids.insert(listing.id.clone()) {
                listing.id = format!("{}#{place}", listing.id);
            }
            let merged = listing.server.as_ref().ok().and_then(|s| merged.remove(s.id.as_str()));
            Entry { place, listing, merged, taken: true }
        })
        .collect()
}

fn end(entry: Entry) -> Done<ServerRecord> {
    let id = entry.listing.id;
    if !entry.taken {
        return Done::none(Outcome::skipped(id, "beyond-limit"));
    }
    match (entry.listing.server, entry.merged) {
        (Err(cause), _) => Done::none(Outcome::failed(&id, "unreadable-listing", cause)),
        (Ok(_), Some(server)) => Done::kept(&id, vec![server]),
        (Ok(server), None) => {
            let mut outcome = Outcome::dropped(&id, "same-server");
            outcome.cause = Some(format!("listed before as {}", server.id));
            Done::none(outcome)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_listings_are_rows_of_their_own_and_one_server() {
        let text = "kind = \"file\"\ntitle = \"t\"\n".to_owned()
            + &"[[server]]\nname = \"a\"\ncommand = \"npx\"\nargs = [\"a\"]\n".repeat(3);
        let listings = futures::executor::block_on(parse("few", &text).unwrap().listings()).unwrap();
        let entries = merge(listings);
        let ids: HashSet<&str> = entries.iter().map(Row::row_id).collect();
        assert_eq!((entries.len(), ids.len()), (3, 3));
        assert_eq!(entries.iter().filter(|e| e.merged.is_some()).count(), 1);
        let hashes: HashSet<String> = entries.iter().map(mcpmill_core::canonical::content_hash).collect();
        assert_eq!(hashes.len(), 3);
    }
}

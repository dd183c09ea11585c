//! Discover: where servers are found. One file in `marketplaces/` is one source.

mod file;
mod marketplace;

pub use marketplace::{DeclarationError, Listing, Marketplace, parse};

use std::collections::HashMap;

use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    event::Summary,
    record::{Outcome, Row, ServerRecord},
};
use serde::Serialize;

/// One listing with its place in the merge: rows of the stage.
#[derive(Clone, Serialize)]
struct Entry {
    listing: Listing,
    /// The server this listing stands for when it is the first of it, with all sources merged.
    merged: Option<ServerRecord>,
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
    entries.truncate(limit.unwrap_or(usize::MAX));
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
    listings
        .into_iter()
        .map(|listing| {
            let merged = listing.server.as_ref().ok().and_then(|s| merged.remove(s.id.as_str()));
            Entry { listing, merged }
        })
        .collect()
}

fn end(entry: Entry) -> Done<ServerRecord> {
    let id = entry.listing.id;
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

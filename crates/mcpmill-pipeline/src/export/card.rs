//! The dataset card: a template filled with numbers counted from the rows.

use std::collections::{BTreeMap, BTreeSet};

use mcpmill_core::record::{ExportRow, Split};
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;
use thiserror::Error;

use super::Dataset;

/// Numbers of a card, counted row by row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CardCounts {
    rows: u64,
    splits: BTreeMap<String, u64>,
    kinds: BTreeMap<String, u64>,
    languages: BTreeMap<String, u64>,
    live: BTreeMap<String, u64>,
    licences: BTreeMap<String, u64>,
    servers: BTreeMap<String, u64>,
    models: BTreeMap<String, u64>,
    filters: BTreeMap<String, BTreeMap<String, u64>>,
    /// Servers of the rows that ran with the network.
    networked: BTreeSet<String>,
    #[serde(skip)]
    open: BTreeSet<String>,
    #[serde(skip)]
    tools: BTreeSet<String>,
}

impl CardCounts {
    /// Counts of no rows yet. `open` are names of servers that run with the network.
    pub fn new(open: BTreeSet<String>) -> Self {
        Self { open, ..Self::default() }
    }

    /// Counts a row.
    pub fn add(&mut self, row: &ExportRow) {
        let count = |map: &mut BTreeMap<String, u64>, key: &str| *map.entry(key.to_owned()).or_default() += 1;
        self.rows += 1;
        count(&mut self.splits, row.split.as_str());
        count(&mut self.kinds, row.kind.as_str());
        count(&mut self.live, &row.live);
        count(&mut self.licences, row.licence.as_deref().unwrap_or("unknown"));
        count(&mut self.languages, &row.language);
        for server in row.servers() {
            count(&mut self.servers, server);
            if self.open.contains(server) {
                self.networked.insert(server.to_owned());
            }
        }
        self.tools.extend(row.tool_ids.iter().chain(&row.withheld).map(ToString::to_string));
        let models: BTreeSet<&str> = row.lineage.iter().filter_map(|r| r.model.as_deref()).collect();
        models.into_iter().for_each(|m| count(&mut self.models, m));
        for verdict in &row.verdicts {
            let judgement = format!("{:?}", verdict.judgement).to_lowercase();
            *self.filters.entry(verdict.filter.clone()).or_default().entry(judgement).or_default() += 1;
        }
    }

    /// Rows counted of a split.
    pub fn of(&self, split: Split) -> u64 {
        self.splits.get(split.as_str()).copied().unwrap_or_default()
    }
}

/// A card template that cannot be filled.
#[derive(Debug, Error)]
#[error("failed to fill the card of dataset `{name}`: {detail}")]
pub struct CardError {
    /// The dataset.
    pub name: String,
    /// Why not.
    pub detail: String,
}

#[derive(Serialize)]
struct Values<'a> {
    name: &'a str,
    title: &'a str,
    licence: &'a str,
    candidates: usize,
    version: &'a str,
    export: &'a str,
    size_category: &'static str,
    tool_count: usize,
    server_count: usize,
    /// Splits that have rows, in the order of the loader.
    files: Vec<&'static str>,
    #[serde(flatten)]
    counts: &'a CardCounts,
}

/// Fills `template`; `export` names the export, `version` the program.
///
/// # Errors
/// The template uses a variable that does not exist, or is no template.
pub fn render_card(
    template: &str,
    dataset: &Dataset,
    counts: &CardCounts,
    export: &str,
    version: &str,
) -> Result<String, CardError> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    let values = Values {
        name: &dataset.name,
        title: &dataset.title,
        licence: &dataset.licence,
        candidates: dataset.candidates,
        version,
        export,
        size_category: size_category(counts.rows),
        tool_count: counts.tools.len(),
        server_count: counts.servers.len(),
        files: Split::ALL.into_iter().filter(|s| counts.of(*s) > 0).map(Split::as_str).collect(),
        counts,
    };
    env.render_str(template, values).map_err(|e| CardError { name: dataset.name.clone(), detail: format!("{e:#}") })
}

/// The hub's size classes.
fn size_category(rows: u64) -> &'static str {
    match rows {
        0..1_000 => "n<1K",
        1_000..10_000 => "1K<n<10K",
        10_000..100_000 => "10K<n<100K",
        100_000..1_000_000 => "100K<n<1M",
        _ => "1M<n<10M",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(server: &str) -> ExportRow {
        let text = json!({
            "id": "row", "sample_id": "sample", "split": "train", "kind": "single", "messages": [], "loss": [], "tools": "[]", "server": server,
            "tool_ids": [], "live": "ok", "lineage": [], "verdicts": [],
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn servers_with_the_network_are_named_when_they_have_rows() {
        let open = BTreeSet::from(["a".to_owned(), "without-rows".to_owned()]);
        let mut counts = CardCounts::new(open);
        ["a", "b", "a"].into_iter().for_each(|server| counts.add(&row(server)));
        let dataset = Dataset::parse("d", include_str!("../../../../datasets/mcp-tool-calls/dataset.toml")).unwrap();
        let template = include_str!("../../../../datasets/mcp-tool-calls/card.md");
        let card = render_card(template, &dataset, &counts, "export", "0").unwrap();
        assert!(card.contains("These servers ran with the network") && card.contains("world, too. a\n"), "{card}");
        let closed = render_card(template, &dataset, &CardCounts::default(), "export", "0").unwrap();
        assert!(!closed.contains("ran with the network") && closed.contains("|\n\n## What to keep in mind"), "{closed}");
    }
}

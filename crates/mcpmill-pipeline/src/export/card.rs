//! The dataset card: a template filled with numbers counted from the rows and from the run they come from.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mcpmill_core::{
    record::{Exam, ExportRow, Message, Sample, Split},
    toolbox::Toolbox,
};
use minijinja::{Environment, UndefinedBehavior, Value};
use serde::Serialize;
use thiserror::Error;

use super::{
    Dataset,
    escape::{cell, table, yaml},
    lengths::{Lengths, TokenCounter},
    split::request,
};
use crate::generate::diversity::Counting;

/// What a card tells of the run behind the rows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunFacts {
    /// The stages in their order, this export last.
    pub stages: Vec<StageYield>,
    /// What each filter said of all rows it saw: rows by judgement, by the filter's name.
    pub judged: BTreeMap<String, BTreeMap<String, u64>>,
    /// How the filters did on planted rows, those that have an exam.
    pub exams: Vec<Exam>,
    /// Prompts by the hash of their file: those whose hash a row names, and those of the filters.
    pub prompts: BTreeMap<String, String>,
    /// Hashes of the prompts that filters asked with.
    pub judging: BTreeSet<String>,
    /// Models that filters asked, by role, and the embedding model.
    pub judges: BTreeMap<String, String>,
}

/// What became of the rows of a stage.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StageYield {
    /// The stage.
    pub stage: String,
    /// Rows that came in.
    pub input: u64,
    /// Rows that went on.
    pub kept: u64,
    /// The others by outcome and reason.
    pub reasons: BTreeMap<String, u64>,
}

/// What a card knows of the servers behind the rows, by their names.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    /// Those that run with the network.
    pub open: BTreeSet<String>,
    /// Marketplaces that list them.
    pub marketplaces: BTreeMap<String, BTreeSet<String>>,
    /// Categories that these name.
    pub categories: BTreeMap<String, BTreeSet<String>>,
}

/// Numbers of a card, counted row by row.
#[derive(Default, Serialize)]
pub struct CardCounts {
    rows: u64,
    splits: BTreeMap<String, u64>,
    kinds: BTreeMap<String, u64>,
    languages: BTreeMap<String, u64>,
    live: BTreeMap<String, u64>,
    licences: BTreeMap<String, u64>,
    servers: BTreeMap<String, u64>,
    /// A row counts for every marketplace that lists a server of it.
    marketplaces: BTreeMap<String, u64>,
    /// And for every category of theirs; `none` where no marketplace names one.
    categories: BTreeMap<String, u64>,
    models: BTreeMap<String, u64>,
    /// Rows by the prompts that had a part in them.
    prompts: BTreeMap<String, u64>,
    filters: BTreeMap<String, BTreeMap<String, u64>>,
    /// Servers of the rows that ran with the network.
    networked: BTreeSet<String>,
    lengths: Lengths,
    #[serde(skip)]
    known: ServerFacts,
    #[serde(skip)]
    toolbox: Arc<Toolbox>,
    #[serde(skip)]
    diversity: Counting,
    #[serde(skip)]
    tools: BTreeSet<String>,
}

impl CardCounts {
    /// Counts of no rows yet; `toolbox` has their tools. `counter` counts tokens; without one, words and characters
    /// alone are told.
    pub fn new(known: ServerFacts, toolbox: Arc<Toolbox>, counter: Option<Box<dyn TokenCounter>>) -> Self {
        Self { known, toolbox, lengths: Lengths::new(counter), ..Self::default() }
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
        let (mut listed, mut of): (BTreeSet<&String>, BTreeSet<&String>) = (BTreeSet::new(), BTreeSet::new());
        for server in row.servers() {
            count(&mut self.servers, server);
            listed.extend(self.known.marketplaces.get(server).into_iter().flatten());
            of.extend(self.known.categories.get(server).into_iter().flatten());
            if self.known.open.contains(server) {
                self.networked.insert(server.to_owned());
            }
        }
        listed.into_iter().for_each(|marketplace| count(&mut self.marketplaces, marketplace));
        if of.is_empty() {
            count(&mut self.categories, "none");
        }
        of.into_iter().for_each(|category| count(&mut self.categories, category));
        self.tools.extend(row.tool_ids.iter().chain(&row.withheld).map(ToString::to_string));
        let models: BTreeSet<&str> = row.lineage.iter().filter_map(|r| r.model.as_deref()).collect();
        models.into_iter().for_each(|m| count(&mut self.models, m));
        let prompts: BTreeSet<&str> = row.lineage.iter().filter_map(|r| r.prompt.as_deref()).collect();
        prompts.into_iter().for_each(|p| count(&mut self.prompts, p));
        for verdict in &row.verdicts {
            let judgement = format!("{:?}", verdict.judgement).to_lowercase();
            count(self.filters.entry(verdict.filter.clone()).or_default(), &judgement);
        }
        self.lengths.add(row);
        self.diversity.add(&sample(row), &self.toolbox);
    }

    /// Rows counted of a split.
    pub fn of(&self, split: Split) -> u64 {
        self.splits.get(split.as_str()).copied().unwrap_or_default()
    }
}

/// A row as what it came from, for what is counted of samples.
fn sample(row: &ExportRow) -> Sample {
    Sample {
        id: row.id.clone(),
        kind: row.kind,
        tool_ids: row.tool_ids.clone(),
        withheld: row.withheld.clone(),
        server_ids: Vec::new(),
        language: row.language.clone(),
        instruction: request(&row.messages).unwrap_or_default().to_owned(),
        messages: row.messages.iter().filter(|m| matches!(m, Message::Assistant { .. })).cloned().collect(),
        lineage: Vec::new(),
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
    /// How much the rows differ.
    diversity: serde_json::Value,
    /// Whose tokens are counted.
    tokenizer: Option<String>,
    run: &'a RunFacts,
    /// Splits that have rows, in the order of the loader.
    files: Vec<&'static str>,
    #[serde(flatten)]
    counts: &'a CardCounts,
}

/// Fills `template`; `export` names the export, `version` the program. The filters `cell`, `table` and `yaml` make text of
/// others harmless in Markdown and in the front matter; all but plain numbers goes through one of them.
///
/// # Errors
/// The template uses a variable that does not exist, or is no template.
pub fn render_card(
    template: &str,
    dataset: &Dataset,
    counts: &CardCounts,
    run: &RunFacts,
    export: &str,
    version: &str,
) -> Result<String, CardError> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.add_filter("cell", |text: String| cell(&text));
    env.add_filter("table", |counts: Value, head: String| table(&counts, &head));
    env.add_filter("yaml", |text: String| yaml(&text));
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
        diversity: serde_json::to_value(counts.diversity.finish(&counts.toolbox, &[])).unwrap_or_default(),
        tokenizer: counts.lengths.tokenizer(),
        run,
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
    use mcpmill_core::{record::ExamEnd, share::Share};
    use serde_json::json;

    use super::*;

    fn row(server: &str) -> ExportRow {
        let text = json!({
            "id": "row", "sample_id": "sample", "split": "train", "kind": "single", "messages": [], "loss": [], "tools": "[]", "server": server,
            "tool_ids": [], "live": "ok", "lineage": [], "verdicts": [],
        });
        serde_json::from_value(text).unwrap()
    }

    const TEMPLATE: &str = include_str!("../../../../datasets/mcp-tool-calls/card.md");

    fn card(counts: &CardCounts, run: &RunFacts) -> String {
        let dataset = Dataset::parse("d", include_str!("../../../../datasets/mcp-tool-calls/dataset.toml")).unwrap();
        render_card(TEMPLATE, &dataset, counts, run, "export", "0").unwrap()
    }

    #[test]
    fn servers_with_the_network_are_named_when_they_have_rows() {
        let open = BTreeSet::from(["a".to_owned(), "without-rows".to_owned()]);
        let listed = BTreeMap::from([("a".to_owned(), BTreeSet::from(["starter".to_owned(), "registry".to_owned()]))]);
        let mut counts =
            CardCounts::new(ServerFacts { open, marketplaces: listed, ..ServerFacts::default() }, Arc::default(), None);
        ["a", "b", "a"].into_iter().for_each(|server| counts.add(&row(server)));
        let open = card(&counts, &RunFacts::default());
        assert!(open.contains("These servers ran with the network") && open.contains("world, too: a.\n"), "{open}");
        assert!(open.contains("| registry | 2 |\n| starter | 2 |\n"), "{open}");
        let closed = card(&CardCounts::default(), &RunFacts::default());
        assert!(!closed.contains("ran with the network") && closed.contains("\n\n## What to keep in mind"), "{closed}");
    }

    #[test]
    fn names_of_others_change_neither_the_front_matter_nor_the_page() {
        let planted =
            "a | b\n---\nlicense: mit\n<script>alert(1)</script> [x](javascript:y) `c` ![i](//h)\u{202e} $& https://e.org";
        let mut row = row(planted);
        row.licence = Some(planted.into());
        row.language = "en\n- x: &a [".into();
        row.lineage =
            serde_json::from_value(json!([{ "step": planted, "prompt": planted, "model": planted, "parent": null, "text": "" }]))
                .unwrap();
        let listed = BTreeMap::from([(planted.to_owned(), BTreeSet::from([planted.to_owned()]))]);
        let open = BTreeSet::from([planted.to_owned()]);
        let categories = listed.clone();
        let mut counts = CardCounts::new(ServerFacts { open, marketplaces: listed, categories }, Arc::default(), None);
        counts.add(&row);
        let reasons = BTreeMap::from([(format!("dropped: licence: {planted}"), 3)]);
        let run = RunFacts {
            stages: vec![StageYield { stage: planted.into(), input: 4, kept: 1, reasons }],
            exams: vec![Exam {
                filter: planted.into(),
                end: ExamEnd::Failed,
                cause: Some(planted.into()),
                tolerated: true,
                recall: Share::of(3, 8),
                false_rejects: Share::of(1, 8),
                better_than_chance: (-0.1, 0.5),
                unjudged: 0,
                by_plant: BTreeMap::new(),
                missed: Vec::new(),
                rejected: Vec::new(),
            }],
            judged: BTreeMap::from([(planted.to_owned(), BTreeMap::from([("drop".to_owned(), 2)]))]),
            prompts: BTreeMap::from([(planted.to_owned(), planted.to_owned())]),
            judging: BTreeSet::from([planted.to_owned()]),
            judges: BTreeMap::from([("judge".to_owned(), planted.to_owned())]),
        };
        let text = card(&counts, &run);
        let (front, page) = text.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
        assert!(front.contains(r#"- "en\u000a- x: &a [""#), "{front}");
        assert_eq!(front.matches("license:").count(), 1, "{front}");
        for raw in ["<script", "](javascript", "\n---", "\nlicense: mit", "\u{202e}", "`c`", "https://e.org", "a | b"] {
            assert!(!page.contains(raw), "{raw}: {page}");
        }
        let broken = page.lines().filter(|line| line.contains("alert") && line.starts_with('|'));
        assert!(broken.clone().count() >= 8 && broken.clone().all(|line| line.ends_with('|')), "{page}");
    }
}

//! What a dataset card tells of the run behind its rows, counted from the artifacts of the stages.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use mcpmill_clients::tokens::WordPieces;
use mcpmill_core::record::{Outcome, OutcomeKind, ServerRecord, Verdict};
use mcpmill_pipeline::{
    export::{RunFacts, ServerFacts, StageYield, TokenCounter},
    filter::Chain,
};
use mcpmill_store::{
    artifact::Table,
    parquet_file::{FileError, Rows},
    run_dir::stage_info,
};

use crate::{
    declarations::Declarations,
    error::{Exit, Failure},
    stage::Stage,
};

/// Counts word pieces for cards.
pub struct Counter(WordPieces);

impl Counter {
    /// A counter, unless the vocabulary cannot be read.
    pub fn boxed() -> Option<Box<dyn TokenCounter>> {
        WordPieces::new().ok().map(|pieces| Box::new(Self(pieces)) as Box<dyn TokenCounter>)
    }
}

impl TokenCounter for Counter {
    fn name(&self) -> String {
        WordPieces::NAME.to_owned()
    }

    fn count(&self, text: &str) -> u64 {
        self.0.count(text)
    }
}

/// What the stages of `run` did up to the export in `export`, a folder below it; `chains` are those of its filters.
///
/// # Errors
/// An artifact cannot be read, or a declaration of the filters.
pub fn of_run(run: &Path, export: &str, chains: [&str; 2], declarations: &Declarations) -> Result<RunFacts, Failure> {
    let mut facts = RunFacts::default();
    let before = Stage::ALL.into_iter().filter(|stage| *stage != Stage::Export).map(|stage| stage.folder().to_owned());
    for folder in before.chain([export.to_owned()]).filter(|folder| run.join(folder).is_dir()) {
        facts.stages.push(yielded(run, &folder)?);
    }
    for stage in [Stage::FilterSamples, Stage::FilterTrajectories] {
        let info = stage_info(&run.join(stage.folder())).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
        facts.exams.extend(info.and_then(|info| info.exams).unwrap_or_default());
        each(&run.join(stage.folder()), |verdict: Verdict| {
            let judgement = format!("{:?}", verdict.judgement).to_lowercase();
            *facts.judged.entry(verdict.filter).or_default().entry(judgement).or_default() += 1;
        })?;
    }
    for id in declarations.ids("prompts", ".md") {
        let prompt = declarations.prompt(&id)?;
        facts.prompts.insert(prompt.hash, id);
    }
    for chain in chains {
        for id in Chain::needs(declarations.chain(chain)?).prompts {
            facts.judging.insert(declarations.prompt(&id)?.hash);
        }
    }
    Ok(facts)
}

fn yielded(run: &Path, folder: &str) -> Result<StageYield, Failure> {
    let mut stage = StageYield { stage: folder.to_owned(), ..StageYield::default() };
    each(&run.join(folder), |outcome: Outcome| {
        stage.input += 1;
        if outcome.outcome == OutcomeKind::Kept {
            stage.kept += 1;
        } else {
            // Why a row was not tried ends in the rule that says so, often of a single tool.
            let skipped = outcome.outcome == OutcomeKind::Skipped;
            let reason = outcome.reason.split(": ").next().filter(|_| skipped).unwrap_or(&outcome.reason);
            *stage.reasons.entry(format!("{}: {reason}", outcome.outcome.as_str())).or_default() += 1;
        }
    })?;
    Ok(stage)
}

/// What is known of servers by their names.
pub fn of_servers<'a>(servers: impl Iterator<Item = &'a ServerRecord>, is_open: impl Fn(&ServerRecord) -> bool) -> ServerFacts {
    let mut open = BTreeSet::new();
    let mut marketplaces: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut categories: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for server in servers {
        if is_open(server) {
            open.insert(server.name.clone());
        }
        let listed = server.sources.iter().map(|source| source.marketplace.clone());
        marketplaces.entry(server.name.clone()).or_default().extend(listed);
        categories.entry(server.name.clone()).or_default().extend(server.categories.iter().cloned());
    }
    ServerFacts { open, marketplaces, categories }
}

/// Every row of a table in a stage's folder.
fn each<T: Table>(folder: &Path, mut take: impl FnMut(T)) -> Result<(), Failure> {
    let fail = |e: FileError| Failure::from_error(Exit::Unexpected, &e);
    for row in Rows::<T>::open(&folder.join(T::NAME).with_extension("parquet")).map_err(fail)? {
        take(row.map_err(fail)?);
    }
    Ok(())
}

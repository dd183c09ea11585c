//! Publishing: the rows of an export as split files and a card.

use std::{fs, path::Path, sync::Arc};

use mcpmill_core::{
    record::{ExportRow, Split},
    toolbox::Toolbox,
};
use mcpmill_pipeline::export::{CardCounts, Dataset, RunFacts, ServerFacts, Shards, SplitCheck, render_card};
use mcpmill_store::{
    artifact::Table,
    parquet_file::{Rows, Writer},
};

use crate::{
    error::{Exit, Failure},
    facts::Counter,
};

/// Raised when the columns of published rows change.
const SCHEMA_VERSION: &str = "1";

/// What is published, and what is known of it.
pub struct Publication<'a> {
    /// The dataset.
    pub dataset: &'a Dataset,
    /// The template of its card.
    pub card: &'a str,
    /// Names the export: the beginning of its fingerprint, the same for the same input whenever it runs.
    pub export: &'a str,
    /// All tools and their copies.
    pub toolbox: Arc<Toolbox>,
    /// What is known of the servers.
    pub servers: ServerFacts,
    /// What is known of the run.
    pub run: RunFacts,
}

/// Writes `data/<split>-NNNNN-of-NNNNN.parquet` and `README.md` beside the rows of a finished export, row by row: of each
/// row no more is kept in memory than its clusters and its request.
///
/// Writing again gives the same bytes; files of an earlier attempt are replaced.
///
/// # Errors
/// What is held out is trained on in the rows as they are, a file cannot be read or written, or the card's template does
/// not fit.
pub fn publish(folder: &Path, publication: Publication) -> Result<(), Failure> {
    let fail = |e: &dyn std::error::Error| Failure::from_error(Exit::Unexpected, e);
    let Publication { dataset, card, export, toolbox, servers, run } = publication;
    let rows_file = folder.join(ExportRow::NAME).with_extension("parquet");
    let mut counts = CardCounts::new(servers, Arc::clone(&toolbox), Counter::boxed());
    let (mut check, mut shards) = (SplitCheck::new(&toolbox), Shards::new(dataset));
    for row in Rows::<ExportRow>::open(&rows_file).map_err(|e| fail(&e))? {
        let row = row.map_err(|e| fail(&e))?;
        counts.add(&row);
        check.add(&row);
        shards.add(&row);
    }
    check.finish().map_err(|e| {
        fail(&e).hint("nothing was published; the rows are in rows.parquet of the export, and this is a fault of mcpmill")
    })?;
    let data = folder.join("data");
    let fresh = folder.join("data.partial");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(|e| fail(&e))?;
    }
    fs::create_dir_all(&fresh).map_err(|e| fail(&e))?;
    let metadata = [
        ("dataset.name", dataset.name.as_str()),
        ("dataset.version", env!("CARGO_PKG_VERSION")),
        ("dataset.licence", dataset.licence.as_str()),
        ("mcpmill.schema", SCHEMA_VERSION),
        ("mcpmill.export", export),
    ];
    for split in Split::ALL {
        write_split(&rows_file, &fresh, split, shards.of(split), &metadata)?;
    }
    if data.exists() {
        fs::remove_dir_all(&data).map_err(|e| fail(&e))?;
    }
    fs::rename(&fresh, &data).map_err(|e| fail(&e))?;
    let text = render_card(card, dataset, &counts, &run, export, env!("CARGO_PKG_VERSION"))
        .map_err(|e| Failure::usage(e.to_string()))?;
    fs::write(folder.join("README.md"), text).map_err(|e| fail(&e))
}

fn write_split(rows_file: &Path, data: &Path, split: Split, files: &[u64], metadata: &[(&str, &str)]) -> Result<(), Failure> {
    let fail = |e: &dyn std::error::Error| Failure::from_error(Exit::Unexpected, e);
    let mut rows =
        Rows::<ExportRow>::open(rows_file).map_err(|e| fail(&e))?.filter(|row| row.as_ref().map_or(true, |r| r.split == split));
    for (number, count) in files.iter().enumerate() {
        let path = data.join(format!("{split}-{number:05}-of-{:05}.parquet", files.len()));
        let mut writer = Writer::create(&path, &ExportRow::columns(), metadata).map_err(|e| fail(&e))?;
        for row in rows.by_ref().take(*count as usize) {
            writer.push(&row.map_err(|e| fail(&e))?).map_err(|e| fail(&e))?;
        }
        writer.finish().map_err(|e| fail(&e))?;
    }
    Ok(())
}

//! Publishing: the rows of an export as split files and a card.

use std::{collections::BTreeSet, fs, path::Path};

use mcpmill_core::record::{ExportRow, Split};
use mcpmill_pipeline::export::{CardCounts, Dataset, render_card};
use mcpmill_store::{
    artifact::Table,
    parquet_file::{Rows, Writer},
};

use crate::error::{Exit, Failure};

/// Writes `data/<split>-NNNNN-of-NNNNN.parquet` and `README.md` beside the rows of a finished export,
/// row by row, so that memory does not grow with the dataset. `export` names the export in the card, `open` are
/// the servers that run with the network.
///
/// Writing again gives the same bytes; files of an earlier attempt are replaced.
///
/// # Errors
/// A file cannot be read or written, or the card's template does not fit.
pub fn publish(folder: &Path, dataset: &Dataset, card: &str, export: &str, open: BTreeSet<String>) -> Result<(), Failure> {
    let fail = |e: &dyn std::error::Error| Failure::from_error(Exit::Unexpected, e);
    let rows_file = folder.join(ExportRow::NAME).with_extension("parquet");
    let mut counts = CardCounts::new(open);
    for row in Rows::<ExportRow>::open(&rows_file).map_err(|e| fail(&e))? {
        counts.add(&row.map_err(|e| fail(&e))?);
    }
    let data = folder.join("data");
    let fresh = folder.join("data.partial");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(|e| fail(&e))?;
    }
    fs::create_dir_all(&fresh).map_err(|e| fail(&e))?;
    for split in Split::ALL.into_iter().filter(|s| counts.of(*s) > 0) {
        write_split(&rows_file, &fresh, split, counts.of(split), dataset)?;
    }
    if data.exists() {
        fs::remove_dir_all(&data).map_err(|e| fail(&e))?;
    }
    fs::rename(&fresh, &data).map_err(|e| fail(&e))?;
    let text =
        render_card(card, dataset, &counts, export, env!("CARGO_PKG_VERSION")).map_err(|e| Failure::usage(e.to_string()))?;
    fs::write(folder.join("README.md"), text).map_err(|e| fail(&e))
}

fn write_split(rows_file: &Path, data: &Path, split: Split, count: u64, dataset: &Dataset) -> Result<(), Failure> {
    let fail = |e: &dyn std::error::Error| Failure::from_error(Exit::Unexpected, e);
    let per_file = dataset.rows_per_file as u64;
    let files = count.div_ceil(per_file);
    let metadata = [("dataset.name", dataset.name.as_str()), ("dataset.version", env!("CARGO_PKG_VERSION"))];
    let mut rows =
        Rows::<ExportRow>::open(rows_file).map_err(|e| fail(&e))?.filter(|row| row.as_ref().map_or(true, |r| r.split == split));
    for number in 0..files {
        let path = data.join(format!("{split}-{number:05}-of-{files:05}.parquet"));
        let mut writer = Writer::create(&path, &ExportRow::columns(), &metadata).map_err(|e| fail(&e))?;
        for row in rows.by_ref().take(per_file as usize) {
            writer.push(&row.map_err(|e| fail(&e))?).map_err(|e| fail(&e))?;
        }
        writer.finish().map_err(|e| fail(&e))?;
    }
    Ok(())
}

//! Export profiles on disk: `profiles/<name>/` with one file of JSON lines a split, and what the trainer needs.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

use mcpmill_core::record::{ExportRow, Split};
use mcpmill_pipeline::export::profile::{Profile, Told};
use mcpmill_store::{artifact::Table, parquet_file::Rows};

use crate::{
    declarations::Declarations,
    error::{Exit, Failure},
};

/// Writes the rows of a finished export once for each profile, in place of what an earlier export wrote, and removes
/// the folders of profiles that are named no longer. Returns what is to be told: rows that a format cannot hold.
///
/// Writing again gives the same bytes. Memory does not grow with the rows.
///
/// # Errors
/// There is no such profile, one cannot be used, or a file cannot be read or written.
pub fn write(folder: &Path, names: &[String], declarations: &Declarations) -> Result<Vec<String>, Failure> {
    let profiles: Vec<Profile> = names.iter().map(|name| declarations.profile(name)).collect::<Result<_, _>>()?;
    let all = folder.join("profiles");
    remove(&all)?;
    let mut notes = Vec::new();
    for profile in &profiles {
        let fresh = folder.join("profiles.partial");
        remove(&fresh)?;
        fs::create_dir_all(&fresh).map_err(|e| failed(&e))?;
        let told = write_rows(&folder.join(ExportRow::NAME).with_extension("parquet"), &fresh, profile, declarations)?;
        for (file, text) in profile.files(&told).map_err(|e| failed(&e))? {
            // The first line break of a text of several lines is TOML's, the last may be missing.
            fs::write(fresh.join(file), format!("{}\n", text.trim())).map_err(|e| failed(&e))?;
        }
        fs::create_dir_all(&all).map_err(|e| failed(&e))?;
        fs::rename(&fresh, all.join(&profile.name)).map_err(|e| failed(&e))?;
        let reasons = told.left_out.iter().map(|(reason, count)| format!("{count} with {reason}"));
        let reasons: Vec<String> = reasons.collect();
        if !reasons.is_empty() {
            notes.push(format!(
                "profile {}: rows that its format cannot hold are left out: {}",
                profile.name,
                reasons.join(", ")
            ));
        }
    }
    Ok(notes)
}

fn write_rows(rows_file: &Path, to: &Path, profile: &Profile, declarations: &Declarations) -> Result<Told, Failure> {
    let mut told =
        Told { training: declarations.training()?, version: env!("CARGO_PKG_VERSION"), rows: BTreeMap::new(), ..Told::default() };
    let mut files: BTreeMap<&'static str, BufWriter<File>> = BTreeMap::new();
    for row in Rows::<ExportRow>::open(rows_file).map_err(|e| failed(&e))? {
        let row = row.map_err(|e| failed(&e))?;
        let written = match profile.rows(&row) {
            Ok(written) => written,
            Err(reason) => {
                *told.left_out.entry(reason).or_default() += 1;
                continue;
            }
        };
        let split = Split::as_str(row.split);
        if !files.contains_key(split) {
            let file = File::create(to.join(format!("{split}.jsonl"))).map_err(|e| failed(&e))?;
            files.insert(split, BufWriter::new(file));
        }
        *told.rows.entry(split).or_default() += written.len() as u64;
        if let Some(file) = files.get_mut(split) {
            written.iter().try_for_each(|line| writeln!(file, "{line}")).map_err(|e| failed(&e))?;
        }
    }
    files.values_mut().try_for_each(BufWriter::flush).map_err(|e| failed(&e))?;
    Ok(told)
}

fn remove(folder: &Path) -> Result<(), Failure> {
    if folder.exists() { fs::remove_dir_all(folder).map_err(|e| failed(&e)) } else { Ok(()) }
}

fn failed(error: &dyn std::error::Error) -> Failure {
    Failure::from_error(Exit::Unexpected, error)
}

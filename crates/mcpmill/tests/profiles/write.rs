// Rows in the shape of every built-in profile, for the test beside this folder and the example `write_profiles`.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use mcpmill_core::record::ExportRow;
use mcpmill_pipeline::export::profile::{Profile, Told, Training};

/// Writes JSON lines of export rows below `to`, one folder a profile.
///
/// # Errors
/// A file cannot be read or written, or holds no rows.
pub fn write_profiles(rows: &Path, to: &Path) -> Result<()> {
    let declared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../datasets");
    let training = Training::parse(&fs::read_to_string(declared.join("training.toml"))?).map_err(anyhow::Error::msg)?;
    let rows: Vec<ExportRow> = fs::read_to_string(rows)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for file in fs::read_dir(declared.join("profiles"))? {
        let file = file?.path();
        let name = file.file_stem().and_then(|name| name.to_str()).context("a profile without a name")?;
        let profile = Profile::parse(name, &fs::read_to_string(&file)?)?;
        write(&profile, &rows, &training, &to.join(name))?;
    }
    Ok(())
}

fn write(profile: &Profile, rows: &[ExportRow], training: &Training, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut left_out: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut lines = Vec::new();
    for row in rows {
        match profile.rows(row) {
            Ok(written) => lines.extend(written.iter().map(|line| format!("{line}\n"))),
            Err(reason) => *left_out.entry(reason).or_default() += 1,
        }
    }
    fs::write(to.join("train.jsonl"), lines.concat())?;
    let rows = [("train", lines.len() as u64)].into();
    let told = Told { training: training.clone(), rows, left_out, version: env!("CARGO_PKG_VERSION") };
    for (file, text) in profile.files(&told)? {
        fs::write(to.join(file), format!("{}\n", text.trim()))?;
    }
    Ok(())
}

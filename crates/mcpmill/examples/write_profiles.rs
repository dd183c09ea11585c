//! Writes JSON lines of export rows in the shape of every built-in profile: `write_profiles ROWS.jsonl FOLDER`.
//! It is how rows that no run has made yet come to the trainers' own loaders.

#[path = "../tests/profiles/write.rs"]
mod write;

use std::path::Path;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let rows = args.next().context("name a file of rows")?;
    let to = args.next().context("name a folder")?;
    write::write_profiles(Path::new(&rows), Path::new(&to))
}

//! Clusters near duplicates of a file of instructions, and says how long that took.
//!
//!     cargo run --release --example near -- SET.jsonl CLUSTERS.txt [THRESHOLD [PLAIN [FLOOR [VALUE_WEIGHT]]]]
//!
//! A line of SET.jsonl has a `text`; line n of CLUSTERS.txt is the cluster of text n. The last line printed is JSON: texts,
//! clusters, seconds from texts in memory to clusters, and the peak of memory of the whole program in MiB.

use std::{
    fmt::Write,
    fs::{self, File},
    io::{BufRead, BufReader},
    time::Instant,
};

use anyhow::{Context, Result};
use mcpmill_pipeline::near::{Settings, clusters_with};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: near SET.jsonl CLUSTERS.txt [THRESHOLD [PLAIN [FLOOR [VALUE_WEIGHT]]]]";
    let (set, out) = (args.next().context(usage)?, args.next().context(usage)?);
    let mut settings = Settings::default();
    for field in [&mut settings.threshold, &mut settings.plain_threshold, &mut settings.floor, &mut settings.value_weight] {
        if let Some(given) = args.next() {
            *field = given.parse().context(usage)?;
        }
    }
    let texts = BufReader::new(File::open(&set)?).lines().map(|line| text(&line?)).collect::<Result<Vec<String>>>()?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let started = Instant::now();
    let found = clusters_with(&texts, &settings);
    let seconds = started.elapsed().as_secs_f64();
    let count = found.iter().enumerate().filter(|(i, of)| i == *of).count();
    let mut lines = String::new();
    for of in &found {
        writeln!(lines, "{of}")?;
    }
    fs::write(&out, lines)?;
    let said = serde_json::json!({ "texts": texts.len(), "clusters": count, "seconds": seconds, "peak_mib": peak()? });
    println!("{said}");
    Ok(())
}

fn text(line: &str) -> Result<String> {
    let row: serde_json::Value = serde_json::from_str(line)?;
    Ok(row["text"].as_str().context("a row has no `text`")?.to_owned())
}

/// The most memory this program held, in MiB.
fn peak() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no peak of memory is known here")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
}

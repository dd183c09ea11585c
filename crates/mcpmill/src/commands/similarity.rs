//! `eval similarity`: the thresholds of the step `embedding-similarity` for the embedding model that is in use.

use std::{path::Path, sync::Arc};

use mcpmill_core::edge::Recorder;
use mcpmill_pipeline::filter::{Calibration, Marks, Pairs, Told};
use serde_json::json;

use crate::{
    cli::Format,
    declarations::read_most,
    edges::Edges,
    error::{Exit, Failure},
    line::exchanges,
    run::Setup,
};

/// The labelled rows that come with the program.
const PAIRS: &str = include_str!("../../../../filters/fixtures/similarity/pairs.jsonl");
/// Bytes of a file of labelled rows.
const LARGEST: u64 = 64 << 20;
/// Whose exchanges the vectors are; no run has such a name.
const OWN: &str = "eval-similarity";

/// Calibrates the thresholds on labelled rows and prints them, with how well they do on the half that they were not
/// chosen by.
///
/// # Errors
/// The rows cannot be read, or there is no embedding model.
pub async fn similarity(setup: &Setup, pairs: Option<&Path>, bound: f64) -> Result<(), Failure> {
    if !(0.0..=1.0).contains(&bound) {
        return Err(Failure::usage("`--false-rejects` lies between 0 and 1"));
    }
    let text = pairs.map_or_else(|| Ok(PAIRS.to_owned()), |path| read_most(path, LARGEST))?;
    let named = || pairs.map_or_else(|| "the labelled rows of mcpmill".into(), |path| format!("`{}`", path.display()));
    let pairs = Pairs::parse(&text).map_err(|e| Failure::usage(format!("failed to read {}: {e}", named())))?;
    let edges = Edges::new(&setup.config, setup.global.unsandboxed, setup.global.offline);
    let recorder = Arc::new(Recorder::new(exchanges(&setup.config, OWN)?, setup.config.mode));
    let embedder = edges.embedder(&recorder).await?;
    let found = pairs.calibrate(&embedder, bound).await.map_err(|e| Failure::from_error(Exit::Environment, &e))?;
    match setup.global.format {
        Format::Json => println!("{}", json!(found)),
        Format::Human => show(&found),
    }
    Ok(())
}

fn show(found: &Calibration) {
    println!("{}\n", found.model);
    println!(
        "{:<8} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
        "label", "rows", "least", "5 %", "25 %", "50 %", "75 %", "95 %", "most"
    );
    for (label, spread) in &found.by_label {
        let values: String = spread.quantiles.iter().map(|value| format!(" {value:>7.3}")).collect();
        println!("{:<8} {:>5}{values}", format!("{label:?}").to_lowercase(), spread.rows);
    }
    println!(
        "\n{:<12} {:>9}  {:<28} {:<28} {:<28} {:<28}",
        "", "", "chosen by: caught", "good rows lost", "held out: caught", "good rows lost"
    );
    row("max", &found.max);
    row("min", &found.min);
    row("MCP-Flow's", &found.paper);
    let name = found.model.split('@').next().unwrap_or_default();
    println!("\nFor the chain file, where each may lose {} % of the good rows at most:", found.bound * 100.0);
    println!("by_model = {{ \"{name}\" = {{ max = {}, min = {} }} }}", found.bounds.max, found.bounds.min);
}

fn row(name: &str, told: &Told) {
    let [chosen, held] = [told.chosen_by, told.held_out].map(|marks: Marks| [marks.recall, marks.false_rejects]);
    let cell = |share: mcpmill_core::share::Share| {
        let interval = format!("{:.2} to {:.2}", share.low, share.high);
        format!("{:>3} of {:>3} ({interval})", share.hits, share.n)
    };
    let cells: String = chosen.into_iter().chain(held).map(|share| format!(" {:<28}", cell(share))).collect();
    println!("{name:<12} {:>9} {cells}", told.threshold);
}

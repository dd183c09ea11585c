//! `eval responses`: how well the step `response-valid` tells answers of real servers apart.

use std::{path::Path, sync::Arc};

use mcpmill_core::{edge::Recorder, share::Share};
use mcpmill_pipeline::{
    filter::{Half, JudgedResponse, LabelledResponses, RESPONSE_VALID, ResponseMarks},
    models::Role,
};
use serde::Deserialize;
use serde_json::json;

use crate::{
    cli::Format,
    declarations::{Declarations, read_most},
    edges::Edges,
    error::Failure,
    line::exchanges,
    run::Setup,
};

/// The labelled answers that come with the program.
const ROWS: &str = include_str!("../../../../filters/fixtures/responses/responses.jsonl");
/// Bytes of a file of labelled answers.
const LARGEST: u64 = 64 << 20;
/// Whose exchanges the judge's are; no run has such a name.
const OWN: &str = "eval-responses";
/// Answers judged at once where the settings do not say.
const AT_ONCE: usize = 16;
/// Wrong verdicts that are printed.
const TOLD: usize = 40;

#[derive(Deserialize)]
struct Chain {
    step: Vec<toml::Table>,
}

#[derive(Deserialize)]
struct Step {
    prompt: String,
    longest: usize,
}

/// Judges labelled answers as the step `response-valid` of the chain in use does, and prints how often it is wrong.
///
/// # Errors
/// The rows cannot be read, the chain has no such step, or the judge cannot be had.
pub async fn responses(setup: &Setup, rows: Option<&Path>, structure: bool) -> Result<(), Failure> {
    let text = rows.map_or_else(|| Ok(ROWS.to_owned()), |path| read_most(path, LARGEST))?;
    let named = || rows.map_or_else(|| "the labelled answers of mcpmill".into(), |path| format!("`{}`", path.display()));
    let rows = LabelledResponses::parse(&text).map_err(|e| Failure::usage(format!("failed to read {}: {e}", named())))?;
    let step = step(&setup.declarations, &setup.config.filter.trajectories)?;
    let prompt = setup.declarations.prompt(&step.prompt)?;
    let models = if structure {
        Err("no judge is asked".to_owned())
    } else {
        let edges = Edges::new(&setup.config, setup.global.unsandboxed, setup.global.offline);
        let recorder = Arc::new(Recorder::new(exchanges(&setup.config, OWN)?, setup.config.mode));
        Ok(edges.models(&recorder, &[Role::Judge]).await?)
    };
    let judge = models.as_ref().ok().map(|models| models.role(Role::Judge).model().to_owned());
    let at_once = Some(setup.config.filter.concurrency).filter(|at_once| *at_once > 0).unwrap_or(AT_ONCE);
    let judged = rows.judge(prompt, models, step.longest, at_once).await;
    let half = |half: Half| ResponseMarks::of(judged.iter().filter(|row| row.half == half));
    let (seen, held_out) = (half(Half::Seen), half(Half::HeldOut));
    match setup.global.format {
        Format::Json => println!("{}", json!({ "judge": judge, "seen": seen, "held_out": held_out, "rows": judged })),
        Format::Human => show(judge.as_deref(), &seen, &held_out, &judged),
    }
    Ok(())
}

fn step(declarations: &Declarations, chain: &str) -> Result<Step, Failure> {
    let wrong = |why: String| Failure::usage(format!("failed to read filter chain `{chain}`: {why}"));
    let file: Chain = toml::from_str(declarations.chain(chain)?).map_err(|e| wrong(e.message().to_owned()))?;
    let kind = |step: &toml::Table| step.get("kind").and_then(toml::Value::as_str) == Some(RESPONSE_VALID);
    let step = file.step.into_iter().find(kind);
    let step = step.ok_or_else(|| {
        Failure::usage(format!("the chain `{chain}` has no step of kind {RESPONSE_VALID}"))
            .hint("`filter.trajectories` names the chain that trajectories meet")
    })?;
    step.try_into().map_err(|e: toml::de::Error| wrong(e.message().to_owned()))
}

fn show(judge: Option<&str>, seen: &ResponseMarks, held_out: &ResponseMarks, judged: &[JudgedResponse]) {
    println!("judge: {}\n", judge.unwrap_or("none, what structure leaves open is unjudged"));
    let share = |share: &Share| format!("{} of {} ({:.3} to {:.3})", share.hits, share.n, share.low, share.high);
    println!("{:<42} {:<32} {:<32}", "", "seen when the rules were written", "held out");
    for (name, of) in [
        ("answers that were dropped", (|marks| marks.false_rejects) as fn(&ResponseMarks) -> Share),
        ("failures that were kept", |marks| marks.missed),
        ("failures that were kept, with `isError`", |marks| marks.missed_of_all),
        ("decided by structure (without `isError`)", |marks| marks.by_structure),
    ] {
        println!("{name:<42} {:<32} {:<32}", share(&of(seen)), share(&of(held_out)));
    }
    println!("{:<42} {:<32} {:<32}", "unjudged, not counted above", seen.unjudged, held_out.unjudged);
    let wrong: Vec<&JudgedResponse> = judged.iter().filter(|row| row.is_wrong()).collect();
    if !wrong.is_empty() {
        println!("\nwrong, at most {TOLD}:");
    }
    for row in wrong.iter().take(TOLD) {
        println!("  {} {:<40} is {}, judged {}: {}", row.id, row.tool, row.label, row.verdict, row.why);
    }
}

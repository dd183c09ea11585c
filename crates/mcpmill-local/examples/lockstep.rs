//! What lockstep is worth: `cargo run --release --example lockstep -- model.gguf [rounds]`.
//!
//! Asks one, two, four and eight requests at a time, in turn within one process, and prints the medians over the
//! rounds: tokens written per second when nothing else is done, and samples per hour when prompts are read and
//! constrained answers written as the line does it. On a busy machine only the ratios mean something, and more so
//! with `RAYON_NUM_THREADS=1`: candle's threads spin while they wait for each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mcpmill_local::{Constraint, Generation, LoadOptions, LocalModel, Role, Turn};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const AT_ONCE: [usize; 4] = [1, 2, 4, 8];
/// Tokens of each answer when only writing is measured.
const WRITTEN: usize = 48;
/// Requests per measurement of the whole work; divisible by each of [`AT_ONCE`].
const REQUESTS: usize = 16;
/// Requests that the line makes for one sample, each reading about 130 new tokens and writing about 20.
const PER_SAMPLE: f64 = 7.;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: lockstep <model.gguf> [rounds]")?;
    let rounds: usize = arguments.next().map_or(Ok(3), |rounds| rounds.parse())?;
    let model = LocalModel::load(path.as_ref(), &LoadOptions { lockstep: 8, ..LoadOptions::default() })?;
    // The first touch lays out the weights and reads the prompt that all of the writers share.
    model.generate(&writer(0))?;
    let (mut written, mut samples) = ([const { Vec::new() }; 4], [const { Vec::new() }; 4]);
    for round in 0..rounds {
        for (n, at_once) in AT_ONCE.into_iter().enumerate() {
            let (tokens, seconds) = run(&model, at_once, at_once, writer)?;
            written[n].push(tokens as f64 / seconds);
            let (_, seconds) = run(&model, at_once, REQUESTS, |k| worker(round * REQUESTS * 4 + n * REQUESTS + k))?;
            samples[n].push(3600. * REQUESTS as f64 / PER_SAMPLE / seconds);
            eprintln!("round {round}, {at_once} at once: {:.1} tok/s, {:.0} samples/h", last(&written[n]), last(&samples[n]));
        }
    }
    println!("| at once | decode tok/s | ratio | samples/h | ratio |\n|---|---|---|---|---|");
    for (n, at_once) in AT_ONCE.into_iter().enumerate() {
        let (decode, sample) = (median(&written[n]), median(&samples[n]));
        let (decode_ratio, sample_ratio) = (ratio(&written, n), ratio(&samples, n));
        println!("| {at_once} | {decode:.1} | {decode_ratio:.2} | {sample:.0} | {sample_ratio:.2} |");
    }
    println!("peak memory {} MB", peak());
    Ok(())
}

/// Lets `requests` requests through, `at_once` at a time; tokens written and seconds.
fn run(
    model: &LocalModel,
    at_once: usize,
    requests: usize,
    request: impl Fn(usize) -> Generation + Sync,
) -> Outcome<(usize, f64)> {
    let (next, tokens) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    let work = || loop {
        let k = next.fetch_add(1, Ordering::Relaxed);
        if k >= requests {
            return Ok(());
        }
        tokens.fetch_add(model.generate(&request(k))?.output_tokens, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Ok(())))
    })
    .map_err(|error: mcpmill_local::LocalError| error.to_string())?;
    Ok((tokens.into_inner(), start.elapsed().as_secs_f64()))
}

/// Only writes: its prompt is known, and its answer may not end early.
fn writer(k: usize) -> Generation {
    let stones: Vec<String> = (0..70).map(|n| format!("Stone {n} lies there.")).collect();
    let content = format!("{} Tell me a long story about the stones.", stones.join(" "));
    Generation {
        messages: vec![Turn { role: Role::User, content }],
        constraint: Constraint::Regex("[A-Za-z ,.]{2000}".into()),
        max_tokens: WRITTEN,
        temperature: 0.8,
        seed: k as u64,
        prefix_slot: Some("writer".into()),
        ..Generation::default()
    }
}

/// A common beginning, something new to read, and a line to write.
fn worker(k: usize) -> Generation {
    let turn = |role, content: String| Turn { role, content };
    let rules = "You write what a real person would ask an assistant. Give a concrete value for every parameter. ".repeat(4);
    let card: Vec<String> = (0..14).map(|n| format!("- parameter_{}: the value of it", k * 14 + n)).collect();
    Generation {
        messages: vec![
            turn(Role::System, rules),
            turn(Role::User, "Tool: add\n- a: a number\n- b: a number".into()),
            turn(Role::Assistant, "What do 14 and 27 add up to?".into()),
            turn(Role::User, format!("Tool: number_{k}\n{}", card.join("\n"))),
        ],
        constraint: Constraint::Regex("[A-Z][a-z ]{90}[.]".into()),
        max_tokens: 20,
        temperature: 0.7,
        top_p: 0.9,
        seed: k as u64,
        prefix_slot: Some(format!("kind {}", k % 5)),
        ..Generation::default()
    }
}

fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or_default()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The median over the rounds of what each round gained; other programs come and go between rounds.
fn ratio(measured: &[Vec<f64>; 4], n: usize) -> f64 {
    let gains: Vec<f64> = measured[n].iter().zip(&measured[0]).map(|(many, one)| many / one).collect();
    median(&gains)
}

/// The most memory this process has had, in megabytes; 0 where there is no `/proc`.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}

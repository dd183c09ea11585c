//! What lockstep is worth: `cargo run --release -p mcpmill-local --example lockstep -- model.gguf [rounds]`.
//!
//! Asks one, two, four and eight requests at a time, in turn within one process, and prints the medians over the
//! rounds: tokens written per second when nothing else is done, and samples per hour when prompts are read and
//! constrained answers written as the line does it. On a busy machine only the figures per CPU second mean something,
//! and only with `RAYON_NUM_THREADS=1`: candle's threads spin while they wait for each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mcpmill_local::{Constraint, Generation, LoadOptions, LocalError, LocalModel, Role, Turn};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const AT_ONCE: [usize; 4] = [1, 2, 4, 8];
/// Tokens of each answer when only writing is measured.
const WRITTEN: usize = 32;
/// Requests per measurement of the whole work; divisible by each of [`AT_ONCE`].
const REQUESTS: usize = 8;
/// Requests that the line makes for one sample, each reading about 130 new tokens and writing about 20.
const PER_SAMPLE: f64 = 7.;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: lockstep <model.gguf> [rounds]")?;
    let rounds: usize = arguments.next().map_or(Ok(3), |rounds| rounds.parse())?;
    let model = LocalModel::load(path.as_ref(), &LoadOptions { lockstep: 8, ..LoadOptions::default() })?;
    // The first touch lays out the weights and reads the prompt that all of the writers share.
    model.generate(&writer(0))?;
    let mut measured: [[Vec<Speed>; 4]; 2] = Default::default();
    for round in 0..rounds {
        for (n, at_once) in AT_ONCE.into_iter().enumerate() {
            let written = run(&model, at_once, at_once, WRITTEN as f64, writer)?;
            let first = (round * AT_ONCE.len() + n) * REQUESTS;
            let sampled = run(&model, at_once, REQUESTS, 3600. / PER_SAMPLE, |k| worker(first + k))?;
            eprintln!("round {round}, {at_once} at once: {written:.1?} tok/s, {sampled:.0?} samples/h");
            measured[0][n].push(written);
            measured[1][n].push(sampled);
        }
    }
    println!("| at once | decode tok/s | gain | per CPU s | gain | samples/h | gain | per CPU h | gain |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for (n, at_once) in AT_ONCE.into_iter().enumerate() {
        print!("| {at_once} |");
        for (speeds, wall) in measured.iter().flat_map(|speeds| [(speeds, true), (speeds, false)]) {
            let pick = |speed: &Speed| if wall { speed.wall } else { speed.cpu };
            // Gains are taken within a round: other programs come and go between rounds.
            let gains = speeds[n].iter().zip(&speeds[0]).map(|(many, one)| pick(many) / pick(one));
            print!(" {:.1} | {:.2} |", median(speeds[n].iter().map(pick)), median(gains));
        }
        println!();
    }
    println!("peak memory {} MB", peak());
    Ok(())
}

/// What was done per second, and per second of all processors together.
#[derive(Debug)]
struct Speed {
    wall: f64,
    cpu: f64,
}

/// Lets `requests` requests through, `at_once` at a time, each of them worth `worth`.
fn run(
    model: &LocalModel,
    at_once: usize,
    requests: usize,
    worth: f64,
    request: impl Fn(usize) -> Generation + Sync,
) -> Outcome<Speed> {
    let next = AtomicUsize::new(0);
    let (start, worked) = (Instant::now(), cpu_seconds());
    let work = || loop {
        match next.fetch_add(1, Ordering::Relaxed) {
            k if k < requests => drop(model.generate(&request(k))?),
            _ => return Ok(()),
        }
    };
    let all: Result<(), LocalError> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Err(LocalError::Cancelled)))
    });
    all?;
    let done = requests as f64 * worth;
    Ok(Speed { wall: done / start.elapsed().as_secs_f64(), cpu: done / (cpu_seconds() - worked) })
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

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// User and system time of this process, which `/proc` counts in hundredths.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.
}

/// The most memory this process has had, in megabytes; 0 where there is no `/proc`.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}

//! Measures a model: `cargo run --release --example bench -- model.gguf`.
//!
//! Prints tokens per second for reading a prompt and for writing, and seconds per constrained call, cold and with
//! the beginning of the prompt cached. On a busy machine only the figures per CPU second mean something, and only
//! with `RAYON_NUM_THREADS=1`: candle's threads spin while they wait for each other.

use std::time::Instant;

use mcpmill_local::{Constraint, Generated, Generation, LoadOptions, LocalModel, Role, Turn, tighten};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let path = std::env::args().nth(1).ok_or("usage: bench <model.gguf>")?;
    let start = Instant::now();
    let model = LocalModel::load(path.as_ref(), &LoadOptions::default())?;
    println!("load {:.2} s, {:?}", start.elapsed().as_secs_f64(), model.info());
    println!("memory after load {} MB", memory("VmRSS"));
    timed(&model, &prose(30, 1, None))?;
    println!("| prompt | prefill tok/s | per CPU s | decode tok/s | per CPU s |\n|---|---|---|---|---|");
    for words in [100, 300, 650] {
        speed(&model, words)?;
    }
    calls(&model)?;
    println!("peak memory {} MB", memory("VmHWM"));
    Ok(())
}

/// A prompt of about `words` tokens that asks for a long answer.
fn prose(words: usize, max_tokens: usize, slot: Option<&str>) -> Generation {
    let filler: Vec<String> = (0..words / 5).map(|n| format!("Stone {n} lies there.")).collect();
    let content = format!("{} Now tell me a long story about the stones.", filler.join(" "));
    Generation {
        messages: vec![Turn { role: Role::User, content }],
        max_tokens,
        temperature: 0.8,
        prefix_slot: slot.map(String::from),
        ..Generation::default()
    }
}

/// The answer, seconds, and CPU seconds.
fn timed(model: &LocalModel, request: &Generation) -> Outcome<(Generated, f64, f64)> {
    let (start, worked) = (Instant::now(), cpu_seconds());
    let generated = model.generate(request)?;
    Ok((generated, start.elapsed().as_secs_f64(), cpu_seconds() - worked))
}

/// The second request finds its whole prompt cached, so that it only writes.
fn speed(model: &LocalModel, words: usize) -> Outcome<()> {
    let slot = format!("{words}");
    let (read, seconds, worked) = timed(model, &prose(words, 1, Some(&slot)))?;
    let tokens = read.prompt_tokens as f64;
    print!("| {tokens} | {:.1} | {:.1} ", tokens / seconds, tokens / worked);
    let (written, seconds, worked) = timed(model, &prose(words, 48, Some(&slot)))?;
    let tokens = written.output_tokens as f64;
    println!("| {:.1} | {:.1} |", tokens / seconds, tokens / worked);
    Ok(())
}

fn calls(model: &LocalModel) -> Outcome<()> {
    let schema = json!({"type": "object", "required": ["source_timezone", "time", "target_timezone"], "properties": {
        "source_timezone": {"type": "string"}, "time": {"type": "string"}, "target_timezone": {"type": "string"}}});
    let turn = |role, content: &str| Turn { role, content: content.into() };
    let rules = "Fill in the arguments of the tool for the request. JSON only.\nTool: convert_time, converts a time of day \
        between time zones.\n- source_timezone (string, required): IANA name\n- time (string, required): HH:MM, 24 hours\n\
        - target_timezone (string, required): IANA name";
    for question in ["When it is 4 pm in Tokyo, what time is it in Paris?", "Convert 09:30 in Chicago to Berlin time."] {
        let request = Generation {
            messages: vec![
                turn(Role::System, rules),
                turn(Role::User, "It is 8:15 in Lisbon. What is that in New York?"),
                turn(
                    Role::Assistant,
                    r#"{"source_timezone": "Europe/Lisbon", "time": "08:15", "target_timezone": "America/New_York"}"#,
                ),
                turn(Role::User, question),
            ],
            constraint: Constraint::JsonSchema(tighten(&schema)),
            prefix_slot: Some("call".into()),
            ..Generation::default()
        };
        let (generated, seconds, worked) = timed(model, &request)?;
        println!("call {seconds:.2} s, {worked:.2} CPU s: {generated:?}");
    }
    Ok(())
}

/// User and system time of this process, which `/proc` counts in hundredths.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.
}

/// A figure of this process in megabytes; 0 where there is no `/proc`.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}

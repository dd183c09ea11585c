//! How fast rows become a Parquet file. `write_rate.py` beside it writes the same rows with pyarrow, in turn.
//!
//! `write_rate rows FILE COUNT` makes rows as JSON lines, `write_rate write ROWS FILE` writes them as Parquet and prints
//! one line of JSON: the number of rows, the seconds, those of the processor, and the bytes of the file. Rows are read a row group at a time
//! outside the clock; on the clock are encoding, compression and the file with its sync.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "an example prints")]

use std::{
    error::Error,
    fs::{self, File},
    io::{BufRead, BufReader, BufWriter, Write},
    path::Path,
    time::{Duration, Instant},
};

use mcpmill_core::record::ExportRow;
use mcpmill_store::{
    artifact::Table,
    parquet_file::{ROW_GROUP_ROWS, Writer},
};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["rows", file, count] => rows(Path::new(file), count.parse()?),
        ["write", from, to] => write(Path::new(from), Path::new(to)),
        _ => Err("usage: write_rate rows FILE COUNT | write_rate write ROWS FILE".into()),
    }
}

fn write(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let mut lines = BufReader::new(File::open(from)?).lines();
    let mut clock = Clock::default();
    let mut writer = clock.time(|| Writer::create(to, &ExportRow::columns(), &[]))?;
    loop {
        let group = lines.by_ref().take(ROW_GROUP_ROWS).map(|line| Ok(serde_json::from_str(&line?)?));
        let group: Vec<ExportRow> = group.collect::<Result<_, Box<dyn Error>>>()?;
        if group.is_empty() {
            break;
        }
        clock.time(|| group.iter().try_for_each(|row| writer.push(row)))?;
    }
    let rows = clock.time(|| writer.finish())?;
    let told = json!({
        "rows": rows, "seconds": clock.wall.as_secs_f64(), "cpu_seconds": clock.processor.as_secs_f64(), "bytes": fs::metadata(to)?.len(),
    });
    println!("{told}");
    Ok(())
}

/// Time spent in what is measured: on the wall, and by the processor for this thread, which others do not disturb.
#[derive(Default)]
struct Clock {
    wall: Duration,
    processor: Duration,
}

impl Clock {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (wall, processor) = (Instant::now(), processor());
        let done = work();
        self.wall += wall.elapsed();
        self.processor += self::processor().saturating_sub(processor);
        done
    }
}

/// Linux counts it in nanoseconds; elsewhere it stays 0.
fn processor() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default())
}

fn rows(file: &Path, count: u64) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(File::create(file)?);
    let mut dice = Dice(7);
    let words: Vec<String> = (0..6000).map(|_| dice.word()).collect();
    let tools: Vec<Value> = (0..400).map(|n| dice.tool(&words, n)).collect();
    for number in 0..count {
        writeln!(out, "{}", dice.row(number, &words, &tools))?;
    }
    Ok(out.flush()?)
}

/// A small generator of numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    fn word(&mut self) -> String {
        const PARTS: [&str; 20] = [
            "re", "ta", "lo", "mi", "con", "ver", "sta", "ble", "ing", "pro", "de", "an", "er", "ti", "on", "qu", "ra", "el",
            "us", "é",
        ];
        (0..=self.below(3)).map(|_| *self.one(&PARTS)).collect()
    }

    /// Words, the first of the list more often than the last, as in a language.
    fn text(&mut self, words: &[String], least: u64, most: u64) -> String {
        let count = least + self.below(most - least + 1);
        let common = |dice: &mut Self| {
            let place = dice.below(words.len() as u64) * dice.below(1000) * dice.below(1000) / 1_000_000;
            words[place as usize].as_str()
        };
        (0..count).map(|_| common(self)).collect::<Vec<_>>().join(" ")
    }

    fn hash(&mut self, digits: usize) -> String {
        (0..digits.div_ceil(16)).map(|_| format!("{:016x}", self.below(u64::MAX))).collect::<String>()[..digits].to_owned()
    }

    fn tool(&mut self, words: &[String], number: u64) -> Value {
        let properties: serde_json::Map<String, Value> = (0..self.below(7))
            .map(|n| {
                let kind = *self.one(&["string", "integer", "boolean", "array"]);
                let about = self.text(words, 3, 20);
                (format!("{}_{n}", self.one(words)), json!({ "type": kind, "description": about }))
            })
            .collect();
        let required: Vec<&String> = properties.keys().take(2).collect();
        json!({ "type": "function", "function": {
            "name": format!("{}_{number}", self.one(words)), "description": self.text(words, 8, 60),
            "parameters": { "type": "object", "properties": properties, "required": required, "additionalProperties": false },
        }})
    }

    fn row(&mut self, number: u64, words: &[String], tools: &[Value]) -> Value {
        let offered: Vec<&Value> = (0..5).map(|_| self.one(tools)).collect();
        let name = offered[0]["function"]["name"].clone();
        let arguments: serde_json::Map<String, Value> = offered[0]["function"]["parameters"]["properties"]
            .as_object()
            .into_iter()
            .flat_map(|all| all.keys())
            .map(|key| (key.clone(), json!(self.text(words, 1, 5))))
            .collect();
        let call = format!("call_{}", self.hash(10));
        let instruction = self.text(words, 11, 70);
        let (id, server) = (format!("smp_{}", self.hash(20)), self.below(60));
        let verdict = |dice: &mut Self, filter: &str| {
            json!({ "subject_id": id, "filter": filter, "judgement": "keep", "reason": dice.text(words, 2, 6),
                "score": dice.below(1000) as f64 / 1000.0, "threshold": 0.5, "evidence": json!({ "why": dice.text(words, 5, 30) }).to_string() })
        };
        let verdicts: Vec<Value> = ["embedding-similarity", "quality-score", "response-valid", "schema-valid", "tool-invocation"]
            .into_iter()
            .map(|filter| verdict(self, filter))
            .collect();
        let revision = |dice: &mut Self, step: &str| {
            json!({ "step": step, "prompt": format!("{:064x}", step.len()), "model": "local/model@0123456789ab",
                "parent": dice.hash(64), "text": dice.text(words, 11, 70) })
        };
        let lineage: Vec<Value> = ["instruct", "evolve:context", "call"].into_iter().map(|step| revision(self, step)).collect();
        json!({
            "id": id,
            "messages": [
                { "role": "user", "content": instruction },
                { "role": "assistant", "content": null, "tool_calls": [{ "id": call, "type": "function",
                    "function": { "name": name, "arguments": json!(arguments).to_string() } }] },
                { "role": "tool", "tool_call_id": call, "name": name, "content": self.text(words, 5, 200) },
            ],
            "loss": [false, true, false],
            "tools": json!(offered).to_string(),
            "kind": "single", "language": "en", "server": format!("server-{server}"), "server_version": "1.2.3",
            "tool_ids": [format!("tool_{:020x}", number % 400)], "withheld": [],
            "licence": (["MIT", "Apache-2.0"][(server % 2) as usize]), "live": "ok", "lineage": lineage, "verdicts": verdicts,
            "split": (["train", "train", "train", "seen_tool"][(number % 4) as usize]),
        })
    }
}

//! How fast texts become vectors. `embed_rate.py` beside it does the same with ONNX Runtime and nothing else, in turn.
//!
//! `embed_rate texts PAIRS FILE COUNT` makes texts out of labelled rows as JSON lines; `embed_rate embed RUNTIME FOLDER TEXTS THREADS
//! HOW` embeds them and prints one line of JSON: their number, the seconds, those of the processor, and the first vectors. HOW is
//! `ahead` (as filters do it: all at once, through the exchange store), `model` (the model alone, in the order of the file) or
//! `single` (text by text through the store). Loading the model is outside the clock.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "an example prints")]

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use mcpmill_clients::embed::{EmbedFiles, FastEmbedder};
use mcpmill_core::edge::{Embedder, RecordedEmbedder};
use mcpmill_testkit::recorder;
use serde_json::{Value, json};

/// Vectors that are shown, so that both sides can be seen to do the same.
const SHOWN: usize = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["texts", pairs, file, count] => texts(Path::new(pairs), Path::new(file), count.parse()?),
        ["embed", runtime, folder, texts, threads, how] => {
            let model = load(Path::new(runtime), Path::new(folder), threads.parse()?)?;
            embed(Arc::new(model), Path::new(texts), how).await
        }
        _ => {
            Err("usage: embed_rate texts PAIRS FILE COUNT | embed_rate embed RUNTIME FOLDER TEXTS THREADS ahead|model|single"
                .into())
        }
    }
}

fn load(runtime: &Path, folder: &Path, threads: usize) -> Result<FastEmbedder, Box<dyn Error>> {
    let part = |file: &str| -> PathBuf { folder.join(file) };
    let files = EmbedFiles {
        runtime: runtime.to_owned(),
        model: part("model.onnx"),
        tokenizer: ["tokenizer.json", "config.json", "special_tokens_map.json", "tokenizer_config.json"].map(part),
    };
    Ok(FastEmbedder::load("minilm", &files, threads)?)
}

async fn embed(model: Arc<FastEmbedder>, texts: &Path, how: &str) -> Result<(), Box<dyn Error>> {
    let texts: Vec<String> = fs::read_to_string(texts)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    // The first pass makes buffers that later ones use again.
    model.embed(&texts[..texts.len().min(32)]).await?;
    let recorded = RecordedEmbedder::new(Arc::<FastEmbedder>::clone(&model), recorder());
    let (wall, processor) = (Instant::now(), processor());
    match how {
        "ahead" => recorded.embed_ahead(texts.iter().map(String::as_str)).await?,
        "model" => drop(model.embed(&texts).await?),
        "single" => {
            for text in &texts {
                recorded.embed(text).await?;
            }
        }
        _ => return Err(format!("`{how}` is no way to embed").into()),
    }
    let (wall, processor) = (wall.elapsed(), self::processor().saturating_sub(processor));
    let first = model.embed(&texts[..texts.len().min(SHOWN)]).await?;
    println!(
        "{}",
        json!({ "texts": texts.len(), "seconds": wall.as_secs_f64(), "cpu_seconds": processor.as_secs_f64(), "first": first })
    );
    Ok(())
}

/// Time of the processor for all threads, on Linux.
fn processor() -> Duration {
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default()
    };
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    Duration::from_nanos(tasks.map(of).sum())
}

/// Requests and descriptions in turn, each made another text by a number of its own.
fn texts(pairs: &Path, file: &Path, count: usize) -> Result<(), Box<dyn Error>> {
    let pairs: Vec<Value> = fs::read_to_string(pairs)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let said = |n: usize| {
        let pair = &pairs[n / 2 % pairs.len()];
        let text = pair[if n.is_multiple_of(2) { "instruction" } else { "description" }].as_str().unwrap_or_default();
        json!(format!("{text} {n}")).to_string() + "\n"
    };
    Ok(fs::write(file, (0..count).map(said).collect::<String>())?)
}

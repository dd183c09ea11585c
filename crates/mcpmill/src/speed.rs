//! How long the embedded model will take, by a measurement on this machine just before the run.

use std::time::Instant;

use mcpmill_core::{
    edge::{ChatError, ChatRequest, Format, RecordedChat},
    record::Message,
};

use crate::reporter::human_seconds;

/// Tokens the line makes the model read and write for one planned sample, generation and filters
/// together: averages of the recorded run of 370, the common beginnings of prompts read once.
const READ: f64 = 900.0;
const WRITTEN: f64 = 140.0;
/// Tokens that are written to measure.
const PROBE: u32 = 12;

/// A sentence on the time that `samples` samples will take.
///
/// # Errors
/// The model does not answer.
pub async fn estimate(model: &RecordedChat, samples: usize) -> Result<String, ChatError> {
    let question = |max_tokens| ChatRequest {
        messages: vec![
            Message::system("You are asked for a list. ".repeat(40)),
            Message::user("Count from one to one hundred in words, separated by commas."),
        ],
        tools: Vec::new(),
        format: Format::Text,
        temperature: 0.0,
        top_p: 1.0,
        max_tokens,
        seed: 0,
        prompt_kind: "speed".into(),
    };
    // The first touch also lays out the weights; it is not measured.
    model.probe(&ChatRequest { messages: vec![Message::user("Hello")], ..question(1) }).await?;
    let started = Instant::now();
    let first = model.probe(&question(1)).await?;
    let read = started.elapsed().as_secs_f64();
    // The same question again: its beginning is kept, so nearly all of the time is writing.
    let started = Instant::now();
    let second = model.probe(&question(PROBE)).await?;
    let write = started.elapsed().as_secs_f64() / second.usage.output_tokens.max(1) as f64;
    let read = (read - write).max(0.0) / first.usage.input_tokens.max(1) as f64;
    let sample = READ * read + WRITTEN * write;
    Ok(format!(
        "measured just now: the embedded model reads {:.0} and writes {:.1} tokens a second, so {samples} samples will take about {}",
        1.0 / read.max(1e-6),
        1.0 / write.max(1e-6),
        human_seconds(sample * samples as f64)
    ))
}

//! How long the embedded model will take, by a measurement on this machine just before the run.

use std::time::Instant;

use futures::future::try_join_all;
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

/// A sentence on the time that `samples` samples will take, `at_once` of them at a time.
///
/// # Errors
/// The model does not answer.
pub async fn estimate(model: &RecordedChat, samples: usize, at_once: usize) -> Result<String, ChatError> {
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
    // The same question again, as often as the run will ask at a time: its beginning is kept, so nearly all of the
    // time is writing.
    let again = question(PROBE);
    let started = Instant::now();
    let replies = try_join_all((0..at_once.max(1)).map(|_| model.probe(&again))).await?;
    let tokens: u64 = replies.iter().map(|reply| reply.usage.output_tokens).sum();
    let write = started.elapsed().as_secs_f64() / tokens.max(1) as f64;
    // Prompts are read one after the other, however many there are. One token was written to measure.
    let read = read.max(0.0) / first.usage.input_tokens.max(1) as f64;
    let sample = READ * read + WRITTEN * write;
    Ok(format!(
        "measured just now: the embedded model reads {:.0} and writes {:.1} tokens a second, so {samples} samples will take about {}",
        1.0 / read.max(1e-6),
        1.0 / write.max(1e-6),
        human_seconds(sample * samples as f64)
    ))
}

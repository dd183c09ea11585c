//! Reporters: they listen to the event stream and never influence the run.

use std::{
    fs::File,
    io::{IsTerminal, LineWriter, Write},
    path::Path,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mcpmill_core::{
    event::{Event, Summary},
    record::{OutcomeKind, Usage},
    text::shown,
};
use tokio::{sync::mpsc::UnboundedReceiver, task::JoinHandle};

/// Writes the progress lines of stages to standard error, and every event to `events.jsonl`.
pub struct Reporter {
    log: Option<LineWriter<File>>,
    stage: Option<Stage>,
    interactive: bool,
}

/// The stage that runs.
struct Stage {
    name: String,
    started: Instant,
    rows: u64,
    /// Rows an earlier attempt had done: no part of the rate.
    before: u64,
    summary: Summary,
    bar: ProgressBar,
    said: Instant,
}

/// How often a line is written where there is no terminal to draw on.
const EVERY: Duration = Duration::from_secs(15);

impl Reporter {
    /// Listens until the stream ends. `log` is the run's `events.jsonl`; it is appended to.
    ///
    /// # Errors
    /// The log cannot be opened.
    pub fn spawn(mut events: UnboundedReceiver<Event>, log: Option<&Path>) -> std::io::Result<JoinHandle<()>> {
        let log = log.map(|path| File::options().create(true).append(true).open(path)).transpose()?.map(LineWriter::new);
        let mut reporter = Self { log, stage: None, interactive: std::io::stderr().is_terminal() };
        Ok(tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                reporter.log(&event);
                reporter.show(&event);
            }
        }))
    }

    fn log(&mut self, event: &Event) {
        if let (Some(log), Ok(line)) = (&mut self.log, serde_json::to_string(event)) {
            // A full disk must not end the run: the journal, which matters, reports it.
            writeln!(log, "{line}").ok();
        }
    }

    fn show(&mut self, event: &Event) {
        match event {
            Event::StageStarted { stage, rows, done } => {
                let target = if self.interactive { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
                let bar = ProgressBar::with_draw_target(Some(*rows), target);
                let style = ProgressStyle::with_template("{prefix:<12} {bar:24} {pos}/{len} {msg}");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar.set_prefix(stage.clone());
                bar.set_position(*done);
                let summary = Summary { input_rows: *done, ..Summary::default() };
                let now = Instant::now();
                self.stage =
                    Some(Stage { name: stage.clone(), started: now, rows: *rows, before: *done, summary, bar, said: now });
            }
            Event::Row { outcome, .. } => {
                if let Some(stage) = &mut self.stage {
                    stage.summary.count(outcome, 0);
                    stage.tell();
                    if outcome.outcome == OutcomeKind::Failed && stage.summary.failed <= 3 {
                        let cause = outcome.cause.as_deref().unwrap_or("no cause given");
                        let line = format!("{}  {}: {}", stage.name, outcome.reason, shown(cause, 200));
                        stage.bar.suspend(|| eprintln!("{line}"));
                    }
                }
            }
            Event::StageFinished { stage, summary } => {
                let seconds = self.stage.take().map_or(0.0, |s| {
                    s.bar.finish_and_clear();
                    s.started.elapsed().as_secs_f64()
                });
                eprintln!("{}", line(stage, summary, &format!("{seconds:.1} s")));
            }
            Event::StageReused { stage, summary } => eprintln!("{}", line(stage, summary, "done before")),
            Event::Note { text } => match &self.stage {
                Some(stage) => stage.bar.suspend(|| eprintln!("{}", escaped(text))),
                None => eprintln!("{}", escaped(text)),
            },
        }
    }
}

/// A note keeps its line breaks; whatever else could fool a terminal is escaped.
fn escaped(text: &str) -> String {
    text.lines().map(|line| shown(line, 2000)).collect::<Vec<_>>().join("\n")
}

impl Stage {
    /// Draws the bar, or now and then writes a line where there is no terminal.
    fn tell(&mut self) {
        let done = self.summary.input_rows;
        let message = self.message(done);
        self.bar.set_position(done);
        self.bar.set_message(message.clone());
        if self.bar.is_hidden() && self.said.elapsed() >= EVERY {
            self.said = Instant::now();
            eprintln!("{:<12} {done}/{} {message}", self.name, self.rows);
        }
    }

    fn message(&self, done: u64) -> String {
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        // Rows that were not tried took no time.
        let rate = done.saturating_sub(self.before + self.summary.skipped) as f64 / seconds;
        let left = self.rows.saturating_sub(done) as f64 / rate.max(1e-9);
        let eta = if rate > 0.0 { human_seconds(left) } else { "?".into() };
        format!("{} eta {eta}{}", human_rate(rate), used(&self.summary.usage))
    }
}

fn line(stage: &str, summary: &Summary, time: &str) -> String {
    let mut parts = vec![format!("{} kept", summary.kept)];
    for (count, word) in [
        (summary.dropped, "dropped"),
        (summary.failed, "failed"),
        (summary.skipped, "skipped"),
        (summary.repeated, "calls repeated"),
        (summary.repairs.values().sum(), "replies repaired"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    format!(
        "{stage:<12} {} of {} rows -> {} rows, {time}{}",
        parts.join(", "),
        summary.input_rows,
        summary.output_rows,
        used(&summary.usage)
    )
}

fn used(usage: &Usage) -> String {
    match (usage.input_tokens + usage.output_tokens, usage.cost) {
        (0, _) => String::new(),
        (_, cost) if cost > 0.0 => format!(" · {}+{} tokens · ${cost:.4}", usage.input_tokens, usage.output_tokens),
        _ => format!(" · {}+{} tokens", usage.input_tokens, usage.output_tokens),
    }
}

fn human_rate(rate: f64) -> String {
    if rate >= 1.0 || rate == 0.0 { format!("{rate:.1}/s") } else { format!("{:.1}/min", rate * 60.0) }
}

/// Seconds as `90 s`, `12 min`, `1.5 h`.
pub fn human_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

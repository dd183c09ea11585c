//! Reporters: they listen to the event stream and never influence the run.

use std::{
    fs::File,
    io::{BufWriter, IsTerminal, Write},
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mcpmill_core::{
    account::Account,
    edge::ExchangeKind,
    event::{Event, Summary},
    record::{OutcomeKind, Usage},
    text::shown,
};
use serde::Serialize;
use serde_json::json;
use tokio::{sync::mpsc::UnboundedReceiver, task::JoinHandle};

/// A line of `events.jsonl`.
#[derive(Serialize)]
struct Logged<'a> {
    /// When it happened: seconds since 1970, UTC.
    at: f64,
    #[serde(flatten)]
    event: &'a Event,
}

/// Writes the progress lines of stages to standard error, and every event with its time to `events.jsonl`.
pub struct Reporter {
    log: Option<BufWriter<File>>,
    stage: Option<Stage>,
    interactive: bool,
}

/// The event with which a process begins its lines of `events.jsonl`.
pub const SITTING: &str = "sitting";

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

/// Events that are logged in one write.
const AT_ONCE: usize = 256;

/// How often a line is written where there is no terminal to draw on.
const EVERY: Duration = Duration::from_secs(15);

impl Reporter {
    /// Listens until the stream ends. `log` is the run's `events.jsonl`; it is appended to.
    ///
    /// # Errors
    /// The log cannot be opened.
    pub fn spawn(mut events: UnboundedReceiver<Event>, log: Option<&Path>) -> std::io::Result<JoinHandle<()>> {
        let mut log = log.map(|path| File::options().create(true).append(true).open(path)).transpose()?.map(BufWriter::new);
        if let Some(log) = &mut log {
            // Between the last event of one sitting and this no time is worked.
            writeln!(log, "{}", json!({ "at": now(), "event": SITTING }))?;
        }
        let mut reporter = Self { log, stage: None, interactive: std::io::stderr().is_terminal() };
        Ok(tokio::spawn(async move {
            let mut happened = Vec::with_capacity(AT_ONCE);
            while events.recv_many(&mut happened, AT_ONCE).await > 0 {
                for event in happened.drain(..) {
                    reporter.log(&event);
                    reporter.show(&event);
                }
                reporter.flush();
            }
        }))
    }

    fn log(&mut self, event: &Event) {
        if let (Some(log), Ok(line)) = (&mut self.log, serde_json::to_string(&Logged { at: now(), event })) {
            // A full disk must not end the run: the journal, which matters, reports it.
            writeln!(log, "{line}").ok();
        }
    }

    /// What is there is in the log before more is waited for.
    fn flush(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush().ok();
        }
    }

    fn show(&mut self, event: &Event) {
        match event {
            Event::StageStarted { stage, rows, done, used } => {
                let target = if self.interactive { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
                let bar = ProgressBar::with_draw_target(Some(*rows), target);
                let style = ProgressStyle::with_template("{prefix:<12} {bar:24} {pos}/{len} {msg}");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar.set_prefix(stage.clone());
                bar.set_position(*done);
                let summary = Summary { input_rows: *done, usage: *used, ..Summary::default() };
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
            Event::RunEnded { accounts } => {
                accounts.by_name.iter().filter_map(|(name, a)| account(name, a)).for_each(|line| eprintln!("{line}"));
            }
            Event::Note { text } => match &self.stage {
                Some(stage) => stage.bar.suspend(|| eprintln!("{}", escaped(text))),
                None => eprintln!("{}", escaped(text)),
            },
        }
    }
}

/// Seconds since 1970, by the thousandth.
fn now() -> f64 {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    (seconds * 1e3).round() / 1e3
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
        format!("{} eta {eta}{}{}", human_rate(rate), used(&self.summary.usage), self.projected(done))
    }

    /// What the stage will have used at its end, if its rows go on as they did.
    fn projected(&self, done: u64) -> String {
        let Usage { input_tokens, output_tokens, cost, .. } = self.summary.usage;
        let tried = done.saturating_sub(self.summary.skipped);
        let of_all = self.rows.saturating_sub(self.summary.skipped) as f64 / tried.max(1) as f64;
        match input_tokens + output_tokens {
            0 => String::new(),
            _ if tried == 0 || done >= self.rows => String::new(),
            _ if cost > 0.0 => format!(", about ${:.2} in all", cost * of_all),
            tokens => format!(", about {} in all", human_count(tokens as f64 * of_all)),
        }
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
        (summary.evolve_failed.values().sum(), "steps of evolution left out"),
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

/// What was used on an account of a model; `None` for what costs nothing by its nature.
fn account(name: &str, account: &Account) -> Option<String> {
    if ExchangeKind::ALL.iter().any(|kind| kind.as_str() == name) {
        return None;
    }
    let Account { answered, failed, retried, cut_off, stored, usage } = *account;
    let counts = [(failed, "failed"), (retried, "retried"), (cut_off, "cut off"), (stored, "from the store")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!(", {count} {word}"));
    let parts = [(usage.cached_tokens, "cached"), (usage.reasoning_tokens, "reasoning")];
    let parts: Vec<String> = parts.into_iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    Some(format!("{} {answered} answered{}{}{parts}", shown(name, 100), counts.collect::<String>(), used(&usage)))
}

/// A number as `950`, `12 k`, `3.4 M`.
fn human_count(count: f64) -> String {
    match count {
        n if n < 10_000.0 => format!("{n:.0}"),
        n if n < 1e6 => format!("{:.0} k", n / 1e3),
        n => format!("{:.1} M", n / 1e6),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(rows: u64, summary: Summary) -> Stage {
        let now = Instant::now();
        Stage { name: "3-generate".into(), started: now, rows, before: 0, summary, bar: ProgressBar::hidden(), said: now }
    }

    #[test]
    fn what_a_stage_will_use_follows_from_the_rows_that_were_tried() {
        let usage = Usage { input_tokens: 900, output_tokens: 100, cost: 0.5, ..Usage::default() };
        let summary = Summary { input_rows: 30, skipped: 10, usage, ..Summary::default() };
        assert_eq!(stage(50, summary.clone()).projected(30), ", about $1.00 in all");
        let free = Summary { usage: Usage { cost: 0.0, ..usage }, ..summary.clone() };
        assert_eq!(stage(410, free).projected(30), ", about 20 k in all");
        assert_eq!(stage(30, summary).projected(30), "");
        assert_eq!(stage(30, Summary::default()).projected(0), "");
    }

    #[test]
    fn accounts_are_told_in_one_line_each() {
        let usage = Usage { input_tokens: 9, output_tokens: 2, cached_tokens: 4, cost: 0.25, ..Usage::default() };
        let used = Account { answered: 3, cut_off: 1, usage, ..Account::default() };
        assert_eq!(account("m@host", &used).unwrap(), "m@host 3 answered, 1 cut off · 9+2 tokens · $0.2500 (4 cached)");
        assert_eq!(account("harvest", &used), None);
    }
}

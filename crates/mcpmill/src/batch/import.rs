//! Answers of batches into the exchange store.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use mcpmill_clients::chat::{BatchAnswer, BatchTold, Endpoint};
use mcpmill_core::{
    account::Charge,
    edge::{ChatReply, Exchange, ExchangeKind, Exchanges, Finish, RecordedChat, Refusal},
    record::Usage,
};
use mcpmill_store::exchanges::SqliteExchanges;
use serde::Serialize;
use serde_json::Value;

use super::sidecar::{Index, Returns, Waiting, folder};
use crate::{
    config::Config,
    edges::endpoint_named,
    error::{Exit, Failure},
    prices::Prices,
};

/// Bytes of a line of answers.
const LONGEST: u64 = 64 << 20;
/// Names and complaints that are told in full; the rest is counted.
const TOLD: usize = 5;

/// What an import did.
#[derive(Debug, Default, Serialize)]
pub struct Imported {
    /// Answers that are new in the store, refusals among them.
    pub added: u64,
    /// Answers the runs had already.
    pub present: u64,
    /// Questions that came back without an answer, by what was said of them; they are written again.
    pub errors: BTreeMap<String, u64>,
    /// Answers to what no run has asked.
    pub unknown: u64,
    /// The names of some of them.
    pub unknown_ids: Vec<String>,
    /// Lines that are no answers.
    pub unreadable: u64,
    /// What is wrong with some of them.
    pub complaints: Vec<String>,
    /// Tokens, and money at the price of batches.
    pub usage: Usage,
}

impl Imported {
    /// The account in words.
    pub fn words(&self) -> String {
        let mut parts = vec![format!("took in {} answers, {} were there already", self.added, self.present)];
        if !self.errors.is_empty() {
            let errors: Vec<String> = self.errors.iter().map(|(word, count)| format!("{count} {word}")).collect();
            parts.push(format!("without an answer: {}; these are asked again when the run goes on", errors.join(", ")));
        }
        if self.unknown > 0 {
            parts.push(format!(
                "{} answer what no run here has asked: {}",
                self.unknown,
                listed(&self.unknown_ids, self.unknown)
            ));
        }
        if self.unreadable > 0 {
            parts.push(format!("{} lines cannot be read: {}", self.unreadable, listed(&self.complaints, self.unreadable)));
        }
        if self.usage.cost > 0.0 {
            parts.push(format!("${:.4} at the price of batches", self.usage.cost));
        }
        parts.join("\n")
    }
}

fn listed(some: &[String], of: u64) -> String {
    let more = if of > some.len() as u64 { ", …" } else { "" };
    format!("{}{more}", some.join(", "))
}

/// Takes the answers of `files` into the store of the runs that wait for them. What is there already stays as it is.
///
/// # Errors
/// A file cannot be read, the store cannot be written, or no model of the settings is the one that was asked. What was
/// taken in before stays.
pub async fn import(config: &Config, prices: &Prices, files: &[PathBuf]) -> Result<Imported, Failure> {
    let mut keys = HashSet::new();
    for file in files {
        let mut answers = Answers::open(file)?;
        while let Some((_, answer)) = answers.next()? {
            keys.extend(answer.ok().map(|answer| answer.custom_id));
        }
    }
    let index = Index::read(&config.runs_dir, &keys)
        .map_err(|e| Failure::environment(format!("failed to look for questions in `{}`: {e}", config.runs_dir.display())))?;
    let mut taking = Taking { config, prices, index, runs: HashMap::new(), endpoints: HashMap::new(), done: Imported::default() };
    for file in files {
        let mut answers = Answers::open(file)?;
        while let Some((line, answer)) = answers.next()? {
            match answer {
                Ok(answer) => taking.take(&line, answer).await?,
                Err(why) => taking.unreadable(file, &why),
            }
        }
    }
    Ok(taking.done)
}

/// A line, and the answer it is or why it is none.
type Line = (String, Result<BatchAnswer, String>);

/// The lines of a file of answers.
struct Answers<'a> {
    path: &'a Path,
    reader: BufReader<File>,
}

impl<'a> Answers<'a> {
    fn open(path: &'a Path) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|e| unread(path, &e))?;
        Ok(Self { path, reader: BufReader::with_capacity(1 << 16, file) })
    }

    /// The next line that is not empty, and what it says.
    fn next(&mut self) -> Result<Option<Line>, Failure> {
        loop {
            let mut line = Vec::new();
            let read = self.reader.by_ref().take(LONGEST).read_until(b'\n', &mut line);
            if read.map_err(|e| unread(self.path, &e))? == 0 {
                return Ok(None);
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim().trim_start_matches('\u{feff}');
            if !text.is_empty() {
                return Ok(Some((text.to_owned(), BatchAnswer::read(text))));
            }
        }
    }
}

fn unread(file: &Path, e: &io::Error) -> Failure {
    Failure::environment(format!("failed to read `{}`: {e}", file.display())).hint("`batch import` names files of answers")
}

struct Taking<'a> {
    config: &'a Config,
    prices: &'a Prices,
    index: Index,
    runs: HashMap<PathBuf, (SqliteExchanges, Returns)>,
    endpoints: HashMap<String, Endpoint>,
    done: Imported,
}

impl Taking<'_> {
    fn unreadable(&mut self, file: &Path, why: &str) {
        self.done.unreadable += 1;
        if self.done.complaints.len() < TOLD {
            self.done.complaints.push(format!("{} ({why})", file.display()));
        }
    }

    async fn take(&mut self, line: &str, answer: BatchAnswer) -> Result<(), Failure> {
        let BatchAnswer { custom_id, told } = answer;
        let found =
            self.index.waiting(&custom_id).map_err(|e| Failure::environment(format!("failed to read a question: {e}")))?;
        let found: Vec<(PathBuf, Waiting)> = found.into_iter().map(|(run, waiting)| (run.clone(), waiting)).collect();
        if found.is_empty() {
            self.done.unknown += 1;
            if self.done.unknown_ids.len() < TOLD {
                self.done.unknown_ids.push(mcpmill_core::text::shown(&custom_id, 70));
            }
        }
        let mut paid = false;
        for (run, waiting) in found {
            self.open(&run)?;
            let question = RecordedChat::question(&waiting.model, &waiting.request);
            if Exchange::key(ExchangeKind::Chat, &question) != custom_id {
                self.done.unreadable += 1;
                continue;
            }
            let there = self.runs[&run].0.get(&custom_id).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
            if there.is_some_and(|stored| stored.own) {
                self.done.present += 1;
            } else if let BatchTold::Failed(why) = &told {
                self.came_back(&run, &custom_id, why, line)?;
            } else {
                let (reply, usage) = self.read(&waiting, &told)?;
                // Two runs that ask the same share one answer, which was paid for once.
                let usage = if paid { Usage::default() } else { usage };
                paid = true;
                self.put(
                    &run,
                    &waiting.model,
                    Exchange { key: custom_id.clone(), kind: ExchangeKind::Chat, request: question, reply },
                    usage,
                )
                .await?;
            }
        }
        Ok(())
    }

    async fn put(&mut self, run: &Path, model: &str, exchange: Exchange, usage: Usage) -> Result<(), Failure> {
        let charge = Charge { account: model, usage, attempts: 1 };
        self.runs[run].0.put(&exchange, &charge).await.map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
        self.done.added += 1;
        self.done.usage += usage;
        Ok(())
    }

    fn came_back(&mut self, run: &Path, key: &str, why: &str, line: &str) -> Result<(), Failure> {
        let Some((_, returns)) = self.runs.get_mut(run) else { return Ok(()) };
        let new =
            returns.note(key, why, line).map_err(|e| Failure::environment(format!("failed to note what came back: {e}")))?;
        if new {
            *self.done.errors.entry(mcpmill_core::text::shown(why, 60)).or_default() += 1;
        } else {
            self.done.present += 1;
        }
        Ok(())
    }

    /// The store as the run of this folder sees it.
    fn open(&mut self, run: &Path) -> Result<(), Failure> {
        if !self.runs.contains_key(run) {
            let id = run.file_name().unwrap_or_default().to_string_lossy();
            let store = SqliteExchanges::open(&self.config.exchange_store, &id)
                .map_err(|e| Failure::from_error(Exit::Environment, &e).maybe_hint(e.hint()))?;
            let returns =
                Returns::read(&folder(run)).map_err(|e| Failure::environment(format!("failed to read what came back: {e}")))?;
            self.runs.insert(run.to_owned(), (store, returns));
        }
        Ok(())
    }

    /// What the store keeps for an answer, and what it used.
    fn read(&mut self, waiting: &Waiting, told: &BatchTold) -> Result<(Value, Usage), Failure> {
        let refused = |refused| (serde_json::to_value(Refusal { refused }), Usage::default());
        let (value, usage) = match told {
            BatchTold::Content(content) => {
                let usage = Usage::default();
                let content = content.clone();
                let reply =
                    ChatReply { content, tool_calls: Vec::new(), finish: Finish::Stop, usage, attempts: 1, repairs: Vec::new() };
                (serde_json::to_value(reply), usage)
            }
            BatchTold::Body(body) => match self.endpoint(&waiting.model)?.batch_reply(&waiting.request, body) {
                Ok(reply) => (serde_json::to_value(&reply), reply.usage),
                Err(error) => {
                    let (value, _) = refused(error.clone());
                    (value, error.usage)
                }
            },
            BatchTold::Refused(why) | BatchTold::Failed(why) => {
                refused(self.endpoint(&waiting.model)?.batch_refusal(why.clone()))
            }
        };
        if value.as_ref().is_ok_and(|value| value.get("refused").is_some()) {
            *self.done.errors.entry("refused for good".into()).or_default() += 1;
        }
        Ok((value.map_err(|e| Failure::new(Exit::Unexpected, e.to_string()))?, usage))
    }

    fn endpoint(&mut self, model: &str) -> Result<&Endpoint, Failure> {
        if !self.endpoints.contains_key(model) {
            self.endpoints.insert(model.to_owned(), endpoint_named(self.config, self.prices, model)?);
        }
        Ok(&self.endpoints[model])
    }
}

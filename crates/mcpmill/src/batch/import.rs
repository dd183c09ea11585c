//! Answers of batches into the exchange store.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use mcpmill_clients::chat::{BatchAnswer, BatchTold, Endpoint, Keys, Secret};
use mcpmill_core::{
    account::Charge,
    edge::{ChatError, ChatErrorKind, ChatReply, Exchange, ExchangeKind, Exchanges, Finish, RecordedChat, Refusal},
    record::Usage,
    text::shown,
};
use mcpmill_store::{exchanges::SqliteExchanges, run_dir::run_info};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::sidecar::{Index, REFUSED, Returns, Waiting, folder};
use crate::{
    config::{Config, Model},
    edges::{endpoint_named, set},
    error::{Exit, Failure},
    prices::{Prices, is_one_model},
};

/// Bytes of a line of answers.
const LONGEST: u64 = 64 << 20;
/// Names and complaints that are told in full; the rest is counted.
const TOLD: usize = 5;
/// Words for errors that are counted apart; the rest is `other`.
const MOST_WORDS: usize = 20;
/// A question that was refused so often is not asked again.
const MOST_REFUSALS: u64 = 3;

/// What an import did.
#[derive(Debug, Default, Serialize)]
pub struct Imported {
    /// Answers that are new in the store, refusals among them.
    pub added: u64,
    /// Answers the runs had already.
    pub present: u64,
    /// Answers that say otherwise than the one the run had already, which stays.
    pub differing: u64,
    /// Questions that came back without an answer, by what was said of them; they are written again.
    pub errors: BTreeMap<String, u64>,
    /// Answers that are refusals, and stay: the question was refused too often, or the model's answer cannot be read.
    pub refused: u64,
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
        if self.differing > 0 {
            parts.push(format!("{} say otherwise than the answer that was there, which stays", self.differing));
        }
        if !self.errors.is_empty() {
            let errors: Vec<String> = self.errors.iter().map(|(word, count)| format!("{count} {word}")).collect();
            parts.push(format!("without an answer: {}; these are asked again when the run goes on", errors.join(", ")));
        }
        if self.refused > 0 {
            parts.push(format!("{} of the answers are refusals for good; these are not asked again", self.refused));
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
    let secrets = keys_of(config);
    let mut keys = HashSet::new();
    for file in files {
        let mut answers = Answers::open(file, &secrets)?;
        while let Some((_, answer)) = answers.next()? {
            keys.extend(answer.ok().map(|answer| answer.custom_id));
        }
    }
    let index = Index::read(&config.runs_dir, &keys)
        .map_err(|e| Failure::environment(format!("failed to look for questions in `{}`: {e}", config.runs_dir.display())))?;
    let (runs, endpoints, others, done) = (HashMap::new(), HashMap::new(), HashSet::new(), Imported::default());
    let mut taking = Taking { config, prices, index, runs, endpoints, others, done };
    for file in files {
        let mut answers = Answers::open(file, &secrets)?;
        while let Some((line, answer)) = answers.next()? {
            match answer {
                Ok(answer) => taking.take(&line, answer).await?,
                Err(why) => taking.unreadable(file, &why),
            }
        }
    }
    Ok(taking.done)
}

/// The keys of models that the environment holds. A provider may say one back, and a file that was made elsewhere is
/// no cleaner.
fn keys_of(config: &Config) -> Keys {
    let variables = config.models.values().filter_map(|model| match model {
        Model::Endpoint(endpoint) => Some(endpoint.api_key_env.as_str()),
        Model::Local(_) => None,
    });
    Keys::new(variables.filter_map(set).map(Secret::new))
}

/// A line, and the answer it is or why it is none.
type Line = (String, Result<BatchAnswer, String>);

/// The lines of a file of answers.
struct Answers<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    /// What is taken out of every line.
    secrets: &'a Keys,
}

impl<'a> Answers<'a> {
    fn open(path: &'a Path, secrets: &'a Keys) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|e| unread(path, &e))?;
        Ok(Self { path, reader: BufReader::with_capacity(1 << 16, file), secrets })
    }

    /// The next line that is not empty, and what it says.
    fn next(&mut self) -> Result<Option<Line>, Failure> {
        loop {
            let mut line = Vec::new();
            let read = self.reader.by_ref().take(LONGEST).read_until(b'\n', &mut line);
            if read.map_err(|e| unread(self.path, &e))? == 0 {
                return Ok(None);
            }
            let Ok(text) = std::str::from_utf8(&line) else {
                return Ok(Some((String::new(), Err("it has bytes that are no UTF-8".into()))));
            };
            let text = text.trim_start_matches('\u{feff}').trim();
            if !text.is_empty() {
                let clean = self.secrets.clean(text).into_owned();
                let answer = BatchAnswer::read(&clean);
                return Ok(Some((clean, answer)));
            }
        }
    }
}

fn unread(file: &Path, e: &io::Error) -> Failure {
    Failure::environment(format!("failed to read `{}`: {e}", file.display())).hint("`batch import` names files of answers")
}

/// The store as the run of this folder sees it.
///
/// # Errors
/// The run is gone, or the store cannot be opened.
pub fn store_of(config: &Config, run: &Path) -> Result<SqliteExchanges, Failure> {
    let Some(info) = run_info(run).map_err(|e| Failure::from_error(Exit::Environment, &e))? else {
        return Err(Failure::environment(format!("the run `{}` is gone", run.display())));
    };
    SqliteExchanges::open(&config.exchange_store, info.store_id())
        .map_err(|e| Failure::from_error(Exit::Environment, &e).maybe_hint(e.hint()))
}

/// What an answer is worth.
enum Judged {
    /// The reply, as the store keeps it.
    Reply(Value),
    /// The model refused, or what it said cannot be read.
    Refused(ChatError),
    /// None: the question is asked again.
    Returned(String),
}

/// Whether a refusal stays: what a model said is said, and a request that was refused `before` is not asked for ever.
fn is_for_good(why: &ChatError, before: u64) -> bool {
    why.kind == ChatErrorKind::Malformed || before + 1 >= MOST_REFUSALS
}

/// Whether an answer says otherwise than the reply that is `there`; what they used is no part of it, and the names of
/// calls are made anew each time.
fn differs(judged: &Judged, there: &Value) -> bool {
    let Judged::Reply(reply) = judged else { return false };
    let calls = |reply: &Value| {
        let mut calls = reply["tool_calls"].clone();
        for call in calls.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            call.remove("id");
        }
        calls
    };
    reply["content"] != there["content"] || calls(reply) != calls(there)
}

struct Taking<'a> {
    config: &'a Config,
    prices: &'a Prices,
    index: Index,
    runs: HashMap<PathBuf, (SqliteExchanges, Returns)>,
    endpoints: HashMap<String, Endpoint>,
    /// What was said of models that were not asked.
    others: HashSet<String>,
    done: Imported,
}

/// The body of an answer, in so far as it says whose it is.
#[derive(Deserialize)]
struct Named {
    model: Option<String>,
}

impl Taking<'_> {
    fn unreadable(&mut self, file: &Path, why: &str) {
        self.done.unreadable += 1;
        if self.done.complaints.len() < TOLD {
            self.done.complaints.push(format!("{} ({why})", file.display()));
        }
    }

    fn unknown(&mut self, custom_id: &str) {
        self.done.unknown += 1;
        if self.done.unknown_ids.len() < TOLD {
            self.done.unknown_ids.push(shown(custom_id, 70));
        }
    }

    async fn take(&mut self, line: &str, answer: BatchAnswer) -> Result<(), Failure> {
        let BatchAnswer { custom_id, told } = answer;
        let found =
            self.index.waiting(&custom_id).map_err(|e| Failure::environment(format!("failed to read a question: {e}")))?;
        let found: Vec<(PathBuf, Waiting)> = found.into_iter().map(|(run, waiting)| (run.clone(), waiting)).collect();
        if found.is_empty() {
            self.unknown(&custom_id);
        }
        let mut paid = false;
        for (run, waiting) in found {
            self.open(&run)?;
            let question = RecordedChat::question(&waiting.model, &waiting.request);
            if Exchange::key(ExchangeKind::Chat, &question) != custom_id {
                self.done.unreadable += 1;
                continue;
            }
            let (judged, usage) = self.judge(&waiting, &told)?;
            // Two runs that ask the same share one answer, which was paid for once.
            let usage = if std::mem::replace(&mut paid, true) { Usage::default() } else { usage };
            let (store, returns) = &self.runs[&run];
            let there = store.get(&custom_id).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
            let own = there.filter(|stored| stored.own).map(|stored| stored.exchange.reply);
            // A good answer is better than the refusal that is there.
            let better = |there: &Value| matches!(judged, Judged::Reply(_)) && there.get("refused").is_some();
            if let Some(there) = own.filter(|there| !better(there)) {
                let count = if differs(&judged, &there) { &mut self.done.differing } else { &mut self.done.present };
                *count += 1;
                continue;
            }
            let reply = match judged {
                Judged::Reply(reply) => reply,
                Judged::Refused(why) if is_for_good(&why, returns.refusals(&custom_id)) => {
                    self.done.refused += 1;
                    serde_json::to_value(Refusal { refused: why }).map_err(|e| Failure::new(Exit::Unexpected, e.to_string()))?
                }
                Judged::Refused(why) => {
                    self.came_back(&run, &waiting, (&format!("{REFUSED}: {}", why.detail), line), usage).await?;
                    continue;
                }
                Judged::Returned(why) => {
                    self.came_back(&run, &waiting, (&why, line), usage).await?;
                    continue;
                }
            };
            self.tell_other(&waiting.model, &told);
            let exchange = Exchange { key: custom_id.clone(), kind: ExchangeKind::Chat, request: question, reply };
            self.put(&run, &waiting.model, exchange, usage).await?;
        }
        Ok(())
    }

    /// Says once of each model that answered in place of the one that was asked that its answers are taken.
    fn tell_other(&mut self, asked: &str, told: &BatchTold) {
        let BatchTold::Body(body) = told else { return };
        let Ok(Named { model: Some(model) }) = serde_json::from_str(body) else { return };
        let asked = asked.rsplit_once('@').map_or(asked, |(asked, _)| asked);
        if is_one_model(&model, asked) || self.others.len() >= MOST_WORDS {
            return;
        }
        let words = format!("answers by `{}` are taken for `{}`", shown(&model, 100), shown(asked, 100));
        if self.others.insert(words.clone()) {
            eprintln!("{words}");
        }
    }

    async fn put(&mut self, run: &Path, model: &str, exchange: Exchange, usage: Usage) -> Result<(), Failure> {
        let charge = Charge { account: model, usage, attempts: 1 };
        self.runs[run].0.put(&exchange, &charge).await.map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
        self.done.added += 1;
        self.done.usage += usage;
        Ok(())
    }

    /// Notes that a question came back without an answer, and what that used.
    async fn came_back(&mut self, run: &Path, waiting: &Waiting, (why, line): (&str, &str), usage: Usage) -> Result<(), Failure> {
        let Some((store, returns)) = self.runs.get_mut(run) else { return Ok(()) };
        let new = returns
            .note(&waiting.key, waiting.round, why, line)
            .map_err(|e| Failure::environment(format!("failed to note what came back: {e}")))?;
        if !new {
            self.done.present += 1;
            return Ok(());
        }
        if usage != Usage::default() {
            let charge = Charge { account: &waiting.model, usage, attempts: 1 };
            store.abandon(&waiting.key, &charge).await.map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
            self.done.usage += usage;
        }
        let errors = &mut self.done.errors;
        let word = shown(why, 60);
        let word = if errors.len() < MOST_WORDS || errors.contains_key(&word) { word } else { "other".into() };
        *errors.entry(word).or_default() += 1;
        Ok(())
    }

    /// Gets the store of a run, and what came back to it, ready.
    fn open(&mut self, run: &Path) -> Result<(), Failure> {
        if !self.runs.contains_key(run) {
            let store = store_of(self.config, run)?;
            let returns =
                Returns::read(&folder(run)).map_err(|e| Failure::environment(format!("failed to read what came back: {e}")))?;
            self.runs.insert(run.to_owned(), (store, returns));
        }
        Ok(())
    }

    /// What an answer is worth, and what it used.
    fn judge(&mut self, waiting: &Waiting, told: &BatchTold) -> Result<(Judged, Usage), Failure> {
        let free = |judged| Ok((judged, Usage::default()));
        let reply = match told {
            BatchTold::Failed(why) => return free(Judged::Returned(why.clone())),
            BatchTold::Refused(why) => {
                return free(Judged::Refused(self.endpoint(&waiting.model)?.batch_refusal(why.clone())));
            }
            BatchTold::Content(content) => ChatReply {
                content: content.clone(),
                tool_calls: Vec::new(),
                finish: Finish::Stop,
                usage: Usage::default(),
                attempts: 1,
                repairs: Vec::new(),
            },
            BatchTold::Body(body) => match self.endpoint(&waiting.model)?.batch_reply(&waiting.request, body) {
                Ok(reply) => reply,
                Err(error) if error.is_final() => {
                    let usage = error.usage;
                    return Ok((Judged::Refused(error), usage));
                }
                Err(error) if error.kind == ChatErrorKind::Provider => {
                    return Ok((Judged::Returned("an error in place of a reply".into()), error.usage));
                }
                Err(error) => return Ok((Judged::Returned("no reply of a model".into()), error.usage)),
            },
        };
        let usage = reply.usage;
        let reply = serde_json::to_value(reply).map_err(|e| Failure::new(Exit::Unexpected, e.to_string()))?;
        Ok((Judged::Reply(reply), usage))
    }

    fn endpoint(&mut self, model: &str) -> Result<&Endpoint, Failure> {
        if !self.endpoints.contains_key(model) {
            let endpoint = endpoint_named(self.config, self.prices, model)?;
            self.endpoints.insert(model.to_owned(), endpoint.with_notes(Arc::new(|text| eprintln!("{text}"))));
        }
        Ok(&self.endpoints[model])
    }
}

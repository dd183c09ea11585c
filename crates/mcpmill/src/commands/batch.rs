//! `batch`: files of questions, to hand in; answers, to take.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use mcpmill_clients::chat::{BatchError, Endpoint};
use mcpmill_store::file_hash;
use serde::Deserialize;
use serde_json::json;

use crate::{
    batch::{Share, import, store_of, submitted, submitted_batches},
    cli::{Batch, Format},
    config::Config,
    edges::endpoint_named,
    error::{Exit, Failure},
    line::is_answered,
    prices::Prices,
    run::Setup,
};

/// Bytes of a line of questions.
const LONGEST: u64 = 64 << 20;
/// Names of batches that are told in full.
const TOLD: usize = 5;

/// Does what `mcpmill batch …` asks.
///
/// # Errors
/// A file cannot be used, the provider says no, or the store cannot be written.
pub async fn batch(setup: &Setup, what: &Batch) -> Result<(), Failure> {
    match what {
        Batch::Import { files } => take(setup, files).await,
        Batch::Submit { file, again } => submit(setup, file, *again).await,
        Batch::Status { id } => status(setup, id).await,
        Batch::Fetch { id } => fetch(setup, id).await,
    }
}

async fn take(setup: &Setup, files: &[PathBuf]) -> Result<(), Failure> {
    let done = Box::pin(import(&setup.config, &Prices::load(&setup.declarations)?, files)).await?;
    if setup.global.format == Format::Json {
        println!("{}", json!(done));
    } else {
        eprintln!("{}", done.words());
    }
    if done.added + done.present + done.differing == 0 && done.errors.is_empty() {
        return Err(Failure::new(Exit::Failures, "nothing was taken in")
            .hint("answers carry the `custom_id` of their question; `runs_dir` names the folder of the runs that asked"));
    }
    Ok(())
}

async fn submit(setup: &Setup, file: &Path, again: bool) -> Result<(), Failure> {
    let keys = keys_in(file)?;
    let shares = Share::all(&setup.config.runs_dir, &keys).map_err(|e| unread(&e))?;
    let hash = file_hash(file).map_err(|e| unread(&e))?;
    let Some(Share { asked, .. }) = shares.first() else {
        return Err(Failure::usage(format!(
            "no run in `{}` has asked what is in `{}`",
            setup.config.runs_dir.display(),
            file.display()
        ))
        .hint("`batch submit` names a file that `--batch` wrote"));
    };
    let endpoint = endpoint_named(&setup.config, &Prices::load(&setup.declarations)?, &asked.model)?;
    if !again {
        let once = Once { file, hash: &hash, shares: &shares, of: keys.len() };
        once.check(setup, &endpoint).await?;
    }
    let id = endpoint.submit_batch(file).await.map_err(|e| provider(&e))?;
    for share in &shares {
        submitted(&share.run, &share.submitted(&id, file, &hash))
            .map_err(|e| Failure::environment(format!("the batch `{id}` is handed in, but failed to be noted: {e}")))?;
    }
    if setup.global.format == Format::Json {
        println!("{}", json!({ "id": id, "model": asked.model }));
    } else {
        println!("{id}");
        eprintln!("handed in; `mcpmill batch status {id}` says how far it is, `mcpmill batch fetch {id}` takes the answers");
    }
    Ok(())
}

fn unread(e: &io::Error) -> Failure {
    Failure::environment(format!("failed to look for the questions: {e}"))
}

/// A file of questions that is to be paid for once.
struct Once<'a> {
    file: &'a Path,
    hash: &'a str,
    shares: &'a [Share],
    /// How many questions there are.
    of: usize,
}

impl Once<'_> {
    /// Refuses the file when a question of it is answered, or in a batch that did not end without answers.
    async fn check(&self, setup: &Setup, endpoint: &Endpoint) -> Result<(), Failure> {
        let mut batches: BTreeMap<String, HashSet<&str>> = BTreeMap::new();
        for share in self.shares {
            let later = share.submitted("", self.file, self.hash);
            for (id, keys) in share.handed_in(&later).map_err(|e| unread(&e))? {
                batches.entry(id).or_default().extend(keys);
            }
        }
        let answered = self.answered(&setup.config)?;
        if !answered.is_empty() {
            let of = |keys: &HashSet<&str>| !answered.is_disjoint(keys);
            let of: Vec<&str> = batches.iter().filter(|(_, keys)| of(keys)).map(|(id, _)| id.as_str()).collect();
            return Err(self
                .refused(answered.len(), "answered", &of)
                .hint("the run goes on with the answers; `--again` hands the file in nevertheless and pays twice"));
        }
        for (id, keys) in &batches {
            // One that cannot be looked at may be at work.
            match endpoint.batch_state(id).await {
                Ok(state) if state.ended && !state.has_answers() => {}
                _ => {
                    return Err(self.refused(keys.len(), "handed in", &[id]).hint(format!(
                        "`mcpmill batch status {id}` says how far it is; `--again` hands the file in once more and pays twice"
                    )));
                }
            }
        }
        Ok(())
    }

    fn refused(&self, count: usize, what: &str, batches: &[&str]) -> Failure {
        let more = if batches.len() > TOLD { ", …" } else { "" };
        let ids: Vec<String> = batches.iter().take(TOLD).map(|id| format!("`{id}`")).collect();
        let batches = match ids.len() {
            0 => String::new(),
            1 => format!(", as the batch {}", ids[0]),
            _ => format!(", as the batches {}{more}", ids.join(", ")),
        };
        let (file, of) = (self.file.display(), self.of);
        Failure::usage(format!("questions in `{file}` that are {what} already: {count} of {of}{batches}"))
    }

    /// The keys of questions for whose answers no run waits.
    fn answered(&self, config: &Config) -> Result<HashSet<&str>, Failure> {
        let (mut answered, mut open) = (HashSet::new(), HashSet::new());
        for share in self.shares {
            let store = store_of(config, &share.run)?;
            for key in share.keys() {
                let is_answered = is_answered(&store, config.mode, key).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
                let keys = if is_answered { &mut answered } else { &mut open };
                keys.insert(key.as_str());
            }
        }
        Ok(&answered - &open)
    }
}

/// The names of the questions of a file.
fn keys_in(file: &Path) -> Result<HashSet<String>, Failure> {
    #[derive(Deserialize)]
    struct Named {
        custom_id: String,
    }
    let fail = |what: String| {
        Failure::usage(format!("`{}` is no file of questions: {what}", file.display())).hint("`--batch` writes them")
    };
    let mut reader = BufReader::new(File::open(file).map_err(|e| fail(e.to_string()))?);
    let (mut keys, mut line) = (HashSet::new(), String::new());
    for number in 1_u64.. {
        line.clear();
        if reader.by_ref().take(LONGEST).read_line(&mut line).map_err(|e| fail(e.to_string()))? == 0 {
            break;
        }
        if !line.trim().is_empty() {
            let named: Named = serde_json::from_str(&line).map_err(|e| fail(format!("line {number}: {e}")))?;
            keys.insert(named.custom_id);
        }
    }
    if keys.is_empty() { Err(fail("it has none".into())) } else { Ok(keys) }
}

/// A batch that was handed in, with its run and endpoint.
fn known(setup: &Setup, id: &str) -> Result<(PathBuf, Endpoint), Failure> {
    let all = submitted_batches(&setup.config.runs_dir)
        .map_err(|e| Failure::environment(format!("failed to look for batches: {e}")))?;
    let Some((run, batch)) = all.into_iter().rev().find(|(_, batch)| batch.id == id) else {
        return Err(
            Failure::usage(format!("no run has handed in a batch `{id}`")).hint("`mcpmill batch submit FILE` says the id")
        );
    };
    Ok((run, endpoint_named(&setup.config, &Prices::load(&setup.declarations)?, &batch.asked.model)?))
}

async fn status(setup: &Setup, id: &str) -> Result<(), Failure> {
    let (_, endpoint) = known(setup, id)?;
    let state = endpoint.batch_state(id).await.map_err(|e| provider(&e))?;
    if setup.global.format == Format::Json {
        println!("{}", json!({ "id": id, "status": state.status, "ended": state.ended, "counts": state.counts }));
    } else {
        println!("{} ({})", mcpmill_core::text::shown(&state.status, 60), mcpmill_core::text::shown(&state.counts, 200));
    }
    Ok(())
}

async fn fetch(setup: &Setup, id: &str) -> Result<(), Failure> {
    let (run, endpoint) = known(setup, id)?;
    let state = endpoint.batch_state(id).await.map_err(|e| provider(&e))?;
    if !state.has_answers() {
        let status = mcpmill_core::text::shown(&state.status, 60);
        let failure = Failure::new(Exit::Waiting, format!("the batch `{id}` has no answers: it is `{status}`"));
        return Err(if state.ended {
            failure.hint("hand its file in again")
        } else {
            failure.hint("the same command takes them when there are")
        });
    }
    let file = run.join("batch").join(format!("{id}.answers.jsonl"));
    let bytes = endpoint.fetch_batch(&state, &file).await.map_err(|e| provider(&e))?;
    eprintln!("fetched {} KB to {}", bytes.div_ceil(1024), file.display());
    take(setup, &[file]).await
}

fn provider(error: &BatchError) -> Failure {
    Failure::from_error(Exit::Environment, error)
        .hint("the key and URL of the model decide; a file can also be handed in by other means, and its answers imported")
}

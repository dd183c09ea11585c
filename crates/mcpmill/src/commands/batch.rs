//! `batch`: files of questions, to hand in; answers, to take.

use std::{
    collections::HashSet,
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use mcpmill_clients::chat::{BatchError, Endpoint};
use mcpmill_store::file_hash;
use serde_json::{Value, json};

use crate::{
    batch::{Asked, Index, Submitted, handed_in_before, import, submitted, submitted_batches},
    cli::{Batch, Format},
    edges::endpoint_named,
    error::{Exit, Failure},
    prices::Prices,
    run::Setup,
};

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
    let key = first_key(file)?;
    let unread = |e: std::io::Error| Failure::environment(format!("failed to look for the questions: {e}"));
    let places = Index::read(&setup.config.runs_dir, &HashSet::from([key.clone()])).and_then(|index| index.asked(&key));
    let (hash, file_name) = (file_hash(file).map_err(unread)?, file.display().to_string());
    let batch = |asked| Submitted { id: String::new(), file: file_name.clone(), hash: hash.clone(), asked };
    let places: Vec<(PathBuf, Submitted)> = places.map_err(unread)?.into_iter().map(|(run, asked)| (run, batch(asked))).collect();
    let Some((_, Submitted { asked: Asked { model, .. }, .. })) = places.first() else {
        return Err(Failure::usage(format!(
            "no run in `{}` has asked what is in `{}`",
            setup.config.runs_dir.display(),
            file.display()
        ))
        .hint("`batch submit` names a file that `--batch` wrote"));
    };
    let endpoint = endpoint_named(&setup.config, &Prices::load(&setup.declarations)?, model)?;
    for (run, batch) in places.iter().filter(|_| !again) {
        for id in handed_in_before(run, batch).map_err(unread)? {
            paid_once(&endpoint, &id, file).await?;
        }
    }
    let id = endpoint.submit_batch(file).await.map_err(|e| provider(&e))?;
    for (run, batch) in &places {
        submitted(run, &Submitted { id: id.clone(), ..batch.clone() })
            .map_err(|e| Failure::environment(format!("the batch `{id}` is handed in, but failed to be noted: {e}")))?;
    }
    if setup.global.format == Format::Json {
        println!("{}", json!({ "id": id, "model": model }));
    } else {
        println!("{id}");
        eprintln!("handed in; `mcpmill batch status {id}` says how far it is, `mcpmill batch fetch {id}` takes the answers");
    }
    Ok(())
}

/// Refuses what is handed in as the batch `id` already, unless that ended without answers.
async fn paid_once(endpoint: &Endpoint, id: &str, file: &Path) -> Result<(), Failure> {
    // One that cannot be looked at may be at work.
    match endpoint.batch_state(id).await {
        Ok(state) if state.ended && !state.has_answers() => Ok(()),
        _ => Err(Failure::usage(format!("`{}` is handed in already, as the batch `{id}`", file.display()))
            .hint(format!("`mcpmill batch status {id}` says how far it is; `--again` hands it in once more and pays twice"))),
    }
}

/// The name of the first question of a file.
fn first_key(file: &Path) -> Result<String, Failure> {
    let fail = |what: String| {
        Failure::usage(format!("`{}` is no file of questions: {what}", file.display())).hint("`--batch` writes them")
    };
    let mut line = String::new();
    let reader = File::open(file).map_err(|e| fail(e.to_string()))?;
    BufReader::new(reader.take(64 << 20)).read_line(&mut line).map_err(|e| fail(e.to_string()))?;
    let value: Value = serde_json::from_str(&line).map_err(|e| fail(e.to_string()))?;
    value["custom_id"].as_str().map(str::to_owned).ok_or_else(|| fail("its first line has no `custom_id`".into()))
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

//! `cache`: the recorded exchanges, to look at, to hand on and to take in.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use mcpmill_clients::{
    cage::WORLD,
    install::{prune_installations, prune_packages},
};
use mcpmill_core::{edge::Exchange, secrets};
use mcpmill_store::{
    exchanges::{ExchangesError, Limits, SqliteExchanges, Which},
    run_dir::{latest, list, run_info},
};
use serde_json::{Value, json};

use crate::{
    cli::{Cache, Format},
    error::{Exit, Failure},
    run::Setup,
};

/// Does what `mcpmill cache …` asks.
///
/// # Errors
/// The store or a file cannot be used, or an exchange holds what must not be handed on.
pub async fn cache(setup: &Setup, what: &Cache) -> Result<(), Failure> {
    match what {
        Cache::Stats => stats(setup),
        Cache::Export { file, all } => export(setup, file, *all),
        Cache::Import { file } => import(setup, file),
        Cache::Prune { days, packages, exchanges } => {
            let since = SystemTime::now().checked_sub(Duration::from_secs(days.saturating_mul(86_400)));
            let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
            prune(setup, since, *packages).await?;
            if *exchanges { prune_exchanges(setup, since) } else { Ok(()) }
        }
    }
}

fn failure(error: &ExchangesError) -> Failure {
    Failure::from_error(Exit::Environment, error).maybe_hint(error.hint())
}

/// The store, as a run of this id sees it.
fn store(setup: &Setup, run: &str) -> Result<SqliteExchanges, Failure> {
    let path = &setup.config.exchange_store;
    if path.extension().is_some_and(|ending| ending == "zst") {
        return Err(Failure::usage(format!("`{}` is an exported file, no store", path.display()))
            .hint("`mcpmill cache import FILE` takes it into a store"));
    }
    if !path.exists() {
        return Err(Failure::environment(format!("there is no exchange store at `{}` yet", path.display()))
            .hint("`mcpmill run` makes one; `exchange_store` names another"));
    }
    SqliteExchanges::open(path, run).map_err(|e| failure(&e))
}

fn stats(setup: &Setup) -> Result<(), Failure> {
    let stats = store(setup, "")?.stats().map_err(|e| failure(&e))?;
    if setup.global.format == Format::Json {
        let rows: Vec<Value> =
            stats.iter().map(|s| json!({ "kind": s.kind, "exchanges": s.exchanges, "bytes": s.bytes })).collect();
        println!("{}", json!(rows));
        return Ok(());
    }
    println!("{:<8} {:>10} {:>12}", "kind", "exchanges", "KB packed");
    for s in stats {
        println!("{:<8} {:>10} {:>12}", s.kind.as_str(), s.exchanges, s.bytes.div_ceil(1024));
    }
    Ok(())
}

fn export(setup: &Setup, file: &Path, all: bool) -> Result<(), Failure> {
    if file.extension().is_none_or(|ending| ending != "zst") {
        return Err(Failure::usage(format!("`{}` does not end in .zst", file.display()))
            .hint("`exchange_store` knows a file of exchanges by that ending: name it exchanges.jsonl.zst"));
    }
    let run = match setup.global.run.as_str() {
        "latest" if all => String::new(),
        "latest" => latest(&setup.config.runs_dir)
            .map_err(|e| Failure::from_error(Exit::Usage, &e))?
            .map(|info| info.store_id().to_owned())
            .ok_or_else(|| Failure::usage("there is no run yet").hint("`--all` writes the exchanges of all runs"))?,
        id => {
            let info = run_info(&setup.config.runs_dir.join(id)).map_err(|e| Failure::from_error(Exit::Usage, &e))?;
            info.map_or_else(|| id.to_owned(), |info| info.store_id().to_owned())
        }
    };
    let guard = Guard::new(&setup.config.cache_dir, &setup.config.runs_dir);
    let which = if all { Which::All } else { Which::OfRun };
    let count = store(setup, &run)?.export(file, which, &|exchange| guard.check(exchange)).map_err(|e| failure(&e))?;
    let size = fs::metadata(file).map_or(0, |m| m.len());
    eprintln!("wrote {count} exchanges, {} KB, to {}", size.div_ceil(1024), file.display());
    Ok(())
}

fn import(setup: &Setup, file: &Path) -> Result<(), Failure> {
    let path = &setup.config.exchange_store;
    let store = SqliteExchanges::open(path, "").map_err(|e| failure(&e))?;
    let done = store.import(file, Limits::default()).map_err(|e| failure(&e))?;
    eprintln!("took in {} exchanges, {} were there already", done.added, done.present);
    Ok(())
}

async fn prune(setup: &Setup, since: SystemTime, packages: bool) -> Result<(), Failure> {
    let cache = &setup.config.cache_dir;
    let failed = |e: std::io::Error| Failure::environment(format!("failed to make room in `{}`: {e}", cache.display()));
    let mut pruned = prune_installations(cache, since).await.map_err(failed)?;
    if packages {
        pruned.bytes += prune_packages(cache).map_err(failed)?.bytes;
    }
    eprintln!("removed {} installed servers, {} MB", pruned.installations, pruned.bytes >> 20);
    Ok(())
}

/// Exchanges go only with the runs that need them. The store may serve other folders, whose runs cannot be seen from
/// here: their youngest exchanges stay by their age.
fn prune_exchanges(setup: &Setup, since: SystemTime) -> Result<(), Failure> {
    let runs = list(&setup.config.runs_dir).map_err(|e| Failure::from_error(Exit::Usage, &e))?;
    let there: Vec<String> = runs.iter().map(|run| run.store_id().to_owned()).collect();
    let pruned = store(setup, "")?.prune(&there, since).map_err(|e| failure(&e))?;
    eprintln!(
        "removed {} exchanges and the accounts of {} runs that are gone, {} MB",
        pruned.exchanges,
        pruned.runs,
        pruned.bytes >> 20
    );
    Ok(())
}

/// What must not leave this machine: its folders, and anything of the shape of a secret.
struct Guard {
    folders: Vec<String>,
}

impl Guard {
    fn new(cache: &Path, runs: &Path) -> Self {
        let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let here = env::current_dir().unwrap_or_default();
        // A user whose home is that of the cage cannot be told by it.
        let folders = [cache, runs, &home, &here].into_iter().filter(|folder| !Path::new(WORLD).starts_with(folder));
        let folders = folders.map(|folder| format!("{}/", folder.display()));
        Self { folders: folders.collect() }
    }

    fn check(&self, exchange: &Exchange) -> Result<(), String> {
        let text = format!("{}\n{}", exchange.request, exchange.reply);
        if let Some(folder) = self.folders.iter().find(|folder| text.contains(folder.as_str())) {
            return Err(format!("it names the folder `{folder}` of this machine"));
        }
        // Exchanges hold none by construction; a server's answer might.
        secrets::find(&text).map_or(Ok(()), |what| Err(format!("it holds what looks like a secret: {what}")))
    }
}

#[cfg(test)]
mod tests {
    use mcpmill_core::edge::ExchangeKind;

    use super::*;

    #[test]
    fn folders_and_secrets_stay_here() {
        let guard = Guard::new(Path::new("/data/cache"), Path::new("/data/runs"));
        let check = |text: String| {
            guard.check(&Exchange { key: "k".into(), kind: ExchangeKind::Call, request: json!("q"), reply: json!({"a": text}) })
        };
        assert!(check("error in /data/cache/servers/x.js".into()).unwrap_err().contains("/data/cache/"));
        // Put together here, so that no scanner takes the test for a leak.
        for (head, tail) in [
            ("Authorization: Bearer ", "a1b2c3d4e5f6g7h8i9j0klmn"),
            ("sk-", "a1b2c3d4e5f6g7h8i9j0klmn"),
            ("xoxb-", "0123456789a"),
        ] {
            assert!(check(format!("{head}{tail}")).is_err(), "{head}");
        }
        check("the bearer of good news; /data/cached/x; sk-1".into()).unwrap();
    }
}

//! Runs: which directory a verb works in, and the order of stages.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use mcpmill_clients::assets::AssetId;
use mcpmill_core::{canonical::content_hash, edge::Mode, event::Events};
use mcpmill_pipeline::models::Role;
use mcpmill_store::run_dir::{RunDir, RunState, latest, stage_info, unfinished};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    batch::{Desk, Target},
    cli::{Format, Global},
    config::{Config, Model},
    declarations::Declarations,
    edges::{Edges, cache_dir, embedder_name, model_of},
    error::{Exit, Failure},
    line::Line,
    prices::Prices,
    report,
    reporter::Reporter,
    stage::Stage,
};

/// Which run a verb works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The newest unfinished run of these settings, else a new one.
    Continue,
    /// A new one.
    New,
    /// The one that `--run` names.
    Named,
}

/// Settings and declarations, as every verb starts with them.
pub struct Setup {
    /// The settings.
    pub config: Config,
    /// The five folders.
    pub declarations: Declarations,
    /// Flags.
    pub global: Global,
    /// `discover --record`: where pages are saved.
    pub record: Option<PathBuf>,
    /// `filter --rejudge`.
    pub rejudge: bool,
    /// `--batch`: where questions are put off.
    pub batch: Option<Target>,
}

impl Setup {
    /// Resolves the settings and reads the folders.
    ///
    /// # Errors
    /// A setting or file is wrong.
    pub fn load(global: Global) -> Result<Self, Failure> {
        let here =
            std::env::current_dir().map_err(|e| Failure::environment(format!("failed to find the working folder: {e}")))?;
        let mut config = Config::resolve(global.config.as_deref(), &here, &global.sets)?;
        let known = AssetId::ALL.map(AssetId::as_str);
        if let Some(odd) = config.assets.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(Failure::usage(format!("`[assets]` names `{odd}`, which is none"))
                .hint(format!("assets are {}", known.join(", "))));
        }
        if let Some((name, field)) = config.key_in_extra() {
            // The value is not shown: it may be the key itself.
            return Err(Failure::usage(format!("`models.{name}.extra` holds what looks like a key in `{field}`"))
                .hint("the settings are kept with every run: `api_key_env` names the variable that holds the key"));
        }
        config.cache_dir = absolute(&here, &cache_dir(&config));
        config.runs_dir = absolute(&here, &config.runs_dir);
        config.exchange_store = if config.exchange_store.as_os_str().is_empty() {
            config.cache_dir.join("exchanges.sqlite")
        } else {
            absolute(&here, &config.exchange_store)
        };
        Ok(Self { config, declarations: Declarations::load(&here)?, global, record: None, rejudge: false, batch: None })
    }
}

fn absolute(here: &Path, path: &Path) -> PathBuf {
    here.join(path)
}

/// Does the stages from `from` to `to` in the run that `choice` finds.
///
/// # Errors
/// The run cannot be opened, or a stage fails.
pub async fn stages(setup: Setup, from: Stage, to: Stage, choice: Choice) -> Result<(), Failure> {
    if from > to {
        return Err(Failure::usage(format!("`--from {from}` comes after `--to {to}`")));
    }
    crate::commands::check_ready(&setup)?;
    let plan = if from == Stage::Discover && to >= Stage::Harvest && setup.config.mode != Mode::Replay {
        Some(crate::commands::plan::words(&setup)?)
    } else {
        None
    };
    let format = setup.global.format;
    in_run(setup, choice, async |line| {
        if let Some(plan) = plan {
            line.events.note(plan);
            // Where samples are written already, the stage itself says how long it takes, should it write again.
            let written = matches!(stage_info(&line.run.path().join(Stage::Generate.folder())), Ok(Some(_)));
            if to > Stage::Harvest && !written && crate::commands::plan::model_is_here(&line.config) {
                line.estimate().await?;
            }
        }
        let finished = line.run.info().state == RunState::Finished;
        line.set_state(RunState::Unfinished)?;
        let done = Stage::ALL.into_iter().filter(|stage| (from..=to).contains(stage));
        for stage in done.clone() {
            // A dataset without rows is what a judge that cannot be relied on leaves: that is told first.
            line.run_stage(stage).await.or_else(|failure| line.judged_well(done.clone()).and(Err(failure)))?;
        }
        if format == Format::Json {
            println!("{}", json!({ "run": line.run.info().id, "path": line.run.path() }));
        }
        if to < Stage::Export {
            // A finished run of which nothing was made again is as finished as before.
            if finished && !line.has_worked() {
                line.set_state(RunState::Finished)?;
            }
            return line.judged_well(done);
        }
        // The report first: a run that is finished has one.
        report::write(line)?;
        line.set_state(RunState::Finished)?;
        line.judged_well(done)
    })
    .await
}

/// Opens the run that `choice` finds, lets `work` do its part in it, and writes the report.
///
/// # Errors
/// The run cannot be opened, or the work fails.
pub async fn in_run(
    setup: Setup,
    choice: Choice,
    work: impl AsyncFnOnce(&mut Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (run, words) = open(&setup, choice)?;
    // A verb with other settings must not rewrite what the run was made with.
    if fingerprint(&setup)? == run.info().fingerprint {
        run.write_config(&shareable(&setup.config)).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
    }
    let (events, stream) = Events::channel();
    let log = run.path().join("events.jsonl");
    let reporter = Reporter::spawn(stream, Some(&log))
        .map_err(|e| Failure::new(Exit::Unexpected, format!("failed to open `{}`: {e}", log.display())))?;
    events.note(words);
    if !setup.declarations.from_folder.is_empty() {
        let count = setup.declarations.from_folder.len();
        events.note(format!("{count} declarations of this folder replace or add to the built-in ones"));
    }
    let Setup { config, declarations, global, record, rejudge, batch } = setup;
    let prices = Prices::load(&declarations)?;
    let mut edges = Edges::new(&config, global.unsandboxed, global.offline).with_accounts(prices, events.clone());
    if let Some(target) = batch {
        let fail =
            |e: std::io::Error| Failure::environment(format!("failed to open the batches of `{}`: {e}", run.path().display()));
        edges.desk = Some(Arc::new(Desk::open(run.path(), target).map_err(fail)?));
    }
    let mut line = Line::new(config, declarations, run, edges, events.clone(), interruptible(), global.limit).await?;
    line.record = record;
    line.rejudge = rejudge;
    let outcome = work(&mut line).await;
    // What ended the work is told before what is wrong with the report.
    let outcome = outcome.and(line.settle().await).and(report::write(&line).map(drop));
    let path = line.run.path().to_owned();
    drop(line);
    if outcome.is_ok() {
        events.note(format!("run {}", path.strip_prefix(std::env::current_dir().unwrap_or_default()).unwrap_or(&path).display()));
    }
    drop(events);
    quiet(reporter).await;
    outcome
}

/// The reporter ends when the last sender of events is gone.
async fn quiet(reporter: JoinHandle<()>) {
    if let Err(e) = reporter.await {
        eprintln!("the reporter ended early: {e}");
    }
}

fn open(setup: &Setup, choice: Choice) -> Result<(RunDir, String), Failure> {
    let runs = &setup.config.runs_dir;
    let fail = |e: mcpmill_store::run_dir::RunDirError| Failure::from_error(Exit::Usage, &e).maybe_hint(e.hint());
    let working_in = |run: &RunDir| {
        let same = fingerprint(setup)? == run.info().fingerprint;
        let note = if same { "" } else { "; it was begun with other settings or declarations" };
        Ok::<_, Failure>(format!("working in run {}{note}", run.info().id))
    };
    let found = match choice {
        Choice::New => None,
        Choice::Continue => unfinished(runs, &fingerprint(setup)?).map_err(fail)?,
        Choice::Named if setup.global.run == "latest" => match latest(runs).map_err(fail)? {
            Some(info) => Some(info),
            None => {
                return Err(Failure::usage("there is no run yet").hint("`mcpmill run` makes one, `mcpmill discover` begins one"));
            }
        },
        Choice::Named => {
            let run = RunDir::open(runs, &setup.global.run).map_err(fail)?;
            let words = working_in(&run)?;
            return Ok((run, words));
        }
    };
    match found {
        Some(info) => {
            let run = RunDir::open(runs, &info.id).map_err(fail)?;
            let words = match choice {
                Choice::Continue => format!("continuing unfinished run {}", info.id),
                _ => working_in(&run)?,
            };
            Ok((run, words))
        }
        None => {
            let run = RunDir::create(runs, &today(), &fingerprint(setup)?, env!("CARGO_PKG_VERSION")).map_err(fail)?;
            let words = format!("new run {}", run.info().id);
            Ok((run, words))
        }
    }
}

/// Hash of everything that can change the rows of a run.
fn fingerprint(setup: &Setup) -> Result<String, Failure> {
    let config = &setup.config;
    let models: Vec<String> = Role::ALL.into_iter().map(|r| model_of(config, r).map(|m| m.name)).collect::<Result<_, _>>()?;
    let generate = &config.generate;
    let marketplaces = config.discover.marketplaces.iter().map(|id| format!("marketplaces/{id}.toml"));
    let datasets = config.export.datasets.iter().map(|name| format!("datasets/{name}/"));
    let used: Vec<String> = marketplaces.chain(datasets).collect();
    let folders = ["marketplaces/worlds/", "marketplaces/locks/", "prompts/", "filters/"];
    let used: Vec<&str> = used.iter().map(String::as_str).chain(folders).collect();
    let mut parts = json!({
        "mcpmill": env!("CARGO_PKG_VERSION"),
        "declarations": setup.declarations.hash(&used),
        "limit": setup.global.limit,
        "marketplaces": config.discover.marketplaces,
        "harvest": [config.harvest.max_pages, config.harvest.max_tools],
        "generate": [json!(generate.samples), json!(generate.per_tool), json!(generate.per_call), json!(generate.profile), json!(generate.evolve)],
        "rollout": { "max_calls": config.rollout.max_calls, "policy": [json!(config.rollout.refuse), json!(config.rollout.allow), json!(config.rollout.changes)] },
        "datasets": config.export.datasets,
        "models": models,
        "embedder": embedder_name(config)?,
        "chains": [config.filter.samples, config.filter.trajectories],
    });
    if generate.look {
        parts["look"] = json!(generate.look_calls);
    }
    if config.rollout.answer {
        parts["answer"] = true.into();
    }
    if !config.harvest.servers.is_empty() {
        parts["servers"] = json!(config.harvest.servers);
    }
    Ok(content_hash(&parts))
}

/// The settings as a run keeps them: without the folders of this machine.
fn shareable(config: &Config) -> String {
    let mut config = config.clone();
    config.cache_dir = "cache".into();
    config.runs_dir = "runs".into();
    config.exchange_store = PathBuf::new();
    config.assets.clear();
    config.embedding.runtime = PathBuf::new();
    // What was used stands in lineage by name and content.
    let name_only = |path: &Path| path.file_name().map(PathBuf::from).unwrap_or_default();
    config.embedding.model_dir = name_only(&config.embedding.model_dir);
    for model in config.models.values_mut() {
        match model {
            Model::Local(local) => local.model = name_only(Path::new(&local.model)).to_string_lossy().into_owned(),
            // What follows the path of an address may be a key.
            Model::Endpoint(endpoint) => endpoint.base_url.truncate(endpoint.base_url.find(['?', '#']).unwrap_or(usize::MAX)),
        }
    }
    config.to_toml()
}

/// This moment in RFC 3339, UTC, by the second.
pub fn now_rfc3339() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (day, rest) = (seconds / 86_400, seconds % 86_400);
    format!("{}T{:02}:{:02}:{:02}Z", date_of(day), rest / 3_600, rest / 60 % 60, rest % 60)
}

/// The date of today, UTC, as `YYYY-MM-DD`.
fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
    date_of(days)
}

/// The date of a day counted from 1970-01-01, by the era arithmetic of the Gregorian calendar.
fn date_of(days: u64) -> String {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months count from March, so that the leap day is the last of the year.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year_of_era + era * 400) } else { (month - 9, year_of_era + era * 400 + 1) };
    format!("{year:04}-{month:02}-{day:02}")
}

/// A token that Ctrl-C and SIGTERM set; the second Ctrl-C ends the process at once.
fn interruptible() -> CancellationToken {
    use tokio::signal::unix::{SignalKind, signal};
    let token = CancellationToken::new();
    let set = token.clone();
    tokio::spawn(async move {
        let Ok(mut term) = signal(SignalKind::terminate()) else { return };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = term.recv() => {}
        }
        set.cancel();
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date_of(0), "1970-01-01");
        assert_eq!(date_of(11_016), "2000-02-29");
        assert_eq!(date_of(20_786), "2026-11-29");
    }
}

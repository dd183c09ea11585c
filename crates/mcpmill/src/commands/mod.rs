//! The verbs.

mod batch;
mod cache;
mod check;
mod clean;
mod doctor;
pub mod eval;
mod explain;
mod init;
pub mod plan;
mod responses;
mod similarity;
mod tools;
mod wants;

pub use check::ready as check_ready;

use mcpmill_core::edge::Mode;
use mcpmill_pipeline::models::Role;

use crate::{
    batch::Target,
    cli::{Batching, Cli, Eval, Verb},
    edges::{embedded, model_of},
    error::Failure,
    line::Line,
    report,
    run::{Choice, Setup, in_run, stages},
    stage::Stage,
};

/// Does what the command line asks.
///
/// # Errors
/// Whatever ends it, with an exit code.
pub async fn dispatch(cli: Cli) -> Result<(), Failure> {
    // `init` must work beside a broken mcpmill.toml, so it does not read it.
    if let Verb::Init = cli.verb {
        return init::init();
    }
    let setup = Setup::load(cli.global)?;
    match cli.verb {
        Verb::Run { from, to, new, batch } => {
            let setup = put_off(setup, batch)?;
            let later = from.is_some_and(|stage| stage > Stage::Discover);
            if new && (later || setup.global.run != "latest") {
                return Err(Failure::usage("`--new` begins at the first stage of a new run")
                    .hint("leave out `--new`, or `--from` and `--run`"));
            }
            let choice = if new {
                Choice::New
            } else if later || setup.global.run != "latest" {
                Choice::Named
            } else {
                Choice::Continue
            };
            Box::pin(stages(setup, from.unwrap_or(Stage::Discover), to.unwrap_or(Stage::Export), choice)).await
        }
        Verb::Discover { record: Some(folder), .. } => {
            let setup = Setup { record: Some(folder), ..setup };
            Box::pin(stages(setup, Stage::Discover, Stage::Discover, Choice::New)).await
        }
        Verb::Discover { record: None, new: true } => {
            Box::pin(stages(setup, Stage::Discover, Stage::Discover, Choice::New)).await
        }
        Verb::Discover { record: None, .. } if setup.global.run == "latest" => {
            Box::pin(stages(setup, Stage::Discover, Stage::Discover, Choice::Continue)).await
        }
        Verb::Discover { record: None, .. } => one(setup, Stage::Discover).await,
        Verb::Harvest => one(setup, Stage::Harvest).await,
        Verb::Generate(batch) => one(put_off(setup, batch)?, Stage::Generate).await,
        Verb::Filter { chain, rejudge, batch } => {
            let filter = &setup.config.filter;
            let found = Stage::ALL.into_iter().find(|stage| filter.chain(*stage) == Some(chain.as_str()));
            let stage = found.ok_or_else(|| {
                Failure::usage(format!("no stage runs the chain `{chain}`")).hint(format!(
                    "chains are {} and {}; `filter.samples` and `filter.trajectories` name others",
                    filter.samples, filter.trajectories
                ))
            })?;
            one(Setup { rejudge, ..put_off(setup, batch)? }, stage).await
        }
        Verb::Rollout => one(setup, Stage::Rollout).await,
        Verb::Export { profiles } => one(with_profiles(setup, profiles), Stage::Export).await,
        Verb::Eval { what: Eval::Select { suites, tools } } => {
            let format = setup.global.format;
            in_run(setup, Choice::Named, async |line| eval::eval_select(line, &suites, tools.as_deref(), format).await).await
        }
        Verb::Eval { what: Eval::Similarity { pairs, false_rejects } } => {
            similarity::similarity(&setup, pairs.as_deref(), false_rejects).await
        }
        Verb::Eval { what: Eval::Responses { rows, structure } } => {
            responses::responses(&setup, rows.as_deref(), structure).await
        }
        Verb::Tools { provider } => {
            let format = setup.global.format;
            in_run(setup, Choice::Named, async |line| tools::tools(line, provider, format)).await
        }
        Verb::Report { rows } => {
            let format = setup.global.format;
            let work = async |line: &mut Line| {
                line.rows_shown = rows;
                report::report(line, format)
            };
            in_run(setup, Choice::Named, work).await
        }
        Verb::Cache { what } => cache::cache(&setup, &what).await,
        Verb::Batch { what } => batch::batch(&setup, &what).await,
        Verb::Check => check::check(&setup),
        Verb::Explain { what } => explain::explain(&setup, &what),
        Verb::Doctor => doctor::doctor(&setup).await,
        Verb::Clean => clean::clean(&setup),
        Verb::Init => Ok(()),
    }
}

/// The setup with what `--batch` says.
fn put_off(setup: Setup, Batching { batch }: Batching) -> Result<Setup, Failure> {
    let Some(file) = batch else { return Ok(setup) };
    if setup.config.mode == Mode::Replay {
        return Err(Failure::usage("`--batch` puts questions off, and in replay there are none"));
    }
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Solver) {
        if model_of(&setup.config, role)?.local {
            return Err(embedded(role));
        }
    }
    Ok(Setup { batch: Some(file.map_or(Target::Run, Target::File)), ..setup })
}

/// The setup with what `--profile` says.
fn with_profiles(mut setup: Setup, profiles: Vec<String>) -> Setup {
    if !profiles.is_empty() {
        setup.config.export.profiles = profiles;
    }
    setup
}

async fn one(setup: Setup, stage: Stage) -> Result<(), Failure> {
    Box::pin(stages(setup, stage, stage, Choice::Named)).await
}

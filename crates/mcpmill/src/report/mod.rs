//! The report of a run, counted from its artifacts: `report.json`, and `report.html`, one page that works offline.

mod browse;
mod chart;
mod filters;
mod funnel;
mod page;
mod scores;
mod servers;
mod timeline;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use mcpmill_core::{
    record::{ExportRow, Outcome, OutcomeKind, Sample, ServerRecord, Tool, Trajectory, Verdict},
    text::shown,
};
use mcpmill_pipeline::filter::RESPONSE_VALID;
use mcpmill_store::{
    artifact::Table,
    parquet_file::Rows,
    run_dir::{RunState, StageInfo, stage_info},
};
use serde_json::{Map, Value, json};

use crate::{
    cli::Format,
    error::{Exit, Failure},
    line::Line,
    stage::Stage,
};

/// Rows that the page shows of a filter and judgement, unless told otherwise.
pub const ROWS: u16 = 8;

/// Counts what the run holds so far and writes its `report.json` and `report.html`. Returns the report.
///
/// # Errors
/// An artifact of a finished stage cannot be read, or the exchange store cannot.
pub fn write(line: &Line) -> Result<Value, Failure> {
    let run = line.run.path();
    let report = numbers_of(line)?;
    let page = page::render(&report, &browse::browse(run, usize::from(line.rows_shown))?)?;
    let fail = |e: mcpmill_store::run_dir::RunDirError| Failure::from_error(Exit::Unexpected, &e);
    line.run.write_report(&report).map_err(fail)?;
    line.run.write(PAGE, page.as_bytes()).map_err(fail)?;
    Ok(report)
}

/// The page's file in a run.
const PAGE: &str = "report.html";

/// `report`: writes the report anew and says what stands in it.
///
/// # Errors
/// As [`write()`].
pub fn report(line: &Line, format: Format) -> Result<(), Failure> {
    let report = write(line)?;
    if format == Format::Json {
        println!("{report:#}");
        return Ok(());
    }
    for alert in report["alerts"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        println!("! {}", shown(alert, 400));
    }
    for step in report["funnel"].as_array().into_iter().flatten() {
        println!("{:>9}  {}", step["count"].as_u64().unwrap_or_default(), shown(step["what"].as_str().unwrap_or_default(), 100));
    }
    println!("{}", line.run.path().join(PAGE).display());
    Ok(())
}

fn numbers_of(line: &Line) -> Result<Value, Failure> {
    let (run, datasets) = (&line.run, &line.config.export.datasets);
    let counts = line.counts()?;
    let mut stages = Vec::new();
    for stage in Stage::ALL.into_iter().filter(|s| *s != Stage::Export) {
        stages.extend(one(run.path(), stage.folder(), |folder, _| numbers(stage, folder))?);
    }
    for name in datasets {
        let folder = format!("{}/{name}", Stage::Export.folder());
        stages.extend(one(run.path(), &folder, |folder, _| exported(run.path(), folder))?);
    }
    let mut figures = Vec::new();
    for stage in [Stage::FilterSamples, Stage::FilterTrajectories] {
        if let Some(folder) = done(run.path(), stage.folder())?
            && let Some(info) = info(&folder)?
        {
            figures.extend(filters::figures(&folder, &info)?);
        }
    }
    let mut alerts = filters::alerts(&figures);
    if run.info().state == RunState::Unfinished {
        alerts.insert(0, "This run has not come to its end: the numbers are of the stages that are done.".into());
    }
    let log = run.path().join("events.jsonl");
    let timeline = timeline::timeline(&log)
        .map_err(|e| Failure::new(Exit::Unexpected, format!("failed to read `{}`: {e}", log.display())))?;
    Ok(json!({
        "run": run.info().id, "mcpmill": run.info().mcpmill, "state": run.info().state, "alerts": alerts,
        "models": line.models_by_role()?, "used": counts.accounts.usage(), "repeated": counts.repeated, "accounts": counts.accounts,
        "funnel": funnel::funnel(run.path(), datasets)?, "stages": stages, "filters": figures,
        "servers": servers::servers(run.path())?, "timeline": timeline,
    }))
}

/// The folder of a stage, where it is done.
fn done(run: &Path, name: &str) -> Result<Option<PathBuf>, Failure> {
    let folder = run.join(name);
    Ok(info(&folder)?.map(|_| folder))
}

fn info(folder: &Path) -> Result<Option<StageInfo>, Failure> {
    stage_info(folder).map_err(|e| Failure::from_error(Exit::Unexpected, &e))
}

fn one(
    run: &Path,
    name: &str,
    numbers: impl FnOnce(&Path, &StageInfo) -> Result<Value, Failure>,
) -> Result<Option<Value>, Failure> {
    let folder = run.join(name);
    let Some(info) = info(&folder)? else { return Ok(None) };
    let mut value = serde_json::to_value(&info).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
    value["reasons"] = reasons(&folder)?;
    value["numbers"] = numbers(&folder, &info)?;
    Ok(Some(value))
}

/// What an export is made of.
fn exported(run: &Path, folder: &Path) -> Result<Value, Failure> {
    // By the name of a server: marketplaces that list it, and categories they name.
    let mut known: BTreeMap<String, [BTreeSet<String>; 2]> = BTreeMap::new();
    each(&run.join(Stage::Discover.folder()), |server: ServerRecord| {
        let [listed, categories] = known.entry(server.name).or_default();
        listed.extend(server.sources.into_iter().map(|source| source.marketplace));
        categories.extend(server.categories);
    })?;
    let mut counts: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
    let mut count = |what: &'static str, name: &str| *counts.entry(what).or_default().entry(name.to_owned()).or_default() += 1;
    each(folder, |row: ExportRow| {
        count("splits", row.split.as_str());
        count("live", &row.live);
        count("kinds", row.kind.as_str());
        count("languages", &row.language);
        count("licences", row.licence.as_deref().unwrap_or("unknown"));
        // A row over several servers counts for each of them, and for every marketplace and category of one.
        let servers: Vec<&str> = row.servers().collect();
        servers.iter().for_each(|server| count("servers", server));
        for (at, what) in ["marketplaces", "categories"].into_iter().enumerate() {
            let of: BTreeSet<&String> = servers.iter().filter_map(|server| known.get(*server)).flat_map(|of| &of[at]).collect();
            if of.is_empty() {
                count(what, "none");
            }
            of.into_iter().for_each(|name| count(what, name));
        }
    })?;
    Ok(json!(counts))
}

/// Outcomes by kind and reason.
fn reasons(folder: &Path) -> Result<Value, Failure> {
    count(folder, |o: &Outcome| match (o.outcome, o.reason.as_str()) {
        (OutcomeKind::Kept, "") => "kept".to_owned(),
        (kind, reason) => format!("{}: {reason}", kind.as_str()),
    })
}

/// What is worth counting in the rows of a stage.
fn numbers(stage: Stage, folder: &Path) -> Result<Value, Failure> {
    Ok(match stage {
        Stage::Discover => {
            json!({ "licences": count(folder, |s: &ServerRecord| s.licence.clone().unwrap_or_else(|| "unknown".into()))? })
        }
        Stage::Harvest => json!({
            "tools_by_server": count(folder, |t: &Tool| t.server_id.to_string())?,
            "clusters": distinct(&count(folder, |t: &Tool| t.cluster_id.to_string())?),
        }),
        Stage::Generate => json!({
            "servers": distinct(&count(folder, |s: &Sample| s.server_ids.first().map(ToString::to_string).unwrap_or_default())?),
            "tools": distinct(&count(folder, |s: &Sample| s.tool_ids.first().map(ToString::to_string).unwrap_or_default())?),
            "last_steps": count(folder, |s: &Sample| s.lineage.iter().rev().map(|r| r.step.as_str()).find(|s| *s != "call" && *s != "prune" && !s.starts_with("repair:")).unwrap_or_default().to_owned())?,
        }),
        Stage::FilterSamples => json!({ "verdicts": verdicts(folder)? }),
        Stage::FilterTrajectories => {
            let verdicts = verdicts(folder)?;
            json!({ "executable": executable(&verdicts), "verdicts": verdicts })
        }
        Stage::Rollout => {
            json!({ "ended": count(folder, |t: &Trajectory| json!(t.ended).as_str().unwrap_or_default().to_owned())? })
        }
        Stage::Export => Value::Null,
    })
}

fn verdicts(folder: &Path) -> Result<Value, Failure> {
    count(folder, |v: &Verdict| format!("{}: {}", v.filter, json!(v.judgement).as_str().unwrap_or_default()))
}

/// How many conversations that were run brought answers to learn from.
fn executable(verdicts: &Value) -> Value {
    let number = |judgement: &str| verdicts[format!("{RESPONSE_VALID}: {judgement}")].as_u64().unwrap_or_default();
    let ok = number("keep");
    json!({ "ok": ok, "run": ok + number("drop") + number("unjudged") })
}

fn distinct(counts: &Value) -> usize {
    counts.as_object().map_or(0, Map::len)
}

/// Rows of a table by a word.
fn count<T: Table>(folder: &Path, word: impl Fn(&T) -> String) -> Result<Value, Failure> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    each(folder, |row: T| *counts.entry(word(&row)).or_default() += 1)?;
    Ok(json!(counts))
}

/// Every row of a table in a stage's folder.
fn each<T: Table>(folder: &Path, mut take: impl FnMut(T)) -> Result<(), Failure> {
    let fail = |e: mcpmill_store::parquet_file::FileError| Failure::from_error(Exit::Unexpected, &e);
    for row in Rows::<T>::open(&folder.join(T::NAME).with_extension("parquet")).map_err(fail)? {
        take(row.map_err(fail)?);
    }
    Ok(())
}

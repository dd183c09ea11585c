//! `report.json`: the numbers of a run, counted from its artifacts.

use std::{collections::BTreeMap, path::Path};

use mcpmill_core::record::{ExportRow, Outcome, OutcomeKind, Sample, ServerRecord, Tool, Trajectory, Verdict};
use mcpmill_pipeline::filter::RESPONSE_VALID;
use mcpmill_store::{artifact::Table, parquet_file::Rows, run_dir::stage_info};
use serde_json::{Map, Value, json};

use crate::{
    error::{Exit, Failure},
    line::Line,
    stage::Stage,
};

/// Counts what the run holds so far and writes its `report.json`.
///
/// # Errors
/// An artifact of a finished stage cannot be read, or the exchange store cannot.
pub fn write(line: &Line) -> Result<(), Failure> {
    let (run, datasets) = (&line.run, &line.config.export.datasets);
    let counts = line.counts()?;
    let mut stages = Vec::new();
    for stage in Stage::ALL.into_iter().filter(|s| *s != Stage::Export) {
        stages.extend(one(run.path(), stage.folder(), |folder| numbers(stage, folder))?);
    }
    for name in datasets {
        let folder = format!("{}/{name}", Stage::Export.folder());
        stages.extend(one(run.path(), &folder, |folder| {
            let by = |field: fn(&ExportRow) -> &str| count(folder, move |r: &ExportRow| field(r).to_owned());
            Ok(json!({ "splits": by(|r| r.split.as_str())?, "live": by(|r| &r.live)?, "servers": by(|r| &r.server)? }))
        })?);
    }
    let report = json!({
        "run": run.info().id, "mcpmill": run.info().mcpmill, "state": run.info().state,
        "used": counts.accounts.usage(), "repeated": counts.repeated, "accounts": counts.accounts, "stages": stages,
    });
    run.write_report(&report).map_err(|e| Failure::from_error(Exit::Unexpected, &e))
}

fn one(run: &Path, name: &str, numbers: impl FnOnce(&Path) -> Result<Value, Failure>) -> Result<Option<Value>, Failure> {
    let folder = run.join(name);
    let Some(info) = stage_info(&folder).map_err(|e| Failure::from_error(Exit::Unexpected, &e))? else { return Ok(None) };
    let mut value = serde_json::to_value(&info).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
    value["reasons"] = reasons(&folder)?;
    value["numbers"] = numbers(&folder)?;
    Ok(Some(value))
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
    let path = folder.join(T::NAME).with_extension("parquet");
    let fail = |e: &dyn std::error::Error| Failure::from_error(Exit::Unexpected, e);
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for row in Rows::<T>::open(&path).map_err(|e| fail(&e))? {
        *counts.entry(word(&row.map_err(|e| fail(&e))?)).or_default() += 1;
    }
    Ok(json!(counts))
}

//! Rows to look at: what a filter dropped beside what it kept.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use mcpmill_core::{
    record::{Judgement, Message, Sample, Tool, Trajectory, Verdict},
    text::clipped,
};
use mcpmill_pipeline::filter::failed_exam;
use serde::Serialize;

use super::{done, each};
use crate::{error::Failure, stage::Stage};

/// Characters of a request, of a call and of an answer that are shown.
const SHOWN: usize = 700;
/// Turns of a conversation that are shown.
const TURNS: usize = 14;

/// What one filter did with rows, to be compared by eye.
#[derive(Debug, Serialize)]
pub struct Browse {
    /// The folder of the stage.
    pub stage: &'static str,
    /// The filter.
    pub filter: String,
    /// Rows it dropped.
    pub dropped: Vec<RowShown>,
    /// Rows it could not judge, but for those of a failed exam, which are all.
    pub unjudged: Vec<RowShown>,
    /// Rows it kept: those nearest to its threshold, where it has one.
    pub kept: Vec<RowShown>,
}

/// A row as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct RowShown {
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: &'static str,
    /// Names of its servers' tools, with what each says of itself.
    pub tools: Vec<(String, String)>,
    /// Turns: who speaks, and what.
    pub turns: Vec<(&'static str, String)>,
    /// What every filter said.
    pub verdicts: Vec<Verdict>,
}

/// Ids of the rows of one filter, with how far each is from the threshold.
#[derive(Default)]
struct Chosen {
    by: [Vec<(f64, String)>; 3],
}

impl Chosen {
    fn add(&mut self, verdict: &Verdict, most: usize) {
        let place = match verdict.judgement {
            Judgement::Keep => 0,
            Judgement::Drop => 1,
            Judgement::Unjudged if failed_exam(verdict) => return,
            Judgement::Unjudged => 2,
        };
        let far = match (verdict.judgement, verdict.score, verdict.threshold) {
            (Judgement::Keep, Some(score), Some(threshold)) => (score - threshold).abs(),
            _ => 0.0,
        };
        let list = &mut self.by[place];
        list.push((far, verdict.subject_id.clone()));
        if list.len() > 8 * most {
            shorten(list, most);
        }
    }

    fn ids(&self) -> impl Iterator<Item = &String> {
        self.by.iter().flatten().map(|(_, id)| id)
    }
}

fn shorten(list: &mut Vec<(f64, String)>, most: usize) {
    // Among equals the ids decide, which are hashes: a draw.
    list.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    list.truncate(most);
}

/// The rows to show of both filter stages, `most` for each filter and judgement. Filters that kept all are left out.
///
/// # Errors
/// An artifact cannot be read.
pub fn browse(run: &Path, most: usize) -> Result<Vec<Browse>, Failure> {
    let mut shown = Vec::new();
    if most == 0 {
        return Ok(shown);
    }
    for (stage, before) in [(Stage::FilterSamples, Stage::Generate), (Stage::FilterTrajectories, Stage::Rollout)] {
        let (Some(folder), Some(before)) = (done(run, stage.folder())?, done(run, before.folder())?) else { continue };
        let mut chosen: BTreeMap<String, Chosen> = BTreeMap::new();
        let mut order: Vec<String> = Vec::new();
        each(&folder, |verdict: Verdict| {
            if !chosen.contains_key(&verdict.filter) {
                order.push(verdict.filter.clone());
            }
            chosen.entry(verdict.filter.clone()).or_default().add(&verdict, most);
        })?;
        chosen.retain(|_, chosen| !chosen.by[1].is_empty() || !chosen.by[2].is_empty());
        chosen.values_mut().flat_map(|chosen| &mut chosen.by).for_each(|list| shorten(list, most));
        let wanted: BTreeSet<String> = chosen.values().flat_map(Chosen::ids).cloned().collect();
        let rows = rows(run, stage, &folder, &before, &wanted)?;
        let of = |list: &[(f64, String)]| list.iter().filter_map(|(_, id)| rows.get(id).cloned()).collect();
        for filter in order {
            let Some(Chosen { by: [kept, dropped, unjudged] }) = chosen.remove(&filter) else { continue };
            let (kept, dropped, unjudged) = (of(&kept), of(&dropped), of(&unjudged));
            shown.push(Browse { stage: stage.folder(), filter, dropped, unjudged, kept });
        }
    }
    Ok(shown)
}

/// The wanted rows of a stage, by id.
fn rows(
    run: &Path,
    stage: Stage,
    folder: &Path,
    before: &Path,
    wanted: &BTreeSet<String>,
) -> Result<HashMap<String, RowShown>, Failure> {
    let mut samples: HashMap<String, Sample> = HashMap::new();
    let mut runs: Vec<Trajectory> = Vec::new();
    if stage == Stage::FilterTrajectories {
        each(before, |trajectory: Trajectory| {
            if wanted.contains(trajectory.id.as_str()) {
                runs.push(trajectory);
            }
        })?;
    }
    let ran: BTreeSet<String> = runs.iter().map(|run| run.sample_id.to_string()).collect();
    if let Some(written) = done(run, Stage::Generate.folder())? {
        each(&written, |sample: Sample| {
            let id = sample.id.as_str();
            if ran.contains(id) || wanted.contains(id) {
                samples.insert(sample.id.to_string(), sample);
            }
        })?;
    }
    let mut tools: HashMap<String, (String, String)> = HashMap::new();
    if let Some(harvested) = done(run, Stage::Harvest.folder())? {
        let needed: BTreeSet<String> = samples.values().flat_map(Sample::about).map(ToString::to_string).collect();
        each(&harvested, |tool: Tool| {
            if needed.contains(tool.id.as_str()) {
                let says = clipped(tool.description_text().trim(), SHOWN);
                tools.insert(tool.id.to_string(), (tool.name, says));
            }
        })?;
    }
    let mut verdicts: HashMap<String, Vec<Verdict>> = HashMap::new();
    each(folder, |verdict: Verdict| {
        if wanted.contains(&verdict.subject_id) {
            verdicts.entry(verdict.subject_id.clone()).or_default().push(verdict);
        }
    })?;
    let mut show = |id: String, sample: &Sample, messages: &[Message]| {
        let row = RowShown {
            kind: sample.kind.as_str(),
            tools: sample.about().filter_map(|id| tools.get(id.as_str()).cloned()).collect(),
            turns: turns(messages, &sample.instruction),
            verdicts: verdicts.remove(&id).unwrap_or_default(),
            id: id.clone(),
        };
        (id, row)
    };
    Ok(if stage == Stage::FilterTrajectories {
        let row =
            |run: &Trajectory| samples.get(run.sample_id.as_str()).map(|sample| show(run.id.to_string(), sample, &run.messages));
        runs.iter().filter_map(row).collect()
    } else {
        samples.iter().map(|(id, sample)| show(id.clone(), sample, &sample.messages)).collect()
    })
}

/// Who says what, in order.
fn turns(messages: &[Message], instruction: &str) -> Vec<(&'static str, String)> {
    let mut turns = Vec::new();
    if !messages.iter().any(|message| matches!(message, Message::User { .. })) {
        turns.push(("user", clipped(instruction, SHOWN)));
    }
    for message in messages {
        match message {
            Message::System { content } => turns.push(("system", clipped(content, SHOWN))),
            Message::User { content } => turns.push(("user", clipped(content, SHOWN))),
            Message::Tool { content, .. } => turns.push(("answer", clipped(content, SHOWN))),
            Message::Assistant { content, tool_calls } => {
                turns.extend(content.as_deref().map(|text| ("says", clipped(text, SHOWN))));
                let call = |call: &mcpmill_core::record::ToolCall| {
                    let arguments = serde_json::Value::Object(call.function.arguments.clone());
                    ("calls", clipped(&format!("{} {arguments}", call.function.name), SHOWN))
                };
                turns.extend(tool_calls.iter().map(call));
            }
        }
    }
    if turns.len() > TURNS {
        let more = turns.len() - TURNS;
        turns.truncate(TURNS);
        turns.push(("…", format!("{more} more")));
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(id: &str, judgement: Judgement, score: f64) -> Verdict {
        Verdict {
            subject_id: id.into(),
            filter: "f".into(),
            judgement,
            reason: "r".into(),
            score: Some(score),
            threshold: Some(0.5),
            evidence: None,
        }
    }

    #[test]
    fn kept_rows_are_those_nearest_to_the_threshold() {
        let mut chosen = Chosen::default();
        for n in 0..100 {
            chosen.add(&verdict(&format!("row{n:02}"), Judgement::Keep, 0.5 + f64::from(n) / 100.0), 2);
            chosen.add(&verdict(&format!("bad{n:02}"), Judgement::Drop, 0.0), 2);
        }
        let failed = Verdict { evidence: Some(r#"{"exam":"failed"}"#.into()), ..verdict("x", Judgement::Unjudged, 0.0) };
        chosen.add(&failed, 2);
        chosen.by.iter_mut().for_each(|list| shorten(list, 2));
        let ids: Vec<&String> = chosen.ids().collect();
        assert_eq!(ids, ["row00", "row01", "bad00", "bad01"]);
    }
}

//! `quality-score`: a judge grades the sample from 0 to 10, aspect by aspect where the prompt's schema has aspects.

use std::collections::BTreeMap;

use async_trait::async_trait;
use mcpmill_core::record::{FunctionCall, Tool, Verdict};
use serde_json::{Map, Value, json};

use super::{Bench, Case, Filter, Plant, of_model};
use crate::{
    ask::{Meter, Question, ask},
    card::{card_of, property_names},
    models::{Models, Role},
    prompt::Prompt,
};

pub(super) struct QualityScore {
    pub(super) name: String,
    pub(super) prompt: Prompt,
    pub(super) min: f64,
    /// Other thresholds for judges that grade otherwise, by name without what follows `@`.
    pub(super) min_by_model: BTreeMap<String, f64>,
    pub(super) models: Result<Models, String>,
}

impl QualityScore {
    /// 6 of one judge is not 6 of another.
    fn min_for(&self, judge: &str) -> f64 {
        of_model(&self.min_by_model, judge).copied().unwrap_or(self.min)
    }
}

#[async_trait]
impl Filter for QualityScore {
    fn name(&self) -> &str {
        &self.name
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::WrongTool, Plant::WrongValue, Plant::WrongValueOrder, Plant::Vague]
    }

    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let calls = case.calls();
        if calls.is_empty() {
            return bench.keep("not applicable: the sample calls no tool, so there are no arguments to grade");
        }
        let models = match &self.models {
            Ok(models) => models,
            Err(why) => return bench.unjudged(format!("no model: {why}")),
        };
        let (card, arguments) = shown(&calls, case.tool);
        let question = Question {
            prompt: &self.prompt,
            inputs: json!({ "card": card, "request": case.said(), "arguments": arguments }),
            schema: None,
            row: case.subject,
        };
        match ask(models.role(Role::Judge), &question, meter, Grade::read).await {
            Err(failure) => bench.unjudged(format!("{}: {}", failure.reason, failure.cause)),
            Ok(Grade { score, aspects, issue }) => {
                let judge = models.role(Role::Judge).model();
                let min = self.min_for(judge);
                let verdict = if score >= min { bench.keep(issue) } else { bench.drop(issue) };
                let mut evidence = json!({ "judge": judge });
                if !aspects.is_empty() {
                    evidence["aspects"] = aspects.into();
                }
                Verdict { score: Some(score), threshold: Some(min), evidence: Some(evidence.to_string()), ..verdict }
            }
        }
    }
}

/// What a judge says of a row.
struct Grade {
    score: f64,
    /// Scores of aspects, in the order that the judge gave them; none where the prompt's schema knows none.
    aspects: Map<String, Value>,
    issue: String,
}

impl Grade {
    /// Every number beside the score is an aspect, so that a prompt of the user's own may have others, or none.
    fn read(reply: &str) -> Result<Self, String> {
        let mut members: Map<String, Value> = serde_json::from_str(reply).map_err(|e| e.to_string())?;
        let score = members.shift_remove("score").and_then(|score| score.as_f64()).ok_or("the reply has no score")?;
        let issue = members.shift_remove("issue").unwrap_or_default();
        let issue = issue.as_str().map(str::trim).filter(|issue| !issue.is_empty()).unwrap_or("no issue named").to_owned();
        members.retain(|_, value| value.is_number());
        Ok(Self { score, aspects: members, issue })
    }
}

/// The scores by aspect that a verdict of `quality-score` keeps, by name; none for any other verdict.
pub fn aspects(verdict: &Verdict) -> BTreeMap<String, f64> {
    let evidence = verdict.evidence.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
    let members = evidence["aspects"].as_object().into_iter().flatten();
    members.filter_map(|(name, score)| Some((name.clone(), score.as_f64()?))).collect()
}

/// The cards of the called tools, each once, and the arguments of the calls as a judge sees them.
fn shown(calls: &[(&FunctionCall, Option<&Tool>)], labelled: &Tool) -> (String, String) {
    let mut cards: Vec<String> = Vec::new();
    for (call, tool) in calls {
        let tool = tool.unwrap_or(labelled);
        // Parameters that are neither required nor used only mislead a small judge.
        let schema = tool.schema();
        let needed = mcpmill_core::schema::required(&schema);
        let same: Vec<&FunctionCall> = calls.iter().map(|(call, _)| *call).filter(|other| other.name == call.name).collect();
        let used = |name: &String| needed.contains(name) || same.iter().any(|call| call.arguments.contains_key(name));
        let names: Vec<String> = property_names(&schema).into_iter().filter(used).collect();
        let card = card_of(tool, &names);
        if !cards.contains(&card) {
            cards.push(card);
        }
    }
    let several = cards.len() > 1;
    let arguments = calls.iter().map(|(call, _)| {
        let arguments = Value::Object(call.arguments.clone()).to_string();
        if several { format!("{} {arguments}", call.name) } else { arguments }
    });
    (cards.join("\n\n"), arguments.collect::<Vec<_>>().join(" and "))
}

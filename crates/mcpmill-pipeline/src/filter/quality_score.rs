//! `quality-score`: a judge grades the sample from 0 to 10.

use std::collections::BTreeMap;

use async_trait::async_trait;
use mcpmill_core::record::{Message, Verdict};
use serde_json::{Value, json};

use super::{Bench, Case, Filter};
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
        let name = judge.split('@').next().unwrap_or(judge);
        self.min_by_model.get(name).copied().unwrap_or(self.min)
    }
}

#[async_trait]
impl Filter for QualityScore {
    fn name(&self) -> &str {
        &self.name
    }

    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let models = match &self.models {
            Ok(models) => models,
            Err(why) => return bench.unjudged(format!("no model: {why}")),
        };
        let call = case.sample.messages.iter().flat_map(Message::tool_calls).next();
        let arguments = call.map(|c| c.function.arguments.clone()).unwrap_or_default();
        // Parameters that are neither required nor used only mislead a small judge.
        let schema = case.tool.schema();
        let needed = mcpmill_core::schema::required(&schema);
        let shown: Vec<String> =
            property_names(&schema).into_iter().filter(|n| needed.contains(n) || arguments.contains_key(n)).collect();
        let question = Question {
            prompt: &self.prompt,
            inputs: json!({
                "card": card_of(case.tool, &shown),
                "request": case.sample.instruction,
                "arguments": Value::Object(arguments).to_string(),
            }),
            schema: None,
            row: case.subject,
        };
        let graded = ask(models.role(Role::Judge), &question, meter, |reply| {
            let value: Value = serde_json::from_str(reply).map_err(|e| e.to_string())?;
            let score = value["score"].as_f64().ok_or("the reply has no score")?;
            Ok((score, value["issue"].as_str().unwrap_or_default().to_owned()))
        })
        .await;
        match graded {
            Err(failure) => bench.unjudged(format!("{}: {}", failure.reason, failure.cause)),
            Ok((score, issue)) => {
                let issue = if issue.trim().is_empty() { "no issue named".to_owned() } else { issue };
                let min = self.min_for(models.role(Role::Judge).model());
                let verdict = if score >= min { bench.keep(issue) } else { bench.drop(issue) };
                let evidence = json!({ "judge": models.role(Role::Judge).model() }).to_string();
                Verdict { score: Some(score), threshold: Some(min), evidence: Some(evidence), ..verdict }
            }
        }
    }
}

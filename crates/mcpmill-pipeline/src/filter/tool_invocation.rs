//! `tool-invocation`: shown the labelled tool among others, do verifiers choose it?

use std::sync::Arc;

use async_trait::async_trait;
use mcpmill_core::{naming::alias, record::Verdict};
use serde_json::{Value, json};

use super::{Bench, Case, Filter, chain::DropWhen};
use crate::{
    ask::Meter,
    models::{Models, Role},
    pick::pick,
    prompt::Prompt,
};
use mcpmill_core::toolbox::Toolbox;

pub(super) struct ToolInvocation {
    pub(super) name: String,
    pub(super) prompt: Prompt,
    pub(super) verifiers: Vec<Role>,
    pub(super) distractors: usize,
    pub(super) drop_when: DropWhen,
    pub(super) models: Result<Models, String>,
    pub(super) toolbox: Arc<Toolbox>,
}

#[async_trait]
impl Filter for ToolInvocation {
    fn name(&self) -> &str {
        &self.name
    }

    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let models = match &self.models {
            Ok(models) => models,
            Err(why) => return bench.unjudged(format!("no model: {why}")),
        };
        let right = alias(&case.tool.name);
        let mut choices = Vec::new();
        for &role in &self.verifiers {
            match self.choose(case, role, models, meter).await {
                Ok(choice) => choices.push((role, choice)),
                Err(why) => return bench.unjudged(format!("{role}: {why}")),
            }
        }
        let hits = choices.iter().filter(|(_, choice)| *choice == right).count();
        let needed = if self.drop_when == DropWhen::AllMiss { 1 } else { choices.len() };
        let verdict = if hits >= needed {
            bench.keep(format!("{hits} of {} verifiers choose it", choices.len()))
        } else {
            bench.drop(format!("{hits} of {} verifiers choose it", choices.len()))
        };
        let chosen: serde_json::Map<String, Value> =
            choices.into_iter().map(|(role, choice)| (role.to_string(), choice.into())).collect();
        let evidence = json!({ "labelled": right, "chosen": chosen }).to_string();
        Verdict { score: Some(hits as f64), threshold: Some(needed as f64), evidence: Some(evidence), ..verdict }
    }
}

impl ToolInvocation {
    /// Each verifier sees other distractors in another order, so that one model in two roles still
    /// gives two opinions.
    async fn choose(&self, case: &Case<'_>, role: Role, models: &Models, meter: &mut Meter) -> Result<String, String> {
        let key = format!("{}\n{role}", case.sample.id);
        let candidates = self.toolbox.candidates(&[case.tool], self.distractors + 1, &key, |_| true);
        let request = &case.sample.instruction;
        let choice = pick(models.role(role), &self.prompt, request, &candidates, &key, meter);
        choice.await.map_err(|e| format!("{}: {}", e.reason, e.cause))
    }
}

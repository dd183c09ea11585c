//! `tool-invocation`: shown the labelled tool among others, do verifiers choose it? Where no tool is to fit: shown all
//! that a row may offer, do they choose none?

use std::sync::Arc;

use async_trait::async_trait;
use mcpmill_core::{
    canonical::sha256_hex,
    edge::RecordedEmbedder,
    naming::alias,
    record::{SampleKind, Verdict},
    toolbox::{Distract, Distractors, Toolbox},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{Bench, Case, Filter, Plant, chain::DropWhen};
use crate::{
    ask::{AskFailure, Meter},
    models::{Models, Role},
    pick::{pick, pick_or_none},
    prompt::Prompt,
};

pub(super) struct ToolInvocation {
    pub(super) name: String,
    pub(super) prompt: Prompt,
    /// What verifiers are asked where no tool is to fit.
    pub(super) none_prompt: Prompt,
    pub(super) verifiers: Vec<Role>,
    pub(super) distractors: usize,
    pub(super) drop_when: DropWhen,
    pub(super) models: Result<Models, String>,
    pub(super) toolbox: Arc<Toolbox>,
    /// Which tools stand beside the labelled one.
    pub(super) distract: Distract,
    pub(super) embedder: Result<RecordedEmbedder, String>,
    /// Made at the first row.
    pub(super) drawn: OnceCell<Distractors>,
}

#[async_trait]
impl Filter for ToolInvocation {
    fn name(&self) -> &str {
        &self.name
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::WrongTool, Plant::WrongToolOrder]
    }

    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let models = match &self.models {
            Ok(models) => models,
            Err(why) => return bench.unjudged(format!("no model: {why}")),
        };
        let none_fits = case.sample.kind == SampleKind::NoTool;
        let right = (!none_fits).then(|| alias(&case.tool.name));
        let mut choices = Vec::new();
        let drawn = match self.drawn(none_fits).await {
            Ok(drawn) => drawn,
            Err(why) => {
                meter.unreachable.get_or_insert_with(|| why.clone());
                return bench.unjudged(why);
            }
        };
        for (turn, &role) in self.verifiers.iter().enumerate() {
            let chosen = match drawn {
                Some(drawn) => self.choose(case, drawn, (turn, role), models, meter).await,
                None => self.none(case, role, models, meter).await,
            };
            match chosen {
                Ok(choice) => choices.push((role, choice)),
                Err(failure) => return bench.unjudged(format!("{role}: {}: {}", failure.reason, failure.cause)),
            }
        }
        let hits = choices.iter().filter(|(_, choice)| *choice == right).count();
        let needed = if self.drop_when == DropWhen::AllMiss { 1 } else { choices.len() };
        let what = if none_fits { "find that nothing offered does it" } else { "choose it" };
        let reason = format!("{hits} of {} verifiers {what}", choices.len());
        let verdict = if hits >= needed { bench.keep(reason) } else { bench.drop(reason) };
        let chosen: serde_json::Map<String, Value> =
            choices.into_iter().map(|(role, choice)| (role.to_string(), choice.into())).collect();
        let evidence = json!({ "labelled": right, "chosen": chosen }).to_string();
        Verdict { score: Some(hits as f64), threshold: Some(needed as f64), evidence: Some(evidence), ..verdict }
    }
}

impl ToolInvocation {
    /// What distractors are drawn from; where no tool is to fit there are none.
    async fn drawn(&self, none_fits: bool) -> Result<Option<&Distractors>, String> {
        if none_fits {
            return Ok(None);
        }
        let make = || Distractors::new(self.distract, &self.toolbox, &self.embedder);
        self.drawn.get_or_try_init(make).await.map(Some)
    }

    /// Each verifier sees other distractors in another order, so that one model in two roles still
    /// gives two opinions.
    async fn choose(
        &self,
        case: &Case<'_>,
        drawn: &Distractors,
        (turn, role): (usize, Role),
        models: &Models,
        meter: &mut Meter,
    ) -> Result<Option<String>, AskFailure> {
        let key = format!("{}\n{role}", case.sample.id);
        let turns = (turn, self.verifiers.len());
        let candidates = drawn.candidates(&self.toolbox, &[case.tool], self.distractors + 1, &key, turns);
        let request = &case.sample.instruction;
        pick(models.role(role), &self.prompt, request, &candidates, &key, meter).await.map(Some)
    }

    /// Each verifier sees all tools that an export may offer, in another order.
    async fn none(&self, case: &Case<'_>, role: Role, models: &Models, meter: &mut Meter) -> Result<Option<String>, AskFailure> {
        let key = format!("{}\n{role}", case.sample.id);
        let mut candidates = self.toolbox.beside(case.tool, case.sample.id.as_str());
        candidates.sort_by_cached_key(|tool| sha256_hex(format!("none\n{key}\n{}", tool.id)));
        let request = &case.sample.instruction;
        pick_or_none(models.role(role), &self.none_prompt, request, &candidates, &key, meter).await
    }
}

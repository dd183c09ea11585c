//! The look at the servers before requests are written (`generate.look`).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use mcpmill_core::{
    drive::Context,
    id::ServerId,
    record::{Judgement, Outcome, ServerRecord, Tool, Verdict},
};
use mcpmill_pipeline::{
    filter::RESPONSE_VALID,
    generate::{
        GenerateSettings,
        look::{LookSettings, at_hand, look, planned_servers},
    },
    rollout::CUT_SHORT,
};
use serde_json::{Value, json};

use super::Line;
use crate::{error::Failure, policies::Policies, stage::Stage};

impl Line {
    /// What of the settings decides what a look finds.
    pub(super) fn look_knobs(&self, networked: &BTreeSet<ServerId>) -> Result<Value, Failure> {
        let knobs = json!({ "calls": self.config.generate.look_calls, "policy": self.policy_knobs() });
        self.with_policies(knobs, networked)
    }

    /// Says how many conversations that were run brought answers to learn from: the number that a look is to raise.
    pub(super) fn tell_executable(&self) -> Result<(), Failure> {
        let verdicts = self.input::<Verdict>(Stage::FilterTrajectories)?;
        let judged: Vec<&Verdict> = verdicts.iter().filter(|verdict| verdict.filter == RESPONSE_VALID).collect();
        let ok = judged.iter().filter(|verdict| verdict.judgement == Judgement::Keep).count();
        let ended = self.input::<Outcome>(Stage::Rollout)?.into_iter();
        let run = judged.len() + ended.filter(|outcome| outcome.reason == CUT_SHORT).count();
        if run > 0 {
            let looked = if self.config.generate.look { "with" } else { "without" };
            self.events.note(format!("{ok} of {run} conversations that were run brought usable answers ({looked} a look first)"));
        }
        Ok(())
    }

    /// The settings with what was found on the servers of the plan; as they are where no look is wanted.
    pub(super) async fn looked(
        &self,
        tools: &[Tool],
        servers: &[ServerRecord],
        policies: &Policies,
        settings: GenerateSettings,
        cx: &Context,
    ) -> Result<GenerateSettings, Failure> {
        if !self.config.generate.look {
            return Ok(settings);
        }
        let planned = planned_servers(tools.to_vec(), &settings.wanted());
        let planned: Vec<ServerRecord> = servers.iter().filter(|server| planned.contains(&server.id)).cloned().collect();
        let look_settings = LookSettings {
            max_calls: self.config.generate.look_calls,
            policy: self.call_policy(&policies.networked(servers))?,
            worlds: Arc::new(self.declarations.worlds()?),
            networked: Arc::new(policies.networked(servers)),
        };
        let connector = self.edges.connector(&self.declarations, true).await?;
        let found = look(tools, &planned, &look_settings, connector.as_ref(), cx).await;
        let names: usize = found.values().map(Vec::len).sum();
        self.events.note(format!("looked at {} servers: {names} names on {} of them", planned.len(), found.len()));
        let mut all: HashMap<ServerId, String> = settings.at_hand.as_ref().clone();
        for (server, names) in found {
            let told = at_hand(&server, all.get(&server).map(String::as_str), &names);
            all.insert(server, told);
        }
        Ok(GenerateSettings { at_hand: Arc::new(all), ..settings })
    }
}

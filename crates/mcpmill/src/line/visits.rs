//! The stages that start servers: harvest and rollout.

use std::{collections::BTreeSet, sync::Arc};

use mcpmill_core::{
    drive::Pace,
    id::ServerId,
    record::{Sample, ServerRecord, Tool, Trajectory, Twin},
};
use mcpmill_pipeline::{
    harvest::{HarvestSettings, harvest},
    policy::Policy,
    rollout::{RolloutPrompts, RolloutSettings, Servers, Writer, is_written_live, rollout},
    twins::twins,
};
use mcpmill_store::{parquet_file::write_all, run_dir::StageInfo};
use serde_json::{Value, json};

use super::Line;
use crate::{
    edges::secrets,
    error::{Exit, Failure},
    policies::Policies,
    stage::Stage,
};

impl Line {
    /// What single servers and those of a marketplace are given.
    ///
    /// # Errors
    /// A declaration cannot be used.
    pub(super) fn policies(&self) -> Result<Policies, Failure> {
        Policies::read(&self.config, &self.declarations)
    }

    /// The servers of discover, with what their settings add.
    pub(super) fn servers(&self, policies: &Policies) -> Result<Vec<ServerRecord>, Failure> {
        let servers = self.input::<ServerRecord>(Stage::Discover)?;
        Ok(servers.into_iter().map(|server| policies.applied(server)).collect())
    }

    /// What of the policies and of `[harvest]` decides which servers can be started and as what, beside a stage's own
    /// settings; nothing by default. A credential that is set later makes another harvest, which its server waits for.
    pub(super) fn with_policies(&self, mut knobs: Value, networked: &BTreeSet<ServerId>) -> Result<Value, Failure> {
        let section = &self.config.harvest;
        if section.remote {
            knobs["remote"] = true.into();
        }
        if !section.python.is_empty() {
            knobs["python"] = json!(section.python);
        }
        let credentials: BTreeSet<String> = secrets(&self.config)?.into_keys().collect();
        if !credentials.is_empty() {
            knobs["credentials"] = json!(credentials);
        }
        if !section.servers.is_empty() {
            knobs["servers"] = json!(self.config.harvest.servers);
        }
        if !networked.is_empty() {
            knobs["networked"] = json!(networked);
        }
        Ok(knobs)
    }

    pub(super) async fn harvest(&self) -> Result<StageInfo, Failure> {
        let policies = self.policies()?;
        let servers = self.servers(&policies)?;
        let networked = policies.networked(&servers);
        self.tell_unmatched(&policies, &servers);
        let section = &self.config.harvest;
        let mut knobs = json!({ "max_pages": section.max_pages, "max_tools": section.max_tools });
        if section.listed_tools {
            knobs["listed_tools"] = true.into();
        }
        let knobs = self.with_policies(knobs, &networked)?;
        let files = ["marketplaces/worlds/", "marketplaces/locks/"];
        let print = self.fingerprint(Stage::Harvest, &knobs, &files, &[self.path_of::<ServerRecord>(Stage::Discover)])?;
        let settings = HarvestSettings {
            concurrency: section.concurrency,
            max_pages: section.max_pages,
            max_tools: section.max_tools,
            listed_tools: section.listed_tools,
            worlds: Arc::new(self.declarations.worlds()?),
            networked: Arc::new(networked),
        };
        let info = self
            .stage::<Tool, _>(Stage::Harvest.folder(), &print, false, async |cx, out| {
                self.tell_networked(&servers, &settings.networked);
                let connector = self.edges.connector(&self.declarations, false).await?;
                harvest(servers, &settings, connector, cx, out).await.map_err(Failure::from)
            })
            .await?;
        self.write_twins()?;
        Ok(info)
    }

    /// Says which names in `[harvest.servers]` are no server's: most likely they are misspelt.
    fn tell_unmatched(&self, policies: &Policies, servers: &[ServerRecord]) {
        for name in policies.unmatched(servers) {
            self.events.note(format!("`harvest.servers` names `{name}`, which is the package of no server"));
        }
    }

    /// Says which servers run with the network: the user should not have to look for it.
    fn tell_networked(&self, servers: &[ServerRecord], networked: &BTreeSet<ServerId>) {
        let names: Vec<&str> = servers.iter().filter(|s| networked.contains(&s.id)).map(|s| s.name.as_str()).collect();
        if let Some((first, rest)) = names.split_first() {
            let who = match rest.len() {
                0 => format!("{first} runs"),
                others => format!("{first} and {others} more run"),
            };
            self.events.note(format!("{who} with the network of this machine (`network = \"full\"`)"));
        }
    }

    /// Writes which tools and servers are copies of each other beside the tools. A pure function of
    /// these and the licences, so it is made again when it is not there.
    pub(super) fn write_twins(&self) -> Result<(), Failure> {
        let path = self.path_of::<Twin>(Stage::Harvest);
        if path.exists() {
            return Ok(());
        }
        let servers = self.input::<ServerRecord>(Stage::Discover)?;
        let licensed: BTreeSet<ServerId> = servers.into_iter().filter(|s| s.licence.is_some()).map(|s| s.id).collect();
        let tools = self.input::<Tool>(Stage::Harvest)?;
        let twins = twins(&tools, |server| licensed.contains(server));
        let count = |ids: BTreeSet<String>| ids.len();
        let near = count(twins.iter().map(|twin| twin.near_id.to_string()).collect());
        let servers = count(twins.iter().map(|twin| twin.server_id.to_string()).collect());
        let clusters = count(twins.iter().map(|twin| twin.server_cluster.to_string()).collect());
        write_all(&path, &twins, &[]).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
        self.events.note(format!("{} tools are {near} apart from copies, {servers} servers {clusters}", twins.len()));
        Ok(())
    }

    /// Which calls may run live.
    pub(super) fn call_policy(&self, networked: &BTreeSet<ServerId>) -> Result<Policy, Failure> {
        let section = &self.config.rollout;
        let read = Policy::new(section.refuse.clone()).and_then(|policy| policy.allowing(section.allow.clone(), section.changes));
        let read = read.map_err(|bad| {
            Failure::usage(format!("failed to read `rollout.refuse` or `rollout.allow`: the pattern `{bad}` has no `/`"))
                .hint("patterns are `server/tool`, `*` for any text")
        });
        Ok(read?.with_networked(networked.clone()))
    }

    /// What of the settings decides which calls run, for fingerprints.
    pub(super) fn policy_knobs(&self) -> Value {
        let section = &self.config.rollout;
        json!([section.refuse, section.allow, section.changes])
    }

    pub(super) async fn rollout(&self) -> Result<StageInfo, Failure> {
        let samples = self.input::<Sample>(Stage::FilterSamples)?;
        let policies = self.policies()?;
        let servers = self.servers(&policies)?;
        let networked = policies.networked(&servers);
        let section = &self.config.rollout;
        let policy = self.call_policy(&networked)?;
        let mut knobs = json!({ "max_calls": section.max_calls, "policy": self.policy_knobs() });
        // Who writes turns is asked for only where turns are written: other runs need no model here.
        let written = section.answer || samples.iter().any(|sample| is_written_live(sample.kind));
        let prompts = written.then(|| RolloutPrompts::read(|id| self.declarations.prompt(id))).transpose()?;
        let mut files = vec!["marketplaces/worlds/".to_owned(), "marketplaces/locks/".to_owned()];
        if let Some(prompts) = &prompts {
            knobs["answer"] = json!(section.answer);
            knobs["models"] = json!(self.model_names(&prompts.roles())?);
            files.extend(prompts.all().map(|prompt| format!("prompts/{}.md", prompt.id)));
        }
        let knobs = self.with_policies(knobs, &networked)?;
        let settings = RolloutSettings {
            max_calls: section.max_calls,
            answer: section.answer,
            policy,
            worlds: Arc::new(self.declarations.worlds()?),
            networked: Arc::new(networked),
            pace: Pace { concurrency: section.concurrency, max_failure_rate: section.max_failure_rate },
        };
        let inputs = [self.path_of::<Sample>(Stage::FilterSamples), self.path_of::<ServerRecord>(Stage::Discover)];
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let print = self.fingerprint(Stage::Rollout, &knobs, &files, &inputs)?;
        self.stage::<Trajectory, _>(Stage::Rollout.folder(), &print, false, async |cx, out| {
            let connector = self.edges.connector(&self.declarations, true).await?;
            let by_id = servers.into_iter().map(|s| (s.id.clone(), s)).collect();
            let servers = Servers { by_id, toolbox: self.toolbox()?, connector };
            let writer = match prompts {
                Some(prompts) => Some(Writer { models: self.models(&prompts.roles()).await?, prompts }),
                None => None,
            };
            Box::pin(rollout(samples, &settings, &servers, writer.as_ref(), cx, out)).await.map_err(Failure::from)
        })
        .await
    }
}

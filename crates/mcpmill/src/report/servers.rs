//! Servers that failed or took long, with reasons.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use mcpmill_core::{
    id::ServerId,
    record::{Ended, Outcome, OutcomeKind, Sample, ServerRecord, Tool, Trajectory},
    text::clipped,
};
use serde::Serialize;

use super::{done, each};
use crate::{error::Failure, stage::Stage};

/// Failing servers that are told, and slow ones.
const FAILING: usize = 25;
const SLOW: usize = 8;
/// Characters of a cause that are told.
const CAUSE: usize = 400;

/// One server, as far as the run came with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerFigures {
    /// Its name in the marketplace.
    pub server: String,
    /// Marketplaces that list it.
    pub marketplaces: Vec<String>,
    /// What became of it at harvest; empty while it was not visited.
    pub harvest: String,
    /// Why it failed there.
    pub cause: Option<String>,
    /// How long the visit took, installing included.
    pub seconds: f64,
    /// Tools it listed.
    pub tools: u64,
    /// Conversations that were run on it.
    pub runs: u64,
    /// Those whose answers the filters let pass.
    pub usable: u64,
    /// Those that ended without an answer: the server failed or took too long.
    pub broken: u64,
    /// Why the first of these did.
    pub broken_cause: Option<String>,
    /// The longest of its conversations.
    pub longest_run_seconds: f64,
}

/// The servers of a run that are worth a look.
#[derive(Debug, Default, Serialize)]
pub struct Servers {
    /// How many there are.
    pub all: usize,
    /// How many listed no tools, or left conversations without an answer.
    pub failed: usize,
    /// Of these the first, those that listed nothing before the others.
    pub failing: Vec<ServerFigures>,
    /// Those whose visit took longest.
    pub slowest: Vec<ServerFigures>,
    /// Those with the longest conversations.
    pub slowest_runs: Vec<ServerFigures>,
}

/// Counts what the stages that are done know of servers.
///
/// # Errors
/// An artifact cannot be read.
pub fn servers(run: &Path) -> Result<Servers, Failure> {
    let mut all: HashMap<ServerId, ServerFigures> = HashMap::new();
    let folder = |stage: Stage| done(run, stage.folder());
    let Some(found) = folder(Stage::Discover)? else { return Ok(Servers::default()) };
    each(&found, |server: ServerRecord| {
        let marketplaces: BTreeSet<String> = server.sources.into_iter().map(|source| source.marketplace).collect();
        let marketplaces = marketplaces.into_iter().collect();
        all.insert(server.id, ServerFigures { server: server.name, marketplaces, ..ServerFigures::default() });
    })?;
    if let Some(harvested) = folder(Stage::Harvest)? {
        let mut by_text: HashMap<String, &mut ServerFigures> = all.iter_mut().map(|(id, f)| (id.to_string(), f)).collect();
        each(&harvested, |outcome: Outcome| {
            let Some(server) = by_text.get_mut(&outcome.input_id) else { return };
            server.harvest = if outcome.reason.is_empty() { outcome.outcome.as_str().to_owned() } else { outcome.reason };
            server.cause = outcome.cause.filter(|_| outcome.outcome != OutcomeKind::Kept).map(|cause| clipped(&cause, CAUSE));
            server.seconds = outcome.seconds;
        })?;
        each(&harvested, |tool: Tool| {
            if let Some(server) = all.get_mut(&tool.server_id) {
                server.tools += 1;
            }
        })?;
    }
    if let (Some(samples), Some(rolled)) = (folder(Stage::FilterSamples)?, folder(Stage::Rollout)?) {
        conversations(&mut all, &samples, &rolled, folder(Stage::FilterTrajectories)?.as_deref())?;
    }
    Ok(told(&all.into_values().collect::<Vec<_>>()))
}

/// What came of the conversations on each server; one over several servers counts for the first.
fn conversations(
    all: &mut HashMap<ServerId, ServerFigures>,
    samples: &Path,
    rolled: &Path,
    judged: Option<&Path>,
) -> Result<(), Failure> {
    let mut server_of: HashMap<String, ServerId> = HashMap::new();
    each(samples, |sample: Sample| {
        let Sample { id, server_ids, .. } = sample;
        server_of.extend(server_ids.into_iter().next().map(|server| (id.to_string(), server)));
    })?;
    let mut of = |sample: &str, count: &mut dyn FnMut(&mut ServerFigures)| {
        if let Some(server) = server_of.get(sample).and_then(|server| all.get_mut(server)) {
            count(server);
        }
    };
    each(rolled, |run: Trajectory| {
        let ended = run.ended;
        of(run.sample_id.as_str(), &mut |server| {
            server.runs += u64::from(ended != Ended::Refused);
            if matches!(ended, Ended::Failed | Ended::Limit) {
                server.broken += 1;
                server.broken_cause.get_or_insert_with(|| clipped(run.cause.as_deref().unwrap_or("no cause given"), CAUSE));
            }
        });
    })?;
    each(rolled, |outcome: Outcome| {
        of(&outcome.input_id, &mut |server| server.longest_run_seconds = server.longest_run_seconds.max(outcome.seconds));
    })?;
    if let Some(judged) = judged {
        each(judged, |run: Trajectory| of(run.sample_id.as_str(), &mut |server| server.usable += 1))?;
    }
    Ok(())
}

fn told(servers: &[ServerFigures]) -> Servers {
    let listed_nothing = |s: &ServerFigures| s.tools == 0 && !s.harvest.is_empty();
    let mut failing: Vec<ServerFigures> = servers.iter().filter(|s| listed_nothing(s) || s.broken > 0).cloned().collect();
    let failed = failing.len();
    failing.sort_by(|a, b| (listed_nothing(b), b.broken, &a.server).cmp(&(listed_nothing(a), a.broken, &b.server)));
    failing.truncate(FAILING);
    let longest = |seconds: fn(&ServerFigures) -> f64| {
        let mut slow: Vec<ServerFigures> = servers.iter().filter(|s| seconds(s) > 0.0).cloned().collect();
        slow.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)).then_with(|| a.server.cmp(&b.server)));
        slow.truncate(SLOW);
        slow
    };
    let (slowest, slowest_runs) = (longest(|s| s.seconds), longest(|s| s.longest_run_seconds));
    Servers { all: servers.len(), failed, failing, slowest, slowest_runs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listed_nothing_comes_before_what_broke() {
        let server = |name: &str, tools, broken, seconds| ServerFigures {
            server: name.into(),
            harvest: "ready".into(),
            tools,
            broken,
            seconds,
            ..ServerFigures::default()
        };
        let all = vec![server("fine", 3, 0, 9.0), server("breaks", 2, 7, 1.0), server("mute", 0, 0, 30.0)];
        let told = told(&all);
        let names = |list: &[ServerFigures]| list.iter().map(|s| s.server.clone()).collect::<Vec<_>>();
        assert_eq!((told.all, told.failed), (3, 2));
        assert_eq!(names(&told.failing), ["mute", "breaks"]);
        assert_eq!(names(&told.slowest), ["mute", "fine", "breaks"]);
        assert!(told.slowest_runs.is_empty());
    }
}

//! The plan: which tools get how many samples. A pure function of the tools and the settings.

use std::collections::{BTreeMap, HashSet};

use mcpmill_core::{
    canonical::content_hash,
    id::{SampleId, ServerId},
    record::{Row, SampleKind, Tool},
};
use serde::Serialize;

/// A row of the stage: a sample to be made, or a tool that gets none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Planned {
    /// Make a sample.
    Sample(Box<Seed>),
    /// Make none, for this reason.
    Nothing {
        /// The tool's id.
        tool: String,
        /// `twin` or `beyond-plan`.
        reason: &'static str,
    },
}

/// A sample to be made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seed {
    /// Its id: hash of tool, kind and place.
    pub id: SampleId,
    /// The tool to call.
    pub tool: Tool,
    /// The how-manieth sample of the tool.
    pub index: usize,
    /// Samples planned for the tool.
    pub of: usize,
}

impl Row for Planned {
    fn row_id(&self) -> &str {
        match self {
            Self::Sample(seed) => seed.id.as_str(),
            Self::Nothing { tool, .. } => tool,
        }
    }
}

/// Plans `samples` samples, `per_tool` for a tool, taking tools from all servers in turn so that a
/// small run sees many servers. Of byte-identical tools one is used. Every tool is in the plan,
/// those without samples with the reason.
pub fn plan(tools: Vec<Tool>, samples: usize, per_tool: usize) -> Vec<Planned> {
    let per_tool = per_tool.max(1);
    let mut planned = Vec::new();
    let mut seen = HashSet::new();
    let mut by_server: BTreeMap<ServerId, Vec<Tool>> = BTreeMap::new();
    let mut tools = tools;
    tools.sort_by(|a, b| a.id.cmp(&b.id));
    for tool in tools {
        if seen.insert(tool.cluster_id.clone()) {
            by_server.entry(tool.server_id.clone()).or_default().push(tool);
        } else {
            planned.push(Planned::Nothing { tool: tool.id.0, reason: "twin" });
        }
    }
    // Within a server the order is by hash, so that it is neither alphabetical nor the server's own.
    let mut queues: Vec<Vec<Tool>> = by_server.into_values().collect();
    for queue in &mut queues {
        queue.sort_by_cached_key(|tool| std::cmp::Reverse(content_hash(&("plan", &tool.id))));
    }
    let mut left = samples;
    while queues.iter().any(|q| !q.is_empty()) {
        for queue in &mut queues {
            let Some(tool) = queue.pop() else { continue };
            if left == 0 {
                planned.push(Planned::Nothing { tool: tool.id.0, reason: "beyond-plan" });
                continue;
            }
            let of = per_tool.min(left);
            left -= of;
            planned.extend((0..of).map(|index| Planned::Sample(Box::new(seed(&tool, index, of)))));
        }
    }
    // Tools without samples end at once: told first, they do not blur the time that is left.
    planned.sort_by_key(|p| matches!(p, Planned::Sample(_)));
    planned
}

fn seed(tool: &Tool, index: usize, of: usize) -> Seed {
    Seed { id: SampleId::of(&(&tool.id, SampleKind::Single, index)), tool: tool.clone(), index, of }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::card::tests::tool;

    fn tools(servers: usize, each: usize) -> Vec<Tool> {
        let one = |s: usize, t: usize| Tool {
            server_id: ServerId(format!("srv_{s}")),
            ..tool(&format!("t{s}_{t}"), "does it", json!({"type": "object"}))
        };
        (0..servers).flat_map(|s| (0..each).map(move |t| one(s, t))).collect()
    }

    fn servers(planned: &[Planned]) -> HashSet<String> {
        let sample = |p: &Planned| match p {
            Planned::Sample(seed) => Some(seed.tool.server_id.to_string()),
            Planned::Nothing { .. } => None,
        };
        planned.iter().filter_map(sample).collect()
    }

    #[test]
    fn a_small_plan_sees_many_servers_and_accounts_for_every_tool() {
        let planned = plan(tools(10, 7), 20, 2);
        let count = planned.iter().filter(|p| matches!(p, Planned::Sample(_))).count();
        assert_eq!(count, 20);
        assert_eq!(servers(&planned).len(), 10);
        assert_eq!(planned.len() - count, 60, "the other tools are accounted for");
        let ids: HashSet<&str> = planned.iter().map(Row::row_id).collect();
        assert_eq!(ids.len(), planned.len());
    }

    #[test]
    fn the_order_of_the_input_does_not_matter() {
        let mut shuffled = tools(5, 4);
        shuffled.reverse();
        assert_eq!(plan(tools(5, 4), 9, 2), plan(shuffled, 9, 2));
    }

    #[test]
    fn twins_are_used_once() {
        let mut twins = tools(2, 1);
        twins[1].cluster_id = twins[0].cluster_id.clone();
        let planned = plan(twins, 9, 1);
        assert_eq!(planned.iter().filter(|p| matches!(p, Planned::Nothing { reason: "twin", .. })).count(), 1);
    }
}

//! Splits that hold out tools and servers honestly: copies of a server go together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mcpmill_core::{
    canonical::sha256_hex,
    id::SampleId,
    record::{Sample, Split},
    toolbox::Toolbox,
};
use serde::Deserialize;

/// How much is held out, each 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// Of the server clusters.
    pub unseen_server: f64,
    /// Of the tools of the other servers.
    pub unseen_tool: f64,
    /// Of the samples of the other tools.
    pub seen_tool: f64,
}

/// The split of every sample: a pure function of the samples, the tools and the shares.
pub fn assign(samples: &[&Sample], toolbox: &Toolbox, shares: &Shares) -> BTreeMap<SampleId, Split> {
    let cluster_of = |sample: &Sample| -> String {
        sample.server_ids.first().map(|server| toolbox.server_cluster(server).to_string()).unwrap_or_default()
    };
    let servers: BTreeSet<String> = samples.iter().map(|s| cluster_of(s)).collect();
    let unseen_servers = draw(servers, shares.unseen_server);
    let (far, near): (Vec<&Sample>, Vec<&Sample>) = samples.iter().partition(|s| unseen_servers.contains(&cluster_of(s)));
    let tool_of = |sample: &Sample| -> String {
        let tool = sample.tool_ids.first().and_then(|t| toolbox.get(t));
        tool.map(|tool| toolbox.cluster(tool).to_string()).unwrap_or_default()
    };
    let tools: BTreeSet<String> = near.iter().map(|s| tool_of(s)).collect();
    let unseen_tools = draw(tools, shares.unseen_tool);
    let (unseen, seen): (Vec<&Sample>, Vec<&Sample>) = near.into_iter().partition(|s| unseen_tools.contains(&tool_of(s)));
    let mut out = BTreeMap::new();
    out.extend(far.iter().map(|s| (s.id.clone(), Split::UnseenServer)));
    out.extend(unseen.iter().map(|s| (s.id.clone(), Split::UnseenTool)));
    // A sample may be held out of a tool only while another of the same tool is left to train on.
    let mut left: HashMap<String, usize> = HashMap::new();
    for sample in &seen {
        *left.entry(tool_of(sample)).or_default() += 1;
    }
    let mut wanted = (shares.seen_tool * seen.len() as f64).round() as usize;
    let mut order: Vec<&Sample> = seen;
    order.sort_by_cached_key(|s| sha256_hex(format!("split\n{}", s.id)));
    for sample in order {
        let count = left.entry(tool_of(sample)).or_default();
        let hold = wanted > 0 && *count > 1;
        if hold {
            *count -= 1;
            wanted -= 1;
        }
        out.insert(sample.id.clone(), if hold { Split::SeenTool } else { Split::Train });
    }
    out
}

/// The first by hash, as many as the share asks for; a share above 0 takes at least one of two or more.
fn draw(names: BTreeSet<String>, share: f64) -> BTreeSet<String> {
    let wanted = (share * names.len() as f64).round() as usize;
    let wanted = if share > 0.0 && names.len() > 1 { wanted.clamp(1, names.len() - 1) } else { 0 };
    let mut order: Vec<String> = names.into_iter().collect();
    order.sort_by_cached_key(|name| sha256_hex(format!("split\n{name}")));
    order.into_iter().take(wanted).collect()
}

#[cfg(test)]
mod tests {
    use mcpmill_core::{
        id::ServerId,
        record::{SampleKind, Tool},
    };
    use serde_json::json;

    use super::*;
    use crate::card::tests::tool;

    fn world(servers: usize, tools: usize, each: usize) -> (Toolbox, Vec<Sample>) {
        let one = |s: usize, t: usize| Tool {
            server_id: ServerId(format!("srv_{s:02}")),
            ..tool(&format!("t{s}_{t}"), "does it", json!({"type": "object"}))
        };
        let all: Vec<Tool> = (0..servers).flat_map(|s| (0..tools).map(move |t| one(s, t))).collect();
        let sample = |tool: &Tool, i: usize| Sample {
            id: SampleId::of(&(&tool.id, i)),
            kind: SampleKind::Single,
            tool_ids: vec![tool.id.clone()],
            server_ids: vec![tool.server_id.clone()],
            instruction: String::new(),
            messages: vec![],
            lineage: vec![],
        };
        let samples = all.iter().flat_map(|t| (0..each).map(move |i| sample(t, i))).collect();
        (Toolbox::new(all), samples)
    }

    const SHARES: Shares = Shares { unseen_server: 0.2, unseen_tool: 0.2, seen_tool: 0.2 };

    fn split(toolbox: &Toolbox, samples: &[Sample]) -> BTreeMap<SampleId, Split> {
        assign(&samples.iter().collect::<Vec<_>>(), toolbox, &SHARES)
    }

    #[test]
    fn holds_out_whole_servers_and_whole_tools() {
        let (toolbox, samples) = world(10, 5, 3);
        let splits = split(&toolbox, &samples);
        assert_eq!(splits.len(), samples.len());
        let servers = |want: Split| -> BTreeSet<&ServerId> {
            samples.iter().filter(|s| splits[&s.id] == want).map(|s| &s.server_ids[0]).collect()
        };
        let tools = |want: Split| -> BTreeSet<String> {
            samples.iter().filter(|s| splits[&s.id] == want).map(|s| s.tool_ids[0].to_string()).collect()
        };
        assert_eq!(servers(Split::UnseenServer).len(), 2);
        assert!(servers(Split::UnseenServer).is_disjoint(&servers(Split::Train)));
        assert_eq!(tools(Split::UnseenTool).len(), 8);
        assert!(tools(Split::UnseenTool).is_disjoint(&tools(Split::Train)));
        assert!(tools(Split::SeenTool).is_subset(&tools(Split::Train)), "a seen tool is trained on");
        assert_eq!(samples.iter().filter(|s| splits[&s.id] == Split::SeenTool).count(), 19);
    }

    #[test]
    fn copies_of_a_server_go_together() {
        let (toolbox, samples) = world(10, 4, 2);
        // Every odd server is a near copy of the even one before it, but for one tool.
        let copied = |t: &Tool| {
            let number: usize = t.server_id.as_str()[4..].parse().unwrap();
            let place = t.name.split('_').nth(1).unwrap();
            let own = number % 2 == 1 && place == "0";
            let shown = if own { number } else { number & !1 };
            let day = if number % 2 == 1 { "day" } else { "date" };
            let text =
                format!("Reads record {place} of the archive of house {shown} by its key, its {day} and the name of its owner");
            Tool { name: format!("read_{shown}_{place}"), description: Some(text), ..t.clone() }
        };
        let tools: Vec<Tool> = toolbox.all().iter().map(copied).collect();
        let found = crate::twins::twins(&tools, |_| true);
        let toolbox = Toolbox::new(tools).with_twins(&found);
        let splits = split(&toolbox, &samples);
        for sample in &samples {
            let number: usize = sample.server_ids[0].as_str()[4..].parse().unwrap();
            let partner = format!("srv_{:02}", number ^ 1);
            let far = splits[&sample.id] == Split::UnseenServer;
            let same = samples
                .iter()
                .filter(|s| s.server_ids[0].as_str() == partner)
                .all(|s| (splits[&s.id] == Split::UnseenServer) == far);
            assert!(same, "{partner} is split from its copy");
        }
    }

    #[test]
    fn the_order_of_samples_does_not_matter() {
        let (toolbox, mut samples) = world(6, 3, 2);
        let before = split(&toolbox, &samples);
        samples.reverse();
        assert_eq!(before, split(&toolbox, &samples));
    }
}

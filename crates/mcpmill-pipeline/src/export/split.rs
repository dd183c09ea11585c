//! Splits that hold out tools and servers honestly: copies of a server go together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mcpmill_core::{
    canonical::sha256_hex,
    id::{ClusterId, SampleId, ServerId},
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

/// Who is in which split, and what is held out of training.
#[derive(Clone, Debug, Default)]
pub struct Assigned {
    /// The split of every sample.
    pub splits: BTreeMap<SampleId, Split>,
    /// Held-out servers, as the clusters of their copies.
    pub servers: BTreeSet<ServerId>,
    /// Held-out tools of the other servers, as the clusters of their copies.
    pub tools: BTreeSet<ClusterId>,
}

/// Assigns every sample to a split: a pure function of the samples, the tools and the shares. A sample of several
/// servers or tools, those that are withheld too, is held out with any of them.
pub fn assign(samples: &[&Sample], toolbox: &Toolbox, shares: &Shares) -> Assigned {
    let clusters_of = |sample: &Sample| -> BTreeSet<String> {
        sample.server_ids.iter().map(|server| toolbox.server_cluster(server).to_string()).collect()
    };
    let servers: BTreeSet<String> = samples.iter().flat_map(|s| clusters_of(s)).collect();
    let unseen_servers = draw(servers, shares.unseen_server);
    let (far, near): (Vec<&Sample>, Vec<&Sample>) = samples.iter().partition(|s| !clusters_of(s).is_disjoint(&unseen_servers));
    let tools_of = |sample: &Sample| -> BTreeSet<String> {
        sample.about().filter_map(|id| toolbox.get(id)).map(|tool| toolbox.cluster(tool).to_string()).collect()
    };
    let tools: BTreeSet<String> = near.iter().flat_map(|s| tools_of(s)).collect();
    let unseen_tools = draw(tools, shares.unseen_tool);
    let (unseen, seen): (Vec<&Sample>, Vec<&Sample>) = near.into_iter().partition(|s| !tools_of(s).is_disjoint(&unseen_tools));
    let mut splits = BTreeMap::new();
    splits.extend(far.iter().map(|s| (s.id.clone(), Split::UnseenServer)));
    splits.extend(unseen.iter().map(|s| (s.id.clone(), Split::UnseenTool)));
    // A sample may be held out of a tool only while another of the same tool is left to train on.
    let mut left: HashMap<String, usize> = HashMap::new();
    for tool in seen.iter().flat_map(|s| tools_of(s)) {
        *left.entry(tool).or_default() += 1;
    }
    let mut wanted = (shares.seen_tool * seen.len() as f64).round() as usize;
    let mut order: Vec<&Sample> = seen;
    order.sort_by_cached_key(|s| sha256_hex(format!("split\n{}", s.id)));
    for sample in order {
        let tools = tools_of(sample);
        let hold = wanted > 0 && tools.iter().all(|tool| left.get(tool).is_some_and(|count| *count > 1));
        if hold {
            tools.into_iter().for_each(|tool| *left.entry(tool).or_default() -= 1);
            wanted -= 1;
        }
        splits.insert(sample.id.clone(), if hold { Split::SeenTool } else { Split::Train });
    }
    // A copy of a tool of a held-out server is that tool, wherever it is.
    let far_tools = far.iter().flat_map(|s| s.about()).filter_map(|id| toolbox.get(id));
    let far_tools = far_tools.filter(|tool| unseen_servers.contains(toolbox.server_cluster(&tool.server_id).as_str()));
    let tools = far_tools.map(|tool| toolbox.cluster(tool).clone()).chain(unseen_tools.into_iter().map(ClusterId)).collect();
    Assigned { splits, servers: unseen_servers.into_iter().map(ServerId).collect(), tools }
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
    use mcpmill_core::record::{SampleKind, Tool};
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
            withheld: vec![],
            server_ids: vec![tool.server_id.clone()],
            language: "en".into(),
            instruction: String::new(),
            messages: vec![],
            lineage: vec![],
        };
        let samples = all.iter().flat_map(|t| (0..each).map(move |i| sample(t, i))).collect();
        (Toolbox::new(all), samples)
    }

    const SHARES: Shares = Shares { unseen_server: 0.2, unseen_tool: 0.2, seen_tool: 0.2 };

    fn split(toolbox: &Toolbox, samples: &[Sample]) -> BTreeMap<SampleId, Split> {
        assign(&samples.iter().collect::<Vec<_>>(), toolbox, &SHARES).splits
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

    #[test]
    fn a_sample_of_several_servers_or_tools_is_held_out_with_any_of_them() {
        let (toolbox, mut samples) = world(10, 5, 3);
        let tools: Vec<Tool> = toolbox.all().to_vec();
        for i in 0..40 {
            let (a, b) = (&tools[i], &tools[(i * 7 + 11) % tools.len()]);
            let mut sample = samples[0].clone();
            sample.id = SampleId::of(&("several", i));
            let about = vec![a.id.clone(), b.id.clone()];
            // Every fourth withholds its tools.
            (sample.tool_ids, sample.withheld) = if i % 4 == 0 { (vec![], about) } else { (about, vec![]) };
            sample.server_ids = vec![a.server_id.clone(), b.server_id.clone()];
            samples.push(sample);
        }
        let assigned = assign(&samples.iter().collect::<Vec<_>>(), &toolbox, &SHARES);
        assert_eq!(assigned.splits.len(), samples.len());
        assert!(samples.iter().filter(|s| assigned.splits[&s.id] == Split::Train).count() > 40);
        for sample in samples.iter().filter(|s| matches!(assigned.splits[&s.id], Split::Train | Split::SeenTool)) {
            assert!(sample.server_ids.iter().all(|server| !assigned.servers.contains(server)));
            let held = |id| assigned.tools.contains(toolbox.cluster(toolbox.get(id).unwrap()));
            assert!(!sample.about().any(held), "{sample:?}");
        }
    }
}

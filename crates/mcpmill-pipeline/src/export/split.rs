//! Splits that hold out tools and servers honestly: copies of a server go together.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Display,
};

use mcpmill_core::{
    canonical::sha256_hex,
    id::{ClusterId, SampleId, ServerId},
    record::{Message, Sample, Split},
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
    /// The split of every sample that has one.
    pub splits: BTreeMap<SampleId, Split>,
    /// Samples of no split: what they ask is asked in a split of unseen tools or servers, too, so that to train on them would
    /// give it away.
    pub copies: BTreeSet<SampleId>,
    /// Held-out servers, as the clusters of their copies.
    pub servers: BTreeSet<ServerId>,
    /// Held-out tools, as the clusters of their copies.
    pub tools: BTreeSet<ClusterId>,
}

/// Assigns every sample to a split: a pure function of the samples, the tools and the shares. A sample of several
/// servers or tools, those that are withheld too, is held out with any of them. A copy of a tool of a held-out server is
/// that tool, wherever it is. One request is never both trained on and held out.
pub fn assign(samples: &[&Sample], toolbox: &Toolbox, shares: &Shares) -> Assigned {
    let samples = described(samples, toolbox);
    let unseen_servers = draw(samples.iter().flat_map(|s| s.servers.iter().copied()).collect(), shares.unseen_server);
    let (far, near): (Vec<&Described>, Vec<&Described>) = samples.iter().partition(|s| !s.servers.is_disjoint(&unseen_servers));
    let far_tools = far.iter().flat_map(|s| &s.tools).filter(|(_, server)| unseen_servers.contains(*server));
    let mut unseen_tools: BTreeSet<&ClusterId> = far_tools.map(|(tool, _)| *tool).collect();
    let (mut unseen, near): (Vec<&Described>, Vec<&Described>) = near.into_iter().partition(|s| s.is_about(&unseen_tools));
    unseen_tools = draw(near.iter().flat_map(|s| s.clusters()).collect(), shares.unseen_tool);
    let (more, near): (Vec<&Described>, Vec<&Described>) = near.into_iter().partition(|s| s.is_about(&unseen_tools));
    unseen.extend(more);
    let asked: BTreeSet<usize> = far.iter().chain(&unseen).map(|s| s.request).collect();
    let (copies, near): (Vec<&Described>, Vec<&Described>) = near.into_iter().partition(|s| asked.contains(&s.request));
    let mut splits: BTreeMap<SampleId, Split> = hold_back(&near, shares.seen_tool);
    splits.extend(far.iter().map(|s| (s.id.clone(), Split::UnseenServer)));
    splits.extend(unseen.iter().map(|s| (s.id.clone(), Split::UnseenTool)));
    // What no training row is about must not be offered there either.
    let trained_servers: BTreeSet<&ServerId> = near.iter().flat_map(|s| s.servers.iter().copied()).collect();
    let trained_tools: BTreeSet<&ClusterId> = near.iter().flat_map(|s| s.clusters()).collect();
    let servers = far.iter().flat_map(|s| s.servers.iter().copied()).filter(|server| !trained_servers.contains(server));
    let tools = far.iter().chain(&unseen).flat_map(|s| s.clusters()).filter(|tool| !trained_tools.contains(tool));
    Assigned {
        copies: copies.into_iter().map(|s| s.id.clone()).collect(),
        servers: servers.cloned().collect(),
        tools: tools.cloned().collect(),
        splits,
    }
}

/// A sample, by the clusters it belongs to.
struct Described<'a> {
    id: &'a SampleId,
    servers: BTreeSet<&'a ServerId>,
    /// Clusters of its tools, each with that of the tool's server.
    tools: BTreeSet<(&'a ClusterId, &'a ServerId)>,
    /// The cluster of what is asked.
    request: usize,
}

impl<'a> Described<'a> {
    fn clusters(&self) -> impl Iterator<Item = &'a ClusterId> {
        self.tools.iter().map(|(tool, _)| *tool)
    }

    fn is_about(&self, tools: &BTreeSet<&ClusterId>) -> bool {
        self.clusters().any(|tool| tools.contains(tool))
    }
}

fn described<'a>(samples: &[&'a Sample], toolbox: &'a Toolbox) -> Vec<Described<'a>> {
    let requests: Vec<&str> = samples.iter().map(|s| request(&s.messages).unwrap_or(&s.instruction)).collect();
    let clustered = samples.iter().zip(clusters(&requests));
    clustered
        .map(|(sample, request)| {
            let tools = sample.about().filter_map(|id| toolbox.get(id));
            Described {
                id: &sample.id,
                servers: sample.server_ids.iter().map(|server| toolbox.server_cluster(server)).collect(),
                tools: tools.map(|tool| (toolbox.cluster(tool), toolbox.server_cluster(&tool.server_id))).collect(),
                request,
            }
        })
        .collect()
}

/// Holds some of `samples` back for `seen_tool`, the rest is trained on. What asks the same goes together, and a tool is
/// held out only while another sample of it is left to train on.
fn hold_back(samples: &[&Described], share: f64) -> BTreeMap<SampleId, Split> {
    let mut left: HashMap<&ClusterId, usize> = HashMap::new();
    let mut units: BTreeMap<usize, Vec<&Described>> = BTreeMap::new();
    for sample in samples {
        sample.clusters().for_each(|tool| *left.entry(tool).or_default() += 1);
        units.entry(sample.request).or_default().push(sample);
    }
    let mut order: Vec<Vec<&Described>> = units.into_values().collect();
    let place = |sample: &&Described| sha256_hex(format!("split\n{}", sample.id));
    order.sort_by_cached_key(|unit| unit.iter().map(place).min());
    let mut wanted = (share * samples.len() as f64).round() as usize;
    let mut splits = BTreeMap::new();
    for unit in order {
        let mut takes: HashMap<&ClusterId, usize> = HashMap::new();
        unit.iter().flat_map(|s| s.clusters()).for_each(|tool| *takes.entry(tool).or_default() += 1);
        let hold = wanted >= unit.len() && takes.iter().all(|(tool, count)| left.get(tool).is_some_and(|all| all > count));
        if hold {
            takes.into_iter().for_each(|(tool, count)| *left.entry(tool).or_default() -= count);
            wanted -= unit.len();
        }
        let split = if hold { Split::SeenTool } else { Split::Train };
        splits.extend(unit.into_iter().map(|s| (s.id.clone(), split)));
    }
    splits
}

/// What a conversation asks first.
pub(super) fn request(messages: &[Message]) -> Option<&str> {
    messages.iter().find_map(|message| match message {
        Message::User { content } => Some(content.as_str()),
        _ => None,
    })
}

/// The cluster of every request: equal words in equal order are one request, however they are written.
pub(super) fn clusters(requests: &[&str]) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let cluster = |(at, request): (usize, &&str)| {
        let words: Vec<String> =
            request.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
        // Without a word there is nothing to have in common.
        if words.is_empty() { at } else { *seen.entry(words.join(" ")).or_insert(at) }
    };
    requests.iter().enumerate().map(cluster).collect()
}

/// The first by hash, as many as the share asks for; a share above 0 takes at least one of two or more.
fn draw<T: Ord + Copy + Display>(names: BTreeSet<T>, share: f64) -> BTreeSet<T> {
    let wanted = (share * names.len() as f64).round() as usize;
    let wanted = if share > 0.0 && names.len() > 1 { wanted.clamp(1, names.len() - 1) } else { 0 };
    let mut order: Vec<T> = names.into_iter().collect();
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

    fn asking(mut sample: Sample, text: &str) -> Sample {
        text.clone_into(&mut sample.instruction);
        sample
    }

    #[test]
    fn one_request_is_never_trained_on_and_held_out() {
        let (toolbox, samples) = world(10, 5, 4);
        // Every request is asked of several tools, in another writing.
        let ask = |(at, sample): (usize, Sample)| {
            let text = format!("Please do {}", at % 120);
            asking(sample, &if at % 2 == 0 { text.to_uppercase() + "!" } else { text })
        };
        let samples: Vec<Sample> = samples.into_iter().enumerate().map(ask).collect();
        let assigned = assign(&samples.iter().collect::<Vec<_>>(), &toolbox, &SHARES);
        let asked = |split: Split| -> BTreeSet<String> {
            let of = samples.iter().filter(|s| assigned.splits.get(&s.id) == Some(&split));
            of.map(|s| s.instruction.to_lowercase().replace('!', "")).collect()
        };
        let held: BTreeSet<String> =
            [Split::SeenTool, Split::UnseenTool, Split::UnseenServer].into_iter().flat_map(asked).collect();
        assert!(held.is_disjoint(&asked(Split::Train)));
        assert!(!asked(Split::SeenTool).is_empty() && asked(Split::Train).len() > 40);
        assert_eq!(assigned.splits.len() + assigned.copies.len(), samples.len());
        assert!(!assigned.copies.is_empty() && assigned.copies.iter().all(|id| !assigned.splits.contains_key(id)));
    }

    #[test]
    fn a_copy_of_a_tool_of_a_held_out_server_is_not_trained_on() {
        let (toolbox, samples) = world(10, 5, 3);
        // The first tool of every server is one and the same.
        let shared = |t: &Tool| Tool {
            cluster_id: ClusterId(if t.name.ends_with("_0") { "clu_all".into() } else { t.name.clone() }),
            ..t.clone()
        };
        let toolbox = Toolbox::new(toolbox.all().iter().map(shared).collect());
        let splits = split(&toolbox, &samples);
        let first = samples.iter().filter(|s| toolbox.get(&s.tool_ids[0]).unwrap().name.ends_with("_0"));
        let found: BTreeSet<Split> = first.map(|s| splits[&s.id]).collect();
        assert_eq!(found, BTreeSet::from([Split::UnseenTool, Split::UnseenServer]));
    }

    #[test]
    fn requests_are_equal_by_their_words() {
        let texts = ["Read a.txt!", "read A txt", "read b.txt", "?", "?", "", "日本 語"];
        assert_eq!(clusters(&texts), [0, 0, 2, 3, 4, 5, 6]);
    }
}

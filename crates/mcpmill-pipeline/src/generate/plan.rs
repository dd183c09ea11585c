//! The plan: which tools get how many samples of which kind. A pure function of the tools and the settings.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use mcpmill_core::{
    canonical::content_hash,
    id::{SampleId, ServerId, ToolId},
    naming::alias,
    record::{Row, SampleKind, Tool},
};
use serde::Serialize;

use super::{
    chain::{Chains, Link},
    forms,
    kinds::{Kinds, Languages},
};

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
    /// Its id: hash of the first tool, kind and place.
    pub id: SampleId,
    /// What kind of conversation it becomes.
    pub kind: SampleKind,
    /// The tool to call, or to call first, or that is asked for and not there.
    pub tool: Tool,
    /// Further tools: of the same turn, of the next link, of the turns to come.
    pub others: Vec<Tool>,
    /// The parameter that a chain hands its first answer to.
    pub link: Option<String>,
    /// The how-manieth sample of the tool and kind.
    pub index: usize,
    /// Samples planned for the tool and kind.
    pub of: usize,
    /// The language of its turns, as ISO 639-1 names it.
    pub language: String,
}

impl Row for Planned {
    fn row_id(&self) -> &str {
        match self {
            Self::Sample(seed) => seed.id.as_str(),
            Self::Nothing { tool, .. } => tool,
        }
    }
}

/// How much is planned.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Samples in all.
    pub samples: usize,
    /// Samples of one tool and kind.
    pub per_tool: usize,
    /// Shares of the kinds.
    pub kinds: &'a Kinds,
    /// Shares of the languages.
    pub languages: &'a Languages,
    /// Tools that are never called: they carry no kind that is made of their answers.
    pub refused: &'a HashSet<ToolId>,
}

/// Rows, and what could not be planned as it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Tools without samples first, then the samples.
    pub rows: Vec<Planned>,
    /// In words, for people.
    pub notes: Vec<String>,
}

/// Plans samples of all kinds by their shares, taking tools from all servers in turn so that a small run sees many
/// servers, and other tools first for every kind. Of byte-identical tools one is used. Every tool is in the plan, those
/// without samples with the reason. What no tool can carry of a kind goes to single calls, where these are wanted.
pub fn plan(tools: Vec<Tool>, wanted: &Wanted<'_>) -> Plan {
    let mut rows = Vec::new();
    let mut seen = HashSet::new();
    let mut distinct = Vec::new();
    let mut tools = tools;
    // Of copies, one that may be called goes before one that may not.
    tools.sort_by_key(|tool| (wanted.refused.contains(&tool.id), tool.id.clone()));
    for tool in tools {
        if seen.insert(tool.cluster_id.clone()) {
            distinct.push(tool);
        } else {
            rows.push(Planned::Nothing { tool: tool.id.0, reason: "twin" });
        }
    }
    distinct.sort_by(|a: &Tool, b| a.id.cmp(&b.id));
    let mut counts = wanted.kinds.allot(wanted.samples);
    let mut notes = Vec::new();
    let mut seeds = Vec::new();
    let carriers = Carriers::new(&distinct, wanted.refused);
    for kind in SampleKind::ALL.into_iter().filter(|kind| *kind != SampleKind::Single) {
        let asked = counts.get(&kind).copied().unwrap_or_default();
        let found = carriers.seeds(kind, asked, wanted.per_tool.max(1));
        if found.len() < asked {
            let short = asked - found.len();
            let to_single = wanted.kinds.share(SampleKind::Single) > 0.0;
            let instead = if to_single { ", single calls take their place" } else { "" };
            notes.push(format!(
                "{} of {asked} samples of kind `{}` are planned, the tools carry no more{instead}",
                found.len(),
                kind.as_str()
            ));
            *counts.entry(SampleKind::Single).or_default() += if to_single { short } else { 0 };
        }
        seeds.extend(found);
    }
    let singles = carriers.singles(counts.get(&SampleKind::Single).copied().unwrap_or_default(), wanted.per_tool.max(1));
    let seeds: Vec<Seed> = singles.into_iter().chain(seeds).map(|s| Seed { language: wanted.languages.of(&s.id), ..s }).collect();
    let used: HashSet<&ToolId> = seeds.iter().flat_map(|s| s.others.iter().chain([&s.tool])).map(|t| &t.id).collect();
    let unused = in_turn(&distinct, "plan").into_iter().filter(|tool| !used.contains(&tool.id));
    rows.extend(unused.map(|tool| Planned::Nothing { tool: tool.id.0.clone(), reason: "beyond-plan" }));
    // Tools without samples end at once: told first, they do not blur the time that is left.
    rows.extend(seeds.into_iter().map(|seed| Planned::Sample(Box::new(seed))));
    Plan { rows, notes }
}

/// Tools of all servers in turn. Within a server the order is by hash, so that it is neither alphabetical nor the
/// server's own; `salt` makes it another one.
fn in_turn<'a>(tools: &'a [Tool], salt: &str) -> Vec<&'a Tool> {
    let mut by_server: BTreeMap<&ServerId, Vec<&Tool>> = BTreeMap::new();
    tools.iter().for_each(|tool| by_server.entry(&tool.server_id).or_default().push(tool));
    let mut queues: Vec<Vec<&Tool>> = by_server.into_values().collect();
    for queue in &mut queues {
        queue.sort_by_cached_key(|tool| content_hash(&(salt, &tool.id)));
    }
    let longest = queues.iter().map(Vec::len).max().unwrap_or_default();
    (0..longest).flat_map(|round| queues.iter().filter_map(move |queue| queue.get(round).copied()).collect::<Vec<_>>()).collect()
}

/// Which tools can carry which kind.
struct Carriers<'a> {
    tools: &'a [Tool],
    by_id: HashMap<&'a ToolId, &'a Tool>,
    by_server: HashMap<&'a ServerId, Vec<&'a Tool>>,
    chains: Chains<'a>,
    refused: &'a HashSet<ToolId>,
}

/// One tool follows in one of so many chains at most, and in two where that is fewer: what fits everything would be in
/// all of them.
const ONE_IN: usize = 10;

/// Chains of this score and more are sure.
const SURE: f64 = 0.7;
/// How often a sure pair is planned before one that is not.
const SURE_AGAIN: usize = 3;

/// A tool that can follow another, through which parameter, and how sure that is.
struct Follower<'a> {
    tool: &'a Tool,
    parameter: String,
    score: f64,
}

/// Which tools follow in chains so far.
#[derive(Default)]
struct Seconds<'a> {
    most: usize,
    counts: HashMap<&'a ToolId, usize>,
    pairs: HashMap<(&'a ToolId, &'a ToolId), usize>,
}

impl<'a> Seconds<'a> {
    /// Takes `next` behind `first`, if it is not there `times` already and not behind too many.
    fn take(&mut self, first: &'a Tool, next: &'a Tool, times: usize) -> bool {
        let count = self.counts.entry(&next.id).or_default();
        let pair = self.pairs.entry((&first.id, &next.id)).or_default();
        let free = *count < self.most && *pair < times;
        *count += usize::from(free);
        *pair += usize::from(free);
        free
    }
}

/// Further turns of a conversation, beside the first.
const MORE_TURNS: usize = 3;

impl<'a> Carriers<'a> {
    fn new(tools: &'a [Tool], refused: &'a HashSet<ToolId>) -> Self {
        let mut by_server: HashMap<&ServerId, Vec<&Tool>> = HashMap::new();
        tools.iter().for_each(|tool| by_server.entry(&tool.server_id).or_default().push(tool));
        let by_id = tools.iter().map(|tool| (&tool.id, tool)).collect();
        let called: Vec<&Tool> = tools.iter().filter(|tool| !refused.contains(&tool.id)).collect();
        Self { tools, by_id, by_server, chains: Chains::new(&called), refused }
    }

    /// Whether calls of a tool are made, so that there are answers to go on with.
    fn is_called(&self, tool: &Tool) -> bool {
        !self.refused.contains(&tool.id)
    }

    /// Single calls: all samples of a tool in a row, so that one question brings several requests.
    fn singles(&self, samples: usize, per_tool: usize) -> Vec<Seed> {
        let mut left = samples;
        let mut seeds = Vec::new();
        for tool in in_turn(self.tools, "plan") {
            let of = per_tool.min(left);
            left -= of;
            seeds.extend((0..of).map(|index| seed(tool, SampleKind::Single, index, of)));
        }
        seeds
    }

    /// Samples of another kind: one of every tool that carries it, then a second one.
    fn seeds(&self, kind: SampleKind, samples: usize, per_tool: usize) -> Vec<Seed> {
        if kind == SampleKind::Chain {
            return self.chained(samples, per_tool);
        }
        let mut seeds = Vec::new();
        let mut able = if samples > 0 { in_turn(self.tools, kind.as_str()) } else { Vec::new() };
        for index in 0..per_tool {
            // A tool that carries no first sample carries no second one.
            let mut still = Vec::new();
            for tool in able {
                if seeds.len() == samples {
                    return seeds;
                }
                if let Some(seed) = self.carry(tool, kind, (index, per_tool)) {
                    seeds.push(seed);
                    still.push(tool);
                }
            }
            able = still;
        }
        seeds
    }

    /// Chains: those that are sure first, all that a tool carries of them and each several times, then the others.
    fn chained(&self, samples: usize, per_tool: usize) -> Vec<Seed> {
        let mut seeds = Vec::new();
        let mut seconds = Seconds { most: samples.div_ceil(ONE_IN).max(2), ..Seconds::default() };
        let firsts = if samples > 0 { in_turn(self.tools, SampleKind::Chain.as_str()) } else { Vec::new() };
        let links = firsts
            .into_iter()
            .filter(|tool| forms::is_plain(tool) && self.is_called(tool))
            .map(|tool| (tool, self.followers(tool), 0));
        let mut links: Vec<(&Tool, Vec<Follower<'a>>, usize)> = links.filter(|(_, followers, _)| !followers.is_empty()).collect();
        let again = (1..=SURE_AGAIN).map(|times| (SURE, times)).chain([(0.0, 1)]);
        for (least, times) in again {
            for _ in 0..per_tool {
                for (tool, followers, count) in links.iter_mut().filter(|(_, _, count)| *count < per_tool) {
                    if seeds.len() == samples {
                        return seeds;
                    }
                    let able = followers.iter().filter(|follower| follower.score >= least);
                    let Some(next) = able.into_iter().find(|follower| seconds.take(tool, follower.tool, times)) else { continue };
                    let seed = seed(tool, SampleKind::Chain, *count, per_tool);
                    seeds.push(Seed { others: vec![next.tool.clone()], link: Some(next.parameter.clone()), ..seed });
                    *count += 1;
                }
            }
        }
        seeds
    }

    /// What can follow a tool and is called with plain values, the surest first.
    fn followers(&self, tool: &Tool) -> Vec<Follower<'a>> {
        let links = self.chains.after(tool).into_iter();
        let follower =
            |link: Link| Some(Follower { tool: self.by_id.get(&link.tool)?, parameter: link.parameter, score: link.score });
        links.filter_map(follower).filter(|follower| forms::is_plain(follower.tool)).collect()
    }

    fn carry(&self, tool: &'a Tool, kind: SampleKind, (index, of): (usize, usize)) -> Option<Seed> {
        let schema = tool.schema();
        let plain = forms::is_plain(tool);
        let seed = seed(tool, kind, index, of);
        match kind {
            SampleKind::Single => Some(seed),
            SampleKind::Parallel => {
                let others = if forms::is_closed(tool) { self.beside(tool, index) } else { Vec::new() };
                let again = plain && !forms::said(&schema).is_empty();
                match (again, others) {
                    // Alternately the same tool again, and others of its server.
                    (true, others) if index.is_multiple_of(2) || others.is_empty() => {
                        let times = 1 + usize::from(content_hash(&(&seed.id, "times")).as_bytes()[0].is_multiple_of(3));
                        Some(Seed { others: vec![tool.clone(); times], ..seed })
                    }
                    (_, others) if plain && !others.is_empty() => Some(Seed { others, ..seed }),
                    _ => None,
                }
            }
            // Two tools carry it together.
            SampleKind::Chain => None,
            SampleKind::MultiTurn | SampleKind::Recover if !self.is_called(tool) => None,
            SampleKind::MultiTurn => {
                let others = self.later(tool, &seed.id);
                (!others.is_empty()).then_some(Seed { others, ..seed })
            }
            // Something else must be there to be offered.
            SampleKind::NoTool => (self.tools.len() > 2).then_some(seed),
            SampleKind::Ask => (plain && !forms::said(&schema).is_empty()).then_some(seed),
            // What makes a thing makes it under a wrong name, too.
            SampleKind::Recover => (!forms::breakable(&schema).is_empty() && !forms::makes(tool)).then_some(seed),
        }
    }

    /// One tool of the same server to be called in the same turn, another for another sample.
    fn beside(&self, tool: &Tool, index: usize) -> Vec<Tool> {
        let mut others = self.neighbours(tool);
        others.retain(|other| forms::is_plain(other) && forms::is_closed(other));
        others.sort_by_cached_key(|other| content_hash(&("beside", &tool.id, &other.id)));
        others.get(index % others.len().max(1)).map(|other| (*other).clone()).into_iter().collect()
    }

    /// Tools of the turns to come, one to three of the same server: first what follows by its parameters.
    fn later(&self, tool: &Tool, id: &SampleId) -> Vec<Tool> {
        let follows: BTreeSet<ToolId> = self.chains.after(tool).into_iter().map(|link| link.tool).collect();
        let mut others = self.neighbours(tool);
        others.retain(|other| self.is_called(other));
        others.sort_by_cached_key(|other| (!follows.contains(&other.id), content_hash(&("later", id, &other.id))));
        let more = 1 + usize::from(content_hash(&(id, "turns")).as_bytes()[0]) % MORE_TURNS;
        others.into_iter().take(more).cloned().collect()
    }

    fn neighbours(&self, tool: &Tool) -> Vec<&'a Tool> {
        let own = alias(&tool.name);
        let others = self.by_server.get(&tool.server_id).into_iter().flatten().copied();
        others.filter(|other| other.id != tool.id && alias(&other.name) != own).collect()
    }
}

fn seed(tool: &Tool, kind: SampleKind, index: usize, of: usize) -> Seed {
    Seed {
        id: SampleId::of(&(&tool.id, kind, index)),
        kind,
        tool: tool.clone(),
        others: Vec::new(),
        link: None,
        index,
        of,
        language: super::kinds::ENGLISH.into(),
    }
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

    /// Tools that carry every kind: a finder and what works on the found thing.
    fn rich(servers: usize) -> Vec<Tool> {
        let on = |s: usize, name: &str, parameter: &str| {
            let schema = json!({"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]});
            Tool { server_id: ServerId(format!("srv_{s}")), ..tool(&format!("{name}_{s}"), &format!("does {name} {s}"), schema) }
        };
        let server = |s: usize| [on(s, "list_notes", "folder"), on(s, "read_note", "note_id"), on(s, "drop_note", "note_id")];
        (0..servers).flat_map(server).collect()
    }

    fn singles(tools: Vec<Tool>, samples: usize, per_tool: usize) -> Vec<Planned> {
        mixed(tools, samples, per_tool, &Kinds::only(SampleKind::Single)).rows
    }

    fn mixed(tools: Vec<Tool>, samples: usize, per_tool: usize, kinds: &Kinds) -> Plan {
        plan(tools, &Wanted { samples, per_tool, kinds, languages: &Languages::english(), refused: &HashSet::new() })
    }

    fn seeds(rows: &[Planned]) -> Vec<&Seed> {
        fn seed(planned: &Planned) -> Option<&Seed> {
            match planned {
                Planned::Sample(seed) => Some(seed),
                Planned::Nothing { .. } => None,
            }
        }
        rows.iter().filter_map(seed).collect()
    }

    fn servers(planned: &[Planned]) -> HashSet<String> {
        seeds(planned).into_iter().map(|seed| seed.tool.server_id.to_string()).collect()
    }

    #[test]
    fn a_small_plan_sees_many_servers_and_accounts_for_every_tool() {
        let planned = singles(tools(10, 7), 20, 2);
        let count = seeds(&planned).len();
        assert_eq!(count, 20);
        assert_eq!(servers(&planned).len(), 10);
        assert_eq!(planned.len() - count, 60, "the other tools are accounted for");
        let ids: HashSet<&str> = planned.iter().map(Row::row_id).collect();
        assert_eq!(ids.len(), planned.len());
    }

    #[test]
    fn what_fits_everything_follows_in_few_chains() {
        let on = |s: usize, name: &str, parameter: &str| {
            let schema = json!({"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]});
            Tool { server_id: ServerId(format!("srv_{s}")), ..tool(name, &format!("does {name}"), schema) }
        };
        let mut tools: Vec<Tool> = (0..30).map(|s| on(s, &format!("read_page_{s}"), "address")).collect();
        tools.push(on(99, "keep", "text"));
        let seconds = |samples: usize| {
            let planned = mixed(tools.clone(), samples, 3, &Kinds::only(SampleKind::Chain)).rows;
            seeds(&planned).iter().filter(|seed| seed.others.iter().any(|next| next.name == "keep")).count()
        };
        assert_eq!((seconds(1), seconds(20), seconds(30)), (1, 2, 3));
    }

    #[test]
    fn sure_chains_go_before_others() {
        let on = |s: usize, name: &str, parameter: &str| {
            let schema = json!({"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]});
            Tool { server_id: ServerId(format!("srv_{s}")), ..tool(name, &format!("does {name}"), schema) }
        };
        let mut tools: Vec<Tool> = (0..9).map(|s| on(s, &format!("read_page_{s}"), "address")).collect();
        tools.extend([
            on(20, "keep", "text"),
            on(21, "list_notes", "folder"),
            on(21, "read_note", "note_id"),
            on(21, "drop_note", "note_id"),
        ]);
        let planned = mixed(tools, 6, 4, &Kinds::only(SampleKind::Chain)).rows;
        let firsts: Vec<&str> = seeds(&planned).iter().map(|seed| seed.tool.name.as_str()).collect();
        assert_eq!(firsts[..4], ["list_notes"; 4], "each pair twice: {firsts:?}");
        assert!(firsts[4..].iter().all(|first| first.starts_with("read_page")), "{firsts:?}");
        assert_eq!(seeds(&planned).iter().map(|seed| &seed.id).collect::<HashSet<_>>().len(), 6);
    }

    #[test]
    fn what_makes_a_thing_is_no_tool_to_fail_on_its_name() {
        let on = |name: &str| {
            let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
            tool(name, &format!("does {name}"), schema)
        };
        let planned = mixed(vec![on("write_file"), on("read_file")], 2, 1, &Kinds::only(SampleKind::Recover)).rows;
        assert_eq!(seeds(&planned).iter().map(|seed| seed.tool.name.as_str()).collect::<Vec<_>>(), ["read_file"]);
    }

    #[test]
    fn the_order_of_the_input_does_not_matter() {
        let mut shuffled = tools(5, 4);
        shuffled.reverse();
        assert_eq!(singles(tools(5, 4), 9, 2), singles(shuffled, 9, 2));
    }

    #[test]
    fn twins_are_used_once() {
        let mut twins = tools(2, 1);
        twins[1].cluster_id = twins[0].cluster_id.clone();
        let planned = singles(twins, 9, 1);
        assert_eq!(planned.iter().filter(|p| matches!(p, Planned::Nothing { reason: "twin", .. })).count(), 1);
    }

    /// The plan as it was when there were single calls only, to hold the present one to it.
    fn before(mut tools: Vec<Tool>, samples: usize, per_tool: usize) -> Vec<(String, String)> {
        tools.sort_by(|a, b| a.id.cmp(&b.id));
        let mut by_server: BTreeMap<ServerId, Vec<Tool>> = BTreeMap::new();
        tools.into_iter().for_each(|tool| by_server.entry(tool.server_id.clone()).or_default().push(tool));
        let mut queues: Vec<Vec<Tool>> = by_server.into_values().collect();
        for queue in &mut queues {
            queue.sort_by_cached_key(|tool| std::cmp::Reverse(content_hash(&("plan", &tool.id))));
        }
        let (mut left, mut nothing, mut planned) = (samples, Vec::new(), Vec::new());
        while queues.iter().any(|q| !q.is_empty()) {
            for tool in queues.iter_mut().filter_map(Vec::pop) {
                if left == 0 {
                    nothing.push((tool.id.to_string(), "beyond-plan".to_owned()));
                    continue;
                }
                let of = per_tool.min(left);
                left -= of;
                let id = |index| SampleId::of(&(&tool.id, SampleKind::Single, index)).to_string();
                planned.extend((0..of).map(|index| (id(index), format!("{} {index}/{of}", tool.id))));
            }
        }
        nothing.into_iter().chain(planned).collect()
    }

    #[test]
    fn a_plan_of_single_calls_is_what_it_was_before_there_were_other_kinds() {
        for (servers, each, samples, per_tool) in [(3, 3, 5, 2), (10, 7, 20, 2), (4, 1, 100, 3), (1, 9, 9, 1), (5, 5, 24, 5)] {
            let planned = singles(tools(servers, each), samples, per_tool);
            let told = |p: &Planned| match p {
                Planned::Sample(seed) => (seed.id.to_string(), format!("{} {}/{}", seed.tool.id, seed.index, seed.of)),
                Planned::Nothing { tool, reason } => (tool.clone(), (*reason).to_owned()),
            };
            let now: Vec<(String, String)> = planned.iter().map(told).collect();
            assert_eq!(now, before(tools(servers, each), samples, per_tool));
        }
    }

    #[test]
    fn every_kind_is_planned_by_its_share_and_what_is_lacking_is_told() {
        let shares = "single = 4\nparallel = 1\nchain = 1\nmulti-turn = 1\nno-tool = 1\nask = 1\nrecover = 1";
        let kinds: Kinds = toml::from_str(shares).unwrap();
        let planned = mixed(rich(6), 40, 4, &kinds);
        assert_eq!(planned.notes, Vec::<String>::new());
        let count = |kind: SampleKind| seeds(&planned.rows).iter().filter(|seed| seed.kind == kind).count();
        assert_eq!(SampleKind::ALL.map(count), [16, 4, 4, 4, 4, 4, 4]);
        for seed in seeds(&planned.rows) {
            match seed.kind {
                SampleKind::Chain => {
                    assert!(seed.tool.name.starts_with("list_notes") && seed.link.as_deref() == Some("note_id"), "{seed:?}");
                }
                SampleKind::MultiTurn => assert!((1..=3).contains(&seed.others.len())),
                SampleKind::Parallel => assert!((1..=2).contains(&seed.others.len())),
                _ => assert!(seed.others.is_empty()),
            }
        }
        let ids: HashSet<&str> = planned.rows.iter().map(Row::row_id).collect();
        assert_eq!(ids.len(), planned.rows.len());
        assert_eq!(mixed(rich(6), 40, 4, &kinds), planned);
        let alone = singles(rich(6), 16, 4);
        assert_eq!(seeds(&alone), seeds(&planned.rows)[..16], "the single samples of a mix are those of a plan of them alone");

        // Tools without parameters carry next to nothing.
        let bare = mixed(tools(2, 2), 10, 9, &kinds);
        assert!(bare.notes.iter().any(|note| note.contains("0 of 1 samples of kind `ask`")), "{:?}", bare.notes);
        assert_eq!(seeds(&bare.rows).len(), 10, "single calls take the place");
    }

    #[test]
    fn what_is_never_called_is_in_no_kind_that_is_made_of_its_answers() {
        let tools = rich(3);
        let refused: HashSet<ToolId> =
            tools.iter().filter(|tool| tool.name.contains("drop")).map(|tool| tool.id.clone()).collect();
        for kind in [SampleKind::Chain, SampleKind::MultiTurn, SampleKind::Recover] {
            let kinds = Kinds::only(kind);
            let wanted = Wanted { samples: 12, per_tool: 4, kinds: &kinds, languages: &Languages::english(), refused: &refused };
            let rows = plan(tools.clone(), &wanted).rows;
            let used: Vec<&str> = seeds(&rows)
                .iter()
                .flat_map(|seed| seed.others.iter().chain([&seed.tool]))
                .map(|tool| tool.name.as_str())
                .collect();
            assert!(!used.is_empty() && !used.iter().any(|name| name.contains("drop")), "{kind:?} {used:?}");
        }
        let kinds = Kinds::only(SampleKind::Ask);
        let wanted = Wanted { samples: 9, per_tool: 1, kinds: &kinds, languages: &Languages::english(), refused: &refused };
        assert_eq!(seeds(&plan(tools, &wanted).rows).len(), 9, "a question back needs no answer of the tool");
    }

    #[test]
    fn languages_are_drawn_by_the_id() {
        let languages: Languages = toml::from_str("en = 1\nde = 1").unwrap();
        let kinds = Kinds::only(SampleKind::Single);
        let rows = plan(
            tools(9, 4),
            &Wanted { samples: 36, per_tool: 1, kinds: &kinds, languages: &languages, refused: &HashSet::new() },
        )
        .rows;
        let german = seeds(&rows).iter().filter(|seed| seed.language == "de").count();
        assert!((8..28).contains(&german), "{german}");
    }
}

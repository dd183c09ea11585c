//! Twins: tools and servers that are copies of each other, exact or near, and one keeper of each.
//!
//! Near tools are found by MinHash over shingles and banding, and believed only when the Jaccard index of
//! the shingles themselves says so. The outcome depends on the rows alone, not on their order or the number of threads.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mcpmill_core::{
    id::{ClusterId, ServerId},
    record::{Tool, Twin},
};
use rayon::prelude::*;

/// Jaccard index of shingles from which two tools are near.
const NEAR: f64 = 0.8;

/// Bands of a signature, and rows of a band: at [`NEAR`] a pair is missed with odds of one in 400,000.
const BANDS: usize = 24;
const ROWS: usize = 4;

/// Members of a bucket that are compared with its first few, so that a bucket of many costs no square.
const COMPARED: usize = 8;

/// Finds the twins among `tools`, by tool id; `licensed` says which servers have a known open licence.
pub fn twins(tools: &[Tool], licensed: impl Fn(&ServerId) -> bool) -> Vec<Twin> {
    let mut tools: Vec<&Tool> = tools.iter().collect();
    tools.sort_by(|a, b| a.id.cmp(&b.id));
    tools.dedup_by(|a, b| a.id == b.id);
    let near = near_tools(&tools);
    let servers = near_servers(&tools, &near);
    let mut keepers: BTreeMap<usize, usize> = BTreeMap::new();
    let worth = |i: usize| {
        let whole = tools[i].description_text().len() + tools[i].input_schema.len();
        (licensed(&tools[i].server_id), whole)
    };
    for (i, &first) in near.iter().enumerate() {
        let keeper = keepers.entry(first).or_insert(i);
        if worth(i) > worth(*keeper) {
            *keeper = i;
        }
    }
    let one = |(i, tool): (usize, &&Tool)| Twin {
        tool_id: tool.id.clone(),
        server_id: tool.server_id.clone(),
        exact_id: tool.cluster_id.clone(),
        near_id: ClusterId::of(&("near", &tools[near[i]].id)),
        server_cluster: servers[&tool.server_id].clone(),
        keeper: keepers[&near[i]] == i,
    };
    tools.iter().enumerate().map(one).collect()
}

/// The first member of every tool's near cluster, by place in `tools`.
fn near_tools(tools: &[&Tool]) -> Vec<usize> {
    let mut sets = Union::new(tools.len());
    let mut firsts: HashMap<&ClusterId, usize> = HashMap::new();
    for (i, tool) in tools.iter().enumerate() {
        sets.join(*firsts.entry(&tool.cluster_id).or_insert(i), i);
    }
    // Exact copies have one set of shingles; only the first of them is compared.
    let mut distinct: Vec<usize> = firsts.into_values().collect();
    distinct.sort_unstable();
    let shingled: Vec<(BTreeSet<u64>, Vec<u64>)> = distinct
        .par_iter()
        .map(|&i| {
            let shingles = shingles(tools[i]);
            let bands = bands(&shingles);
            (shingles, bands)
        })
        .collect();
    let mut buckets: BTreeMap<(usize, u64), Vec<usize>> = BTreeMap::new();
    for (place, (_, bands)) in shingled.iter().enumerate() {
        bands.iter().enumerate().for_each(|(band, hash)| buckets.entry((band, *hash)).or_default().push(place));
    }
    let pairs: BTreeSet<(usize, usize)> = buckets
        .values()
        .flat_map(|b| b.iter().enumerate().flat_map(move |(k, &x)| b[..k.min(COMPARED)].iter().map(move |&y| (y, x))))
        .collect();
    let pairs: Vec<(usize, usize)> = pairs.into_iter().collect();
    let close: Vec<&(usize, usize)> =
        pairs.par_iter().filter(|(a, b)| jaccard(&shingled[*a].0, &shingled[*b].0) >= NEAR).collect();
    close.into_iter().for_each(|&(a, b)| sets.join(distinct[a], distinct[b]));
    (0..tools.len()).map(|i| sets.first(i)).collect()
}

/// The cluster of every server, named by its smallest member: servers that share at least half of the smaller
/// one's tools, so that a fork with more tools stays with what it was forked from.
fn near_servers(tools: &[&Tool], near: &[usize]) -> BTreeMap<ServerId, ServerId> {
    let mut own: BTreeMap<&ServerId, BTreeSet<usize>> = BTreeMap::new();
    for (tool, &cluster) in tools.iter().zip(near) {
        own.entry(&tool.server_id).or_default().insert(cluster);
    }
    let servers: Vec<(&ServerId, BTreeSet<usize>)> = own.into_iter().collect();
    let mut offered_by: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, (_, clusters)) in servers.iter().enumerate() {
        clusters.iter().for_each(|c| offered_by.entry(*c).or_default().push(i));
    }
    let mut sets = Union::new(servers.len());
    for (i, (_, clusters)) in servers.iter().enumerate() {
        let others: BTreeSet<usize> = clusters.iter().flat_map(|c| &offered_by[c]).copied().filter(|o| *o > i).collect();
        let half = |o: &usize| clusters.intersection(&servers[*o].1).count() * 2 >= clusters.len().min(servers[*o].1.len());
        others.into_iter().filter(half).for_each(|other| sets.join(i, other));
    }
    (0..servers.len()).map(|i| (servers[i].0.clone(), servers[sets.first(i)].0.clone())).collect()
}

/// Pairs of words of the name and description, and each property with its type.
fn shingles(tool: &Tool) -> BTreeSet<u64> {
    let text = format!("{} {}", tool.name, tool.description_text()).to_lowercase();
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).flat_map(parts).collect();
    let mut out: BTreeSet<u64> = words.windows(2).map(|pair| hash(&["words", pair[0], pair[1]])).collect();
    out.extend(words.first().map(|word| hash(&["word", word])));
    let schema = tool.schema();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        out.insert(hash(&["property", name, &property["type"].to_string()]));
    }
    out.insert(hash(&["tool"]));
    out
}

/// A word; in scripts that put no space between words, its letters.
fn parts(word: &str) -> Vec<&str> {
    let spaced = |c: char| c < '\u{2e80}';
    if word.chars().all(spaced) { vec![word] } else { word.split_inclusive(|_| true).collect() }
}

/// One hash a band of the MinHash signature.
fn bands(shingles: &BTreeSet<u64>) -> Vec<u64> {
    let least = |seed: usize| shingles.iter().map(|s| mixed(s ^ mixed(seed as u64 + 1))).min().unwrap_or_default();
    (0..BANDS).map(|band| (0..ROWS).fold(0, |sum, row| mixed(sum ^ least(band * ROWS + row)))).collect()
}

/// FNV-1a over texts and what ends them, spread over all bits. Written out because clusters are kept on
/// disk: the same in every release, on every machine.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0xff]));
    mixed(bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
}

/// The last step of SplitMix64.
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn jaccard<T: Ord>(a: &BTreeSet<T>, b: &BTreeSet<T>) -> f64 {
    let shared = a.intersection(b).count();
    let all = a.len() + b.len() - shared;
    if all == 0 { 1.0 } else { shared as f64 / all as f64 }
}

/// Sets that are joined, each named by its smallest member.
struct Union(Vec<usize>);

impl Union {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn first(&mut self, mut i: usize) -> usize {
        while self.0[i] != i {
            self.0[i] = self.0[self.0[i]];
            i = self.0[i];
        }
        i
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.first(a), self.first(b));
        self.0[a.max(b)] = a.min(b);
    }
}

#[cfg(test)]
mod tests {
    use mcpmill_core::id::ToolId;
    use serde_json::json;

    use super::*;
    use crate::card::tests::tool;

    const LONG: &str = "Searches the whole index of the library for books and papers by title author subject and year and returns \
         at most fifty of them with their shelf marks";

    fn on(server: &str, name: &str, description: &str) -> Tool {
        let schema = json!({"type": "object", "properties": {"query": {"type": "string"}, "most": {"type": "integer"}}});
        let mut tool = tool(name, description, schema);
        tool.server_id = ServerId(server.into());
        tool.id = ToolId::of(&(server, name, description));
        tool
    }

    fn world() -> Vec<Tool> {
        vec![
            on("srv_a", "search", LONG),
            on("srv_b", "search", LONG),
            on("srv_c", "search", &format!("{LONG} today")),
            on("srv_d", "delete", "Removes a book from the shelf for good"),
        ]
    }

    #[test]
    fn copies_and_near_copies_are_one_cluster_with_one_keeper() {
        let found = twins(&world(), |server| server.as_str() == "srv_b");
        let of = |server: &str| found.iter().find(|t| t.server_id.as_str() == server).unwrap();
        assert_eq!(of("srv_a").exact_id, of("srv_b").exact_id);
        assert_ne!(of("srv_a").exact_id, of("srv_c").exact_id);
        assert_eq!(of("srv_a").near_id, of("srv_c").near_id);
        assert_ne!(of("srv_a").near_id, of("srv_d").near_id);
        assert_eq!(of("srv_c").server_cluster.as_str(), "srv_a");
        assert_eq!(of("srv_d").server_cluster.as_str(), "srv_d");
        let keepers: BTreeSet<&str> = found.iter().filter(|t| t.keeper).map(|t| t.server_id.as_str()).collect();
        assert_eq!(keepers, BTreeSet::from(["srv_b", "srv_d"]), "the licensed one is kept");
        let unlicensed = twins(&world(), |_| false);
        assert!(unlicensed.iter().any(|t| t.keeper && t.server_id.as_str() == "srv_c"), "then the most complete");
    }

    #[test]
    fn neither_order_nor_threads_matter() {
        let mut tools: Vec<Tool> =
            (0..60).map(|i| on(&format!("srv_{}", i % 7), "search", &format!("{LONG} {}", i / 4))).collect();
        let before = twins(&tools, |_| true);
        tools.reverse();
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(one.install(|| twins(&tools, |_| true)), before);
    }
}

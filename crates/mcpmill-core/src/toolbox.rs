//! All harvested tools, for looking up and for drawing candidates.

mod distract;
mod same;

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use rayon::prelude::*;

use crate::{
    canonical::sha256_hex,
    id::{ClusterId, ServerId, ToolId},
    naming::alias,
    record::{Tool, Twin},
};
pub use distract::{Distract, Distractors, said_of};
use same::Compared;

/// Tools that stand beside a withheld one at most: as many as a filter asks about.
const MOST_WITHOUT: usize = 10;

/// Tools by id, what is known of their copies, and a deterministic draw of others.
#[derive(Clone, Debug, Default)]
pub struct Toolbox {
    tools: Vec<Tool>,
    by_id: HashMap<ToolId, usize>,
    near: HashMap<ToolId, ClusterId>,
    server_clusters: HashMap<ServerId, ServerId>,
}

impl Toolbox {
    /// A toolbox of `tools`; their order does not matter.
    pub fn new(mut tools: Vec<Tool>) -> Self {
        tools.sort_by(|a, b| a.id.cmp(&b.id));
        tools.dedup_by(|a, b| a.id == b.id);
        let by_id = tools.iter().enumerate().map(|(i, t)| (t.id.clone(), i)).collect();
        Self { tools, by_id, ..Self::default() }
    }

    /// The same tools, and which of them are near copies. Without it only exact copies are known.
    #[must_use]
    pub fn with_twins(mut self, twins: &[Twin]) -> Self {
        for twin in twins {
            self.near.insert(twin.tool_id.clone(), twin.near_id.clone());
            self.server_clusters.insert(twin.server_id.clone(), twin.server_cluster.clone());
        }
        self
    }

    /// The cluster of a tool's copies, near ones too.
    pub fn cluster<'a>(&'a self, tool: &'a Tool) -> &'a ClusterId {
        self.near.get(&tool.id).unwrap_or(&tool.cluster_id)
    }

    /// The first of the servers that are copies of this one; itself when it has none.
    pub fn server_cluster<'a>(&'a self, server: &'a ServerId) -> &'a ServerId {
        self.server_clusters.get(server).unwrap_or(server)
    }

    /// Whether two tools do one thing: copies, or near copies on different servers. What is alike on
    /// one server (`create_issue`, `delete_issue`) is there to be told apart.
    fn are_twins(&self, a: &Tool, b: &Tool) -> bool {
        a.cluster_id == b.cluster_id || (a.server_id != b.server_id && self.cluster(a) == self.cluster(b))
    }

    /// A tool by its id.
    pub fn get(&self, id: &ToolId) -> Option<&Tool> {
        self.by_id.get(id).map(|&i| &self.tools[i])
    }

    /// All tools, by id.
    pub fn all(&self) -> &[Tool] {
        &self.tools
    }

    /// Up to `count` tools beside the `labelled` ones, the same for the same `key`: no twin of theirs, no two of
    /// one name (a model could not tell them apart), only what `admit` lets in.
    pub fn distractors<'a>(
        &'a self,
        labelled: &[&Tool],
        count: usize,
        key: &str,
        admit: impl Fn(&Tool) -> bool,
    ) -> Vec<&'a Tool> {
        self.closest(labelled, count, key, |_| 0.0, admit)
    }

    /// As [`Toolbox::distractors`], the closest first, and of equally close ones those that the key draws.
    fn closest<'a>(
        &'a self,
        labelled: &[&Tool],
        count: usize,
        key: &str,
        closeness: impl Fn(&Tool) -> f64,
        admit: impl Fn(&Tool) -> bool,
    ) -> Vec<&'a Tool> {
        let mut names: HashSet<String> = labelled.iter().map(|t| alias(&t.name)).collect();
        let mut order = self.shuffled(key);
        order.sort_by_cached_key(|t| Reverse((closeness(t) * 1e6) as i64));
        order
            .into_iter()
            .filter(|t| !labelled.iter().any(|l| self.are_twins(t, l)) && admit(t))
            .filter(|t| names.insert(alias(&t.name)))
            .take(count)
            .collect()
    }

    /// All tools in an order that belongs to `key`.
    fn shuffled(&self, key: &str) -> Vec<&Tool> {
        let mut order: Vec<(String, &Tool)> =
            self.tools.par_iter().map(|t| (sha256_hex(format!("{key}\n{}", t.id)), t)).collect();
        order.sort_by(|a, b| a.0.cmp(&b.0));
        order.into_iter().map(|(_, tool)| tool).collect()
    }

    /// The `labelled` tools and their distractors, `count` in all, in an order that gives nothing away.
    pub fn candidates<'a>(
        &'a self,
        labelled: &[&'a Tool],
        count: usize,
        key: &str,
        admit: impl Fn(&Tool) -> bool,
    ) -> Vec<&'a Tool> {
        let mut all = self.distractors(labelled, count.saturating_sub(labelled.len()), key, admit);
        all.extend(labelled);
        placed(all, key)
    }

    /// Up to `count` of the tools that [`Toolbox::beside`] names, those that `admit` lets in.
    pub fn without<'a>(&'a self, withheld: &Tool, count: usize, key: &str, admit: impl Fn(&Tool) -> bool) -> Vec<&'a Tool> {
        placed(self.beside(withheld, key).into_iter().filter(|t| admit(t)).take(count).collect(), key)
    }

    /// The tools that may be offered where the `withheld` one is asked for, ten at most and the same for the same `key`:
    /// none that may well do what it does. Every other one is a near miss, a tool of its own server, those with most
    /// words in common first. That none of them fits is for a filter to find: it asks about all of them.
    pub fn beside<'a>(&'a self, withheld: &Tool, key: &str) -> Vec<&'a Tool> {
        let wanted = Compared::new(withheld);
        let is_near = |t: &Tool| self.cluster(t) == self.cluster(withheld);
        let fits = |t: &Tool| alias(&t.name) != alias(&withheld.name) && !wanted.may_be(t, is_near(t));
        let rest = self.distractors(&[withheld], usize::MAX, key, fits);
        let (mut near, far): (Vec<&Tool>, Vec<&Tool>) = rest.into_iter().partition(|t| t.server_id == withheld.server_id);
        near.sort_by_cached_key(|t| Reverse((wanted.alike(t) * 1e6) as u64));
        let (mut near, mut far) = (near.into_iter(), far.into_iter());
        let in_turn = |_| [near.next(), far.next()];
        (0..MOST_WITHOUT).flat_map(in_turn).flatten().take(MOST_WITHOUT).collect()
    }
}

fn placed<'a>(mut tools: Vec<&'a Tool>, key: &str) -> Vec<&'a Tool> {
    tools.sort_by_cached_key(|t| sha256_hex(format!("place\n{key}\n{}", t.id)));
    tools
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{id::ServerId, record::ToolDraft};

    fn tool(name: &str, description: &str, input_schema: serde_json::Value) -> Tool {
        let description = Some(description.to_owned());
        let draft =
            ToolDraft { name: name.into(), title: None, description, input_schema, output_schema: None, annotations: None };
        Tool::new(ServerId("srv_1".into()), draft)
    }

    #[test]
    fn draws_no_twin_and_no_second_of_a_name() {
        let labelled = tool("read", "reads", json!({}));
        let mut twin = tool("read2", "reads", json!({}));
        twin.cluster_id = labelled.cluster_id.clone();
        let namesake = Tool { id: ToolId("tool_x".into()), ..tool("other", "else", json!({})) };
        let box_ =
            Toolbox::new(vec![labelled.clone(), twin, tool("other", "o", json!({})), namesake, tool("third", "t", json!({}))]);
        let drawn = box_.distractors(&[&labelled], 9, "k", |_| true);
        let mut names: Vec<&str> = drawn.iter().map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["other", "third"]);
        assert_eq!(box_.distractors(&[&labelled], 1, "k", |t| t.name == "third")[0].name, "third");
    }

    #[test]
    fn draws_near_copies_of_the_own_server_only() {
        let labelled = tool("create", "makes one", json!({}));
        let sibling = tool("delete", "removes one", json!({}));
        let mut copy = Tool { id: ToolId("tool_c".into()), ..tool("create_one", "makes one now", json!({})) };
        copy.server_id = ServerId("srv_2".into());
        let twin = |t: &Tool| Twin {
            tool_id: t.id.clone(),
            server_id: t.server_id.clone(),
            exact_id: t.cluster_id.clone(),
            near_id: ClusterId("clu_near".into()),
            server_cluster: ServerId("srv_1".into()),
            keeper: false,
        };
        let twins: Vec<Twin> = [&labelled, &sibling, &copy].map(twin).to_vec();
        let without = Toolbox::new(vec![labelled.clone(), sibling, copy.clone()]);
        let names = |b: &Toolbox| -> HashSet<String> {
            b.distractors(&[&labelled], 9, "k", |_| true).iter().map(|t| t.name.clone()).collect()
        };
        assert_eq!(names(&without).len(), 2);
        let with = without.with_twins(&twins);
        assert_eq!(names(&with), HashSet::from(["delete".to_owned()]));
        assert_eq!(with.server_cluster(&copy.server_id).as_str(), "srv_1");
    }

    #[test]
    fn the_labelled_tool_stands_anywhere() {
        let tools: Vec<Tool> = (0..10).map(|i| tool(&format!("t{i}"), "x", json!({"i": i}))).collect();
        let box_ = Toolbox::new(tools.clone());
        let place = |key: &str| box_.candidates(&[&tools[0]], 5, key, |_| true).iter().position(|t| t.id == tools[0].id).unwrap();
        let places: HashSet<usize> = (0..50).map(|i| place(&i.to_string())).collect();
        assert_eq!(places.len(), 5);
        assert_eq!(place("a"), place("a"));
    }

    #[test]
    fn several_labelled_tools_stand_among_one_number_of_candidates() {
        let tools: Vec<Tool> = (0..10).map(|i| tool(&format!("t{i}"), "x", json!({"i": i}))).collect();
        let box_ = Toolbox::new(tools.clone());
        let offered = box_.candidates(&[&tools[0], &tools[7]], 5, "k", |_| true);
        assert_eq!(offered.len(), 5);
        assert!([0, 7].iter().all(|&i| offered.iter().any(|t| t.id == tools[i].id)));
    }

    #[test]
    fn what_is_withheld_is_not_offered_nor_what_may_do_the_same() {
        let on = |server: &str, name: &str, description: &str| Tool {
            server_id: ServerId(server.into()),
            id: ToolId(format!("tool_{server}_{name}")),
            ..tool(name, description, json!({"s": server, "n": name}))
        };
        let withheld = on("srv_a", "read_note", "Reads a note of the notebook");
        let mut tools = vec![
            withheld.clone(),
            on("srv_a", "delete_note", "Deletes a note of the notebook"),
            on("srv_b", "open_note", "Opens and reads a note of a notebook"),
            on("srv_b", "read_note", "Something else"),
        ];
        tools.extend((0..6).map(|i| on("srv_c", &format!("count_{i}"), &format!("Counts fruit of basket number {i}"))));
        let box_ = Toolbox::new(tools);
        for count in [1, 4, 20] {
            let offered = box_.without(&withheld, count, "k", |_| true);
            let names: Vec<&str> = offered.iter().map(|t| t.name.as_str()).collect();
            assert!(names.contains(&"delete_note"), "a near miss is there: {names:?}");
            assert!(!names.contains(&"read_note") && !names.contains(&"open_note"), "{names:?}");
            assert_eq!(names.len(), count.min(7));
        }
        // Whoever is asked about what is beside it is asked about all that any row offers.
        let beside: Vec<&str> = box_.beside(&withheld, "k").iter().map(|t| t.name.as_str()).collect();
        assert_eq!((beside.len(), beside[0]), (7, "delete_note"));
        let offered = box_.without(&withheld, 4, "k", |t| t.name != "delete_note" && t.name != "count_2");
        assert!(offered.len() == 4 && offered.iter().all(|t| beside.contains(&t.name.as_str())));
        assert!(!offered.iter().any(|t| ["delete_note", "count_2"].contains(&t.name.as_str())));
    }
}

//! All harvested tools, for looking up and for drawing candidates.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;

use crate::{canonical::sha256_hex, id::ToolId, record::Tool};

/// Tools by id, with a deterministic draw of others.
#[derive(Clone, Debug, Default)]
pub struct Toolbox {
    tools: Vec<Tool>,
    by_id: HashMap<ToolId, usize>,
}

impl Toolbox {
    /// A toolbox of `tools`; their order does not matter.
    pub fn new(mut tools: Vec<Tool>) -> Self {
        tools.sort_by(|a, b| a.id.cmp(&b.id));
        tools.dedup_by(|a, b| a.id == b.id);
        let by_id = tools.iter().enumerate().map(|(i, t)| (t.id.clone(), i)).collect();
        Self { tools, by_id }
    }

    /// A tool by its id.
    pub fn get(&self, id: &ToolId) -> Option<&Tool> {
        self.by_id.get(id).map(|&i| &self.tools[i])
    }

    /// All tools, by id.
    pub fn all(&self) -> &[Tool] {
        &self.tools
    }

    /// Up to `count` tools beside `labelled`, the same for the same `key`: no twin of it, no two of
    /// one name (a model could not tell them apart), only what `admit` lets in.
    pub fn distractors<'a>(&'a self, labelled: &Tool, count: usize, key: &str, admit: impl Fn(&Tool) -> bool) -> Vec<&'a Tool> {
        let mut order: Vec<(String, &Tool)> =
            self.tools.par_iter().map(|t| (sha256_hex(format!("{key}\n{}", t.id)), t)).collect();
        order.sort_by(|a, b| a.0.cmp(&b.0));
        let mut names = HashSet::from([labelled.name.as_str()]);
        order
            .into_iter()
            .map(|(_, tool)| tool)
            .filter(|t| t.cluster_id != labelled.cluster_id && admit(t))
            .filter(|t| names.insert(t.name.as_str()))
            .take(count)
            .collect()
    }

    /// `labelled` and its distractors in an order that gives nothing away.
    pub fn candidates<'a>(&'a self, labelled: &'a Tool, count: usize, key: &str, admit: impl Fn(&Tool) -> bool) -> Vec<&'a Tool> {
        let mut all = self.distractors(labelled, count.saturating_sub(1), key, admit);
        all.push(labelled);
        all.sort_by_cached_key(|t| sha256_hex(format!("place\n{key}\n{}", t.id)));
        all
    }
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
        let drawn = box_.distractors(&labelled, 9, "k", |_| true);
        let mut names: Vec<&str> = drawn.iter().map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["other", "third"]);
        assert_eq!(box_.distractors(&labelled, 1, "k", |t| t.name == "third")[0].name, "third");
    }

    #[test]
    fn the_labelled_tool_stands_anywhere() {
        let tools: Vec<Tool> = (0..10).map(|i| tool(&format!("t{i}"), "x", json!({"i": i}))).collect();
        let box_ = Toolbox::new(tools.clone());
        let place = |key: &str| box_.candidates(&tools[0], 5, key, |_| true).iter().position(|t| t.id == tools[0].id).unwrap();
        let places: HashSet<usize> = (0..50).map(|i| place(&i.to_string())).collect();
        assert_eq!(places.len(), 5);
        assert_eq!(place("a"), place("a"));
    }
}

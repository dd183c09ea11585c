//! Whether splits hold out what they say: a look at the rows as they were written, which knows nothing of how they were
//! assigned.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mcpmill_core::{
    canonical::content_hash,
    id::{ClusterId, ServerId, ToolId},
    record::{ExportRow, Split},
    toolbox::Toolbox,
};
use serde_json::Value;
use thiserror::Error;

use super::{definition, split};

/// Something that is held out is trained on, or offered there.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("failed to hold out {what} `{cluster}`: row `{held}` is in `{split}` and row `{trained}` {how}")]
pub struct Crossing {
    /// What crosses: `the server cluster`, `the tool cluster` or `the request`.
    pub what: &'static str,
    /// The cluster, or the request itself.
    pub cluster: String,
    /// A row that is held out.
    pub held: String,
    /// Its split.
    pub split: Split,
    /// A row for training that gives it away.
    pub trained: String,
    /// How it does.
    pub how: &'static str,
}

/// What the check keeps of a row.
struct Looked {
    id: String,
    split: Split,
    /// Clusters of its tools, called or withheld, each with that of the tool's server.
    tools: BTreeSet<(ClusterId, ServerId)>,
    request: String,
}

impl Looked {
    fn is_trained(&self) -> bool {
        // Rows of `seen_tool` are of what is trained on, and are held to the same.
        matches!(self.split, Split::Train | Split::SeenTool)
    }
}

/// Looks at rows one by one; what it keeps of each is small.
pub struct SplitCheck<'a> {
    toolbox: &'a Toolbox,
    /// Tools by the hash of what is offered of them: copies on several servers are offered alike.
    offers: HashMap<String, Vec<&'a ToolId>>,
    rows: Vec<Looked>,
    /// What training rows offer, by the hash, and one such row.
    offered: BTreeMap<String, String>,
}

type Clusters<'a> = BTreeMap<&'a str, &'a Looked>;

impl<'a> SplitCheck<'a> {
    /// A check of no rows yet; `toolbox` knows all tools and their copies.
    pub fn new(toolbox: &'a Toolbox) -> Self {
        let mut offers: HashMap<String, Vec<&ToolId>> = HashMap::new();
        for tool in toolbox.all() {
            offers.entry(content_hash(&definition(tool))).or_default().push(&tool.id);
        }
        Self { toolbox, offers, rows: Vec::new(), offered: BTreeMap::new() }
    }

    /// Looks at a row.
    pub fn add(&mut self, row: &ExportRow) {
        let tools = row.tool_ids.iter().chain(&row.withheld).filter_map(|id| self.toolbox.get(id));
        let tools = tools.map(|t| (self.toolbox.cluster(t).clone(), self.toolbox.server_cluster(&t.server_id).clone())).collect();
        let request = split::request(&row.messages).unwrap_or_default().to_owned();
        let looked = Looked { id: row.id.to_string(), split: row.split, tools, request };
        if looked.is_trained() {
            let offered: Vec<Value> = serde_json::from_str(&row.tools).unwrap_or_default();
            for tool in &offered {
                self.offered.entry(content_hash(tool)).or_insert_with(|| looked.id.clone());
            }
        }
        self.rows.push(looked);
    }

    /// The verdict over all rows.
    ///
    /// # Errors
    /// A server, a tool or a request that is held out is trained on, or training rows offer it.
    pub fn finish(&self) -> Result<(), Crossing> {
        let trained = || self.rows.iter().filter(|row| row.is_trained());
        let servers: Clusters = trained().flat_map(|row| row.tools.iter().map(move |(_, s)| (s.as_str(), row))).collect();
        let tools: Clusters = trained().flat_map(|row| row.tools.iter().map(move |(t, _)| (t.as_str(), row))).collect();
        let unseen_servers = self.held(Split::UnseenServer, &servers, "the server cluster", |row| {
            row.tools.iter().map(|(_, server)| server.as_str()).collect()
        })?;
        // Of a row over several servers only the tools of the unseen ones are unseen.
        let mut unseen_tools = Clusters::new();
        for row in self.rows.iter().filter(|row| row.split == Split::UnseenServer) {
            for (tool, _) in row.tools.iter().filter(|(_, server)| unseen_servers.contains_key(server.as_str())) {
                if let Some(trained) = tools.get(tool.as_str()) {
                    return Err(crossing("the tool cluster", tool.as_str(), row, &trained.id, "is for training on it"));
                }
                unseen_tools.insert(tool.as_str(), row);
            }
        }
        unseen_tools.extend(self.held(Split::UnseenTool, &tools, "the tool cluster", |row| {
            row.tools.iter().map(|(tool, _)| tool.as_str()).collect()
        })?);
        self.check_offers(&unseen_servers, &unseen_tools)?;
        self.check_requests()
    }

    /// The clusters that rows of `split` have and training has not; every such row must have one.
    fn held<'b>(
        &'b self,
        split: Split,
        trained: &Clusters,
        what: &'static str,
        clusters: impl Fn(&'b Looked) -> Vec<&'b str>,
    ) -> Result<Clusters<'b>, Crossing> {
        let mut held = Clusters::new();
        for row in self.rows.iter().filter(|row| row.split == split) {
            let all = clusters(row);
            let unseen: Vec<&str> = all.iter().copied().filter(|cluster| !trained.contains_key(cluster)).collect();
            if let (true, Some(first)) = (unseen.is_empty(), all.first()) {
                let by = trained.get(first).map_or("", |row| row.id.as_str());
                return Err(crossing(what, first, row, by, "is for training on it"));
            }
            held.extend(unseen.into_iter().map(|cluster| (cluster, row)));
        }
        Ok(held)
    }

    /// No training row offers a tool that is held out, nor one that only held-out servers have.
    fn check_offers(&self, servers: &Clusters, tools: &Clusters) -> Result<(), Crossing> {
        for (hash, by) in &self.offered {
            let same = self.offers.get(hash).into_iter().flatten().filter_map(|id| self.toolbox.get(id));
            let same: Vec<(&str, &str)> =
                same.map(|t| (self.toolbox.cluster(t).as_str(), self.toolbox.server_cluster(&t.server_id).as_str())).collect();
            let tool = same.iter().find_map(|(tool, _)| tools.get_key_value(tool));
            if let Some((tool, row)) = tool {
                return Err(crossing("the tool cluster", tool, row, by, "offers a tool of it"));
            }
            let found: Option<Vec<_>> = same.iter().map(|(_, server)| servers.get_key_value(server)).collect();
            if let Some((server, row)) = found.and_then(|all| all.first().copied()) {
                return Err(crossing("the server cluster", server, row, by, "offers a tool of it"));
            }
        }
        Ok(())
    }

    /// What is asked in training is asked in no other split.
    fn check_requests(&self) -> Result<(), Crossing> {
        let requests: Vec<&str> = self.rows.iter().map(|row| row.request.as_str()).collect();
        let clusters = split::clusters(&requests);
        let trained = self.rows.iter().zip(&clusters).filter(|(row, _)| row.split == Split::Train);
        let trained: HashMap<usize, &Looked> = trained.map(|(row, cluster)| (*cluster, row)).collect();
        for (row, cluster) in self.rows.iter().zip(&clusters).filter(|(row, _)| row.split != Split::Train) {
            if let Some(by) = trained.get(cluster) {
                let shown = mcpmill_core::text::shown(&row.request, 80);
                return Err(crossing("the request", &shown, row, &by.id, "is for training on it"));
            }
        }
        Ok(())
    }
}

fn crossing(what: &'static str, cluster: &str, held: &Looked, trained: &str, how: &'static str) -> Crossing {
    Crossing { what, cluster: cluster.to_owned(), held: held.id.clone(), split: held.split, trained: trained.to_owned(), how }
}

#[cfg(test)]
mod tests {
    use mcpmill_core::{id::SampleId, record::Tool};
    use serde_json::json;

    use super::*;
    use crate::card::tests::tool;

    fn on(server: &str, name: &str) -> Tool {
        let schema = json!({ "type": "object", "title": format!("{server} {name}") });
        Tool { server_id: ServerId(server.into()), ..tool(name, &format!("does {name} on {server}"), schema) }
    }

    fn row(id: &str, split: Split, about: &[&Tool], offered: &[&Tool]) -> ExportRow {
        let offered: Vec<Value> = about.iter().chain(offered).map(|tool| definition(tool)).collect();
        let ids: Vec<&ToolId> = about.iter().map(|tool| &tool.id).collect();
        let text = json!({
            "id": id, "split": split, "kind": "single", "messages": [{ "role": "user", "content": format!("please, {id}") }], "loss": [false],
            "tools": json!(offered).to_string(), "server": "s", "tool_ids": ids, "live": "ok", "lineage": [], "verdicts": [],
        });
        let row: ExportRow = serde_json::from_value(text).unwrap();
        assert_eq!(row.id, SampleId(id.into()));
        row
    }

    fn found(tools: &[&Tool], rows: &[ExportRow]) -> Result<(), Crossing> {
        let toolbox = Toolbox::new(tools.iter().map(|tool| (*tool).clone()).collect());
        let mut check = SplitCheck::new(&toolbox);
        rows.iter().for_each(|row| check.add(row));
        check.finish()
    }

    #[test]
    fn what_is_held_out_well_passes() {
        let (a, b, c, d) = (on("srv_a", "read"), on("srv_a", "write"), on("srv_b", "count"), on("srv_c", "draw"));
        let rows = [
            row("1", Split::Train, &[&a], &[&d]),
            row("2", Split::SeenTool, &[&a], &[]),
            row("3", Split::UnseenTool, &[&b, &a], &[&c]),
            row("4", Split::UnseenServer, &[&c, &a], &[&b]),
        ];
        assert_eq!(found(&[&a, &b, &c, &d], &rows), Ok(()));
    }

    #[test]
    fn a_wrong_assignment_names_the_cluster() {
        let (a, b, c) = (on("srv_a", "read"), on("srv_a", "write"), on("srv_b", "count"));
        let copy = Tool { cluster_id: c.cluster_id.clone(), ..on("srv_a", "count_all") };
        let all = [&a, &b, &c, &copy];
        let train = row("1", Split::Train, &[&a], &[]);
        let wrong = |held: ExportRow, trained: ExportRow| found(&all, &[train.clone(), held, trained]).unwrap_err().to_string();

        let same_server = wrong(row("2", Split::UnseenServer, &[&b], &[]), row("3", Split::Train, &[&c], &[]));
        assert_eq!(
            same_server,
            "failed to hold out the server cluster `srv_a`: row `2` is in `unseen_server` and row `1` is for training on it"
        );
        let same_tool = wrong(row("2", Split::UnseenTool, &[&b], &[]), row("3", Split::SeenTool, &[&b], &[]));
        assert!(same_tool.contains(&format!("the tool cluster `{}`: row `2`", b.cluster_id)), "{same_tool}");
        let copied = wrong(row("2", Split::UnseenServer, &[&c], &[]), row("3", Split::Train, &[&copy], &[]));
        assert!(copied.contains(&format!("the tool cluster `{}`: row `2`", c.cluster_id)), "{copied}");
        let offered = wrong(row("2", Split::UnseenTool, &[&b], &[]), row("3", Split::Train, &[&a], &[&b]));
        assert!(offered.contains("row `3` offers a tool of it"), "{offered}");
        let offered = wrong(row("2", Split::UnseenServer, &[&c], &[]), row("3", Split::Train, &[&a], &[&copy]));
        assert!(offered.contains("row `3` offers a tool of it"), "{offered}");
    }

    #[test]
    fn a_tool_that_only_held_out_servers_have_is_not_offered() {
        let (a, c, d) = (on("srv_a", "read"), on("srv_b", "count"), on("srv_b", "sum"));
        let rows = [row("1", Split::Train, &[&a], &[&d]), row("2", Split::UnseenServer, &[&c], &[])];
        let error = found(&[&a, &c, &d], &rows).unwrap_err();
        assert_eq!((error.what, error.cluster.as_str(), error.how), ("the server cluster", "srv_b", "offers a tool of it"));
    }

    #[test]
    fn a_request_that_crosses_is_shown() {
        let (a, b) = (on("srv_a", "read"), on("srv_a", "write"));
        let mut twice = row("2", Split::UnseenTool, &[&b], &[]);
        twice.messages = vec![mcpmill_core::record::Message::user("Please 1!")];
        let error = found(&[&a, &b], &[row("1", Split::Train, &[&a], &[]), twice]).unwrap_err().to_string();
        assert!(error.contains("the request `Please 1!`: row `2`"), "{error}");
    }
}

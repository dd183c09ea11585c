//! `duplicates`: of instructions that ask for the same with the same values, one row is kept.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use mcpmill_core::{id::ClusterId, record::Verdict};
use serde_json::json;

use super::{Bench, Case, Filter, Plant};
use crate::{ask::Meter, near};

pub(super) struct Duplicates {
    pub(super) name: String,
    pub(super) found: Mutex<HashMap<String, Cluster>>,
}

/// Where a row belongs.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    /// The row of the cluster that is kept: the one with the smallest id, whatever the order of the rows.
    keeper: String,
    rows: usize,
}

#[async_trait]
impl Filter for Duplicates {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_free(&self) -> bool {
        true
    }

    fn sees_all(&self) -> bool {
        true
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::Twin]
    }

    async fn prepare(&self, rows: &[&Case<'_>]) {
        let texts: Vec<String> = rows.iter().map(|case| case.said()).collect();
        let places = joined(rows, &texts);
        let mut clusters: HashMap<usize, Cluster> = HashMap::new();
        for (case, place) in rows.iter().zip(&places) {
            let subject = case.subject;
            let cluster = clusters.entry(*place).or_insert_with(|| Cluster { keeper: subject.to_owned(), rows: 0 });
            cluster.rows += 1;
            if subject < cluster.keeper.as_str() {
                subject.clone_into(&mut cluster.keeper);
            }
        }
        let found = rows.iter().zip(&places).map(|(case, place)| (case.subject.to_owned(), clusters[place].clone()));
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found.collect();
    }

    async fn judge(&self, case: &Case<'_>, _: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).get(case.subject).cloned();
        match found {
            // A step before it had dropped the row, which is looked at all the same.
            None => bench.unjudged("unjudged: not among the rows that were compared"),
            Some(Cluster { keeper, rows }) if keeper == case.subject => {
                let told = if rows == 1 { "nothing like it".to_owned() } else { format!("kept for {rows} that are alike") };
                bench.keep(told)
            }
            Some(Cluster { keeper, rows }) => {
                let evidence = json!({ "kept": keeper, "alike": rows }).to_string();
                Verdict { evidence: Some(evidence), ..bench.drop("asks for the same as another row") }
            }
        }
    }
}

/// The cluster of every row. Near duplicates are only such as call the same tools: another task with the same values can
/// read much like the first. The very same words are the same request whatever is called: one of the labels is wrong.
fn joined(rows: &[&Case<'_>], texts: &[String]) -> Vec<usize> {
    let near = near::clusters(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let mut groups: HashMap<(usize, Vec<&ClusterId>), usize> = HashMap::new();
    let mut same: HashMap<String, usize> = HashMap::new();
    let mut first: Vec<usize> = (0..rows.len()).collect();
    for (at, (case, place)) in rows.iter().zip(near).enumerate() {
        let mut tools: Vec<&ClusterId> = case.called.iter().map(|tool| &tool.cluster_id).collect();
        tools.sort_unstable();
        let like = *groups.entry((place, tools)).or_insert(at);
        let equal = *same.entry(words(&texts[at])).or_insert(at);
        for other in [like, equal] {
            let (a, b) = (find(&mut first, at), find(&mut first, other));
            first[a.max(b)] = a.min(b);
        }
    }
    (0..rows.len()).map(|at| find(&mut first, at)).collect()
}

/// The first row that a row is joined with.
fn find(first: &mut [usize], mut at: usize) -> usize {
    while first[at] != at {
        first[at] = first[first[at]];
        at = first[at];
    }
    at
}

/// A text without what writing it another way changes.
fn words(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

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
        let keepers = keepers(rows);
        let mut counts: HashMap<&str, usize> = HashMap::new();
        keepers.iter().for_each(|keeper| *counts.entry(keeper).or_default() += 1);
        let cluster = |keeper: &&str| Cluster { keeper: (*keeper).to_owned(), rows: counts[*keeper] };
        let found = rows.iter().zip(&keepers).map(|(case, keeper)| (case.subject.to_owned(), cluster(keeper)));
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

/// The row that is kept for every row. First, of the very same words one is kept whatever is called: one of the labels is
/// wrong. Then near duplicates, which are only such as call the same tools: another task with the same values can read
/// much like the first.
fn keepers<'a>(rows: &[&Case<'a>]) -> Vec<&'a str> {
    let texts: Vec<String> = rows.iter().map(|case| case.said()).collect();
    let near = near::clusters(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let mut equal: HashMap<String, usize> = HashMap::new();
    let words: Vec<String> = texts.iter().map(|text| words(text)).collect();
    for (at, words) in words.iter().enumerate() {
        let kept = equal.entry(words.clone()).or_insert(at);
        if rows[at].subject < rows[*kept].subject {
            *kept = at;
        }
    }
    let mut like: HashMap<(usize, Vec<&ClusterId>), &'a str> = HashMap::new();
    let group = |at: usize| {
        let mut tools: Vec<&ClusterId> = rows[at].called.iter().map(|tool| &tool.cluster_id).collect();
        tools.sort_unstable();
        (near[at], tools)
    };
    for &at in equal.values() {
        let kept = like.entry(group(at)).or_insert(rows[at].subject);
        *kept = rows[at].subject.min(*kept);
    }
    words.iter().map(|words| like[&group(equal[words])]).collect()
}

/// A text without what writing it another way changes.
fn words(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

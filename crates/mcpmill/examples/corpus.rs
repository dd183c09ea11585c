//! Loads a corpus of tools and says what of it mcpmill can use.
//!
//!     cargo run --release --example corpus -- FILE
//!
//! FILE holds one JSON object a line: `server_name`, `tool_name`, `description`, `input_schema`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Instant,
};

use anyhow::{Context, Result};
use mcpmill_core::{
    canonical::{content_hash, sha256_hex},
    id::ServerId,
    json,
    naming::Aliases,
    record::{Tool, ToolDraft},
    schema::fault_2020_12,
    schema_view::{Provider, view_of},
};
use mcpmill_pipeline::twins::twins;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: corpus FILE")?;
    let started = Instant::now();
    let lines = fs::read(&path)?;
    let tools = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(tool).collect::<Result<Vec<_>>>()?;
    println!(
        "{} tools of {} servers loaded in {:.1} s",
        tools.len(),
        distinct(&tools, |t| t.server_id.to_string()),
        seconds(started)
    );
    println!("{} distinct (name, description, schema)", distinct(&tools, |t| t.cluster_id.to_string()));
    println!("{} distinct (name, schema)", distinct(&tools, |t| content_hash(&(&t.name, &t.schema_hash))));

    aliases(&tools)?;
    let invalid: Vec<(String, String)> = tools.iter().filter_map(|t| Some((named(t), fault_2020_12(&t.schema())?))).collect();
    println!("{} schemas are invalid under JSON Schema 2020-12:", invalid.len());
    invalid.iter().for_each(|(name, fault)| println!("    {name}: {}", fault.chars().take(100).collect::<String>()));
    views(&tools);

    let started = Instant::now();
    let found = twins(&tools, |_| false);
    let count = |ids: BTreeSet<&str>| ids.len();
    let near = count(found.iter().map(|twin| twin.near_id.as_str()).collect());
    let (servers, clusters) = (
        count(found.iter().map(|twin| twin.server_id.as_str()).collect()),
        count(found.iter().map(|twin| twin.server_cluster.as_str()).collect()),
    );
    println!("{near} tools apart from near copies, {clusters} of {servers} servers, found in {:.1} s", seconds(started));
    Ok(())
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

fn tool(line: &[u8]) -> Result<Tool> {
    let value = json::read(line).context("a line is no JSON")?.value;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let server = text("server_name").context("a line names no server")?;
    let part = |key: &str| value.get(key).filter(|part| !part.is_null()).cloned();
    let draft = ToolDraft {
        name: text("tool_name").context("a line names no tool")?,
        title: None,
        description: text("description"),
        input_schema: value["input_schema"].clone(),
        output_schema: part("output_schema"),
        annotations: part("annotations"),
    };
    // One server under two sources is two listings.
    let source = text("source_repo").unwrap_or_default();
    Ok(Tool::new(ServerId(format!("srv_{}", &sha256_hex(format!("{source}\n{server}"))[..20])), draft))
}

fn distinct(tools: &[Tool], key: impl Fn(&Tool) -> String) -> usize {
    tools.iter().map(key).collect::<BTreeSet<_>>().len()
}

fn named(tool: &Tool) -> String {
    format!("{} of {}", tool.name, tool.server_id)
}

/// All tools offered together: every alias must lead back to its own tool. Two tools of one server with
/// one name are told apart by nobody, also not by their server.
fn aliases(tools: &[Tool]) -> Result<()> {
    let names: BTreeSet<(String, String)> = tools.iter().map(|t| (t.server_id.to_string(), t.name.clone())).collect();
    let table = Aliases::new(names.clone())?;
    let back = names.iter().filter(|(server, tool)| {
        let alias = table.alias(server, tool).unwrap_or_default();
        let fits =
            !alias.is_empty() && alias.len() <= 64 && alias.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        fits && table.original(alias) == Some((server, tool))
    });
    let (back, changed) = (back.count(), table.iter().filter(|(alias, _, tool)| alias != tool).count());
    println!("{back} of {} names lead back from their alias; {changed} aliases are not the name", names.len());
    Ok(())
}

fn views(tools: &[Tool]) {
    for provider in [Provider::OpenAiStrict, Provider::OpenAi, Provider::Gemini, Provider::Anthropic] {
        let started = Instant::now();
        let (mut altered, mut changes, mut refused) = (0, BTreeMap::<String, usize>::new(), Vec::new());
        for tool in tools {
            match view_of(tool, provider) {
                Ok(view) => {
                    altered += usize::from(!view.alterations.is_empty());
                    for alteration in &view.alterations {
                        let kind = alteration.change.name().split([' ', ':']).next().unwrap_or_default().to_owned();
                        *changes.entry(kind).or_default() += 1;
                    }
                }
                Err(refusal) => refused.push(format!("{}: {refusal}", named(tool))),
            }
        }
        println!("{provider:?}: {altered} altered, {} not showable, {:.1} s; {changes:?}", refused.len(), seconds(started));
        refused.iter().for_each(|line| println!("    {line}"));
    }
}

//! `tools`: the harvested tools as a provider takes them.

use std::collections::{BTreeMap, HashMap};

use mcpmill_core::{
    id::ServerId,
    naming::Aliases,
    record::{ServerRecord, Tool},
    schema_view::{Alteration, Provider, view_of},
};
use serde_json::{Value, json};

use crate::{
    cli::Format,
    error::{Exit, Failure},
    line::{Line, read_input},
    stage::Stage,
};

/// Prints every harvested tool under a name of its own (JSON), or what a provider's rules alter in how many (human).
///
/// # Errors
/// The run has no harvest, or two tools cannot be named apart.
pub fn tools(line: &Line, provider: Provider, format: Format) -> Result<(), Failure> {
    let tools: Vec<Tool> = read_input(line.run.path(), Stage::Harvest)?;
    let servers: Vec<ServerRecord> = read_input(line.run.path(), Stage::Discover)?;
    let names = names(servers);
    let server = |tool: &Tool| names.get(&tool.server_id).map_or_else(|| tool.server_id.to_string(), Clone::clone);
    let aliases = Aliases::of_tools(tools.iter().map(|tool| (server(tool), tool)));
    let aliases = aliases.map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
    let shown = tools.iter().map(|tool| {
        let alias = aliases.get(&tool.id).unwrap_or(&tool.name).to_owned();
        Shown::of(tool, server(tool), alias, provider)
    });
    match format {
        Format::Json => println!("{}", Value::Array(shown.map(Shown::into_json).collect())),
        Format::Human => table(&shown.collect::<Vec<_>>(), provider),
    }
    Ok(())
}

/// The name of every server; with its id where several bear it.
fn names(servers: Vec<ServerRecord>) -> HashMap<ServerId, String> {
    let mut bearers: HashMap<String, usize> = HashMap::new();
    servers.iter().for_each(|server| *bearers.entry(server.name.clone()).or_default() += 1);
    let name = |server: ServerRecord| {
        let own = bearers[&server.name] == 1;
        let name = if own { server.name } else { format!("{} {}", server.name, server.id) };
        (server.id, name)
    };
    servers.into_iter().map(name).collect()
}

struct Shown<'a> {
    tool: &'a Tool,
    server: String,
    alias: String,
    /// The schema and what is other in it, or why the provider cannot be shown it.
    view: Result<(Value, Vec<Alteration>), String>,
}

impl<'a> Shown<'a> {
    fn of(tool: &'a Tool, server: String, alias: String, provider: Provider) -> Self {
        let view = view_of(tool, provider).map(|view| (view.schema, view.alterations)).map_err(|e| e.to_string());
        Self { tool, server, alias, view }
    }

    fn into_json(self) -> Value {
        let mut row = json!({ "server": self.server, "tool": self.tool.name, "tool_id": self.tool.id });
        match self.view {
            Ok((schema, alterations)) => {
                row["function"] =
                    json!({ "name": self.alias, "description": self.tool.description_text(), "parameters": schema });
                let altered = alterations.iter().map(|a| json!({ "at": a.pointer, "change": a.change.name() }));
                row["altered"] = altered.collect();
            }
            Err(fault) => row["fault"] = json!(fault),
        }
        row
    }
}

fn table(shown: &[Shown<'_>], provider: Provider) {
    let mut changes: BTreeMap<String, usize> = BTreeMap::new();
    let (mut verbatim, mut renamed) = (0, 0);
    for one in shown {
        renamed += usize::from(one.alias != one.tool.name);
        let Ok((_, alterations)) = &one.view else { continue };
        verbatim += usize::from(alterations.is_empty());
        let mut names: Vec<String> = alterations.iter().map(|a| a.change.name()).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().for_each(|name| *changes.entry(name).or_default() += 1);
    }
    let faults: Vec<&Shown<'_>> = shown.iter().filter(|one| one.view.is_err()).collect();
    println!(
        "{} tools for {provider}: {verbatim} as they are, {renamed} under another name, {} not shown",
        shown.len(),
        faults.len()
    );
    let mut changes: Vec<(String, usize)> = changes.into_iter().collect();
    changes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    for (change, tools) in changes {
        println!("{tools:>7} {change}");
    }
    for one in faults {
        println!("not shown: {} of {}: {}", one.tool.name, one.server, one.view.as_ref().err().map_or("", String::as_str));
    }
}

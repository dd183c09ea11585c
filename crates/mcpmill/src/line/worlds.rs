//! What stages know of the servers' worlds beforehand.

use std::collections::{BTreeMap, HashMap, HashSet};

use mcpmill_clients::cage::WORLD;
use mcpmill_core::{
    edge::{OpeningCall, WorldSpec},
    id::{ServerId, ToolId},
    record::{ServerRecord, Tool},
    schema::Schema,
};
use mcpmill_pipeline::policy::Policy;
use serde_json::Value;

use crate::error::Failure;

/// World seeds by name.
type Seeds = BTreeMap<String, WorldSpec>;

/// The tools whose calls the policy refuses.
pub(super) fn refused(tools: &[Tool], servers: &[ServerRecord], policy: &Policy) -> HashSet<ToolId> {
    let by_id: HashMap<&ServerId, &ServerRecord> = servers.iter().map(|server| (&server.id, server)).collect();
    let allowed = |tool: &Tool| by_id.get(&tool.server_id).is_some_and(|server| policy.decide(server, tool).allowed);
    tools.iter().filter(|tool| !allowed(tool)).map(|tool| tool.id.clone()).collect()
}

fn seeds_of<'a>(server: &'a ServerRecord, seeds: &'a Seeds) -> impl Iterator<Item = (&'a str, &'a WorldSpec)> {
    server.world.iter().filter_map(|name| Some((name.as_str(), seeds.get(name)?)))
}

/// What a person would know of each server's world, as one line.
pub(super) fn at_hand(servers: &[ServerRecord], seeds: &Seeds) -> HashMap<ServerId, String> {
    let line = |server: &ServerRecord| {
        let things: Vec<&str> = seeds_of(server, seeds).flat_map(|(_, seed)| seed.at_hand.iter().map(String::as_str)).collect();
        (server.id.clone(), things.join("; "))
    };
    servers.iter().map(line).filter(|(_, text)| !text.is_empty()).collect()
}

/// Where the files of each server's world are when it starts, as it sees them.
pub(super) fn files(servers: &[ServerRecord], seeds: &Seeds) -> HashMap<ServerId, Vec<String>> {
    let of = |server: &ServerRecord| {
        let files = seeds_of(server, seeds).flat_map(|(_, seed)| seed.files.keys());
        // What begins with a dot is of the setup.
        let there = files.filter(|path| !path.starts_with('.')).map(|path| format!("{WORLD}/{path}")).collect();
        (server.id.clone(), there)
    };
    servers.iter().map(of).filter(|(_, files): &(ServerId, Vec<String>)| !files.is_empty()).collect()
}

/// Whether the calls that worlds begin with can be made: found out when samples are run, all of them would be lost.
///
/// # Errors
/// A server with tools has not the one of an opening call, takes no such arguments, or may not be called so.
pub(super) fn can_open(tools: &[Tool], servers: &[ServerRecord], seeds: &Seeds, policy: &Policy) -> Result<(), Failure> {
    for server in servers {
        let own: Vec<&Tool> = tools.iter().filter(|tool| tool.server_id == server.id).collect();
        let openings = seeds_of(server, seeds).flat_map(|(name, seed)| seed.opening.iter().map(move |call| (name, call)));
        for (name, call) in openings.filter(|_| !own.is_empty()) {
            if let Some(why) = fault(&own, server, call, policy) {
                return Err(Failure::usage(format!("the world `{name}` cannot begin for server `{}`: {why}", server.name))
                    .hint(format!("`marketplaces/worlds/{name}.toml` says what is called when the server starts (`opening`)")));
            }
        }
    }
    Ok(())
}

fn fault(own: &[&Tool], server: &ServerRecord, call: &OpeningCall, policy: &Policy) -> Option<String> {
    let Some(tool) = own.iter().find(|tool| tool.name == call.tool) else {
        return Some(format!("it has no tool `{}`", call.tool));
    };
    let decision = policy.decide(server, tool);
    if !decision.allowed {
        return Some(format!("`{}` is refused by `{}`: {} (see `[rollout]`)", call.tool, decision.rule, decision.why));
    }
    let schema = Schema::compile(&tool.schema()).ok()?;
    let faults = schema.faults(&Value::Object(call.arguments.clone()), 1);
    faults.into_iter().next().map(|fault| format!("`{}` does not take these arguments: {fault}", call.tool))
}

#[cfg(test)]
mod tests {
    use mcpmill_core::record::Launch;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_world_begins_with_is_held_to_the_tools() {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
        let tool = mcpmill_testkit::tool("ide", "open_project", "Opens a project.", schema);
        let launch = Launch::Stdio { command: "npx".into(), args: vec!["ide".into()] };
        let server =
            ServerRecord { id: tool.server_id.clone(), world: vec!["desk".into()], ..mcpmill_testkit::server("ide", launch) };
        let tried = |call: &str, arguments: Value, refuse: &str| {
            let opening = OpeningCall { tool: call.into(), arguments: arguments.as_object().unwrap().clone() };
            let seed = WorldSpec { opening: vec![opening], ..WorldSpec::default() };
            let policy = Policy::new(vec![refuse.into()]).unwrap();
            let (tools, servers) = (std::slice::from_ref(&tool), std::slice::from_ref(&server));
            can_open(tools, servers, &[("desk".to_owned(), seed)].into(), &policy).map_err(|failure| failure.to_string())
        };
        assert_eq!(tried("open_project", json!({"path": "${WORLD}/src"}), "a/b"), Ok(()));
        for (call, arguments, refuse, want) in [
            ("open_porject", json!({"path": "a"}), "a/b", "no tool `open_porject`"),
            ("open_project", json!({"folder": "a"}), "a/b", "does not take these arguments"),
            ("open_project", json!({"path": "a"}), "*/open_*", "refused by `*/open_*`"),
        ] {
            let why = tried(call, arguments, refuse).unwrap_err();
            assert!(why.contains(want) && why.contains("`desk`") && why.contains("`ide`"), "{why}");
        }
    }

    #[test]
    fn files_of_the_setup_are_not_there_for_long() {
        let launch = Launch::Stdio { command: "npx".into(), args: vec![] };
        let server = ServerRecord { world: vec!["desk".into()], ..mcpmill_testkit::server("ide", launch) };
        let named = ["a/b.md", ".setup-desk/make.py"].map(|path| (path.to_owned(), String::new()));
        let seed = WorldSpec { files: named.into(), ..WorldSpec::default() };
        let found = files(std::slice::from_ref(&server), &[("desk".to_owned(), seed)].into());
        assert_eq!(found[&server.id], ["/home/user/work/a/b.md"]);
    }
}

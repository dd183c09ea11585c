//! The look at servers before requests are written.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{collections::HashMap, sync::Arc};

use mcpmill_core::{
    drive::Context,
    edge::{Mode, Recorder, ToolError, ToolErrorKind},
    id::ServerId,
    record::{Launch, ServerRecord, Tool, ToolResult},
};
use mcpmill_pipeline::{
    generate::look::{LookSettings, look},
    policy::Policy,
};
use mcpmill_testkit::{Call, Remembering, ScriptedServers, context, text};
use serde_json::json;

fn server(name: &str) -> ServerRecord {
    let launch = Launch::Stdio { command: "npx".into(), args: vec![name.into()] };
    ServerRecord { id: ServerId(format!("srv_{name}")), ..mcpmill_testkit::server(name, launch) }
}

fn tool(server: &str, name: &str, needed: &[&str]) -> Tool {
    let properties: serde_json::Map<_, _> = needed.iter().map(|n| ((*n).to_owned(), json!({"type": "string"}))).collect();
    mcpmill_testkit::tool(server, name, "d", json!({"type": "object", "properties": properties, "required": needed}))
}

fn tools() -> Vec<Tool> {
    let files = ["status", "list_files", "get_notes", "search_all", "delete_all"].map(|name| tool("files", name, &[]));
    let rest = [
        tool("files", "list_folder", &["path"]),
        tool("broken", "list_things", &[]),
        tool("quiet", "do_it", &[]),
        tool("absent", "list_things", &[]),
    ];
    files.into_iter().chain(rest).collect()
}

fn answers(server: &str, _: &[Call], (tool, _): &Call) -> Result<ToolResult, ToolError> {
    let broken = ToolError {
        server: server.into(),
        action: "call tool".into(),
        kind: ToolErrorKind::Disconnected,
        detail: "the server ended".into(),
    };
    match (server, tool.as_str()) {
        ("broken", _) => Err(broken),
        (_, "list_files") => Ok(text("[FILE] plan.md\n[FILE] notes.md")),
        (_, "search_all") => Ok(ToolResult { is_error: true, ..text("[FILE] wrong.md") }),
        (_, "get_notes") => Ok(text(r#"[{"id": "n-17"}, {"id": "n-18"}]"#)),
        other => panic!("{other:?} is not called"),
    }
}

fn settings(max_calls: usize, refuse: &[&str]) -> LookSettings {
    let policy = Policy::new(refuse.iter().map(|r| (*r).to_owned()).collect()).unwrap();
    LookSettings { max_calls, policy, worlds: Arc::default(), networked: Arc::default() }
}

async fn looked(
    servers: &ScriptedServers,
    settings: &LookSettings,
    store: &Arc<Remembering>,
    mode: Mode,
) -> HashMap<ServerId, Vec<String>> {
    let cx = Context { recorder: Arc::new(Recorder::new(store.clone(), mode)), ..context("3-generate") };
    let all = ["files", "broken", "quiet", "absent"].map(server);
    look(&tools(), &all, settings, servers, &cx).await
}

#[tokio::test]
async fn servers_are_asked_once_for_what_is_there() {
    let (servers, store) = (ScriptedServers::new(answers), Arc::<Remembering>::default());
    servers.without("absent");
    let found = looked(&servers, &settings(3, &[]), &store, Mode::Reuse).await;
    let want: HashMap<ServerId, Vec<String>> =
        [(ServerId("srv_files".into()), ["plan.md", "notes.md", "n-17", "n-18"].map(str::to_owned).to_vec())].into();
    assert_eq!(found, want);
    let log = servers.log();
    let of =
        |name: &str| log.iter().filter(|line| line[1..].starts_with(name) || line.starts_with(name)).cloned().collect::<Vec<_>>();
    // What writes, what takes something and what is beyond the count is not called; one world for all calls.
    assert_eq!(of("files"), ["+files", "files list_files", "files search_all", "files get_notes", "-files"]);
    assert_eq!(of("broken"), ["+broken", "broken list_things", "-broken"]);
    assert_eq!(of("quiet"), Vec::<String>::new());

    // A replay starts nothing and finds the same.
    let nobody = ScriptedServers::new(|_, _, _| panic!("nobody is asked"));
    assert_eq!(looked(&nobody, &settings(3, &[]), &store, Mode::Replay).await, want);
    assert!(nobody.log().is_empty());
}

#[tokio::test]
async fn a_look_keeps_to_its_bounds_and_to_the_policy() {
    let store = Arc::<Remembering>::default();
    let servers = ScriptedServers::new(answers);
    let found = looked(&servers, &settings(1, &["broken/*", "absent/*"]), &store, Mode::Reuse).await;
    assert_eq!(found[&ServerId("srv_files".into())], ["plan.md", "notes.md"]);
    assert_eq!(servers.log(), ["+files", "files list_files", "-files"]);
    let servers = ScriptedServers::new(answers);
    let found = looked(&servers, &settings(3, &["*/*"]), &store, Mode::Reuse).await;
    assert!(found.is_empty() && servers.log().is_empty());
}

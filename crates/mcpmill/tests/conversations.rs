//! Conversations on a real server in the cage: the answers and the errors are its own.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

#[path = "../../mcpmill-clients/tests/common/mod.rs"]
mod clients;
mod common;

use std::{collections::HashMap, fs, path::Path, sync::Arc, time::Duration};

use common::{Folder, ok, tree};

use mcpmill_clients::{
    install::{Installer, Lock},
    mcp::CagedConnector,
};
use mcpmill_core::{
    drive::{Context, Done, Pace},
    edge::{ChatModel, Connector, Mode, RecordedChat, Recorder, WorldSpec},
    record::{
        EnvVar, FunctionCall, Launch, Message, OutcomeKind, Sample, SampleKind, ServerRecord, Tool, ToolCall, ToolResult,
        Trajectory,
    },
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    generate::look::{LookSettings, look},
    models::Models,
    policy::Policy,
    prompt::Prompt,
    rollout::{RolloutPrompts, RolloutSettings, Servers, Writer, rollout},
};
use mcpmill_testkit::{Kept, Remembering, Scripted, ScriptedEndpoint, ScriptedServers, context};
use serde_json::{Value, json};

/// The memory server of the starter roster, with its world.
struct Memory {
    server: ServerRecord,
    world: WorldSpec,
    tools: Vec<Tool>,
    connector: Arc<dyn Connector>,
    scratch: tempfile::TempDir,
    store: Arc<Remembering>,
}

fn starter() -> ServerRecord {
    let package = "@modelcontextprotocol/server-memory@2026.8.31";
    let launch = Launch::Stdio { command: "npx".into(), args: vec!["-y".into(), package.into()] };
    let graph = EnvVar {
        name: "MEMORY_FILE_PATH".into(),
        value: Some("${WORLD}/memory/graph.jsonl".into()),
        ..serde_json::from_value(json!({"name": "", "value": null, "secret": false, "required": false})).unwrap()
    };
    ServerRecord { env: vec![graph], world: vec!["memory".into()], ..mcpmill_testkit::server("memory", launch) }
}

impl Memory {
    async fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let cage = clients::cage().await;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../marketplaces");
        let text = |name: &str| fs::read_to_string(root.join(name)).unwrap();
        let lock = Lock::Npm { package: text("locks/memory/package.json"), lock: text("locks/memory/package-lock.json") };
        let installer = Installer::new(cage.clone(), clients::assets(), clients::cache()).with_locks(vec![lock]);
        let connector: Arc<dyn Connector> = Arc::new(CagedConnector::new(cage, installer, scratch.path().join("worlds")));
        let (server, world) = (starter(), toml::from_str::<WorldSpec>(&text("worlds/memory.toml")).unwrap());
        let runner = connector.connect(&server, &world).await.unwrap();
        let page = runner.list_tools(None).await.unwrap();
        runner.close().await;
        let tools = page.tools.into_iter().map(|draft| Tool::new(server.id.clone(), draft)).collect();
        Self { server, world, tools, connector, scratch, store: Arc::default() }
    }

    fn tool(&self, name: &str) -> &Tool {
        self.tools.iter().find(|tool| tool.name == name).unwrap()
    }

    fn sample(&self, kind: SampleKind, said: &str, calls: &[(&str, Value)], called: &[&str]) -> Sample {
        let base = mcpmill_testkit::sample(self.tool(calls[0].0), said, calls[0].0, &calls[0].1);
        let call = |(place, (name, arguments)): (usize, &(&str, Value))| {
            let function = FunctionCall { name: (*name).into(), arguments: arguments.as_object().unwrap().clone() };
            Message::call(ToolCall::new(format!("call_{place}"), function))
        };
        let turns = calls.iter().enumerate().map(call);
        let messages = std::iter::once(Message::user(said)).chain(turns).collect();
        Sample { kind, messages, tool_ids: called.iter().map(|name| self.tool(name).id.clone()).collect(), ..base }
    }

    async fn run(&self, sample: Sample, model: Arc<Scripted>, mode: Mode) -> Done<Trajectory> {
        let recorder = Arc::new(Recorder::new(self.store.clone(), mode));
        let chat = RecordedChat::new(model as Arc<dyn ChatModel>, Arc::clone(&recorder));
        let prompt = |id: &str| {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../prompts/{id}.md"));
            Prompt::parse(id, &fs::read_to_string(file).unwrap())
        };
        let writer = Writer { prompts: RolloutPrompts::read(prompt).unwrap(), models: Models::new(chat, HashMap::new()) };
        // A replay reaches nothing.
        let nobody = || ScriptedServers::new(|_, _, _| panic!("nobody is asked"));
        let servers = Servers {
            by_id: [(self.server.id.clone(), self.server.clone())].into(),
            toolbox: Arc::new(Toolbox::new(self.tools.clone())),
            connector: if mode == Mode::Replay { nobody() } else { Arc::clone(&self.connector) },
        };
        let settings = RolloutSettings {
            max_calls: 9,
            answer: false,
            policy: Policy::default(),
            worlds: Arc::new([("memory".to_owned(), self.world.clone())].into()),
            networked: Arc::default(),
            pace: Pace { concurrency: 1, max_failure_rate: 1.0 },
        };
        let out = Kept::default();
        let cx = Context { recorder, ..context("5-rollout") };
        rollout(vec![sample], &settings, &servers, Some(&writer), &cx, &out).await.unwrap();
        assert_eq!(clients::alive(&self.scratch.path().display().to_string()), Vec::<u32>::new());
        assert_eq!(fs::read_dir(self.scratch.path().join("worlds")).unwrap().count(), 0, "the world is gone");
        out.ends().remove(0)
    }

    /// Runs a sample live, and again in replay: the rows are the same bytes.
    async fn twice(&self, sample: Sample, model: Arc<Scripted>) -> Trajectory {
        let mut live = self.run(sample.clone(), model, Mode::Reuse).await;
        assert_eq!(live.outcome.outcome, OutcomeKind::Kept, "{:?}", live.outcome);
        let replayed = self.run(sample, Scripted::new(|_| panic!("nobody is asked")), Mode::Replay).await;
        assert_eq!(serde_json::to_string(&replayed.rows).unwrap(), serde_json::to_string(&live.rows).unwrap());
        live.rows.remove(0)
    }
}

fn told(row: &Trajectory) -> Vec<String> {
    let told = |message: &Message| match message {
        Message::Tool { content, .. } => Some(content.clone()),
        _ => None,
    };
    row.messages.iter().filter_map(told).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_and_a_recovery_on_a_real_server() {
    let memory = Memory::new().await;
    let model = Scripted::new(|request| {
        Some(match request.prompt_kind.as_str() {
            "next" => json!({"names": ["Ghent store"]}).to_string(),
            _ => json!({"answer": "I opened what is known of the Ghent store."}).to_string(),
        })
    });
    let first = [("search_nodes", json!({"query": "Ghent"}))];
    let chain = memory.sample(SampleKind::Chain, "Search for Ghent and open it.", &first, &["search_nodes", "open_nodes"]);
    let row = memory.twice(chain, model).await;
    let answers = told(&row);
    assert!(answers.len() == 2 && answers.iter().all(|answer| answer.contains("Ghent store")), "{answers:?}");
    assert!(matches!(row.messages.last(), Some(Message::Assistant { content: Some(_), .. })), "{:?}", row.cause);

    // What is added in the world of a conversation is there for its next call, and gone for the next conversation.
    let add = |name: &str| ("add_observations", json!({"observations": [{"entityName": name, "contents": ["opens at 9"]}]}));
    let calls = [add("Gent store"), add("Ghent store")];
    let recovery = memory.sample(SampleKind::Recover, "Note that the Ghent store opens at 9.", &calls, &["add_observations"]);
    let row = memory.twice(recovery, Scripted::new(|_| panic!("no turn is written"))).await;
    let answers = told(&row);
    assert!(answers[0].contains("Gent store") && answers[1].contains("opens at 9"), "{answers:?}");
    assert_eq!(row.masked, [1]);
    let results: Vec<ToolResult> = serde_json::from_str(row.result.as_deref().unwrap()).unwrap();
    assert_eq!((results[0].is_error, results[1].is_error), (true, false));

    // The right call twice: nothing fails.
    let calls = [add("Ghent store"), add("Ghent store")];
    let none = memory.sample(SampleKind::Recover, "Note that the Ghent store opens at 9.", &calls, &["add_observations"]);
    let done = memory.run(none, Scripted::new(|_| None), Mode::Reuse).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Dropped, "did-not-fail"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_real_server_finds_what_is_in_its_world() {
    let memory = Memory::new().await;
    let settings = LookSettings {
        max_calls: 2,
        policy: Policy::default(),
        worlds: Arc::new([("memory".to_owned(), memory.world.clone())].into()),
        networked: Arc::default(),
    };
    let recorder = Arc::new(Recorder::new(memory.store.clone(), Mode::Reuse));
    let cx = Context { recorder, ..context("3-generate") };
    let servers = [memory.server.clone()];
    let found = look(&memory.tools, &servers, &settings, memory.connector.as_ref(), &cx).await;
    let names = &found[&memory.server.id];
    assert!(["Nadia", "Oskar", "Ghent store"].iter().all(|name| names.iter().any(|found| found == name)), "{names:?}");
    assert_eq!(fs::read_dir(memory.scratch.path().join("worlds")).unwrap().count(), 0, "the world is gone");
}

/// The whole line with a look: it finds names, a replay makes the same rows, and how many conversations
/// brought usable answers is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_looks_first_replays() {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let folder = Folder::with(&["memory"]);
    let flags = ["--set", "generate.look=true", "--set", "generate.samples=8"];
    let run = |more: &[&str]| {
        let args = [&["run"], more, &flags].concat();
        String::from_utf8_lossy(&ok(&mut folder.with_model(&model.base_url(), &args)).stderr).into_owned()
    };
    let said = run(&[]);
    assert!(said.contains("looked at 1 servers: ") && said.contains(" names on 1 of them"), "{said}");
    assert!(said.contains("brought usable answers (with a look first)"), "{said}");
    let first = folder.run();
    let report: Value = serde_json::from_slice(&fs::read(first.join("report.json")).unwrap()).unwrap();
    let told = report["stages"].as_array().unwrap().iter().find_map(|stage| stage["numbers"]["executable"].as_object());
    assert!(told.is_some_and(|told| told["ok"].as_u64() > Some(0) && told["ok"].as_u64() <= told["run"].as_u64()), "{report}");
    let asked = model.requests().await;
    run(&["--new", "--set", "mode=replay"]);
    assert_ne!(folder.run(), first);
    assert_eq!(tree(&folder.run()), tree(&first));
    assert_eq!(model.requests().await, asked);
}

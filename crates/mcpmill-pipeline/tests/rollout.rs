//! Conversations of every kind, run on servers and with a model that answer by rule.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{collections::HashMap, sync::Arc};

use mcpmill_core::{
    drive::{Context, Done, Pace},
    edge::{
        ChatModel, ChatRequest, Exchange, ExchangeKind, Mode, OpeningCall, RecordedChat, Recorder, ToolError, ToolErrorKind,
        WorldSpec,
    },
    id::ServerId,
    record::{
        Ended, FunctionCall, Launch, Message, OutcomeKind, Revision, Sample, SampleKind, ServerRecord, Tool, ToolCall,
        ToolResult, Trajectory,
    },
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    models::Models,
    policy::Policy,
    prompt::Prompt,
    rollout::{CUT_SHORT, RolloutPrompts, RolloutSettings, Servers, Writer, rollout},
};
use mcpmill_testkit::{Call, Kept, Remembering, Scripted, ScriptedServers, context, text};
use serde_json::{Map, Value, json};

fn prompts() -> RolloutPrompts {
    RolloutPrompts::read(|id| {
        let text = match id {
            "next" => include_str!("../../../prompts/next.md"),
            "answer" => include_str!("../../../prompts/answer.md"),
            "user" => include_str!("../../../prompts/user.md"),
            _ => panic!("`{id}` is no prompt of the stage"),
        };
        Prompt::parse(id, text)
    })
    .unwrap()
}

fn takes(name: &str, description: &str, needed: &[&str]) -> Tool {
    let properties: Map<String, Value> = needed.iter().map(|n| ((*n).to_owned(), json!({"type": "string"}))).collect();
    let schema = json!({"type": "object", "properties": properties, "required": needed, "additionalProperties": false});
    mcpmill_testkit::tool("notes", name, description, schema)
}

fn tools() -> Vec<Tool> {
    let mail = mcpmill_testkit::tool(
        "mail",
        "send",
        "Sends a message",
        json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}),
    );
    vec![
        takes("list_notes", "Lists notes", &[]),
        takes("read_note", "Shows a note", &["note_id"]),
        takes("delete_note", "Deletes a note", &["note_id"]),
        mail,
    ]
}

fn tool(name: &str) -> Tool {
    tools().into_iter().find(|t| t.name == name).unwrap()
}

fn error(kind: ToolErrorKind, detail: &str) -> ToolError {
    ToolError { server: "notes".into(), action: "call tool".into(), kind, detail: detail.into() }
}

/// A shelf of two notes. Deleting one is seen by later calls of the same world.
fn shelf(server: &str, before: &[Call], (tool, arguments): &Call) -> Result<ToolResult, ToolError> {
    let id = arguments.get("note_id").and_then(Value::as_str).unwrap_or_default();
    let gone = before.iter().any(|(tool, earlier)| tool == "delete_note" && earlier.get("note_id").is_some_and(|n| n == id));
    Ok(match (server, tool.as_str(), id) {
        ("mail", ..) => text("sent"),
        (_, "list_notes", _) => text(r#"[{"id": "n-17", "title": "Plumber"}, {"id": "n-18", "title": "Lost"}]"#),
        (_, "read_note", "n-17") if !gone => text("The plumber comes on Thursday at 10."),
        (_, "delete_note", "n-17") if !gone => text("deleted n-17"),
        (_, _, "n-40") => text(r#"{"success": false}"#),
        (_, _, "n-50") => return Err(error(ToolErrorKind::Rpc(-32602), "no such id: n-50")),
        (_, _, "n-60") => return Err(error(ToolErrorKind::Disconnected, "the server ended")),
        _ => ToolResult { is_error: true, ..text(&format!("there is no note `{id}`")) },
    })
}

fn call(id: &str, name: &str, arguments: &Value) -> ToolCall {
    ToolCall::new(id, FunctionCall { name: name.into(), arguments: arguments.as_object().unwrap().clone() })
}

fn note_id(id: &str) -> Value {
    json!({ "note_id": id })
}

fn sample(kind: SampleKind, instruction: &str, turns: Vec<Message>, called: &[&str]) -> Sample {
    let tools: Vec<Tool> = called.iter().map(|name| tool(name)).collect();
    let base = mcpmill_testkit::sample(&tool("list_notes"), instruction, "list_notes", &json!({}));
    let mut messages = vec![Message::user(instruction)];
    messages.extend(turns);
    Sample { kind, messages, tool_ids: tools.iter().map(|t| t.id.clone()).collect(), ..base }
}

/// A chain that lists notes and reads the one about the plumber.
fn chain(second: &str) -> Sample {
    let later = json!({"tool": tool(second).id, "from_answer": "note_id", "arguments": {}}).to_string();
    let note = Revision { step: "later".into(), prompt: None, model: None, parent: None, text: later };
    let first = Message::call(call("call_a", "list_notes", &json!({})));
    let instruction = "Look up my notes and show me the one about the plumber.";
    Sample { lineage: vec![note], ..sample(SampleKind::Chain, instruction, vec![first], &["list_notes", second]) }
}

fn several_turns() -> Sample {
    let first = Message::call(call("call_a", "list_notes", &json!({})));
    sample(SampleKind::MultiTurn, "Which notes do I have?", vec![first], &["list_notes", "read_note", "delete_note"])
}

fn recovery(wrong: &str) -> Sample {
    let calls = [("call_w", wrong), ("call_r", "n-17")].map(|(id, note)| Message::call(call(id, "read_note", &note_id(note))));
    sample(SampleKind::Recover, "Show me note n-17.", calls.to_vec(), &["read_note"])
}

/// What a test runs conversations with.
struct Bench {
    servers: Arc<ScriptedServers>,
    model: Arc<Scripted>,
    store: Arc<Remembering>,
    mode: Mode,
    settings: RolloutSettings,
}

impl Bench {
    fn new(script: impl Fn(&ChatRequest) -> Option<String> + Send + Sync + 'static) -> Self {
        let settings = RolloutSettings {
            max_calls: 100,
            answer: false,
            policy: Policy::default(),
            worlds: Arc::default(),
            networked: Arc::default(),
            pace: Pace { concurrency: 1, max_failure_rate: 1.0 },
        };
        let (servers, model) = (ScriptedServers::new(shelf), Scripted::new(script));
        Self { servers, model, store: Arc::default(), mode: Mode::Reuse, settings }
    }

    fn refusing(mut self, pattern: &str) -> Self {
        self.settings.policy = Policy::new(vec![pattern.into()]).unwrap();
        self
    }

    async fn all(&self, samples: Vec<Sample>) -> Vec<Done<Trajectory>> {
        let recorder = Arc::new(Recorder::new(self.store.clone(), self.mode));
        let chat = RecordedChat::new(Arc::clone(&self.model) as Arc<dyn ChatModel>, Arc::clone(&recorder));
        let writer = Writer { prompts: prompts(), models: Models::new(chat, HashMap::new()) };
        let named = |name: &str| {
            let id = ServerId(format!("srv_{name}"));
            let launch = Launch::Stdio { command: "npx".into(), args: vec![name.into()] };
            let world = self.settings.worlds.keys().cloned().collect();
            (id.clone(), ServerRecord { id, world, ..mcpmill_testkit::server(name, launch) })
        };
        let servers = Servers {
            by_id: ["notes", "mail"].map(named).into(),
            toolbox: Arc::new(Toolbox::new(tools())),
            connector: self.servers.clone(),
        };
        let cx = Context { recorder, ..context("5-rollout") };
        let out = Kept::default();
        rollout(samples, &self.settings, &servers, Some(&writer), &cx, &out).await.unwrap();
        out.ends()
    }

    async fn run(&self, sample: Sample) -> Done<Trajectory> {
        self.all(vec![sample]).await.remove(0)
    }

    /// The cause and the raw reply of a conversation that did not become one of its kind.
    async fn cut_short(&self, sample: Sample) -> (String, Option<String>) {
        let done = self.run(sample).await;
        assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Dropped, CUT_SHORT), "{:?}", done.outcome);
        assert!(done.rows.is_empty());
        (done.outcome.cause.unwrap(), done.outcome.raw)
    }

    async fn row(&self, sample: Sample) -> Trajectory {
        let mut done = self.run(sample).await;
        assert_eq!(done.outcome.outcome, OutcomeKind::Kept, "{:?}", done.outcome);
        done.rows.remove(0)
    }
}

/// A model that does all turns well.
fn able(request: &ChatRequest) -> Option<String> {
    let asked = match request.messages.last() {
        Some(Message::User { content }) => content.as_str(),
        _ => "",
    };
    Some(match request.prompt_kind.as_str() {
        "next" => note_id("n-17").to_string(),
        "answer" if asked.contains("deleted") => json!({"answer": "I deleted n-17."}).to_string(),
        "answer" if asked.contains("plumber comes") => json!({"answer": "The plumber comes on Thursday at 10."}).to_string(),
        "answer" => json!({"answer": "There are n-17, \"Plumber\", and n-18, \"Lost\"."}).to_string(),
        "user" if asked.contains("Tool: delete_note") => json!({"request": "Then delete n-17."}).to_string(),
        "user" => json!({"request": "What does n-17 say?"}).to_string(),
        other => panic!("`{other}` is not asked here"),
    })
}

/// `able`, but for one kind of prompt.
fn but(kind: &'static str, reply: &Value) -> impl Fn(&ChatRequest) -> Option<String> + Send + Sync + 'static {
    let reply = reply.to_string();
    move |request| if request.prompt_kind == kind { Some(reply.clone()) } else { able(request) }
}

/// Who speaks, in short: `user`, `text`, the tool that is called, `=` for an answer.
fn shape(row: &Trajectory) -> Vec<String> {
    let of = |message: &Message| match message {
        Message::System { .. } => "system".to_owned(),
        Message::User { .. } => "user".to_owned(),
        Message::Assistant { content: Some(_), .. } => "text".to_owned(),
        Message::Assistant { tool_calls, .. } => {
            tool_calls.iter().map(|c| c.function.name.as_str()).collect::<Vec<_>>().join("+")
        }
        Message::Tool { .. } => "=".to_owned(),
    };
    row.messages.iter().map(of).collect()
}

fn results(row: &Trajectory) -> Vec<ToolResult> {
    serde_json::from_str(row.result.as_deref().unwrap()).unwrap()
}

#[tokio::test]
async fn a_single_call_asks_what_it_always_asked() {
    let bench = Bench::new(able);
    let single = sample(
        SampleKind::Single,
        "Show me note n-17.",
        vec![Message::call(call("call_a", "read_note", &note_id("n-17")))],
        &["read_note"],
    );
    let row = bench.row(single).await;
    assert_eq!(shape(&row), ["user", "read_note", "="]);
    assert_eq!(
        serde_json::from_str::<ToolResult>(row.result.as_deref().unwrap()).unwrap(),
        text("The plumber comes on Thursday at 10.")
    );
    let kept = bench.store.kept();
    let question = json!({
        "launch": Launch::Stdio { command: "npx".into(), args: vec!["notes".into()] }, "env": [],
        "world": {"files": {}, "setup": [], "at_hand": []}, "tool": "read_note", "arguments": {"note_id": "n-17"},
    });
    assert_eq!((kept.len(), &kept[0].request), (1, &question));
    assert_eq!(bench.servers.log(), ["+notes", "notes read_note", "-notes"]);
    assert!(bench.model.asked().is_empty());
}

#[tokio::test]
async fn calls_that_a_world_begins_with_come_first_and_are_no_part_of_the_conversation() {
    let opened = |id: &str| {
        let opening = OpeningCall { tool: "delete_note".into(), arguments: note_id(id).as_object().unwrap().clone() };
        let mut bench = Bench::new(able);
        bench.settings.worlds =
            Arc::new([("shelf".to_owned(), WorldSpec { opening: vec![opening], ..WorldSpec::default() })].into());
        bench
    };
    let single = |id| {
        sample(
            SampleKind::Single,
            "Show me a note.",
            vec![Message::call(call("call_a", "read_note", &note_id(id)))],
            &["read_note"],
        )
    };
    let bench = opened("n-17");
    let row = bench.row(single("n-17")).await;
    assert_eq!(bench.servers.log(), ["+notes", "notes delete_note", "notes read_note", "-notes"]);
    assert_eq!(shape(&row), ["user", "read_note", "="]);
    assert!(row.result.unwrap().contains("there is no note `n-17`"), "it was deleted at the start");
    let kept = bench.store.kept();
    assert_eq!((kept.len(), &kept[0].request["world"]["opening"][0]["tool"]), (1, &json!("delete_note")));

    let refused = opened("n-99").run(single("n-17")).await;
    assert_eq!(refused.outcome.outcome, OutcomeKind::Failed, "a server that cannot be got to run says nothing of the sample");
    assert!(refused.outcome.cause.unwrap().contains("opening call `delete_note`"));
}

#[tokio::test]
async fn a_text_is_made_of_the_answers_where_that_is_asked_for() {
    let mut bench = Bench::new(able);
    bench.settings.answer = true;
    let single = sample(
        SampleKind::Single,
        "Show me note n-17.",
        vec![Message::call(call("call_a", "read_note", &note_id("n-17")))],
        &["read_note"],
    );
    assert_eq!(shape(&bench.row(single).await), ["user", "read_note", "=", "text"]);
    assert_eq!(bench.model.asked(), ["answer"]);
}

#[tokio::test]
async fn calls_of_one_turn_share_a_world_and_are_answered_in_order() {
    let bench = Bench::new(able);
    let calls = vec![
        call("call_a", "delete_note", &note_id("n-17")),
        call("call_b", "send", &json!({"text": "hello"})),
        call("call_c", "read_note", &note_id("n-17")),
    ];
    let turn = Message::Assistant { content: None, tool_calls: calls };
    let row = bench.row(sample(SampleKind::Parallel, "Do it all.", vec![turn], &["delete_note", "send", "read_note"])).await;
    assert_eq!(shape(&row), ["user", "delete_note+send+read_note", "=", "=", "="]);
    let texts: Vec<String> = results(&row).iter().map(ToolResult::text).collect();
    assert_eq!(texts, ["deleted n-17", "sent", "there is no note `n-17`"]);
    let log = ["+notes", "notes delete_note", "+mail", "mail send", "notes read_note", "-mail", "-notes"];
    assert_eq!(bench.servers.log(), log);
}

#[tokio::test]
async fn a_turn_with_a_refused_call_is_not_run() {
    let bench = Bench::new(able).refusing("mail/*");
    let calls = vec![call("call_a", "list_notes", &json!({})), call("call_b", "send", &json!({"text": "hello"}))];
    let turn = Message::Assistant { content: None, tool_calls: calls };
    let done = bench.run(sample(SampleKind::Parallel, "Do it all.", vec![turn], &["list_notes", "send"])).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Skipped, "refused: mail/*"));
    assert_eq!((done.rows[0].ended, done.rows[0].policy.rule.as_str()), (Ended::Refused, "mail/*"));
    assert!(bench.servers.log().is_empty());
}

#[tokio::test]
async fn a_chain_goes_on_with_what_the_first_answer_brought() {
    let bench = Bench::new(able);
    let row = bench.row(chain("read_note")).await;
    assert_eq!(shape(&row), ["user", "list_notes", "=", "read_note", "=", "text"]);
    assert_eq!(row.messages[3].tool_calls()[0].function.arguments, *note_id("n-17").as_object().unwrap());
    assert_ne!(row.messages[1].tool_calls()[0].id, row.messages[3].tool_calls()[0].id);
    assert_eq!((row.ended, row.cause.as_deref(), row.masked.len(), results(&row).len()), (Ended::Answer, None, 0, 2));
    assert_eq!(bench.servers.log(), ["+notes", "notes list_notes", "notes read_note", "-notes"]);
    assert_eq!(bench.model.asked(), ["next", "answer"]);
}

#[tokio::test]
async fn a_next_call_with_a_value_nobody_said_ends_the_chain() {
    let bench = Bench::new(but("next", &note_id("n-99")));
    let (cause, raw) = bench.cut_short(chain("read_note")).await;
    assert!(cause.contains("`n-99` was not said"), "{cause}");
    assert_eq!(raw, Some(note_id("n-99").to_string()), "what the model said is kept");
    assert_eq!(bench.model.asked(), ["next"; 3]);
    assert_eq!(bench.servers.log(), ["+notes", "notes list_notes", "-notes"]);
}

#[tokio::test]
async fn a_text_that_makes_something_up_is_left_out() {
    let bench = Bench::new(but("answer", &json!({"answer": "The plumber comes at 11."})));
    let row = bench.row(chain("read_note")).await;
    assert_eq!(shape(&row), ["user", "list_notes", "=", "read_note", "="]);
    assert!(row.cause.as_deref().unwrap().contains("`11` is in no answer"), "{:?}", row.cause);
    assert_eq!(bench.model.asked(), ["next", "answer", "answer", "answer"]);
}

#[tokio::test]
async fn a_chain_of_one_call_is_none_and_says_why() {
    let bench = Bench::new(able).refusing("*/delete_*");
    let (cause, _) = bench.cut_short(chain("delete_note")).await;
    assert!(cause.contains("`delete_note` is refused by `*/delete_*`"), "{cause}");
    assert!(bench.model.asked().is_empty());

    let bench = Bench::new(but("next", &note_id("n-18")));
    let (cause, _) = bench.cut_short(chain("read_note")).await;
    assert!(cause.contains("`read_note` failed: there is no note"), "{cause}");

    let mut said = chain("read_note");
    said.messages[0] = Message::user("Look up my notes and show me n-60.");
    let mut bench = Bench::new(but("next", &note_id("n-60")));
    assert!(bench.cut_short(said.clone()).await.0.contains("`n-60` is not what the answers brought"));
    bench.servers = ScriptedServers::new(|server, before, call| match call.0.as_str() {
        "list_notes" => Ok(text("n-60: Plumber")),
        _ => shelf(server, before, call),
    });
    bench.store = Arc::default();
    assert!(bench.cut_short(said).await.0.contains("the server ended"));
    assert_eq!(bench.servers.log().last().unwrap(), "-notes");

    let mut first = chain("read_note");
    first.tool_ids.reverse();
    first.messages[1] = Message::call(call("call_a", "read_note", &note_id("n-18")));
    let bench = Bench::new(able);
    assert!(bench.cut_short(first).await.0.contains("`read_note` failed"), "nothing follows a first call that fails");
}

#[tokio::test]
async fn a_chain_over_two_servers_has_a_world_of_each() {
    let said = |request: &ChatRequest| match request.prompt_kind.as_str() {
        "next" => Some(json!({"text": "Plumber"}).to_string()),
        _ => Some(json!({"answer": "I sent it."}).to_string()),
    };
    let bench = Bench::new(said);
    let mut sample = chain("send");
    sample.lineage.clear();
    let row = bench.row(sample).await;
    assert_eq!(shape(&row), ["user", "list_notes", "=", "send", "=", "text"]);
    assert_eq!(bench.servers.log(), ["+notes", "notes list_notes", "+mail", "mail send", "-mail", "-notes"]);
}

#[tokio::test]
async fn turns_follow_from_what_was_seen() {
    let bench = Bench::new(able);
    let row = bench.row(several_turns()).await;
    let turn = |tool: &'static str| ["user", tool, "=", "text"];
    assert_eq!(shape(&row), [turn("list_notes"), turn("read_note"), turn("delete_note")].concat());
    assert_eq!(row.messages[4], Message::user("What does n-17 say?"));
    assert_eq!((results(&row).len(), row.masked.len(), row.cause), (3, 0, None));
    assert_eq!(bench.servers.log().iter().filter(|l| l.starts_with('+')).count(), 1, "one world for the whole length");
    let asked = ["answer", "user", "next", "answer", "user", "next", "answer"];
    assert_eq!(bench.model.asked(), asked);
    let steps: Vec<&str> = row.lineage.iter().map(|revision| revision.step.as_str()).collect();
    assert_eq!(steps, asked, "who wrote which turn");
    let request = &row.lineage[1];
    assert_eq!((request.text.as_str(), request.prompt.as_deref()), ("What does n-17 say?", Some(prompts().user.hash.as_str())));
    assert!(row.lineage.iter().all(|revision| revision.model.is_some()) && request.parent.is_some());
}

#[tokio::test]
async fn a_conversation_of_one_turn_has_not_several() {
    for (kind, reply, cause) in [
        ("user", json!({"request": "What does n-99 say?"}), "`n-99` was not seen"),
        ("user", json!({"request": "Use read_note on n-17."}), "names the tool"),
        ("user", json!({"request": "Sure, here is n-17."}), "an assistant's"),
        ("user", json!({"request": "I am the assistant and I have finished the whole task for you."}), "an assistant's"),
        ("user", json!({"request": "All of it was deleted. How can I help you further?"}), "an assistant's"),
        ("next", note_id("n-99"), "`n-99` was not said"),
        ("next", note_id("customers"), "`customers` was not said"),
        ("answer", json!({"answer": "Sorry, as an AI language model I cannot help with that request."}), "refuses"),
        ("answer", json!({"answer": "The tool reported an ENOENT; nothing was done at all."}), "`tool`, which nobody did"),
        ("answer", json!({"answer": "Something failed on the way."}), "`failed`, which nobody did"),
        ("answer", json!({"answer": "There are 3 notes."}), "`3` is in no answer"),
    ] {
        let bench = Bench::new(but(kind, &reply));
        let (why, raw) = bench.cut_short(several_turns()).await;
        assert!(why.contains(cause) && raw == Some(reply.to_string()), "{why} {raw:?}");
    }
}

#[tokio::test]
async fn a_last_turn_that_comes_to_nothing_is_taken_out_whole() {
    let requests = |delete: Value| {
        move |request: &ChatRequest| match request.prompt_kind.as_str() {
            "next" if format!("{:?}", request.messages.last()).contains("Tool: delete_note") => Some(delete.to_string()),
            _ => able(request),
        }
    };
    // n-18 is seen, and deleting it fails; n-99 was never seen.
    for (id, cause) in [("n-18", "`delete_note` failed"), ("n-99", "`n-99` was not said")] {
        let row = Bench::new(requests(note_id(id))).row(several_turns()).await;
        assert_eq!(shape(&row), ["user", "list_notes", "=", "text", "user", "read_note", "=", "text"]);
        assert_eq!((results(&row).len(), row.masked.len(), row.lineage.len()), (2, 0, 4));
        assert!(row.cause.as_deref().unwrap().contains(cause), "{:?}", row.cause);
    }
}

#[tokio::test]
async fn a_wrong_call_gets_its_real_error_and_is_masked() {
    for (wrong, told) in [("n-71", "there is no note `n-71`"), ("n-40", r#"{"success": false}"#), ("n-50", "no such id: n-50")] {
        let bench = Bench::new(able);
        let row = bench.row(recovery(wrong)).await;
        assert_eq!(
            (shape(&row), &row.masked[..]),
            (["user", "read_note", "=", "read_note", "="].map(str::to_owned).to_vec(), &[1][..])
        );
        assert!(
            matches!(&row.messages[2], Message::Tool { content, tool_call_id, .. } if content == told && tool_call_id == "call_w")
        );
        assert_eq!(results(&row).len(), 2);
        assert_eq!(bench.servers.log(), ["+notes", "notes read_note", "notes read_note", "-notes"]);
    }
}

#[tokio::test]
async fn a_wrong_call_that_works_makes_no_recovery() {
    let bench = Bench::new(able);
    let done = bench.run(recovery("n-17")).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Dropped, "did-not-fail"));
    assert!(done.rows.is_empty());
    assert_eq!(bench.servers.log().last().unwrap(), "-notes", "the server is ended all the same");

    let row = bench.row(recovery("n-60")).await;
    assert_eq!((row.ended, row.messages.len()), (Ended::Failed, 2));
}

#[tokio::test]
async fn asking_back_runs_its_call_and_no_tool_runs_nothing() {
    let bench = Bench::new(able);
    let turns = vec![
        Message::assistant("Which note?"),
        Message::user("n-17"),
        Message::call(call("call_a", "read_note", &note_id("n-17"))),
    ];
    let row = bench.row(sample(SampleKind::Ask, "Show me a note.", turns, &["read_note"])).await;
    assert_eq!(shape(&row), ["user", "text", "user", "read_note", "="]);

    let none = sample(SampleKind::NoTool, "Book a flight.", vec![Message::assistant("I cannot do that.")], &[]);
    let done = bench.run(none).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Skipped, "nothing-to-run"));
    assert!(done.rows.is_empty());
}

#[tokio::test]
async fn a_replay_asks_nobody_and_makes_the_same_bytes() {
    let mut bench = Bench::new(able);
    let samples = || vec![chain("read_note"), several_turns(), recovery("n-71")];
    let rows = |ends: Vec<Done<Trajectory>>| serde_json::to_string(&ends.iter().map(|d| &d.rows).collect::<Vec<_>>()).unwrap();
    let live = rows(bench.all(samples()).await);
    bench.servers = ScriptedServers::new(|_, _, _| panic!("nobody is asked"));
    bench.model = Scripted::new(|_| panic!("nobody is asked"));
    bench.mode = Mode::Replay;
    assert_eq!(rows(bench.all(samples()).await), live);
    assert!(live.contains("The plumber comes on Thursday"));

    bench.store.forget(|exchange| exchange.request["tool"] == "read_note");
    let ends = bench.all(samples()).await;
    assert!(ends.iter().all(|done| done.outcome.reason == "not-recorded"), "{ends:?}");
}

/// The exchange of a call of this tool that has calls before it.
fn later(tool: &'static str) -> impl Fn(&Exchange) -> bool {
    move |exchange| exchange.kind == ExchangeKind::Call && exchange.request["tool"] == tool
}

#[tokio::test]
async fn a_conversation_that_a_kill_cut_off_is_gone_on_with_in_a_world_like_the_old_one() {
    let mut bench = Bench::new(able);
    let before = bench.row(chain("read_note")).await;
    bench.store.forget(later("read_note"));
    bench.servers = ScriptedServers::new(shelf);
    assert_eq!(bench.row(chain("read_note")).await, before);
    // The first call is repeated to bring the world up; its answer is the recorded one.
    assert_eq!(bench.servers.log(), ["+notes", "notes list_notes", "notes read_note", "-notes"]);
    // With both recorded, no server is started.
    bench.servers = ScriptedServers::new(shelf);
    assert_eq!(bench.row(chain("read_note")).await, before);
    assert!(bench.servers.log().is_empty());
}

#[tokio::test]
async fn a_world_that_cannot_be_had_again_is_begun_anew() {
    let mut bench = Bench::new(able);
    bench.row(chain("read_note")).await;
    bench.store.forget(later("read_note"));
    // Ids are others now: what was answered before is of no use.
    bench.servers = ScriptedServers::new(|_, _, (tool, arguments)| {
        Ok(match (tool.as_str(), arguments.get("note_id").and_then(Value::as_str)) {
            ("list_notes", _) => text(r#"[{"id": "n-81", "title": "Plumber"}]"#),
            (_, Some("n-81")) => text("The plumber comes on Friday."),
            _ => ToolResult { is_error: true, ..text("no such note") },
        })
    });
    bench.model = Scripted::new(|request| {
        let asked = format!("{:?}", request.messages);
        Some(match request.prompt_kind.as_str() {
            "next" if asked.contains("n-81") => note_id("n-81").to_string(),
            "next" => note_id("n-17").to_string(),
            _ => json!({"answer": "The plumber comes on Friday."}).to_string(),
        })
    });
    let row = bench.row(chain("read_note")).await;
    assert_eq!(shape(&row), ["user", "list_notes", "=", "read_note", "=", "text"]);
    assert!(serde_json::to_string(&row).unwrap().contains("n-81"));
    // A replay finds the way too.
    bench.servers = ScriptedServers::new(|_, _, _| panic!("nobody is asked"));
    bench.mode = Mode::Replay;
    assert_eq!(bench.row(chain("read_note")).await, row);
}

#[tokio::test]
async fn what_cannot_be_asked_fails_the_row_and_nothing_is_left_running() {
    let bench = Bench::new(|_| None);
    let done = bench.run(chain("read_note")).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "next: model-failed"));
    assert_eq!(bench.servers.log().last().unwrap(), "-notes");

    let bench = Bench::new(able);
    bench.servers.without("notes");
    let done = bench.run(chain("read_note")).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, "launch-failed"));
}

#[tokio::test]
async fn repairs_of_written_turns_are_counted() {
    let fenced = |request: &ChatRequest| able(request).map(|reply| format!("```json\n{reply}\n```"));
    let done = Bench::new(fenced).run(chain("read_note")).await;
    let steps: Vec<&str> = done.rows[0].lineage.iter().map(|revision| revision.step.as_str()).collect();
    assert_eq!(steps, ["next", "repair:code-fence", "answer", "repair:code-fence"]);
    let repairs = json!(done.outcome.repairs);
    assert_eq!(repairs, json!({"next: code-fence": 1, "answer: code-fence": 1}));

    let broken = move |request: &ChatRequest| if request.prompt_kind == "next" { fenced(request) } else { None };
    let done = Bench::new(broken).run(chain("read_note")).await;
    assert_eq!((done.outcome.outcome, json!(done.outcome.repairs)), (OutcomeKind::Failed, json!({"next: code-fence": 1})));
}

#[tokio::test]
async fn the_share_counts_calls() {
    let mut bench = Bench::new(able);
    bench.settings.max_calls = 5;
    let samples = vec![chain("read_note"), several_turns(), recovery("n-71")];
    let ends = bench.all(samples).await;
    let beyond = ends.iter().filter(|done| done.outcome.reason == "beyond-share").count();
    let calls = bench.servers.log().iter().filter(|line| line.contains(' ')).count();
    assert!((1..=2).contains(&beyond) && calls <= 5, "{beyond} {calls}");
}

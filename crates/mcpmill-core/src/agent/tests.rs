use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use serde_json::json;
use tokio::time::sleep;

use super::*;
use crate::{
    edge::{ChatModel, Mode, Recorder, exchange::tests::Memory},
    record::FunctionCall,
};

/// What a scripted model does in one turn.
#[derive(Clone)]
enum Does {
    Says(&'static str),
    Calls(Vec<(&'static str, Value)>),
    Fails(ChatErrorKind),
    Filtered,
    Thinks(u64),
}

/// Does one thing a request; the last over and over.
struct Model {
    script: Vec<Does>,
    asked: Mutex<Vec<ChatRequest>>,
}

#[async_trait]
impl ChatModel for Model {
    fn model(&self) -> &str {
        "scripted"
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatReply, ChatError> {
        let place = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(request.clone());
            asked.len() - 1
        };
        let usage = Usage { input_tokens: 10, output_tokens: 5, cost: 0.5, ..Usage::default() };
        let reply = |content: &str, tool_calls: Vec<ToolCall>, finish| {
            Ok(ChatReply { content: content.into(), tool_calls, finish, usage, attempts: 1, repairs: Vec::new() })
        };
        match self.script.get(place).or(self.script.last()).cloned().unwrap() {
            Does::Says(text) => reply(text, Vec::new(), Finish::Stop),
            Does::Filtered => reply("", Vec::new(), Finish::Filtered),
            Does::Calls(calls) => {
                let call = |(i, (name, arguments)): (usize, (&str, Value))| {
                    let arguments = arguments.as_object().unwrap().clone();
                    ToolCall::new(format!("call_{place}_{i}"), FunctionCall { name: name.into(), arguments })
                };
                reply("", calls.into_iter().enumerate().map(call).collect(), Finish::Stop)
            }
            Does::Fails(kind) => {
                Err(ChatError { model: "scripted".into(), kind, detail: "down".into(), raw: None, attempts: 1, usage })
            }
            Does::Thinks(ms) => {
                sleep(Duration::from_millis(ms)).await;
                reply("done", Vec::new(), Finish::Stop)
            }
        }
    }
}

/// Tools: `echo` tells its text, `fail` fails, `slow` takes 200 ms, `gone` ends all.
#[derive(Default)]
struct Belt {
    running: AtomicU32,
    most: AtomicU32,
    ran: Mutex<Vec<String>>,
}

#[async_trait]
impl ToolBelt for Belt {
    async fn run(&self, call: &ToolCall) -> Result<ToolReply, String> {
        self.ran.lock().unwrap().push(call.id.clone());
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let text = call.function.arguments.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
        // The first takes longest: at once, the answers come in the other order.
        let wait = if call.function.name == "slow" {
            200
        } else if text == "first" {
            20
        } else {
            1
        };
        sleep(Duration::from_millis(wait)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        match call.function.name.as_str() {
            "fail" => Ok(ToolReply { text: "Error: no such file".into(), failed: true }),
            "gone" => Err("the server ended".into()),
            _ => Ok(ToolReply { text, failed: false }),
        }
    }
}

fn offered() -> Vec<ToolSpec> {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": false});
    let spec = |name: &str| ToolSpec { name: name.into(), description: "d".into(), parameters: schema.clone() };
    ["echo", "fail", "slow", "gone"].map(spec).to_vec()
}

const MANNER: Manner<'static> = Manner {
    temperature: 0.0,
    top_p: 1.0,
    max_tokens: 100,
    seed: 7,
    prompt_kind: "agent",
    checks_arguments: true,
    at_once: false,
    retry: None,
};

/// A model, its tools and a store.
struct Bench {
    model: Arc<Model>,
    belt: Belt,
    store: Arc<Memory>,
    cancel: CancellationToken,
}

impl Bench {
    fn new(script: &[Does]) -> Self {
        let model = Arc::new(Model { script: script.to_vec(), asked: Mutex::default() });
        Self { model, belt: Belt::default(), store: Arc::default(), cancel: CancellationToken::new() }
    }

    async fn run(&self, manner: Manner<'_>, limits: AgentLimits) -> Conversation {
        self.in_mode(Mode::Reuse, manner, limits).await
    }

    async fn in_mode(&self, mode: Mode, manner: Manner<'_>, limits: AgentLimits) -> Conversation {
        let recorder = Arc::new(Recorder::new(self.store.clone(), mode));
        let chat = RecordedChat::new(Arc::<Model>::clone(&self.model), recorder);
        let offered = offered();
        let task = Task { model: &chat, tools: &self.belt, offered: &offered, messages: vec![Message::user("Do it.")], manner };
        converse(task, &limits, &self.cancel).await
    }

    fn asked(&self) -> usize {
        self.model.asked.lock().unwrap().len()
    }
}

fn echo(text: &str) -> (&'static str, Value) {
    ("echo", json!({ "text": text }))
}

fn limits() -> AgentLimits {
    AgentLimits::default()
}

/// What the tools said, in order.
fn told(said: &Conversation) -> Vec<&str> {
    let mut told = Vec::new();
    for message in &said.messages {
        if let Message::Tool { content, .. } = message {
            told.push(content.as_str());
        }
    }
    told
}

#[tokio::test]
async fn goes_on_until_the_model_answers_in_words() {
    let bench =
        Bench::new(&[Does::Calls(vec![echo("first"), echo("second")]), Does::Calls(vec![echo("third")]), Does::Says("Done.")]);
    let said = bench.run(MANNER, limits()).await;
    assert!(matches!(said.ended, Ended::Answer));
    assert_eq!(told(&said), ["first", "second", "third"]);
    assert_eq!(said.messages.last(), Some(&Message::assistant("Done.")));
    assert!(matches!(&said.messages[1], Message::Assistant { content: None, tool_calls } if tool_calls.len() == 2));
    assert!(
        matches!(&said.messages[3], Message::Tool { tool_call_id, name, .. } if tool_call_id == "call_0_1" && name == "echo")
    );
    assert_eq!((said.usage.input_tokens, said.paid.output_tokens, said.attempts, said.turns.len()), (30, 15, 3, 3));
    assert_eq!((said.turns[0].calls, said.turns[2].finish), (2, Some(Finish::Stop)));
    assert_eq!(bench.belt.most.load(Ordering::SeqCst), 1, "one after the other");
    let asked = bench.model.asked.lock().unwrap();
    assert_eq!((asked[2].messages.len(), asked[0].seed, asked[2].seed, asked[0].tools.len()), (6, 7, 9, 4));
}

#[tokio::test]
async fn calls_of_one_turn_can_run_at_once_and_are_told_in_order() {
    let bench = Bench::new(&[Does::Calls(vec![echo("first"), echo("second")]), Does::Says("Done.")]);
    let said = bench.run(Manner { at_once: true, ..MANNER }, limits()).await;
    assert_eq!(told(&said), ["first", "second"]);
    assert_eq!(bench.belt.most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_a_model_gets_wrong_is_told_and_counted() {
    let calls = vec![("absent", json!({})), ("echo", json!({"words": 1})), ("fail", json!({})), echo("fine")];
    let bench = Bench::new(&[Does::Calls(calls), Does::Says("Done.")]);
    let said = bench.run(MANNER, limits()).await;
    let answers = told(&said);
    assert!(answers[0].contains("no tool `absent`") && answers[0].contains("echo, fail"), "{answers:?}");
    assert!(answers[1].contains("the arguments do not fit") && answers[1].contains("words"), "{answers:?}");
    assert_eq!(&answers[2..], ["Error: no such file", "fine"]);
    let note = &said.turns[0];
    assert_eq!((note.calls, note.unknown, note.invalid, note.failed, note.cut), (4, 1, 1, 1, 0));
    assert_eq!(*bench.belt.ran.lock().unwrap(), ["call_0_2", "call_0_3"], "no tool sees what does not fit");

    let bench = Bench::new(&[Does::Calls(vec![("echo", json!({"words": 1}))]), Does::Says("Done.")]);
    bench.run(Manner { checks_arguments: false, ..MANNER }, limits()).await;
    assert_eq!(bench.belt.ran.lock().unwrap().len(), 1, "the tool may check for itself");
}

#[tokio::test]
async fn a_long_answer_is_cut_and_that_is_told() {
    let bench = Bench::new(&[Does::Calls(vec![echo("ééééé"), echo("ééé")]), Does::Says("Done.")]);
    let said = bench.run(MANNER, AgentLimits { answer_chars: 3, ..limits() }).await;
    assert_eq!(told(&said), ["ééé…\n(cut: the first 3 of 5 characters)", "ééé"]);
    assert_eq!(said.turns[0].cut, 1);
}

#[tokio::test]
async fn every_limit_ends_it() {
    let forever = |i: usize| Does::Calls(vec![("echo", json!({"text": i.to_string()}))]);
    let script: Vec<Does> = (0..9).map(forever).collect();
    for (bounds, limit, turns) in [
        (AgentLimits { turns: 2, ..limits() }, Limit::Turns, 2),
        (AgentLimits { turns: 0, ..limits() }, Limit::Turns, 0),
        (AgentLimits { tokens: Some(40), ..limits() }, Limit::Tokens, 3),
        (AgentLimits { cost: Some(1.0), ..limits() }, Limit::Cost, 2),
        (AgentLimits { time: Some(Duration::ZERO), ..limits() }, Limit::Time, 0),
    ] {
        let bench = Bench::new(&script);
        let said = bench.run(MANNER, bounds).await;
        assert!(matches!(said.ended, Ended::Limit(found) if found == limit), "{limit:?}: {:?}", said.ended);
        assert_eq!((said.turns.len(), bench.asked(), told(&said).len()), (turns, turns, turns), "{limit:?}");
    }
    // The last turn that is allowed may answer.
    let bench = Bench::new(&[forever(0), Does::Says("Done.")]);
    assert!(matches!(bench.run(MANNER, AgentLimits { turns: 2, ..limits() }).await.ended, Ended::Answer));
}

#[tokio::test]
async fn a_model_that_repeats_itself_is_ended() {
    let bench = Bench::new(&[Does::Calls(vec![echo("other")]), Does::Calls(vec![echo("again")])]);
    let said = bench.run(MANNER, AgentLimits { repeats: Some(2), ..limits() }).await;
    assert!(matches!(said.ended, Ended::Limit(Limit::Repeats)), "{:?}", said.ended);
    assert_eq!(told(&said), ["other", "again", "again", "again"]);
    let bench = Bench::new(&[Does::Calls(vec![echo("again")])]);
    let said = bench.run(MANNER, AgentLimits { repeats: None, turns: 6, ..limits() }).await;
    assert!(matches!(said.ended, Ended::Limit(Limit::Turns)));
}

#[tokio::test]
async fn time_that_is_up_ends_it_where_it_is() {
    let quick = AgentLimits { time: Some(Duration::from_millis(60)), ..limits() };
    let bench = Bench::new(&[Does::Thinks(5000)]);
    assert!(matches!(bench.run(MANNER, quick).await.ended, Ended::Limit(Limit::Time)));

    let bench = Bench::new(&[Does::Calls(vec![echo("a"), ("slow", json!({}))])]);
    let said = bench.run(MANNER, quick).await;
    assert!(matches!(said.ended, Ended::Limit(Limit::Time)));
    assert_eq!(told(&said), ["a"], "what was answered stays");
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_told_as_a_failure() {
    let bench = Bench::new(&[Does::Calls(vec![("slow", json!({})), echo("b")]), Does::Says("Done.")]);
    let said = bench.run(MANNER, AgentLimits { call_time: Some(Duration::from_millis(30)), ..limits() }).await;
    assert!(matches!(said.ended, Ended::Answer));
    assert_eq!(told(&said), ["Error: no answer within 0.03 s", "b"]);
    assert_eq!(said.turns[0].failed, 1);
}

#[tokio::test]
async fn a_failed_reply_is_worth_what_the_manner_says() {
    let bench = Bench::new(&[Does::Fails(ChatErrorKind::Provider), Does::Says("Done.")]);
    let said = bench.run(MANNER, limits()).await;
    assert!(matches!(&said.ended, Ended::Failed(error) if error.kind == ChatErrorKind::Provider));
    assert_eq!((said.attempts, said.paid.cost, said.usage.cost, said.turns[0].retries), (1, 0.5, 0.0, 1));

    let pauses = Mutex::new(Vec::new());
    let retry = |error: &ChatError, failed: u32| {
        pauses.lock().unwrap().push((error.kind, failed));
        (failed < 3).then_some(Duration::from_millis(1))
    };
    let patient = Manner { retry: Some(&retry), ..MANNER };
    let script = [Does::Fails(ChatErrorKind::Network), Does::Fails(ChatErrorKind::Provider), Does::Says("Done.")];
    let said = Bench::new(&script).run(patient, limits()).await;
    assert!(matches!(said.ended, Ended::Answer));
    assert_eq!((said.turns[0].retries, said.turns.len(), said.attempts), (2, 1, 3));
    assert_eq!(*pauses.lock().unwrap(), [(ChatErrorKind::Network, 1), (ChatErrorKind::Provider, 2)]);

    let bench = Bench::new(&[Does::Fails(ChatErrorKind::Network)]);
    assert!(matches!(bench.run(patient, limits()).await.ended, Ended::Failed(_)));
    assert_eq!(bench.asked(), 3, "the third in a row ends it");

    // A reply that takes longer than one may counts as failed.
    let bench = Bench::new(&[Does::Thinks(5000), Does::Says("Done.")]);
    let said = bench.run(patient, AgentLimits { reply_time: Some(Duration::from_millis(20)), ..limits() }).await;
    assert!(matches!(said.ended, Ended::Answer));
    assert_eq!(said.turns[0].retries, 1);

    // No pause reaches past the end of all.
    let retry = |_: &ChatError, _: u32| Some(Duration::from_secs(500));
    let bench = Bench::new(&[Does::Fails(ChatErrorKind::Network)]);
    let bounds = AgentLimits { time: Some(Duration::from_secs(100)), ..limits() };
    let said = bench.run(Manner { retry: Some(&retry), ..MANNER }, bounds).await;
    assert!(matches!(said.ended, Ended::Limit(Limit::Time)));
}

#[tokio::test]
async fn an_answer_that_is_withheld_and_tools_that_are_gone_end_it() {
    let bench = Bench::new(&[Does::Filtered]);
    let said = bench.run(MANNER, limits()).await;
    assert!(matches!(said.ended, Ended::Failed(_)) && said.messages.len() == 1);
    let bench = Bench::new(&[Does::Calls(vec![echo("a"), ("gone", json!({})), echo("b")])]);
    let said = bench.run(MANNER, limits()).await;
    assert!(matches!(&said.ended, Ended::ToolsFailed(why) if why == "the server ended"));
    assert_eq!(told(&said), ["a"]);
}

#[tokio::test]
async fn it_can_be_stopped_from_outside() {
    let bench = Bench::new(&[Does::Calls(vec![echo("a")]), Does::Thinks(5000)]);
    let stop = async {
        sleep(Duration::from_millis(50)).await;
        bench.cancel.cancel();
    };
    let (said, ()) = tokio::join!(bench.run(MANNER, limits()), stop);
    assert!(matches!(said.ended, Ended::Cancelled));
    assert_eq!((told(&said), said.turns.len()), (vec!["a"], 2));
}

#[tokio::test]
async fn a_replay_says_the_same_and_pays_nothing() {
    let bench = Bench::new(&[Does::Calls(vec![echo("a")]), Does::Says("Done.")]);
    let live = bench.run(MANNER, limits()).await;
    let replayed = bench.in_mode(Mode::Replay, MANNER, limits()).await;
    assert_eq!((&replayed.messages, replayed.usage), (&live.messages, live.usage));
    assert_eq!((replayed.paid, replayed.attempts, bench.asked()), (Usage::default(), 0, 2));
    assert!(replayed.turns.iter().all(|turn| !turn.live));
}

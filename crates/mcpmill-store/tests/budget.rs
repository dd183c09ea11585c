//! A run that would cost three dollars and may cost one: over the driver, the journal, the recorder and the store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking; Clippy exempts only functions marked as tests")]

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use mcpmill_core::{
    account::{Budget, Caps},
    drive::{Context, Done, Pace, StageError, drive},
    edge::{ChatError, ChatModel, ChatReply, ChatRequest, Finish, Format, Mode, RecordedChat, Recorder},
    event::{Events, Summary},
    id::{SampleId, ServerId},
    record::{Message, Outcome, Sample, SampleKind, Tool, ToolDraft, Usage, Wait},
};
use mcpmill_store::{
    exchanges::SqliteExchanges,
    journal::{Journal, JournalOptions},
    run_dir::{RunDir, StageState},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const ROWS: u64 = 150;
/// What one call costs, and what it may cost at most. A row makes two.
const PRICE: f64 = 0.01;
const AT_MOST: f64 = 0.025;

/// A model that has its price.
struct Priced(AtomicU64);

#[async_trait]
impl ChatModel for Priced {
    fn model(&self) -> &str {
        "priced"
    }

    fn at_most(&self, _: &ChatRequest) -> Usage {
        Usage { output_tokens: 250, cost: AT_MOST, ..Usage::default() }
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatReply, ChatError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(request.seed % 3)).await;
        let usage = Usage { output_tokens: 100, cost: PRICE, ..Usage::default() };
        let content = format!("answer to {}", request.seed);
        Ok(ChatReply { content, tool_calls: Vec::new(), finish: Finish::Stop, usage, attempts: 1, repairs: Vec::new() })
    }
}

fn tools() -> Vec<Tool> {
    let draft = |n| ToolDraft {
        name: format!("tool-{n}"),
        title: None,
        description: None,
        input_schema: json!({"type": "object"}),
        output_schema: None,
        annotations: None,
    };
    (0..ROWS).map(|n| Tool::new(ServerId("srv_1".into()), draft(n))).collect()
}

/// Two questions, one after the other.
async fn work(tool: Tool, model: &RecordedChat) -> Done<Sample> {
    let id = tool.id.as_str();
    let number: u64 = tool.name.trim_start_matches("tool-").parse().unwrap();
    let (mut text, mut used) = (String::new(), Usage::default());
    for step in 0..2 {
        let request = ChatRequest {
            messages: vec![Message::user("q")],
            tools: Vec::new(),
            format: Format::Text,
            temperature: 0.0,
            top_p: 1.0,
            max_tokens: 250,
            seed: number * 2 + step,
            prompt_kind: String::new(),
        };
        match model.chat(&request).await {
            Ok(replied) => {
                text += &replied.reply.content;
                if replied.live {
                    used += replied.reply.usage;
                }
            }
            Err(error) => {
                assert_eq!(error.waits(), Some(Wait::Budget), "{error}");
                return Done::none(Outcome::waiting(id, Wait::Budget, error.to_string()).with_usage(used, 0));
            }
        }
    }
    let sample = Sample {
        id: SampleId::of(&tool.id),
        kind: SampleKind::Single,
        tool_ids: vec![tool.id.clone()],
        withheld: vec![],
        server_ids: vec![],
        language: "en".into(),
        messages: vec![Message::user(&text)],
        instruction: text,
        lineage: vec![],
    };
    let mut done = Done::kept(id, vec![sample]);
    done.outcome = done.outcome.with_usage(used, 2);
    done
}

/// One invocation: the sums, or why it stopped, and what the run has used by then.
async fn invoke(folder: &Path, cap: f64, asked: &Arc<Priced>) -> (Result<Summary, StageError>, Usage) {
    let runs = folder.join("runs");
    let run = RunDir::open(&runs, "2026-11-29-ffffffff")
        .unwrap_or_else(|_| RunDir::create(&runs, "2026-11-29", "ffffffff", "0.1.0").unwrap());
    let StageState::Open(stage) = run.stage("3-generate", "f").unwrap() else { panic!("done before") };
    let recorder = Recorder::new(Arc::new(SqliteExchanges::open(&folder.join("x.sqlite"), &run.info().id).unwrap()), Mode::Reuse);
    recorder.cut_off().await.unwrap();
    let caps = Caps { cost: Some(cap), ..Caps::default() };
    let used = recorder.accounts().unwrap().usage();
    let recorder = Arc::new(recorder.with_budget(Budget::new(caps, used)));
    let model = RecordedChat::new(Arc::clone(asked) as Arc<dyn ChatModel>, Arc::clone(&recorder));
    let (events, cancel) = (Events::channel().0, CancellationToken::new());
    let cx = Context { stage: "3-generate".into(), events, cancel, recorder: Arc::clone(&recorder) };
    let journal: Journal<Sample> = Journal::open(stage, JournalOptions { part_rows: 20, verdicts: false }).unwrap();
    let pace = Pace { concurrency: 16, max_failure_rate: 0.0 };
    let ended = drive(tools(), pace, &cx, &journal, |tool| work(tool, &model)).await;
    if let Ok(summary) = &ended {
        journal.finish(summary).unwrap();
    }
    recorder.cut_off().await.unwrap();
    let account = recorder.accounts().unwrap().by_name["priced"];
    assert_eq!((account.failed, account.cut_off), (0, 0));
    (ended, account.usage)
}

#[tokio::test]
async fn a_dollar_is_never_exceeded_and_the_rest_is_made_later() {
    let [calm, capped] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let whole = Arc::new(Priced(AtomicU64::new(0)));
    let (ended, used) = invoke(calm.path(), 1000.0, &whole).await;
    assert!(ended.is_ok() && (used.cost - 3.0).abs() < 1e-9, "{used:?}");

    let asked = Arc::new(Priced(AtomicU64::new(0)));
    let calls = || asked.0.load(Ordering::SeqCst) as f64;
    for cap in [1.0, 1.0, 2.0] {
        let (ended, used) = invoke(capped.path(), cap, &asked).await;
        let error = ended.unwrap_err();
        assert!(matches!(error, StageError::Budget { done, rows: ROWS, .. } if done < ROWS), "{error}");
        assert!(used.cost <= cap && used.cost > cap - AT_MOST - 1e-9, "{} of {cap}", used.cost);
        assert!((used.cost - calls() * PRICE).abs() < 1e-9, "every call is in the accounts");
    }
    let (ended, used) = invoke(capped.path(), 4.0, &asked).await;
    assert_eq!((ended.unwrap().kept, calls()), (ROWS, 2.0 * ROWS as f64));
    assert!((used.cost - 3.0).abs() < 1e-9, "nothing was paid for twice: {used:?}");
    let file = |folder: &Path| fs::read(folder.join("runs/2026-11-29-ffffffff/3-generate/samples.parquet")).unwrap();
    assert!(file(calm.path()) == file(capped.path()), "the files differ");
}

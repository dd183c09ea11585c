//! Every filter drops the row that was planted bad for it, keeps the good one, and says `unjudged`
//! when its model is missing or answers nonsense.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use mcpmill_core::{
    drive::{Context, Done, Pace},
    edge::{EmbedError, Embedder, RecordedEmbedder},
    id::TrajectoryId,
    naming::alias,
    record::{Ended, Judgement, OutcomeKind, PolicyDecision, Sample, Tool, ToolResult, Trajectory, Verdict},
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    filter::{Chain, Parts, filter_samples, filter_trajectories},
    models::Models,
    prompt::Prompt,
};
use mcpmill_testkit::{Kept, Scripted, context, recorder, sample};
use serde_json::{Value, json};

/// What a judge says that is down.
const DOWN: &str = "(down)";

/// Vectors by word count of a few marker words.
struct Words;

#[async_trait]
impl Embedder for Words {
    fn model(&self) -> &str {
        "words"
    }
    async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let vector = |text: &String| {
            ["read", "file", "weather", "please", "disk"].map(|w| text.to_lowercase().matches(w).count() as f32).to_vec()
        };
        Ok(texts.iter().map(vector).collect())
    }
}

fn tool(name: &str, output_schema: Option<Value>) -> Tool {
    let schema =
        json!({"type":"object","properties":{"path":{"type":"string"}},"required":["path"],"additionalProperties":false});
    let tool = mcpmill_testkit::tool("1", name, "Read a file from disk", schema);
    Tool { output_schema: output_schema.map(|schema| schema.to_string()), ..tool }
}

struct Bench {
    toolbox: Arc<Toolbox>,
    cx: Context,
    chain: Chain,
}

/// A chain of one step, judged by a model that says `says`.
fn bench(step: &str, says: Option<&str>, embedder: bool, tools: Vec<Tool>) -> Bench {
    let toolbox = Arc::new(Toolbox::new(tools));
    let model = |text: &str| {
        let text = text.to_owned();
        Scripted::new(move |_| Some(text.clone()).filter(|text| text != DOWN)).recorded()
    };
    let prompt = |id: &str| {
        let text = match id {
            "pick" => include_str!("../../../prompts/pick.md"),
            "score" => include_str!("../../../prompts/score.md"),
            "response" => include_str!("../../../prompts/response.md"),
            _ => return None,
        };
        Some(Prompt::parse(id, text).unwrap())
    };
    let parts = Parts {
        embedder: if embedder { Ok(RecordedEmbedder::new(Arc::new(Words), recorder())) } else { Err("not here".into()) },
        models: says.map(|text| Models::new(model(text), HashMap::new())).ok_or_else(|| "down".into()),
        toolbox: Arc::clone(&toolbox),
        prompt: &prompt,
    };
    let chain = Chain::parse("test", &format!("[[step]]\nname = \"it\"\n{step}\n"), &parts).unwrap();
    Bench { toolbox, cx: context("4-filter"), chain }
}

const PACE: Pace = Pace { concurrency: 2, max_failure_rate: 1.0 };

impl Bench {
    async fn judge(&self, sample: Sample) -> (OutcomeKind, Verdict) {
        let out = Kept::default();
        filter_samples(vec![sample], &self.chain, Arc::clone(&self.toolbox), PACE, &self.cx, &out).await.unwrap();
        let done = out.ends().remove(0);
        let kept = done.outcome.outcome == OutcomeKind::Kept;
        assert_eq!(kept, done.rows.len() == 1);
        (done.outcome.outcome, done.verdicts[0].clone())
    }

    async fn respond(&self, sample: &Sample, ended: Ended, result: Option<ToolResult>) -> (Done<Trajectory>, String) {
        let trajectory = Trajectory {
            id: TrajectoryId("trj_1".into()),
            sample_id: sample.id.clone(),
            messages: sample.messages.clone(),
            ended,
            cause: None,
            policy: PolicyDecision { allowed: true, rule: "default".into() },
            result: result.map(|r| serde_json::to_string(&r).unwrap()),
            response_verdict: None,
            masked: Vec::new(),
        };
        let samples = HashMap::from([(sample.id.clone(), sample.clone())]);
        let out = Kept::default();
        filter_trajectories(vec![trajectory], &samples, &self.chain, Arc::clone(&self.toolbox), PACE, &self.cx, &out)
            .await
            .unwrap();
        let done = out.ends().remove(0);
        let reason = done.verdicts.first().map(|v| v.reason.split(':').next().unwrap().to_owned()).unwrap_or_default();
        (done, reason)
    }
}

fn good(tool: &Tool) -> Sample {
    sample(tool, "Please read the file notes.txt", &alias(&tool.name), &json!({"path": "notes.txt"}))
}

#[tokio::test]
async fn schema_valid() {
    let tool = tool("read", None);
    let bench = bench("kind = \"schema-valid\"", None, false, vec![tool.clone()]);
    assert_eq!(bench.judge(good(&tool)).await.0, OutcomeKind::Kept);
    for bad in [json!({}), json!({"path": 7}), json!({"path": "a", "mode": "r"})] {
        let (outcome, verdict) = bench.judge(sample(&tool, "x", "read", &bad)).await;
        assert_eq!((outcome, verdict.judgement), (OutcomeKind::Dropped, Judgement::Drop), "{}", verdict.reason);
        assert!(!verdict.reason.is_empty());
    }
    assert_eq!(bench.judge(sample(&tool, "x", "write", &json!({"path": "a"}))).await.0, OutcomeKind::Dropped);
}

#[tokio::test]
async fn embedding_similarity() {
    let tool = tool("read", None);
    let step = "kind = \"embedding-similarity\"\nmax = 0.9\nmin = 0.1";
    let with = bench(step, None, true, vec![tool.clone()]);
    assert_eq!(with.judge(good(&tool)).await.0, OutcomeKind::Kept);
    let copy = with.judge(sample(&tool, "Read a file from disk", "read", &json!({"path": "a"}))).await.1;
    assert_eq!((copy.judgement, copy.threshold), (Judgement::Drop, Some(0.9)));
    assert!(copy.score.unwrap() > 0.99);
    let alien = with.judge(sample(&tool, "How is the weather, please?", "read", &json!({"path": "a"}))).await.1;
    assert_eq!((alien.judgement, alien.threshold), (Judgement::Drop, Some(0.1)));
    let (outcome, verdict) = bench(step, None, false, vec![tool.clone()]).judge(good(&tool)).await;
    assert_eq!(
        (outcome, verdict.judgement),
        (OutcomeKind::Kept, Judgement::Unjudged),
        "a missing model is neither a drop nor a pass"
    );
    assert!(verdict.reason.contains("not here"));
}

#[tokio::test]
async fn tool_invocation() {
    let right = tool("read", None);
    let step = "kind = \"tool-invocation\"\nprompt = \"pick\"\nverifiers = [\"verifier-a\", \"verifier-b\"]\ndistractors = 2\ndrop_when = \"all-miss\"";
    // The stand-ins for distractors are copies of each other but not of the labelled tool.
    let distinct = |names: &[&str]| -> Vec<Tool> {
        names
            .iter()
            .enumerate()
            .map(|(i, n)| Tool { cluster_id: mcpmill_core::id::ClusterId(format!("clu_{i}")), ..tool(n, None) })
            .collect()
    };
    let tools = distinct(&["read", "write", "list"]);
    let hit = bench(step, Some("{\"tool\": \"read\"}"), false, tools.clone()).judge(good(&right)).await;
    assert_eq!((hit.0, hit.1.score), (OutcomeKind::Kept, Some(2.0)));
    let miss = bench(step, Some("{\"tool\": \"write\"}"), false, tools.clone()).judge(good(&right)).await;
    assert_eq!((miss.0, miss.1.score), (OutcomeKind::Dropped, Some(0.0)));
    assert!(miss.1.evidence.unwrap().contains("write"));
    for says in [Some("I would read it."), Some("{\"tool\": \"made_up\"}"), None] {
        let (outcome, verdict) = bench(step, says, false, tools.clone()).judge(good(&right)).await;
        assert_eq!((outcome, verdict.judgement), (OutcomeKind::Kept, Judgement::Unjudged), "{says:?}");
    }
}

#[tokio::test]
async fn quality_score() {
    let tool = tool("read", None);
    let step = "kind = \"quality-score\"\nprompt = \"score\"\nmin = 6.0";
    let judge = async |says: Option<&str>| bench(step, says, false, vec![tool.clone()]).judge(good(&tool)).await.1;
    assert_eq!(judge(Some("{\"issue\": \"none\", \"score\": 6}")).await.judgement, Judgement::Keep);
    let bad = judge(Some("{\"issue\": \"vague\", \"score\": 5}")).await;
    assert_eq!((bad.judgement, bad.reason.as_str(), bad.score), (Judgement::Drop, "vague", Some(5.0)));
    for says in [Some("Score: 9"), Some("{\"issue\": \"none\", \"score\": 99}"), None] {
        assert_eq!(judge(says).await.judgement, Judgement::Unjudged, "{says:?}");
    }
    let lenient = format!("{step}\nmin_by_model = {{ \"scripted\" = 3.0, \"other\" = 9.0 }}");
    let judged =
        bench(&lenient, Some("{\"issue\": \"vague\", \"score\": 3}"), false, vec![tool.clone()]).judge(good(&tool)).await.1;
    assert_eq!((judged.judgement, judged.threshold), (Judgement::Keep, Some(3.0)), "the judge has a threshold of its own");
}

#[tokio::test]
async fn response_valid() {
    let plain = tool("read", None);
    let typed = tool("typed", Some(json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})));
    let step = "kind = \"response-valid\"\nprompt = \"response\"\nlongest = 50";
    let yes = bench(step, Some("{\"why\": \"fits\", \"ok\": true}"), false, vec![plain.clone(), typed.clone()]);
    let text =
        |text: &str| ToolResult { content: json!([{"type": "text", "text": text}]), structured_content: None, is_error: false };
    let sample = good(&plain);
    let (done, reason) = yes.respond(&sample, Ended::Answer, Some(text("the error rate fell"))).await;
    assert_eq!((done.outcome.outcome, reason.as_str()), (OutcomeKind::Kept, "ok"));
    assert_eq!(done.rows[0].response_verdict.as_deref(), Some("ok"));
    for (ended, result, want) in [
        (Ended::Answer, Some(ToolResult { is_error: true, ..text("no such file") }), "hard-error"),
        (Ended::Answer, Some(text(" ")), "empty"),
        (Ended::Answer, Some(text("{\"error\": \"fetch failed\"}")), "soft-error"),
        (Ended::Answer, Some(text(&"x".repeat(51))), "too-long"),
        (Ended::Limit, None, "timed-out"),
        (Ended::Failed, None, "server-failed"),
    ] {
        let (done, reason) = yes.respond(&sample, ended, result).await;
        assert_eq!((done.outcome.outcome, reason.as_str()), (OutcomeKind::Dropped, want));
    }
    let breach = ToolResult { structured_content: Some(json!({"n": "one"})), ..text("one") };
    assert_eq!(yes.respond(&good(&typed), Ended::Answer, Some(breach)).await.1, "schema-breach");
    let refused = yes.respond(&sample, Ended::Refused, None).await.0;
    assert_eq!((refused.outcome.outcome, refused.rows.len()), (OutcomeKind::Skipped, 1));

    let no = bench(step, Some("{\"why\": \"reports a failure\", \"ok\": false}"), false, vec![plain.clone()]);
    assert_eq!(no.respond(&sample, Ended::Answer, Some(text("could not do it"))).await.1, "soft-error");
    let silent = bench(step, None, false, vec![plain]);
    let (done, reason) = silent.respond(&sample, Ended::Answer, Some(text("fine"))).await;
    assert_eq!((done.outcome.outcome, reason.as_str()), (OutcomeKind::Kept, "unjudged"));
}

/// A row whose judge is down must not pass for judged: its stage would be sealed without it.
#[tokio::test]
async fn a_judge_that_cannot_be_asked_fails_the_row() {
    let tool = tool("read", None);
    let others =
        vec![tool.clone(), Tool { cluster_id: mcpmill_core::id::ClusterId("clu_x".into()), ..self::tool("write", None) }];
    for step in [
        "kind = \"quality-score\"\nprompt = \"score\"\nmin = 6.0",
        "kind = \"tool-invocation\"\nprompt = \"pick\"\nverifiers = [\"verifier-a\"]\ndistractors = 1\ndrop_when = \"all-miss\"",
    ] {
        let bench = bench(step, Some(DOWN), false, others.clone());
        let (outcome, verdict) = bench.judge(good(&tool)).await;
        assert_eq!((outcome, verdict.judgement), (OutcomeKind::Failed, Judgement::Unjudged), "{}", verdict.reason);
    }
    let bench = bench("kind = \"response-valid\"\nprompt = \"response\"\nlongest = 50", Some(DOWN), false, vec![tool.clone()]);
    let answer = ToolResult { content: json!([{"type": "text", "text": "fine"}]), structured_content: None, is_error: false };
    let (done, _) = bench.respond(&good(&tool), Ended::Answer, Some(answer)).await;
    assert_eq!((done.outcome.outcome, done.rows.len()), (OutcomeKind::Failed, 0));
    assert!(done.outcome.cause.unwrap().contains("no answer"));
}

#[test]
fn mistakes_in_a_chain_are_named() {
    let prompt = |_: &str| None;
    let parts =
        || Parts { embedder: Err("-".into()), models: Err("-".into()), toolbox: Arc::new(Toolbox::default()), prompt: &prompt };
    let error = |text: &str| Chain::parse("mine", text, &parts()).err().unwrap().to_string();
    assert!(error("").contains("`mine`"));
    assert!(error("[[step]]\nname = \"a\"\nkind = \"schema-vaild\"\n").contains("schema-vaild"));
    assert!(error("[[step]]\nname = \"a\"\nkind = \"quality-score\"\nprompt = \"nope\"\nmin = 1.0\n").contains("`nope`"));
    assert!(
        error("[[step]]\nname = \"a\"\nkind = \"quality-score\"\nprompt = \"score\"\nmin = 1.0\nmax = 2.0\n").contains("max")
    );
}

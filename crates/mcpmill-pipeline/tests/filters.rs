//! Every filter drops the row that was planted bad for it, keeps the good one, and says `unjudged`
//! when its model is missing or answers nonsense.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use mcpmill_core::{
    drive::{Context, Done, Pace},
    edge::{EmbedError, Embedder, Format, RecordedEmbedder},
    id::{ToolId, TrajectoryId},
    naming::alias,
    record::{
        Ended, FunctionCall, Judgement, Message, OutcomeKind, PolicyDecision, ResponseVerdict, Sample, SampleKind, Tool,
        ToolCall, ToolResult, Trajectory, Verdict,
    },
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    filter::{Chain, HeldOut, Parts, aspects, filter_samples, filter_trajectories},
    models::Models,
    prompt::Prompt,
};
use mcpmill_testkit::{Kept, Scripted, context, graded, recorder, sample};
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
            "none" => include_str!("../../../prompts/none.md"),
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
        programs: Err("none".into()),
        held_out: Arc::default(),
        prompt: &prompt,
    };
    let chain = Chain::parse("test", &format!("[[step]]\nname = \"it\"\n{step}\n"), &parts).unwrap();
    Bench { toolbox, cx: context("4-filter"), chain }
}

/// A chain of one judge.
fn scoring(model: &Arc<Scripted>, tools: Vec<Tool>) -> Bench {
    scoring_with(include_str!("../../../prompts/score.md"), model, tools)
}

/// As [`scoring`], with a prompt of one's own.
fn scoring_with(text: &str, model: &Arc<Scripted>, tools: Vec<Tool>) -> Bench {
    let toolbox = Arc::new(Toolbox::new(tools));
    let prompt = |_: &str| Some(Prompt::parse("score", text).unwrap());
    let models = Ok(Models::new(model.recorded(), HashMap::new()));
    let parts = Parts {
        embedder: Err("none".into()),
        models,
        toolbox: Arc::clone(&toolbox),
        held_out: Arc::default(),
        programs: Err("none".into()),
        prompt: &prompt,
    };
    let step = "[[step]]\nname = \"it\"\nkind = \"quality-score\"\nprompt = \"score\"\nmin = 6.0\n";
    Bench { toolbox, cx: context("4-filter"), chain: Chain::parse("test", step, &parts).unwrap() }
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
        let mut messages = sample.messages.clone();
        messages.extend(result.as_ref().map(|result| answer(sample.messages[1].tool_calls()[0].id.as_str(), result)));
        let result = result.map(|r| serde_json::to_string(&r).unwrap());
        self.judge_run(sample, Trajectory { result, ..ran(sample, messages, ended) }).await
    }

    async fn judge_run(&self, sample: &Sample, trajectory: Trajectory) -> (Done<Trajectory>, String) {
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
async fn embedding_similarity_has_thresholds_by_model() {
    let tool = tool("read", None);
    let step =
        |model: &str| format!("kind = \"embedding-similarity\"\nby_model = {{ \"{model}\" = {{ max = 0.9, min = 0.1 }} }}");
    let copy = || sample(&tool, "Read a file from disk", "read", &json!({"path": "a"}));
    let ours = bench(&step("words"), None, true, vec![tool.clone()]);
    assert_eq!(ours.judge(good(&tool)).await.1.judgement, Judgement::Keep);
    assert_eq!(ours.judge(copy()).await.1.judgement, Judgement::Drop);
    let (outcome, verdict) = bench(&step("another"), None, true, vec![tool.clone()]).judge(copy()).await;
    assert_eq!((outcome, verdict.judgement), (OutcomeKind::Kept, Judgement::Unjudged), "nobody knows what its figures mean");
    assert!(verdict.reason.contains("`words`") && verdict.reason.contains("mcpmill eval similarity"), "{}", verdict.reason);
    let both = format!("{}\nmax = 0.5\nmin = 0.1", step("another"));
    assert_eq!(bench(&both, None, true, vec![tool.clone()]).judge(copy()).await.1.threshold, Some(0.5), "those of any model");
}

/// All that a long description goes on to say hides that the request copies how it begins.
#[tokio::test]
async fn embedding_similarity_finds_the_first_sentence() {
    let step = "kind = \"embedding-similarity\"\nmax = 0.9\nmin = 0.1";
    let text = "Read a file from disk, please. The weather, the weather, the weather and the weather are returned with it.";
    let long = mcpmill_testkit::tool("1", "read", text, json!({"type": "object"}));
    let bench = bench(step, None, true, vec![long.clone()]);
    let verdict = bench.judge(sample(&long, "Please read a file from disk", "read", &json!({}))).await.1;
    assert_eq!(verdict.judgement, Judgement::Drop, "{verdict:?}");
    let evidence: Value = serde_json::from_str(verdict.evidence.as_deref().unwrap()).unwrap();
    assert!(evidence["whole"].as_f64().unwrap() < 0.9 && evidence["first"].as_f64().unwrap() > 0.99, "{evidence}");
}

/// The names that verifiers choose among, by kind of distractors.
#[tokio::test]
async fn tool_invocation_is_as_hard_as_its_distractors() {
    let of =
        |server: &str, name: &str, description: &str| mcpmill_testkit::tool(server, name, description, json!({"type": "object"}));
    let right = of("1", "read_file", "Read a file from disk");
    let mut tools =
        vec![right.clone(), of("1", "weather_now", "Tell the weather"), of("1", "weather_then", "Tell the weather again")];
    tools.push(of("2", "load_file", "Please read the disk file"));
    tools.push(of("3", "open_file", "Read the file on disk, then the file"));
    tools.extend((0..20).map(|n| of("4", &format!("other_{n}"), &format!("Weather, please {n}"))));
    let toolbox = Arc::new(Toolbox::new(tools));
    let prompt = |id: &str| match id {
        "pick" => Some(Prompt::parse(id, include_str!("../../../prompts/pick.md")).unwrap()),
        _ => Some(Prompt::parse(id, include_str!("../../../prompts/none.md")).unwrap()),
    };
    let shown = async |distract: &str, embedder: bool| {
        let seen: Arc<Mutex<Vec<BTreeSet<String>>>> = Arc::default();
        let sees = Arc::clone(&seen);
        let model = Scripted::new(move |request| {
            let Format::JsonSchema { schema, .. } = &request.format else { return None };
            let names = schema["properties"]["tool"]["enum"].as_array()?;
            sees.lock().unwrap().push(names.iter().filter_map(Value::as_str).map(str::to_owned).collect());
            Some(json!({"tool": "read_file"}).to_string())
        });
        let parts = Parts {
            embedder: if embedder { Ok(RecordedEmbedder::new(Arc::new(Words), recorder())) } else { Err("not here".into()) },
            models: Ok(Models::new(model.recorded(), HashMap::new())),
            toolbox: Arc::clone(&toolbox),
            programs: Err("none".into()),
            held_out: Arc::default(),
            prompt: &prompt,
        };
        let step = format!(
            "[[step]]\nname = \"it\"\nkind = \"tool-invocation\"\nprompt = \"pick\"\nverifiers = [\"verifier-a\", \"verifier-b\"]\n\
             distractors = 2\ndrop_when = \"all-miss\"\n{distract}"
        );
        let chain = Chain::parse("test", &step, &parts).unwrap();
        let bench = Bench { toolbox: Arc::clone(&toolbox), cx: context("4-filter"), chain };
        let verdict = bench.judge(sample(&right, "Read it to me", "read_file", &json!({}))).await.1;
        let seen = seen.lock().unwrap().clone();
        (verdict.judgement, seen)
    };
    let names = |names: [&str; 3]| names.map(str::to_owned).into_iter().collect::<BTreeSet<String>>();
    let (judgement, seen) = shown("distract = \"same-server\"", false).await;
    assert!(judgement == Judgement::Keep && !seen.is_empty());
    assert!(seen.iter().all(|seen| *seen == names(["read_file", "weather_now", "weather_then"])), "{seen:?}");
    let (_, seen) = shown("distract = \"nearest\"", true).await;
    assert!(seen.iter().all(|names| names.len() == 3) && seen.len() == 2, "{seen:?}");
    assert!(
        seen.iter().flatten().any(|name| name == "load_file") && seen.iter().flatten().any(|name| name == "open_file"),
        "{seen:?}"
    );
    let (_, seen) = shown("", false).await;
    assert_eq!(seen, shown("distract = \"random\"", false).await.1);
    let (judgement, seen) = shown("distract = \"nearest\"", false).await;
    assert_eq!((judgement, seen.len()), (Judgement::Unjudged, 0), "without an embedding model nothing is near");
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
    let says = |score: u32, issue: &str| {
        let mut says = graded(score);
        for (name, value) in [("fit", json!(10)), ("grounded", json!(9)), ("natural", json!(8)), ("issue", json!(issue))] {
            says[name] = value;
        }
        says.to_string()
    };
    assert_eq!(judge(Some(&says(6, "none"))).await.judgement, Judgement::Keep);
    let bad = judge(Some(&says(5, "vague"))).await;
    assert_eq!((bad.judgement, bad.reason.as_str(), bad.score), (Judgement::Drop, "vague", Some(5.0)));
    let seen: Vec<(String, f64)> = aspects(&bad).into_iter().collect();
    let want = [("clear", 5.0), ("fit", 10.0), ("grounded", 9.0), ("natural", 8.0)].map(|(name, score)| (name.to_owned(), score));
    assert_eq!(seen, want, "the verdict keeps what the judge says of each aspect");
    let without = "{\"issue\": \"none\", \"score\": 9}";
    for says in [Some("Score: 9"), Some(says(99, "none").as_str()), Some(without), None] {
        assert_eq!(judge(says).await.judgement, Judgement::Unjudged, "{says:?}");
    }
    let lenient = format!("{step}\nmin_by_model = {{ \"scripted\" = 3.0, \"other\" = 9.0 }}");
    let judged = bench(&lenient, Some(&says(3, "vague")), false, vec![tool.clone()]).judge(good(&tool)).await.1;
    assert_eq!((judged.judgement, judged.threshold), (Judgement::Keep, Some(3.0)), "the judge has a threshold of its own");
}

/// A prompt of the user's own that knows no aspects, as those of earlier releases.
#[tokio::test]
async fn quality_score_takes_prompts_without_aspects() {
    let tool = tool("read", None);
    let text = "+++\nrole = \"judge\"\ninputs = [\"card\", \"request\", \"arguments\"]\nformat = \"json\"\ntemperature = 0.0\ntop_p = 1.0\n\
        max_tokens = 60\ntries = 1\nschema = '{\"type\": \"object\", \"properties\": {\"score\": {\"type\": \"integer\", \"maximum\": 10}}, \
        \"required\": [\"score\"], \"additionalProperties\": false}'\n+++\n## user\n{{ card | fenced }}{{ request }}{{ arguments }}\n";
    let model = Scripted::new(|_| Some("{\"score\": 7}".into()));
    let bench = scoring_with(text, &model, vec![tool.clone()]);
    let verdict = bench.judge(good(&tool)).await.1;
    assert_eq!((verdict.judgement, verdict.score, verdict.reason.as_str()), (Judgement::Keep, Some(7.0), "no issue named"));
    assert!(aspects(&verdict).is_empty() && !verdict.evidence.unwrap().contains("aspects"));
}

fn ran(sample: &Sample, messages: Vec<Message>, ended: Ended) -> Trajectory {
    Trajectory {
        id: TrajectoryId("trj_1".into()),
        sample_id: sample.id.clone(),
        messages,
        ended,
        cause: None,
        policy: PolicyDecision { allowed: true, rule: "read-only".into(), why: String::new() },
        result: None,
        response_verdict: None,
        masked: Vec::new(),
        lineage: Vec::new(),
    }
}

fn answer(id: &str, result: &ToolResult) -> Message {
    Message::Tool { tool_call_id: id.into(), name: "read".into(), content: result.text() }
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
    assert_eq!(done.rows[0].response_verdict, Some(ResponseVerdict::Ok));
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
    assert_eq!(refused.rows[0].response_verdict, Some(ResponseVerdict::Refused));

    let no = bench(step, Some("{\"why\": \"reports a failure\", \"ok\": false}"), false, vec![plain.clone()]);
    assert_eq!(no.respond(&sample, Ended::Answer, Some(text("the shop is shut"))).await.1, "soft-error");
    let silent = bench(step, None, false, vec![plain]);
    let (done, reason) = silent.respond(&sample, Ended::Answer, Some(text("the error rate fell"))).await;
    assert_eq!((done.outcome.outcome, reason.as_str()), (OutcomeKind::Kept, "unjudged"));
}

/// Every answer of a conversation is looked at, but for those to calls that are masked.
#[tokio::test]
async fn response_valid_looks_at_all_answers() {
    let plain = tool("read", None);
    let step = "kind = \"response-valid\"\nprompt = \"response\"\nlongest = 50";
    let yes = bench(step, Some("{\"why\": \"fits\", \"ok\": true}"), false, vec![plain.clone()]);
    let sample = good(&plain);
    let call = |id: &str| Message::call(ToolCall::new(id, sample.messages[1].tool_calls()[0].function.clone()));
    let failed = ToolResult { is_error: true, ..mcpmill_testkit::text("no such file") };
    let fine = mcpmill_testkit::text("the error rate fell");
    let two = |first: &ToolResult, second: &ToolResult| {
        let messages = vec![sample.messages[0].clone(), call("a"), answer("a", first), call("b"), answer("b", second)];
        let result = Some(serde_json::to_string(&[first, second]).unwrap());
        Trajectory { result, ..ran(&sample, messages, Ended::Answer) }
    };
    let (done, reason) = yes.judge_run(&sample, two(&fine, &fine)).await;
    assert_eq!((reason.as_str(), done.verdicts[0].reason.as_str()), ("ok", "ok: fits; fits"));
    assert_eq!(yes.judge_run(&sample, two(&fine, &failed)).await.1, "hard-error");
    assert_eq!(yes.judge_run(&sample, two(&failed, &fine)).await.1, "hard-error");
    let masked = Trajectory { masked: vec![1], ..two(&failed, &fine) };
    assert_eq!(yes.judge_run(&sample, masked).await.1, "ok");
    let masked = Trajectory { masked: vec![1, 3], ..two(&failed, &failed) };
    assert_eq!(yes.judge_run(&sample, masked).await.1, "unjudged", "nothing is left to learn from");
    let short = Trajectory { result: Some(serde_json::to_string(&[&fine]).unwrap()), ..two(&fine, &fine) };
    assert_eq!(yes.judge_run(&sample, short).await.1, "unjudged", "an answer without its result cannot be judged");
}

/// A row whose judge is down is neither dropped nor judged, and says what is missing.
#[tokio::test]
async fn a_judge_that_cannot_be_asked_leaves_the_row_unjudged() {
    let tool = tool("read", None);
    let others =
        vec![tool.clone(), Tool { cluster_id: mcpmill_core::id::ClusterId("clu_x".into()), ..self::tool("write", None) }];
    for step in [
        "kind = \"quality-score\"\nprompt = \"score\"\nmin = 6.0",
        "kind = \"tool-invocation\"\nprompt = \"pick\"\nverifiers = [\"verifier-a\"]\ndistractors = 1\ndrop_when = \"all-miss\"",
    ] {
        let bench = bench(step, Some(DOWN), false, others.clone());
        let (outcome, verdict) = bench.judge(good(&tool)).await;
        assert_eq!((outcome, verdict.judgement), (OutcomeKind::Kept, Judgement::Unjudged), "{}", verdict.reason);
    }
    let bench = bench("kind = \"response-valid\"\nprompt = \"response\"\nlongest = 50", Some(DOWN), false, vec![tool.clone()]);
    let answer = ToolResult {
        content: json!([{"type": "text", "text": "the error rate fell"}]),
        structured_content: None,
        is_error: false,
    };
    let (done, _) = bench.respond(&good(&tool), Ended::Answer, Some(answer)).await;
    assert_eq!((done.outcome.outcome, done.rows.len()), (OutcomeKind::Kept, 1));
    assert_eq!(done.outcome.reason, "unjudged: it");
    assert!(done.outcome.cause.unwrap().contains("no answer"));
}

#[test]
fn mistakes_in_a_chain_are_named() {
    let prompt = |_: &str| None;
    let parts = || Parts {
        embedder: Err("-".into()),
        models: Err("-".into()),
        toolbox: Arc::new(Toolbox::default()),
        programs: Err("none".into()),
        held_out: Arc::default(),
        prompt: &prompt,
    };
    let error = |text: &str| Chain::parse("mine", text, &parts()).err().unwrap().to_string();
    assert!(error("").contains("`mine`"));
    assert!(error("[[step]]\nname = \"a\"\nkind = \"schema-vaild\"\n").contains("schema-vaild"));
    assert!(error("[[step]]\nname = \"a\"\nkind = \"quality-score\"\nprompt = \"nope\"\nmin = 1.0\n").contains("`nope`"));
    assert!(
        error("[[step]]\nname = \"a\"\nkind = \"quality-score\"\nprompt = \"score\"\nmin = 1.0\nmax = 2.0\n").contains("max")
    );
}

/// A call of `tool` with a path.
fn call(tool: &Tool, id: &str, arguments: &Value) -> ToolCall {
    ToolCall::new(id, FunctionCall { name: alias(&tool.name), arguments: arguments.as_object().unwrap().clone() })
}

/// A sample of another kind, with the turns after the request.
fn talk(kind: SampleKind, tools: &[&Tool], request: &str, turns: Vec<Message>) -> Sample {
    let first = sample(tools[0], request, "read", &json!({}));
    let ids: Vec<_> = tools.iter().map(|tool| tool.id.clone()).collect();
    let (tool_ids, withheld) = if kind == SampleKind::NoTool { (vec![], ids) } else { (ids, vec![]) };
    let messages = std::iter::once(Message::user(request)).chain(turns).collect();
    Sample { kind, tool_ids, withheld, messages, ..first }
}

fn both(a: ToolCall, b: ToolCall) -> Message {
    Message::Assistant { content: None, tool_calls: vec![a, b] }
}

#[tokio::test]
async fn schema_valid_looks_at_every_call_that_is_to_be_learned() {
    let (read, write) = (tool("read", None), Tool { id: ToolId("tool_w".into()), ..tool("write", None) });
    let bench = bench("kind = \"schema-valid\"", None, false, vec![read.clone(), write.clone()]);
    let (good, bad) = (json!({"path": "a"}), json!({"path": 7}));
    let judged = async |sample: Sample| {
        let (outcome, verdict) = bench.judge(sample).await;
        (outcome == OutcomeKind::Kept, verdict.reason)
    };
    let parallel =
        |second: ToolCall| talk(SampleKind::Parallel, &[&read, &write], "both", vec![both(call(&read, "1", &good), second)]);
    assert!(judged(parallel(call(&write, "2", &good))).await.0);
    assert!(!judged(parallel(call(&write, "2", &bad))).await.0, "the second call, too");
    let stranger = ToolCall::new("2", FunctionCall { name: "list".into(), arguments: good.as_object().unwrap().clone() });
    assert!(judged(parallel(stranger)).await.1.contains("`list`"));

    let recover = |wrong: &Value, right: &Value| {
        let turns = vec![Message::call(call(&read, "1", wrong)), Message::call(call(&read, "2", right))];
        talk(SampleKind::Recover, &[&read], "read it", turns)
    };
    assert!(judged(recover(&bad, &good)).await.0, "the wrong call may be as wrong as it likes");
    assert!(!judged(recover(&good, &bad)).await.0);

    let no_tool = |turns: Vec<Message>| talk(SampleKind::NoTool, &[&read], "read it", turns);
    let (kept, reason) = judged(no_tool(vec![Message::assistant("I can't read files.")])).await;
    assert!(kept && reason.contains("not applicable"), "{reason}");
    assert!(!judged(no_tool(vec![Message::assistant(" ")])).await.0);
    assert!(!judged(no_tool(vec![Message::call(call(&read, "1", &good))])).await.0);
    assert!(!judged(talk(SampleKind::Single, &[&read], "read it", vec![Message::assistant("no")])).await.0);
}

#[tokio::test]
async fn other_kinds_are_judged_by_what_applies_to_them() {
    let (read, write) = (tool("read", None), Tool { id: ToolId("tool_w".into()), ..tool("write", None) });
    let asked = Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let score = async |sample: Sample| {
        let bench = {
            let asked = Arc::clone(&asked);
            let model = Scripted::new(move |request| {
                let Some(Message::User { content }) = request.messages.last() else { return None };
                asked.lock().unwrap().push(content.clone());
                Some(graded(9).to_string())
            });
            scoring(&model, vec![read.clone(), write.clone()])
        };
        bench.judge(sample).await.1
    };
    let (a, b) = (json!({"path": "a.txt"}), json!({"path": "b.txt"}));
    let no_tool = talk(SampleKind::NoTool, &[&read], "read it", vec![Message::assistant("I can't read files.")]);
    let verdict = score(no_tool).await;
    assert_eq!((verdict.judgement, verdict.reason.starts_with("not applicable")), (Judgement::Keep, true));
    assert!(asked.lock().unwrap().is_empty(), "nobody is asked about arguments that are not there");

    score(talk(SampleKind::Parallel, &[&read, &write], "both", vec![both(call(&read, "1", &a), call(&write, "2", &b))])).await;
    let seen = asked.lock().unwrap().pop().unwrap();
    assert!(seen.contains("Tool: read") && seen.contains("Tool: write"), "{seen}");
    assert!(seen.contains("read {\"path\":\"a.txt\"} and write {\"path\":\"b.txt\"}"), "{seen}");

    let turns = vec![Message::assistant("Which file?"), Message::user("It is b.txt."), Message::call(call(&read, "1", &b))];
    score(talk(SampleKind::Ask, &[&read], "Read my file.", turns)).await;
    assert!(asked.lock().unwrap().pop().unwrap().contains("Read my file. It is b.txt."), "what is said later counts");

    let turns = vec![Message::call(call(&read, "1", &a)), Message::call(call(&read, "2", &b))];
    score(talk(SampleKind::Recover, &[&read], "Read b.txt.", turns)).await;
    let seen = asked.lock().unwrap().pop().unwrap();
    assert!(seen.contains("b.txt\"}") && !seen.contains("a.txt"), "the right call is graded: {seen}");
}

/// What verifiers saw, by the name of each tool on the list.
fn listed(prompt: &str) -> Vec<String> {
    let own = prompt.rsplit_once("Request: ").unwrap().1;
    own.lines().filter_map(|line| Some(line.strip_prefix("- ")?.split_once(": ")?.0.to_owned())).collect()
}

#[tokio::test]
async fn where_no_tool_is_to_fit_verifiers_see_all_that_is_offered_and_must_choose_none() {
    let on = |server: &str, name: &str, purpose: &str| {
        let schema = json!({"type": "object", "properties": {name: {"type": "string"}}});
        mcpmill_testkit::tool(server, name, purpose, schema)
    };
    let read = on("1", "read_file", "Read a file from disk");
    let mut tools = vec![read.clone(), on("1", "read_text_file", "Read a text file from disk"), on("1", "none", "Empty the bin")];
    tools.extend((0..20).map(|n| on("2", &format!("count_{n}"), &format!("Counts fruit of basket number {n}"))));
    let toolbox = Arc::new(Toolbox::new(tools));
    let sample = talk(SampleKind::NoTool, &[&read], "Please read the file", vec![Message::assistant("I can't read files.")]);
    let (seen, prompts) = (Arc::new(std::sync::Mutex::new(Vec::<String>::new())), Arc::new(std::sync::Mutex::new(0)));
    let judged = async |drop_when: &str, says: [&'static str; 2]| {
        let (seen, turn) = (Arc::clone(&seen), Arc::clone(&prompts));
        let model = Scripted::new(move |request| {
            let Some(Message::User { content }) = request.messages.last() else { return None };
            seen.lock().unwrap().push(content.clone());
            let mut turn = turn.lock().unwrap();
            *turn += 1;
            Some(json!({"tool": says[(*turn + 1) % 2]}).to_string())
        });
        let prompt = |id: &str| {
            let text =
                if id == "none" { include_str!("../../../prompts/none.md") } else { include_str!("../../../prompts/pick.md") };
            Some(Prompt::parse(id, text).unwrap())
        };
        let models = Ok(Models::new(model.recorded(), HashMap::new()));
        let parts = Parts {
            embedder: Err("none".into()),
            models,
            toolbox: Arc::clone(&toolbox),
            programs: Err("none".into()),
            held_out: Arc::default(),
            prompt: &prompt,
        };
        let step = format!(
            "[[step]]\nname = \"it\"\nkind = \"tool-invocation\"\nprompt = \"pick\"\nverifiers = [\"verifier-a\", \"verifier-b\"]\n\
             distractors = 2\ndrop_when = \"{drop_when}\"\n"
        );
        let chain = Chain::parse("test", &step, &parts).unwrap();
        let bench = Bench { toolbox: Arc::clone(&toolbox), cx: context("4-filter"), chain };
        bench.judge(sample.clone()).await.1
    };
    // A tool is called `none`, so that the entry has another name.
    let verdict = judged("any-misses", ["none_", "none_"]).await;
    assert_eq!((verdict.judgement, verdict.score), (Judgement::Keep, Some(2.0)), "{}", verdict.reason);
    let verdict = judged("any-misses", ["none_", "none"]).await;
    assert_eq!((verdict.judgement, verdict.threshold), (Judgement::Drop, Some(2.0)));
    assert!(verdict.evidence.unwrap().contains("\"none\""));
    assert_eq!(judged("all-miss", ["none_", "none"]).await.judgement, Judgement::Keep);
    assert_eq!(judged("all-miss", ["none", "none"]).await.judgement, Judgement::Drop);

    let seen = seen.lock().unwrap();
    for prompt in seen.iter() {
        let shown = listed(prompt);
        assert_eq!((shown.len(), shown.last().unwrap().as_str()), (11, "none_"), "{shown:?}");
        assert!(!shown.iter().any(|name| name == "read_file" || name == "read_text_file"), "{shown:?}");
        // What export draws for the row, whatever it holds out, is among them.
        for (count, out) in [(4, ""), (20, ""), (6, "none")] {
            let offered = toolbox.without(&read, count, sample.id.as_str(), |tool| tool.name != out);
            assert!(!offered.is_empty() && offered.iter().all(|tool| shown.contains(&tool.name)), "{count} {out}");
        }
    }
    assert_ne!(listed(&seen[0]), listed(&seen[1]), "the verifiers see them in another order");
}

#[tokio::test]
async fn a_request_that_no_tool_fits_is_about_the_tool_it_is_for() {
    let read = tool("read", None);
    let sample = talk(SampleKind::NoTool, &[&read], "Please read the file", vec![Message::assistant("I can't read files.")]);
    let near = "kind = \"embedding-similarity\"\nmax = 0.9\nmin = 0.1";
    let judged = bench(near, None, true, vec![read.clone()]).judge(sample).await.1;
    assert!(judged.score.is_some_and(|score| score > 0.1), "{judged:?}");
}

/// One keeper a cluster, whatever the order and however many copies; what an earlier step drops keeps none.
#[tokio::test]
async fn of_near_duplicates_one_is_kept() {
    let tool = tool("read", None);
    let toolbox = Arc::new(Toolbox::new(vec![tool.clone()]));
    let prompt = |_: &str| None;
    let parts = Parts {
        embedder: Err("none".into()),
        models: Err("none".into()),
        toolbox: Arc::clone(&toolbox),
        programs: Err("none".into()),
        held_out: Arc::default(),
        prompt: &prompt,
    };
    let steps =
        "audit = 0.0\n[[step]]\nname = \"schema\"\nkind = \"schema-valid\"\n[[step]]\nname = \"twins\"\nkind = \"duplicates\"\n";
    let with = |text: &str, path: &Value| sample(&tool, text, &alias(&tool.name), &json!({ "path": path }));
    let mut samples: Vec<Sample> = (0..30)
        .map(|n| {
            with(
                &format!("{}lease read the file notes.txt for me{}", if n % 2 == 0 { "P" } else { "p" }, "!".repeat(n)),
                &json!("notes.txt"),
            )
        })
        .collect();
    samples.push(with("Please read the file plans.txt for me", &json!("plans.txt")));
    // The smallest id of all belongs to a row that the schema drops.
    let mut broken = with("Please read the file notes.txt for me", &json!(7));
    broken.id.0 = "smp_0".into();
    samples.push(broken);
    let mut first: Option<Vec<String>> = None;
    for turn in 0..4 {
        samples.rotate_left(turn * 7);
        let chain = Chain::parse("test", steps, &parts).unwrap();
        let out = Kept::default();
        filter_samples(samples.clone(), &chain, Arc::clone(&toolbox), PACE, &context("4-filter"), &out).await.unwrap();
        let ends = out.ends();
        let mut kept: Vec<String> = ends.iter().flat_map(|done| &done.rows).map(|row| row.instruction.clone()).collect();
        kept.sort();
        assert_eq!(kept.len(), 2, "{kept:?}");
        assert!(kept.iter().any(|text| text.contains("plans.txt")), "another value is another request");
        let told: Vec<&Verdict> = ends.iter().flat_map(|done| &done.verdicts).filter(|v| v.reason.contains("30")).collect();
        assert_eq!(told.len(), 1, "the keeper says for how many it stands");
        assert_eq!(*first.get_or_insert_with(|| kept.clone()), kept);
    }
}

/// Another task with the same values reads much like the first; the very same words with another label do not pass twice.
#[tokio::test]
async fn requests_for_other_tools_are_no_near_duplicates() {
    let [read, delete] = ["read", "delete"].map(|name| tool(name, None));
    let toolbox = Arc::new(Toolbox::new(vec![read.clone(), delete.clone()]));
    let with = |tool: &Tool, text: &str| sample(tool, text, &alias(&tool.name), &json!({ "path": "notes/today.txt" }));
    let texts =
        ["Could you please read the file notes/today.txt for me", "Could you please delete the file notes/today.txt for me"];
    let samples = vec![with(&read, texts[0]), with(&delete, texts[1]), with(&delete, &texts[0].to_uppercase())];
    let parts = Parts {
        embedder: Err("none".into()),
        models: Err("none".into()),
        toolbox: Arc::clone(&toolbox),
        programs: Err("none".into()),
        held_out: Arc::default(),
        prompt: &|_| None,
    };
    let chain = Chain::parse("test", "[[step]]\nname = \"twins\"\nkind = \"duplicates\"\n", &parts).unwrap();
    let out = Kept::default();
    filter_samples(samples, &chain, toolbox, PACE, &context("4-filter"), &out).await.unwrap();
    let kept: Vec<String> = out.ends().into_iter().flat_map(|done| done.rows).map(|row| row.instruction.to_lowercase()).collect();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(texts.iter().all(|text| kept.contains(&text.to_lowercase())), "{kept:?}");
}

#[tokio::test]
async fn evaluation_sets_are_compared_by_meaning_where_the_model_has_a_threshold() {
    let tool = tool("read_file", None);
    let set = r#"{"instruction": "kindly have this weather file on disk, read it out to all of us"}"#;
    for (model, request, want) in [
        ("words", "could somebody read me the weather file from the disk", "contaminated"),
        ("words", "please please please tell me a joke about mills", "ok: it repeats none"),
        ("other", "could somebody read me the weather file from the disk", "ok: by words only, no threshold"),
    ] {
        let toolbox = Arc::new(Toolbox::new(vec![tool.clone()]));
        let prompt = |_: &str| None;
        let parts = Parts {
            embedder: Ok(RecordedEmbedder::new(Arc::new(Words), recorder())),
            models: Err("none".into()),
            toolbox: Arc::clone(&toolbox),
            programs: Err("none".into()),
            held_out: Arc::new(HeldOut::read([("set.jsonl", set)])),
            prompt: &prompt,
        };
        let step =
            format!("[[step]]\nname = \"it\"\nkind = \"decontaminated\"\noverlap = 0.7\nsimilarity = {{ {model} = 0.95 }}\n");
        let bench = Bench { toolbox, cx: context("4-filter"), chain: Chain::parse("test", &step, &parts).unwrap() };
        let (_, verdict) = bench.judge(sample(&tool, request, "read_file", &json!({"path": "a"}))).await;
        assert!(verdict.reason.starts_with(want), "{model} {request}: {verdict:?}");
    }
}

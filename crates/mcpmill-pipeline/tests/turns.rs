//! Turns that were written while a conversation was run are judged one by one, and masked where they do not follow.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{collections::HashMap, sync::Arc};

use mcpmill_core::{
    drive::{Done, Pace},
    edge::ChatRequest,
    id::TrajectoryId,
    record::{
        Ended, FunctionCall, Judgement, Message, OutcomeKind, PolicyDecision, Sample, SampleKind, Tool, ToolCall, Trajectory,
    },
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    filter::{Chain, Parts, filter_trajectories},
    models::Models,
    prompt::Prompt,
};
use mcpmill_testkit::{Kept, Scripted, context};
use serde_json::json;

const STEP: &str = "[[step]]\nname = \"turns\"\nkind = \"turns\"\nprompt = \"turn\"\n";

fn tool() -> Tool {
    mcpmill_testkit::tool("notes", "list_notes", "Lists notes", json!({"type": "object"}))
}

fn call(id: &str) -> Message {
    Message::call(ToolCall::new(id, FunctionCall { name: "list_notes".into(), arguments: serde_json::Map::new() }))
}

fn answer(id: &str) -> Message {
    Message::Tool { tool_call_id: id.into(), name: "list_notes".into(), content: "plan.md, ideas.md".into() }
}

/// Two requests; all from the first answer on was written while it was run.
fn two_turns(text: &str, request: &str, last: &str) -> (Sample, Trajectory) {
    let base = mcpmill_testkit::sample(&tool(), "Which notes do I have?", "list_notes", &json!({}));
    let sample =
        Sample { kind: SampleKind::MultiTurn, messages: vec![Message::user("Which notes do I have?"), call("a")], ..base };
    let mut messages = sample.messages.clone();
    messages.extend([
        answer("a"),
        Message::assistant(text),
        Message::user(request),
        call("b"),
        answer("b"),
        Message::assistant(last),
    ]);
    let trajectory = ran(&sample, messages);
    (sample, trajectory)
}

fn ran(sample: &Sample, messages: Vec<Message>) -> Trajectory {
    Trajectory {
        id: TrajectoryId("trj_1".into()),
        sample_id: sample.id.clone(),
        messages,
        ended: Ended::Answer,
        cause: None,
        policy: PolicyDecision { allowed: true, rule: "read-only".into(), why: String::new() },
        result: None,
        response_verdict: None,
        masked: Vec::new(),
        lineage: Vec::new(),
    }
}

/// A judge that rejects what holds `BAD`, and is down where `NONE` stands.
fn judge() -> Arc<Scripted> {
    Scripted::new(|request: &ChatRequest| {
        let Some(Message::User { content }) = request.messages.last() else { return None };
        let turn = content.rsplit_once("Next turn, of the ").unwrap().1;
        let ok = !turn.contains("BAD");
        (!turn.contains("NONE")).then(|| json!({"why": if ok { "follows" } else { "does not follow" }, "ok": ok}).to_string())
    })
}

async fn judged((sample, trajectory): (Sample, Trajectory), model: &Arc<Scripted>) -> Done<Trajectory> {
    let toolbox = Arc::new(Toolbox::new(vec![tool()]));
    let prompt = |_: &str| Some(Prompt::parse("turn", include_str!("../../../prompts/turn.md")).unwrap());
    let models = Ok(Models::new(model.recorded(), HashMap::new()));
    let parts = Parts {
        embedder: Err("none".into()),
        models,
        toolbox: Arc::clone(&toolbox),
        held_out: Arc::default(),
        programs: Err("none".into()),
        prompt: &prompt,
    };
    let chain = Chain::parse("test", STEP, &parts).unwrap();
    let (samples, out) = (HashMap::from([(sample.id.clone(), sample)]), Kept::default());
    let pace = Pace { concurrency: 1, max_failure_rate: 1.0 };
    filter_trajectories(vec![trajectory], &samples, &chain, toolbox, pace, &context("6-filter"), &out).await.unwrap();
    out.ends().remove(0)
}

#[tokio::test]
async fn turns_that_follow_are_learned() {
    let model = judge();
    let done = judged(two_turns("Two: plan.md and ideas.md.", "Once more, please.", "Still two."), &model).await;
    assert_eq!((done.rows[0].masked.len(), done.rows[0].response_verdict), (0, None));
    assert_eq!(model.asked(), ["turn"; 3], "both texts and the request");
    assert!(done.verdicts[0].reason.contains("of 3 written turns all follow"), "{}", done.verdicts[0].reason);
}

#[tokio::test]
async fn a_turn_that_does_not_follow_is_masked_and_a_request_with_all_that_answers_it() {
    for (turns, masked) in [
        (two_turns("BAD", "Once more, please.", "Still two."), &[3][..]),
        (two_turns("Two.", "Once more, please.", "BAD"), &[7]),
        (two_turns("Two.", "BAD", "Still two."), &[5, 7]),
        (two_turns("BAD", "BAD", "BAD"), &[3, 5, 7]),
    ] {
        let done = judged(turns, &judge()).await;
        assert_eq!((done.outcome.outcome, &done.rows[0].masked[..]), (OutcomeKind::Kept, masked));
        assert!(done.verdicts[0].reason.contains("does not follow") && done.verdicts[0].judgement == Judgement::Keep);
    }
    let (sample, mut run) = two_turns("BAD", "BAD", "BAD");
    run.masked = vec![1];
    let done = judged((sample, run), &judge()).await;
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Dropped, "turns"), "nothing is left to learn");
}

#[tokio::test]
async fn a_judge_that_is_down_leaves_the_row_open_and_nobody_is_asked_where_nothing_was_written() {
    let done = judged(two_turns("Two.", "NONE", "Still two."), &judge()).await;
    assert_eq!((done.outcome.outcome, done.verdicts[0].judgement), (OutcomeKind::Kept, Judgement::Unjudged));

    // What the sample itself says is no turn of the run.
    let asked = mcpmill_testkit::sample(&tool(), "Show me a note.", "list_notes", &json!({}));
    let own = [Message::user("Show me a note."), Message::assistant("Which one?"), Message::user("BAD"), call("a")].to_vec();
    let sample = Sample { kind: SampleKind::Ask, messages: own.clone(), ..asked };
    let run = ran(&sample, [own, vec![answer("a")]].concat());
    let model = judge();
    let done = judged((sample, run), &model).await;
    assert_eq!((done.outcome.outcome, done.rows[0].masked.len()), (OutcomeKind::Kept, 0));
    assert!(model.asked().is_empty());
}

//! Exams: judges that know something pass, those that say the same of everything fail and their verdicts count for
//! nothing, those that are down are not examined. And rows that are judged again.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mcpmill_core::{
    drive::{Done, Pace},
    edge::ChatRequest,
    naming::alias,
    record::{Exam, ExamEnd, Judgement, Message, OutcomeKind, Sample, Verdict},
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    filter::{Chain, ExamRows, Parts, Taken, examine, filter_samples, is_audited},
    models::Models,
    prompt::Prompt,
};
use mcpmill_testkit::{Kept, Scripted, context, graded, sample, tool};
use serde_json::json;

const SCORE: &str = "[[step]]\nname = \"score\"\nkind = \"quality-score\"\nprompt = \"score\"\nmin = 6.0\n";
const SCHEMA: &str = "[[step]]\nname = \"schema\"\nkind = \"schema-valid\"\n";

const PACE: Pace = Pace { concurrency: 4, max_failure_rate: 1.0 };

fn rows() -> ExamRows {
    ExamRows::parse(include_str!("../../../filters/exams/planted.jsonl")).unwrap()
}

fn prompt(id: &str) -> Option<Prompt> {
    let text = match id {
        "score" => include_str!("../../../prompts/score.md"),
        "response" => include_str!("../../../prompts/response.md"),
        "turn" => include_str!("../../../prompts/turn.md"),
        _ => return None,
    };
    Some(Prompt::parse(id, text).unwrap())
}

fn chain(text: &str, model: &Arc<Scripted>, toolbox: Arc<Toolbox>) -> Chain {
    let models = Ok(Models::new(model.recorded(), HashMap::new()));
    Chain::parse(
        "test",
        text,
        &Parts {
            embedder: Err("none".into()),
            models,
            toolbox,
            programs: Err("none".into()),
            held_out: Arc::default(),
            prompt: &prompt,
        },
    )
    .unwrap()
}

async fn exam(text: &str, model: &Arc<Scripted>) -> Vec<Taken> {
    let rows = rows();
    examine(&chain(text, model, rows.toolbox()), &rows, 4).await
}

/// A judge that always gives this score, whatever the prompt wants beside it.
fn always(score: u32) -> Arc<Scripted> {
    Scripted::new(move |_| Some(reply(score)))
}

fn reply(score: u32) -> String {
    graded(score).to_string()
}

/// What the judge is shown last.
fn shown(request: &ChatRequest) -> String {
    match request.messages.last() {
        Some(Message::User { content }) => content.clone(),
        _ => String::new(),
    }
}

/// A judge that knows the good rows: whether each number and quoted word of the arguments is in the request.
fn knowing() -> Arc<Scripted> {
    Scripted::new(|request| {
        let text = shown(request);
        let (_, asked) = text.split_once("Arguments: ").unwrap();
        let (arguments, request) = asked.split_once("\nRequest:\n").unwrap();
        let values = arguments.split(['"', ':', ',', '{', '}', '[', ']']).map(str::trim);
        let values: Vec<&str> = values.skip(1).filter(|value| value.chars().any(|c| c.is_ascii_digit())).collect();
        let fits = !request.contains("New order") && values.iter().all(|value| request.contains(value));
        Some(reply(if fits { 9 } else { 2 }))
    })
}

#[tokio::test]
async fn a_judge_that_says_the_same_of_everything_fails() {
    for (score, caught) in [(10, false), (0, true)] {
        let taken = exam(SCORE, &always(score)).await;
        let Exam { end, recall, false_rejects, better_than_chance, cause, .. } = &taken[0].exam;
        assert_eq!(*end, ExamEnd::Failed, "{score}");
        assert!(recall.n >= 20 && false_rejects.n >= 20, "{recall:?} {false_rejects:?}");
        assert_eq!((recall.value, false_rejects.value), if caught { (1.0, 1.0) } else { (0.0, 0.0) });
        assert!(better_than_chance.0 <= 0.0, "{better_than_chance:?}");
        assert!(cause.as_deref().unwrap().contains("chance"), "{cause:?}");
    }
}

#[tokio::test]
async fn a_judge_that_knows_something_passes_and_its_misses_are_named() {
    let taken = exam(SCORE, &knowing()).await;
    let exam = &taken[0].exam;
    assert_eq!(exam.end, ExamEnd::Passed, "{exam:?}");
    assert_eq!(
        exam.by_plant.keys().map(String::as_str).collect::<Vec<_>>(),
        ["vague", "wrong-tool", "wrong-value", "wrong-value-with-order"]
    );
    assert_eq!(exam.by_plant["wrong-value-with-order"].value, 1.0);
    assert_eq!(exam.missed.len() as u64, (exam.recall.n - exam.recall.hits).min(20));
    assert!(exam.missed.iter().all(|name| name.contains(" of ")), "{:?}", exam.missed);
    assert_eq!(exam.rejected.len() as u64, exam.false_rejects.hits);
}

#[tokio::test]
async fn garbage_fails_and_silence_is_not_examined() {
    let garbage = exam(SCORE, &Scripted::new(|_| Some("ten out of ten!".into()))).await;
    assert_eq!((garbage[0].exam.end, garbage[0].exam.recall.n), (ExamEnd::Failed, 0));
    assert!(garbage[0].exam.unjudged > 40 && garbage[0].exam.cause.as_deref().unwrap().contains("none"));
    let down = exam(SCORE, &Scripted::new(|_| None)).await;
    assert_eq!(down[0].exam.end, ExamEnd::NotTaken);
    assert!(down[0].exam.cause.as_deref().unwrap().contains("no answer"), "{:?}", down[0].exam.cause);
    assert!(down[0].waits.is_none());
    let rows = rows();
    let parts = Parts {
        embedder: Err("none".into()),
        models: Err("no weights".into()),
        toolbox: rows.toolbox(),
        programs: Err("none".into()),
        held_out: Arc::default(),
        prompt: &prompt,
    };
    let absent = examine(&Chain::parse("test", SCORE, &parts).unwrap(), &rows, 4).await;
    assert_eq!((absent[0].exam.end, absent[0].exam.cause.as_deref()), (ExamEnd::NotTaken, Some("no weights")));
}

#[tokio::test]
async fn the_free_check_catches_all_that_is_planted_for_it() {
    let taken = exam(SCHEMA, &always(0)).await;
    let exam = &taken[0].exam;
    assert_eq!((exam.end, exam.recall.value, exam.false_rejects.hits), (ExamEnd::Passed, 1.0, 0), "{exam:?}");
    assert_eq!(exam.recall.n, 48, "a free filter meets every fault on every row");
}

/// Every free kind is examined on all planted rows, by the faults that are its own.
#[tokio::test]
async fn free_checks_pass_their_exams() {
    let kinds = ["placeholders", "grounded", "language", "tool-named", "injection", "private-data", "duplicates"];
    let steps: String = kinds.iter().map(|kind| format!("[[step]]\nname = \"{kind}\"\nkind = \"{kind}\"\n")).collect();
    let taken = exam(&steps, &always(0)).await;
    assert_eq!(taken.iter().map(|taken| taken.exam.filter.as_str()).collect::<Vec<_>>(), kinds);
    for Taken { exam, .. } in taken {
        assert_eq!((exam.end, exam.unjudged), (ExamEnd::Passed, 0), "{exam:?}");
        assert!(exam.recall.n >= 20 && exam.recall.value > 0.7, "{exam:?}");
        assert_eq!(exam.rejected, [""; 0], "{exam:?}");
    }
}

async fn filtered(chain: &Chain, samples: Vec<Sample>, toolbox: &Arc<Toolbox>) -> Vec<Done<Sample>> {
    let out = Kept::default();
    filter_samples(samples, chain, Arc::clone(toolbox), PACE, &context("4-filter"), &out).await.unwrap();
    out.ends()
}

fn one_tool() -> (Arc<Toolbox>, Sample) {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let tool = tool("1", "read", "Read a file", schema);
    let sample = sample(&tool, "Read notes.txt for me", &alias(&tool.name), &json!({"path": "notes.txt"}));
    (Arc::new(Toolbox::new(vec![tool])), sample)
}

#[tokio::test]
async fn verdicts_of_a_failed_judge_count_for_nothing() {
    let (toolbox, sample) = one_tool();
    let judge = always(0);
    let chain = chain(&format!("on_failed_exam = \"unjudged\"\n{SCHEMA}{SCORE}"), &judge, Arc::clone(&toolbox));
    let taken = exam(&format!("on_failed_exam = \"unjudged\"\n{SCORE}"), &judge).await;
    assert!(taken[0].exam.tolerated);
    let before = judge.asked().len();
    let done = filtered(&chain.heeding(&taken), vec![sample.clone()], &toolbox).await.remove(0);
    assert_eq!(judge.asked().len(), before, "a judge that failed is not asked");
    assert_eq!((done.outcome.outcome, done.rows.len()), (OutcomeKind::Kept, 1), "it would have dropped the row");
    assert_eq!(done.outcome.reason, "unjudged: score");
    let verdict = &done.verdicts[1];
    assert_eq!(verdict.judgement, Judgement::Unjudged);
    assert!(verdict.reason.contains("failed its exam"), "{}", verdict.reason);
    // What it can tell without its model still counts.
    let nothing = Sample { messages: vec![Message::user("hi")], ..sample };
    let chain = self::chain(SCORE, &judge, Arc::clone(&toolbox)).heeding(&taken);
    assert_eq!(filtered(&chain, vec![nothing], &toolbox).await[0].verdicts[0].judgement, Judgement::Keep);
}

#[tokio::test]
async fn what_could_not_be_judged_is_judged_later_and_the_rest_stands() {
    let (toolbox, sample) = one_tool();
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let judge = Scripted::new(move |_| is_up.load(Ordering::Relaxed).then(|| reply(9)));
    let text = format!("{SCHEMA}{SCORE}");
    let first = filtered(&chain(&text, &judge, Arc::clone(&toolbox)), vec![sample.clone()], &toolbox).await.remove(0);
    assert_eq!(first.verdicts[1].judgement, Judgement::Unjudged);
    up.store(true, Ordering::Relaxed);
    // A verdict that stands is not sought again, whatever the filter would say now.
    let mark = |verdict: Verdict| Verdict { reason: format!("first: {}", verdict.reason), ..verdict };
    let verdicts = first.verdicts.into_iter().map(mark).collect();
    let again = chain(&text, &judge, Arc::clone(&toolbox)).with_decided(verdicts);
    let done = filtered(&again, vec![sample], &toolbox).await.remove(0);
    assert!(done.verdicts[0].reason.starts_with("first: "), "{}", done.verdicts[0].reason);
    assert_eq!((done.verdicts[1].judgement, done.verdicts[1].score), (Judgement::Keep, Some(9.0)));
}

#[tokio::test]
async fn audited_rows_meet_every_step_and_cost_no_row_its_end() {
    let (toolbox, good) = one_tool();
    let bad = sample(toolbox.get(&good.tool_ids[0]).unwrap(), "Read notes.txt for me", "read", &json!({"path": 1}));
    let judged = async |audit: &str, model: &Arc<Scripted>| {
        let chain = chain(&format!("audit = {audit}\n{SCHEMA}{SCORE}"), model, Arc::clone(&toolbox));
        filtered(&chain, vec![bad.clone()], &toolbox).await.remove(0)
    };
    let names = |done: &Done<Sample>| done.verdicts.iter().map(|v| v.filter.clone()).collect::<Vec<_>>();
    let all = judged("1.0", &always(3)).await;
    assert_eq!((names(&all), all.outcome.reason.as_str()), (vec!["schema".into(), "score".into()], "schema"));
    assert_eq!(names(&judged("0.0", &always(3)).await), ["schema"]);
    let down = judged("1.0", &Scripted::new(|_| None)).await;
    assert_eq!((names(&down), down.outcome.outcome), (vec!["schema".into()], OutcomeKind::Dropped));
    let share = (0..10_000).filter(|n| is_audited(&format!("smp_{n}"), 0.1)).count();
    assert!((850..1150).contains(&share), "{share}");
}

#[test]
fn planted_rows_that_cannot_be_used_are_named() {
    let text = include_str!("../../../filters/exams/planted.jsonl");
    let few: String = text.lines().take(3).map(|line| format!("{line}\n")).collect();
    assert!(ExamRows::parse(&few).err().unwrap().contains("20"));
    assert!(ExamRows::parse(&format!("{text}{{}}\n")).err().unwrap().starts_with("line 25"));
}

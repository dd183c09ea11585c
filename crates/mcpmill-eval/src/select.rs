//! `eval select`: held-out instructions, each with the right tool among 10 or 100 candidates.

use std::{collections::BTreeMap, sync::Arc};

use mcpmill_core::{
    canonical::sha256_hex,
    drive::{Context, Done, Pace, Sink, StageError, drive},
    edge::{ChatReply, ChatRequest, Format, RecordedChat, RecordedEmbedder, ToolSpec, cosine},
    event::Summary,
    id::{SampleId, ToolId},
    naming::alias,
    record::{Message, Outcome, Prediction, Repairs, Row, Tool, Usage, count_repairs},
    reply,
    share::Share,
    toolbox::{Distractors, Toolbox, said_of},
};
use serde::Serialize;

/// A held-out row to be measured on.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The row's sample.
    pub sample: SampleId,
    /// Its split.
    pub split: String,
    /// What the user asks.
    pub instruction: String,
    /// The tools that answer it.
    pub answers: Vec<ToolId>,
}

/// One item with its candidates. "Candidate" means a tool offered in selection, nothing else.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SelectionTask {
    /// The row's sample.
    pub sample: SampleId,
    /// Its split.
    pub split: String,
    /// What the user asks.
    pub instruction: String,
    /// The offered tools, in the order they are shown.
    pub candidates: Vec<Tool>,
    /// The right ones.
    pub answers: Vec<ToolId>,
}

impl Row for SelectionTask {
    fn row_id(&self) -> &str {
        self.sample.as_str()
    }
}

/// Makes the tasks. Candidates are drawn by the sample's id, as `distractors` says: the same for every model.
///
/// Items whose tool is not in the toolbox are left out; their number is returned.
pub fn tasks(items: Vec<Item>, toolbox: &Toolbox, candidates: usize, distractors: &Distractors) -> (Vec<SelectionTask>, usize) {
    let before = items.len();
    let task = |item: Item| {
        let right: Vec<&Tool> = item.answers.iter().map(|id| toolbox.get(id)).collect::<Option<_>>()?;
        right.first()?;
        let key = format!("select-{candidates}\n{}", item.sample);
        let offered = distractors.candidates(toolbox, &right, candidates, &key, (0, 1)).into_iter().cloned().collect();
        Some(SelectionTask {
            sample: item.sample,
            split: item.split,
            instruction: item.instruction,
            candidates: offered,
            answers: item.answers,
        })
    };
    let tasks: Vec<SelectionTask> = items.into_iter().filter_map(task).collect();
    let left_out = before - tasks.len();
    (tasks, left_out)
}

/// Who chooses.
#[derive(Clone)]
pub enum Chooser {
    /// The tool whose name and description lie nearest to the instruction.
    Embedding(RecordedEmbedder),
    /// A model that calls one of the tools it is offered.
    ToolCalls(RecordedChat),
    /// A model that names one of the tools it is shown; see [`Picker`].
    Picks(Arc<dyn Picker>),
}

/// Asks a model without tool calling to name one of the candidates.
#[async_trait::async_trait]
pub trait Picker: Send + Sync {
    /// The choice; an error when the model could not be asked at all, which is no miss of the model.
    async fn pick(&self, task: &SelectionTask) -> Result<Choice, String>;
}

/// Measures one chooser on all tasks.
///
/// # Errors
/// Interrupted, too many tasks that could not be asked at all, or a journal that fails.
pub async fn select(
    tasks: Vec<SelectionTask>,
    chooser: &Chooser,
    pace: Pace,
    cx: &Context,
    out: &dyn Sink<Prediction>,
) -> Result<Summary, StageError> {
    drive(tasks, pace, cx, out, |task| async move {
        let id = task.sample.to_string();
        match choose(&task, chooser).await {
            Ok((choice, usage, attempts, repairs)) => {
                let mut done = Done::kept(&id, vec![predict(&task, choice)]);
                done.outcome = done.outcome.with_usage(usage, attempts).with_repairs(repairs);
                done
            }
            Err(cause) => Done::none(Outcome::failed(id, "model-failed", cause)),
        }
    })
    .await
}

/// The chosen alias, or why the reply holds none; what the asking used; requests it took; what was repaired.
pub type Choice = (Result<String, String>, Usage, u32, Repairs);

async fn choose(task: &SelectionTask, chooser: &Chooser) -> Result<Choice, String> {
    match chooser {
        Chooser::Picks(picker) => picker.pick(task).await,
        Chooser::Embedding(embedder) => {
            let wanted = embedder.embed(&task.instruction).await.map_err(|e| e.to_string())?;
            let mut best: Option<(f32, &Tool)> = None;
            for tool in &task.candidates {
                let score = cosine(&wanted, &embedder.embed(&said_of(tool)).await.map_err(|e| e.to_string())?);
                if best.is_none_or(|(top, _)| score > top) {
                    best = Some((score, tool));
                }
            }
            let choice = best.map(|(_, tool)| alias(&tool.name)).ok_or_else(|| "there are no candidates".to_owned());
            Ok((choice, Usage::default(), 0, Repairs::new()))
        }
        Chooser::ToolCalls(model) => {
            let request = request(task);
            let replied = match model.chat(&request).await {
                Ok(replied) => replied,
                // Left out, such items would make a model look better than it is.
                Err(e) if e.is_final() => return Ok((Err(e.to_string()), Usage::default(), e.attempts, Repairs::new())),
                Err(e) => return Err(e.to_string()),
            };
            let mut repairs = Repairs::new();
            let choice = called(&replied.reply, &request, &mut repairs);
            let usage = if replied.live { replied.reply.usage } else { Usage::default() };
            Ok((choice, usage, u32::from(replied.live) * replied.reply.attempts, repairs))
        }
    }
}

/// The tool that a reply calls, as a call or in its text.
fn called(told: &ChatReply, request: &ChatRequest, repairs: &mut Repairs) -> Result<String, String> {
    if let Some(call) = told.tool_calls.first() {
        count_repairs(repairs, &request.prompt_kind, &told.repairs);
        return Ok(call.function.name.clone());
    }
    let read = reply::calls(&told.content, &request.tools).map_err(|refused| refused.to_string())?;
    let call = read.value.into_iter().next().ok_or_else(|| "the reply calls no tool".to_owned())?;
    count_repairs(repairs, &request.prompt_kind, &read.repairs);
    Ok(call.name)
}

fn request(task: &SelectionTask) -> ChatRequest {
    let spec = |tool: &Tool| ToolSpec {
        name: alias(&tool.name),
        description: tool.description_text().to_owned(),
        parameters: tool.schema(),
    };
    ChatRequest {
        messages: vec![Message::user(task.instruction.clone())],
        tools: task.candidates.iter().map(spec).collect(),
        format: Format::Text,
        temperature: 0.0,
        top_p: 1.0,
        max_tokens: 512,
        seed: 1,
        prompt_kind: "select".into(),
    }
}

fn predict(task: &SelectionTask, choice: Result<String, String>) -> Prediction {
    let chosen = choice.and_then(|name| {
        let tool = task.candidates.iter().find(|t| alias(&t.name) == name);
        tool.map(|t| t.id.clone()).ok_or_else(|| format!("`{name}` was not offered"))
    });
    let correct = chosen.as_ref().is_ok_and(|id| task.answers.contains(id));
    let (chosen, parse_failure) = match chosen {
        Ok(id) => (Some(id), None),
        Err(why) => (None, Some(why)),
    };
    Prediction {
        sample_id: task.sample.clone(),
        split: task.split.clone(),
        candidates: task.candidates.len() as u64,
        answers: task.answers.clone(),
        chosen,
        correct,
        parse_failure,
    }
}

/// Scores of one chooser.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// Tool accuracy; a reply that could not be read is a miss here.
    pub tool: Share,
    /// Replies that could not be read or name no offered tool.
    pub parse_failures: Share,
    /// Tasks that could not be put to the model at all; they are in no share.
    pub not_asked: u64,
    /// Tool accuracy by split.
    pub by_split: BTreeMap<String, Share>,
    /// Fewest tools offered in a task: below the suite's number where tools ran out.
    pub fewest_candidates: u64,
    /// SHA-256 over the tasks' ids and candidates, to tell whether two scores are comparable.
    pub tasks_hash: String,
}

/// Counts the scores of `predictions`; `not_asked` tasks brought none, `tasks_hash` comes from [`tasks_hash`].
pub fn score(predictions: &[Prediction], not_asked: u64, tasks_hash: String) -> Scores {
    let share = |rows: Vec<&Prediction>| Share::of(rows.iter().filter(|p| p.correct).count() as u64, rows.len() as u64);
    let mut by_split: BTreeMap<String, Vec<&Prediction>> = BTreeMap::new();
    for prediction in predictions {
        by_split.entry(prediction.split.clone()).or_default().push(prediction);
    }
    let unread = predictions.iter().filter(|p| p.parse_failure.is_some()).count() as u64;
    Scores {
        tool: share(predictions.iter().collect()),
        parse_failures: Share::of(unread, predictions.len() as u64),
        not_asked,
        by_split: by_split.into_iter().map(|(split, rows)| (split, share(rows))).collect(),
        fewest_candidates: predictions.iter().map(|p| p.candidates).min().unwrap_or_default(),
        tasks_hash,
    }
}

/// Identifies a set of tasks.
pub fn tasks_hash(tasks: &[SelectionTask]) -> String {
    let line = |task: &SelectionTask| {
        let ids: Vec<&str> = task.candidates.iter().map(|t| t.id.as_str()).collect();
        format!("{} {}\n", task.sample, ids.join(" "))
    };
    let mut lines: Vec<String> = tasks.iter().map(line).collect();
    lines.sort_unstable();
    sha256_hex(lines.concat())
}

#[cfg(test)]
mod tests {
    use mcpmill_core::{id::ServerId, record::ToolDraft, toolbox::Distract};
    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> Tool {
        let draft = ToolDraft {
            name: name.into(),
            title: None,
            description: Some(format!("does {name}")),
            input_schema: json!({"type": "object"}),
            output_schema: None,
            annotations: None,
        };
        Tool::new(ServerId("srv_1".into()), draft)
    }

    async fn one(candidates: usize) -> SelectionTask {
        let tools: Vec<Tool> = (0..20).map(|i| tool(&format!("t{i}"))).collect();
        let item = Item {
            sample: SampleId("smp_1".into()),
            split: "unseen_tool".into(),
            instruction: "do t3".into(),
            answers: vec![tools[3].id.clone()],
        };
        let lost = Item { answers: vec![ToolId("tool_gone".into())], ..item.clone() };
        let toolbox = Toolbox::new(tools);
        let random = Distractors::new(Distract::Random, &toolbox, &Err("none".into())).await.unwrap();
        let (mut tasks, left_out) = tasks(vec![item, lost], &toolbox, candidates, &random);
        assert_eq!(left_out, 1);
        tasks.remove(0)
    }

    #[tokio::test]
    async fn a_task_offers_the_answer_among_as_many_as_there_are() {
        assert_eq!(one(10).await.candidates.len(), 10);
        assert_eq!(one(100).await.candidates.len(), 20);
        let task = one(10).await;
        assert!(task.candidates.iter().any(|t| t.id == task.answers[0]));
    }

    #[tokio::test]
    async fn a_call_is_read_from_calls_or_from_text() {
        let request = request(&one(10).await);
        let told = |content: &str| ChatReply {
            content: content.into(),
            tool_calls: Vec::new(),
            finish: mcpmill_core::edge::Finish::Stop,
            usage: Usage::default(),
            attempts: 1,
            repairs: Vec::new(),
        };
        let mut repairs = Repairs::new();
        let tagged = "<tool_call>{\"name\": \"t3\", \"arguments\": {}}</tool_call>";
        assert_eq!(called(&told(tagged), &request, &mut repairs), Ok("t3".into()));
        assert_eq!(json!(repairs), json!({"select: tagged-call": 1}));
        assert!(called(&told("I would call t3."), &request, &mut repairs).is_err());
        assert!(called(&told(&tagged.replace("t3", "rm")), &request, &mut repairs).unwrap_err().contains("`rm`"));
    }

    #[tokio::test]
    async fn a_choice_outside_the_candidates_is_a_parse_failure_and_a_miss() {
        let task = one(10).await;
        let right = predict(&task, Ok("t3".into()));
        let made_up = predict(&task, Ok("t99".into()));
        let silent = predict(&task, Err("the reply calls no tool".into()));
        let wrong = task.candidates.iter().find(|t| t.name != "t3").map(|t| predict(&task, Ok(t.name.clone()))).unwrap();
        let scores = score(&[right, made_up, silent, wrong], 2, tasks_hash(&[task]));
        assert_eq!((scores.tool.hits, scores.tool.n), (1, 4));
        assert_eq!((scores.parse_failures.hits, scores.not_asked), (2, 2));
        assert_eq!(scores.by_split["unseen_tool"].n, 4);
    }
}

//! `eval select`: does a model choose the right tool among 10 or 100?

use std::{
    collections::HashSet,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use mcpmill_core::{
    canonical::content_hash,
    drive::{Context, Pace, Sink},
    edge::RecordedChat,
    id::ServerId,
    naming::alias,
    record::{ExportRow, Message, Prediction, SampleKind, Tool, ToolDraft},
    toolbox::{Distract, Distractors, Toolbox},
};
use mcpmill_eval::select::{Choice, Chooser, Item, Picker, Scores, SelectionTask, score, select, tasks, tasks_hash};
use mcpmill_pipeline::{Meter, models::Role, pick, prompt::Prompt, twins::twins};
use mcpmill_store::parquet_file::read_all;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    cli::Format,
    edges::model_of,
    error::{Exit, Failure},
    line::{Line, read_input},
    prices,
    stage::Stage,
};

/// Bytes of a line, and lines, of a file of further tools.
const LONGEST_LINE: usize = 4 << 20;
const MOST_TOOLS: usize = 1_000_000;
/// Candidates a model without tool calling is shown: more do not fit its context.
const MOST_SHOWN: usize = 20;

/// A file of `eval/` whose suite is `select`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Suite {
    #[serde(rename = "suite")]
    _suite: SuiteName,
    candidates: usize,
    distractors: Distract,
    splits: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SuiteName {
    Select,
}

/// Reads a suite.
///
/// # Errors
/// There is none of this id, or a field is wrong.
fn suite(line: &Line, id: &str) -> Result<Suite, Failure> {
    let mut suites = line.declarations.ids("eval", ".toml");
    suites.retain(|suite| suite != prices::ID);
    let text =
        line.declarations.text(&format!("eval/{id}.toml")).filter(|_| id != prices::ID).ok_or_else(|| {
            Failure::usage(format!("there is no suite `{id}`")).hint(format!("eval/ has: {}", suites.join(", ")))
        })?;
    toml::from_str(text).map_err(|e: toml::de::Error| Failure::usage(format!("failed to read `eval/{id}.toml`: {}", e.message())))
}

/// What is wrong with a file of `eval/`, for `check`.
pub fn fault(text: &str) -> Option<String> {
    toml::from_str::<Suite>(text).err().map(|e| e.message().to_owned())
}

/// Measures the embedding baseline and the solver on every suite and prints the scores.
///
/// # Errors
/// The run has no export, a suite or the tools file cannot be read, or a stage fails.
pub async fn eval_select(line: &Line, suites: &[String], tools: Option<&Path>, format: Format) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for id in suites {
        let suite = suite(line, id)?;
        let tasks = prepare(line, id, &suite, tools).await?;
        let solver = model_of(&line.config, Role::Solver)?;
        let embedder = line.embedder().await?;
        rows.push(measure(line, id, "embedding", &Chooser::Embedding(embedder), tasks.clone()).await?);
        let model = line.models(&[Role::Solver]).await?.role(Role::Solver).clone();
        let chooser = if solver.local {
            if suite.candidates > MOST_SHOWN {
                line.events.note(format!(
                    "{id}: {} candidates do not fit the embedded model; an endpoint is measured on them",
                    suite.candidates
                ));
                continue;
            }
            Chooser::Picks(Arc::new(ByPrompt { model, prompt: line.declarations.prompt("pick")? }))
        } else {
            Chooser::ToolCalls(model)
        };
        rows.push(measure(line, id, &solver.name, &chooser, tasks).await?);
    }
    show(&rows, format);
    Ok(())
}

/// The held-out rows of the export as tasks.
async fn prepare(line: &Line, id: &str, suite: &Suite, extra: Option<&Path>) -> Result<Vec<SelectionTask>, Failure> {
    let name = line.config.export.datasets.first().ok_or_else(|| Failure::usage("`export.datasets` is empty"))?;
    let path = line.run.path().join(Stage::Export.folder()).join(name).join("rows.parquet");
    let rows: Vec<ExportRow> = read_all(&path).map_err(|e| {
        Failure::from_error(Exit::Usage, &e)
            .hint("`eval select` measures on the held-out rows of an export: `mcpmill run` makes one")
    })?;
    let items: Vec<Item> =
        rows.into_iter().filter(|r| suite.splits.iter().any(|s| s == r.split.as_str())).filter_map(item).collect();
    if items.is_empty() {
        return Err(Failure::usage(format!("the export `{name}` has no rows in the splits {}", suite.splits.join(", ")))
            .hint("a larger run has held-out rows: `--set generate.samples=300`"));
    }
    let mut all: Vec<Tool> = read_input(line.run.path(), Stage::Harvest)?;
    fill_up(line, id, &mut all, suite.candidates, extra)?;
    // Over all tools, those of the file too: a copy of the right answer is no wrong one.
    let copies = twins(&all, |_| true);
    let toolbox = Toolbox::new(all).with_twins(&copies);
    let embedder = line.embedder().await.map_err(|failure| failure.to_string());
    let distractors = Distractors::new(suite.distractors, &toolbox, &embedder).await.map_err(Failure::environment)?;
    let (tasks, left_out) = tasks(items, &toolbox, suite.candidates, &distractors);
    if left_out > 0 {
        line.events.note(format!("{id}: {left_out} rows are left out, their tool is not among the harvested ones"));
    }
    Ok(tasks)
}

/// What is to be chosen at the first turn of a row. Where the right turn calls nothing there is no such thing.
fn item(row: ExportRow) -> Option<Item> {
    let answers = match row.kind {
        SampleKind::NoTool | SampleKind::Ask => return None,
        SampleKind::Parallel => row.tool_ids,
        _ => row.tool_ids.into_iter().take(1).collect(),
    };
    Some(Item { sample: row.id, split: row.split.as_str().into(), instruction: instruction(&row.messages), answers })
}

fn instruction(messages: &[Message]) -> String {
    let user = messages.iter().find_map(|m| match m {
        Message::User { content } => Some(content.clone()),
        _ => None,
    });
    user.unwrap_or_default()
}

/// Adds as many tools of the file as are needed for `candidates` different names, in the order of
/// their ids, and says how many.
fn fill_up(line: &Line, id: &str, all: &mut Vec<Tool>, candidates: usize, extra: Option<&Path>) -> Result<(), Failure> {
    let mut names: HashSet<String> = all.iter().map(|t| t.name.clone()).collect();
    let missing = candidates.saturating_sub(names.len());
    if missing == 0 {
        return Ok(());
    }
    let Some(path) = extra else {
        line.events.note(format!("{id}: only {} tools of different names are harvested, so tasks have fewer than {candidates} candidates; `--tools FILE` fills them up", names.len()));
        return Ok(());
    };
    let mut more = read_tools(path)?;
    more.sort_by(|a, b| a.id.cmp(&b.id));
    more.retain(|tool| names.insert(tool.name.clone()));
    more.truncate(missing);
    line.events.note(format!("{id}: filled up with {} tools of `{}`", more.len(), path.display()));
    all.extend(more);
    Ok(())
}

#[derive(Deserialize)]
struct ToolLine {
    #[serde(alias = "tool_name")]
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(alias = "inputSchema", alias = "parameters")]
    input_schema: Value,
    #[serde(default, alias = "server")]
    server_name: Option<String>,
}

/// Tools of a JSON-lines file with `name` (or `tool_name`), `description`, `input_schema`.
fn read_tools(path: &Path) -> Result<Vec<Tool>, Failure> {
    let fail = |what: String| {
        Failure::usage(format!("failed to read `{}`: {what}", path.display()))
            .hint("one JSON object a line, with `name`, `description` and `input_schema`")
    };
    let mut reader = BufReader::new(File::open(path).map_err(|e| fail(e.to_string()))?);
    let mut tools = Vec::new();
    let mut text = String::new();
    for number in 1.. {
        text.clear();
        let read = std::io::Read::take(&mut reader, LONGEST_LINE as u64)
            .read_line(&mut text)
            .map_err(|e| fail(format!("line {number}: {e}")))?;
        if read == 0 {
            break;
        }
        if read == LONGEST_LINE || number > MOST_TOOLS {
            return Err(fail(format!("line {number} is too long, or there are more than {MOST_TOOLS} lines")));
        }
        let line: ToolLine = serde_json::from_str(&text).map_err(|e| fail(format!("line {number}: {e}")))?;
        let server = ServerId::of(&("tools file", line.server_name));
        let draft = ToolDraft {
            name: line.name,
            title: None,
            description: line.description,
            input_schema: line.input_schema,
            output_schema: None,
            annotations: None,
        };
        tools.push(Tool::new(server, draft));
    }
    Ok(tools)
}

/// One line of the result.
struct Row {
    suite: String,
    model: String,
    scores: Scores,
}

async fn measure(line: &Line, suite: &str, model: &str, chooser: &Chooser, tasks: Vec<SelectionTask>) -> Result<Row, Failure> {
    let folder = format!("eval/{suite}/{}", alias(model));
    let hash = tasks_hash(&tasks);
    let print = content_hash(
        &json!({ "suite": suite, "model": model, "tasks": hash, "prompts": line.declarations.hash(&["prompts/pick.md"]) }),
    );
    let pace = Pace { concurrency: line.at_once(0, &[Role::Solver])?, max_failure_rate: line.config.filter.max_failure_rate };
    let work =
        async |cx: &Context, out: &dyn Sink<Prediction>| select(tasks, chooser, pace, cx, out).await.map_err(Failure::from);
    let info = line.stage(&folder, &print, false, work).await?;
    let path = line.run.path().join(&folder);
    let predictions: Vec<Prediction> =
        read_all(&path.join("predictions.parquet")).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
    let scores = score(&predictions, info.outcomes.failed, hash);
    let text = format!("{:#}\n", json!({ "suite": suite, "model": model, "scores": scores }));
    let file = path.join("metrics.json");
    std::fs::write(&file, text)
        .map_err(|e| Failure::new(Exit::Unexpected, format!("failed to write `{}`: {e}", file.display())))?;
    Ok(Row { suite: suite.to_owned(), model: model.to_owned(), scores })
}

fn show(rows: &[Row], format: Format) {
    if format == Format::Json {
        let rows: Vec<Value> = rows.iter().map(|r| json!({ "suite": r.suite, "model": r.model, "scores": r.scores })).collect();
        println!("{}", json!(rows));
        return;
    }
    println!(
        "{:<12} {:<40} {:>4} {:>10}  {:<15} {:>10} {:>9}",
        "suite", "model", "n", "tool %", "95 % interval", "unreadable", "not asked"
    );
    for row in rows {
        let share = row.scores.tool;
        let interval = format!("{:.1} to {:.1}", share.low * 100.0, share.high * 100.0);
        println!(
            "{:<12} {:<40} {:>4} {:>10.1}  {interval:<15} {:>10} {:>9}",
            row.suite,
            row.model,
            share.n,
            share.value * 100.0,
            row.scores.parse_failures.hits,
            row.scores.not_asked
        );
    }
}

/// Asks by the prompt `pick`, bound to the names of the candidates.
struct ByPrompt {
    model: RecordedChat,
    prompt: Prompt,
}

#[async_trait]
impl Picker for ByPrompt {
    async fn pick(&self, task: &SelectionTask) -> Result<Choice, String> {
        let mut meter = Meter::default();
        let candidates: Vec<&Tool> = task.candidates.iter().collect();
        let row = task.sample.as_str();
        let choice = pick(&self.model, &self.prompt, &task.instruction, &candidates, row, &mut meter);
        let choice = match choice.await {
            Err(failure) if !failure.answered => return Err(failure.cause),
            choice => choice.map_err(|failure| failure.cause),
        };
        Ok((choice, meter.usage, meter.attempts, meter.repairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_read_by_either_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tools.jsonl");
        std::fs::write(
            &path,
            "{\"tool_name\":\"a\",\"description\":null,\"input_schema\":{}}\n{\"name\":\"b\",\"inputSchema\":{},\"x\":1}\n",
        )
        .unwrap();
        let tools = read_tools(&path).unwrap();
        assert_eq!(tools.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        std::fs::write(&path, "{\"name\":\"a\",\"input_schema\":{}}\nnot json\n").unwrap();
        assert!(read_tools(&path).unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn a_suite_with_a_mistake_is_refused() {
        assert_eq!(fault("suite = \"select\"\ncandidates = 10\ndistractors = \"random\"\nsplits = []\n"), None);
        assert_eq!(fault("suite = \"select\"\ncandidates = 10\ndistractors = \"same-server\"\nsplits = []\n"), None);
        assert!(fault("suite = \"select\"\ncandidates = 10\ndistractors = \"hard\"\nsplits = []\n").unwrap().contains("hard"));
    }
}

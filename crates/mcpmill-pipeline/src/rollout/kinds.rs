//! How conversations of each kind are run.

use mcpmill_core::{
    drive::Done,
    record::{Message, Outcome, Sample, SampleKind, Tool, ToolCall, Trajectory, Usage},
};
use serde_json::Value;

use super::{
    Desk, calls, is_written_live,
    run::{MOST_TURNS, Run, Step, Stop, unknown},
};

/// How often a conversation is begun anew whose world cannot be had again.
const MOST_BEGUN: u32 = 1;

/// Runs one conversation.
pub(super) async fn one(sample: Sample, desk: Desk<'_>) -> Done<Trajectory> {
    if sample.kind == SampleKind::NoTool {
        return Done::none(Outcome::skipped(sample.id.as_str(), "nothing-to-run"));
    }
    let mut begun = 0;
    // What is begun anew was paid for all the same.
    let (mut usage, mut attempts) = (Usage::default(), 0);
    loop {
        let mut done = match Box::pin(begin(&sample, desk, begun)).await {
            Ok(done) => done,
            Err(Stop::Again(spent)) if begun < MOST_BEGUN => {
                begun += 1;
                let (input_tokens, output_tokens) = (spent.input_tokens, spent.output_tokens);
                usage += Usage { input_tokens, output_tokens, cost: spent.cost_usd, ..Usage::default() };
                attempts += spent.attempts;
                continue;
            }
            Err(Stop::Again(outcome) | Stop::End(outcome)) => Done::none(*outcome),
        };
        done.outcome = done.outcome.with_usage(usage, attempts);
        return done;
    }
}

async fn begin<'a>(sample: &'a Sample, desk: Desk<'a>, begun: u32) -> Result<Done<Trajectory>, Stop> {
    let (calls, tools) = labelled(sample, desk)?;
    let last = sample.messages.iter().rposition(|m| !m.tool_calls().is_empty());
    let first = sample.messages.iter().position(|m| !m.tool_calls().is_empty());
    // What stands behind the first call of a recovery belongs behind its answer.
    let said = if sample.kind == SampleKind::Recover { first } else { last }.map_or(0, |at| at + 1);
    let several = calls.len() > 1 || is_written_live(sample.kind);
    let mut run = Run::new(sample, desk, (said, begun), several, (tools[0], &calls[0]));
    // The calls that are known are asked about before any is made.
    let refused = calls.iter().zip(&tools).map(|(_, tool)| run.policy(tool)).find(|policy| !policy.allowed);
    if let Some(policy) = refused {
        return Ok(run.refused(policy));
    }
    let ran = match sample.kind {
        SampleKind::Chain => chain(&mut run, &calls[0], &tools).await,
        SampleKind::MultiTurn => multi_turn(&mut run, &calls[0], &tools).await,
        SampleKind::Recover => recover(&mut run, &calls, tools[0]).await,
        _ => one_turn(&mut run, &calls, &tools).await,
    };
    run.close().await;
    ran?;
    Ok(if is_written_live(sample.kind) && !run.is_whole() { run.cut_short() } else { run.done() })
}

/// The calls a sample holds, and its tools in the order they are called.
fn labelled<'a>(sample: &Sample, desk: Desk<'a>) -> Result<(Vec<ToolCall>, Vec<&'a Tool>), Stop> {
    let calls = calls(sample);
    let tools: Option<Vec<&Tool>> = sample.tool_ids.iter().map(|id| desk.servers.toolbox.get(id)).collect();
    let tools = tools.ok_or_else(|| unknown(sample))?;
    // Both calls of a recovery are of its one tool.
    let enough = tools.len() >= if sample.kind == SampleKind::Recover { 1 } else { calls.len() };
    let known = tools.iter().all(|tool| desk.servers.by_id.contains_key(&tool.server_id));
    let complete = !calls.is_empty() && (sample.kind != SampleKind::Recover || calls.len() == 2);
    if enough && known && complete { Ok((calls, tools)) } else { Err(unknown(sample)) }
}

/// All calls of the turn, their answers in order, and on demand a text made of them.
async fn one_turn<'a>(run: &mut Run<'a>, calls: &[ToolCall], tools: &[&'a Tool]) -> Result<(), Stop> {
    let mut all_good = true;
    for (call, tool) in calls.iter().zip(tools) {
        match run.call(call, tool).await? {
            Step::Good => {}
            Step::Bad(_) => all_good = false,
            Step::Broken(error) => {
                run.broken(&error);
                return Ok(());
            }
            Step::Refused => return Ok(()),
        }
    }
    if all_good { on_demand(run).await } else { Ok(()) }
}

/// The text of the answers, where it is asked for.
async fn on_demand(run: &mut Run<'_>) -> Result<(), Stop> {
    if !run.desk.settings.answer {
        return Ok(());
    }
    say_answer(run).await.map(|_| ())
}

/// Lets the assistant say what the answers brought; false where it could not say it without making something up.
async fn say_answer(run: &mut Run<'_>) -> Result<bool, Stop> {
    let Some(writer) = run.desk.writer else { return Ok(false) };
    let written = writer.answer(run.sample, &run.trajectory.messages, &mut run.meter).await;
    let Some(text) = run.written(written)? else { return Ok(false) };
    run.note(&writer.prompts.answer, writer, &text);
    run.trajectory.messages.push(Message::assistant(text));
    Ok(true)
}

/// The known call, then one after another with what the answers brought, then a text of them.
async fn chain<'a>(run: &mut Run<'a>, first: &ToolCall, tools: &[&'a Tool]) -> Result<(), Stop> {
    if !first_call(run, first, tools[0]).await? {
        return Ok(());
    }
    for tool in tools.iter().skip(1).take(MOST_TURNS - 1) {
        if !next_call(run, tool).await? {
            return Ok(());
        }
    }
    say_answer(run).await.map(|_| ())
}

/// The known call and a text of its answer, then request, call and text for every further tool.
async fn multi_turn<'a>(run: &mut Run<'a>, first: &ToolCall, tools: &[&'a Tool]) -> Result<(), Stop> {
    if !first_call(run, first, tools[0]).await? || !say_answer(run).await? {
        return Ok(());
    }
    for tool in tools.iter().skip(1).take(MOST_TURNS - 1) {
        let Some(writer) = run.desk.writer else { return Ok(()) };
        let written = writer.user(run.sample, &run.trajectory.messages, tool, &mut run.meter).await;
        let Some(request) = run.written(written)? else { return Ok(()) };
        let before = run.mark();
        run.note(&writer.prompts.user, writer, &request);
        run.trajectory.messages.push(Message::user(request));
        if !next_call(run, tool).await? {
            // A request that no answer follows is no turn.
            run.back_to(&before);
            return Ok(());
        }
        if !say_answer(run).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether the conversation can go on with the answer of its first call.
async fn first_call<'a>(run: &mut Run<'a>, call: &ToolCall, tool: &'a Tool) -> Result<bool, Stop> {
    match run.call(call, tool).await? {
        Step::Good => Ok(true),
        Step::Refused => Ok(false),
        Step::Bad(why) => {
            run.trajectory.cause = Some(format!("`{}` failed: {why}", tool.name));
            Ok(false)
        }
        Step::Broken(error) => {
            run.broken(&error);
            Ok(false)
        }
    }
}

/// Writes and makes the next call. Whether the conversation goes on: one that is refused or breaks the server is
/// taken out again, one that the tool fails on is masked.
async fn next_call<'a>(run: &mut Run<'a>, tool: &'a Tool) -> Result<bool, Stop> {
    let policy = run.policy(tool);
    if !policy.allowed {
        run.trajectory.cause = Some(format!("`{}` is refused by `{}`", tool.name, policy.rule));
        return Ok(false);
    }
    let Some(writer) = run.desk.writer else { return Ok(false) };
    let written = writer.next(run.sample, &run.trajectory.messages, tool, &mut run.meter).await;
    let Some(arguments) = run.written(written)? else { return Ok(false) };
    run.note(&writer.prompts.next, writer, &Value::Object(arguments.clone()).to_string());
    let call = run.say_call(tool, arguments);
    match run.call(&call, tool).await? {
        Step::Good => Ok(true),
        Step::Bad(why) => {
            run.mask_last_call();
            run.trajectory.cause = Some(format!("`{}` failed: {why}", tool.name));
            Ok(false)
        }
        Step::Broken(error) => {
            run.trajectory.messages.pop();
            run.trajectory.cause = Some(error.to_string());
            Ok(false)
        }
        Step::Refused => {
            run.trajectory.messages.pop();
            Ok(false)
        }
    }
}

/// The wrong call, its error, the right call. A wrong call that works makes no recovery.
async fn recover<'a>(run: &mut Run<'a>, calls: &[ToolCall], tool: &'a Tool) -> Result<(), Stop> {
    match run.call(&calls[0], tool).await? {
        Step::Bad(_) => run.mask_last_call(),
        Step::Good => return Err(run.dropped("did-not-fail")),
        Step::Broken(error) => {
            run.broken(&error);
            return Ok(());
        }
        Step::Refused => return Ok(()),
    }
    run.trajectory.messages.push(Message::call(calls[1].clone()));
    match run.call(&calls[1], tool).await? {
        Step::Good => on_demand(run).await,
        Step::Bad(_) | Step::Refused => Ok(()),
        Step::Broken(error) => {
            run.broken(&error);
            Ok(())
        }
    }
}

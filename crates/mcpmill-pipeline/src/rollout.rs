//! Rollout: run surviving calls on the live servers, each in a fresh disposable world.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use mcpmill_core::{
    canonical::sha256_hex,
    drive::{Context, Done, Pace, Sink, StageError, drive},
    edge::{ConnectError, Connector, ExchangeError, ExchangeKind, Recorder, ToolError, ToolErrorKind, WorldSpec},
    event::Summary,
    id::{ServerId, TrajectoryId},
    record::{Ended, Message, Outcome, PolicyDecision, Row, Sample, SampleKind, ServerRecord, ToolResult, Trajectory},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    harvest::{given, world_of},
    policy::Policy,
};
use mcpmill_core::toolbox::Toolbox;

/// What rollout may do.
#[derive(Clone)]
pub struct RolloutSettings {
    /// Calls that are run at most; further samples are skipped with that reason.
    pub max_calls: usize,
    /// Which calls may run.
    pub policy: Policy,
    /// World seeds by name.
    pub worlds: Arc<BTreeMap<String, WorldSpec>>,
    /// Servers that run with the network; all others have none.
    pub networked: Arc<BTreeSet<ServerId>>,
    /// How much at once, and when to give up.
    pub pace: Pace,
}

/// What calls are run on.
pub struct Servers {
    /// Servers by id.
    pub by_id: HashMap<ServerId, ServerRecord>,
    /// All tools.
    pub toolbox: Arc<Toolbox>,
    /// How servers are reached.
    pub connector: Arc<dyn Connector>,
}

/// What came of a call: the recorded exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Called {
    /// The tool answered.
    Answer(ToolResult),
    /// The server did not start.
    NotConnected(ConnectError),
    /// The server failed while it was asked.
    NotAnswered(ToolError),
}

#[derive(Serialize)]
struct Job {
    sample: Sample,
    within_share: bool,
}

impl Row for Job {
    fn row_id(&self) -> &str {
        self.sample.id.as_str()
    }
}

/// Runs the calls of `samples`.
///
/// Every call has a world of its own, so that no call depends on another and their order does not
/// matter.
///
/// # Errors
/// Interrupted, too many calls that could not be made at all, or a journal that fails.
pub async fn rollout(
    samples: Vec<Sample>,
    settings: &RolloutSettings,
    servers: &Servers,
    cx: &Context,
    out: &dyn Sink<Trajectory>,
) -> Result<Summary, StageError> {
    let recorder = &cx.recorder;
    drive(share(samples, settings.max_calls), settings.pace, cx, out, |job| async move {
        if !job.within_share {
            return Done::none(Outcome::skipped(job.sample.id.as_str(), "beyond-share"));
        }
        one(job.sample, settings, servers, recorder).await
    })
    .await
}

/// The first `most` samples by hash are within the share: a sample stays in it when others go.
fn share(samples: Vec<Sample>, most: usize) -> Vec<Job> {
    let mut order: Vec<(String, Sample)> = samples.into_iter().map(|s| (sha256_hex(format!("rollout\n{}", s.id)), s)).collect();
    order.sort_by(|a, b| a.0.cmp(&b.0));
    order.into_iter().enumerate().map(|(i, (_, sample))| Job { sample, within_share: i < most }).collect()
}

async fn one(sample: Sample, settings: &RolloutSettings, servers: &Servers, recorder: &Recorder) -> Done<Trajectory> {
    let id = sample.id.to_string();
    if !matches!(sample.kind, SampleKind::Single | SampleKind::Ask) {
        return Done::none(Outcome::skipped(id, format!("kind: {}", sample.kind.as_str())));
    }
    let call = sample.messages.iter().flat_map(Message::tool_calls).next().cloned();
    let tool = sample.tool_ids.first().and_then(|t| servers.toolbox.get(t));
    let server = tool.and_then(|t| servers.by_id.get(&t.server_id));
    let (Some(call), Some(tool), Some(server)) = (call, tool, server) else {
        return Done::none(Outcome::failed(id, "unknown-tool", "the sample's call, tool or server is not in this run"));
    };
    let policy = settings.policy.decide(&server.name, &tool.name);
    let arguments = call.function.arguments.clone();
    let mut trajectory = Trajectory {
        id: TrajectoryId::of(&(&sample.id, &tool.id, &arguments)),
        sample_id: sample.id.clone(),
        messages: sample.messages.clone(),
        ended: Ended::Refused,
        cause: None,
        policy: policy.clone(),
        result: None,
        response_verdict: None,
        masked: Vec::new(),
    };
    if !policy.allowed {
        return refused(&id, &policy, trajectory);
    }
    let world = match world_of(server, &settings.worlds, &settings.networked) {
        Ok(world) => world,
        Err(name) => return Done::none(Outcome::failed(id, "no-such-world", format!("world seed `{name}` is not declared"))),
    };
    let question = json!({
        "launch": server.launch, "env": given(server), "world": world, "tool": tool.name, "arguments": arguments,
    });
    let live = || async { serde_json::to_value(run(servers, server, &world, &tool.name, &arguments).await) };
    let (called, asked) = match recorder.ask(ExchangeKind::Call, &question, settled, live).await {
        Ok(recorded) => (serde_json::from_value::<Called>(recorded.reply).map_err(|e| e.to_string()), u32::from(recorded.live)),
        Err(error @ ExchangeError::NotRecorded { .. }) => {
            return Done::none(Outcome::failed(id, "not-recorded", error.to_string()));
        }
        Err(error) => (Err(error.to_string()), 0),
    };
    match called {
        Err(why) => Done::none(Outcome::failed(id, "store", why)),
        // Nothing was called: that says nothing of the sample.
        Ok(Called::NotConnected(error)) => Done::none(Outcome::failed(id, error.outcome.as_str(), error.to_string())),
        Ok(called) => {
            let name = call.function.name.clone();
            write(&mut trajectory, called, call.id, name);
            let mut done = Done::kept(&id, vec![trajectory]);
            done.outcome.attempts = asked;
            done
        }
    }
}

/// Whether something was called: a server that did not start may do so another time.
fn settled(reply: &Value) -> bool {
    serde_json::from_value::<Called>(reply.clone()).is_ok_and(|called| !matches!(called, Called::NotConnected(_)))
}

fn refused(id: &str, policy: &PolicyDecision, trajectory: Trajectory) -> Done<Trajectory> {
    let outcome = Outcome::skipped(id, format!("refused: {}", policy.rule));
    Done { outcome, rows: vec![trajectory], verdicts: Vec::new() }
}

async fn run(servers: &Servers, server: &ServerRecord, world: &WorldSpec, tool: &str, arguments: &Map<String, Value>) -> Called {
    match servers.connector.connect(server, world).await {
        Err(error) => Called::NotConnected(error),
        Ok(runner) => {
            let answer = runner.call_tool(tool, arguments).await;
            runner.close().await;
            answer.map_or_else(Called::NotAnswered, Called::Answer)
        }
    }
}

/// Puts what came of the call into the trajectory; the answer stands there verbatim.
fn write(trajectory: &mut Trajectory, called: Called, tool_call_id: String, name: String) {
    match called {
        Called::Answer(result) => {
            trajectory.ended = Ended::Answer;
            trajectory.messages.push(Message::Tool { tool_call_id, name, content: result.text() });
            trajectory.result = serde_json::to_string(&result).ok();
        }
        Called::NotConnected(error) => {
            trajectory.ended = Ended::Failed;
            trajectory.cause = Some(error.to_string());
        }
        Called::NotAnswered(error) => {
            trajectory.ended = if error.kind == ToolErrorKind::TimedOut { Ended::Limit } else { Ended::Failed };
            trajectory.cause = Some(error.to_string());
        }
    }
}

//! One conversation while it is run: its worlds, what was said and answered so far, and how it ends.

use std::collections::{BTreeMap, BTreeSet};

use mcpmill_core::{
    canonical::sha256_hex,
    drive::Done,
    edge::{ToolError, ToolErrorKind},
    id::{ServerId, TrajectoryId},
    naming::alias,
    record::{
        Ended, FunctionCall, Message, Outcome, PolicyDecision, Revision, Sample, SampleKind, Tool, ToolCall, ToolResult,
        Trajectory,
    },
};
use serde_json::{Map, Value, json};

use super::{
    CUT_SHORT, Desk, Writer,
    place::{CallFailure, Called, Place, Thread},
};
use crate::{
    ask::{AskFailure, Meter},
    filter::failing,
    harvest::world_of,
    prompt::Prompt,
};

/// Turns of a conversation at most, and calls of one that is written while it is run.
pub(super) const MOST_TURNS: usize = 4;

/// A run that brings no row.
pub(super) enum Stop {
    /// With this outcome.
    End(Box<Outcome>),
    /// A world could not be had again: from the beginning, under other keys.
    Again(Box<Outcome>),
}

/// What came of one call.
pub(super) enum Step {
    /// An answer to go on with.
    Good,
    /// The tool was asked and failed, in words; its message stands in the conversation.
    Bad(String),
    /// The server broke: nothing can be asked of it any more.
    Broken(ToolError),
    /// It was not made: the policy refuses it.
    Refused,
}

/// What the policy says of a call; nothing of a server that is not there may run.
fn policy_of(desk: Desk<'_>, tool: &Tool) -> PolicyDecision {
    let unknown =
        || PolicyDecision { allowed: false, rule: "unknown-server".into(), why: "its server is not in this run".into() };
    let server = desk.servers.by_id.get(&tool.server_id);
    server.map_or_else(unknown, |server| desk.settings.policy.decide(server, tool))
}

/// A place in a conversation, by what is there before it.
pub(super) struct Mark {
    messages: usize,
    lineage: usize,
    results: usize,
}

/// A conversation while it is run.
pub(super) struct Run<'a> {
    pub(super) sample: &'a Sample,
    pub(super) desk: Desk<'a>,
    pub(super) meter: Meter,
    pub(super) trajectory: Trajectory,
    /// The reply that could not be used, where that ended the conversation.
    raw: Option<String>,
    /// Whether it makes several calls, which then depend on each other.
    several: bool,
    begun: u32,
    live: u32,
    results: Vec<ToolResult>,
    places: BTreeMap<&'a ServerId, Place<'a>>,
}

impl<'a> Run<'a> {
    /// The run of `sample` from its first `said` messages; `first` is its first call and tool.
    pub(super) fn new(
        sample: &'a Sample,
        desk: Desk<'a>,
        (said, begun): (usize, u32),
        several: bool,
        first: (&Tool, &ToolCall),
    ) -> Self {
        let trajectory = Trajectory {
            id: TrajectoryId::of(&(&sample.id, &first.0.id, &first.1.function.arguments)),
            sample_id: sample.id.clone(),
            messages: sample.messages[..said].to_vec(),
            ended: Ended::Answer,
            cause: None,
            policy: policy_of(desk, first.0),
            result: None,
            response_verdict: None,
            masked: Vec::new(),
            lineage: Vec::new(),
        };
        let (meter, results, places) = (Meter::default(), Vec::new(), BTreeMap::new());
        Self { sample, desk, meter, trajectory, raw: None, several, begun, live: 0, results, places }
    }

    /// What the policy says of a call.
    pub(super) fn policy(&self, tool: &Tool) -> PolicyDecision {
        policy_of(self.desk, tool)
    }

    /// Makes a call that stands in the conversation, and puts its answer behind it.
    pub(super) async fn call(&mut self, call: &ToolCall, tool: &'a Tool) -> Result<Step, Stop> {
        if !self.policy(tool).allowed {
            return Ok(Step::Refused);
        }
        let desk = self.desk;
        let (several, begun) = (self.several, self.begun);
        let thread = Thread { id: self.sample.id.as_str(), begun };
        let place = self.place(tool)?;
        let asked = (tool.name.as_str(), &call.function.arguments);
        let made = place.call(desk.servers.connector.as_ref(), &desk.cx.recorder, several.then_some(&thread), asked).await;
        let (called, live) = made.map_err(|failure| self.stop(failure))?;
        self.live += u32::from(live);
        match called {
            // Nothing was called: that says nothing of the sample.
            Called::NotConnected(error) => Err(self.end(error.outcome.as_str(), error.to_string())),
            Called::Answer(result) => {
                let failed = failing(&result, &tool.name, &call.function.arguments);
                self.answered(call, result.text(), result);
                Ok(failed.map_or(Step::Good, Step::Bad))
            }
            Called::NotAnswered(error) if self.several && matches!(error.kind, ToolErrorKind::Rpc(_)) => {
                let content = json!([{"type": "text", "text": error.detail}]);
                self.answered(call, error.detail.clone(), ToolResult { content, structured_content: None, is_error: true });
                Ok(Step::Bad(error.detail))
            }
            Called::NotAnswered(error) => Ok(Step::Broken(error)),
        }
    }

    fn answered(&mut self, call: &ToolCall, content: String, result: ToolResult) {
        let name = call.function.name.clone();
        self.trajectory.messages.push(Message::Tool { tool_call_id: call.id.clone(), name, content });
        self.results.push(result);
    }

    /// The server of a tool, with its world.
    fn place(&mut self, tool: &'a Tool) -> Result<&mut Place<'a>, Stop> {
        let Desk { settings, servers, .. } = self.desk;
        if !self.places.contains_key(&tool.server_id) {
            let server = servers.by_id.get(&tool.server_id);
            let server = server.ok_or_else(|| unknown(self.sample))?;
            let world = world_of(server, &settings.worlds, &settings.networked);
            let world = world.map_err(|name| self.end("no-such-world", format!("world seed `{name}` is not declared")))?;
            self.places.insert(&tool.server_id, Place::new(server, world));
        }
        self.places.get_mut(&tool.server_id).ok_or_else(|| unknown(self.sample))
    }

    fn stop(&self, failure: CallFailure) -> Stop {
        match failure {
            CallFailure::Differs(_) => Stop::Again(self.outcome("world-differs", failure.to_string())),
            CallFailure::NotRecorded(cause) if self.several => Stop::Again(self.outcome("not-recorded", cause)),
            CallFailure::NotRecorded(cause) => self.end("not-recorded", cause),
            CallFailure::Store(cause) => self.end("store", cause),
        }
    }

    /// A run that makes no conversation of its kind.
    pub(super) fn dropped(&self, reason: &str) -> Stop {
        Stop::End(Box::new(self.told(Outcome::dropped(self.sample.id.as_str(), reason))))
    }

    fn outcome(&self, reason: &str, cause: String) -> Box<Outcome> {
        Box::new(self.told(Outcome::failed(self.sample.id.as_str(), reason, cause)))
    }

    /// The outcome with all that calls of models and tools used, and what was repaired.
    fn told(&self, outcome: Outcome) -> Outcome {
        let mut outcome = self.meter.told(outcome);
        outcome.attempts += self.live;
        outcome
    }

    fn end(&self, reason: &str, cause: String) -> Stop {
        Stop::End(self.outcome(reason, cause))
    }

    /// A turn that could not be written: `None` where the model answered and could not do it, which ends the
    /// conversation there; a model that cannot be asked ends the row.
    pub(super) fn written<T>(&mut self, written: Result<T, AskFailure>) -> Result<Option<T>, Stop> {
        match written {
            Ok(turn) => Ok(Some(turn)),
            Err(failure) if failure.answered => {
                self.trajectory.cause = Some(format!("{}: {}", failure.reason, failure.cause));
                self.raw = failure.raw;
                Ok(None)
            }
            Err(failure) => Err(Stop::End(Box::new(self.told(failure.outcome(self.sample.id.as_str()))))),
        }
    }

    /// Puts a call into the conversation; the place among its calls makes the id.
    pub(super) fn say_call(&mut self, tool: &Tool, arguments: Map<String, Value>) -> ToolCall {
        let place = self.trajectory.messages.iter().map(|message| message.tool_calls().len()).sum::<usize>();
        let whole = sha256_hex(format!("{}\n{place}", self.sample.id));
        let call = ToolCall::new(format!("call_{}", &whole[..10]), FunctionCall { name: alias(&tool.name), arguments });
        self.trajectory.messages.push(Message::call(call.clone()));
        call
    }

    /// The last message but for the answers behind it is not to be learned from.
    pub(super) fn mask_last_call(&mut self) {
        let at = self.trajectory.messages.iter().rposition(|message| !message.tool_calls().is_empty());
        self.trajectory.masked.extend(at.and_then(|at| u32::try_from(at).ok()));
    }

    /// Notes who wrote a turn, and by name what had to be repaired for it.
    pub(super) fn note(&mut self, prompt: &Prompt, writer: &Writer, text: &str) {
        self.revision(&prompt.id, Some((prompt, writer)), text);
        for repair in self.meter.untold() {
            self.revision(&format!("repair:{}", repair.as_str()), None, text);
        }
    }

    fn revision(&mut self, step: &str, by: Option<(&Prompt, &Writer)>, text: &str) {
        let before = self.trajectory.lineage.last().or(self.sample.lineage.last());
        let revision = Revision {
            step: step.into(),
            prompt: by.map(|(prompt, _)| prompt.hash.clone()),
            model: by.map(|(prompt, writer)| writer.models.role(prompt.role).model().to_owned()),
            parent: before.map(|revision| sha256_hex(&revision.text)),
            text: text.into(),
        };
        self.trajectory.lineage.push(revision);
    }

    /// How far the conversation has come.
    pub(super) fn mark(&self) -> Mark {
        let Trajectory { messages, lineage, .. } = &self.trajectory;
        Mark { messages: messages.len(), lineage: lineage.len(), results: self.results.len() }
    }

    /// Takes out what came after `mark`.
    pub(super) fn back_to(&mut self, mark: &Mark) {
        self.trajectory.messages.truncate(mark.messages);
        self.trajectory.lineage.truncate(mark.lineage);
        self.results.truncate(mark.results);
        self.trajectory.masked.retain(|at| (*at as usize) < mark.messages);
    }

    /// Whether a conversation that is written while it is run became one of its kind: two calls of a chain, or of two
    /// requests, that were answered and are to be learned, and nothing that failed at its end.
    pub(super) fn is_whole(&self) -> bool {
        let Trajectory { messages, masked, .. } = &self.trajectory;
        let is_masked = |at: usize| u32::try_from(at).is_ok_and(|at| masked.contains(&at));
        let is_good = |at: usize| matches!(messages.get(at + 1), Some(Message::Tool { .. })) && !is_masked(at);
        let calls: Vec<usize> = (0..messages.len()).filter(|&at| !messages[at].tool_calls().is_empty()).collect();
        let asked = |at: usize| messages[..at].iter().rposition(|message| matches!(message, Message::User { .. }));
        let good = calls.iter().copied().filter(|&at| is_good(at));
        let steps = match self.sample.kind {
            SampleKind::MultiTurn => good.map(asked).collect::<BTreeSet<_>>().len(),
            _ => good.count(),
        };
        steps >= 2 && calls.last().is_some_and(|&at| is_good(at))
    }

    /// The end of a conversation that did not become one of its kind.
    pub(super) fn cut_short(self) -> Done<Trajectory> {
        let mut outcome = self.told(Outcome::dropped(self.sample.id.as_str(), CUT_SHORT));
        outcome.cause = Some(self.trajectory.cause.unwrap_or_else(|| "nobody writes its further turns".into()));
        outcome.raw = self.raw;
        Done::none(outcome)
    }

    /// A call that could not be answered at all, as the end of the conversation.
    pub(super) fn broken(&mut self, error: &ToolError) {
        self.trajectory.ended = if error.kind == ToolErrorKind::TimedOut { Ended::Limit } else { Ended::Failed };
        self.trajectory.cause = Some(error.to_string());
    }

    /// The end of a conversation that nothing was called in.
    pub(super) fn refused(mut self, policy: PolicyDecision) -> Done<Trajectory> {
        let outcome = Outcome::skipped(self.sample.id.as_str(), format!("refused: {}", policy.rule));
        self.trajectory.ended = Ended::Refused;
        self.trajectory.messages.clone_from(&self.sample.messages);
        self.trajectory.policy = policy;
        Done { outcome, rows: vec![self.trajectory], verdicts: Vec::new() }
    }

    /// Ends the servers.
    pub(super) async fn close(&mut self) {
        for place in std::mem::take(&mut self.places).into_values() {
            place.close().await;
        }
    }

    /// The row. One answer stands there as MCP sent it, several as a list in their order; an error of the protocol
    /// that the model was told stands there as an answer that says it is one.
    pub(super) fn done(mut self) -> Done<Trajectory> {
        self.trajectory.result = match &self.results[..] {
            [] => None,
            [one] => serde_json::to_string(one).ok(),
            several => serde_json::to_string(several).ok(),
        };
        let mut outcome = self.told(Outcome::kept(self.sample.id.as_str()));
        outcome.raw = self.raw;
        Done { outcome, rows: vec![self.trajectory], verdicts: Vec::new() }
    }
}

/// The end of a sample that is of another run.
pub(super) fn unknown(sample: &Sample) -> Stop {
    let why = "the sample's call, tool or server is not in this run";
    Stop::End(Box::new(Outcome::failed(sample.id.as_str(), "unknown-tool", why)))
}

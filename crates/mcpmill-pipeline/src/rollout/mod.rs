//! Rollout: run surviving conversations on the live servers, each in fresh disposable worlds.

mod kinds;
pub(crate) mod known;
pub(crate) mod place;
mod prompts;
mod run;
mod voice;
mod write;

pub use prompts::RolloutPrompts;
pub use write::Writer;
pub(crate) use write::turns;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use mcpmill_core::{
    canonical::sha256_hex,
    drive::{Context, Done, Pace, Sink, StageError, drive},
    edge::{Connector, WorldSpec},
    event::Summary,
    id::ServerId,
    record::{Message, Outcome, Row, Sample, SampleKind, ServerRecord, Trajectory},
    toolbox::Toolbox,
};
use serde::Serialize;

use crate::policy::Policy;
use kinds::one;

/// Why a conversation is dropped that is written while it is run and did not become one of its kind.
pub const CUT_SHORT: &str = "cut-short";

/// What rollout may do.
#[derive(Clone)]
pub struct RolloutSettings {
    /// Calls that are run at most; further samples are skipped with that reason.
    pub max_calls: usize,
    /// Whether conversations of one assistant turn end in a text made of the answers.
    pub answer: bool,
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

/// What the runs of one stage share.
#[derive(Clone, Copy)]
struct Desk<'a> {
    settings: &'a RolloutSettings,
    servers: &'a Servers,
    writer: Option<&'a Writer>,
    cx: &'a Context,
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

/// Runs the conversations of `samples`; `writer` writes the turns that need an answer first.
///
/// Every conversation has worlds of its own, one a server, so that no conversation depends on another and their
/// order does not matter.
///
/// # Errors
/// Interrupted, too many conversations that could not be run at all, or a journal that fails.
pub async fn rollout(
    samples: Vec<Sample>,
    settings: &RolloutSettings,
    servers: &Servers,
    writer: Option<&Writer>,
    cx: &Context,
    out: &dyn Sink<Trajectory>,
) -> Result<Summary, StageError> {
    let desk = Desk { settings, servers, writer, cx };
    drive(share(samples, settings.max_calls), settings.pace, cx, out, |job| async move {
        if !job.within_share {
            return Done::none(Outcome::skipped(job.sample.id.as_str(), "beyond-share"));
        }
        Box::pin(one(job.sample, desk)).await
    })
    .await
}

/// Whether turns of this kind are written while it is run.
pub fn is_written_live(kind: SampleKind) -> bool {
    matches!(kind, SampleKind::Chain | SampleKind::MultiTurn)
}

/// Whether a conversation of this kind is made of what the tools answer: without answers there is none.
pub fn needs_answers(kind: SampleKind) -> bool {
    kind == SampleKind::Recover || is_written_live(kind)
}

/// The first samples by hash, as many as make `most` calls, are within the share: a sample stays in it when others
/// go.
fn share(samples: Vec<Sample>, most: usize) -> Vec<Job> {
    let mut order: Vec<(String, Sample)> = samples.into_iter().map(|s| (sha256_hex(format!("rollout\n{}", s.id)), s)).collect();
    order.sort_by(|a, b| a.0.cmp(&b.0));
    let mut calls = 0_usize;
    let within = |sample: Sample| {
        calls = calls.saturating_add(calls_of(&sample));
        Job { within_share: calls <= most, sample }
    };
    order.into_iter().map(|(_, sample)| sample).map(within).collect()
}

/// How many calls a conversation makes when it is run to its end.
fn calls_of(sample: &Sample) -> usize {
    let written = sample.messages.iter().map(|message| message.tool_calls().len()).sum::<usize>();
    if is_written_live(sample.kind) { written.max(sample.tool_ids.len().min(run::MOST_TURNS)) } else { written }
}

/// The calls a sample holds before it is run.
fn calls(sample: &Sample) -> Vec<mcpmill_core::record::ToolCall> {
    sample.messages.iter().flat_map(Message::tool_calls).cloned().collect()
}

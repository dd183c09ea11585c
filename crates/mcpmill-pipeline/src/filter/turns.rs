//! `turns`: do the requests and texts that were written while a conversation was run follow from it? A turn that does
//! not is masked, and with a request all that answers it; the rest of the conversation can be learned from.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use mcpmill_core::{
    record::{Ended, Message, Sample, Trajectory, Verdict, Wait},
    text::clipped,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Bench, Case, Filter, Plant};
use crate::{
    ask::{AskFailure, Meter, Question, ask},
    card::one_line,
    models::{Models, Role},
    prompt::Prompt,
    rollout::turns,
};

/// Characters of a written turn that the judge is shown.
const SHOWN: usize = 1200;

pub(super) struct Turns {
    pub(super) name: String,
    pub(super) prompt: Prompt,
    pub(super) models: Result<Models, String>,
}

/// What the verdict says of single turns.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    judge: String,
    /// Places of the turns that do not follow, and why.
    rejected: BTreeMap<usize, String>,
    /// Places of what is not to be learned because of them.
    masked: BTreeSet<u32>,
}

#[async_trait]
impl Filter for Turns {
    fn name(&self) -> &str {
        &self.name
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::OtherClosing]
    }

    /// Reasons begin with a type and a colon, as those of the response filter do.
    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let Some(trajectory) = case.trajectory else {
            return bench.unjudged("unjudged: there is no trajectory");
        };
        let written = if trajectory.ended == Ended::Answer { written(case.sample, trajectory) } else { Vec::new() };
        if written.is_empty() {
            return bench.keep("ok: not applicable: no turn was written while it was run");
        }
        let models = match &self.models {
            Ok(models) => models,
            Err(why) => return bench.unjudged(format!("unjudged: no model: {why}")),
        };
        let (found, failure) = self.ask_all(models, (case.subject, trajectory), &written, meter).await;
        let count = found.rejected.len();
        let first = found.rejected.values().next().cloned().unwrap_or_default();
        let verdict = if let Some(failure) = failure {
            bench.unjudged(format!("unjudged: {}: {}", failure.reason, failure.cause))
        } else if is_learned(trajectory, &found.masked) {
            let told = if count == 0 { "all follow".to_owned() } else { format!("masked {count}: {first}") };
            bench.keep(format!("ok: of {} written turns {told}", written.len()))
        } else {
            bench.drop(format!("nothing-to-learn: {first}"))
        };
        Verdict { evidence: serde_json::to_string(&found).ok(), ..verdict }
    }

    fn masks(&self, verdict: &Verdict) -> Vec<u32> {
        let found = verdict.evidence.as_deref().and_then(|text| serde_json::from_str::<Found>(text).ok());
        found.unwrap_or_default().masked.into_iter().collect()
    }
}

impl Turns {
    /// Asks about every written turn. A turn that waits for its answer keeps none of the others waiting.
    async fn ask_all(
        &self,
        models: &Models,
        (subject, trajectory): (&str, &Trajectory),
        written: &[usize],
        meter: &mut Meter,
    ) -> (Found, Option<AskFailure>) {
        let mut found = Found { judge: models.role(Role::Judge).model().to_owned(), ..Found::default() };
        let mut waiting = None;
        for &at in written {
            match self.one(models, subject, (&trajectory.messages, at), meter).await {
                Ok((true, _)) => {}
                Ok((false, why)) => {
                    found.masked.extend(answering(&trajectory.messages, at));
                    found.rejected.insert(at, why);
                }
                Err(failure) if failure.waits == Some(Wait::Batch) => waiting = Some(failure),
                Err(failure) => return (found, Some(failure)),
            }
        }
        (found, waiting)
    }

    async fn one(
        &self,
        models: &Models,
        subject: &str,
        (messages, at): (&[Message], usize),
        meter: &mut Meter,
    ) -> Result<(bool, String), AskFailure> {
        let (who, text) = match &messages[at] {
            Message::User { content } => ("User", content.as_str()),
            message => ("Assistant", said(message).unwrap_or_default()),
        };
        let question = Question {
            prompt: &self.prompt,
            inputs: json!({ "turns": turns(&messages[..at]), "who": who, "turn": clipped(&one_line(text), SHOWN) }),
            schema: None,
            row: &format!("{subject}#{at}"),
        };
        ask(models.role(Role::Judge), &question, meter, |reply| {
            let value: Value = serde_json::from_str(reply).map_err(|e| e.to_string())?;
            let ok = value["ok"].as_bool().ok_or("the reply does not say whether it is ok")?;
            Ok((ok, value["why"].as_str().unwrap_or_default().to_owned()))
        })
        .await
    }
}

/// What an assistant's message says beside its calls.
fn said(message: &Message) -> Option<&str> {
    match message {
        Message::Assistant { content, .. } => content.as_deref(),
        _ => None,
    }
}

/// Places of the requests and texts that are not the sample's own.
fn written(sample: &Sample, trajectory: &Trajectory) -> Vec<usize> {
    let mut own = sample.messages.iter().peekable();
    let is_new = |(at, message): (usize, &Message)| {
        if own.next_if(|next| *next == message).is_some() {
            return None;
        }
        (matches!(message, Message::User { .. }) || said(message).is_some()).then_some(at)
    };
    trajectory.messages.iter().enumerate().filter_map(is_new).collect()
}

/// What is not to be learned where the turn at `at` does not follow: a text itself; of a request all that the assistant
/// says and calls until the next one.
fn answering(messages: &[Message], at: usize) -> Vec<u32> {
    let is_request = |message: &Message| matches!(message, Message::User { .. });
    if !is_request(&messages[at]) {
        return u32::try_from(at).into_iter().collect();
    }
    let turn = messages.iter().enumerate().skip(at + 1).take_while(|(_, message)| !is_request(message));
    let own = turn.filter(|(_, message)| matches!(message, Message::Assistant { .. }));
    own.filter_map(|(at, _)| u32::try_from(at).ok()).collect()
}

/// Whether a turn of the assistant is left to be learned.
fn is_learned(trajectory: &Trajectory, masked: &BTreeSet<u32>) -> bool {
    let is_masked = |at: usize| u32::try_from(at).is_ok_and(|at| masked.contains(&at) || trajectory.masked.contains(&at));
    let mut own = trajectory.messages.iter().enumerate().filter(|(_, message)| matches!(message, Message::Assistant { .. }));
    own.any(|(at, _)| !is_masked(at))
}

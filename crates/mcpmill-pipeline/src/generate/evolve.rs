//! Evolution: a request becomes harder or rarer, and keeps its values. A check in code holds every step to them: none
//! is lost, none is made up.

use mcpmill_core::{id::SampleId, record::SampleKind};
use serde_json::{Map, Value, json};

use super::{
    Profile, drift, forms,
    kinds::ENGLISH,
    language,
    steps::{Making, object, wrong_request},
    values,
};
use crate::{
    ask::{AskFailure, Question, ask, seed_of},
    card::card,
};

/// WizardLM's directions, by name and in our words. The last one, breadth, has a prompt of its own.
const DIRECTIONS: [(&str, &str); 4] = [
    ("constraints", "add a constraint that the same single step can honour"),
    ("deepen", "go deeper: say more exactly what is wanted and why"),
    ("concretise", "replace a general word by a more concrete one"),
    ("reasoning", "say what the result is needed for, so that it takes more thought to see what is asked"),
];
const BREADTH: usize = DIRECTIONS.len();

/// Kinds whose call is filled in after the request has been evolved.
const FILLED_LAST: [SampleKind; 3] = [SampleKind::Single, SampleKind::Recover, SampleKind::MultiTurn];

/// The direction of a depth: it belongs to the sample's id, so that every run takes the same one.
fn direction(id: &SampleId, depth: usize, directions: usize) -> usize {
    (seed_of(&format!("{id}\nevolve {depth}")) % directions.max(1) as u64) as usize
}

/// A request and the values it states.
type Stated = (String, Vec<values::Named>);

impl Making<'_> {
    /// Step 3. Evolution, as deep as the settings say; where the model cannot do a step the request stays as it was
    /// before it. A model that cannot be asked is another matter: the row fails.
    pub(super) async fn evolve(&mut self, request: String, stated: Vec<values::Named>) -> Result<Stated, AskFailure> {
        if self.settings.evolve_depth == 0 {
            return Ok((request, stated));
        }
        if self.settings.profile == Profile::Small {
            return self.enrich(request, stated).await;
        }
        // Only where the slots are filled from the request can another one take its place.
        let refills = matches!(self.seed.kind, SampleKind::Single | SampleKind::Recover);
        let directions = DIRECTIONS.len() + usize::from(refills);
        let turns: Vec<usize> =
            (0..self.settings.evolve_depth).map(|depth| direction(&self.seed.id, depth, directions)).collect();
        // Breadth begins anew: what is added comes after it, and before the directions that keep it.
        let added = if FILLED_LAST.contains(&self.seed.kind) && takes_one_more(&self.seed.id) {
            turns.iter().rposition(|turn| *turn == BREADTH).map_or(Some(0), |at| Some(at + 1))
        } else {
            None
        };
        let mut now = (request, stated);
        for place in 0..=turns.len() {
            if added == Some(place) {
                now = self.one_more(&now.0, &now.1).await?.unwrap_or(now);
            }
            let next = match turns.get(place) {
                Some(&BREADTH) => self.broaden(&now.0).await?,
                Some(&turn) => self.rewrite(&now, DIRECTIONS[turn]).await?,
                None => None,
            };
            now = next.unwrap_or(now);
        }
        Ok(now)
    }

    /// What a small model can do: one more optional parameter, or a sentence of context.
    async fn enrich(&mut self, request: String, stated: Vec<values::Named>) -> Result<Stated, AskFailure> {
        if self.seed.kind == SampleKind::Single
            && takes_one_more(&self.seed.id)
            && let Some(richer) = self.one_more(&request, &stated).await?
        {
            return Ok(richer);
        }
        // The line of the prompt is an English one.
        let text = if self.foreign().is_none() { self.context(&request).await? } else { None };
        Ok((text.unwrap_or(request), stated))
    }

    /// One step in depth.
    async fn rewrite(&mut self, now: &Stated, (name, direction): (&str, &str)) -> Result<Option<Stated>, AskFailure> {
        let (request, stated) = now;
        let prompt = self.prompts.evolve.clone();
        let model = self.role(&prompt);
        let kept: Vec<&str> = stated.iter().map(|v| v.text.as_str()).collect();
        let question = Question {
            prompt: &prompt,
            inputs: self.inputs(json!({"request": request, "direction": direction, "values": kept})),
            schema: None,
            row: self.seed.id.as_str(),
        };
        let known: Vec<&str> = kept.iter().copied().chain([request.as_str()]).collect();
        let names = [self.seed.tool.name.as_str()];
        let spoken = self.seed.language.clone();
        let rewritten = ask(&model, &question, &mut self.meter, |reply| {
            let text = text_of(reply)?;
            if let Some(lost) = values::missing(stated, &text).first() {
                return Err(format!("the rewrite lost `{}`", lost.text));
            }
            if let Some(new) = values::invented(&text, &known) {
                return Err(format!("the rewrite made up `{new}`"));
            }
            if let Some(fault) = drift::fault(&text, request, &known, &spoken) {
                return Err(fault);
            }
            wrong_request(&text, &names, (&spoken, &kept)).map_or(Ok(text), Err)
        })
        .await;
        let Some(text) = self.tolerate(name, rewritten)? else { return Ok(None) };
        self.note(&format!("evolve:{name}"), Some((&prompt, &model)), &text);
        Ok(Some((text, stated.clone())))
    }

    /// A step in breadth: another, rarer request of the same tool, whose slots are filled anew.
    async fn broaden(&mut self, request: &str) -> Result<Option<Stated>, AskFailure> {
        let prompt = self.prompts.breadth.clone();
        let model = self.role(&prompt);
        let question = Question {
            prompt: &prompt,
            inputs: self.inputs(json!({"card": card(&self.seed.tool), "at_hand": self.at_hand, "request": request})),
            schema: None,
            row: self.seed.id.as_str(),
        };
        let names = [self.seed.tool.name.as_str()];
        let spoken = self.seed.language.clone();
        let written = ask(&model, &question, &mut self.meter, |reply| {
            let text = text_of(reply)?;
            if values::states(request, &text) {
                return Err("the new request is the old one".into());
            }
            wrong_request(&text, &names, (&spoken, &[])).map_or(Ok(text), Err)
        })
        .await;
        let Some(text) = self.tolerate("breadth", written)? else { return Ok(None) };
        let before = self.notes();
        self.note("evolve:breadth", Some((&prompt, &model)), &text);
        let filled = self.fill_slots(text).await;
        let filled = self.tolerate("breadth", filled)?;
        if filled.is_none() {
            self.forget(before);
        }
        Ok(filled)
    }

    /// A sentence before the request.
    async fn context(&mut self, request: &str) -> Result<Option<String>, AskFailure> {
        let prompt = self.prompts.context.clone();
        let model = self.role(&prompt);
        let question = Question {
            prompt: &prompt,
            inputs: json!({"request": request, "persona": self.persona(self.seed.index)}),
            schema: None,
            row: self.seed.id.as_str(),
        };
        let accept = |reply: &str| {
            if reply.contains('?') {
                Err("the context asks something".into())
            } else if values::speaks_as_assistant(reply) {
                Err("the context is an assistant's, not a person's".into())
            } else if reply.trim_end_matches('.').ends_with([' ', '\'', ',']) {
                Err("the context is cut off".into())
            } else if let Some(new) = values::invented(reply, &[request]) {
                Err(format!("the context made up `{new}`"))
            } else {
                language::fits(reply, ENGLISH, &[]).map(|()| reply.to_owned())
            }
        };
        let answer = ask(&model, &question, &mut self.meter, accept).await;
        let Some(sentence) = self.tolerate("context", answer)? else { return Ok(None) };
        let text = format!("{sentence} {request}");
        self.note("evolve:context", Some((&prompt, &model)), &text);
        Ok(Some(text))
    }

    /// Weaves the value of one more, optional parameter in: of all of the tool's in turn, and of each its words and
    /// bounds in turn.
    async fn one_more(&mut self, request: &str, stated: &[values::Named]) -> Result<Option<Stated>, AskFailure> {
        let truths = self.settings.profile == Profile::Full && self.foreign().is_none();
        let optional = forms::optional(&self.schema, truths);
        let turn = self.turn();
        let Some(name) = optional.get(turn % optional.len().max(1)) else { return Ok(None) };
        let property = forms::plain(&self.schema["properties"][name]).into_owned();
        let added = if forms::is_truth(&property) {
            forms::truth(name).into_iter().collect()
        } else {
            let value = match forms::value_in_turn(name, &property, turn / optional.len().max(1)) {
                Some(value) => Map::from_iter([(name.clone(), value)]),
                None => {
                    let value = self.slots(&self.seed.tool, request, std::slice::from_ref(name)).await;
                    let Some(value) = self.tolerate("optional", value)? else { return Ok(None) };
                    value
                }
            };
            // A word of a list, too, must be said here: nothing else asks for it.
            if property["enum"].is_array() { values::all(&value) } else { values::to_state(&value, &self.schema) }
        };
        let missing = values::missing(&added, request);
        if missing.is_empty() {
            return Ok(None);
        }
        let all: Vec<values::Named> = stated.iter().chain(&added).cloned().collect();
        let woven = self.weave("evolve:optional", request.to_owned(), &all, &missing).await;
        let woven = self.tolerate("optional", woven)?;
        Ok(woven.map(|text| (text, all)))
    }

    /// `None` for a step that brought nothing usable, which is noted by its direction, so that nobody takes a request
    /// that stayed as it was for one that was evolved.
    fn tolerate<T>(&mut self, direction: &str, outcome: Result<T, AskFailure>) -> Result<Option<T>, AskFailure> {
        if let Err(failure) = &outcome
            && failure.answered
        {
            let cause = format!("{}: {}", failure.reason, failure.cause);
            self.meter.evolve_failed.entry(direction.to_owned()).or_default().push(cause);
        }
        AskFailure::tolerate(outcome)
    }

    /// How many samples of the tool took one more parameter before this one, from a start that belongs to the tool.
    fn turn(&self) -> usize {
        let id = |index: usize| SampleId::of(&(&self.seed.tool.id, self.seed.kind, index));
        let before = (0..self.seed.index).filter(|index| takes_one_more(&id(*index))).count();
        seed_of(self.seed.tool.id.as_str()) as usize % 97 + before
    }
}

fn takes_one_more(id: &SampleId) -> bool {
    seed_of(id.as_str()).is_multiple_of(2)
}

/// The field `request` of a reply.
pub(super) fn text_of(reply: &str) -> Result<String, String> {
    let text = object(reply)?.get("request").and_then(Value::as_str).unwrap_or_default().trim().to_owned();
    if text.is_empty() { Err("the reply holds no request".into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn directions_belong_to_the_id_and_the_depth_and_all_of_them_come() {
        let id = |i: usize| SampleId::of(&i);
        let all: BTreeSet<usize> = (0..60).map(|i| direction(&id(i), 0, 5)).collect();
        assert_eq!(all, (0..5).collect());
        assert!((0..60).any(|i| direction(&id(i), 0, 5) != direction(&id(i), 1, 5)), "every depth has its own");
        assert!((0..60).all(|i| direction(&id(i), 1, 4) < 4));
    }
}

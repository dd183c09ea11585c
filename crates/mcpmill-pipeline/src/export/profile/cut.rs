//! Cutting conversations so that what is masked stays masked.

use mcpmill_core::record::{ExportRow, Message};

use super::Unit;

/// A message and whether it is learned.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The message.
    pub message: &'a Message,
    /// Whether it is learned.
    pub learned: bool,
}

impl Turn<'_> {
    fn is_assistant(&self) -> bool {
        matches!(self.message, Message::Assistant { .. })
    }
}

/// The beginning of a conversation, of which the last turns are learned.
#[derive(Debug)]
pub struct Piece<'a> {
    turns: &'a [Turn<'a>],
    /// First turn of the completion.
    from: usize,
}

impl<'a> Piece<'a> {
    /// All turns.
    pub fn all(&self) -> &'a [Turn<'a>] {
        self.turns
    }

    /// Those before the first that is learned.
    pub fn prompt(&self) -> &'a [Turn<'a>] {
        &self.turns[..self.from]
    }

    /// The rest.
    pub fn completion(&self) -> &'a [Turn<'a>] {
        &self.turns[self.from..]
    }
}

/// The turns of a row, answers in the order of the calls: most chat templates write no ids, so the place alone says
/// which answer is whose.
///
/// # Errors
/// A call that has turns after it is not answered, or answered twice; flags and messages differ in number.
pub fn in_order(row: &ExportRow) -> Result<Vec<Turn<'_>>, &'static str> {
    if row.messages.len() != row.loss.len() {
        return Err("its flags are not as many as its messages");
    }
    let mut turns: Vec<Turn<'_>> =
        row.messages.iter().zip(&row.loss).map(|(message, learned)| Turn { message, learned: *learned }).collect();
    let mut at = 0;
    while at < turns.len() {
        let calls: Vec<&str> = turns[at].message.tool_calls().iter().map(|call| call.id.as_str()).collect();
        at += 1;
        let answers = turns[at..].iter().take_while(|turn| answered(turn).is_some()).count();
        let block = &mut turns[at..at + answers];
        block.sort_by_key(|turn| answered(turn).and_then(|id| calls.iter().position(|call| *call == id)));
        let fits = block.iter().map(answered).eq(calls.iter().map(|id| Some(*id)));
        // The last turn of a row that was not run is a call without an answer.
        if !fits && at < row.messages.len() {
            return Err("answers that do not fit the calls");
        }
        at += answers;
    }
    Ok(turns)
}

/// The call that a turn answers.
fn answered<'a>(turn: &Turn<'a>) -> Option<&'a str> {
    match turn.message {
        Message::Tool { tool_call_id, .. } => Some(tool_call_id),
        _ => None,
    }
}

/// Whether a turn of the assistant's before the last learned one is not learned.
pub fn is_masked(turns: &[Turn<'_>]) -> bool {
    let last = turns.iter().rposition(|turn| turn.learned).unwrap_or_default();
    turns[..last].iter().any(|turn| turn.is_assistant() && !turn.learned)
}

/// The pieces of a conversation. Nothing is written that comes after the last learned turn.
///
/// # Errors
/// No turn is learned.
pub fn pieces<'a>(turns: &'a [Turn<'a>], unit: Unit) -> Result<Vec<Piece<'a>>, &'static str> {
    // First and last turn of every stretch.
    let mut stretches: Vec<(usize, usize)> = Vec::new();
    let mut goes_on = false;
    for (at, turn) in turns.iter().enumerate().filter(|(_, turn)| turn.is_assistant()) {
        match stretches.last_mut() {
            Some(stretch) if turn.learned && goes_on && unit != Unit::Turn => stretch.1 = at,
            _ if turn.learned => stretches.push((at, at)),
            _ => {}
        }
        goes_on = turn.learned;
    }
    let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else { return Err("no turn is to be learned") };
    if unit == Unit::Conversation {
        return Ok(vec![Piece { turns: &turns[..=last.1], from: first.0 }]);
    }
    Ok(stretches.iter().map(|(from, to)| Piece { turns: &turns[..=*to], from: *from }).collect())
}

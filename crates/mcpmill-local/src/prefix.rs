//! Keeps what was computed for the beginning of a prompt, one slot per kind of prompt.
//!
//! Reuse must not change an answer by a single bit, whatever ran before. Attention may add in another order when a
//! sequence takes another number of rows at once, so equal tokens are not enough: a prompt is cut into chunks by a
//! fixed rule ([`chunk_ends`]), and only whole chunks that follow equal chunks are reused. Every number then comes
//! from the same sequence of steps, with or without a cache.
//!
//! A slot holds prompts only. Answers grow on copies, so that several can grow on one slot.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{Result, Tensor};

use crate::error::LocalError;
use crate::kv::Kv;
use crate::model::Model;

/// Rows of a step while a prompt is read. More rows are hardly faster and share less.
const CHUNK: usize = 128;
/// A remainder up to this size joins the chunk before it.
const REMAINDER: usize = 16;

/// Where the chunks of a prompt end: at every turn and, within a long turn, after every [`CHUNK`] tokens.
pub(crate) fn chunk_ends(turns: &[usize], total: usize) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut start = 0;
    for &end in turns.iter().skip(1).chain([&total]) {
        while end - start > CHUNK + REMAINDER {
            start += CHUNK;
            ends.push(start);
        }
        ends.push(end);
        start = end;
    }
    ends
}

/// One sequence and what is known about its computed beginning.
pub(crate) struct Slot {
    pub kv: Kv,
    /// The tokens of the computed chunks.
    tokens: Vec<u32>,
    /// Where the computed chunks end.
    ends: Vec<usize>,
    /// The hidden row behind the last computed chunk.
    hidden: Option<Tensor>,
    last_use: u64,
}

impl Slot {
    fn new(model: &Model, capacity: usize) -> Result<Self> {
        let kv = Kv::new(&model.config, capacity)?;
        Ok(Slot { kv, tokens: Vec::new(), ends: Vec::new(), hidden: None, last_use: 0 })
    }

    /// Computes the prompt as far as it is not known yet; returns the hidden row behind it and the number of tokens
    /// that were known.
    pub(crate) fn prefill(
        &mut self,
        model: &Model,
        tokens: &[u32],
        ends: &[usize],
        cancel: &AtomicBool,
    ) -> std::result::Result<(Tensor, usize), LocalError> {
        let mut known = self.known_chunks(tokens, ends);
        if known == ends.len() && (known < self.ends.len() || self.hidden.is_none()) {
            known = known.saturating_sub(1); // the hidden row behind it is not at hand
        }
        let cached = self.forget_after(known);
        let mut start = cached;
        for &end in &ends[known..] {
            if cancel.load(Ordering::Relaxed) {
                return Err(LocalError::Cancelled);
            }
            let chunk = &tokens[start..end];
            self.hidden = Some(model.step(&mut [(&mut self.kv, chunk)])?);
            self.tokens.extend(chunk);
            self.ends.push(end);
            start = end;
        }
        let hidden = self.hidden.clone().ok_or_else(|| LocalError::Compute("an empty prompt".into()))?;
        Ok((hidden, cached))
    }

    fn known_chunks(&self, tokens: &[u32], ends: &[usize]) -> usize {
        let mut start = 0;
        let mut known = 0;
        for (&mine, &end) in self.ends.iter().zip(ends) {
            if mine != end || self.tokens[start..end] != tokens[start..end] {
                break;
            }
            (start, known) = (end, known + 1);
        }
        known
    }

    /// Returns the number of tokens that stay.
    fn forget_after(&mut self, chunks: usize) -> usize {
        if chunks < self.ends.len() {
            self.hidden = None;
        }
        self.ends.truncate(chunks);
        let stay = self.ends.last().copied().unwrap_or(0);
        self.tokens.truncate(stay);
        self.kv.truncate(stay);
        stay
    }
}

/// The slots by name; the one used longest ago makes room.
pub(crate) struct Slots {
    named: HashMap<String, Slot>,
    unnamed: Option<Slot>,
    most: usize,
    capacity: usize,
    clock: u64,
}

impl Slots {
    /// `most` named slots of `capacity` positions each.
    pub(crate) fn new(most: usize, capacity: usize) -> Self {
        Slots { named: HashMap::new(), unnamed: None, most, capacity, clock: 0 }
    }

    /// Takes a slot out, so that one abandoned half-way is simply lost. Without a name nothing is reused.
    pub(crate) fn take(&mut self, model: &Model, name: Option<&str>) -> Result<Slot> {
        let Some(name) = name.filter(|_| self.most > 0) else {
            let mut slot = self.unnamed.take().map_or_else(|| Slot::new(model, self.capacity), Ok)?;
            slot.forget_after(0);
            return Ok(slot);
        };
        if let Some(slot) = self.named.remove(name) {
            return Ok(slot);
        }
        if self.named.len() < self.most {
            return Slot::new(model, self.capacity);
        }
        let oldest = self.named.iter().min_by_key(|(_, slot)| slot.last_use).map(|(name, _)| name.clone());
        match oldest.and_then(|name| self.named.remove(&name)) {
            Some(slot) => Ok(slot),
            None => Slot::new(model, self.capacity),
        }
    }

    pub(crate) fn put_back(&mut self, name: Option<&str>, mut slot: Slot) {
        self.clock += 1;
        slot.last_use = self.clock;
        match name.filter(|_| self.most > 0) {
            Some(name) => drop(self.named.insert(name.to_string(), slot)),
            None => self.unnamed = Some(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, gguf::Gguf};

    #[test]
    fn chunks_end_at_turns_and_within_long_ones() {
        assert_eq!(chunk_ends(&[0, 20, 50], 60), [20, 50, 60]);
        assert_eq!(chunk_ends(&[0], 300), [128, 256, 300]);
        assert_eq!(chunk_ends(&[0, 10], 10 + 128 + 16), [10, 154]);
        assert_eq!(chunk_ends(&[0, 10], 10 + 128 + 17), [10, 138, 155]);
    }

    #[test]
    fn chunks_of_a_common_beginning_are_equal() {
        let short = chunk_ends(&[0, 200, 230], 260);
        let long = chunk_ends(&[0, 200, 230], 900);
        assert_eq!(short[..3], long[..3]);
    }

    /// The promise at its strictest: equal bits, not only equal text.
    #[test]
    fn reused_chunks_give_equal_bits() {
        let path = crate::test_model::path();
        let mut gguf = Gguf::open(&path).unwrap();
        let config = Config::read(&gguf).unwrap();
        let model = Model::read(&mut gguf, config, 256).unwrap();
        let ends = chunk_ends(&[0, 30, 70], 90);
        let prompt = |tail: u32| (0..80).map(|n| 37 * n + 500).chain((0..10).map(|n| tail + n)).collect::<Vec<u32>>();
        let run = |slot: &mut Slot, tail| {
            let (hidden, cached) = slot.prefill(&model, &prompt(tail), &ends, &AtomicBool::new(false)).unwrap();
            let next = model.step(&mut [(&mut slot.kv, &[77])]).unwrap();
            let bits = |row| model.logits(&row).unwrap().remove(0).into_iter().map(f32::to_bits).collect::<Vec<u32>>();
            (bits(hidden), bits(next), cached)
        };
        let mut used = Slot::new(&model, 256).unwrap();
        let (other, _, nothing) = run(&mut used, 900);
        let (again, again_next, some) = run(&mut used, 2000);
        let (fresh, fresh_next, _) = run(&mut Slot::new(&model, 256).unwrap(), 2000);
        assert_eq!((nothing, some), (0, 70));
        assert!(again == fresh && again_next == fresh_next, "reuse changed the numbers");
        assert!(other != fresh, "the tail has no effect");
        let (whole, whole_next, all) = run(&mut used, 2000);
        assert!(all == 90 && whole == fresh && whole_next == fresh_next, "reuse of everything changed the numbers");
    }
}

//! Which inputs ended in earlier attempts, and how, in little memory: a stage may have millions of rows.

use std::collections::HashMap;

use mcpmill_core::{
    canonical::sha256_hex,
    record::{Outcome, OutcomeKind},
};

/// Ends by the hash of their input: some 90 bytes and the row's id for a plain end.
#[derive(Default)]
pub(super) struct Seen {
    ends: HashMap<[u8; 32], End>,
    /// Ids of plain ends, one after the other.
    ids: String,
    /// Reasons of plain ends; there are few.
    reasons: Vec<String>,
}

enum End {
    /// One that names no cause.
    Plain {
        id: u32,
        length: u32,
        rows: u32,
        attempts: u32,
        input_tokens: u32,
        output_tokens: u32,
        reason: u16,
        kind: OutcomeKind,
        seconds: f64,
        cost_usd: f64,
    },
    Whole(Box<(Outcome, u64)>),
}

impl Seen {
    /// Notes an end; false when the input had ended before.
    pub(super) fn insert(&mut self, input_hash: &str, outcome: Outcome, rows: u64) -> bool {
        let end = self.plain(&outcome, rows).unwrap_or_else(|| End::Whole(Box::new((outcome, rows))));
        self.ends.insert(key(input_hash), end).is_none()
    }

    pub(super) fn contains(&self, input_hash: &str) -> bool {
        self.ends.contains_key(&key(input_hash))
    }

    /// The end of an input, and the rows it brought.
    pub(super) fn get(&self, input_hash: &str) -> Option<(Outcome, u64)> {
        self.ends.get(&key(input_hash)).map(|end| self.whole(end))
    }

    fn plain(&mut self, outcome: &Outcome, rows: u64) -> Option<End> {
        let &Outcome { outcome: kind, seconds, attempts, cost_usd, .. } = outcome;
        let told = outcome.cause.is_some() || outcome.raw.is_some();
        if told || outcome.repairs.is_some() || outcome.evolve_failed.is_some() {
            return None;
        }
        let (input_tokens, output_tokens) =
            (u32::try_from(outcome.input_tokens).ok()?, u32::try_from(outcome.output_tokens).ok()?);
        let (id, length) = (u32::try_from(self.ids.len()).ok()?, u32::try_from(outcome.input_id.len()).ok()?);
        let rows = u32::try_from(rows).ok()?;
        let known = self.reasons.iter().position(|reason| *reason == outcome.reason);
        let reason = u16::try_from(known.unwrap_or(self.reasons.len())).ok()?;
        if known.is_none() {
            self.reasons.push(outcome.reason.clone());
        }
        self.ids.push_str(&outcome.input_id);
        Some(End::Plain { id, length, rows, attempts, input_tokens, output_tokens, reason, kind, seconds, cost_usd })
    }

    fn whole(&self, end: &End) -> (Outcome, u64) {
        match end {
            End::Whole(whole) => (**whole).clone(),
            &End::Plain { id, length, rows, attempts, input_tokens, output_tokens, reason, kind, seconds, cost_usd } => {
                let id = &self.ids[id as usize..id as usize + length as usize];
                let plain = Outcome::new(id, kind, &*self.reasons[usize::from(reason)]);
                let (input_tokens, output_tokens) = (input_tokens.into(), output_tokens.into());
                (Outcome { seconds, attempts, input_tokens, output_tokens, cost_usd, ..plain }, u64::from(rows))
            }
        }
    }
}

/// A short digest of an input's hash. Two may share one; then the hashes themselves decide.
pub(super) fn digest(input_hash: &str) -> u64 {
    let mut words = [0; 8];
    key(input_hash).as_chunks::<8>().0.iter().flat_map(|word| word.iter().enumerate()).for_each(|(i, byte)| words[i] ^= byte);
    u64::from_le_bytes(words)
}

/// The bytes of a hash; of a text that is none, those of its hash.
fn key(input_hash: &str) -> [u8; 32] {
    bytes(input_hash).or_else(|| bytes(&sha256_hex(input_hash))).unwrap_or_default()
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_come_back_as_they_were() {
        let outcomes = [
            Outcome { seconds: 0.5, ..Outcome::kept("ä row") },
            Outcome::dropped("b", "same-server"),
            Outcome::failed("c", "broken", "because"),
            Outcome { attempts: 3, cost_usd: 0.25, input_tokens: 7, output_tokens: 9, ..Outcome::kept("d") },
            Outcome::skipped("", "beyond-limit"),
            Outcome::kept("f").with_evolve_failed([("deepen".to_owned(), vec!["lost `3`".to_owned()])].into()),
            Outcome::kept("e").with_repairs([("call: lost-brace".to_owned(), 1)].into()),
            Outcome::dropped("f", "same-server"),
        ];
        let mut seen = Seen::default();
        for (i, outcome) in outcomes.iter().enumerate() {
            let hash = if i % 2 == 0 { sha256_hex([i as u8]) } else { format!("hash {i}") };
            assert!(!seen.contains(&hash) && seen.insert(&hash, outcome.clone(), i as u64));
            assert_eq!(seen.get(&hash), Some((outcome.clone(), i as u64)));
            assert!(!seen.insert(&hash, outcome.clone(), i as u64));
        }
        assert_eq!((seen.get("another"), seen.reasons.len()), (None, 3));
        assert!(size_of::<End>() <= 48);
        assert_ne!(digest("hash 1"), digest("hash 3"));
    }
}

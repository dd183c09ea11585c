//! What each text is compared by: its values as a key, and its words as numbers that start with the rarest.

use std::collections::HashMap;

use rayon::prelude::*;

use super::{
    Settings,
    tokens::{Mark, Token, hash, read},
};

/// Texts whose imagined words stand beside the real ones, so that a handful of texts has sensible weights too.
const IMAGINED: f64 = 1_000.0;

/// Share of the imagined texts that hold a given word, and a given function word.
const USUAL: f64 = 0.01;
const FREQUENT: f64 = 0.3;

/// Share of capitals from which a word is a name everywhere, and from which it is one where it has a capital.
const NAME: f64 = 0.5;
const MAYBE: f64 = 0.15;

/// Words that say little in any collection.
const FUNCTION: [&str; 58] = [
    "a", "an", "the", "of", "in", "on", "at", "to", "for", "from", "with", "by", "and", "or", "is", "are", "be", "do", "does",
    "can", "could", "would", "will", "you", "i", "me", "my", "we", "our", "us", "it", "its", "this", "that", "there", "please",
    "thank", "hello", "need", "want", "have", "im", "id", "like", "what", "which", "how", "der", "die", "das", "el", "la", "de",
    "le", "les", "und", "et", "y",
];

/// One text, ready to be compared.
pub(super) struct Text {
    /// Equal for texts with equal values.
    pub key: u64,
    /// The numbers of its words and values, each once, the rarest first.
    pub words: Box<[u32]>,
    /// Fingerprints of all its tokens, sorted.
    pub all: Box<[u32]>,
    /// Fingerprints of the tokens that another text must have too, sorted.
    pub must: Box<[u32]>,
    /// Each value with the word before it, sorted.
    pub roles: Box<[(u32, u32)]>,
    /// Weight of all `words`.
    pub total: f32,
    /// Whether it has any value.
    pub valued: bool,
}

/// The texts of a collection and the weights of their words.
pub(super) struct Weighed {
    pub texts: Vec<Text>,
    pub weights: Vec<f32>,
}

/// Reads all `texts`, which are different, and weighs their words by how many texts have them.
pub(super) fn weigh(texts: &[&str], settings: &Settings) -> Weighed {
    let read: Vec<Box<[Token]>> = texts.par_iter().map(|text| read(text).into_boxed_slice()).collect();
    let names = names(&read);
    let (ids, weights) = numbered(&read, &names, settings);
    let texts = read.into_par_iter().map(|tokens| one(&tokens, &names, &ids, &weights)).collect();
    Weighed { texts, weights }
}

/// The words that some text writes with a capital inside a sentence, and how often they have one, from 0 to 1.
fn names(read: &[Box<[Token]>]) -> HashMap<u64, f64> {
    let all = |pick: fn(&Mark) -> bool| {
        let hashes = move |tokens: &[Token]| tokens.iter().filter(|t| pick(&t.mark)).map(|t| t.full).collect::<Vec<_>>();
        read.par_iter().flat_map_iter(|tokens| hashes(tokens)).collect::<Vec<u64>>()
    };
    let capital = counted(all(|mark| mark.capital));
    let cased = counted(all(|mark| mark.cased && !mark.quoted && !mark.value));
    let share = |(full, n): &(u64, u32)| {
        let of = cased.binary_search_by_key(full, |(known, _)| *known).map_or(*n, |at| cased[at].1);
        (*full, f64::from(*n) / f64::from(of))
    };
    capital.iter().map(share).collect()
}

/// How often each hash stands in a list, sorted by hash.
fn counted(mut hashes: Vec<u64>) -> Vec<(u64, u32)> {
    hashes.par_sort_unstable();
    hashes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u32)).collect()
}

/// Whether a token is a value in every text it stands in.
fn is_value(token: &Token, names: &HashMap<u64, f64>) -> bool {
    token.mark.value || (!names.is_empty() && names.get(&token.full).is_some_and(|share| *share >= NAME))
}

/// What a token is counted as, and whether it is a value.
fn counts_as(token: &Token, names: &HashMap<u64, f64>) -> (u64, bool) {
    match is_value(token, names) {
        // A value and a stem of the same letters are two things.
        true => (token.full ^ 0x5bd1_e995, true),
        false => (token.stem, false),
    }
}

/// The words by number, the rarest first, and their weights.
fn numbered(read: &[Box<[Token]>], names: &HashMap<u64, f64>, settings: &Settings) -> (HashMap<u64, u32>, Vec<f32>) {
    let hashes = |tokens: &[Token]| {
        let mut own: Vec<(u64, bool)> = tokens.iter().map(|t| counts_as(t, names)).collect();
        own.sort_unstable();
        own.dedup();
        own
    };
    let mut all: Vec<(u64, bool)> = read.par_iter().flat_map_iter(|tokens| hashes(tokens)).collect();
    all.par_sort_unstable();
    let function: Vec<u64> = FUNCTION.iter().map(|word| hash(word)).collect();
    let weight = |full: u64, value: bool, n: usize| {
        let usual = if function.contains(&full) { FREQUENT } else { USUAL };
        let rare = ((read.len() as f64 + IMAGINED) / (n as f64 + IMAGINED * usual)).ln().max(0.0);
        (rare * if value { settings.value_weight } else { 1.0 }) as f32
    };
    let mut words: Vec<(usize, u64, f32)> =
        all.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0].0, weight(run[0].0, run[0].1, run.len()))).collect();
    drop(all);
    words.par_sort_unstable_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)).then(a.1.cmp(&b.1)));
    let ids = words.iter().enumerate().map(|(id, (_, full, _))| (*full, id as u32)).collect();
    (ids, words.iter().map(|(_, _, weight)| *weight).collect())
}

fn one(tokens: &[Token], names: &HashMap<u64, f64>, ids: &HashMap<u64, u32>, weights: &[f32]) -> Text {
    let mut words: Vec<u32> = tokens.iter().map(|t| ids[&counts_as(t, names).0]).collect();
    sorted(&mut words);
    let mut all: Vec<u32> = tokens.iter().map(|t| t.full as u32).collect();
    sorted(&mut all);
    let mut must: Vec<u32> = tokens.iter().filter(|t| is_local(t, names)).map(|t| t.full as u32).collect();
    sorted(&mut must);
    let total = words.iter().map(|&w| weights[w as usize]).sum();
    let roles = roles(tokens, names);
    Text {
        key: key(tokens, names),
        words: words.into(),
        all: all.into(),
        must: must.into(),
        total,
        valued: !roles.is_empty(),
        roles,
    }
}

fn sorted(hashes: &mut Vec<u32>) {
    hashes.sort_unstable();
    hashes.dedup();
}

/// Whether a token is a value because of how this text writes it.
fn is_local(token: &Token, names: &HashMap<u64, f64>) -> bool {
    token.mark.quoted || (token.mark.capital && names.get(&token.full).is_some_and(|share| *share >= MAYBE))
}

/// A key of all values: of numbers how often they stand, of the others that they do.
fn key(tokens: &[Token], names: &HashMap<u64, f64>) -> u64 {
    let mut values: Vec<(u64, bool)> = tokens.iter().filter(|t| is_value(t, names)).map(|t| (t.full, t.mark.number)).collect();
    values.sort_unstable();
    values.dedup_by(|a, b| a == b && !a.1);
    let mix = |key: u64, (full, _): &(u64, bool)| (key.rotate_left(23) ^ full).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    values.iter().fold(values.len() as u64, mix)
}

/// Each value with the last word before it that is no value; values that are joined have the word of the first.
fn roles(tokens: &[Token], names: &HashMap<u64, f64>) -> Box<[(u32, u32)]> {
    let mut roles = vec![];
    let (mut word, mut after_value) = (0, false);
    for token in tokens {
        let value = is_value(token, names) || is_local(token, names);
        if value {
            roles.push((word, token.full as u32));
        } else if !(after_value && token.mark.joins) {
            word = token.stem as u32;
        }
        after_value = value || (after_value && token.mark.joins);
    }
    roles.sort_unstable();
    roles.dedup();
    roles.into()
}

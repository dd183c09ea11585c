//! Near duplicates of instructions: clusters of texts that ask for the same with the same values.
//!
//! Texts that differ by case, punctuation, white space, word order, a word or two or a light paraphrase are near;
//! texts that differ in a value (number, date, path, address, quotation, identifier, name) are not, however alike.
//! Only texts with equal values are compared at all, by the words they share, rare words counting more. A cluster grows
//! only while all that is known of its members is alike, so that no chain of small steps joins two unlike texts.
//!
//! The outcome depends on the set of different texts alone: not on their order, their copies or the number of threads.

mod link;
mod tokens;
mod weigh;

use rayon::prelude::*;

/// What counts as near.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Weighted share of common words and values, from 0 to 1, that two texts with the same values need, and that the
    /// members of two clusters need on average before the clusters become one.
    pub threshold: f64,
    /// The same for texts without any value, where only the words speak.
    pub plain_threshold: f64,
    /// The part of the threshold that every two compared members of a cluster must reach, from 0 to 1.
    pub floor: f64,
    /// What a value weighs beside a word that is as rare.
    pub value_weight: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { threshold: 0.5, plain_threshold: 0.65, floor: 0.6, value_weight: 1.0 }
    }
}

/// The cluster of every text with the default [`Settings`].
pub fn clusters(texts: &[&str]) -> Vec<usize> {
    clusters_with(texts, &Settings::default())
}

/// For every text the place of its cluster's representative: the first copy of the smallest text of the cluster.
///
/// The representative names the cluster; which member is kept is the caller's choice. Holds up to 2^32 texts.
pub fn clusters_with(texts: &[&str], settings: &Settings) -> Vec<usize> {
    let mut order: Vec<u32> = (0..texts.len() as u32).collect();
    order.par_sort_unstable_by(|&a, &b| texts[a as usize].cmp(texts[b as usize]).then(a.cmp(&b)));
    let mut firsts: Vec<u32> = vec![];
    let mut place = vec![0_u32; texts.len()];
    for &i in &order {
        if firsts.last().is_none_or(|&last| texts[last as usize] != texts[i as usize]) {
            firsts.push(i);
        }
        place[i as usize] = firsts.len() as u32 - 1;
    }
    drop(order);
    let distinct: Vec<&str> = firsts.iter().map(|&i| texts[i as usize]).collect();
    let found = link::link(&weigh::weigh(&distinct, settings), settings);
    place.iter().map(|&p| firsts[found[p as usize] as usize] as usize).collect()
}

#[cfg(test)]
mod tests;

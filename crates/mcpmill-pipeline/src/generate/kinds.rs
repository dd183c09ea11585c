//! What is made: shares of kinds and of languages, and what a model can do of them.

use std::collections::{BTreeMap, BTreeSet};

use mcpmill_core::{id::SampleId, record::SampleKind};
use serde::{Deserialize, Serialize};

use crate::ask::seed_of;

/// Which forms a model can do: a small one loses values when it rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Evolution keeps the text: a sentence of context, or one more optional parameter woven in.
    Small,
    /// Evolution rewrites the text in one of WizardLM's directions, or asks for something rarer.
    Full,
}

/// Shares of the kinds of conversation. They need not add up to 1; 0 switches a kind off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Kinds(BTreeMap<SampleKind, f64>);

impl Kinds {
    /// Nothing but this kind.
    pub fn only(kind: SampleKind) -> Self {
        Self(BTreeMap::from([(kind, 1.0)]))
    }

    /// These shares without some kinds.
    #[must_use]
    pub fn without(mut self, kinds: &BTreeSet<SampleKind>) -> Self {
        self.0.retain(|kind, _| !kinds.contains(kind));
        self
    }

    /// The share of a kind as it is set.
    pub fn share(&self, kind: SampleKind) -> f64 {
        self.0.get(&kind).copied().unwrap_or_default()
    }

    /// What is wrong with the shares.
    pub fn fault(&self) -> Option<String> {
        fault(self.0.iter().map(|(kind, share)| (kind.as_str(), *share)))
    }

    /// How many of `samples` are of each kind: shares of the whole, what is left over by largest remainder, the
    /// order of the kinds where two are equal.
    pub(super) fn allot(&self, samples: usize) -> BTreeMap<SampleKind, usize> {
        let sum: f64 = self.0.values().sum();
        let exact = |kind: &SampleKind| if sum > 0.0 { samples as f64 * self.share(*kind) / sum } else { 0.0 };
        let mut counts: BTreeMap<SampleKind, usize> = self.0.keys().map(|kind| (*kind, exact(kind) as usize)).collect();
        let mut rest: Vec<(SampleKind, f64)> =
            self.0.keys().filter(|k| self.share(**k) > 0.0).map(|kind| (*kind, exact(kind).fract())).collect();
        rest.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let left = samples.saturating_sub(counts.values().sum());
        rest.iter().take(left).for_each(|(kind, _)| *counts.entry(*kind).or_default() += 1);
        counts
    }
}

/// Shares of languages by their code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Languages(BTreeMap<String, f64>);

/// Languages that can be asked for: ISO 639-1 and what a prompt calls them.
const NAMES: [(&str, &str); 24] = [
    ("ar", "Arabic"),
    ("bn", "Bengali"),
    ("cs", "Czech"),
    ("da", "Danish"),
    ("de", "German"),
    ("el", "Greek"),
    ("en", "English"),
    ("es", "Spanish"),
    ("fi", "Finnish"),
    ("fr", "French"),
    ("hi", "Hindi"),
    ("id", "Indonesian"),
    ("it", "Italian"),
    ("ja", "Japanese"),
    ("ko", "Korean"),
    ("nl", "Dutch"),
    ("pl", "Polish"),
    ("pt", "Portuguese"),
    ("ru", "Russian"),
    ("sv", "Swedish"),
    ("th", "Thai"),
    ("tr", "Turkish"),
    ("vi", "Vietnamese"),
    ("zh", "Chinese"),
];

/// The language prompts are written in.
pub(super) const ENGLISH: &str = "en";

impl Languages {
    /// Nothing but English.
    pub fn english() -> Self {
        Self(BTreeMap::from([(ENGLISH.to_owned(), 1.0)]))
    }

    /// These shares of languages that a model can write; English alone where none is left.
    #[must_use]
    pub fn among(mut self, known: &BTreeSet<String>) -> Self {
        self.0.retain(|language, share| known.contains(language) && *share > 0.0);
        if self.0.is_empty() { Self::english() } else { self }
    }

    /// Whether nothing but English is written.
    pub fn are_english(&self) -> bool {
        self.0.iter().all(|(code, share)| code == ENGLISH || *share <= 0.0)
    }

    /// What is wrong with the shares.
    pub fn fault(&self) -> Option<String> {
        let odd = self.0.keys().find(|code| name(code).is_none());
        if let Some(odd) = odd {
            let known: Vec<&str> = NAMES.iter().map(|(code, _)| *code).collect();
            return Some(format!("`{odd}` is no language that is known; these are: {}", known.join(", ")));
        }
        fault(self.0.iter().map(|(code, share)| (code.as_str(), *share)))
    }

    /// The language of a sample: its id says where among the shares it falls.
    pub(super) fn of(&self, id: &SampleId) -> String {
        let sum: f64 = self.0.values().sum();
        // Sixty bits of the hash as a place between 0 and 1.
        let mut place = seed_of(&format!("language\n{id}")) as f64 / (1_u64 << 60) as f64 * sum;
        let found = self.0.iter().find(|(_, share)| {
            place -= **share;
            place < 0.0
        });
        found.map_or_else(|| ENGLISH.to_owned(), |(code, _)| code.clone())
    }
}

/// What a prompt calls a language.
pub(crate) fn name(code: &str) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

fn fault<'a>(shares: impl Iterator<Item = (&'a str, f64)>) -> Option<String> {
    let mut sum = 0.0;
    for (name, share) in shares {
        if !share.is_finite() || share < 0.0 {
            return Some(format!("the share of `{name}` is {share}; shares are 0 or more"));
        }
        sum += share;
    }
    (sum <= 0.0).then(|| "all shares are 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(shares: &[(SampleKind, f64)]) -> Kinds {
        Kinds(shares.iter().copied().collect())
    }

    #[test]
    fn shares_are_allotted_by_largest_remainder_and_add_up() {
        use SampleKind::{Ask, Chain, NoTool, Parallel, Single};
        let shares = kinds(&[(Single, 0.5), (Parallel, 0.2), (NoTool, 0.2), (Ask, 0.1), (Chain, 0.0)]);
        let counts = |samples: usize| {
            let counts = shares.allot(samples);
            assert_eq!(counts.values().sum::<usize>(), samples);
            [Single, Parallel, NoTool, Ask, Chain].map(|kind| counts[&kind])
        };
        assert_eq!(counts(10), [5, 2, 2, 1, 0]);
        assert_eq!(counts(7), [4, 1, 1, 1, 0]);
        assert_eq!(counts(1), [1, 0, 0, 0, 0]);
        assert_eq!(Kinds::only(Single).allot(9)[&Single], 9);
        let without = shares.without(&BTreeSet::from([Single, Parallel]));
        assert_eq!(without.allot(9)[&NoTool], 6);
    }

    #[test]
    fn shares_that_make_no_sense_are_told() {
        use SampleKind::Single;
        assert!(kinds(&[(Single, -1.0)]).fault().unwrap().contains("single"));
        assert!(kinds(&[(Single, 0.0)]).fault().unwrap().contains("all"));
        assert!(kinds(&[(Single, f64::NAN)]).fault().is_some());
        assert_eq!(Kinds::only(Single).fault(), None);
        let odd = Languages(BTreeMap::from([("klingon".into(), 1.0)]));
        assert!(odd.fault().unwrap().contains("klingon"));
    }

    #[test]
    fn languages_fall_by_their_shares_and_belong_to_the_id() {
        let languages = Languages(BTreeMap::from([("en".into(), 3.0), ("de".into(), 1.0), ("fr".into(), 0.0)]));
        let of = |i: usize| languages.of(&SampleId::of(&i));
        let german = (0..1000).filter(|i| of(*i) == "de").count();
        assert!((200..300).contains(&german), "{german}");
        assert!((0..1000).all(|i| of(i) != "fr" && of(i) == of(i)));
        assert!(!languages.are_english() && Languages::english().are_english());
        let known = BTreeSet::from(["en".to_owned()]);
        assert_eq!(languages.among(&known), Languages(BTreeMap::from([("en".into(), 3.0)])));
        assert_eq!(Languages(BTreeMap::from([("de".into(), 1.0)])).among(&known), Languages::english());
    }
}

//! What a step in depth must not bring: a second task comes in with new names and numbers, in a sentence too many.

use super::{
    kinds::ENGLISH,
    values::{bare, is_unspaced, states},
};

/// Words that a step may add.
const MOST_ADDED: usize = 45;
/// Letters that stand for a word in scripts without spaces.
const LETTERS_A_WORD: usize = 2;

/// What is wrong with a rewrite of `request`, given all that may stand in it.
pub(super) fn fault(text: &str, request: &str, known: &[&str], language: &str) -> Option<String> {
    if let Some(twice) = said_twice(text) {
        return Some(format!("the rewrite says `{twice}` twice"));
    }
    let added = length(text).saturating_sub(length(request));
    if added > MOST_ADDED {
        return Some(format!("the rewrite is {added} words longer, and {MOST_ADDED} are the most"));
    }
    let is_known = |word: &str| known.iter().any(|known| states(known, word));
    let name = names(text, language).into_iter().find(|name| !is_known(name));
    let number = || numbers(text, language).into_iter().find(|(word, value)| !is_known(word) && !is_known(value));
    let new = name.or_else(|| number().map(|(word, _)| word));
    new.map(|new| format!("the rewrite made up `{new}`"))
}

/// Words in capitals that begin no sentence: names. German writes all its nouns so, and tells none.
fn names(text: &str, language: &str) -> Vec<String> {
    let mut begins = true;
    let mut found = Vec::new();
    for whole in text.split_whitespace() {
        let word = bare(whole.trim_matches(|c: char| "\"“”«»„()[],;".contains(c)));
        let named = word.chars().next().is_some_and(char::is_uppercase);
        if named && !begins && language != "de" && !is_pronoun(word) {
            found.push(word.to_owned());
        }
        let end = whole.trim_end_matches(['"', '”', '»', ')', '\'', '’']);
        begins = end.ends_with(['.', '!', '?', ':', '…', ';']);
    }
    found
}

/// `I` and what it is joined with: `I'd`.
fn is_pronoun(word: &str) -> bool {
    word == "I" || word.starts_with("I'") || word.starts_with("I’")
}

/// English words for numbers, and their digits. `one` is a pronoun as well.
const NUMBERS: [(&str, &str); 31] = [
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("thirteen", "13"),
    ("fourteen", "14"),
    ("fifteen", "15"),
    ("sixteen", "16"),
    ("seventeen", "17"),
    ("eighteen", "18"),
    ("nineteen", "19"),
    ("twenty", "20"),
    ("thirty", "30"),
    ("forty", "40"),
    ("fifty", "50"),
    ("sixty", "60"),
    ("seventy", "70"),
    ("eighty", "80"),
    ("ninety", "90"),
    ("hundred", "100"),
    ("thousand", "1000"),
    ("million", "1000000"),
    ("dozen", "12"),
    ("dozens", "12"),
];

/// The numbers that an English text spells out.
fn numbers(text: &str, language: &str) -> Vec<(String, &'static str)> {
    if language != ENGLISH {
        return Vec::new();
    }
    let low = text.to_lowercase();
    let words = low.split(|c: char| !c.is_alphabetic());
    words
        .filter_map(|word| NUMBERS.iter().find(|(known, _)| *known == word).map(|(_, value)| (word.to_owned(), *value)))
        .collect()
}

/// A sentence that stands in a text twice.
fn said_twice(text: &str) -> Option<String> {
    let sentences = text.split(['.', '!', '?', '。', '！', '？', '।']);
    let mut seen: Vec<String> = Vec::new();
    for sentence in sentences {
        let plain = sentence.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
        // `e.g.` and `3.5` are no sentences.
        if length(&plain) < 2 {
            continue;
        }
        if seen.contains(&plain) {
            return Some(plain);
        }
        seen.push(plain);
    }
    None
}

/// The length of a text in words.
fn length(text: &str) -> usize {
    let letters = text.chars().filter(|c| is_unspaced(*c)).count();
    text.split_whitespace().count() + letters / LETTERS_A_WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "What will the weather in Bergamo be over the next 3 days? I am Anna.";

    fn of(more: &str) -> Option<String> {
        fault(&format!("{REQUEST} {more}"), REQUEST, &[REQUEST], "en")
    }

    #[test]
    fn a_second_task_is_seen_by_what_it_brings() {
        for (more, new) in [
            ("Also do it for my sister Claudia.", "Claudia"),
            ("We go on to \"Paris\" then.", "Paris"),
            ("And for the next seven days.", "seven"),
            ("And for twenty-two guests.", "twenty"),
            ("A dozen of us come.", "dozen"),
            ("What will the weather in Bergamo be over the next 3 days?", "twice"),
        ] {
            let fault = of(more).unwrap_or_default();
            assert!(fault.contains(new), "{more}: {fault}");
        }
        assert!(of(&"and so on ".repeat(16)).unwrap().contains("48 words longer"));
    }

    #[test]
    fn what_is_only_said_more_fully_passes() {
        for more in [
            "I'd like it hour by hour: Only rain matters to me, as I said.",
            "Those three days are all that counts for Anna. Bergamo's lakes may be cold.",
            "Someone should look at it. No one else can.",
        ] {
            assert_eq!(of(more), None, "{more}");
        }
        let german = "Wie wird das Wetter in Bergamo?";
        assert_eq!(fault("Wie wird das Wetter in Bergamo für unsere Feier?", german, &[german], "de"), None);
        let french = "Quel temps fera-t-il à Bergame ?";
        assert!(fault("Quel temps fera-t-il à Bergame pour Claudia ?", french, &[french], "fr").unwrap().contains("Claudia"));
    }
}

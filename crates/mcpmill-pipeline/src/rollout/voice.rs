//! Who speaks in a written text, and of what: a person who asks, or an assistant that tells what came of it.

use crate::generate::values::{speaks_as_assistant, states};

/// What an assistant says that has not done what was asked, or speaks of itself. It is asked only after calls that went
/// well.
const DISCLAIMS: [&str; 26] = [
    "as an ai",
    "language model",
    "i cannot help",
    "i can't help",
    "i am unable",
    "i'm unable",
    "i am not able",
    "i'm not able",
    "unable to assist",
    "cannot assist",
    "can't assist",
    "i cannot fulfil",
    "i can't fulfil",
    "i cannot do",
    "i can't do",
    "i cannot access",
    "i can't access",
    "i don't have access",
    "i do not have access",
    "i cannot provide",
    "i can't provide",
    "sorry, but i can",
    "sorry, i can",
    "tut mir leid, aber ich kann",
    "lo siento, pero no puedo",
    "mais je ne peux pas",
];

/// What works behind a conversation, which its user never sees.
const MACHINERY: [&str; 6] = ["tool", "function", "json", "api", "parameter", "argument"];
/// What goes wrong there.
const TROUBLE: [&str; 7] = ["error", "failed", "failure", "exception", "timeout", "crashed", "enoent"];

/// How a request begins that is an assistant's answer.
const ANSWERS_BEGIN: [&str; 13] = [
    "here is ",
    "here are ",
    "here's ",
    "certainly",
    "of course",
    "absolutely",
    "i'd be happy",
    "i would be happy",
    "happy to help",
    "i can help",
    "i found ",
    "i have found ",
    "i've found ",
];
/// What only an assistant says.
const ANSWERS_HOLD: [&str; 18] = [
    "i am the assistant",
    "i'm the assistant",
    "as the assistant",
    "as your assistant",
    "i am an assistant",
    "i'm an assistant",
    "i am your assistant",
    "i'm your assistant",
    "i am an ai",
    "i'm an ai",
    "how can i help",
    "how may i help",
    "how can i assist",
    "anything else i can",
    "if you need anything",
    "let me know if you need",
    "if you have any other questions",
    "if you have any further questions",
];
/// How one begins who tells of what was done; `for you` behind it makes it an assistant's.
const DONE_BEGIN: [&str; 4] = ["i have ", "i've ", "i just ", "i already "];

/// Whether an assistant refuses, or speaks of itself as a model.
pub(super) fn disclaims(text: &str) -> bool {
    let text = plain(text);
    DISCLAIMS.iter().any(|words| text.contains(words))
}

/// The first word of `text` for what works behind the conversation, or of trouble there unless there was some, that
/// neither the user nor an answer said.
pub(super) fn behind_the_scenes(text: &str, said: &[String], all_good: bool) -> Option<String> {
    let is_said = |word: &str| said.iter().any(|said| [word, &format!("{word}s")].iter().any(|form| states(said, form)));
    let text = plain(text);
    text.split(|c: char| !c.is_alphanumeric()).find_map(|word| {
        let one = word.strip_suffix('s').unwrap_or(word);
        let found = MACHINERY.contains(&one) || (all_good && TROUBLE.contains(&one));
        (found && !is_said(one)).then(|| word.to_owned())
    })
}

/// Whether a request is an assistant's words.
pub(super) fn is_an_answer(text: &str) -> bool {
    let words = plain(text);
    let begins = |starts: &[&str]| starts.iter().any(|start| words.starts_with(start));
    speaks_as_assistant(text)
        || disclaims(text)
        || begins(&ANSWERS_BEGIN)
        || ANSWERS_HOLD.iter().any(|held| words.contains(held))
        || (begins(&DONE_BEGIN) && words.contains(" for you"))
}

fn plain(text: &str) -> String {
    text.trim().to_lowercase().replace('’', "'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_after_a_success_are_seen() {
        for bad in [
            "Sorry, as an AI language model I cannot help with that request.",
            "I’m sorry, but I can't open the note.",
            "I am unable to show n-17.",
        ] {
            assert!(disclaims(bad), "{bad}");
        }
        for good in ["There is no note about Ghent.", "I found nothing under n-17, sorry.", "You cannot enter before 10."] {
            assert!(!disclaims(good), "{good}");
        }
    }

    #[test]
    fn words_for_what_works_behind_are_seen_unless_somebody_said_them() {
        let said = ["Which errors are in the log?".to_owned(), r#"{"api": "v2"}"#.to_owned()];
        let seen = |text: &str, all_good| behind_the_scenes(text, &said, all_good);
        assert_eq!(seen("The tool list_notes found two.", true).as_deref(), Some("tool"));
        assert_eq!(seen("Both functions were called.", true).as_deref(), Some("functions"));
        assert_eq!(seen("It ended with ENOENT.", true).as_deref(), Some("enoent"));
        assert_eq!(seen("It failed at first.", false), None);
        assert_eq!(seen("There is one error, and the API is v2.", true), None);
        assert_eq!(seen("The toolbox is in the jsonville shed.", true), None);
    }

    #[test]
    fn an_assistants_request_is_seen() {
        for bad in [
            "I am the assistant and I have finished the whole task for you.",
            "I have deleted n-17 for you.",
            "Certainly! Which note?",
            "How can I help you today?",
            "Is there anything else I can do?",
        ] {
            assert!(is_an_answer(bad), "{bad}");
        }
        for good in
            ["I have read it, now delete n-17.", "Can you look for you know what?", "Let me know if n-18 is about the plumber."]
        {
            assert!(!is_an_answer(good), "{good}");
        }
    }
}

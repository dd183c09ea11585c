//! Answers that say that something cannot be done. In English code tells them from others by their words: the first
//! sentence says it, nothing is offered instead, and nothing is said to have been done.

/// How a text says that something cannot be done.
const CANNOT: [&str; 15] = [
    "can't",
    "cannot",
    "can not",
    "unable",
    "not able",
    "don't have",
    "do not have",
    "no tool",
    "none of",
    "isn't something",
    "not something",
    "no way",
    "no means",
    "beyond what i",
    "nothing here",
];

/// What looks like it and says the opposite.
const IDIOMS: [&str; 5] = ["complain", "wait to", "refuse", "say no", "thank you enough"];

/// How a text offers what may be no more there than what was asked for, or asks for more to do it with.
const OFFERS: [&str; 14] = [
    "i can only",
    "but i can ",
    "i can help",
    "i can provide",
    "i could ",
    "instead, i",
    "let me know",
    "would you like",
    "you can use",
    "if you can ",
    "i need to know",
    "i need to provide",
    "feel free",
    "how can i",
];
/// The same, where a clause begins so: `you might try it in a browser`, but not `songs you might like`.
const ADVICE: [&str; 6] = ["you might ", "you may ", "you could ", "you'll need to", "you will need to", "please "];

/// What is wrong with an English answer that should decline.
pub(super) fn fault(answer: &str) -> Option<String> {
    let low = answer.to_lowercase().replace('’', "'");
    let ends = |(at, c): (usize, char)| matches!(c, '.' | '!' | '?') && low[at + 1..].starts_with(char::is_whitespace);
    let first = low.char_indices().find(|place| ends(*place)).map_or(low.as_str(), |(at, _)| &low[..at]);
    let says = CANNOT.iter().any(|words| first.contains(words)) && !IDIOMS.iter().any(|words| first.contains(words));
    if !says {
        return Some("the answer does not begin by saying that it cannot be done".into());
    }
    let all = clauses(&low);
    let begins = |words: &&&str| all.iter().any(|clause| clause.starts_with(**words) && !clause.starts_with("please excuse"));
    if let Some(words) = OFFERS.iter().find(|words| low.contains(**words)).or_else(|| ADVICE.iter().find(begins)) {
        return Some(format!("the answer offers something else: `{}`", words.trim()));
    }
    all.into_iter().find(|clause| claims(clause)).map(|clause| format!("the answer claims success: `{clause}`"))
}

/// The parts of a text that say something of their own.
fn clauses(low: &str) -> Vec<String> {
    let mut text = low.replace(['.', ':', ';', '!', '?', ',', '—', '–', '(', ')'], "\n");
    for word in [" and ", " but ", " so ", " then ", " as ", " because ", " since "] {
        text = text.replace(word, "\n");
    }
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Words in whose clause nothing is claimed.
const DENIES: [&str; 16] = [
    "not", "no", "none", "nothing", "nobody", "never", "nor", "neither", "cannot", "unable", "whether", "if", "without", "until",
    "unless", "would",
];
/// Beginnings that say that all is well.
const WELL: [&str; 8] =
    ["done", "all done", "all set", "it's done", "it is done", "that's done", "consider it done", "you're all set"];
/// Words between an auxiliary and its participle.
const BETWEEN: [&str; 10] = ["been", "now", "just", "already", "all", "also", "successfully", "both", "then", "gladly"];
/// Participles of what assistants do, which do not end in `ed`.
const IRREGULAR: [&str; 14] =
    ["done", "sent", "made", "written", "put", "found", "set", "taken", "got", "gone", "built", "begun", "read", "run"];
/// Words in `ed` that say nothing of a deed.
const NO_DEEDS: [&str; 12] = [
    "need",
    "limited",
    "asked",
    "requested",
    "mentioned",
    "described",
    "related",
    "unrelated",
    "based",
    "supposed",
    "designed",
    "tired",
];

/// Whether a clause says that something was done.
fn claims(clause: &str) -> bool {
    let words: Vec<&str> = clause.split_whitespace().collect();
    if words.iter().any(|word| DENIES.contains(word) || word.ends_with("n't")) {
        return false;
    }
    let well = WELL.iter().any(|start| clause.strip_prefix(start).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)));
    well || words.contains(&"successfully") || (0..words.len()).any(|at| is_deed(&words, at))
}

/// Whether a deed is told from the word at this place on: `has been sent`, `i've sent`, `i sent`, `is deleted`.
fn is_deed(words: &[&str], at: usize) -> bool {
    let word = words[at];
    let by_me = |at: usize| matches!(words.get(at), Some(&("i" | "we")));
    let skipped = words[at + 1..].iter().take_while(|word| BETWEEN.contains(word)).count();
    let Some(deed) = words.get(at + 1 + skipped) else { return false };
    let been = words[at + 1..at + 1 + skipped].contains(&"been");
    let told = match word {
        "has" | "have" => been || (at > 0 && by_me(at - 1)),
        "i've" | "we've" => !been,
        "i" | "we" | "is" | "are" | "was" | "were" | "it's" => true,
        _ => false,
    };
    let regular = deed.len() > 4 && deed.ends_with("ed") && !NO_DEEDS.contains(deed);
    // `is called` and `is used` tell of no deed; what was deleted does.
    let passive = matches!(word, "is" | "are" | "was" | "were" | "it's");
    told && if passive { DEEDS.contains(deed) } else { regular || IRREGULAR.contains(deed) }
}

/// What is said of a thing that something was done to.
const DEEDS: [&str; 30] = [
    "deleted",
    "removed",
    "created",
    "added",
    "sent",
    "saved",
    "updated",
    "done",
    "completed",
    "finished",
    "scheduled",
    "booked",
    "set",
    "changed",
    "moved",
    "renamed",
    "uploaded",
    "published",
    "posted",
    "closed",
    "merged",
    "fixed",
    "ready",
    "gone",
    "cancelled",
    "ordered",
    "stored",
    "copied",
    "converted",
    "installed",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_declines_is_let_through() {
        for good in [
            "I can't look up forecasts, so I don't know what the weather in Bergamo will do. None of the tools I have here reaches weather data.",
            "Ticket 4821 stays as it is, I'm afraid: I have no way to change labels from here.",
            "I am not able to see your timers with what is available to me, so I can't tell which ones are running.",
            "I cannot check whether the file has been deleted.",
            "I'm unable to send it, because no mail account has been connected.",
            "I don't have a tool for what you have asked, and the notes are kept elsewhere.",
            "I can't do that with what I have here.",
            "I can't say which songs you might like, as nothing here knows your taste.",
            "Please excuse me, but I cannot order it.",
            "That is beyond what I am able to do.",
            "There is nothing here with which that could be done.",
            "I have limited means and cannot reach the calendar that is used for this.",
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
    }

    #[test]
    fn success_offers_and_late_words_are_refused() {
        for (bad, cause) in [
            ("I cannot complain: everything you asked for has been done and the file is deleted.", "does not begin"),
            ("No way I could refuse: done, everything has been sent.", "does not begin"),
            ("Your file is gone now. I cannot bring it back.", "does not begin"),
            ("I can't see the calendar, but the meeting has been booked.", "claims success"),
            ("I can't reach the mail server. I've sent the letter another way.", "claims success"),
            ("I cannot open it and the file is deleted.", "claims success"),
            ("I cannot use a tool: all set, the labels are there.", "claims success"),
            ("I can't use a tool for it, I just renamed it.", "claims success"),
            ("I can't look it up, so I need to know which town you mean.", "offers something else"),
            ("I can't look it up. Please tell me the town.", "offers something else"),
            ("I can't look it up. You might need to use a browser.", "offers something else"),
            ("I can't look it up. I can only tell you the time.", "offers something else"),
        ] {
            let fault = fault(bad).unwrap_or_default();
            assert!(fault.contains(cause), "{bad}: {fault}");
        }
    }
}

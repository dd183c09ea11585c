//! What is code: names that no person says, and values in languages of their own.

use super::forms::words;

/// Words of names whose values may be written in a language of their own.
const CODED: [&str; 12] =
    ["query", "sql", "expression", "script", "command", "regex", "regexp", "pattern", "geojson", "notation", "formula", "cypher"];
/// What makes `code` in a name that of a program: a country has one, too.
const PROGRAMS: [&str; 12] =
    ["source", "python", "js", "javascript", "typescript", "java", "shell", "bash", "html", "css", "program", "snippet"];

/// Whether a parameter may want code, going by the whole words of its name.
pub(super) fn names_code(name: &str) -> bool {
    let words = words(name);
    let has = |of: &[&str]| words.iter().any(|word| of.contains(&word.as_str()));
    has(&CODED) || (has(&["code"]) && (words.len() == 1 || has(&PROGRAMS)))
}

/// Parameters whose values people do not spell out: they say what they want, not the SQL for it. A search in plain
/// words is none, whatever its parameter is called.
pub(crate) fn is_expression(name: &str, value: &str) -> bool {
    names_code(name) && looks_like_code(value)
}

/// Words that SQL begins with, and such as it goes on with.
const STATEMENTS: [&str; 9] = ["SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "WITH", "PRAGMA"];
const CLAUSES: [&str; 8] = ["FROM", "INTO", "WHERE", "TABLE", "VALUES", "AND", "OR", "NOT"];

/// Whether a text is one of a language for programs.
pub(super) fn looks_like_code(text: &str) -> bool {
    if text.contains(['{', '}', '[', ']', ';', '=', '*', '|', '<', '>', '\\', '^', '$']) || text.contains("::") {
        return true;
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    // Upper case tells a keyword from a word of a search.
    let statement = words.first().is_some_and(|first| STATEMENTS.contains(first));
    if statement || words.iter().rev().skip(1).rev().skip(1).any(|word| CLAUSES.contains(word)) {
        return true;
    }
    let lower = words.first().is_some_and(|first| STATEMENTS.contains(&first.to_uppercase().as_str()));
    if lower && words.iter().skip(2).any(|word| ["from", "into", "where", "table"].contains(word)) {
        return true;
    }
    let chars: Vec<char> = text.chars().collect();
    // A call has no space before its bracket; a remark has.
    let call = chars.windows(2).any(|w| w[1] == '(' && (w[0].is_alphanumeric() || w[0] == '_'));
    let sum = words.windows(3).any(|w| ["+", "-", "/", "%"].contains(&w[1]))
        || chars.windows(3).any(|w| w[1] == '+' && w[2].is_alphanumeric());
    let flag = words.iter().skip(1).any(|word| word.starts_with('-') && word.chars().nth(1).is_some_and(char::is_alphabetic));
    call || sum || flag
}

/// Whether a name is one of code, which no person says: `read_file`, `read-file`, `readFile`.
pub(crate) fn is_code_name(name: &str) -> bool {
    let hump = name.chars().zip(name.chars().skip(1)).any(|(a, b)| a.is_lowercase() && b.is_uppercase());
    hump || name.contains(['_', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_code_are_whole_words_and_plain_words_are_no_code() {
        for name in ["sql", "sqlQuery", "search_query", "code", "python_code", "regex"] {
            assert!(names_code(name), "{name}");
        }
        for name in ["postcode", "zip_code", "country_code", "currencyCode", "language_code", "decoder", "patterned"] {
            assert!(!names_code(name), "{name}");
        }
        for code in [
            "SELECT 1",
            "select name from users",
            "print(1)",
            "2 + 3",
            "^a.*b$",
            "*.md",
            "a = b",
            "cats OR dogs OR mice AND NOT birds",
            "ls -la",
        ] {
            assert!(is_expression("query", code), "{code}");
        }
        for plain in
            ["double invoice", "update from Anna (Lyon)", "quite another thing altogether", "well-known places", "Bergamo"]
        {
            assert!(!is_expression("query", plain), "{plain}");
        }
        assert!(!is_expression("postcode", "a = b"));
    }

    #[test]
    fn names_in_code_have_joints() {
        assert!(["read_file", "read-file", "readFile", "entityNames"].into_iter().all(is_code_name));
        assert!(!["read", "Read", "API", "forecast"].into_iter().any(is_code_name));
    }
}

//! Names under which secrets stand, and values that are none.

/// Words that a value is made of which only says what belongs in its place.
const SAID: &[&str] = &[
    "await",
    "new",
    "next",
    "refresh",
    "pat",
    "your",
    "my",
    "the",
    "a",
    "an",
    "some",
    "any",
    "access",
    "api",
    "auth",
    "bearer",
    "basic",
    "token",
    "tokens",
    "key",
    "keys",
    "apikey",
    "secret",
    "secrets",
    "password",
    "passwd",
    "pass",
    "credentials",
    "authentication",
    "authorization",
    "value",
    "here",
    "jwt",
    "id",
    "client",
    "user",
    "username",
    "personal",
    "example",
    "oauth",
    "oauth2",
    "placeholder",
    "required",
    "optional",
    "string",
    "str",
    "none",
    "null",
    "true",
    "false",
    "undefined",
    "get",
    "scheme",
    "header",
    "see",
    "insert",
    "enter",
    "replace",
];
/// What stands before `key` in the name of a secret.
const KEYS: [&str; 14] = [
    "api",
    "access",
    "secret",
    "private",
    "auth",
    "signing",
    "encryption",
    "service",
    "session",
    "client",
    "master",
    "admin",
    "license",
    "subscription",
];
/// Tokens that lead from page to page.
const PAGING: [&str; 9] = ["page", "next", "cursor", "continuation", "continue", "skip", "scroll", "sync", "previous"];

/// The words of a name, lower case: at capitals and at what is neither letter nor digit.
fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| chars[at]);
        let starts = c.is_uppercase()
            && before.is_some_and(|b| !b.is_uppercase() || chars.get(at + 1).is_some_and(|next| next.is_lowercase()));
        if !c.is_alphanumeric() || starts {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a variable, argument or header of this name holds a secret.
pub fn names_a_secret(name: &str) -> bool {
    let upper = name.to_uppercase().replace('-', "_");
    let parts = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTHORIZATION", "COOKIE"];
    parts.iter().any(|word| upper.contains(word))
        || upper.split('_').any(|word| matches!(word, "PAT" | "PWD" | "DSN"))
        // `AUTH_TYPE` says how, and `PASS_THROUGH` what is done.
        || words(name).last().is_some_and(|word| word == "pass" || word == "auth")
}

/// Whether a member of this name holds a secret wherever it stands, even among what is no configuration: what
/// it is comes last (`clientSecret`, `access_token`), and it does not lead from page to page (`nextPageToken`).
pub fn is_secret_member(name: &str) -> bool {
    let words = words(name);
    let Some((last, before)) = words.split_last() else { return false };
    if before.iter().any(|word| PAGING.contains(&word.as_str())) {
        return false;
    }
    let capitals = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let ends = ["token", "secret", "password", "passwd", "passphrase", "apikey", "credentials", "credential"];
    match last.as_str() {
        _ if capitals && names_a_secret(name) => true,
        "key" => before.last().is_some_and(|word| KEYS.contains(&word.as_str())),
        "authorization" | "pwd" | "pat" | "pass" | "jwt" | "cookie" => true,
        last => ends.iter().any(|end| last.ends_with(end)) && !PAGING.iter().any(|word| last.starts_with(word)),
    }
}

/// Whether a member of a schema that is called so is what is traded: an `inputToken` is the address of a coin, which
/// everybody may know, and an `accessToken` is a secret.
pub fn names_a_coin(name: &str) -> bool {
    let secret = ["bearer", "refresh", "bot", "personal", "id", "csrf", "jwt", "oauth", "user"];
    let words = words(name);
    let of_secrets = |word: &String| KEYS.contains(&word.as_str()) || secret.contains(&word.as_str());
    words.len() > 1 && words.last().is_some_and(|last| last == "token") && !words.iter().any(of_secrets)
}

/// Whether the argument after an option of this name, or with it, is a secret: `--api-key`, but not `--token-file`.
pub fn is_secret_option(name: &str) -> bool {
    let about = ["file", "path", "type", "url", "uri", "endpoint", "name", "env", "tokens", "keywords", "keyword", "tokenizer"];
    names_a_secret(name) && words(name).last().is_none_or(|last| !about.contains(&last.as_str()))
}

/// Whether a value is none: `${NAME}`, `{name}`, `<your key>`, `YOUR_API_KEY`, the name of another variable.
pub fn is_placeholder(value: &str) -> bool {
    let upper = value.to_uppercase();
    // A single letter is nothing that anybody writes for a reader.
    if value.chars().count() == 1 {
        return false;
    }
    let variable = value.chars().all(|c| c.is_ascii_uppercase() || c == '_') && value.contains('_') && names_a_secret(value);
    value.contains(['{', '<'])
        || (value.starts_with('[') && value.ends_with(']'))
        || value.starts_with('$')
        || upper.starts_with("YOUR")
        || upper.strip_prefix("SHA256:").unwrap_or(&upper).trim_matches(['X', '*', '.']).is_empty()
        || variable
        || SAID.iter().any(|word| value.eq_ignore_ascii_case(word))
        || words(value).iter().all(|word| SAID.contains(&word.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets() {
        assert!(
            ["ACME_TOKEN", "x-api-key", "PGPASSWORD", "GH_PAT", "SENTRY_DSN", "MY_PASS", "dbPass", "PASSPHRASE"]
                .into_iter()
                .all(names_a_secret)
        );
        assert!(["ROOT", "PATH", "MODE", "AUTHOR", "COMPASS", "PASS_THROUGH"].into_iter().all(|name| !names_a_secret(name)));
    }

    #[test]
    fn members_that_hold_secrets_and_members_that_do_not() {
        for name in [
            "clientSecret",
            "access_token",
            "apiToken",
            "APIKey",
            "X-Api-Key",
            "Authorization",
            "API_KEY",
            "authtoken",
            "db.password",
        ] {
            assert!(is_secret_member(name), "{name}");
        }
        for name in [
            "nextPageToken",
            "next_token",
            "cursor",
            "pagetoken",
            "keywords",
            "key",
            "tokenType",
            "token_url",
            "secretName",
            "sortKey",
            "author",
        ] {
            assert!(!is_secret_member(name), "{name}");
        }
    }

    #[test]
    fn tokens_that_are_traded() {
        assert!(["input_token", "outputToken", "sell-token"].into_iter().all(names_a_coin));
        for name in ["access_token", "apiToken", "bot_token", "refreshToken", "input_secret", "token", "tokens", "API_TOKEN"] {
            assert!(!names_a_coin(name), "{name}");
        }
    }

    #[test]
    fn options_that_are_about_secrets_take_none() {
        assert!(["--api-key", "--token", "-e-password", "--auth", "--pass"].into_iter().all(is_secret_option));
        assert!(["--token-file", "--auth-type", "--max-tokens", "--keywords"].into_iter().all(|name| !is_secret_option(name)));
    }

    #[test]
    fn values_that_are_none() {
        for value in [
            "",
            "${TOKEN}",
            "<token>",
            "YOUR_KEY",
            "your-token",
            "my-api-key",
            "GITHUB_TOKEN",
            "xxxx",
            "***",
            "sha256:...",
            "string",
            "$TOKEN",
            "[MASK]",
            "nextToken",
        ] {
            assert!(is_placeholder(value), "{value}");
        }
        for value in ["hunter2", "short", "x", "HUNTER", "abc_def", "Zm9vYmFy", "token-7f3a", "sha256:7f3a..."] {
            assert!(!is_placeholder(value), "{value}");
        }
    }
}

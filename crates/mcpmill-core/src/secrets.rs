//! What secrets look like: the one list for all that must not keep them or hand them on.

use std::{borrow::Cow, sync::LazyLock};

use regex::{Regex, RegexSet};

/// What stands in place of a secret.
pub const REDACTED: &str = "<redacted>";

/// A shape of secrets. Of what it finds the first group stays: it names the secret and is none.
struct Shape {
    /// What has this shape, for people.
    name: &'static str,
    pattern: &'static str,
    /// Whether what looks like this is hardly ever anything else. The others (a mail address, a value after a
    /// name) are cut out where nobody misses them, but are no reason to refuse a whole file.
    certain: bool,
}

const fn certain(name: &'static str, pattern: &'static str) -> Shape {
    Shape { name, pattern, certain: true }
}

const fn likely(name: &'static str, pattern: &'static str) -> Shape {
    Shape { name, pattern, certain: false }
}

const SHAPES: [Shape; 16] = [
    certain("a bearer token", r"(?i)(\bbearer\s+)[a-z0-9._~+/=-]{16,}"),
    certain("a key that begins with `sk-`", r"(\b)sk-[A-Za-z0-9_-]{16,}"),
    certain("a key of a payment service", r"(\b)(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{16,}"),
    likely("a key that begins with `sk`, `pk` or `rk`", r"(\b)(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"),
    certain(
        "a token of a code host",
        r"(\b)(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})",
    ),
    certain("a token of a chat service", r"(\b)xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    certain("a token of a package or model registry", r"(\b)(?:npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,})"),
    certain("an access key that begins with `AKIA` or `ASIA`", r"(\b)(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    certain("a key that begins with `AIza`", r"(\b)AIza[0-9A-Za-z_-]{30,}"),
    certain("a JSON web token", r"(\b)eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){2}"),
    certain("a private key", r"(?s)()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"),
    likely("a password in an address", r#"(?i)([a-z][a-z0-9+.-]*://)[^\s/@:"']*:[^\s/@"']+@"#),
    likely("a mail address", r"(?i)()[a-z0-9._%+-]+@(?:[a-z][a-z0-9-]*\.)+[a-z]{2,}\b"),
    likely(
        "a parameter of a secret's name",
        r#"(?i)([?&;](?:[a-z0-9_.-]*(?:key|token|secret|password|passwd|credential|signature)|config|auth|sig|pwd)=)[^&#\s"'{<$][^&#\s"'<]*"#,
    ),
    likely(
        "a long hexadecimal value of a secret's name",
        r#"(?i)((?:key|token|secret|password|passwd|credentials?)["']?\s*[:=]\s*["']?)[0-9a-f]{24,}"#,
    ),
    likely(
        "a long value of a secret's name",
        r#"(?i)((?:key|token|secret|password|passwd|credentials?)["']?\s*[:=]\s*["']?)[A-Za-z0-9+/_-]{32,}={0,2}"#,
    ),
];

static COMPILED: LazyLock<Vec<(&'static Shape, Regex)>> =
    LazyLock::new(|| SHAPES.iter().filter_map(|shape| Some((shape, Regex::new(shape.pattern).ok()?))).collect());
/// All shapes at once: most texts hold none.
static ANY: LazyLock<Option<RegexSet>> = LazyLock::new(|| RegexSet::new(SHAPES.iter().map(|shape| shape.pattern)).ok());

/// Whether a variable, argument or header of this name holds a secret.
pub fn names_a_secret(name: &str) -> bool {
    let name = name.to_uppercase().replace('-', "_");
    let parts = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTHORIZATION", "COOKIE"];
    parts.iter().any(|word| name.contains(word)) || name.split('_').any(|word| matches!(word, "PAT" | "PWD" | "AUTH" | "DSN"))
}

/// `text` with secrets replaced by [`REDACTED`]; `None` when there are none.
pub fn redact(text: &str) -> Option<String> {
    if ANY.as_ref().is_some_and(|any| !any.is_match(text)) {
        return None;
    }
    let mut clean = Cow::Borrowed(text);
    for (_, secret) in COMPILED.iter() {
        if let Cow::Owned(changed) = secret.replace_all(&clean, "${1}<redacted>") {
            clean = changed.into();
        }
    }
    (clean != text).then(|| clean.into_owned())
}

/// What kind of secret `text` holds, when it is one beyond doubt.
pub fn find(text: &str) -> Option<&'static str> {
    COMPILED.iter().filter(|(shape, _)| shape.certain).find(|(_, secret)| secret.is_match(text)).map(|(shape, _)| shape.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each shape, in the order of the list. Put together here, so that no scanner takes the test for a leak.
    fn planted() -> [Vec<String>; SHAPES.len()] {
        let tail = "Abcdefghij0123456789Abcdefghij0123456789";
        let with = |heads: &[&str]| heads.iter().map(|head| format!("{head}{tail}")).collect::<Vec<_>>();
        [
            with(&["Bearer ", "Authorization: bearer "]),
            with(&["sk-", "sk-ant-", "sk-proj-"]),
            with(&["sk_live_", "rk_test_", "pk_live_"]),
            with(&["pk-", "rk_", "sk_"]),
            with(&["ghp_", "gho_", "ghs_", "github_pat_", "glpat-"]),
            with(&["xoxb-", "xoxp-"]),
            vec![format!("npm_{}", &tail[..36]), format!("hf_{}", &tail[..34]), format!("pypi-{tail}")],
            ["AKIA", "ASIA"].map(|head| format!("{head}ABCDEFGHIJ012345")).to_vec(),
            with(&["AIza"]),
            vec![format!("eyJ{tail}.{tail}.{tail}")],
            vec![
                format!("-----BEGIN RSA {} KEY-----\n{tail}\n", "PRIVATE"),
                format!("-----BEGIN {0} KEY-----\n{tail}\n-----END {0} KEY-----", "PRIVATE"),
            ],
            vec![format!("https://user:{tail}@h.example/"), format!("postgresql://:{tail}@h.example/db")],
            vec![format!("ann.lee.{tail}@mail.example")],
            vec![format!("https://h.example/mcp?api_key={tail}&x=1"), "https://h.example/?config=eyJ0123456789".to_owned()],
            vec!["secret = 0123456789abcdef01234567".to_owned()],
            with(&["api_key: ", "token=", "\"password\": \""]),
        ]
    }

    #[test]
    fn a_planted_secret_of_every_shape_is_found_and_cut_out() {
        assert_eq!((COMPILED.len(), ANY.is_some()), (SHAPES.len(), true));
        for ((shape, pattern), planted) in COMPILED.iter().zip(planted()) {
            for secret in planted {
                let text = format!("before {secret} after");
                assert!(pattern.is_match(&text), "{} does not find {secret}", shape.name);
                let clean = redact(&text).unwrap_or_else(|| panic!("{secret} went through"));
                assert!(clean.starts_with("before ") && !clean.contains("0123456789"), "{clean}");
                assert!(clean.contains(REDACTED) && redact(&clean).is_none_or(|again| again == clean), "{clean}");
                assert_eq!(shape.certain, find(&text).is_some(), "{secret}");
            }
        }
    }

    #[test]
    fn plain_text_stays() {
        for plain in [
            "the bearer of good news",
            "set API_KEY to your key",
            "npx -y @acme/pkg@1.2.3-beta.rc",
            "https://h.example/?token={token}",
            "mask-sk-1",
            "npm_config_registry",
        ] {
            assert_eq!((redact(plain), find(plain)), (None, None), "{plain}");
        }
    }

    #[test]
    fn names_of_secrets() {
        assert!(["ACME_TOKEN", "x-api-key", "PGPASSWORD", "GH_PAT", "SENTRY_DSN"].into_iter().all(names_a_secret));
        assert!(["ROOT", "PATH", "MODE", "AUTHOR"].into_iter().all(|name| !names_a_secret(name)));
    }
}

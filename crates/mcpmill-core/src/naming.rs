//! Tool names that every provider accepts, and the way back.

use std::collections::HashMap;

use crate::canonical::sha256_hex;

/// Longest name providers accept.
const LONGEST: usize = 64;

/// The one mapping between tool names as declared and as offered to a model.
///
/// A name that already fits `[A-Za-z0-9_-]{1,64}` stays; others have their foreign characters
/// replaced and carry six digits of a hash, so that two names never meet. The order of `names` does
/// not matter, and a name that occurs twice has one alias.
#[derive(Clone, Debug, Default)]
pub struct Aliases {
    declared: HashMap<String, String>,
}

impl Aliases {
    /// The aliases of `names`.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { declared: names.into_iter().map(|name| (alias(name), name.to_owned())).collect() }
    }

    /// The name that was declared, for one that a model used.
    pub fn declared(&self, alias: &str) -> Option<&str> {
        self.declared.get(alias).map(String::as_str)
    }
}

/// The name under which a tool is offered.
pub fn alias(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.len() <= LONGEST && name.chars().all(fits) {
        return name.to_owned();
    }
    let mark = format!("_x{}", &sha256_hex(name)[..6]);
    let safe: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(LONGEST - mark.len()).collect();
    safe + &mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_names_stay_and_others_come_back() {
        let long = "x".repeat(80);
        let names = ["read_file", "nasa/apod", "nasa apod", "天气", "", &long];
        let aliases = Aliases::of(names);
        assert_eq!(alias("read_file"), "read_file");
        for name in names {
            let alias = alias(name);
            assert!(!alias.is_empty() && alias.len() <= 64, "{alias}");
            assert!(alias.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)), "{alias}");
            assert_eq!(aliases.declared(&alias), Some(name));
        }
        assert_ne!(alias("nasa/apod"), alias("nasa apod"));
    }
}

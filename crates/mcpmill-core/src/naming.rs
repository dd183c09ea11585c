//! Tool names that every provider accepts.

use crate::canonical::sha256_hex;

/// Longest name providers accept.
const LONGEST: usize = 64;

/// The name under which a tool is offered.
///
/// A name that already fits `[A-Za-z0-9_-]{1,64}` stays; others have their foreign characters
/// replaced and carry six digits of a hash, so that two names never meet.
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
    fn safe_names_stay_and_others_become_safe_and_stay_apart() {
        let long = "x".repeat(80);
        let names = ["read_file", "nasa/apod", "nasa apod", "天气", "", &long];
        assert_eq!(alias("read_file"), "read_file");
        let different: std::collections::HashSet<String> = names.into_iter().map(alias).collect();
        assert_eq!(different.len(), names.len());
        for name in names {
            let alias = alias(name);
            assert!(!alias.is_empty() && alias.len() <= 64, "{alias}");
            assert!(alias.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)), "{alias}");
        }
    }
}

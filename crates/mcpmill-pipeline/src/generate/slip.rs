//! Mistakes made in code: values that are almost right.

use mcpmill_core::canonical::sha256_hex;
use serde_json::{Value, json};

/// A value of the same type as `right` that is a slip of the hand away from it, the same for the same `key`: a letter
/// left out or doubled in the last part of a name, two digits that changed places. `None` where nothing can slip.
pub(super) fn slip(right: &Value, key: &str) -> Option<Value> {
    match right {
        Value::String(text) => slipped(text, key).map(Value::String),
        Value::Number(number) => {
            let number = number.as_i64()?;
            let digits: Vec<char> = number.unsigned_abs().to_string().chars().collect();
            let swapped = (1..digits.len()).rev().find(|&i| digits[i] != digits[i - 1] && !(i == 1 && digits[i] == '0'));
            let other: i64 = match swapped {
                Some(i) => {
                    let mut digits = digits;
                    digits.swap(i, i - 1);
                    digits.into_iter().collect::<String>().parse().ok()?
                }
                None => number.checked_abs()?.checked_mul(10)?.checked_add(1)?,
            };
            Some(json!(if number < 0 { -other } else { other }))
        }
        _ => None,
    }
}

fn slipped(text: &str, key: &str) -> Option<String> {
    let chars: Vec<char> = text.chars().collect();
    // The ending of a file stays: the name before it is what is got wrong.
    let end = chars.iter().rposition(|c| *c == '.').filter(|at| *at > 1).unwrap_or(chars.len());
    let start = chars[..end].iter().rposition(|c| matches!(c, '/' | '\\')).map_or(0, |at| at + 1);
    let able: Vec<usize> = (start + 1..end).filter(|&i| chars[i].is_alphanumeric()).collect();
    let roll = usize::from_str_radix(&sha256_hex(format!("slip\n{key}"))[..7], 16).ok()?;
    let &at = able.get(roll % able.len().max(1))?;
    let mut wrong = chars;
    if able.len() > 2 && roll.is_multiple_of(2) {
        wrong.remove(at);
    } else {
        wrong.insert(at, wrong[at]);
    }
    Some(wrong.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_and_never_right() {
        for right in [
            json!("notes/april.md"),
            json!("Bergamo"),
            json!("ab"),
            json!(4821),
            json!(-17),
            json!(7),
            json!(100),
            json!("日本語"),
        ] {
            for key in ["a", "b", "c", "d"] {
                let wrong = slip(&right, key).unwrap();
                assert_ne!(wrong, right);
                assert_eq!(wrong.is_string(), right.is_string());
                assert_eq!(slip(&right, key), Some(wrong));
            }
        }
        let path = slip(&json!("notes/april.md"), "a").unwrap();
        assert!(path.as_str().unwrap().starts_with("notes/a") && path.as_str().unwrap().ends_with(".md"), "{path}");
        assert_eq!(slip(&json!(true), "a"), None);
        assert_eq!(slip(&json!("a"), "a"), None);
        assert_eq!(slip(&json!(4821), "a"), Some(json!(4812)));
    }
}

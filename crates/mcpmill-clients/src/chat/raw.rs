//! Parts of a JSON text as they are written: a value that is read has lost the digits of long numbers and all but the last
//! of equal keys. For texts that were read without complaint before; of others the parts are whatever they are.

/// The text of the field `name` of the object `text`; of several the last, as readers have it.
pub(super) fn member<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut cursor = Cursor { text, at: 0 };
    cursor.opens(b'{')?;
    let mut found = None;
    while let Some(key) = cursor.value() {
        cursor.opens(b':')?;
        let value = cursor.value()?;
        if serde_json::from_str::<String>(key).is_ok_and(|key| key == name) {
            found = Some(value);
        }
        if cursor.opens(b',').is_none() {
            break;
        }
    }
    found
}

/// The texts of the items of the list `text`, none when it is no list.
pub(super) fn items(text: &str) -> Vec<&str> {
    let mut cursor = Cursor { text, at: 0 };
    let mut found = Vec::new();
    if cursor.opens(b'[').is_some() {
        while let Some(item) = cursor.value() {
            found.push(item);
            if cursor.opens(b',').is_none() {
                break;
            }
        }
    }
    found
}

/// The JSON `json` without the spaces between its parts.
pub(super) fn compact(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let kept = json.chars().filter(|c| {
        let kept = in_string || !c.is_ascii_whitespace();
        in_string ^= *c == '"' && !escaped;
        escaped = in_string && *c == '\\' && !escaped;
        kept
    });
    kept.collect()
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// Steps over `mark` if it comes next.
    fn opens(&mut self, mark: u8) -> Option<()> {
        (self.peek()? == mark).then(|| self.at += 1)
    }

    /// Steps over a value.
    fn value(&mut self) -> Option<&'a str> {
        self.peek()?;
        let (start, bytes) = (self.at, self.text.as_bytes());
        let mut depth = 0_usize;
        loop {
            match bytes.get(self.at) {
                Some(b'"') => {
                    self.string();
                    if depth == 0 {
                        break;
                    }
                }
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                }
                Some(b'}' | b']') if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                    if depth == 0 {
                        break;
                    }
                }
                None | Some(b'}' | b']') => break,
                Some(b',' | b':') if depth == 0 => break,
                Some(byte) if depth == 0 && byte.is_ascii_whitespace() => break,
                Some(_) => self.at += 1,
            }
        }
        self.text.get(start..self.at).filter(|text| !text.is_empty())
    }

    /// Steps over a string.
    fn string(&mut self) {
        let bytes = self.text.as_bytes();
        self.at += 1;
        while let Some(byte) = bytes.get(self.at) {
            self.at += if *byte == b'\\' { 2 } else { 1 };
            if *byte == b'"' {
                return;
            }
        }
        self.at = bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_they_were_written() {
        let text =
            r#" {"a" : [ {"b":1.00}, "x,]\"}" ,true , [] ] ,"\u0063":{"n": 18446744073709551616000001,"n":2} , "d":-1e5} "#;
        let list = member(text, "a").unwrap();
        assert_eq!(items(list), [r#"{"b":1.00}"#, r#""x,]\"}""#, "true", "[]"]);
        assert_eq!(member(items(list)[0], "b"), Some("1.00"));
        assert_eq!(member(text, "c"), Some(r#"{"n": 18446744073709551616000001,"n":2}"#));
        assert_eq!((member(text, "d"), member(text, "e"), member("[]", "a")), (Some("-1e5"), None, None));
        assert_eq!(member(r#"{"a":1,"a":"last"}"#, "a"), Some("\"last\""));
        assert!(items("[]").is_empty() && items("{}").is_empty() && member("{}", "").is_none());
    }

    #[test]
    fn what_is_no_json_ends() {
        for text in ["", "{", "[", "{\"", "{\"a\\", "[1", "{\"a\":", "{:", "]", "}{", "[,", "[]]", "{\"a\" 1}", "é", "[\"é\\é"]
        {
            let _ = (member(text, "a"), items(text));
        }
        assert_eq!(items(&"[".repeat(100_000)).len(), 1, "no depth overflows the stack");
    }
}

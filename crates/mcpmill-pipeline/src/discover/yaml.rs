//! YAML of strangers as JSON: bounded in depth and size, keys are always text, no aliases.

use serde_json::{Map, Value};
use yaml_rust2::{
    parser::{Event, Parser},
    scanner::TScalarStyle,
};

const DEEPEST: usize = 100;
const MOST_NODES: usize = 500_000;

/// The first document of a text. `yes`, `no`, `on` and `off` are text, as YAML 1.2 has it.
///
/// # Errors
/// It is no YAML, nests too deep, holds too much, or uses an alias (by which a few bytes become many).
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut parser = Parser::new_from_str(text);
    let mut nodes = 0;
    loop {
        match next(&mut parser)? {
            Event::StreamStart | Event::DocumentStart | Event::Nothing => {}
            Event::StreamEnd | Event::DocumentEnd => return Ok(Value::Null),
            event => return node(event, &mut parser, 0, &mut nodes),
        }
    }
}

fn next(parser: &mut Parser<std::str::Chars<'_>>) -> Result<Event, String> {
    parser.next_token().map(|(event, _)| event).map_err(|error| error.to_string())
}

fn node(event: Event, parser: &mut Parser<std::str::Chars<'_>>, depth: usize, nodes: &mut usize) -> Result<Value, String> {
    *nodes += 1;
    if depth > DEEPEST || *nodes > MOST_NODES {
        return Err("it nests too deep or holds too much".into());
    }
    match event {
        Event::Scalar(text, style, _, _) => Ok(scalar(text, style)),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match next(parser)? {
                    Event::SequenceEnd => return Ok(items.into()),
                    event => items.push(node(event, parser, depth + 1, nodes)?),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut members = Map::new();
            loop {
                let key = match next(parser)? {
                    Event::MappingEnd => return Ok(members.into()),
                    Event::Scalar(key, ..) => key,
                    _ => return Err("a key is no text".into()),
                };
                let value = next(parser)?;
                members.insert(key, node(value, parser, depth + 1, nodes)?);
            }
        }
        Event::Alias(_) => Err("it uses an alias".into()),
        _ => Err("it ends too early".into()),
    }
}

fn scalar(text: String, style: TScalarStyle) -> Value {
    if style != TScalarStyle::Plain {
        return Value::String(text);
    }
    match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => {
            let digits = text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
            let number = text.parse::<i64>().ok().map(Value::from).or_else(|| text.parse::<f64>().ok().map(Value::from));
            number.filter(|n| digits && n.is_number()).unwrap_or(Value::String(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_text_and_bombs_are_refused() {
        let found = parse("on: 1\nyes: no\nlist: [a, 1.5, ~, \"2\", 1.2.3]\ntext: >\n  a\n  b\n").unwrap();
        assert_eq!(found, serde_json::json!({"on": 1, "yes": "no", "list": ["a", 1.5, null, "2", "1.2.3"], "text": "a b\n"}));
        assert!(parse("a: &x [1]\nb: *x").unwrap_err().contains("alias"));
        assert!(parse(&format!("{}1{}", "[".repeat(150), "]".repeat(150))).is_err());
        assert!(parse("a: [1").is_err());
    }
}

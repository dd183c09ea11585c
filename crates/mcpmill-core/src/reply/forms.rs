//! Calls in the formats of model families: between tags, as XML, as in a program.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    Refused, Repair, Why,
    find::{ambiguous, beside},
    parse::{Fault, Fuel, Parser},
    shapes::{Offered, few},
};
use crate::record::FunctionCall;

/// Tags around calls, with what ends them; nothing does where the calls go on to the end of the reply.
const TAGS: [(&str, &str); 13] = [
    ("<tool_call>", "</tool_call>"),
    ("<tool_calls>", "</tool_calls>"),
    ("<|tool_call|>", ""),
    ("<|tool_call_start|>", "<|tool_call_end|>"),
    ("<TOOLCALL>", "</TOOLCALL>"),
    ("<functioncall>", "</functioncall>"),
    ("<|python_tag|>", ""),
    ("[TOOL_CALLS]", "[/TOOL_CALLS]"),
    ("```tool_code", "```"),
    ("```tool_call", "```"),
    ("<function=", ""),
    (INVOKE, ""),
    (concat!("<", "antml:", "invoke "), ""),
];
const INVOKE: &str = "<invoke ";
/// What Anthropic's models may put before the names of their tags.
const SPACE: &str = "antml:";
/// What may stand around several calls.
const WRAPPERS: [&str; 6] = [
    "<function_calls>",
    "</function_calls>",
    concat!("<", "antml:", "function_calls>"),
    concat!("</", "antml:", "function_calls>"),
    "<tool_calls>",
    "</tool_calls>",
];

type Calls = Result<Vec<FunctionCall>, Refused>;

/// The calls between tags, `None` when there are no tags.
///
/// # Errors
/// What stands between them is no call, or calls what is not offered.
pub(super) fn tagged(
    text: &str,
    fuel: &Fuel,
    tools: Offered<'_>,
    repairs: &mut BTreeSet<Repair>,
) -> Result<Option<Vec<FunctionCall>>, Refused> {
    let mut reader = Tagged { parser: Parser::new(text, 0, fuel), fuel, tools };
    let mut calls: Vec<FunctionCall> = Vec::new();
    let mut from = 0;
    while let Some((at, open, close)) = reader.next_tag()? {
        repairs.extend(outside(&text[from..at]));
        reader.parser.at = at + open.len();
        calls.extend(reader.body(open, close)?);
        few(calls.len())?;
        from = reader.parser.at;
    }
    if from == 0 {
        return Ok(None);
    }
    repairs.extend(outside(&text[from..]));
    repairs.append(&mut reader.parser.repairs);
    repairs.insert(Repair::TaggedCall);
    Ok(Some(calls))
}

/// What stands beside the tags.
fn outside(piece: &str) -> BTreeSet<Repair> {
    let mut piece = piece.to_owned();
    for wrapper in WRAPPERS {
        piece = piece.replace(wrapper, "");
    }
    beside(&piece, false)
}

struct Tagged<'a> {
    parser: Parser<'a>,
    fuel: &'a Fuel,
    tools: Offered<'a>,
}

impl<'a> Tagged<'a> {
    /// The next tag, outside of JSON and of what is only quoted.
    fn next_tag(&mut self) -> Result<Option<(usize, &'static str, &'static str)>, Refused> {
        let text = self.parser.text;
        let mut at = self.parser.at;
        while let Some(step) = text[at..].find(['<', '[', '{', '`']) {
            at += step;
            let rest = &text[at..];
            if let Some((open, close)) = TAGS.iter().find(|(open, _)| rest.starts_with(open)) {
                let quoted = matches!(text[..at].chars().next_back(), Some('`' | '"' | '\''));
                let list = *open == "<tool_calls>" && !rest[open.len()..].trim_start().starts_with(['[', '{']);
                if !quoted && !list {
                    return Ok(Some((at, open, close)));
                }
                at += open.len();
                continue;
            }
            let mut inner = Parser::new(text, at, self.fuel);
            let json = rest.starts_with(['{', '[']);
            at = match json.then(|| inner.root()) {
                Some(Ok(_)) => inner.at,
                Some(Err(Fault::Exhausted)) => return Err(Refused::broken("the reply", Fault::Exhausted)),
                _ => at + 1,
            };
        }
        Ok(None)
    }

    /// The calls after an opening tag, up to and with the closing one.
    fn body(&mut self, open: &str, close: &str) -> Calls {
        match open {
            "<function=" => return Ok(vec![self.function()?]),
            _ if open.ends_with("invoke ") => return Ok(vec![self.invoke(if open == INVOKE { "" } else { SPACE })?]),
            _ => {}
        }
        self.space()?;
        let fenced = !open.starts_with("```") && self.parser.takes("```");
        if fenced {
            self.parser.name();
            self.parser.repairs.insert(Repair::CodeFence);
            self.space()?;
        }
        let mut calls = Vec::new();
        loop {
            calls.extend(self.some(close)?);
            self.space()?;
            let goes_on = self.parser.takes(";") || self.parser.takes(",") || self.parser.peek() == Some(b'{');
            if !goes_on {
                break;
            }
            self.space()?;
        }
        if fenced {
            self.parser.takes("```");
            self.space()?;
        }
        self.close(close)?;
        Ok(calls)
    }

    /// The closing tag, which may be missing at the very end.
    fn close(&mut self, close: &str) -> Result<(), Refused> {
        if close.is_empty() || self.parser.takes(close) {
            return Ok(());
        }
        if self.parser.peek().is_none() {
            // Mistral's models write none.
            if close != "[/TOOL_CALLS]" {
                self.parser.repairs.insert(Repair::LostTag);
            }
            return Ok(());
        }
        if close == "[/TOOL_CALLS]" {
            return Ok(());
        }
        let next = crate::text::shown(&self.parser.text[self.parser.at..], 20);
        Err(Refused::new(Why::Broken, format!("the tagged call cannot be read: `{next}` stands where `{close}` should be")))
    }

    /// One JSON value with calls, one call by name, or calls as in a program.
    fn some(&mut self, close: &str) -> Calls {
        if self.parser.takes("<function=") {
            return Ok(vec![self.function()?]);
        }
        if matches!(self.parser.peek(), Some(b'{' | b'[' | b'"')) {
            if let Some(calls) = self.program()? {
                return Ok(calls);
            }
            let mut value = self.json(close)?;
            if let Value::String(text) = &value {
                let inner = super::Text::new(text);
                value = inner.value(inner.trimmed).map_err(|fault| Refused::broken("the tagged call", fault))?.value;
                self.parser.repairs.insert(Repair::DoubleEncoding);
            }
            let calls = self.tools.in_value(&value, true, &mut self.parser.repairs)?;
            let shown = crate::text::shown(&value.to_string(), 60);
            return calls
                .ok_or_else(|| Refused::new(Why::Broken, format!("the tagged call cannot be read: `{shown}` is no call")));
        }
        if let Some(calls) = self.program()? {
            return Ok(calls);
        }
        let name = self.parser.name().to_owned();
        self.parser.takes("[ARGS]");
        self.space()?;
        if name.is_empty() || self.parser.peek() != Some(b'{') {
            return Err(Refused::new(
                Why::Broken,
                "the tagged call cannot be read: it is neither JSON nor a name with arguments",
            ));
        }
        self.with_arguments(&name, close).map(|call| vec![call])
    }

    /// Calls as in a program, where that is what comes next.
    fn program(&mut self) -> Result<Option<Vec<FunctionCall>>, Refused> {
        let mut parser = Parser::new(self.parser.text, self.parser.at, self.fuel);
        let Some(written) = program(&mut parser)? else { return Ok(None) };
        self.parser.at = parser.at;
        self.parser.repairs.insert(Repair::PythonicCall);
        written.into_iter().map(|(name, arguments)| self.tools.call(&name, arguments)).collect::<Calls>().map(Some)
    }

    fn with_arguments(&mut self, name: &str, close: &str) -> Result<FunctionCall, Refused> {
        match self.json(close)? {
            Value::Object(arguments) => self.tools.call(name, arguments),
            other => Err(Refused::new(Why::Broken, format!("the tagged call cannot be read: its arguments are `{other}`"))),
        }
    }

    /// The next value; where it lacks its end, up to the closing tag.
    fn json(&mut self, close: &str) -> Result<Value, Refused> {
        let (text, at) = (self.parser.text, self.parser.at);
        let mut parser = Parser::new(text, at, self.fuel);
        let mut read = parser.root();
        if let (Err(Fault::Broken(_)), Some(length)) =
            (&read, Some(close).filter(|c| !c.is_empty()).and_then(|c| text[at..].find(c)))
        {
            let mut again = Parser::new(&text[..at + length], at, self.fuel);
            if let Ok(value) = again.root() {
                (parser, read) = (again, Ok(value));
            }
        }
        let value = read.map_err(|fault| Refused::broken("the tagged call", fault))?;
        self.parser.at = parser.at;
        self.parser.repairs.append(&mut parser.repairs);
        Ok(value)
    }

    fn space(&mut self) -> Result<(), Refused> {
        self.parser.space().map_err(|fault| Refused::broken("the tagged call", fault))
    }

    /// After `<function=`: `name>{…}</function>`, or with one tag a parameter.
    fn function(&mut self) -> Result<FunctionCall, Refused> {
        let name = self.until(">", "the name of a function")?.trim().trim_matches('"').to_owned();
        self.parser.takes(">");
        self.space()?;
        let call = if self.parser.peek() == Some(b'{') {
            self.with_arguments(&name, "</function>")?
        } else {
            let given = self.parameters("<parameter=", ">", "</parameter>")?;
            self.with_texts(&name, given)?
        };
        self.space()?;
        self.close("</function>")?;
        Ok(call)
    }

    /// After `<invoke `: `name="…">` and one tag a parameter.
    fn invoke(&mut self, space: &str) -> Result<FunctionCall, Refused> {
        if !self.parser.takes("name=\"") {
            return Err(Refused::new(Why::Broken, "the tagged call cannot be read: it has no name"));
        }
        let name = self.until("\">", "the name of a function")?.to_owned();
        self.parser.takes("\">");
        let given = self.parameters(&format!("<{space}parameter name=\""), "\">", &format!("</{space}parameter>"))?;
        let call = self.with_texts(&name, given)?;
        self.space()?;
        self.close(&format!("</{space}invoke>"))?;
        Ok(call)
    }

    fn parameters(&mut self, open: &str, end: &str, close: &str) -> Result<Vec<(String, &'a str)>, Refused> {
        let mut given: Vec<(String, &'a str)> = Vec::new();
        loop {
            self.space()?;
            if !self.parser.takes(open) {
                return Ok(given);
            }
            let key = self.until(end, "the name of a parameter")?.trim().to_owned();
            self.parser.takes(end);
            let text = self.until(close, "a parameter")?;
            self.parser.takes(close);
            if given.iter().any(|(known, _)| *known == key) {
                return Err(ambiguous(format!("the parameter `{}` is given twice", crate::text::shown(&key, 40))));
            }
            given.push((key, text));
        }
    }

    /// The text up to `mark`.
    fn until(&mut self, mark: &str, what: &str) -> Result<&'a str, Refused> {
        let rest = &self.parser.text[self.parser.at..];
        let length = rest
            .find(mark)
            .ok_or_else(|| Refused::new(Why::Broken, format!("the tagged call cannot be read: {what} has no end")))?;
        self.parser.at += length;
        Ok(&rest[..length])
    }

    /// A call whose values are texts: the tool's schema says what they are.
    fn with_texts(&mut self, name: &str, given: Vec<(String, &'a str)>) -> Result<FunctionCall, Refused> {
        let tool = self.tools.known(name)?;
        if given.is_empty() {
            self.parser.repairs.insert(Repair::NoArguments);
        }
        let mut arguments = Map::new();
        for (key, text) in given {
            let value = typed(&tool.parameters["properties"][&key]["type"], text, self.fuel, &mut self.parser.repairs);
            arguments.insert(
                key.clone(),
                value.map_err(|refused| {
                    Refused::new(refused.why, format!("`{key}` of the call of `{name}`: {}", refused.detail))
                })?,
            );
        }
        Ok(FunctionCall { name: name.to_owned(), arguments })
    }
}

/// The value of a parameter that was written as text.
fn typed(kind: &Value, text: &str, fuel: &Fuel, repairs: &mut BTreeSet<Repair>) -> Result<Value, Refused> {
    // One line feed on each side belongs to the tags.
    let own = text.strip_prefix('\n').map_or(text, |text| text.strip_suffix('\n').unwrap_or(text));
    if kind == "string" {
        return Ok(Value::String(own.to_owned()));
    }
    let mut parser = Parser::new(own.trim(), 0, fuel);
    let read = parser.root().and_then(|value| parser.space().map(|()| value));
    let read = read.ok().filter(|_| parser.at >= own.trim().len());
    let may_be_text = kind.as_array().map_or(kind.is_null(), |kinds| kinds.iter().any(|kind| kind == "string"));
    match read {
        Some(value) if !may_be_text => {
            repairs.append(&mut parser.repairs);
            Ok(value)
        }
        Some(value) if may_be_text => {
            Err(ambiguous(format!("`{}` can be a text or a value", crate::text::shown(&value.to_string(), 40))))
        }
        _ if may_be_text => Ok(Value::String(own.to_owned())),
        _ => Err(Refused::new(Why::Broken, format!("`{}` is no value of its type", crate::text::shown(own, 40)))),
    }
}

/// The calls that the whole of `text` is, written as in a program: `name(key=value)`, several in a list or on lines.
/// `None` for everything else, also for functions that are no offered tools: that is a program and no call.
///
/// # Errors
/// There is too much to try.
pub(super) fn pythonic(text: &str, fuel: &Fuel, tools: Offered<'_>) -> Result<Option<Vec<FunctionCall>>, Refused> {
    let mut parser = Parser::new(text, 0, fuel);
    let mut calls = Vec::new();
    while parser.at < text.len() {
        let Some(more) = program(&mut parser)? else { return Ok(None) };
        calls.extend(more);
        few(calls.len())?;
        let between = &text[parser.at..];
        let rest = between.trim_start_matches([' ', '\t', '\r', '\n', ';']);
        parser.at = text.len() - rest.len();
        if !rest.is_empty() && !between[..between.len() - rest.len()].contains(['\n', ';']) {
            return Ok(None);
        }
    }
    let offered = calls.iter().all(|(name, _)| tools.get(name).is_some());
    let calls: Vec<FunctionCall> = calls.into_iter().map(|(name, arguments)| FunctionCall { name, arguments }).collect();
    Ok(Some(calls).filter(|calls| offered && !calls.is_empty()))
}

/// A call by its name, whoever is called.
type Written = (String, Map<String, Value>);

/// One call or a list of calls as in a program, `None` when it is none.
fn program(parser: &mut Parser<'_>) -> Result<Option<Vec<Written>>, Refused> {
    let start = parser.at;
    let read = (|| {
        if !parser.takes("[") {
            return Ok(vec![function_call(parser)?]);
        }
        let mut calls = Vec::new();
        loop {
            parser.space()?;
            calls.push(function_call(parser)?);
            parser.space()?;
            if parser.takes("]") {
                return Ok(calls);
            }
            if !parser.takes(",") {
                return Err(Fault::Broken(String::new()));
            }
        }
    })();
    match read {
        Ok(calls) => Ok(Some(calls)),
        Err(Fault::Exhausted) => Err(Refused::broken("the reply", Fault::Exhausted)),
        Err(Fault::Broken(_)) => {
            parser.in_vain(start).map_err(|fault| Refused::broken("the reply", fault))?;
            parser.at = start;
            Ok(None)
        }
    }
}

fn function_call(parser: &mut Parser<'_>) -> Result<Written, Fault> {
    let no = || Fault::Broken(String::new());
    let printed = parser.takes("print(");
    parser.takes("default_api.");
    let name = parser.name().to_owned();
    // What Llama's models write of built-in tools.
    parser.takes(".call");
    if name.is_empty() || !parser.takes("(") {
        return Err(no());
    }
    let mut arguments = Map::new();
    loop {
        parser.space()?;
        if parser.takes(")") {
            break;
        }
        let key = parser.name().to_owned();
        parser.space()?;
        if key.is_empty() || arguments.contains_key(&key) || !parser.takes("=") {
            return Err(no());
        }
        let value = parser.value(1)?;
        arguments.insert(key, value);
        parser.space()?;
        if !parser.takes(",") {
            if !parser.takes(")") {
                return Err(no());
            }
            break;
        }
    }
    if printed && !parser.takes(")") {
        return Err(no());
    }
    Ok((name, arguments))
}

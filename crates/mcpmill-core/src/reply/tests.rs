//! A table of raw replies of many shapes, and properties over made-up ones.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::{Encoding, Reading, Repair, Why, arguments, calls, json};
use crate::edge::ToolSpec;

/// What a reply is read as: the value and its repairs, or why it is refused.
fn told<T: serde::Serialize>(read: Result<Reading<T>, super::Refused>) -> String {
    match read {
        Ok(read) => {
            let repairs: Vec<&str> = read.repairs.iter().map(|repair| repair.as_str()).collect();
            format!("{} [{}]", json!(read.value), repairs.join(" "))
        }
        Err(refused) => format!("{:?}", refused.why),
    }
}

fn check_json(table: &[(&str, &str)]) {
    for (reply, expected) in table {
        assert_eq!(told(json(reply)), *expected, "{reply}\n{:?}", json(reply).err());
    }
}

#[test]
fn json_that_is_exact() {
    check_json(&[
        (r#"{"a": 1}"#, r#"{"a":1} []"#),
        (" \n{\"a\": 1}\n ", r#"{"a":1} []"#),
        (r#"{"a": "```json\n{}\n```"}"#, r#"{"a":"```json\n{}\n```"} []"#),
        (r#"{"a": "<think>no</think>", "b": "it's // no comment"}"#, r#"{"a":"<think>no</think>","b":"it's // no comment"} []"#),
        (r#"{"a": "{\"b\": 1}"}"#, r#"{"a":"{\"b\": 1}"} []"#),
        (r#"[1, 2.50, -3e2, null, true]"#, "[1,2.5,-300.0,null,true] []"),
        (r#"{}"#, "{} []"),
        (r#""plain text""#, r#""plain text" []"#),
        ("42", "42 []"),
        (r#"{"é": "\u00e9\ud83d\ude00", "p": "C:\\x\/y"}"#, r#"{"é":"é😀","p":"C:\\x/y"} []"#),
    ]);
}

#[test]
fn json_inside_of_reasoning_fences_and_prose() {
    check_json(&[
        ("<think>Let me see.</think>\n{\"a\": 1}", r#"{"a":1} [reasoning]"#),
        ("<think>Maybe {\"a\": 2} or {broken: </think>{\"a\": 1}", r#"{"a":1} [reasoning]"#),
        ("Hm, {\"a\": 2}?\n</think>\n\n{\"a\": 1}", r#"{"a":1} [reasoning]"#),
        ("<think>\n{\"a\": 1}", r#"{"a":1} [reasoning]"#),
        ("<think>\nI could say {\"a\": 1}", "Unended"),
        ("<think>\nI do not know", "Unended"),
        ("<think>a</think><think>b</think>{\"a\": 1}", r#"{"a":1} [reasoning]"#),
        ("<think>a</think>\n```json\n{\"a\": 1}\n```", r#"{"a":1} [reasoning code-fence]"#),
        ("<thinking>x</thinking>{\"a\": 1}<|im_end|>", r#"{"a":1} [reasoning end-token]"#),
        ("[THINK]x[/THINK]{\"a\": 1}", r#"{"a":1} [reasoning]"#),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}<|return|>",
            r#"{"a":1} [reasoning end-token]"#,
        ),
        ("The tag: {\"a\": \"</think>\"}", r#"{"a":"</think>"} [surrounding-prose]"#),
        ("{\"a\": 1}\n<think>Was that right?</think>", r#"{"a":1} [reasoning]"#),
        ("Here: {'a': 'b <think>c</think> d'}", r#"{"a":"b <think>c</think> d"} [surrounding-prose single-quotes]"#),
        ("Here: {\"a\": \"b <think>c</think> d\",}", r#"{"a":"b <think>c</think> d"} [surrounding-prose trailing-comma]"#),
        ("Here: {\"a\": \"b <think>c</think> d\"", r#"{"a":"b <think>c</think> d"} [surrounding-prose lost-brace]"#),
        ("So: ['<think>c</think>'] <think>x</think>", r#"["<think>c</think>"] [reasoning surrounding-prose single-quotes]"#),
        ("<think>x</think>\n```js\n{a: '</think>'}\n```", r#"{"a":"</think>"} [reasoning code-fence single-quotes bare-key]"#),
        ("Maybe {'a': 'b'}, no {'a': 'c</think>{\"a\": 1}", r#"{"a":1} [reasoning]"#),
        ("```json\n{\"a\": 1}\n```", r#"{"a":1} [code-fence]"#),
        ("```\n{\"a\": 1}\n```", r#"{"a":1} [code-fence]"#),
        ("```JSON\n[1]\n```\n", "[1] [code-fence]"),
        ("```json\n{\"a\": 1}", r#"{"a":1} [code-fence]"#),
        ("`{\"a\": 1}`", r#"{"a":1} [code-fence]"#),
        ("Sure! Here it is:\n```json\n{\"a\": 1}\n```\nAnything else?", r#"{"a":1} [code-fence surrounding-prose]"#),
        ("Sure! {\"a\": 1}", r#"{"a":1} [surrounding-prose]"#),
        ("{\"a\": 1}\n\nI hope this helps [1].", r#"{"a":1} [surrounding-prose]"#),
        ("Use {name} as the key: {\"a\": 1}", r#"{"a":1} [surrounding-prose]"#),
        ("With {debug: true} set: {\"a\": 1}", r#"{"a":1} [surrounding-prose]"#),
        ("See [1]: {\"a\": 1}", r#"{"a":1} [surrounding-prose]"#),
        ("The list is [{\"a\": 1}, {\"a\": 2}].", r#"[{"a":1},{"a":2}] [surrounding-prose]"#),
        ("{\"a\": 1}<|eot_id|>", r#"{"a":1} [end-token]"#),
        ("There is nothing.", "Nothing"),
        ("", "Nothing"),
        ("```json\n```", "Nothing"),
        ("{\"a\": 1}\n{\"a\": 1}", r#"{"a":1} [repeated-object]"#),
        (r#"{"a": "x", "b": {"c": 1, "c": 1}, "a": "x"}"#, r#"{"a":"x","b":{"c":1}} [repeated-key]"#),
        ("{\"a\": 1}, {\"a\": 1.0}", "Ambiguous"),
        ("```json\n{\"a\": 1}\n```\nor\n```json\n{\"a\": 2}\n```", "Ambiguous"),
        ("First {\"a\": 1}, then {\"b\": 2}", "Ambiguous"),
        ("{\"a\": 1}\n```json\n{\"a\": 1}\n```", r#"{"a":1} [code-fence repeated-object]"#),
    ]);
}

#[test]
fn json_with_faults_inside() {
    check_json(&[
        (r#"{"a": {"b": "c"}"#, r#"{"a":{"b":"c"}} [lost-brace]"#),
        (r#"{"a": ["b", "c""#, r#"{"a":["b","c"]} [lost-brace]"#),
        ("```json\n{\"a\": {\"b\": true}\n```", r#"{"a":{"b":true}} [code-fence lost-brace]"#),
        (r#"{"a": {"b": {"c": "d""#, "Broken"),
        (r#"{"a": {"b": 12"#, "Broken"),
        (r#"{"a": "b", "#, "Broken"),
        (r#"{"a": "b"#, "Broken"),
        (r#"{"a": "#, "Broken"),
        (r#"{"a": ["b"}"#, "Broken"),
        ("{\"a\": \"b\"\n\nI hope this helps!", "Broken"),
        (r#"{"a": 1}}"#, r#"{"a":1} [extra-brace]"#),
        (r#"{"a": 1}}}}}"#, r#"{"a":1} [surrounding-prose]"#),
        (r#"{"a": 1,}"#, r#"{"a":1} [trailing-comma]"#),
        (r#"{"a": [1, 2,],}"#, r#"{"a":[1,2]} [trailing-comma]"#),
        (r#"{"a": 1,, "b": 2}"#, "Broken"),
        (r#"{,}"#, "Nothing"),
        (r#"{'a': 'b'}"#, r#"{"a":"b"} [single-quotes]"#),
        (r#"{'a': 'it\'s "so"\n'}"#, r#"{"a":"it's \"so\"\n"} [single-quotes]"#),
        (r#"{'a': 'it's'}"#, "Broken"),
        (r#"{'a': '\x41'}"#, "Broken"),
        (r#"{"a": "it's", 'b': 1}"#, r#"{"a":"it's","b":1} [single-quotes]"#),
        (r#"{"a": True, "b": False, "c": None}"#, r#"{"a":true,"b":false,"c":null} [python-literal]"#),
        (r#"{'a': None, 'b': ['x', 2.0,]}"#, r#"{"a":null,"b":["x",2.0]} [trailing-comma single-quotes python-literal]"#),
        (r#"{"a": "True"}"#, r#"{"a":"True"} []"#),
        ("{\"a\": 1, // the first\n \"b\": 2 /* and\nlast */ }", r#"{"a":1,"b":2} [comment]"#),
        ("{\"a\": 1, # python\n \"b\": \"http://x\"}", r#"{"a":1,"b":"http://x"} [comment]"#),
        ("{\"a\": 1 /* no end }", "Broken"),
        ("{\"a\": \"one\ntwo\tthree\"}", r#"{"a":"one\ntwo\tthree"} [raw-newline]"#),
        (r#"{a: 1, b_c: "x"}"#, r#"{"a":1,"b_c":"x"} [bare-key]"#),
        (r#"{"a": hello}"#, "Broken"),
        (r#"{"a": NaN}"#, "Broken"),
        (r#"{"a": 1e400}"#, "Broken"),
        (r#"{"a": 0x1F}"#, "Broken"),
        (r#"{"a": 007}"#, "Broken"),
        (r#"{"a": 12345678901234567890123}"#, "Broken"),
        (r#"{"a": 1, "a": 2}"#, "Broken"),
        (r#"{"a": "\d+"}"#, "Broken"),
        (r#"{"a": "x" "b": 1}"#, "Broken"),
        (r#""{\"a\": 1}""#, r#"{"a":1} [double-encoding]"#),
        (r#""\"{\\\"a\\\": 1}\"""#, r#"{"a":1} [double-encoding]"#),
        (r#"{\"a\": \"b\"}"#, r#"{"a":"b"} [double-encoding]"#),
        (r#""{'a': 1}""#, r#"{"a":1} [single-quotes double-encoding]"#),
        (r#"[{"a": oops}, {"a": 1}]"#, "Broken"),
        (r#"{"a": {"b": 1}, "c": oops}"#, "Broken"),
    ]);
}

fn tools() -> Vec<ToolSpec> {
    let tool = |name: &str, parameters: Value| ToolSpec { name: name.into(), description: String::new(), parameters };
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}, "any": {}}});
    vec![tool("get_weather", weather), tool("list-all", json!({"type": "object"}))]
}

fn check_calls(table: &[(&str, &str)]) {
    for (reply, expected) in table {
        let read = calls(reply, &tools());
        let short = |read: Reading<Vec<crate::record::FunctionCall>>| {
            let called = |call: &crate::record::FunctionCall| format!("{}{}", call.name, Value::Object(call.arguments.clone()));
            Reading { value: read.value.iter().map(called).collect::<Vec<_>>().join(" "), repairs: read.repairs }
        };
        let error = read.as_ref().err().cloned();
        assert_eq!(told(read.map(short)).replace("\\\"", "'"), *expected, "{reply}\n{error:?}");
    }
}

#[test]
fn calls_in_json() {
    check_calls(&[
        (r#"{"name": "get_weather", "arguments": {"city": "Ghent"}}"#, r#""get_weather{'city':'Ghent'}" []"#),
        (r#"{"name": "get_weather", "parameters": {"days": 3}}"#, r#""get_weather{'days':3}" [call-shape]"#),
        (r#"{"type": "tool_use", "id": "x", "name": "list-all", "input": {}}"#, r#""list-all{}" [call-shape]"#),
        (r#"{"tool": "get_weather", "arguments": {"days": 3}}"#, r#""get_weather{'days':3}" [call-shape]"#),
        (r#"{"name": "functions.list-all", "arguments": {}}"#, r#""list-all{}" [call-shape]"#),
        (r#"{"tool": "get_weather", "name": "list-all", "arguments": {}}"#, r#""" []"#),
        (r#"{"name": "get_weather", "arguments": "{\"days\": 3}"}"#, r#""get_weather{'days':3}" [double-encoding]"#),
        (r#"{"name": "get_weather", "arguments": "\"{\\\"days\\\": 3}\""}"#, r#""get_weather{'days':3}" [double-encoding]"#),
        (
            r#"{"type": "function", "function": {"name": "get_weather", "arguments": "{\"days\": 3}"}}"#,
            r#""get_weather{'days':3}" [call-shape]"#,
        ),
        (r#"{"tool_calls": [{"function": {"name": "list-all"}}]}"#, r#""list-all{}" [call-shape no-arguments]"#),
        (
            r#"[{"name": "list-all", "arguments": {}}, {"name": "get_weather", "arguments": {"days": 1}}]"#,
            r#""list-all{} get_weather{'days':1}" []"#,
        ),
        ("{\"name\": \"list-all\", \"arguments\": null}", r#""list-all{}" [no-arguments]"#),
        ("```json\n{\"name\": \"list-all\", \"arguments\": {}}\n```", r#""list-all{}" [code-fence]"#),
        (
            "I will look.\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ghent\",}}",
            r#""get_weather{'city':'Ghent'}" [surrounding-prose trailing-comma]"#,
        ),
        (
            "{\"name\": \"list-all\", \"arguments\": {}}; {\"name\": \"get_weather\", \"arguments\": {\"days\": 1}}",
            r#""list-all{} get_weather{'days':1}" []"#,
        ),
        (
            "{\"name\": \"list-all\", \"arguments\": {}}\n{\"name\": \"list-all\", \"arguments\": {}}",
            r#""list-all{}" [repeated-object]"#,
        ),
        (r#"{"name": "get_weather", "arguments": {"city": "Ghent"}"#, r#""get_weather{'city':'Ghent'}" [lost-brace]"#),
        (r#"{"name": "get_weather", "arguments": {"city": "Ghent}}"#, "Broken"),
        ("You could say {\"name\": \"list-all\", \"arguments\": {}} to list them.", "Ambiguous"),
        ("I would call get_weather with city Ghent.", r#""" []"#),
        ("get_weather: city = Ghent", r#""" []"#),
        (r#"{"name": "rm", "arguments": {}}"#, "NotOffered"),
        (r#"{"name": "Ghent", "people": 265000}"#, r#""" []"#),
        (r#"{"name": "get_weather"}"#, r#""" []"#),
        (r#"{"city": "Ghent"}"#, r#""" []"#),
        ("Here: {\"city\": \"Ghent\", oops}", r#""" []"#),
        (r#"{"name": "get_weather", "arguments": {"days": 1}, "parameters": {"days": 2}}"#, "Ambiguous"),
        (r#"{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}"#, "Ambiguous"),
        (r#"{"name": "get_weather", "arguments": "Ghent"}"#, "Broken"),
        (r#"[{"name": "list-all", "arguments": {}}, 7]"#, "Ambiguous"),
        ("{\"name\": \"list-all\", \"arguments\": {}}\n{\"a\": 1}", "Ambiguous"),
        ("<think>{\"name\": \"list-all\", \"arguments\": {}}</think>It is sunny.", r#""" []"#),
        ("<think>I call {\"name\": \"list-all\", \"arguments\": {}}", "Unended"),
    ]);
}

#[test]
fn one_call_is_no_list_of_them() {
    let told = |value: Value| {
        let read = super::call(&value, &tools()).map_err(|refused| refused.why)?;
        Ok(read.map(|read| (read.value.name, Value::Object(read.value.arguments), read.repairs)))
    };
    let weather = json!({"name": "get_weather", "arguments": "{\"days\": 3}"});
    let read = |repair| Ok(Some(("get_weather".to_owned(), json!({"days": 3}), vec![repair])));
    assert_eq!(told(json!([weather])), read(Repair::DoubleEncoding));
    assert_eq!(told(json!({"tool_calls": [{"type": "function", "function": weather}]})), read(Repair::CallShape));
    assert_eq!(told(json!([weather, weather])), Err(Why::Ambiguous));
    assert_eq!(told(json!({"name": "functions.other", "arguments": {}})), Err(Why::NotOffered));
    assert_eq!(told(json!({"days": 3})), Ok(None));
}

#[test]
fn calls_between_tags() {
    check_calls(&[
        (
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\": 3}}\n</tool_call>",
            r#""get_weather{'days':3}" [tagged-call]"#,
        ),
        (
            "<think>a</think>\nI look.\n<tool_call>{\"name\": \"list-all\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"days\": 3}}</tool_call>",
            r#""list-all{} get_weather{'days':3}" [reasoning surrounding-prose tagged-call]"#,
        ),
        (
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"</tool_call>\"}}</tool_call>",
            r#""get_weather{'city':'</tool_call>'}" [tagged-call]"#,
        ),
        ("<tool_call>{\"name\": \"list-all\", \"arguments\": {}}", r#""list-all{}" [tagged-call lost-tag]"#),
        ("<tool_call>{\"name\": \"list-all\", \"arguments\": {}</tool_call>", r#""list-all{}" [lost-brace tagged-call]"#),
        ("<tool_call>{\"name\": \"list-all\"}</tool_call>", r#""list-all{}" [tagged-call no-arguments]"#),
        ("<tool_call>list them all</tool_call>", "Broken"),
        ("<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>", "NotOffered"),
        ("Calls stand between `<tool_call>` and `</tool_call>`.", r#""" []"#),
        (
            "<|python_tag|>{\"name\": \"list-all\", \"parameters\": {}}<|eom_id|>",
            r#""list-all{}" [end-token tagged-call call-shape]"#,
        ),
        ("<|python_tag|>get_weather.call(city=\"Ghent\")", r#""get_weather{'city':'Ghent'}" [tagged-call pythonic-call]"#),
        ("[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"days\": 3}}]", r#""get_weather{'days':3}" [tagged-call]"#),
        ("[TOOL_CALLS]get_weather[ARGS]{\"days\": 3}</s>", r#""get_weather{'days':3}" [end-token tagged-call]"#),
        ("<function=get_weather>{\"city\": \"Ghent\"}</function>", r#""get_weather{'city':'Ghent'}" [tagged-call]"#),
        ("<function=get_weather>{\"city\": \"Ghent\"}", r#""get_weather{'city':'Ghent'}" [tagged-call lost-tag]"#),
        (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>",
            r#""get_weather{'city':'12','days':12}" [tagged-call]"#,
        ),
        (
            "<function_calls>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">a < b</parameter>\n<parameter name=\"tags\">[\"x\"]</parameter>\n</invoke>\n</function_calls>",
            r#""get_weather{'city':'a < b','tags':['x']}" [tagged-call]"#,
        ),
        ("<invoke name=\"get_weather\"><parameter name=\"any\">12</parameter></invoke>", "Ambiguous"),
        (
            "<invoke name=\"get_weather\"><parameter name=\"any\">twelve</parameter></invoke>",
            r#""get_weather{'any':'twelve'}" [tagged-call]"#,
        ),
        ("<invoke name=\"get_weather\"><parameter name=\"days\">soon</parameter></invoke>", "Broken"),
        ("<invoke name=\"list-all\"></invoke>", r#""list-all{}" [tagged-call no-arguments]"#),
        ("```tool_code\nget_weather(city='Ghent')\n```", r#""get_weather{'city':'Ghent'}" [tagged-call pythonic-call]"#),
        ("```tool_code\nprint(default_api.get_weather(days=3))\n```", r#""get_weather{'days':3}" [tagged-call pythonic-call]"#),
        ("<|tool_call_start|>[get_weather(days=3)]<|tool_call_end|>", r#""get_weather{'days':3}" [tagged-call pythonic-call]"#),
        (
            "```xml\n<tool_call>{\"name\": \"list-all\", \"arguments\": {}}</tool_call>\n```",
            r#""list-all{}" [code-fence tagged-call]"#,
        ),
    ]);
    let space = "antml:".to_owned();
    let reply =
        format!("<{space}invoke name=\"get_weather\"><{space}parameter name=\"days\">3</{space}parameter></{space}invoke>");
    let outer = format!("<{space}function_calls>{reply}</{space}function_calls>");
    check_calls(&[(outer.as_str(), r#""get_weather{'days':3}" [tagged-call]"#)]);
}

#[test]
fn calls_as_in_a_program_are_the_whole_reply() {
    check_calls(&[
        ("get_weather(city=\"Ghent\", days=3)", r#""get_weather{'city':'Ghent','days':3}" [pythonic-call]"#),
        ("[get_weather(city=\"Ghent\"), list-all()]", r#""get_weather{'city':'Ghent'} list-all{}" [pythonic-call]"#),
        (
            "get_weather(tags=[\"a\", {\"b\": True}])\nlist-all()",
            r#""get_weather{'tags':['a',{'b':true}]} list-all{}" [pythonic-call]"#,
        ),
        ("Call get_weather(city=\"Ghent\")", r#""" []"#),
        ("get_weather(city=\"Ghent\") is what I would call", r#""" []"#),
        ("get_weather(\"Ghent\")", r#""" []"#),
        ("print_weather(city=\"Ghent\")", r#""" []"#),
        ("```python\nget_weather(city=\"Ghent\")\n```", r#""" []"#),
        ("get_weather(city=Ghent)", r#""" []"#),
    ]);
}

#[test]
fn arguments_are_an_object_or_a_text_of_one() {
    for (written, told_as, expected) in [
        (json!({"a": 1}), Encoding::Text, r#"{"a":1} []"#),
        (json!("{\"a\": 1}"), Encoding::Text, r#"{"a":1} []"#),
        (json!("{\"a\": 1}"), Encoding::Object, r#"{"a":1} [double-encoding]"#),
        (json!("\"{\\\"a\\\": 1}\""), Encoding::Text, r#"{"a":1} [double-encoding]"#),
        (json!("  "), Encoding::Text, "{} []"),
        (Value::Null, Encoding::Text, "{} [no-arguments]"),
        (json!("{'a': 1,}"), Encoding::Text, r#"{"a":1} [trailing-comma single-quotes]"#),
        (json!("{\"a\": \"b\""), Encoding::Text, r#"{"a":"b"} [lost-brace]"#),
        (json!("run it"), Encoding::Text, "Broken"),
        (json!("Sure: {\"a\": 1}"), Encoding::Text, "Broken"),
        (json!("{\"a\": 1}{\"b\": 1}"), Encoding::Text, "Broken"),
        (json!([1]), Encoding::Text, "Broken"),
        (json!("7"), Encoding::Text, "Broken"),
    ] {
        assert_eq!(told(arguments(&written, told_as)), expected, "{written}");
    }
}

/// Numbers that are the same in every test run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }

    fn text(&mut self) -> String {
        const PIECES: [&str; 20] = [
            "a",
            "é",
            " ",
            "\n",
            "\"",
            "'",
            "\\",
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "```",
            "<think>",
            "</think>",
            "<tool_call>",
            "//",
            "😀",
            "True",
        ];
        (0..self.below(6)).map(|_| PIECES[self.below(PIECES.len())]).collect()
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth > 3 { 5 } else { 7 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(1 << 50) as i64 - (1 << 49)),
            3 => json!(self.below(1 << 40) as f64 / 1024.0),
            4 => json!(self.text()),
            5 => Value::Array((0..self.below(4)).map(|_| self.value(depth + 1)).collect()),
            _ => Value::Object(self.object(depth)),
        }
    }

    fn object(&mut self, depth: usize) -> Map<String, Value> {
        (0..self.below(4)).map(|i| (format!("{i}{}", self.text()), self.value(depth + 1))).collect()
    }
}

#[test]
fn intact_json_comes_back_exactly_whatever_stands_around_it() {
    let mut dice = Dice(20_261_130);
    for round in 0..3000 {
        let value = Value::Object(dice.object(0));
        let written = if round % 2 == 0 { value.to_string() } else { serde_json::to_string_pretty(&value).unwrap() };
        assert_eq!(json(&written), Ok(Reading { value: value.clone(), repairs: vec![] }), "{written}");
        for (before, after, repairs) in [
            ("<think>{\"no\": </think>", "", vec![Repair::Reasoning]),
            ("so { maybe [ this?</think>\n", "", vec![Repair::Reasoning]),
            ("```json\n", "\n```", vec![Repair::CodeFence]),
            ("Here you are:\n", "\nDone [1].", vec![Repair::SurroundingProse]),
            ("<think></think>Well:\n```\n", "\n```\nSo.", vec![Repair::Reasoning, Repair::CodeFence, Repair::SurroundingProse]),
            ("\u{feff}  ", "\n<|im_end|>", vec![Repair::EndToken]),
        ] {
            let reply = format!("{before}{written}{after}");
            assert_eq!(json(&reply), Ok(Reading { value: value.clone(), repairs }), "{reply}");
        }
        let twice = Value::String(written.clone()).to_string();
        assert_eq!(json(&twice), Ok(Reading { value: value.clone(), repairs: vec![Repair::DoubleEncoding] }), "{twice}");
        let call = json!({"name": "list-all", "arguments": value});
        let tagged = format!("<tool_call>\n{call}\n</tool_call>");
        let read = calls(&tagged, &tools()).unwrap();
        assert_eq!(
            (Value::Object(read.value[0].arguments.clone()), read.repairs),
            (value.clone(), vec![Repair::TaggedCall]),
            "{tagged}"
        );
        assert_eq!(calls(&call.to_string(), &tools()).unwrap().repairs, []);
    }
}

#[test]
fn a_text_cut_anywhere_is_refused_or_lacks_closing_brackets_alone() {
    let mut dice = Dice(7);
    let mut repaired = 0;
    for _ in 0..1500 {
        let written = Value::Object(dice.object(0)).to_string();
        let at = dice.below(written.len());
        let Some(cut) = written.get(..at) else { continue };
        let Ok(read) = json(cut) else { continue };
        let ends = ["}", "]}", "}}"].iter().filter_map(|end| serde_json::from_str(&format!("{cut}{end}")).ok());
        let whole: Vec<Value> = ends.collect();
        assert_eq!((vec![read.value], read.repairs), (whole, vec![Repair::LostBrace]), "{cut}");
        repaired += 1;
    }
    assert!(repaired > 50);
}

#[test]
fn nonsense_ends_soon_and_never_panics() {
    let mut dice = Dice(99);
    for _ in 0..4000 {
        let nonsense: String = (0..dice.below(12)).map(|_| dice.text()).collect();
        json(&nonsense).ok();
        assert!(calls(&nonsense, &tools()).map_or(true, |read| read.value.is_empty()), "{nonsense}");
    }
    // A debug build is some thirty times as slow as what is handed out, and other tests run beside this one.
    let limit = Duration::from_secs(20);
    for piece in [
        "{",
        "[",
        "{\"",
        "{'",
        "{\"a\":",
        "[[1,",
        "{//",
        "{/*",
        "[\"",
        "<",
        "<think>",
        "</think>",
        "<tool_call>",
        "```",
        "`",
        "{\\\"",
        "[{\"a\":'",
        "\\",
        "{a:",
        "f(x=",
        "[f(",
        "<function=",
        "<invoke name=\"",
        "{\"a\":{}}",
        "<tool_call>{",
        "◁think▷",
        "{#",
        "{'a\":",
        "[1,2,3,",
        "\"",
        "{a:1}</think>",
    ] {
        let length = match piece {
            "{a:1}</think>" => 1 << 22,
            "{" | "[" | "{'" => 1 << 20,
            _ => 1 << 17,
        };
        let reply = piece.repeat(length / piece.len());
        let started = Instant::now();
        json(&reply).ok();
        calls(&reply, &tools()).ok();
        assert!(started.elapsed() < limit, "`{piece}` took {:?}", started.elapsed());
    }
}

#[test]
fn words_are_those_of_the_wire() {
    for repair in Repair::ALL {
        assert_eq!(json!(repair), json!(repair.as_str()));
    }
    assert!(Repair::ALL.is_sorted() && json!(Why::NotOffered) == "not-offered");
}

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::schema::Schema;

fn shown(schema: &Value, provider: Provider) -> View {
    let view = view(schema, provider).unwrap();
    Schema::compile(&view.schema).unwrap_or_else(|e| panic!("{provider}: {e}: {}", view.schema));
    assert_keeps_rules(&view.schema, provider, true);
    view
}

fn changes(view: &View) -> BTreeSet<String> {
    view.alterations.iter().map(|a| a.change.name()).collect()
}

/// The rules of the providers, checked on the outcome and apart from the code that makes it.
fn assert_keeps_rules(schema: &Value, provider: Provider, root: bool) {
    let text = schema.to_string();
    assert!(!text.contains("\"$ref\""), "{provider}: {text}");
    if root {
        assert_eq!(schema["type"], "object", "{provider}: {text}");
        assert!(schema["properties"].is_object(), "{provider}: {text}");
        assert!(["anyOf", "oneOf", "allOf"].iter().all(|k| schema.get(k).is_none()), "{provider}: {text}");
    }
    let properties = schema["properties"].as_object();
    match provider {
        Provider::OpenAiStrict if schema["properties"].is_object() => {
            assert_eq!(schema["additionalProperties"], false, "{text}");
            let required = crate::schema::required(schema);
            assert!(properties.unwrap().keys().eq(required.iter()), "{text}");
        }
        Provider::Gemini => {
            assert!(schema["type"].is_string() != schema["anyOf"].is_array(), "{text}");
            assert!(schema["type"] != "array" || schema["items"].is_object(), "{text}");
            assert!(root || schema["type"] != "object" || !properties.unwrap().is_empty(), "{text}");
            assert!(schema["enum"].as_array().is_none_or(|e| e.iter().all(Value::is_string)), "{text}");
        }
        Provider::Anthropic => {
            let fits = |name: &String| name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
            assert!(properties.is_none_or(|p| p.keys().all(fits)), "{text}");
        }
        _ => {}
    }
    let below = schema["anyOf"].as_array().into_iter().flatten().chain(properties.into_iter().flat_map(|p| p.values()));
    below.chain(schema.get("items")).for_each(|s| assert_keeps_rules(s, provider, false));
}

/// Case U5: valid tools that providers refuse, with what is altered for OpenAI strict and Gemini.
#[test]
fn twelve_hostile_tools_are_all_shown() {
    let of = |property: Value| json!({"type": "object", "properties": {"v": property}, "required": ["v"]});
    let many: serde_json::Map<String, Value> = (0..200).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    let cases = [
        (json!({"type": "object"}), "added-properties", "added-properties"),
        (json!({}), "added-type", "added-type"),
        (Value::Null, "root-not-object", "root-not-object"),
        (of(json!({"type": "array"})), "added-items", "added-items"),
        (of(json!({"type": ["array", "null"], "items": {"type": ["object", "null"]}})), "object-as-text", "nullable"),
        (of(json!(true)), "boolean-schema", "boolean-schema"),
        (of(json!({"anyOf": [{"type": "string"}, {"type": "null"}]})), "closed-object", "nullable"),
        (of(json!({"type": "string", "format": "uri"})), "removed-keyword format", "removed-keyword format"),
        (of(json!({"type": "object", "additionalProperties": {"type": "number"}})), "object-as-text", "object-as-text"),
        (json!({"type": "object", "properties": {"$schema": {"type": "string"}}}), "made-required-nullable", ""),
        (json!({"type": "object", "properties": {}, "required": ["gone"]}), "added-property", "added-property"),
        (json!({"type": "object", "properties": many}), "made-required-nullable", ""),
    ];
    for (schema, strict, gemini) in cases {
        for provider in Provider::ALL {
            let view = shown(&schema, provider);
            let want = match provider {
                Provider::OpenAiStrict => strict,
                Provider::Gemini => gemini,
                _ => "",
            };
            let found = changes(&view);
            assert!(want.is_empty() || found.contains(want), "{provider}: {schema} has {found:?}");
            assert_eq!(view, super::view(&schema, provider).unwrap(), "the same every time");
        }
    }
}

#[test]
fn a_property_name_that_anthropic_refuses_is_renamed_and_restored() {
    let schema =
        json!({"type":"object","properties":{"$schema":{"type":"string"},"a.b":{"type":"string"}},"required":["$schema"]});
    let view = shown(&schema, Provider::Anthropic);
    let name = view.schema["required"][0].as_str().unwrap().to_owned();
    assert_ne!(name, "$schema");
    let mut given = json!({"a.b": "x"});
    given[&name] = json!("y");
    assert_eq!(view.restore(given), json!({"a.b": "x", "$schema": "y"}));
}

/// Case U4: mutual recursion through `allOf`, a pointer into `properties`, the root in itself.
#[test]
fn recursion_ends_in_a_finite_view() {
    let mutual = json!({"type":"object","properties":{"root":{"$ref":"#/$defs/N"}},
        "$defs":{"N":{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#/$defs/N"}}},
                      "allOf":[{"$ref":"#/$defs/M"}]},"M":{"allOf":[{"$ref":"#/$defs/N"}]}}});
    let pointer = json!({"type":"object","properties":{"root":{"type":"array","items":{"type":"object","properties":{
        "next":{"$ref":"#/properties/root/items"}}}}}});
    let itself = json!({"type":"object","properties":{"me":{"$ref":"#"}}});
    let chain = json!({"type":"object","properties":{"a":{"$ref":"#/properties/b"},"b":{"$ref":"#/properties/a"}}});
    for schema in [mutual, pointer, itself, chain] {
        for provider in Provider::ALL {
            let view = shown(&schema, provider);
            assert!(changes(&view).contains("cut-recursion"), "{provider}: {:?}", view.alterations);
            assert!(view.schema.to_string().len() < 2_000, "{}", view.schema);
        }
    }
}

#[test]
fn a_remote_reference_takes_one_tool_out_and_a_dangling_one_none() {
    let remote = json!({"type":"object","properties":{"a":{"$ref":"https://example.org/schema.json"}}});
    let dangling = json!({"type":"object","properties":{"a":{"$ref":"#/components/schemas/A"}}});
    for provider in Provider::ALL {
        let error = view(&remote, provider).unwrap_err();
        assert!(matches!(error.reason, Reason::RemoteRef(_)), "{error}");
        assert!(changes(&shown(&dangling, provider)).contains("dangling-ref"));
    }
}

#[test]
fn deep_and_wide_schemas_are_bounded() {
    let deep = (0..300).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    let deep = json!({"type": "object", "properties": {"v": deep}});
    let mut defs = json!({"d0": {"type": "string"}});
    for i in 1..40 {
        let half = json!({"$ref": format!("#/$defs/d{}", i - 1)});
        defs[format!("d{i}")] = json!({"anyOf": [half, half]});
    }
    let wide = json!({"type": "object", "properties": {"v": {"$ref": "#/$defs/d39"}}, "$defs": defs});
    for provider in Provider::ALL {
        assert!(changes(&shown(&deep, provider)).contains("cut-depth"), "{provider}");
        assert!(matches!(view(&wide, provider).unwrap_err().reason, Reason::TooManyNodes(_)), "{provider}");
    }
}

/// Arguments made under a view become what the tool itself takes.
#[test]
fn arguments_find_their_way_back() {
    let schema = json!({"type":"object","required":["n"],"properties":{
        "n":{"type":"integer","enum":[1,2]},
        "note":{"type":"string"},
        "may":{"type":["string","null"]},
        "map":{"type":"object","additionalProperties":{"type":"number"}},
        "list":{"type":["array","null"],"items":{"type":"object","properties":{"x":{"type":"string"}}}},
        "either":{"type":["string","object"],"properties":{"y":{"type":"integer"}},"required":["y"]}}});
    let own = Schema::compile(&schema).unwrap();
    let strict = shown(&schema, Provider::OpenAiStrict);
    let given = json!({"n":1,"note":null,"may":null,"map":"{\"a\":1}","list":[{"x":null}],"either":{"y":3}});
    assert!(Schema::compile(&strict.schema).unwrap().accepts(&given), "{}", strict.schema);
    let back = strict.restore(given);
    assert_eq!(back, json!({"n":1,"may":null,"map":{"a":1},"list":[{}],"either":{"y":3}}));
    assert!(own.accepts(&back));
    let gemini = shown(&schema, Provider::Gemini);
    let back = gemini.restore(json!({"n":"2","map":"{\"a\":1}","list":[{"x":"z"}]}));
    assert_eq!(back, json!({"n":2,"map":{"a":1},"list":[{"x":"z"}]}));
    assert!(own.accepts(&back));
}

#[test]
fn invalid_keywords_go_and_a_choice_at_the_root_becomes_properties() {
    let schema = json!({"type":"object","properties":{
        "a":{"type":"any"},"b":{"type":"number","exclusiveMinimum":true},"c":{"type":"array","items":[{"type":"string"}]}},
        "oneOf":[{"properties":{"k":{"const":"x"}},"required":["k"]},{"properties":{"k":{"const":"y"}},"required":["k"]}]});
    assert!(Schema::compile(&schema).is_err());
    for provider in Provider::ALL {
        let view = shown(&schema, provider);
        assert_eq!(view.schema["properties"]["k"]["enum"], json!(["x", "y"]), "{provider}");
        assert!(changes(&view).contains("merged-root-choice"));
    }
}

//! How much the samples differ: numbers for the summary of the stage. Pure functions of samples and tools.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use mcpmill_core::{
    canonical::sha256_hex,
    edge::cosine,
    id::ToolId,
    naming::alias,
    record::{FunctionCall, Message, Sample, SampleKind, Tool},
    schema::required,
    toolbox::Toolbox,
};
use serde::Serialize;
use serde_json::Value;

use super::{forms::plain, values::is_unspaced};

/// Samples whose word pairs are counted; rows come by id, so that these are a draw of all.
const COUNTED: u64 = 20_000;
/// Instructions whose vectors are compared.
const EMBEDDED: usize = 200;
/// Tools that are told by themselves, the least covered first.
const TOLD: usize = 100;
/// From so many characters a text is a long one.
const LONG: usize = 100;

/// Of so many, so many were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Were seen.
    pub seen: u64,
    /// Could have been.
    pub of: u64,
}

impl Seen {
    fn count(&mut self, seen: bool) {
        self.of += 1;
        self.seen += u64::from(seen);
    }

    fn add(&mut self, other: Self) {
        self.seen += other.seen;
        self.of += other.of;
    }

    fn share(self) -> f64 {
        if self.of == 0 { 1.0 } else { self.seen as f64 / self.of as f64 }
    }
}

/// Which of the parameters of called tools, and which of their values, appear in calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Coverage {
    /// Optional parameters.
    pub optional: Seen,
    /// Words of lists.
    pub words: Seen,
    /// Values at the edge, by kind: parameters that could take one, and those that did.
    pub edges: BTreeMap<&'static str, Seen>,
}

/// What is told of the samples of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diversity {
    /// Samples.
    pub samples: u64,
    /// By kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// By language.
    pub languages: BTreeMap<String, u64>,
    /// Different words, pairs and triples of instructions, each as a share of all there are.
    pub distinct: [f64; 3],
    /// Words of an instruction: least, first quartile, median, third quartile, most.
    pub words: [u64; 5],
    /// Mean cosine distance of two instructions; absent without an embedding model.
    pub spread: Option<f64>,
    /// Of all called tools together.
    pub parameters: Coverage,
    /// Of single tools, by id, the least covered first cut.
    pub tools: BTreeMap<ToolId, Coverage>,
}

/// Counts samples one by one.
#[derive(Debug, Default)]
pub struct Counting {
    samples: u64,
    kinds: BTreeMap<&'static str, u64>,
    languages: BTreeMap<String, u64>,
    grams: [HashSet<u64>; 3],
    grams_of: [u64; 3],
    lengths: BTreeMap<u64, u64>,
    used: BTreeMap<ToolId, Used>,
    /// The instructions with the smallest hashes.
    drawn: BTreeMap<String, String>,
}

/// What calls of one tool held.
#[derive(Debug, Default)]
struct Used {
    /// Parameters.
    names: BTreeSet<String>,
    /// Parameters and a word of their list.
    words: BTreeSet<(String, String)>,
    /// Parameters and the edge their value lay at.
    edges: BTreeSet<(String, &'static str)>,
}

impl Counting {
    /// Counts a sample; `toolbox` has its tools.
    pub fn add(&mut self, sample: &Sample, toolbox: &Toolbox) {
        self.samples += 1;
        *self.kinds.entry(sample.kind.as_str()).or_default() += 1;
        *self.languages.entry(sample.language.clone()).or_default() += 1;
        let words = tokens(&sample.instruction);
        *self.lengths.entry(words.len() as u64).or_default() += 1;
        if self.samples <= COUNTED {
            for (n, (grams, of)) in self.grams.iter_mut().zip(&mut self.grams_of).enumerate() {
                for gram in words.windows(n + 1) {
                    grams.insert(hash(gram));
                    *of += 1;
                }
            }
        }
        self.drawn.insert(sha256_hex(format!("spread\n{}", sample.id)), sample.instruction.clone());
        while self.drawn.len() > EMBEDDED {
            self.drawn.pop_last();
        }
        // What a recovery gets wrong first is nobody's coverage.
        let wrong = usize::from(sample.kind == SampleKind::Recover);
        for call in sample.messages.iter().flat_map(Message::tool_calls).skip(wrong) {
            let named = |tool: &&Tool| alias(&tool.name) == call.function.name;
            if let Some(tool) = sample.tool_ids.iter().filter_map(|id| toolbox.get(id)).find(named) {
                self.used.entry(tool.id.clone()).or_default().add(&call.function, &tool.schema());
            }
        }
    }

    /// The instructions to be embedded, a draw that belongs to the samples.
    pub fn drawn(&self) -> impl Iterator<Item = &str> {
        self.drawn.values().map(String::as_str)
    }

    /// The numbers; `vectors` are of [`Counting::drawn`].
    pub fn finish(&self, toolbox: &Toolbox, vectors: &[Vec<f32>]) -> Diversity {
        let mut parameters = Coverage::default();
        let mut tools: Vec<(ToolId, Coverage)> = Vec::new();
        for (id, used) in &self.used {
            let Some(tool) = toolbox.get(id) else { continue };
            let own = used.coverage(&tool.schema());
            parameters.optional.add(own.optional);
            parameters.words.add(own.words);
            own.edges.iter().for_each(|(edge, seen)| parameters.edges.entry(edge).or_default().add(*seen));
            tools.push((id.clone(), own));
        }
        let covered = |c: &Coverage| c.optional.share() + c.words.share();
        tools.sort_by(|(a, x), (b, y)| covered(x).total_cmp(&covered(y)).then(a.cmp(b)));
        tools.truncate(TOLD);
        let distinct = |n: usize| round(self.grams[n].len() as f64 / self.grams_of[n].max(1) as f64);
        Diversity {
            samples: self.samples,
            kinds: self.kinds.clone(),
            languages: self.languages.clone(),
            distinct: [distinct(0), distinct(1), distinct(2)],
            words: [0.0, 0.25, 0.5, 0.75, 1.0].map(|place| quantile(&self.lengths, place)),
            spread: spread(vectors),
            parameters,
            tools: tools.into_iter().collect(),
        }
    }
}

impl Diversity {
    /// One line for people.
    pub fn line(&self) -> String {
        let [one, two, three] = self.distinct;
        let [least, _, median, _, most] = self.words;
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let spread = self.spread.map(|spread| format!(", spread {spread:.2}")).unwrap_or_default();
        let Coverage { optional, words, .. } = &self.parameters;
        format!(
            "diversity: {}; distinct-1/2/3 {one:.2}/{two:.2}/{three:.2}{spread}; {least} to {most} words, {median} in the middle; \
             {} of {} optional parameters and {} of {} words of lists appear",
            kinds.join(", "),
            optional.seen,
            optional.of,
            words.seen,
            words.of
        )
    }
}

impl Used {
    fn add(&mut self, call: &FunctionCall, schema: &Value) {
        for (name, value) in &call.arguments {
            self.names.insert(name.clone());
            let property = &*plain(&schema["properties"][name]);
            if property["enum"].as_array().is_some_and(|words| words.contains(value)) {
                self.words.insert((name.clone(), value.to_string()));
            }
            self.edges.extend(at_edges(value, property).map(|edge| (name.clone(), edge)));
        }
    }

    fn coverage(&self, schema: &Value) -> Coverage {
        let mut coverage = Coverage::default();
        let needed = required(schema);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let property = &*plain(property);
            if !needed.contains(name) {
                coverage.optional.count(self.names.contains(name));
            }
            for word in property["enum"].as_array().into_iter().flatten() {
                coverage.words.count(self.words.contains(&(name.clone(), word.to_string())));
            }
            for edge in edges(property) {
                coverage.edges.entry(edge).or_default().count(self.edges.contains(&(name.clone(), edge)));
            }
        }
        coverage
    }
}

/// The edges a parameter's value can lie at.
fn edges(property: &Value) -> Vec<&'static str> {
    if property["enum"].is_array() {
        return Vec::new();
    }
    let least = property["minimum"].as_f64();
    let zero = |edge: &f64| *edge == 0.0;
    match property["type"].as_str() {
        Some("array") => vec!["empty-list"],
        Some("string") => vec!["long-text"],
        Some("integer" | "number") => {
            let most = property["maximum"].as_f64();
            let mut all = Vec::new();
            all.extend(least.map(|_| "minimum"));
            all.extend(most.map(|_| "maximum"));
            all.extend((least.is_none_or(|l| l < 0.0)).then_some("negative"));
            let bound = least.as_ref().is_some_and(zero) || most.as_ref().is_some_and(zero);
            let allowed = least.is_none_or(|l| l < 0.0) && most.is_none_or(|m| m > 0.0);
            all.extend((bound || allowed).then_some("zero"));
            all
        }
        _ => Vec::new(),
    }
}

/// The edges a value lies at.
fn at_edges<'a>(value: &'a Value, property: &'a Value) -> impl Iterator<Item = &'static str> + 'a {
    edges(property).into_iter().filter(move |edge| match (*edge, value) {
        ("empty-list", Value::Array(items)) => items.is_empty(),
        ("long-text", Value::String(text)) => text.chars().count() >= LONG,
        ("minimum" | "maximum", Value::Number(number)) => number.as_f64() == property[*edge].as_f64(),
        ("negative", Value::Number(number)) => number.as_f64().is_some_and(|n| n < 0.0),
        ("zero", Value::Number(number)) => number.as_f64() == Some(0.0),
        _ => false,
    })
}

/// The words of a text in lower case; in scripts that put no space between words, its letters.
fn tokens(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut open = false;
    for c in text.chars() {
        match (c.is_alphanumeric(), is_unspaced(c)) {
            (true, true) => {
                out.push(c.to_string());
                open = false;
            }
            (true, false) => {
                if !open {
                    out.push(String::new());
                }
                open = true;
                out.last_mut().into_iter().for_each(|word| word.extend(c.to_lowercase()));
            }
            // An apostrophe inside a word is part of it.
            (false, _) => open = open && matches!(c, '\'' | '’'),
        }
    }
    out
}

fn hash(gram: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    gram.hash(&mut hasher);
    hasher.finish()
}

/// The length that `place` of all lie below, 0 to 1.
fn quantile(lengths: &BTreeMap<u64, u64>, place: f64) -> u64 {
    let all: u64 = lengths.values().sum();
    let wanted = (place * all.saturating_sub(1) as f64).round() as u64;
    let mut passed = 0;
    let found = lengths.iter().find(|(_, count)| {
        passed += **count;
        passed > wanted
    });
    found.map_or(0, |(length, _)| *length)
}

/// Mean cosine distance of all pairs, `None` for fewer than two vectors.
pub fn spread(vectors: &[Vec<f32>]) -> Option<f64> {
    let mut sum = 0.0;
    let mut pairs = 0_u64;
    for (i, a) in vectors.iter().enumerate() {
        for b in &vectors[..i] {
            sum += 1.0 - f64::from(cosine(a, b));
            pairs += 1;
        }
    }
    (pairs > 0).then(|| round(sum / pairs as f64))
}

/// Four digits: more would differ between processors and mean nothing.
fn round(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use mcpmill_core::record::{SampleKind, ToolCall};
    use serde_json::json;

    use super::*;
    use crate::card::tests::tool;

    fn forecast() -> Tool {
        tool(
            "forecast",
            "d",
            json!({"type": "object", "required": ["city", "days"], "properties": {
                "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"type": "string", "enum": ["c", "f"]}, "offset": {"type": "integer"}, "tags": {"type": "array"}}}),
        )
    }

    fn counted(calls: &[Value], words: &[&str]) -> (Counting, Toolbox) {
        let tool = forecast();
        let toolbox = Toolbox::new(vec![tool.clone()]);
        let mut counting = Counting::default();
        for (i, (arguments, text)) in calls.iter().zip(words).enumerate() {
            let mut sample = mcpmill_testkit::sample(&tool, text, "forecast", arguments);
            sample.id.0 = format!("smp_{i}");
            counting.add(&sample, &toolbox);
        }
        (counting, toolbox)
    }

    #[test]
    fn coverage_counts_what_appears_in_calls() {
        let calls = [
            json!({"city": "Oslo", "days": 9, "unit": "c"}),
            json!({"city": "x".repeat(100), "days": 3, "unit": "c", "tags": []}),
            json!({"city": "Oslo", "days": 3, "offset": -1, "unit": "kelvin"}),
        ];
        let (counting, toolbox) = counted(&calls, &["a", "b", "c"]);
        let found = counting.finish(&toolbox, &[]).parameters;
        assert_eq!(found.optional, Seen { seen: 3, of: 3 });
        assert_eq!(found.words, Seen { seen: 1, of: 2 }, "a word that is none of the list does not count");
        let edge = |name: &str| (found.edges[name].seen, found.edges[name].of);
        assert_eq!([edge("minimum"), edge("maximum"), edge("negative"), edge("zero")], [(0, 1), (1, 1), (1, 1), (0, 1)]);
        assert_eq!([edge("empty-list"), edge("long-text")], [(1, 1), (1, 1)]);
    }

    #[test]
    fn what_a_recovery_gets_wrong_covers_nothing() {
        let (tool, toolbox) = (forecast(), Toolbox::new(vec![forecast()]));
        let mut sample = mcpmill_testkit::sample(&tool, "a", "forecast", &json!({"city": "Oslo", "days": 9, "unit": "c"}));
        sample.kind = SampleKind::Recover;
        let call = FunctionCall { name: "forecast".into(), arguments: json!({"offset": 1}).as_object().unwrap().clone() };
        sample.messages.push(Message::call(ToolCall::new("call_2", call)));
        let mut counting = Counting::default();
        counting.add(&sample, &toolbox);
        let found = counting.finish(&toolbox, &[]);
        assert_eq!((found.parameters.optional.seen, found.parameters.words.seen), (1, 0));
        assert_eq!(found.kinds["recover"], 1);
    }

    #[test]
    fn distinct_words_lengths_and_spread() {
        let call = json!({"city": "Oslo", "days": 3});
        let calls = vec![call; 4];
        let (counting, toolbox) = counted(&calls, &["It's cold", "it's cold", "Warm today, and dry", "天气好"]);
        let found = counting.finish(&toolbox, &[vec![1.0, 0.0], vec![0.0, 1.0], vec![1.0, 0.0]]);
        assert_eq!(found.distinct, [round(9.0 / 11.0), round(6.0 / 7.0), 1.0]);
        assert_eq!(found.words, [2, 2, 3, 3, 4]);
        assert_eq!(found.spread, Some(round(2.0 / 3.0)));
        assert_eq!((counting.drawn().count(), found.samples), (4, 4));
        assert!(found.line().contains("4 single") && found.line().contains("0 of 3 optional"), "{}", found.line());
        assert_eq!(Counting::default().finish(&toolbox, &[]).words, [0; 5]);
    }

    #[test]
    fn the_draw_is_bounded_and_the_same_in_any_order() {
        let toolbox = Toolbox::default();
        let draw = |order: &mut dyn Iterator<Item = usize>| {
            let mut counting = Counting::default();
            for i in order {
                let mut sample = mcpmill_testkit::sample(&forecast(), &format!("number {i}"), "forecast", &json!({}));
                sample.id.0 = format!("smp_{i}");
                counting.add(&sample, &toolbox);
            }
            counting.drawn().map(str::to_owned).collect::<Vec<_>>()
        };
        let drawn = draw(&mut (0..500));
        assert_eq!(drawn.len(), EMBEDDED);
        assert_eq!(drawn, draw(&mut (0..500).rev()));
    }
}

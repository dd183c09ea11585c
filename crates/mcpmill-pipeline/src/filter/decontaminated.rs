//! `decontaminated`: no request repeats one of an evaluation set, by its words or by its meaning. By words it costs
//! nothing; without an embedding model that a threshold is known for, words alone decide, and the verdict says so.
//!
//! Words: requests have 10 to 30 of them, so runs of thirteen, as they are used for pages, would miss a request with one
//! word changed in its middle. Texts below 40 words are compared by their runs of three: the share of those of the
//! shorter one that the other has. Two requests to one tool that differ in their values share some ("the weather in …
//! tomorrow"); copies share nearly all. Longer texts repeat another where they share one run of thirteen words.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use mcpmill_core::{
    canonical::content_hash,
    edge::{EmbedError, RecordedEmbedder, cosine},
    json::of_text,
    record::Verdict,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{Bench, Case, Filter, Plant, of_model};
use crate::{ask::Meter, generate::values::is_unspaced};

/// Words of a run, and of the long one.
const SHORT: usize = 3;
const LONG: usize = 13;
/// Words from which a text is long.
const IS_LONG: usize = 40;
/// Words below which a text says too little to be told from others: only the same text repeats it.
const FEW: usize = 5;
/// Texts of evaluation sets that are compared with, and characters of one.
const MOST: usize = 200_000;
const READ: usize = 20_000;

/// Texts that an exam is given.
const EXAMPLES: usize = 24;

/// The texts of evaluation sets, ready to be compared with.
#[derive(Debug, Default)]
pub struct HeldOut {
    texts: Vec<Text>,
    /// Texts by their runs of three words, and by those of thirteen.
    short: HashMap<u64, Vec<u32>>,
    long: HashMap<u64, u32>,
    whole: HashMap<u64, u32>,
    /// What could not be read, by file and line.
    pub unread: Vec<String>,
}

#[derive(Debug)]
struct Text {
    /// The file and the line it stands in.
    place: String,
    text: String,
    words: usize,
    runs: usize,
}

impl HeldOut {
    /// Reads the texts of files: of `.jsonl` the requests of each line (`instruction`, `source_instruction`, `question` or
    /// the user's `messages`), of all others the whole text.
    pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut all = Self::default();
        for (path, text) in files {
            if !path.ends_with(".jsonl") {
                all.add(path.to_owned(), text);
                continue;
            }
            for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                let place = format!("{path}:{}", i + 1);
                let found = of_text(line).map(|row| requests(&row)).unwrap_or_default();
                if found.is_empty() {
                    all.unread.push(place.clone());
                }
                found.iter().for_each(|text| all.add(place.clone(), text));
            }
        }
        all
    }

    /// What is wrong with the files, when something is.
    pub fn fault(&self) -> Option<String> {
        let first = self.unread.first()?;
        let count = self.unread.len();
        Some(format!(
            "{count} lines of evaluation sets hold no request, first `{first}`: want `instruction`, `question` or `messages`"
        ))
    }

    /// SHA-256 of all texts in their order.
    pub fn hash(&self) -> String {
        content_hash(&self.texts.iter().map(|text| text.text.as_str()).collect::<Vec<_>>())
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Some of its texts, for an exam; `None` where there are none.
    fn examples(&self) -> Option<Vec<String>> {
        let step = self.texts.len().div_ceil(EXAMPLES).max(1);
        let texts: Vec<String> = self.texts.iter().step_by(step).map(|text| text.text.clone()).collect();
        (!texts.is_empty()).then_some(texts)
    }

    fn add(&mut self, place: String, text: &str) {
        let Ok(at) = u32::try_from(self.texts.len()) else { return };
        let text = &text[..text.floor_char_boundary(READ)];
        let words = words(text);
        if words.is_empty() || self.texts.len() >= MOST {
            return;
        }
        let short = runs(&words, SHORT);
        if words.len() < IS_LONG {
            short.iter().for_each(|run| self.short.entry(*run).or_default().push(at));
        }
        for run in runs(&words, LONG) {
            self.long.entry(run).or_insert(at);
        }
        self.whole.entry(hash(&words)).or_insert(at);
        self.texts.push(Text { place, text: text.to_owned(), words: words.len(), runs: short.len() });
    }

    /// The text that `text` repeats most, with the share of runs they have in common.
    fn nearest(&self, text: &str) -> Option<(f64, &Text)> {
        let words = words(text);
        let of = |at: u32| self.texts.get(at as usize);
        if let Some(same) = self.whole.get(&hash(&words)).and_then(|at| of(*at)) {
            return Some((1.0, same));
        }
        if let Some(long) = runs(&words, LONG).iter().find_map(|run| self.long.get(run)).and_then(|at| of(*at))
            && words.len().max(long.words) >= IS_LONG
        {
            return Some((1.0, long));
        }
        let own = runs(&words, SHORT);
        let mut shared: HashMap<u32, usize> = HashMap::new();
        own.iter().filter_map(|run| self.short.get(run)).flatten().for_each(|at| *shared.entry(*at).or_default() += 1);
        let share = |(at, count): (u32, usize)| {
            let other = of(at).filter(|other| other.words >= FEW && words.len() >= FEW)?;
            Some((count as f64 / own.len().min(other.runs).max(1) as f64, other))
        };
        let mut best: Vec<(f64, &Text)> = shared.into_iter().filter_map(share).collect();
        best.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.place.cmp(&b.1.place)));
        best.into_iter().next()
    }
}

/// The requests of one row of an evaluation set.
fn requests(row: &Value) -> Vec<String> {
    let plain = ["instruction", "source_instruction", "question"].iter().filter_map(|name| row[*name].as_str());
    let mut found: Vec<String> = plain.map(str::to_owned).collect();
    let spoken = [&row["messages"], &row["question"]].into_iter().filter_map(Value::as_array).flatten();
    // BFCL nests the turns of a question once more.
    let flat = spoken.flat_map(|turn| turn.as_array().map_or_else(|| vec![turn], |turns| turns.iter().collect()));
    let user = flat.filter(|message| message["role"] == "user").filter_map(|message| message["content"].as_str());
    found.extend(user.map(str::to_owned));
    found
}

/// Words in lower case; of scripts without spaces every letter is one.
fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty());
    let of = |part: &str| match part.contains(is_unspaced) {
        true => part.chars().map(String::from).collect(),
        false => vec![part.to_lowercase()],
    };
    parts.flat_map(of).take(READ).collect()
}

fn hash(words: &[String]) -> u64 {
    // FNV-1a: the same on every machine.
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn runs(words: &[String], length: usize) -> HashSet<u64> {
    words.windows(length).map(hash).collect()
}

pub(super) struct Decontaminated {
    pub(super) name: String,
    pub(super) overlap: f64,
    pub(super) similarity: BTreeMap<String, f64>,
    pub(super) held_out: Arc<HeldOut>,
    pub(super) embedder: Result<RecordedEmbedder, String>,
    /// The vectors of the short texts, by their places in the list; made at the first row.
    pub(super) vectors: OnceCell<Vec<(usize, Vec<f32>)>>,
}

#[async_trait]
impl Filter for Decontaminated {
    fn name(&self) -> &str {
        &self.name
    }

    fn plants(&self) -> Vec<Plant> {
        self.held_out.examples().map(|texts| vec![Plant::Request(texts)]).unwrap_or_default()
    }

    fn sees_all(&self) -> bool {
        true
    }

    /// Many texts at once are embedded in a fraction of the time; what goes wrong here is told at the row.
    async fn prepare(&self, rows: &[&Case<'_>]) {
        let Ok(embedder) = &self.embedder else { return };
        if !self.held_out.is_empty() && of_model(&self.similarity, embedder.model()).is_some() {
            let requests: Vec<&str> = rows.iter().flat_map(|case| case.requests()).collect();
            embedder.embed_ahead(requests).await.ok();
        }
    }

    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        if self.held_out.is_empty() {
            return bench.keep("ok: there is no evaluation set");
        }
        let requests = case.requests();
        let mut nearest = requests.iter().filter_map(|text| self.held_out.nearest(text)).collect::<Vec<_>>();
        nearest.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (share, place) = nearest.first().map_or((0.0, ""), |(share, text)| (*share, text.place.as_str()));
        let share = (share * 1e4).round() / 1e4;
        let told = |verdict| Verdict { score: Some(share), threshold: Some(self.overlap), ..verdict };
        if share > self.overlap {
            let evidence = json!({ "by": "words", "text": place }).to_string();
            let verdict = bench.drop(format!("contaminated: it repeats `{place}` by its words"));
            return Verdict { evidence: Some(evidence), ..told(verdict) };
        }
        let embedder = match &self.embedder {
            Ok(embedder) => embedder,
            Err(why) => return told(bench.keep(format!("ok: by words only, no embedding model: {why}"))),
        };
        let Some(max) = of_model(&self.similarity, embedder.model()).copied() else {
            return told(bench.keep(format!("ok: by words only, no threshold for `{}`", embedder.model())));
        };
        match self.closest(embedder, &requests).await {
            Ok((cosine, place)) if cosine > max => {
                let evidence = json!({ "by": "meaning", "text": place, "model": embedder.model() }).to_string();
                let verdict = bench.drop(format!("contaminated: it repeats `{place}` by its meaning"));
                Verdict { score: Some(cosine), threshold: Some(max), evidence: Some(evidence), ..verdict }
            }
            Ok((cosine, _)) => {
                let evidence = json!({ "words": share, "meaning": cosine, "model": embedder.model() }).to_string();
                Verdict {
                    score: Some(cosine),
                    threshold: Some(max),
                    evidence: Some(evidence),
                    ..bench.keep("ok: it repeats none")
                }
            }
            Err(error) => {
                meter.unreachable.get_or_insert_with(|| error.to_string());
                bench.unjudged(error.to_string())
            }
        }
    }
}

impl Decontaminated {
    /// The text whose meaning is closest to one of the requests.
    async fn closest(&self, embedder: &RecordedEmbedder, requests: &[&str]) -> Result<(f64, &str), EmbedError> {
        let vectors = self.vectors.get_or_try_init(|| self.embed_all(embedder)).await?;
        let mut best = (0.0, "");
        for request in requests {
            let own = embedder.embed(request).await?;
            for (at, vector) in vectors {
                let near = (f64::from(cosine(&own, vector)) * 1e4).round() / 1e4;
                if near > best.0 {
                    best = (near, self.held_out.texts[*at].place.as_str());
                }
            }
        }
        Ok(best)
    }

    async fn embed_all(&self, embedder: &RecordedEmbedder) -> Result<Vec<(usize, Vec<f32>)>, EmbedError> {
        let short = || self.held_out.texts.iter().enumerate().filter(|(_, text)| text.words < IS_LONG);
        embedder.embed_ahead(short().map(|(_, text)| text.text.as_str())).await?;
        let mut all = Vec::new();
        for (at, text) in short() {
            all.push((at, embedder.embed(&text.text).await?));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> HeldOut {
        let sets = r#"{"instruction": "What will the weather in Bergamo be over the next three days?"}
{"question": [[{"role": "user", "content": "Convert half past four in Oslo to the time in Tokyo for my call"}]]}
{"messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Roll dice"}]}
{"source_instruction": "把这个文件翻译成英文并保存到文档文件夹"}
no row"#;
        let task = "Read all of the files in the folder that was handed over to you, count how often every word stands in them, \
                    and write the twenty most common ones into a new file beside them, one in a line, the most common one first of all.";
        HeldOut::read([("eval/sets/a.jsonl", sets), ("eval/tasks/b/task.md", task)])
    }

    #[test]
    fn copies_are_found_and_other_requests_to_the_same_tool_are_not() {
        let held = held();
        assert_eq!((held.len(), &held.unread[..]), (5, &["eval/sets/a.jsonl:5".to_owned()][..]));
        let share = |text: &str| held.nearest(text).map_or(0.0, |(share, _)| share);
        for bad in [
            "What will the weather in Bergamo be over the next three days?",
            "what will the weather in BERGAMO be over the next three days, please",
            "Hello! What will the weather in Bergamo be over the next three days? Thanks.",
            "convert half past four in Oslo to the time in Tokyo",
            "Roll dice!",
            "请把这个文件翻译成英文并保存到文档文件夹",
            "Now do this: count how often every word stands in them, and write the twenty most common ones into a new file beside them",
        ] {
            assert!(share(bad) > 0.7, "{bad}: {}", share(bad));
        }
        for good in [
            "What will the weather in Lecco be like on the weekend?",
            "Convert nine in the morning in Lima to the time in Cairo",
            "Roll dice for me, three of six sides each",
            "把这张图片发给我的同事",
            "Read the file notes.md and count the words in it.",
        ] {
            assert!(share(good) < 0.7, "{good}: {}", share(good));
        }
    }
}

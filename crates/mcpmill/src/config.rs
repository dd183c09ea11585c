//! Settings: embedded default < nearest `mcpmill.toml` < `--set`. Unknown keys are errors.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use mcpmill_clients::chat::Api;
use mcpmill_core::{
    account::Price,
    edge::Mode,
    record::SampleKind,
    schema_view::Provider,
    secrets::{self, is_placeholder, is_secret_member},
};
use mcpmill_pipeline::{
    generate::{Kinds, Languages, Profile},
    policy::Changes,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{error::Failure, policies::ServerSettings, stage::Stage};

/// The commented default, embedded.
pub const DEFAULT: &str = include_str!("../mcpmill.toml");
/// The name looked for in the working folder and above it.
pub const FILE: &str = "mcpmill.toml";

/// All settings, resolved.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Installed servers, model files, the exchange store.
    pub cache_dir: PathBuf,
    /// One folder a run.
    pub runs_dir: PathBuf,
    /// Every reply from outside; empty for the one in the cache.
    pub exchange_store: PathBuf,
    /// How stored exchanges are used.
    pub mode: Mode,
    /// What a run may use.
    #[serde(default)]
    pub budget: Budget,
    /// Stage discover.
    pub discover: Discover,
    /// How hosts are asked, by discover and for remote servers.
    pub crawl: Crawl,
    /// Stage harvest.
    pub harvest: Harvest,
    /// Stage generate.
    pub generate: Generate,
    /// Both filter stages.
    pub filter: Filter,
    /// Stage rollout.
    pub rollout: Rollout,
    /// Stage export.
    pub export: Export,
    /// Files to use instead of a pinned download.
    pub assets: BTreeMap<String, PathBuf>,
    /// The embedding model.
    pub embedding: Embedding,
    /// Which model plays which role.
    pub roles: BTreeMap<String, String>,
    /// Variables of servers, and the variables that hold their values. What servers say is kept without
    /// these values, but for those of less than six bytes.
    pub secrets: BTreeMap<String, String>,
    /// The models.
    pub models: BTreeMap<String, Model>,
}

/// `[budget]`
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<f64>,
}

/// `[discover]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Discover {
    pub marketplaces: Vec<String>,
    pub incremental: bool,
    pub values: BTreeMap<String, String>,
}

/// `[crawl]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Crawl {
    pub contact: String,
    pub per_minute: u32,
    pub concurrency: usize,
    pub retries: usize,
    pub longest_pause_s: u64,
    pub allow_loopback: Vec<String>,
    pub proxy_env: String,
}

/// `[harvest]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Harvest {
    pub concurrency: usize,
    pub start_timeout_s: u64,
    pub call_timeout_s: u64,
    pub max_pages: usize,
    pub max_tools: usize,
    pub memory_mb: u64,
    pub install_at_once: usize,
    pub keep_installed: bool,
    pub remote: bool,
    pub probe_eras: bool,
    pub listed_tools: bool,
    pub python: String,
    /// Settings of single servers, by the package they run.
    pub servers: BTreeMap<String, ServerSettings>,
}

/// `[generate]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    pub samples: usize,
    pub per_tool: usize,
    pub per_call: usize,
    pub profile: ProfileChoice,
    pub evolve: bool,
    pub evolve_depth: usize,
    pub look: bool,
    pub look_calls: usize,
    pub concurrency: usize,
    pub max_failure_rate: f64,
    /// Shares of the kinds of conversation.
    pub kinds: Kinds,
    /// Shares of the languages.
    pub languages: Languages,
    /// What profile `small` leaves out.
    pub small: SmallProfile,
}

/// `[generate.small]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SmallProfile {
    /// Kinds it does not make.
    pub lacks: BTreeSet<SampleKind>,
    /// Languages it writes.
    pub languages: BTreeSet<String>,
}

/// A count as it is set, or where it is 0 what the embedded model can do of it, and what others can.
fn picked(set: usize, local: bool) -> usize {
    match (set, local) {
        (0, true) => 2,
        (0, false) => 5,
        (set, _) => set,
    }
}

impl Generate {
    /// Samples of one tool and kind: as they are set, or as many as the generator can make that differ. Five are the
    /// seeds that MCP-Flow has of a tool; the embedded model repeats itself before that.
    pub fn per_tool(&self, local: bool) -> usize {
        picked(self.per_tool, local)
    }

    /// Instructions asked for in one call, in the same way.
    pub fn per_call(&self, local: bool) -> usize {
        picked(self.per_call, local)
    }

    /// The deepest evolution.
    const DEEPEST: usize = 3;

    /// The shares of kinds and languages that a profile can do, and in words what is left out of what was asked for.
    ///
    /// # Errors
    /// A share, a language or the depth is none, or no kind is left.
    pub fn shares(&self, profile: Profile) -> Result<(Kinds, Languages, Option<String>), Failure> {
        let fail = |key: &str, fault: String| Failure::usage(format!("failed to read `generate.{key}`: {fault}"));
        self.kinds.fault().map_or(Ok(()), |fault| Err(fail("kinds", fault)))?;
        self.languages.fault().map_or(Ok(()), |fault| Err(fail("languages", fault)))?;
        if self.evolve_depth > Self::DEEPEST {
            return Err(fail("evolve_depth", format!("{} is deeper than {}", self.evolve_depth, Self::DEEPEST)));
        }
        if profile == Profile::Full {
            return Ok((self.kinds.clone(), self.languages.clone(), None));
        }
        let kinds = self.kinds.clone().without(&self.small.lacks);
        if let Some(fault) = kinds.fault() {
            let hint =
                "the kinds asked for are those of `generate.small.lacks`; `generate.small.lacks=[]` tries them all the same";
            return Err(fail("kinds", fault).hint(hint));
        }
        let lacking: Vec<&str> = self.small.lacks.iter().filter(|k| self.kinds.share(**k) > 0.0).map(|k| k.as_str()).collect();
        let note = (!lacking.is_empty())
            .then(|| format!("the small profile makes no samples of kind {}; the others take their share", lacking.join(", ")));
        Ok((kinds, self.languages.clone().among(&self.small.languages), note))
    }
}

/// `generate.profile`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileChoice {
    /// By the kind of the generator's model.
    Auto,
    /// Adds to a request.
    Small,
    /// Rewrites a request.
    Full,
}

impl ProfileChoice {
    /// The profile, given whether the generator is the embedded model.
    pub fn resolve(self, local: bool) -> Profile {
        match self {
            Self::Small => Profile::Small,
            Self::Full => Profile::Full,
            Self::Auto if local => Profile::Small,
            Self::Auto => Profile::Full,
        }
    }
}

/// `[filter]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    pub samples: String,
    pub trajectories: String,
    pub concurrency: usize,
    pub max_failure_rate: f64,
    /// Further evaluation sets that no row may repeat.
    #[serde(default)]
    pub decontaminate: Vec<PathBuf>,
}

impl Filter {
    /// The chain that a stage runs.
    pub fn chain(&self, stage: Stage) -> Option<&str> {
        match stage {
            Stage::FilterSamples => Some(&self.samples),
            Stage::FilterTrajectories => Some(&self.trajectories),
            _ => None,
        }
    }
}

/// `[rollout]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    pub max_calls: usize,
    pub answer: bool,
    pub concurrency: usize,
    pub max_failure_rate: f64,
    pub refuse: Vec<String>,
    #[serde(default)]
    pub allow: Vec<String>,
    #[serde(default)]
    pub changes: Changes,
}

/// `[export]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    pub datasets: Vec<String>,
    pub profiles: Vec<String>,
}

/// `[embedding]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    pub model_dir: PathBuf,
    pub runtime: PathBuf,
    pub threads: usize,
}

/// `[models.NAME]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Model {
    /// An endpoint.
    Endpoint(Box<EndpointModel>),
    /// The embedded model.
    Local(LocalModel),
}

/// A model behind an endpoint.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointModel {
    pub base_url: String,
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<Api>,
    pub api_key_env: String,
    pub concurrency: usize,
    pub requests_per_minute: u32,
    pub tokens_per_minute: u32,
    pub retries: usize,
    pub timeout_s: u64,
    pub give_up_after_s: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub extra: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_schema: Option<Provider>,
}

impl Default for EndpointModel {
    fn default() -> Self {
        Self {
            base_url: String::new(),
            model: String::new(),
            api: None,
            api_key_env: String::new(),
            concurrency: 16,
            requests_per_minute: 0,
            tokens_per_minute: 0,
            retries: 4,
            timeout_s: 120,
            give_up_after_s: 300,
            price: None,
            reasoning_effort: None,
            max_tokens: None,
            temperature: None,
            top_p: None,
            seed: None,
            extra: serde_json::Map::new(),
            tool_schema: None,
        }
    }
}

/// The name of the field of `value` that holds what looks like a key, and is none of a placeholder's.
fn key_in(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::String(text) if is_placeholder(text) || text.is_empty() => None,
        Value::String(text) => (is_secret_member(name) || secrets::find(text).is_some()).then(|| name.to_owned()),
        Value::Array(items) => items.iter().find_map(|item| key_in(name, item)),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| key_in(name, value)),
        _ => None,
    }
}

impl EndpointModel {
    /// What it says it speaks, or what the host of its own address is known to speak.
    pub fn speaks(&self) -> Api {
        self.api.unwrap_or_else(|| Api::of_url(&self.base_url))
    }
}

/// A model that runs inside this program.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalModel {
    pub model: String,
    pub lockstep: usize,
    pub path: PathBuf,
    pub url: String,
    pub hub: String,
    pub revision: String,
    pub sha256: String,
    pub max_gb: u64,
}

impl Default for LocalModel {
    fn default() -> Self {
        Self {
            model: "qwen-coder-1.5b".into(),
            lockstep: 8,
            path: PathBuf::new(),
            url: String::new(),
            hub: String::new(),
            revision: "main".into(),
            sha256: String::new(),
            max_gb: 20,
        }
    }
}

impl Config {
    /// A model whose further fields hold what looks like a key, and the name of the field. Settings are kept with every run.
    pub fn key_in_extra(&self) -> Option<(&str, String)> {
        self.models.iter().find_map(|(name, model)| match model {
            Model::Endpoint(endpoint) => {
                let found = endpoint.extra.iter().find_map(|(field, value)| key_in(field, value));
                found.map(|field| (name.as_str(), field))
            }
            Model::Local(_) => None,
        })
    }

    /// Resolves the layers. `file` is a path the user named; without one the nearest `mcpmill.toml`
    /// of `from` and the folders above it is used, if there is any.
    ///
    /// # Errors
    /// A layer cannot be read, holds an unknown key, or a value of the wrong type.
    pub fn resolve(file: Option<&Path>, from: &Path, sets: &[String]) -> Result<Self, Failure> {
        let mut layers = parse("the embedded default", DEFAULT)?;
        let found = file.map(Path::to_owned).or_else(|| nearest(from));
        if let Some(path) = &found {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|e| {
                Failure::usage(format!("failed to read config `{name}`: {e}"))
                    .hint("`mcpmill init` writes one, `--config` names another")
            })?;
            let layer = parse(&name, &text)?;
            // Checked by itself first, so that a mistake is blamed on the file that holds it.
            check(merged(layers.clone(), layer.clone()), &name)?;
            layers = merged(layers, layer);
        }
        for set in sets {
            let layer = set_layer(set)?;
            check(merged(layers.clone(), layer.clone()), &format!("--set {set}"))?;
            layers = merged(layers, layer);
        }
        check(layers, "settings")
    }

    /// The settings as TOML, for `config.toml` of a run. They hold names of variables, never secrets.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|e| format!("# failed to write the settings: {e}\n"))
    }
}

fn nearest(from: &Path) -> Option<PathBuf> {
    from.ancestors().map(|dir| dir.join(FILE)).find(|path| path.is_file())
}

fn parse(name: &str, text: &str) -> Result<toml::Table, Failure> {
    text.parse().map_err(|e: toml::de::Error| Failure::usage(format!("failed to read {name}: {}", e.message())))
}

/// `a.b=c` as a layer; the value is TOML, or text when it is no TOML.
fn set_layer(set: &str) -> Result<toml::Table, Failure> {
    let (key, value) = set.split_once('=').ok_or_else(|| {
        Failure::usage(format!("failed to read `--set {set}`: there is no `=`")).hint("for instance `--set generate.samples=300`")
    })?;
    let value =
        format!("v = {value}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("v")).unwrap_or_else(|| value.into());
    let nested =
        parts(key).into_iter().rev().fold(value, |inner, part| toml::Value::Table([(part, inner)].into_iter().collect()));
    match nested {
        toml::Value::Table(table) => Ok(table),
        _ => Err(Failure::usage(format!("failed to read `--set {set}`: the key is empty"))),
    }
}

/// The parts of a key; one in quotes may hold a point (`harvest.servers."npm:a.b".network`).
fn parts(key: &str) -> Vec<String> {
    let (mut parts, mut quoted) = (vec![String::new()], false);
    for c in key.trim().chars() {
        match (c, quoted) {
            ('"', _) => quoted = !quoted,
            ('.', false) => parts.push(String::new()),
            _ => parts.last_mut().into_iter().for_each(|part| part.push(c)),
        }
    }
    parts
}

/// `over` laid on `under`, table by table.
fn merged(mut under: toml::Table, over: toml::Table) -> toml::Table {
    for (key, value) in over {
        let value = match (under.remove(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => toml::Value::Table(merged(old, new)),
            (_, value) => value,
        };
        under.insert(key, value);
    }
    under
}

fn check(layers: toml::Table, name: &str) -> Result<Config, Failure> {
    let config: Result<Config, _> = toml::Value::Table(layers).try_into();
    config.map_err(|e: toml::de::Error| {
        let failure = Failure::usage(format!("failed to read {name}: {}", e.message()));
        match suggestion(e.message()) {
            Some(near) => failure.hint(format!("did you mean `{near}`?")),
            None if e.message().contains("floating point") => failure.hint("a version is text and stands in quotes: \"3.12\""),
            None => failure.hint("`mcpmill explain config` prints every setting with its default"),
        }
    })
}

/// The known name nearest to the unknown one, from a message of the form
/// "unknown field `x`, expected one of `a`, `b`".
fn suggestion(message: &str) -> Option<String> {
    let (unknown, known) = message.split_once("expected")?;
    let unknown = unknown.split('`').nth(1)?;
    let known = known.split('`').skip(1).step_by(2);
    let best = known.map(|k| (strsim::jaro_winkler(unknown, k), k)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.7).then(|| best.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(sets: &[&str]) -> Result<Config, Failure> {
        let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
        Config::resolve(None, Path::new("/nonexistent"), &sets)
    }

    #[test]
    fn the_default_resolves_and_sets_override_it() {
        let config = resolve(&["generate.samples=300", "roles.judge=local", "harvest.memory_mb=512"]).unwrap();
        assert_eq!(config.generate.samples, 300);
        assert_eq!(config.roles["judge"], "local");
        assert_eq!(config.roles["default"], "auto");
        assert_eq!(config.harvest.memory_mb, 512);
    }

    #[test]
    fn a_part_of_a_key_may_be_quoted() {
        assert_eq!(parts(r#"a."npm:@b/c.d".e"#), ["a", "npm:@b/c.d", "e"]);
        let config = resolve(&[r#"harvest.servers."npm:@b/c.d".network=full"#]).unwrap();
        assert!(config.harvest.servers.contains_key("npm:@b/c.d"));
    }

    #[test]
    fn mistakes_name_the_place_and_suggest() {
        let error = resolve(&["generate.sample=3"]).unwrap_err();
        assert!(error.to_string().contains("--set generate.sample=3"), "{error}");
        assert_eq!(error.hint.as_deref(), Some("did you mean `samples`?"));
        assert!(resolve(&["generate.samples=many"]).is_err());
        assert!(resolve(&["generate"]).unwrap_err().hint.is_some());
    }

    #[test]
    fn a_file_overrides_the_default_and_a_set_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "[generate]\nsamples = 7\nper_tool = 3\n").unwrap();
        let below = dir.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        let config = Config::resolve(None, &below, &["generate.per_tool=4".into()]).unwrap();
        assert_eq!((config.generate.samples, config.generate.per_tool), (7, 4));
        assert_eq!([true, false].map(|local| config.generate.per_tool(local)), [4, 4]);
        let config = Config::resolve(None, &below, &["generate.per_tool=0".into()]).unwrap();
        assert_eq!([true, false].map(|local| config.generate.per_tool(local)), [2, 5], "0 picks by the model");
        assert_eq!([true, false].map(|local| config.generate.per_call(local)), [2, 5]);
    }

    #[test]
    fn resolved_settings_can_be_read_again() {
        let text = resolve(&[]).unwrap().to_toml();
        let again: Config = toml::from_str(&text).unwrap();
        assert_eq!(again.to_toml(), text);
    }

    #[test]
    fn a_small_model_makes_what_it_can() {
        let shares = |sets: &[&str], profile| resolve(sets).unwrap().generate.shares(profile);
        let (kinds, _, note) = shares(&["generate.small.lacks=['chain']"], Profile::Small).unwrap();
        assert_eq!((kinds.share(SampleKind::Chain), note.unwrap().contains("chain")), (0.0, true));
        let (kinds, languages, note) = shares(&["generate.languages.de=1.0"], Profile::Full).unwrap();
        assert!(kinds.share(SampleKind::Chain) > 0.0 && languages.fault().is_none() && note.is_none());
        let only = [
            "generate.small.lacks=['chain']",
            "generate.kinds={single=0,parallel=0,chain=1,multi-turn=0,no-tool=0,ask=0,recover=0}",
        ];
        assert!(shares(&only, Profile::Small).unwrap_err().hint.unwrap().contains("lacks"));
        assert!(shares(&only, Profile::Full).is_ok());
        for bad in ["generate.kinds.single=-1", "generate.languages.xx=1", "generate.evolve_depth=4"] {
            assert!(shares(&[bad], Profile::Full).is_err(), "{bad}");
        }
        let odd = resolve(&["generate.kinds.paralel=1"]).unwrap_err();
        assert_eq!(odd.hint.as_deref(), Some("did you mean `parallel`?"), "{odd}");
    }

    #[test]
    fn a_key_among_further_fields_is_found_by_its_name_or_shape() {
        let with = |extra: &str| {
            let set = format!("models.openai.extra={extra}");
            let config = Config::resolve(None, Path::new("/nonexistent"), &[set]).unwrap();
            config.key_in_extra().map(|(model, field)| format!("{model} {field}"))
        };
        // Put together here, so that no scanner takes the test for a leak.
        let shaped = format!("{{ metadata = [\"x\", \"{}{}\"] }}", "sk-", "a1b2c3d4e5f6g7h8i9j0klmn");
        assert_eq!(with(&shaped).as_deref(), Some("openai metadata"));
        assert_eq!(with("{ provider = { api_key = \"plain-words\" } }").as_deref(), Some("openai api_key"));
        for plain in ["{ }", "{ prompt_cache_key = \"a\", top_k = 5, max_tokens = 9 }", "{ provider = { api_key = \"${KEY}\" } }"]
        {
            assert_eq!(with(plain), None, "{plain}");
        }
    }
}

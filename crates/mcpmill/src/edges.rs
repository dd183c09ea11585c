//! The real edges of the world, made when they are first needed, and stand-ins for replay.

use std::{
    collections::{BTreeSet, HashMap},
    env,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use indicatif::{ProgressBar, ProgressStyle};
#[cfg(feature = "local-models")]
use mcpmill_clients::assets::Remote;
use mcpmill_clients::{
    assets::{AssetId, Assets, Progress},
    cage::{Cage, Host},
    chat::{Api, Endpoint, EndpointSettings, Sampling, Secret},
    embed::{EmbedFiles, FastEmbedder},
    http::{Crawler, CrawlerSettings, Reach},
    install::{Installer, Lock},
    mcp::{CagedConnector, PassingInstalls, RetryLadder, ServerLimits},
};
use mcpmill_core::{
    account::Price,
    canonical::sha256_hex,
    edge::{
        ChatError, ChatErrorKind, ChatModel, ChatReply, ChatRequest, ConnectError, Connector, EmbedError, Embedder, Fetch, Mode,
        RecordedChat, RecordedEmbedder, Recorder, ToolRunner, WorldSpec,
    },
    event::Events,
    record::{HarvestOutcome, ServerRecord, Usage},
};
#[cfg(feature = "local-models")]
use mcpmill_local::{EmbeddedModel, LoadOptions};
use mcpmill_pipeline::{
    discover::redact_page,
    models::{Models, Role},
};

#[cfg(feature = "local-models")]
use crate::local::Source;
use crate::{
    batch::Desk,
    config::{Config, EndpointModel, LocalModel, Model},
    declarations::Declarations,
    error::{Exit, Failure},
    local::{self, content_of},
    policies::packages,
    prices::{self, Prices},
};

/// What fills in for an endpoint's own settings: the variables of its address and of its model, and the maker's address.
const OPENAI: [&str; 3] = ["OPENAI_BASE_URL", "OPENAI_MODEL", "https://api.openai.com/v1"];
const ANTHROPIC: [&str; 3] = ["ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "https://api.anthropic.com/v1"];

/// A model by its name in the config, with what it is called in lineage and keys.
pub struct Named {
    /// Its name in lineage and keys.
    pub name: String,
    /// Whether it is the embedded model.
    pub local: bool,
    /// Its name at its endpoint, and its price where the settings name one.
    pub priced: Option<(String, Option<Price>)>,
    /// As it is declared.
    pub model: Model,
}

impl Named {
    /// Requests that the embedded model answers at the same time; `None` for an endpoint.
    pub fn lockstep(&self) -> Option<usize> {
        match &self.model {
            Model::Local(local) => Some(local.lockstep.clamp(1, 64)),
            Model::Endpoint(_) => None,
        }
    }
}

/// Which model plays a role: `auto` resolved, the environment read.
///
/// # Errors
/// The role names a model that is not declared, or one that lacks a setting.
pub fn model_of(config: &Config, role: Role) -> Result<Named, Failure> {
    let chosen = config.roles.get(role.as_str()).or_else(|| config.roles.get("default")).map_or("auto", String::as_str);
    let chosen = match chosen {
        "auto" if set("OPENAI_BASE_URL").is_some() || set("OPENAI_API_KEY").is_some() => "openai",
        "auto" => "local",
        name => name,
    };
    let known = || config.models.keys().cloned().collect::<Vec<_>>().join(", ");
    let model = config.models.get(chosen).ok_or_else(|| {
        Failure::usage(format!("role `{role}` names the model `{chosen}`, which is not declared"))
            .hint(format!("declared are: {}", known()))
    })?;
    Ok(match model {
        Model::Endpoint(endpoint) => {
            let settings = endpoint_settings(chosen, endpoint)?;
            let priced = Some((settings.model.clone(), settings.price));
            let endpoint = Endpoint::new(settings).map_err(|e| Failure::from_error(Exit::Usage, &e))?;
            Named { name: endpoint.model().to_owned(), local: false, priced, model: model.clone() }
        }
        Model::Local(local) => Named { name: local::name(local)?, local: true, priced: None, model: model.clone() },
    })
}

impl Named {
    /// Its endpoint, `None` for the embedded model.
    fn endpoint(&self, prices: &Prices) -> Result<Option<Endpoint>, Failure> {
        match &self.model {
            Model::Endpoint(endpoint) => {
                let settings = priced_settings(&self.name, endpoint, prices)?;
                Endpoint::new(settings).map(Some).map_err(|e| Failure::from_error(Exit::Usage, &e))
            }
            Model::Local(_) => Ok(None),
        }
    }
}

/// What `--batch` says to the embedded model.
pub fn embedded(role: Role) -> Failure {
    Failure::usage(format!("`--batch` puts questions off for an endpoint, and the embedded model plays the role `{role}`"))
        .hint("leave out `--batch`, or give the role an endpoint: `mcpmill explain config`, `[roles]` and `[models]`")
}

/// The endpoint that is called `name` in lineage and keys.
///
/// # Errors
/// No model of the settings is.
pub fn endpoint_named(config: &Config, prices: &Prices, name: &str) -> Result<Endpoint, Failure> {
    for (key, model) in &config.models {
        let Model::Endpoint(endpoint) = model else { continue };
        // Models that cannot be set up here are not the one that was asked.
        let made = priced_settings(key, endpoint, prices).ok().and_then(|settings| Endpoint::new(settings).ok());
        if let Some(endpoint) = made.filter(|endpoint| endpoint.model() == name) {
            return Ok(endpoint);
        }
    }
    Err(Failure::usage(format!("no model of the settings is `{name}`, which was asked"))
        .hint("use the settings and variables of the run: `config.toml` in its folder, OPENAI_BASE_URL and OPENAI_MODEL"))
}

/// The credentials of `[secrets]` that the environment holds. One that is not set is left out: its
/// servers are skipped, and their outcome names it.
///
/// # Errors
/// `[secrets]` holds what is no name of a variable.
pub fn secrets(config: &Config) -> Result<HashMap<String, String>, Failure> {
    let mut found = HashMap::new();
    for (name, variable) in &config.secrets {
        if !is_variable(variable) {
            // The value is not shown: it may be the secret itself.
            return Err(Failure::usage(format!("`secrets.{name}` is no name of a variable"))
                .hint("it names the variable that holds the value; the value itself belongs in no file"));
        }
        found.extend(set(variable).map(|value| (name.clone(), value)));
    }
    Ok(found)
}

/// Whether a text can be the name of a variable that holds a secret, and is not the secret itself.
pub fn is_variable(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// The value of a variable that is set and not empty.
pub fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The settings of an endpoint, with the listed price where it has none of its own.
fn priced_settings(name: &str, endpoint: &EndpointModel, prices: &Prices) -> Result<EndpointSettings, Failure> {
    let mut settings = endpoint_settings(name, endpoint)?;
    settings.price = settings.price.or_else(|| Some(prices.find(&settings.model)?.price));
    Ok(settings)
}

fn endpoint_settings(name: &str, endpoint: &EndpointModel) -> Result<EndpointSettings, Failure> {
    let or_env = |value: &str, variable: &str| if value.is_empty() { set(variable) } else { Some(value.to_owned()) };
    let [address, served, maker] = if endpoint.speaks() == Api::Anthropic { ANTHROPIC } else { OPENAI };
    let model = or_env(&endpoint.model, served).ok_or_else(|| {
        Failure::usage(format!("model `{name}` has no name at its endpoint"))
            .hint(format!("set {served} or `--set models.{name}.model=…`"))
    })?;
    if !is_variable(&endpoint.api_key_env) {
        // The value is not shown: it may be the key itself.
        return Err(Failure::usage(format!("`models.{name}.api_key_env` is no name of a variable"))
            .hint("it names the variable that holds the key, in capitals; the key itself belongs in no file"));
    }
    let slip = endpoint.price.as_ref().and_then(prices::fault).map(|fault| format!("`models.{name}.price`: {fault}"));
    let wild = [("temperature", endpoint.temperature), ("top_p", endpoint.top_p)]
        .into_iter()
        .find(|(_, value)| value.is_some_and(|value| !(0.0..=2.0).contains(&value)))
        .map(|(key, _)| format!("`models.{name}.{key}` is not between 0 and 2"));
    if let Some(fault) = slip.or(wild) {
        return Err(Failure::usage(fault));
    }
    Ok(EndpointSettings {
        base_url: or_env(&endpoint.base_url, address).unwrap_or_else(|| maker.into()),
        model,
        api: endpoint.api,
        key: set(&endpoint.api_key_env).map(Secret::new),
        concurrency: endpoint.concurrency,
        requests_per_minute: NonZeroU32::new(endpoint.requests_per_minute),
        tokens_per_minute: NonZeroU32::new(endpoint.tokens_per_minute),
        retries: endpoint.retries,
        timeout: Duration::from_secs(endpoint.timeout_s),
        give_up_after: Duration::from_secs(endpoint.give_up_after_s),
        price: endpoint.price,
        sampling: Sampling {
            reasoning_effort: endpoint.reasoning_effort.clone(),
            max_tokens: endpoint.max_tokens,
            temperature: endpoint.temperature,
            top_p: endpoint.top_p,
            seed: endpoint.seed,
        },
        extra: endpoint.extra.clone(),
        tool_schema: endpoint.tool_schema,
    })
}

/// What a process has of the world.
pub struct Edges {
    config: Config,
    unsandboxed: bool,
    offline: bool,
    /// Assets of the cache.
    pub assets: Assets,
    made: tokio::sync::Mutex<HashMap<String, RecordedChat>>,
    prices: Prices,
    events: Option<Events>,
    /// Where questions are put off with `--batch`.
    pub desk: Option<Arc<Desk>>,
}

impl Edges {
    /// Edges for these settings; nothing is fetched or started yet.
    pub fn new(config: &Config, unsandboxed: bool, offline: bool) -> Self {
        let mut assets = Assets::new(&config.cache_dir).with_progress(bar());
        for (id, path) in AssetId::ALL.iter().filter_map(|id| Some((id, config.assets.get(id.as_str())?))) {
            assets = assets.with_path(*id, path);
        }
        if !config.embedding.runtime.as_os_str().is_empty() {
            assets = assets.with_path(AssetId::OnnxRuntime, &config.embedding.runtime);
        }
        if !config.embedding.model_dir.as_os_str().is_empty() {
            assets = assets.with_path(AssetId::MiniLm, &config.embedding.model_dir);
        }
        let (config, made) = (config.clone(), tokio::sync::Mutex::default());
        Self { config, unsandboxed, offline, assets, made, prices: Prices::default(), events: None, desk: None }
    }

    /// Counts what models cost by `prices`, and tells `events` when a provider is down.
    #[must_use]
    pub fn with_accounts(self, prices: Prices, events: Events) -> Self {
        Self { prices, events: Some(events), ..self }
    }

    async fn fetch(&self, id: AssetId) -> Result<PathBuf, Failure> {
        use mcpmill_clients::assets::Status;
        if self.offline && matches!(self.assets.status(id), Status::Missing { .. }) {
            return Err(Failure::environment(format!("`{id}` is not in the cache, and `--offline` forbids to fetch it"))
                .hint("run once without `--offline`; `mcpmill doctor` lists what is missing"));
        }
        self.assets.fetch(id).await.map_err(|e| Failure::from_error(Exit::Environment, &e).hint(e.hint()))
    }

    #[cfg(feature = "local-models")]
    async fn fetch_remote(&self, remote: &Remote) -> Result<PathBuf, Failure> {
        let folder = self.config.cache_dir.join("models");
        let path = remote.path(&folder);
        if self.offline && !path.exists() {
            return Err(Failure::environment(format!(
                "`{}` is not in the cache, and `--offline` forbids to fetch it",
                remote.stem()
            ))
            .hint("run once without `--offline`"));
        }
        let bar = ProgressBar::new(0).with_style(bar_style());
        bar.set_prefix(remote.stem());
        let progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let fetched = remote.fetch(&folder, &progress).await;
        bar.finish_and_clear();
        fetched
            .map_err(|e| Failure::from_error(Exit::Environment, &e).hint("what was fetched so far is kept for the next attempt"))
    }

    /// The cage, as the user chose.
    ///
    /// # Errors
    /// Bubblewrap cannot be had or does not work here.
    pub async fn cage(&self) -> Result<Cage, Failure> {
        let host = Host::discover().await;
        let fail = |e: mcpmill_clients::cage::CageError| {
            let hint = e.hint();
            Failure::from_error(Exit::Environment, &e).hint(hint)
        };
        if self.unsandboxed {
            return Cage::unsandboxed(host).map_err(fail);
        }
        if let Ok(cage) = Cage::find(None, host.clone()).await {
            return Ok(cage.with_hidden(self.own_folders()));
        }
        let own = self.fetch(AssetId::Bubblewrap).await?;
        let cage = Cage::find(Some(&own), host).await.map_err(fail)?;
        Ok(cage.with_hidden(self.own_folders()))
    }

    /// What no server sees, should it lie in a folder that servers are shown.
    fn own_folders(&self) -> Vec<PathBuf> {
        let here = std::env::current_dir().unwrap_or_default();
        let project = here.ancestors().find(|folder| folder.join(crate::config::FILE).is_file());
        let config = &self.config;
        let mut folders = vec![config.cache_dir.clone(), config.runs_dir.clone()];
        folders.extend(config.exchange_store.parent().map(Path::to_owned));
        folders.extend(project.map(Path::to_owned));
        folders.extend(set("HOME").map(PathBuf::from));
        folders
    }

    /// What reaches MCP servers; in replay nothing does. `keep` leaves them installed whatever the settings say.
    ///
    /// # Errors
    /// As [`Edges::cage`].
    pub async fn connector(&self, declarations: &Declarations, keep: bool) -> Result<Arc<dyn Connector>, Failure> {
        if self.config.mode == Mode::Replay {
            return Ok(Arc::new(Absent("servers".into())));
        }
        let cage = self.cage().await?;
        let installer = Installer::new(cage.clone(), self.assets.clone(), &self.config.cache_dir)
            .with_locks(locks(declarations))
            .with_offline(self.offline)
            .with_at_once(self.config.harvest.install_at_once)
            .with_python(Some(self.config.harvest.python.clone()).filter(|version| !version.is_empty()))
            .with_packages(packages(&self.config));
        let limits = ServerLimits {
            start: Duration::from_secs(self.config.harvest.start_timeout_s),
            answer: Duration::from_secs(self.config.harvest.call_timeout_s),
            memory_bytes: self.config.harvest.memory_mb << 20,
            ..ServerLimits::default()
        };
        let scratch = self.config.cache_dir.join("worlds");
        let caged = CagedConnector::new(cage, installer.clone(), scratch)
            .with_limits(limits)
            .with_credentials(secrets(&self.config)?)
            .with_remote(self.reach()?)
            .with_probe_eras(self.config.harvest.probe_eras);
        let rungs = self.config.cache_dir.join("rungs.json");
        if keep || self.config.harvest.keep_installed {
            return Ok(Arc::new(RetryLadder::new(caged, rungs)));
        }
        let passing = PassingInstalls::new(caged, installer);
        Ok(Arc::new(RetryLadder::new(passing, rungs)))
    }

    /// Where remote servers may be, when they are switched on.
    fn reach(&self) -> Result<Option<Reach>, Failure> {
        if !self.config.harvest.remote || self.offline {
            return Ok(None);
        }
        let reach = Reach::new(self.config.crawl.allow_loopback.clone());
        reach.map(Some).map_err(|e| Failure::from_error(Exit::Environment, &e))
    }

    /// What fetches the pages of marketplaces; in replay nothing does. `keys` are the variables it may send.
    ///
    /// # Errors
    /// The cache cannot be written, or a setting is none.
    pub fn crawler(&self, keys: &BTreeSet<String>) -> Result<Arc<dyn Fetch>, Failure> {
        let crawl = &self.config.crawl;
        let mut settings = CrawlerSettings::new(self.config.cache_dir.join("pages"));
        settings.offline = self.offline || self.config.mode == Mode::Replay;
        settings.contact = Some(crawl.contact.clone()).filter(|contact| !contact.is_empty());
        settings.per_minute = crawl.per_minute;
        settings.concurrency = crawl.concurrency.max(1);
        settings.retries = crawl.retries;
        settings.longest_pause = Duration::from_secs(crawl.longest_pause_s);
        settings.allow_loopback.clone_from(&crawl.allow_loopback);
        settings.proxy = Some(crawl.proxy_env.as_str()).filter(|name| !name.is_empty()).and_then(set).map(Secret::new);
        settings.keys = keys.iter().filter_map(|name| Some((name.clone(), Secret::new(set(name)?)))).collect();
        settings.clean = Some(redact_page);
        Ok(Arc::new(Crawler::new(settings).map_err(|e| Failure::from_error(Exit::Environment, &e))?))
    }

    /// The embedding model behind the exchange store.
    ///
    /// # Errors
    /// The model or its runtime cannot be had.
    pub async fn embedder(&self, recorder: &Arc<Recorder>) -> Result<RecordedEmbedder, Failure> {
        let name = embedder_name(&self.config)?;
        let model: Arc<dyn Embedder> =
            if self.config.mode == Mode::Replay { Arc::new(Absent(name)) } else { Arc::new(self.load_embedder(&name).await?) };
        Ok(RecordedEmbedder::new(model, Arc::clone(recorder)))
    }

    async fn load_embedder(&self, name: &str) -> Result<FastEmbedder, Failure> {
        let runtime = self.fetch(AssetId::OnnxRuntime).await?;
        let folder = self.fetch(AssetId::MiniLm).await?;
        let part = |file: &str| folder.join(file);
        let files = EmbedFiles {
            runtime,
            model: part("model.onnx"),
            tokenizer: ["tokenizer.json", "config.json", "special_tokens_map.json", "tokenizer_config.json"].map(part),
        };
        FastEmbedder::load(name, &files, self.config.embedding.threads).map_err(|e| Failure::from_error(Exit::Environment, &e))
    }

    /// The models of these roles behind the exchange store. A model that plays several roles, or played
    /// one before, is made once.
    ///
    /// # Errors
    /// A role's model is wrongly declared, or cannot be had.
    pub async fn models(&self, recorder: &Arc<Recorder>, roles: &[Role]) -> Result<Models, Failure> {
        let mut made = self.made.lock().await;
        let mut by_role = HashMap::new();
        let mut fallback = None;
        for &role in roles {
            let named = model_of(&self.config, role)?;
            if !made.contains_key(&named.name) {
                let recorded = match &self.desk {
                    Some(desk) => {
                        let endpoint = Arc::new(named.endpoint(&self.prices)?.ok_or_else(|| embedded(role))?);
                        let put_off = desk.of(Arc::clone(&endpoint));
                        RecordedChat::new(endpoint, Arc::clone(recorder)).putting_off(put_off)
                    }
                    None => RecordedChat::new(self.chat_model(&named).await?, Arc::clone(recorder)),
                };
                made.insert(named.name.clone(), recorded);
            }
            let recorded = made[&named.name].clone();
            fallback.get_or_insert_with(|| recorded.clone());
            by_role.insert(role, recorded);
        }
        let fallback = fallback.ok_or_else(|| Failure::new(Exit::Unexpected, "there are no roles"))?;
        Ok(Models::new(fallback, by_role))
    }

    async fn chat_model(&self, named: &Named) -> Result<Arc<dyn ChatModel>, Failure> {
        if self.config.mode == Mode::Replay {
            return Ok(Arc::new(Absent(named.name.clone())));
        }
        match &named.model {
            Model::Endpoint(endpoint) => {
                let settings = priced_settings(&named.name, endpoint, &self.prices)?;
                let endpoint = Endpoint::new(settings).map_err(|e| Failure::from_error(Exit::Usage, &e))?;
                Ok(match self.events.clone() {
                    Some(events) => Arc::new(endpoint.with_notes(Arc::new(move |text| events.note(text)))),
                    None => Arc::new(endpoint),
                })
            }
            Model::Local(local) => self.local_model(&named.name, local).await,
        }
    }

    #[cfg(not(feature = "local-models"))]
    async fn local_model(&self, name: &str, _: &LocalModel) -> Result<Arc<dyn ChatModel>, Failure> {
        Err(Failure::environment(format!("`{name}` cannot run: this mcpmill was built without the feature `local-models`"))
            .hint("set OPENAI_BASE_URL and OPENAI_MODEL, or build with default features"))
    }

    #[cfg(feature = "local-models")]
    async fn local_model(&self, name: &str, local: &LocalModel) -> Result<Arc<dyn ChatModel>, Failure> {
        let path = match local::source(local)? {
            Source::Asset(id) => self.fetch(id).await?,
            Source::File(path) => path,
            Source::Remote(remote) => self.fetch_remote(&remote).await?,
        };
        let name = name.to_owned();
        let options = LoadOptions { lockstep: local.lockstep, ..LoadOptions::default() };
        let load = move || EmbeddedModel::load(&name, &path, &options);
        let loaded = tokio::task::spawn_blocking(load).await.map_err(|e| Failure::new(Exit::Unexpected, e.to_string()))?;
        let model = loaded.map_err(|e| {
            Failure::environment(format!("failed to {e}"))
                .hint("`models.local` names an asset or a GGUF file of the qwen2 or llama kind")
        })?;
        Ok(Arc::new(model))
    }
}

/// What names the embedding model in verdicts and keys.
///
/// # Errors
/// The user's own model cannot be read.
pub fn embedder_name(config: &Config) -> Result<String, Failure> {
    let own = &config.embedding.model_dir;
    if own.as_os_str().is_empty() {
        let digest = AssetId::MiniLm.asset().digest().unwrap_or("0000000000000000");
        return Ok(format!("all-MiniLM-L6-v2-int8@{}", &digest[..12]));
    }
    let hash = |file: &str| content_of(&own.join(file));
    let parts = hash("model.onnx").and_then(|model| Ok(sha256_hex(format!("{model} {}", hash("tokenizer.json")?))));
    let digest = parts.map_err(|e| {
        Failure::usage(format!("failed to read the embedding model: {e}"))
            .hint("`embedding.model_dir` is a folder with model.onnx, tokenizer.json and the other tokenizer files")
    })?;
    let stem = own.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("{stem}@{}", &digest[..12]))
}

/// The locks of `marketplaces/locks/`.
fn locks(declarations: &Declarations) -> Vec<Lock> {
    let text = |folder: &str, file: &str| declarations.text(&format!("{folder}/{file}")).map(str::to_owned);
    let lock = |folder: &String| {
        let npm = || Some(Lock::Npm { package: text(folder, "package.json")?, lock: text(folder, "package-lock.json")? });
        let pypi =
            || Some(Lock::Pypi { input: text(folder, "requirements.in")?, requirements: text(folder, "requirements.txt")? });
        npm().or_else(pypi)
    };
    declarations.folders("marketplaces/locks").iter().filter_map(lock).collect()
}

fn bar_style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{prefix:<18} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Draws a bar for every fetch.
fn bar() -> mcpmill_clients::assets::OnProgress {
    let bars: std::sync::Mutex<HashMap<&'static str, ProgressBar>> = std::sync::Mutex::default();
    Arc::new(move |progress: Progress| {
        let name = progress.asset.as_str();
        let mut bars = bars.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let bar = bars.entry(name).or_insert_with(|| {
            let mb = progress.bytes_total >> 20;
            eprintln!("fetching {name} ({mb} MB, once)");
            let bar = ProgressBar::new(progress.bytes_total).with_style(bar_style());
            bar.set_prefix(name);
            bar
        });
        bar.set_position(progress.bytes_done);
        if progress.bytes_done >= progress.bytes_total {
            bar.finish_and_clear();
        }
    })
}

/// A model or server that must not be asked: replay has every answer or the row fails.
struct Absent(String);

impl Absent {
    fn why(&self) -> String {
        "replay asks nobody".into()
    }
}

#[async_trait]
impl ChatModel for Absent {
    fn model(&self) -> &str {
        &self.0
    }

    async fn chat(&self, _: &ChatRequest) -> Result<ChatReply, ChatError> {
        let (model, kind) = (self.0.clone(), ChatErrorKind::NotRecorded);
        Err(ChatError { model, kind, detail: self.why(), raw: None, attempts: 0, usage: Usage::default() })
    }
}

#[async_trait]
impl Embedder for Absent {
    fn model(&self) -> &str {
        &self.0
    }

    async fn embed(&self, _: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Err(EmbedError { model: self.0.clone(), detail: self.why() })
    }
}

#[async_trait]
impl Connector for Absent {
    async fn connect(&self, server: &ServerRecord, _: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        Err(ConnectError { server: server.name.clone(), outcome: HarvestOutcome::LaunchFailed, detail: self.why(), stderr: None })
    }
}

/// `cache_dir` as the user means it: MCPMILL_CACHE_DIR, where set, comes before the config.
pub fn cache_dir(config: &Config) -> PathBuf {
    set("MCPMILL_CACHE_DIR").map_or_else(|| config.cache_dir.clone(), PathBuf::from)
}

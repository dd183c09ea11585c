//! The line: discover → harvest → generate → filter → rollout → filter → export, as a list of calls.

mod accounts;
mod described;
mod exams;
mod look;
mod put_off;
mod surroundings;
mod visits;
mod worlds;

pub use accounts::is_answered;
pub use exams::exam_rows;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use mcpmill_core::{
    canonical::content_hash,
    drive::{Context, Pace, Sink, StageError},
    edge::{Exchanges, Mode, Network, RecordedEmbedder, Recorder},
    event::{Event, Events, Summary},
    record::{ExportRow, Judgement, Outcome, OutcomeKind, Sample, SampleKind, ServerRecord, Tool, Trajectory, Twin, Verdict},
    template::fill,
    toolbox::Toolbox,
};
use mcpmill_pipeline::{
    discover::{Marketplace, discover},
    export::{RunFacts, Sources, export},
    filter::{Chain, HeldOut, Parts, Programs, filter_samples, filter_trajectories},
    generate::{GeneratePrompts, GenerateSettings, generate},
    models::{Models, Role},
    prompt::Prompt,
    rollout::needs_answers,
};
use mcpmill_store::{
    artifact::{Artifact, Table},
    exchanges::{ExchangeFile, ExchangesError, Limits, SqliteExchanges},
    file_hash,
    journal::{Journal, JournalOptions},
    parquet_file::read_all,
    run_dir::{RunDir, RunState, StageInfo, StageState, stage_info},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    declarations::Declarations,
    edges::{Edges, embedder_name, model_of},
    error::{Exit, Failure},
    facts, profiles,
    publish::{self, Publication},
    report, speed,
    stage::Stage,
};

/// Raised when a stage's rows would come out otherwise for the same input: part of its fingerprint.
const STAGE_VERSION: u32 = 7;

/// The exchange store of a run: the SQLite file, or in replay a file that `cache export` wrote.
///
/// # Errors
/// It cannot be opened, or is a file while not replaying.
pub fn exchanges(config: &Config, run: &str) -> Result<Arc<dyn Exchanges>, Failure> {
    let path = &config.exchange_store;
    let fail = |e: ExchangesError| Failure::from_error(Exit::Unexpected, &e).maybe_hint(e.hint());
    if path.extension().is_none_or(|ending| ending != "zst") {
        return Ok(Arc::new(SqliteExchanges::open(path, run).map_err(fail)?));
    }
    if config.mode != Mode::Replay {
        return Err(Failure::usage(format!("`{}` is a file of recorded exchanges, which is only read", path.display()))
            .hint("add `--set mode=replay`, or take it into a store with `mcpmill cache import`"));
    }
    Ok(Arc::new(ExchangeFile::open(path, Limits::default()).map_err(fail)?))
}

/// One run and all that its stages need.
pub struct Line {
    /// The settings.
    pub config: Config,
    /// The five folders.
    pub declarations: Declarations,
    /// The run's directory, locked.
    pub run: RunDir,
    /// The edges of the world.
    pub edges: Edges,
    /// Where happenings go.
    pub events: Events,
    /// Set on Ctrl-C.
    pub cancel: CancellationToken,
    /// `--limit`: rows of discover that are taken.
    pub limit: Option<usize>,
    /// `discover --record`: where pages are saved.
    pub record: Option<PathBuf>,
    /// `filter --rejudge`: rows that a filter could not judge are judged again.
    pub rejudge: bool,
    /// Rows that the report shows of every filter.
    pub rows_shown: u16,
    store: Arc<dyn Exchanges>,
    recorder: Arc<Recorder>,
    embedder: OnceCell<RecordedEmbedder>,
    worked: AtomicBool,
    estimated: OnceCell<()>,
}

impl Line {
    /// Opens the exchange store for a run, and sets its budget.
    ///
    /// # Errors
    /// The store cannot be opened, or the budget cannot be kept.
    pub async fn new(
        config: Config,
        declarations: Declarations,
        run: RunDir,
        edges: Edges,
        events: Events,
        cancel: CancellationToken,
        limit: Option<usize>,
    ) -> Result<Self, Failure> {
        let store = exchanges(&config, run.info().store_id())?;
        let recorder = Arc::new(accounts::recorder(&config, &declarations, Arc::clone(&store), edges.desk.as_deref()).await?);
        Ok(Self {
            config,
            declarations,
            run,
            edges,
            events,
            cancel,
            limit,
            record: None,
            rejudge: false,
            rows_shown: report::ROWS,
            store,
            recorder,
            embedder: OnceCell::new(),
            worked: AtomicBool::new(false),
            estimated: OnceCell::new(),
        })
    }

    /// Whether a stage was worked on, and not only taken over.
    pub fn has_worked(&self) -> bool {
        self.worked.load(Ordering::Relaxed)
    }

    /// Notes whether the run came to its end.
    ///
    /// # Errors
    /// `run.json` cannot be written.
    pub fn set_state(&mut self, state: RunState) -> Result<(), Failure> {
        self.run.set_state(state).map_err(|e| Failure::from_error(Exit::Unexpected, &e))
    }

    /// Runs one stage, or takes it over when it is done with the same fingerprint.
    ///
    /// # Errors
    /// The stage before it is not done, or the stage fails.
    pub async fn run_stage(&self, stage: Stage) -> Result<Vec<StageInfo>, Failure> {
        let Some(desk) = &self.edges.desk else { return self.do_stage(stage).await };
        desk.begin(stage.folder());
        let done = Box::pin(self.do_stage(stage)).await;
        // However the stage ended: what is put off is in a file that can be handed in.
        let put_off = desk.finish().map_err(|e| Failure::environment(format!("failed to write the batch of `{stage}`: {e}")))?;
        self.tell_put_off(stage, &put_off)?;
        done
    }

    async fn do_stage(&self, stage: Stage) -> Result<Vec<StageInfo>, Failure> {
        match stage {
            Stage::Discover => self.discover().await.map(|i| vec![i]),
            Stage::Harvest => self.harvest().await.map(|i| vec![i]),
            Stage::Generate => Box::pin(self.generate()).await.map(|i| vec![i]),
            Stage::FilterSamples => self.filter_samples().await.map(|i| vec![i]),
            Stage::Rollout => Box::pin(self.rollout()).await.map(|i| vec![i]),
            Stage::FilterTrajectories => self.filter_trajectories().await.map(|i| vec![i]),
            Stage::Export => {
                let mut infos = Vec::new();
                for name in &self.config.export.datasets {
                    infos.push(self.export(name).await?);
                }
                Ok(infos)
            }
        }
    }

    async fn discover(&self) -> Result<StageInfo, Failure> {
        let ids = &self.config.discover.marketplaces;
        let marketplaces = ids.iter().map(|id| self.declarations.marketplace(id)).collect::<Result<Vec<_>, _>>()?;
        let files: Vec<String> = ids.iter().map(|id| format!("marketplaces/{id}.toml")).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let mut knobs = json!({ "marketplaces": ids, "limit": self.limit });
        if !self.config.discover.values.is_empty() {
            knobs["values"] = json!(self.config.discover.values);
        }
        let print = self.fingerprint(Stage::Discover, &knobs, &files, &self.own_files(&marketplaces))?;
        self.stage::<ServerRecord, _>(Stage::Discover.folder(), &print, false, async |cx, out| {
            let crawl = self.crawl_context(&marketplaces).await?;
            let found = Box::pin(discover(&marketplaces, &crawl, self.limit, cx, out)).await;
            found.map(|discovered| discovered.summary).map_err(Failure::from)
        })
        .await
    }

    /// Files of the user's that sources read, such as an `mcpServers` config: one that has changed is read again.
    fn own_files(&self, marketplaces: &[Box<dyn Marketplace>]) -> Vec<PathBuf> {
        let filled = |text: &str| {
            let values = &self.config.discover.values;
            PathBuf::from(fill(text, |hole| values.get(&hole.name).cloned().unwrap_or_default()))
        };
        let paths = marketplaces.iter().flat_map(|marketplace| marketplace.templates()).map(filled);
        paths.filter(|path| path.is_file()).collect()
    }

    /// Says once how long the embedded model will take; an endpoint's speed is seen while it works.
    ///
    /// # Errors
    /// The model cannot be had or does not answer.
    pub async fn estimate(&self) -> Result<(), Failure> {
        let Some(lockstep) = model_of(&self.config, Role::Generator)?.lockstep() else { return Ok(()) };
        if self.config.mode == Mode::Replay {
            return Ok(());
        }
        let section = &self.config.generate;
        let at_once = self.at_once(section.concurrency, &[Role::Generator])?.min(lockstep).min(section.samples);
        let say = async || {
            let models = self.models(&[Role::Generator]).await?;
            let words = speed::estimate(models.role(Role::Generator), section.samples, at_once).await;
            self.events.note(words.map_err(|e| Failure::from_error(Exit::Environment, &e))?);
            Ok(())
        };
        self.estimated.get_or_try_init(say).await.copied()
    }

    async fn generate(&self) -> Result<StageInfo, Failure> {
        let tools = self.input::<Tool>(Stage::Harvest)?;
        let policies = self.policies()?;
        let servers = self.servers(&policies)?;
        let prompts = self.generate_prompts()?;
        let local = model_of(&self.config, Role::Generator)?.local;
        let section = &self.config.generate;
        let profile = section.profile.resolve(local);
        let (kinds, languages, lacking) = section.shares(profile)?;
        lacking.into_iter().for_each(|note| self.events.note(note));
        let roles = prompts.roles(&languages);
        let (seeds, policy) = (self.declarations.worlds()?, self.call_policy(&policies.networked(&servers))?);
        worlds::can_open(&tools, &servers, &seeds, &policy)?;
        let settings = GenerateSettings {
            samples: section.samples,
            per_tool: section.per_tool(local),
            per_call: section.per_call(local),
            profile,
            kinds,
            languages,
            evolve_depth: if section.evolve { section.evolve_depth } else { 0 },
            pace: Pace { concurrency: self.at_once(section.concurrency, &roles)?, max_failure_rate: section.max_failure_rate },
            refused: Arc::new(worlds::refused(&tools, &servers, &policy)),
            at_hand: Arc::new(worlds::at_hand(&servers, &seeds)),
            files: Arc::new(worlds::files(&servers, &seeds)),
        };
        let mut knobs = json!({
            "samples": settings.samples, "per_tool": settings.per_tool, "per_call": settings.per_call, "profile": settings.profile,
            "evolve_depth": settings.evolve_depth, "kinds": settings.kinds, "languages": settings.languages, "models": self.model_names(&roles)?,
        });
        if SampleKind::ALL.into_iter().any(|kind| needs_answers(kind) && settings.kinds.share(kind) > 0.0) {
            knobs["policy"] = self.policy_knobs();
        }
        let files: Vec<String> = prompts.all().iter().map(|p| format!("prompts/{}.md", p.id)).collect();
        let mut files: Vec<&str> = files.iter().map(String::as_str).collect();
        files.push("marketplaces/worlds/");
        if section.look {
            knobs["look"] = self.look_knobs(&policies.networked(&servers))?;
            files.push("marketplaces/locks/");
        }
        let inputs = [self.path_of::<Tool>(Stage::Harvest), self.path_of::<ServerRecord>(Stage::Discover)];
        let print = self.fingerprint(Stage::Generate, &knobs, &files, &inputs)?;
        let work = async |cx: &Context, out: &dyn Sink<Sample>| {
            self.estimate().await?;
            let models = self.models(&roles).await?;
            let settings = Box::pin(self.looked(&tools, &servers, &policies, settings, cx)).await?;
            Box::pin(generate(tools, &settings, &prompts, &models, cx, out)).await.map_err(Failure::from)
        };
        let info = Box::pin(self.stage::<Sample, _>(Stage::Generate.folder(), &print, false, work)).await?;
        if info.diversity.is_some() { Ok(info) } else { self.describe(info).await }
    }

    /// The prompts of generate, by their fixed ids.
    ///
    /// # Errors
    /// One is missing or cannot be used.
    pub fn generate_prompts(&self) -> Result<GeneratePrompts, Failure> {
        generate_prompts(&self.declarations)
    }

    async fn filter_samples(&self) -> Result<StageInfo, Failure> {
        let samples = self.input::<Sample>(Stage::Generate)?;
        let toolbox = self.toolbox()?;
        let pace = self.filter_pace(self.chain_of(Stage::FilterSamples))?;
        let inputs = [self.path_of::<Sample>(Stage::Generate), self.path_of::<Tool>(Stage::Harvest)];
        let print = self.chain_fingerprint(Stage::FilterSamples, self.chain_of(Stage::FilterSamples), &inputs)?;
        let before = self.rejudging(Stage::FilterSamples, &print)?;
        let exams = OnceLock::new();
        let work = async |cx: &Context, out: &dyn Sink<Sample>| {
            let chain = self.examined(Stage::FilterSamples, &toolbox, &before, pace, &exams).await?;
            Box::pin(filter_samples(samples, &chain, Arc::clone(&toolbox), pace, cx, out)).await.map_err(Failure::from)
        };
        let info = Box::pin(self.stage(Stage::FilterSamples.folder(), &print, true, work)).await?;
        let info = self.tell_exams(Stage::FilterSamples, info, exams.into_inner(), &before).await?;
        self.tell_unjudged(Stage::FilterSamples)?;
        Ok(info)
    }

    async fn filter_trajectories(&self) -> Result<StageInfo, Failure> {
        let trajectories = self.input::<Trajectory>(Stage::Rollout)?;
        let samples: HashMap<_, _> = self.input::<Sample>(Stage::FilterSamples)?.into_iter().map(|s| (s.id.clone(), s)).collect();
        let toolbox = self.toolbox()?;
        let pace = self.filter_pace(self.chain_of(Stage::FilterTrajectories))?;
        let inputs = [self.path_of::<Trajectory>(Stage::Rollout), self.path_of::<Sample>(Stage::FilterSamples)];
        let print = self.chain_fingerprint(Stage::FilterTrajectories, self.chain_of(Stage::FilterTrajectories), &inputs)?;
        let before = self.rejudging(Stage::FilterTrajectories, &print)?;
        let exams = OnceLock::new();
        let work = async |cx: &Context, out: &dyn Sink<Trajectory>| {
            let chain = self.examined(Stage::FilterTrajectories, &toolbox, &before, pace, &exams).await?;
            let toolbox = Arc::clone(&toolbox);
            Box::pin(filter_trajectories(trajectories, &samples, &chain, toolbox, pace, cx, out)).await.map_err(Failure::from)
        };
        let info = Box::pin(self.stage(Stage::FilterTrajectories.folder(), &print, true, work)).await?;
        let info = self.tell_exams(Stage::FilterTrajectories, info, exams.into_inner(), &before).await?;
        self.tell_unjudged(Stage::FilterTrajectories)?;
        self.tell_executable()?;
        Ok(info)
    }

    /// Says how many rows a filter could not judge, and why: such a stage looks finished.
    fn tell_unjudged(&self, stage: Stage) -> Result<(), Failure> {
        let mut counts: BTreeMap<String, (u64, String)> = BTreeMap::new();
        for verdict in self.input::<Verdict>(stage)?.into_iter().filter(|v| v.judgement == Judgement::Unjudged) {
            counts.entry(verdict.filter).or_insert((0, verdict.reason)).0 += 1;
        }
        for (filter, (count, reason)) in counts {
            self.events.note(format!("{stage}: {filter} could not judge {count} rows, the first because of: {reason}"));
        }
        Ok(())
    }

    async fn export(&self, name: &str) -> Result<StageInfo, Failure> {
        let (dataset, card) = self.declarations.dataset(name)?;
        let samples = self.input::<Sample>(Stage::FilterSamples)?;
        let sources = self.sources()?;
        let folder = format!("{}/{name}", Stage::Export.folder());
        let inputs = [
            self.path_of::<Sample>(Stage::FilterSamples),
            self.path_of::<Verdict>(Stage::FilterSamples),
            self.path_of::<Trajectory>(Stage::Rollout),
            self.path_of::<Trajectory>(Stage::FilterTrajectories),
            self.path_of::<Verdict>(Stage::FilterTrajectories),
            self.path_of::<ServerRecord>(Stage::Discover),
            self.path_of::<Tool>(Stage::Harvest),
        ];
        // Outcome files hold times and are no input by their bytes; what is read of them is.
        let failed: BTreeSet<&String> = sources.failed.iter().collect();
        let knobs = json!({ "dataset": name, "failed": failed });
        let print = self.fingerprint(Stage::Export, &knobs, &[&format!("datasets/{name}/")], &inputs)?;
        let info = self
            .stage::<ExportRow, _>(&folder, &print, false, async |cx, out| {
                export(samples, &dataset, &sources, cx, out).await.map_err(Failure::from)
            })
            .await?;
        if info.output_rows == 0 {
            return Err(Failure::new(Exit::Failures, format!("dataset `{name}` has no rows: every sample was dropped"))
                .hint(format!("the reasons are in `{folder}/outcomes.parquet` and in report.json")));
        }
        let policies = self.policies()?;
        let servers = facts::of_servers(sources.servers.values(), |server| policies.network(server) == Network::Full);
        let publication = Publication {
            dataset: &dataset,
            card,
            export: &info.fingerprint[..12],
            toolbox: sources.toolbox,
            servers,
            run: RunFacts {
                judges: self.judges()?,
                ..facts::of_run(self.run.path(), &folder, self.chains(), &self.declarations)?
            },
        };
        let folder = self.run.path().join(folder);
        publish::publish(&folder, publication)?;
        let written = profiles::write(&folder, &self.config.export.profiles, &self.declarations)?;
        written.into_iter().for_each(|words| self.events.note(words));
        Ok(info)
    }

    /// The models of all roles, and the one that embeds.
    ///
    /// # Errors
    /// A role's model is wrongly declared.
    pub fn models_by_role(&self) -> Result<BTreeMap<String, String>, Failure> {
        let mut models = self.model_names(&Role::ALL)?;
        models.insert("embedding".into(), embedder_name(&self.config)?);
        Ok(models)
    }

    /// The models that the filters ask, by role, and the one that embeds.
    fn judges(&self) -> Result<BTreeMap<String, String>, Failure> {
        let mut judges = BTreeMap::new();
        for chain in self.chains() {
            let needs = Chain::needs(self.declarations.chain(chain)?);
            judges.extend(self.model_names(&needs.roles)?);
            if needs.embedder {
                judges.insert("embedding".into(), embedder_name(&self.config)?);
            }
        }
        Ok(judges)
    }

    fn sources(&self) -> Result<Sources, Failure> {
        let by_sample = |rows: Vec<Trajectory>| rows.into_iter().map(|t| (t.sample_id.clone(), t)).collect();
        let mut verdicts: HashMap<String, Vec<Verdict>> = HashMap::new();
        for stage in [Stage::FilterSamples, Stage::FilterTrajectories] {
            for verdict in self.input::<Verdict>(stage)? {
                verdicts.entry(verdict.subject_id.clone()).or_default().push(verdict);
            }
        }
        Ok(Sources {
            servers: self.input::<ServerRecord>(Stage::Discover)?.into_iter().map(|s| (s.id.clone(), s)).collect(),
            toolbox: self.toolbox()?,
            run: by_sample(self.input::<Trajectory>(Stage::Rollout)?),
            passed: by_sample(self.input::<Trajectory>(Stage::FilterTrajectories)?),
            verdicts,
            failed: self.failed(Stage::Rollout)?.chain(self.failed(Stage::FilterTrajectories)?).collect(),
        })
    }

    /// Input ids of the rows that failed in a stage.
    fn failed(&self, stage: Stage) -> Result<impl Iterator<Item = String>, Failure> {
        let outcomes = self.input::<Outcome>(stage)?.into_iter();
        Ok(outcomes.filter(|o| o.outcome == OutcomeKind::Failed).map(|o| o.input_id))
    }

    /// Opens a stage's folder and journal, lets `work` end its rows, and finishes it.
    ///
    /// # Errors
    /// The folder or journal cannot be used, or the work fails.
    pub async fn stage<O, F>(&self, folder: &str, fingerprint: &str, verdicts: bool, work: F) -> Result<StageInfo, Failure>
    where
        O: Artifact,
        F: AsyncFnOnce(&Context, &dyn Sink<O>) -> Result<Summary, Failure>,
    {
        let opened = self.run.stage(folder, fingerprint).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
        let dir = match opened {
            StageState::Done(info) => {
                self.events.emit(Event::StageReused { stage: folder.into(), summary: info.summary() });
                return Ok(*info);
            }
            StageState::Open(dir) => dir,
        };
        if !self.worked.swap(true, Ordering::Relaxed) {
            self.tell_handed_in()?;
        }
        if let Some(old) = dir.superseded() {
            let old = old.strip_prefix(self.run.path()).unwrap_or(old).display();
            self.events
                .note(format!("{folder}: settings, declarations or input have changed, it is made again; the old one is {old}"));
        }
        let fail = |e: mcpmill_store::journal::JournalError| Failure::from_error(Exit::Unexpected, &e);
        let before = dir.counts_at_begin(self.counts()?).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
        let journal = Journal::<O>::open(dir, JournalOptions { verdicts, ..JournalOptions::default() }).map_err(fail)?;
        let cx = Context {
            stage: folder.into(),
            events: self.events.clone(),
            cancel: self.cancel.clone(),
            recorder: Arc::clone(&self.recorder),
        };
        // Downloads and the loading of a model watch no token; dropping them keeps what they have.
        let worked = tokio::select! {
            worked = work(&cx, &journal) => worked,
            () = self.cancel.cancelled() => Err(StageError::Interrupted.into()),
        };
        let mut summary = match worked {
            Ok(summary) => summary,
            Err(failure) => {
                // Rows that failed because something was down are tried again when the run goes on.
                if matches!(failure.exit, Exit::Failures | Exit::Environment) {
                    journal.forget_failed().map_err(fail)?;
                }
                return Err(failure);
            }
        };
        let now = self.counts()?;
        summary.repeated = now.repeated.saturating_sub(before.repeated);
        summary.settle(now.accounts.since(&before.accounts));
        let info = journal.finish(&summary).map_err(fail)?;
        self.events.emit(Event::StageFinished { stage: folder.into(), summary });
        Ok(info)
    }

    /// Hash of all that the rows of a stage depend on. What cannot change them, such as concurrency
    /// and time limits, is left out.
    fn fingerprint(&self, stage: Stage, knobs: &Value, files: &[&str], inputs: &[PathBuf]) -> Result<String, Failure> {
        let mut hashes = Vec::new();
        for path in inputs {
            let hash = file_hash(path)
                .map_err(|e| Failure::new(Exit::Unexpected, format!("failed to read `{}`: {e}", path.display())))?;
            hashes.push(hash);
        }
        let parts = json!({
            "stage": stage.folder(), "version": STAGE_VERSION, "settings": knobs, "declarations": self.declarations.hash(files), "inputs": hashes,
        });
        Ok(content_hash(&parts))
    }

    /// The chains of both filter stages.
    fn chains(&self) -> [&str; 2] {
        [Stage::FilterSamples, Stage::FilterTrajectories].map(|stage| self.chain_of(stage))
    }

    /// The chain of a filter stage; empty for any other.
    fn chain_of(&self, stage: Stage) -> &str {
        self.config.filter.chain(stage).unwrap_or_default()
    }

    fn chain_fingerprint(&self, stage: Stage, chain: &str, inputs: &[PathBuf]) -> Result<String, Failure> {
        let needs = Chain::needs(self.declarations.chain(chain)?);
        let embedder = if needs.embedder { Some(embedder_name(&self.config)?) } else { None };
        let mut knobs = json!({ "models": self.model_names(&needs.roles)?, "embedder": embedder });
        if needs.held_out {
            knobs["held_out"] = json!(self.declarations.held_out(&self.config.filter.decontaminate)?.hash());
        }
        let mut files: Vec<String> = needs.prompts.into_iter().map(|id| format!("prompts/{id}.md")).collect();
        if needs.programs {
            // Which of the files a program reads is its own affair.
            files.push("filters/".into());
        }
        let chain = format!("filters/{chain}.toml");
        let files: Vec<&str> = files.iter().map(String::as_str).chain([chain.as_str(), exams::PLANTED]).collect();
        self.fingerprint(stage, &knobs, &files, inputs)
    }

    fn model_names(&self, roles: &[Role]) -> Result<BTreeMap<String, String>, Failure> {
        roles.iter().map(|&role| Ok((role.to_string(), model_of(&self.config, role)?.name))).collect()
    }

    /// A chain over these tools, whose prompts are tried `times` as often as they say. What a step works with and is not
    /// there leaves its rows unjudged.
    async fn chain(&self, id: &str, toolbox: &Arc<Toolbox>, times: u32) -> Result<Chain, Failure> {
        let text = self.declarations.chain(id)?;
        let needs = Chain::needs(text);
        let unused = || "no step of the chain needs it".to_owned();
        let models =
            if needs.roles.is_empty() { Err(unused()) } else { self.models(&needs.roles).await.map_err(|e| e.chain.join(": ")) };
        let embedder = if needs.embedder { self.embedder().await.map_err(|e| e.chain.join(": ")) } else { Err(unused()) };
        needs.prompts.iter().try_for_each(|id| self.declarations.prompt(id).map(drop))?;
        let prompt = |id: &str| {
            let mut prompt: Prompt = self.declarations.prompt(id).ok()?;
            prompt.tries *= times;
            Some(prompt)
        };
        let programs = if needs.programs { self.programs().await.map_err(|e| e.chain.join(": ")) } else { Err(unused()) };
        let held_out = if needs.held_out { self.held_out()? } else { Arc::default() };
        let parts = Parts { embedder, models, toolbox: Arc::clone(toolbox), programs, held_out, prompt: &prompt };
        Chain::parse(id, text, &parts).map_err(|e| Failure::usage(e.to_string()).hint(format!("see filters/{id}.toml")))
    }

    /// What runs filters of the user's.
    async fn programs(&self) -> Result<Programs, Failure> {
        let filters = Some(self.declarations.folder().join("filters")).filter(|folder| folder.is_dir());
        Ok(Programs { process: Arc::new(self.edges.cage().await?), filters })
    }

    /// The evaluation sets that rows must not repeat.
    fn held_out(&self) -> Result<Arc<HeldOut>, Failure> {
        let held_out = self.declarations.held_out(&self.config.filter.decontaminate)?;
        held_out.fault().map_or_else(|| Ok(Arc::new(held_out)), |why| Err(Failure::usage(why)))
    }

    /// The models of these roles; each model is made once.
    ///
    /// # Errors
    /// As [`Edges::models`].
    pub async fn models(&self, roles: &[Role]) -> Result<Models, Failure> {
        self.edges.models(&self.recorder, roles).await
    }

    /// The embedding model, made at the first call.
    ///
    /// # Errors
    /// As [`Edges::embedder`].
    pub async fn embedder(&self) -> Result<RecordedEmbedder, Failure> {
        self.embedder.get_or_try_init(|| self.edges.embedder(&self.recorder)).await.cloned()
    }

    fn toolbox(&self) -> Result<Arc<Toolbox>, Failure> {
        self.write_twins()?;
        let twins: Vec<Twin> = self.input(Stage::Harvest)?;
        Ok(Arc::new(Toolbox::new(self.input::<Tool>(Stage::Harvest)?).with_twins(&twins)))
    }

    fn filter_pace(&self, chain: &str) -> Result<Pace, Failure> {
        let roles = Chain::needs(self.declarations.chain(chain)?).roles;
        Ok(Pace {
            concurrency: self.at_once(self.config.filter.concurrency, &roles)?,
            max_failure_rate: self.config.filter.max_failure_rate,
        })
    }

    /// 0 picks as many rows at a time as the embedded model answers in lockstep where it plays one of the roles, and
    /// 16 for endpoints.
    ///
    /// # Errors
    /// A role's model is wrongly declared.
    pub fn at_once(&self, configured: usize, roles: &[Role]) -> Result<usize, Failure> {
        let mut lockstep = None;
        for &role in roles {
            lockstep = lockstep.max(model_of(&self.config, role)?.lockstep());
        }
        Ok(match lockstep {
            _ if configured > 0 => configured,
            Some(lockstep) if self.config.mode != Mode::Replay => lockstep,
            _ => 16,
        })
    }

    fn path_of<T: Table>(&self, stage: Stage) -> PathBuf {
        self.run.path().join(stage.folder()).join(T::NAME).with_extension("parquet")
    }

    /// The rows of a finished stage.
    fn input<T: Table>(&self, stage: Stage) -> Result<Vec<T>, Failure> {
        read_input(self.run.path(), stage)
    }
}

/// The rows of a finished stage of the run in `run`.
///
/// # Errors
/// The stage is not done, or its file cannot be read.
pub fn read_input<T: Table>(run: &Path, stage: Stage) -> Result<Vec<T>, Failure> {
    let folder = run.join(stage.folder());
    let done = stage_info(&folder).map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
    if done.is_none() {
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        return Err(Failure::usage(format!("stage `{stage}` of run `{name}` is not done"))
            .hint(format!("`mcpmill run --to {stage}` does it")));
    }
    read_all(&folder.join(T::NAME).with_extension("parquet")).map_err(|e| Failure::from_error(Exit::Unexpected, &e))
}

/// The prompts of generate, by their fixed ids.
///
/// # Errors
/// One is missing or cannot be used.
pub fn generate_prompts(declarations: &Declarations) -> Result<GeneratePrompts, Failure> {
    GeneratePrompts::read(|id| declarations.prompt(id))
}

//! Chain files: ordered steps with their thresholds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use mcpmill_core::{
    edge::RecordedEmbedder,
    record::{ExamEnd, Judgement, Verdict, Wait},
};
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::OnceCell;

use super::{
    Filter, Plant, Taken,
    command::{Command, Programs, Queue},
    decontaminated::{Decontaminated, HeldOut},
    duplicates::Duplicates,
    embedding_similarity::{Bounds, ByModel, EmbeddingSimilarity},
    grounded::Grounded,
    injection::Injection,
    language::Language,
    placeholders::Placeholders,
    private_data::PrivateData,
    quality_score::QualityScore,
    response_valid::ResponseValid,
    schema_valid::SchemaValid,
    tool_invocation::ToolInvocation,
    tool_named::ToolNamed,
    turns::Turns,
};
use crate::{
    models::{Models, Role},
    prompt::Prompt,
};
use mcpmill_core::toolbox::{Distract, Toolbox};

/// A chain, ready to judge.
pub struct Chain {
    /// Its id: the file name without ending.
    pub id: String,
    /// Its steps, in order.
    pub(super) steps: Vec<Placed>,
    /// Share of the rows that every step judges, dropped or not.
    pub(super) audit: f64,
    /// Whether a step that fails its exam ends the run well all the same.
    pub(super) tolerates: bool,
    /// Verdicts of an earlier pass that stand, by row and step.
    pub(super) decided: HashMap<(String, String), Verdict>,
}

/// A step in its chain.
pub(super) struct Placed {
    pub(super) filter: Box<dyn Filter>,
    /// The same without its models: what it can say of a row by itself.
    pub(super) mute: Box<dyn Filter>,
    /// Why what it works with is not there.
    pub(super) absent: Option<String>,
    pub(super) worth: Worth,
}

/// What the verdicts of a step are worth.
pub(super) enum Worth {
    /// They count.
    Trusted,
    /// Nothing: it failed its exam, so.
    Nothing(String),
    /// Not known before this is there.
    Open(Wait, String),
}

/// A chain file that cannot be used.
#[derive(Debug, Error)]
#[error("failed to read filter chain `{id}`: {detail}")]
pub struct ChainError {
    /// The chain.
    pub id: String,
    /// What is wrong with it.
    pub detail: String,
}

/// What a chain works with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Whether a step embeds.
    pub embedder: bool,
    /// Whether a step compares with evaluation sets.
    pub held_out: bool,
    /// Prompts its steps name.
    pub prompts: Vec<String>,
    /// Roles its steps ask.
    pub roles: Vec<Role>,
    /// Whether a step runs a program of the user's.
    pub programs: bool,
}

/// What steps are made of.
pub struct Parts<'a> {
    /// The embedding model, or why there is none: the step is then `unjudged`.
    pub embedder: Result<RecordedEmbedder, String>,
    /// The models by role, or why there are none.
    pub models: Result<Models, String>,
    /// All tools.
    pub toolbox: Arc<Toolbox>,
    /// What runs programs of the user's, or why there is none.
    pub programs: Result<Programs, String>,
    /// The texts of evaluation sets that rows must not repeat.
    pub held_out: Arc<HeldOut>,
    /// Prompts by id.
    pub prompt: &'a dyn Fn(&str) -> Option<Prompt>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    on_failed_exam: OnFailedExam,
    #[serde(default = "audit")]
    audit: f64,
    step: Vec<toml::Table>,
}

/// What a failed exam means for the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OnFailedExam {
    /// It ends with exit code 3.
    #[default]
    Fail,
    /// The verdicts of the step are `unjudged`, and that is all.
    Unjudged,
}

/// One row in ten is judged by all steps where the chain does not say.
fn audit() -> f64 {
    0.1
}

/// One `[[step]]`, by its kind.
#[derive(Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum Step {
    SchemaValid {
        name: String,
    },
    Duplicates {
        name: String,
    },
    Placeholders {
        name: String,
    },
    Grounded {
        name: String,
    },
    Language {
        name: String,
    },
    ToolNamed {
        name: String,
    },
    Injection {
        name: String,
    },
    PrivateData {
        name: String,
    },
    Decontaminated {
        name: String,
        /// Share of a text's word n-grams above which it repeats one of an evaluation set.
        overlap: f64,
        /// Cosine above which it does, by embedding model; a model that is not named embeds nothing.
        #[serde(default)]
        similarity: BTreeMap<String, f64>,
    },
    EmbeddingSimilarity {
        name: String,
        /// For any model that is not named.
        max: Option<f64>,
        min: Option<f64>,
        /// Thresholds by embedding model; one that has none judges nothing.
        #[serde(default)]
        by_model: BTreeMap<String, Bounds>,
    },
    ToolInvocation {
        name: String,
        prompt: String,
        /// What is asked of samples that no tool is to fit.
        #[serde(default = "none")]
        none_prompt: String,
        verifiers: Vec<Role>,
        distractors: usize,
        /// Which tools these are.
        #[serde(default)]
        distract: Distract,
        drop_when: DropWhen,
    },
    QualityScore {
        name: String,
        prompt: String,
        min: f64,
        #[serde(default)]
        min_by_model: BTreeMap<String, f64>,
    },
    ResponseValid {
        name: String,
        prompt: String,
        longest: usize,
    },
    Turns {
        name: String,
        prompt: String,
    },
    Command {
        name: String,
        /// Program and arguments; it starts in the folder `filters`.
        command: Vec<String>,
        #[serde(default)]
        network: bool,
        /// Most time for a group of rows.
        #[serde(default = "minute")]
        seconds: u64,
        /// What its exam plants.
        #[serde(default)]
        plants: Vec<String>,
    },
}

fn minute() -> u64 {
    60
}

/// The prompt of steps that name none.
fn none() -> String {
    "none".into()
}

/// When the tool invocation step drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DropWhen {
    /// When no verifier finds the tool, as in MCP-Flow.
    AllMiss,
    /// When one verifier misses it.
    AnyMisses,
}

impl Chain {
    /// Reads a chain file and builds its steps.
    ///
    /// # Errors
    /// It is no TOML, a kind or key is unknown, a prompt does not exist, or it has no steps.
    pub fn parse(id: &str, text: &str, parts: &Parts<'_>) -> Result<Self, ChainError> {
        let fail = |detail: String| ChainError { id: id.to_owned(), detail };
        let file: File = toml::from_str(text).map_err(|e| fail(e.message().to_owned()))?;
        if file.step.is_empty() {
            return Err(fail("it has no steps".into()));
        }
        if !(0.0..=1.0).contains(&file.audit) {
            return Err(fail("`audit` lies between 0 and 1".into()));
        }
        let build = |(i, table): (usize, toml::Table)| {
            let step: Step = table.try_into().map_err(|e: toml::de::Error| fail(format!("step {}: {}", i + 1, e.message())))?;
            let absent = step.absent(parts);
            let nobody = || "nobody is asked".to_owned();
            let toolbox = Arc::clone(&parts.toolbox);
            let without = Parts {
                embedder: Err(nobody()),
                models: Err(nobody()),
                toolbox,
                programs: Err(nobody()),
                held_out: Arc::clone(&parts.held_out),
                prompt: parts.prompt,
            };
            let build = |parts| build(step.clone(), parts).map_err(|detail| fail(format!("step {}: {detail}", i + 1)));
            Ok(Placed { filter: build(parts)?, mute: build(&without)?, absent, worth: Worth::Trusted })
        };
        let steps: Vec<Placed> = file.step.into_iter().enumerate().map(build).collect::<Result<_, _>>()?;
        let mut names: Vec<&str> = steps.iter().map(|step| step.filter.name()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(fail(format!("two steps have the name `{}`", twice[0])));
        }
        let tolerates = file.on_failed_exam == OnFailedExam::Unjudged;
        Ok(Self { id: id.to_owned(), steps, audit: file.audit, tolerates, decided: HashMap::new() })
    }

    /// Lets the verdicts of an earlier pass stand that decided something; the others are sought again.
    #[must_use]
    pub fn with_decided(mut self, verdicts: Vec<Verdict>) -> Self {
        let decided = verdicts.into_iter().filter(|verdict| verdict.judgement != Judgement::Unjudged);
        self.decided = decided.map(|verdict| ((verdict.subject_id.clone(), verdict.filter.clone()), verdict)).collect();
        self
    }

    /// Takes the exams of its steps to heart: verdicts of one that failed are `unjudged` from now on.
    #[must_use]
    pub fn heeding(mut self, taken: &[Taken]) -> Self {
        for Taken { exam, waits } in taken {
            let Some(step) = self.steps.iter_mut().find(|step| step.filter.name() == exam.filter) else { continue };
            step.worth = match (exam.end, waits) {
                (_, Some((wait, cause))) => Worth::Open(*wait, cause.clone()),
                (ExamEnd::Failed, None) => Worth::Nothing(exam.cause.clone().unwrap_or_default()),
                (ExamEnd::Passed | ExamEnd::NotTaken, None) => Worth::Trusted,
            };
        }
        self
    }

    /// What the steps of a chain file work with; nothing for a file that cannot be read.
    pub fn needs(text: &str) -> Needs {
        let mut needs = Needs::default();
        let steps = toml::from_str::<File>(text).map(|file| file.step).unwrap_or_default();
        steps.into_iter().filter_map(|table| table.try_into::<Step>().ok()).for_each(|step| step.needs(&mut needs));
        needs
    }

    /// The names of the steps that ask somebody: what these could not judge, another pass may.
    pub fn asking(text: &str) -> BTreeSet<String> {
        let steps = toml::from_str::<File>(text).map(|file| file.step).unwrap_or_default();
        let asks = |table: &toml::Table| {
            let mut needs = Needs::default();
            table.clone().try_into::<Step>().ok()?.needs(&mut needs);
            Some(needs.embedder || needs.programs || !needs.roles.is_empty()).filter(|asks| *asks)
        };
        let names = steps.iter().filter(|table| asks(table).is_some());
        names.filter_map(|table| table.get("name")?.as_str().map(str::to_owned)).collect()
    }

    /// The share of rows that all its steps judge, see [`is_audited`](super::is_audited).
    pub fn audit_of(text: &str) -> f64 {
        toml::from_str::<File>(text).map_or_else(|_| audit(), |file| file.audit)
    }

    /// How many questions the row of a chain may ask one after the other: the most rounds of batches it can need. The
    /// steps do not wait for each other. `tries` are those of a prompt.
    pub fn most_rounds(text: &str, tries: impl Fn(&str) -> u32) -> u32 {
        let steps = toml::from_str::<File>(text).map(|file| file.step).unwrap_or_default();
        let rounds = steps.into_iter().filter_map(|table| table.try_into::<Step>().ok()).map(|step| match step {
            Step::ToolInvocation { prompt, none_prompt, verifiers, .. } => {
                tries(&prompt).max(tries(&none_prompt)) * verifiers.len() as u32
            }
            Step::QualityScore { prompt, .. } | Step::ResponseValid { prompt, .. } | Step::Turns { prompt, .. } => tries(&prompt),
            _ => 0,
        });
        rounds.max().unwrap_or_default()
    }
}

impl Step {
    /// Adds what it works with.
    fn needs(&self, needs: &mut Needs) {
        match self {
            Self::Decontaminated { similarity, .. } => {
                needs.embedder |= !similarity.is_empty();
                needs.held_out = true;
            }
            Self::EmbeddingSimilarity { .. } => needs.embedder = true,
            Self::Command { .. } => needs.programs = true,
            Self::ToolInvocation { prompt, none_prompt, verifiers, distract, .. } => {
                needs.embedder |= distract.embeds();
                needs.prompts.extend([prompt.clone(), none_prompt.clone()]);
                needs.roles.extend(verifiers);
            }
            Self::QualityScore { prompt, .. } | Self::ResponseValid { prompt, .. } | Self::Turns { prompt, .. } => {
                needs.prompts.push(prompt.clone());
                needs.roles.push(Role::Judge);
            }
            _ => {}
        }
    }

    /// Why something that it works with is not there.
    fn absent(&self, parts: &Parts<'_>) -> Option<String> {
        if matches!(self, Self::Decontaminated { .. }) {
            // Without vectors it still compares words, and says so.
            return None;
        }
        if let (Self::EmbeddingSimilarity { max, min, by_model, .. }, Ok(embedder)) = (self, &parts.embedder) {
            let bounds = ByModel::new(*max, *min, by_model.clone()).ok()?;
            return bounds.of(embedder.model()).err().map(|why| why.to_string());
        }
        let mut needs = Needs::default();
        self.needs(&mut needs);
        let embedder = parts.embedder.as_ref().err().filter(|_| needs.embedder);
        let models = parts.models.as_ref().err().filter(|_| !needs.roles.is_empty());
        let programs = parts.programs.as_ref().err().filter(|_| needs.programs);
        embedder.or(models).or(programs).cloned()
    }
}

fn build(step: Step, parts: &Parts<'_>) -> Result<Box<dyn Filter>, String> {
    let prompt = |id: &str| (parts.prompt)(id).ok_or_else(|| format!("there is no prompt `{id}`"));
    Ok(match step {
        Step::SchemaValid { name } => Box::new(SchemaValid { name }),
        Step::Duplicates { name } => Box::new(Duplicates { name, found: Mutex::default() }),
        Step::Placeholders { name } => Box::new(Placeholders { name }),
        Step::Grounded { name } => Box::new(Grounded { name }),
        Step::Language { name } => Box::new(Language { name }),
        Step::ToolNamed { name } => Box::new(ToolNamed { name }),
        Step::Injection { name } => Box::new(Injection { name }),
        Step::PrivateData { name } => Box::new(PrivateData { name }),
        Step::Decontaminated { name, overlap, similarity } => Box::new(Decontaminated {
            name,
            overlap,
            similarity,
            held_out: Arc::clone(&parts.held_out),
            embedder: parts.embedder.clone(),
            vectors: OnceCell::new(),
        }),
        Step::EmbeddingSimilarity { name, max, min, by_model } => {
            let bounds = ByModel::new(max, min, by_model)?;
            Box::new(EmbeddingSimilarity { name, bounds, embedder: parts.embedder.clone() })
        }
        Step::ToolInvocation { name, prompt: id, none_prompt, verifiers, distractors, distract, drop_when } => {
            if verifiers.is_empty() || distractors == 0 {
                return Err("want at least one verifier and one distractor".into());
            }
            let toolbox = Arc::clone(&parts.toolbox);
            Box::new(ToolInvocation {
                name,
                prompt: prompt(&id)?,
                none_prompt: prompt(&none_prompt)?,
                verifiers,
                distractors,
                drop_when,
                models: parts.models.clone(),
                toolbox,
                distract,
                embedder: parts.embedder.clone(),
                drawn: OnceCell::new(),
            })
        }
        Step::QualityScore { name, prompt: id, min, min_by_model } => {
            Box::new(QualityScore { name, prompt: prompt(&id)?, min, min_by_model, models: parts.models.clone() })
        }
        Step::ResponseValid { name, prompt: id, longest } => {
            Box::new(ResponseValid { name, prompt: prompt(&id)?, longest, models: parts.models.clone() })
        }
        Step::Command { command, .. } if command.is_empty() => return Err("`command` names no program".into()),
        Step::Command { name, command, network, seconds, plants } => Box::new(Command {
            name,
            command,
            network,
            seconds,
            plants: plants.iter().map(|plant| Plant::parse(plant)).collect::<Result<_, _>>()?,
            programs: parts.programs.clone(),
            rows: Queue::default(),
        }),
        Step::Turns { name, prompt: id } => Box::new(Turns { name, prompt: prompt(&id)?, models: parts.models.clone() }),
    })
}

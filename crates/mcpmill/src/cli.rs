//! The command line: what others script against.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use mcpmill_core::schema_view::Provider;

use crate::stage::Stage;

/// Turns MCP servers into training data for small tool-calling models, and measures them
#[derive(Debug, Parser)]
#[command(name = "mcpmill", version, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Flags that every verb takes.
    #[command(flatten)]
    pub global: Global,
}

/// Flags that every verb takes.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Settings file; without it the nearest mcpmill.toml is used
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Override one setting, such as generate.samples=300 (repeatable)
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// The run to work in: latest or an id
    #[arg(long, global = true, value_name = "ID", default_value = "latest")]
    pub run: String,
    /// Take only the first N servers that are discovered
    #[arg(long, global = true, value_name = "N")]
    pub limit: Option<usize>,
    /// Fetch nothing that is not in the cache yet
    #[arg(long, global = true)]
    pub offline: bool,
    /// Run third-party programs without the cage (your choice, at your risk)
    #[arg(long, global = true)]
    pub unsandboxed: bool,
    /// How to print data
    #[arg(long, global = true, value_enum, default_value = "human")]
    pub format: Format,
}

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Human,
    /// For programs.
    Json,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Do the whole line: discover, harvest, generate, filter, rollout, filter, export
    Run {
        /// First stage to do; those before it must be done
        #[arg(long, value_parser = Stage::parse, value_name = "STAGE")]
        from: Option<Stage>,
        /// Last stage to do
        #[arg(long, value_parser = Stage::parse, value_name = "STAGE")]
        to: Option<Stage>,
        /// Start a new run even when an unfinished one could be continued
        #[arg(long)]
        new: bool,
        /// Put questions off.
        #[command(flatten)]
        batch: Batching,
    },
    /// Find servers in the marketplaces
    Discover {
        /// Save every page that is fetched, without secrets, as a fixture; below marketplaces/fixtures/ `check` tries declarations on it; begins a new run
        #[arg(long, value_name = "DIR")]
        record: Option<PathBuf>,
        /// Begin a new run: crawls again, and asks only for what changed since the crawl before
        #[arg(long)]
        new: bool,
    },
    /// Start every server and keep its tools
    Harvest,
    /// Write instructions and calls for the tools
    Generate(Batching),
    /// Judge samples or trajectories
    Filter {
        /// The chain of a stage: function-call (samples) or trajectory (after rollout) unless the settings name others
        #[arg(long, value_name = "NAME")]
        chain: String,
        /// Of a stage that is done, judge again what a filter could not judge: a model was down, or its reply was unusable
        #[arg(long)]
        rejudge: bool,
        /// Put questions off.
        #[command(flatten)]
        batch: Batching,
    },
    /// Run surviving calls on the live servers, in the cage
    Rollout,
    /// Write the datasets
    Export {
        /// Write the rows as this trainer reads them, in place of those that `export.profiles` names (repeatable): trl,
        /// axolotl, llamafactory, ms-swift, unsloth, openai, hermes, or a file of your own in datasets/profiles/
        #[arg(long = "profile", value_name = "NAME")]
        profiles: Vec<String>,
    },
    /// Show the harvested tools as a provider takes them, and what was altered for it
    Tools {
        /// Whose rules: openai-strict, openai, gemini or anthropic
        #[arg(long, value_name = "NAME", default_value = "openai-strict")]
        provider: Provider,
    },
    /// Write report.json and report.html of a run: yields, exams, costs, servers, and rows to look at
    Report {
        /// Rows to show of every filter, dropped and kept each
        #[arg(long, value_name = "N", default_value_t = crate::report::ROWS, value_parser = clap::value_parser!(u16).range(0..=500))]
        rows: u16,
    },
    /// Measure models
    Eval {
        /// What to measure.
        #[command(subcommand)]
        what: Eval,
    },
    /// Look at the recorded exchanges, hand them on or take them in
    Cache {
        /// What to do with them.
        #[command(subcommand)]
        what: Cache,
    },
    /// Hand in the files of --batch, and take their answers
    Batch {
        /// What to do with them.
        #[command(subcommand)]
        what: Batch,
    },
    /// Read every declaration, try marketplaces on their saved pages and say what is wrong, offline
    Check,
    /// Explain a setting, stage, prompt, filter chain, marketplace or dataset
    Explain {
        /// For instance config, harvest, prompts/call, filters/function-call
        what: String,
    },
    /// Write mcpmill.toml and the five declaration folders here, to be changed
    Init,
    /// Say what is there, what is missing and how to get it
    Doctor,
    /// Remove what a killed run left behind
    Clean,
}

/// Whether questions are put off.
#[derive(Clone, Debug, Args)]
pub struct Batching {
    /// Write questions to files for a provider's batch API (in the run's folder, or FILE) in place of asking them, and
    /// stop with exit code 6; `mcpmill batch import` takes the answers, and the same command goes on
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub batch: Option<Option<PathBuf>>,
}

/// What is done with batches.
#[derive(Debug, Subcommand)]
pub enum Batch {
    /// Take answers into the exchange store: a provider's output, or lines {custom_id, content} made anywhere
    Import {
        /// Files of answers
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Hand a file in at the endpoint it was written for
    Submit {
        /// A file that --batch wrote
        file: PathBuf,
        /// Hand it in though it was handed in before: both are paid for
        #[arg(long)]
        again: bool,
    },
    /// Say how far a batch is
    Status {
        /// As `batch submit` said it
        id: String,
    },
    /// Get the answers of a batch and take them in
    Fetch {
        /// As `batch submit` said it
        id: String,
    },
}

/// What is done with recorded exchanges.
#[derive(Debug, Subcommand)]
pub enum Cache {
    /// Count them by kind
    Stats,
    /// Write those of a run to a file that `exchange_store` can name in replay; refused while one holds a path of
    /// this machine or the shape of a secret
    Export {
        /// Ends in .jsonl.zst
        file: PathBuf,
        /// Those of all runs
        #[arg(long)]
        all: bool,
    },
    /// Remove installed servers that were not used for some time; they are installed again when needed
    Prune {
        /// Not used, or with `--exchanges` recorded, for this many days
        #[arg(long, value_name = "N", default_value_t = 30)]
        days: u64,
        /// And what npm and uv keep of packages
        #[arg(long)]
        packages: bool,
        /// And recorded exchanges that no run below `runs_dir` recorded or was given: they would be asked, and paid,
        /// for again
        #[arg(long)]
        exchanges: bool,
    },
    /// Take a file written by `cache export` into the store
    Import {
        /// The file
        file: PathBuf,
    },
}

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Eval {
    /// Tool selection on the held-out rows of an export: the embedding baseline and the solver
    Select {
        /// Suites of eval/
        #[arg(long = "suite", value_name = "ID", default_values = ["select-10", "select-100"])]
        suites: Vec<String>,
        /// JSON lines of further tools, for runs with fewer tools than candidates
        #[arg(long, value_name = "FILE")]
        tools: Option<PathBuf>,
    },
    /// The thresholds of the step embedding-similarity for the embedding model in use, and how well they do
    Similarity {
        /// JSON lines of labelled rows in place of those of filters/fixtures/similarity/
        #[arg(long, value_name = "FILE")]
        pairs: Option<PathBuf>,
        /// Largest share of the good rows that each threshold may lose
        #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
        false_rejects: f64,
    },
    /// How well the step response-valid tells answers of real servers apart
    Responses {
        /// JSON lines of labelled answers in place of those of filters/fixtures/responses/
        #[arg(long, value_name = "FILE")]
        rows: Option<PathBuf>,
        /// Ask no judge: what structure leaves open is unjudged
        #[arg(long)]
        structure: bool,
    },
}

//! Harvest: start every server, list its tools page by page, keep them verbatim.

mod listing;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use mcpmill_core::{
    drive::{Context, Done, Pace, Sink, StageError, drive},
    edge::{
        ConnectError, Connector, ExchangeError, ExchangeKind, Network, Recorder, ServerInfo, ToolError, ToolErrorKind,
        ToolRunner, WorldSpec,
    },
    event::Summary,
    id::ServerId,
    record::{HarvestOutcome, Outcome, OutcomeKind, ServerRecord, Tool, ToolDraft},
    schema::fault_2020_12,
    text::shown,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::listed;
use listing::Listing;

/// What an outcome says of a server that ran with the network.
const WITH_NETWORK: &str = "network: full";

/// What harvest may do.
#[derive(Clone, Debug)]
pub struct HarvestSettings {
    /// Servers at once.
    pub concurrency: usize,
    /// Pages of a tool list that are followed; the rest is cut off and said.
    pub max_pages: usize,
    /// Tools of one server that are kept.
    pub max_tools: usize,
    /// Whether a server that cannot be started here has the tools its marketplace recorded of it.
    pub listed_tools: bool,
    /// World seeds by name.
    pub worlds: Arc<BTreeMap<String, WorldSpec>>,
    /// Servers that run with the network; all others have none.
    pub networked: Arc<BTreeSet<ServerId>>,
}

/// What a harvest of one server brought: the recorded exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Harvested {
    /// What became of it.
    pub outcome: HarvestOutcome,
    /// Why, when it is not `ready`.
    pub detail: Option<String>,
    /// The end of its error output, when it failed.
    pub stderr: Option<String>,
    /// What it says of itself.
    pub info: ServerInfo,
    /// Its tools, in its order.
    pub tools: Vec<ToolDraft>,
}

/// Harvests every server. A server that cannot be installed or started is an outcome.
///
/// # Errors
/// Interrupted, the journal fails, or no server at all gave a tool.
pub async fn harvest(
    servers: Vec<ServerRecord>,
    settings: &HarvestSettings,
    connector: Arc<dyn Connector>,
    cx: &Context,
    out: &dyn Sink<Tool>,
) -> Result<Summary, StageError> {
    // A server that does not start is data; only a harvest without any tool is a failure.
    let pace = Pace { concurrency: settings.concurrency, max_failure_rate: 1.0 };
    let compared = Compared::default();
    let summary = drive(servers, pace, cx, out, |server| {
        let connector = Arc::clone(&connector);
        let recorder = Arc::clone(&cx.recorder);
        let compared = &compared;
        async move { one(&server, settings, connector.as_ref(), &recorder, compared).await }
    })
    .await?;
    if let Some(words) = compared.words() {
        cx.events.note(words);
    }
    if summary.output_rows == 0 {
        let stage = &cx.stage;
        let detail = format!(
            "none of {} servers gave a tool; their causes are in `{stage}/parts` and in the run's events.jsonl",
            summary.input_rows
        );
        return Err(StageError::Empty { stage: cx.stage.clone(), detail });
    }
    Ok(summary)
}

/// The variables of a server as questions name them: what changes its answer. Whether one is required
/// only decides whether it is asked at all.
pub(crate) fn given(server: &ServerRecord) -> Vec<Value> {
    server.env.iter().map(|v| json!({ "name": v.name, "value": v.value, "secret": v.secret })).collect()
}

/// Servers whose tools a marketplace had recorded.
#[derive(Default)]
struct Compared {
    all: AtomicUsize,
    other: AtomicUsize,
    instead: AtomicUsize,
}

impl Compared {
    fn words(&self) -> Option<String> {
        let [all, other, instead] = [&self.all, &self.other, &self.instead].map(|count| count.load(Ordering::Relaxed));
        let compared =
            (all > 0).then(|| format!("of {all} servers whose tools a marketplace had recorded, {other} have others now"));
        let instead =
            (instead > 0).then(|| format!("{instead} servers that cannot be started here have the tools that were recorded"));
        let words: Vec<String> = compared.into_iter().chain(instead).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}

async fn one(
    server: &ServerRecord,
    settings: &HarvestSettings,
    connector: &dyn Connector,
    recorder: &Recorder,
    compared: &Compared,
) -> Done<Tool> {
    let id = server.id.as_str();
    let world = match world_of(server, &settings.worlds, &settings.networked) {
        Ok(world) => world,
        Err(name) => return Done::none(Outcome::failed(id, "no-such-world", format!("world seed `{name}` is not declared"))),
    };
    let question = json!({ "launch": server.launch, "env": given(server), "world": world.started() });
    let live = || async {
        let harvested = visit(server, settings, connector, &world).await;
        serde_json::to_value(harvested)
    };
    let recorded = match recorder.ask(ExchangeKind::Harvest, &question, settled, live).await {
        Ok(recorded) => recorded,
        Err(error @ ExchangeError::NotRecorded { .. }) => {
            return Done::none(Outcome::failed(id, "not-recorded", error.to_string()));
        }
        Err(error) => return Done::none(Outcome::failed(id, "store", error.to_string())),
    };
    match serde_json::from_value::<Harvested>(recorded.reply) {
        Ok(harvested) => end(server, instead(server, harvested, settings), u32::from(recorded.live), compared),
        Err(error) => Done::none(Outcome::failed(id, "store", format!("recorded harvest cannot be read: {error}"))),
    }
}

/// Whether a harvest says something of the server: one that did not start may do so another time, and one that the
/// settings keep from starting (no credential, remote servers off) when they are others.
fn settled(reply: &serde_json::Value) -> bool {
    use HarvestOutcome as H;
    let harvested = serde_json::from_value::<Harvested>(reply.clone());
    harvested.is_ok_and(|h| {
        !matches!(h.outcome, H::InstallFailed | H::LaunchFailed | H::TimedOut | H::NeedsCredentials | H::Unsupported)
    })
}

/// What a server is given: the files and commands of all seeds it asks for, and the network when it is one of
/// `networked`; or the name of a seed nobody declares.
pub(crate) fn world_of(
    server: &ServerRecord,
    worlds: &BTreeMap<String, WorldSpec>,
    networked: &BTreeSet<ServerId>,
) -> Result<WorldSpec, String> {
    let mut all = WorldSpec::default();
    if networked.contains(&server.id) {
        all.network = Network::Full;
    }
    for name in &server.world {
        let seed = worlds.get(name).ok_or_else(|| name.clone())?;
        all.take(seed);
        all.at_hand.extend(seed.at_hand.clone());
    }
    Ok(all)
}

/// Visits a server; once more when it was there and died before it had listed its tools. A crash like that
/// is chance often enough.
async fn visit(server: &ServerRecord, settings: &HarvestSettings, connector: &dyn Connector, world: &WorldSpec) -> Harvested {
    let (first, died) = visit_once(server, settings, connector, world).await;
    if !died {
        return first;
    }
    let (mut second, _) = visit_once(server, settings, connector, world).await;
    let before = format!("at the second start; at the first: {}", first.detail.unwrap_or_default());
    second.detail = Some(second.detail.map_or(before.clone(), |detail| format!("{detail}; {before}")));
    second
}

/// What a visit brought, and whether the server died in the middle of it.
async fn visit_once(
    server: &ServerRecord,
    settings: &HarvestSettings,
    connector: &dyn Connector,
    world: &WorldSpec,
) -> (Harvested, bool) {
    match connector.connect(server, world).await {
        Ok(runner) => {
            let listed = list(runner.as_ref(), settings).await;
            let died = matches!(&listed, Err(error) if error.kind == ToolErrorKind::Disconnected);
            let listed = listed.unwrap_or_else(|error| failed(runner.as_ref(), &error));
            runner.close().await;
            (listed, died)
        }
        Err(ConnectError { outcome, detail, stderr, .. }) => {
            (Harvested { outcome, detail: Some(detail), stderr, info: ServerInfo::default(), tools: Vec::new() }, false)
        }
    }
}

async fn list(runner: &dyn ToolRunner, settings: &HarvestSettings) -> Result<Harvested, ToolError> {
    let mut listing = Listing::default();
    let mut cursor = None;
    let mut pages = 0;
    loop {
        let page = runner.list_tools(cursor.take()).await?;
        pages += 1;
        cursor = listing.take(page);
        if listing.tools.len() > settings.max_tools {
            listing.tools.truncate(settings.max_tools);
            listing.notes.push(format!("more than {} tools, the rest was cut off", settings.max_tools));
            break;
        }
        if cursor.is_none() {
            break;
        }
        if pages >= settings.max_pages {
            listing.notes.push(format!("more than {} pages of tools, the rest was cut off", settings.max_pages));
            break;
        }
    }
    let outcome = match listing.tools.is_empty() {
        false => HarvestOutcome::Ready,
        true if listing.refused.is_empty() && listing.too_large == 0 => HarvestOutcome::NoTools,
        true => HarvestOutcome::Protocol,
    };
    if runner.info().network == Network::Full {
        listing.notes.push(WITH_NETWORK.to_owned());
    }
    let (detail, tools) = listing.detail(runner.oddities());
    Ok(Harvested { outcome, detail, stderr: None, info: runner.info().clone(), tools })
}

fn failed(runner: &dyn ToolRunner, error: &ToolError) -> Harvested {
    let outcome = match error.kind {
        ToolErrorKind::TimedOut => HarvestOutcome::TimedOut,
        ToolErrorKind::Disconnected | ToolErrorKind::Busy => HarvestOutcome::LaunchFailed,
        ToolErrorKind::NeedsCredentials => HarvestOutcome::NeedsCredentials,
        _ => HarvestOutcome::Protocol,
    };
    let detail = [error.to_string()].into_iter().chain(runner.oddities()).collect::<Vec<_>>().join("; ");
    Harvested { outcome, detail: Some(detail), stderr: None, info: runner.info().clone(), tools: Vec::new() }
}

/// What a server that cannot be started here is taken for: its tools as they were recorded, when the settings say so.
fn instead(server: &ServerRecord, mut harvested: Harvested, settings: &HarvestSettings) -> Harvested {
    let closed = matches!(harvested.outcome, HarvestOutcome::NeedsCredentials | HarvestOutcome::Unsupported);
    if settings.listed_tools && closed {
        harvested.tools = listed::drafts(server);
        harvested.tools.truncate(settings.max_tools);
    }
    harvested
}

/// Bytes of the names of tools whose schemas are none.
const MOST_FAULTS: usize = 4_000;

/// Names the tools whose schemas are none, as far as there is room: they are kept as they are, and generate makes
/// no samples of them.
fn schema_faults(tools: &[ToolDraft]) -> Option<String> {
    let fault =
        |tool: &ToolDraft| Some(format!("`{}`: {}", shown(&tool.name, 80), shown(&fault_2020_12(&tool.input_schema)?, 80)));
    let faults: Vec<String> = tools.iter().filter_map(fault).collect();
    let mut room = MOST_FAULTS;
    let fits = |fault: &&String| {
        let rest = room.checked_sub(fault.len() + 2);
        room = rest.unwrap_or_default();
        rest.is_some()
    };
    let told: Vec<&str> = faults.iter().take_while(fits).map(String::as_str).collect();
    let more = faults.len() - told.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!faults.is_empty()).then(|| format!("{} tools have invalid schemas: {}{more}", faults.len(), told.join(", ")))
}

fn end(server: &ServerRecord, harvested: Harvested, attempts: u32, compared: &Compared) -> Done<Tool> {
    use HarvestOutcome as H;
    let kind = match harvested.outcome {
        // Only what was recorded can be known of it.
        H::NeedsCredentials | H::Unsupported if !harvested.tools.is_empty() => OutcomeKind::Kept,
        H::Ready => OutcomeKind::Kept,
        H::NoTools => OutcomeKind::Dropped,
        H::NeedsCredentials | H::Unsupported => OutcomeKind::Skipped,
        H::InstallFailed | H::LaunchFailed | H::TimedOut | H::Protocol => OutcomeKind::Failed,
    };
    let mut outcome = Outcome::new(server.id.as_str(), kind, harvested.outcome.as_str());
    let mut detail = harvested.detail;
    match (kind, harvested.outcome) {
        (_, H::Ready) if server.listed_tools.is_some() => {
            compared.all.fetch_add(1, Ordering::Relaxed);
            if let Some(words) = listed::differences(server, &harvested.tools) {
                compared.other.fetch_add(1, Ordering::Relaxed);
                detail = Some(detail.map_or(words.clone(), |detail| format!("{detail}; {words}")));
            }
        }
        (OutcomeKind::Kept, H::NeedsCredentials | H::Unsupported) => {
            compared.instead.fetch_add(1, Ordering::Relaxed);
            "listed".clone_into(&mut outcome.reason);
            let why = detail.unwrap_or_default();
            detail = Some(format!("not started ({}): these are the tools its marketplace recorded; {why}", harvested.outcome));
        }
        _ => {}
    }
    let detail = detail.map(|detail| shown(&detail, 600));
    let detail: Vec<String> = detail.into_iter().chain(schema_faults(&harvested.tools)).collect();
    outcome.cause = (!detail.is_empty()).then(|| format!("{}: {}", server.name, detail.join("; ")));
    outcome.raw = harvested.stderr;
    outcome.attempts = attempts;
    let drafts = harvested.tools.into_iter();
    let mut tools: Vec<Tool> = drafts.map(|draft| Tool::new(server.id.clone(), draft)).collect();
    // A server that declares the very same tool twice has one tool.
    tools.sort_by(|a, b| a.id.cmp(&b.id));
    tools.dedup_by(|a, b| a.id == b.id);
    Done { outcome, rows: tools, verdicts: Vec::new() }
}

#[cfg(test)]
mod tests {
    use mcpmill_core::edge::ToolPage;
    use serde_json::Value;

    use super::{listing::tests::page, *};

    #[test]
    fn deep_schemas_become_tools_on_a_small_stack() {
        let deep = (0..500).fold(json!({"type": "string"}), |items, _| json!({"items": items}));
        let draft = ToolDraft { input_schema: deep, ..page(&["deep"], "").tools.remove(0) };
        let text = draft.input_schema.to_string();
        let reply: Value = serde_json::to_value(&draft).unwrap();
        let again: ToolDraft = serde_json::from_value(reply.clone()).unwrap();
        let tool = Tool::new(mcpmill_core::id::ServerId("s".to_owned()), again);
        assert_eq!(tool.input_schema, text);
        assert_eq!(mcpmill_core::json::read(reply.to_string().as_bytes()).unwrap().value, reply);
    }

    /// Starts no server; one of the name `open` lists a tool.
    struct Closed;

    struct Open(ServerInfo);

    #[async_trait::async_trait]
    impl ToolRunner for Open {
        fn info(&self) -> &ServerInfo {
            &self.0
        }

        async fn list_tools(&self, _: Option<String>) -> Result<ToolPage, ToolError> {
            Ok(page(&["now"], ""))
        }

        async fn call_tool(
            &self,
            _: &str,
            _: &serde_json::Map<String, Value>,
        ) -> Result<mcpmill_core::record::ToolResult, ToolError> {
            unreachable!("a harvest calls nothing")
        }

        fn oddities(&self) -> Vec<String> {
            Vec::new()
        }

        async fn close(self: Box<Self>) {}
    }

    #[async_trait::async_trait]
    impl Connector for Closed {
        async fn connect(&self, server: &ServerRecord, _: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
            let outcome = match server.name.as_str() {
                "open" => return Ok(Box::new(Open(ServerInfo::default()))),
                "keyed" => HarvestOutcome::NeedsCredentials,
                "image" => HarvestOutcome::Unsupported,
                _ => HarvestOutcome::InstallFailed,
            };
            Err(ConnectError { server: server.name.clone(), outcome, detail: "it wants `KEY`".into(), stderr: None })
        }
    }

    /// The reason, the names of the tools and the cause of every server, in order of their names.
    async fn ends(listed_tools: bool) -> Vec<(String, Vec<String>, String)> {
        let recorded = json!([{ "name": "then", "description": "d", "inputSchema": { "type": "object" } }, { "name": "bare" }]);
        let server = |name: &str, recorded: Option<&Value>| {
            let launch = mcpmill_core::record::Launch::Unsupported { what: name.to_owned() };
            ServerRecord { name: name.to_owned(), id: ServerRecord::identify(&launch), launch, ..listed::tests::server(recorded) }
        };
        let mut servers: Vec<ServerRecord> = ["image", "keyed", "lost", "open"].map(|name| server(name, Some(&recorded))).into();
        servers.push(ServerRecord { name: "keyed".into(), ..server("without", None) });
        let settings = HarvestSettings {
            concurrency: 1,
            max_pages: 5,
            max_tools: 5,
            listed_tools,
            worlds: Arc::default(),
            networked: Arc::default(),
        };
        let kept = mcpmill_testkit::Kept::default();
        harvest(servers, &settings, Arc::new(Closed), &mcpmill_testkit::context("2-harvest"), &kept).await.unwrap();
        let names = |tools: Vec<Tool>| tools.into_iter().map(|tool| tool.name).collect();
        kept.ends().into_iter().map(|end| (end.outcome.reason, names(end.rows), end.outcome.cause.unwrap_or_default())).collect()
    }

    #[tokio::test]
    async fn recorded_tools_stand_for_servers_that_cannot_be_started_only_when_asked_for() {
        for asked_for in [false, true] {
            let ends = ends(asked_for).await;
            let (instead, then): (_, &[&str]) =
                if asked_for { (["listed"; 2], &["then"]) } else { (["unsupported", "needs-credentials"], &[]) };
            let short: Vec<(&str, Vec<&str>)> =
                ends.iter().map(|(reason, tools, _)| (reason.as_str(), tools.iter().map(String::as_str).collect())).collect();
            let now = vec!["now"];
            let expected = [
                (instead[0], then.to_vec()),
                (instead[1], then.to_vec()),
                ("install-failed", vec![]),
                ("ready", now),
                ("needs-credentials", vec![]),
            ];
            assert_eq!(short, expected);
            assert_eq!(ends[1].2.contains("not started (needs-credentials)"), asked_for, "{}", ends[1].2);
            assert!(ends[1].2.contains("it wants `KEY`"));
            assert_eq!(ends[3].2, "open: its marketplace recorded other tools: 2 gone, 1 new, 0 changed");
        }
    }

    #[test]
    fn invalid_schemas_are_named() {
        let mut tools = page(&["good", "bad", "worse"], "").tools;
        assert_eq!(schema_faults(&tools), None);
        tools[1].input_schema = json!({"type": "object", "properties": []});
        tools[2].input_schema = json!({"type": "strng"});
        let told = schema_faults(&tools).unwrap();
        assert!(told.starts_with("2 tools have invalid schemas: `bad`: ") && told.contains("`worse`: "), "{told}");
        let many = |count: usize| {
            let tools: Vec<ToolDraft> = (0..count).map(|n| ToolDraft { name: format!("tool{n}"), ..tools[2].clone() }).collect();
            schema_faults(&tools).unwrap()
        };
        let told = many(20);
        assert!(told.contains("`tool19`: ") && !told.contains(" more"), "{told}");
        let told = many(2000);
        let (named, more) = told.rsplit_once(" and ").unwrap();
        assert!(named.len() < MOST_FAULTS + 50 && more == format!("{} more", 2000 - named.matches("`tool").count()), "{told}");
    }

    /// Starts servers that fail to list in one way; how often it did.
    struct Failing(ToolErrorKind, AtomicUsize);

    struct Fails(ToolErrorKind, ServerInfo);

    #[async_trait::async_trait]
    impl ToolRunner for Fails {
        fn info(&self) -> &ServerInfo {
            &self.1
        }

        async fn list_tools(&self, _: Option<String>) -> Result<ToolPage, ToolError> {
            Err(ToolError { server: "s".into(), action: "list tools".into(), kind: self.0, detail: "no".into() })
        }

        async fn call_tool(
            &self,
            _: &str,
            _: &serde_json::Map<String, Value>,
        ) -> Result<mcpmill_core::record::ToolResult, ToolError> {
            unreachable!("a harvest calls nothing")
        }

        fn oddities(&self) -> Vec<String> {
            vec!["stdout_noise: 3 lines".to_owned()]
        }

        async fn close(self: Box<Self>) {}
    }

    #[async_trait::async_trait]
    impl Connector for Failing {
        async fn connect(&self, _: &ServerRecord, _: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Fails(self.0, ServerInfo::default())))
        }
    }

    #[tokio::test]
    async fn failures_are_told_with_what_was_odd_and_only_deaths_are_visited_again() {
        for (kind, reason, visits) in [
            (ToolErrorKind::Disconnected, "launch-failed", 2),
            (ToolErrorKind::Busy, "launch-failed", 1),
            (ToolErrorKind::NeedsCredentials, "needs-credentials", 1),
            (ToolErrorKind::TimedOut, "timed-out", 1),
        ] {
            let settings = HarvestSettings {
                concurrency: 1,
                max_pages: 5,
                max_tools: 5,
                listed_tools: false,
                worlds: Arc::default(),
                networked: Arc::default(),
            };
            let failing = Arc::new(Failing(kind, AtomicUsize::default()));
            let kept = mcpmill_testkit::Kept::default();
            let connector: Arc<dyn Connector> = Arc::<Failing>::clone(&failing);
            let context = mcpmill_testkit::context("2-harvest");
            let error = harvest(vec![listed::tests::server(None)], &settings, connector, &context, &kept).await.unwrap_err();
            assert!(error.to_string().contains("in `2-harvest/parts` and"), "{error}");
            let outcome = kept.ends().remove(0).outcome;
            assert_eq!((outcome.reason.as_str(), failing.1.load(Ordering::Relaxed)), (reason, visits));
            assert!(outcome.cause.unwrap().contains("no; stdout_noise: 3 lines"));
        }
    }
}

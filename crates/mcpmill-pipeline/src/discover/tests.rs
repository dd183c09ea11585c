use std::sync::Arc;

use mcpmill_core::record::{Launch, OutcomeKind};
use mcpmill_testkit::{Kept, Pages, context};

use super::*;

const STARTER: &str = include_str!("../../../../marketplaces/starter.toml");

async fn run(sources: &[(&str, &str)], cx: &CrawlContext) -> (Discovered, Vec<Done<ServerRecord>>) {
    let marketplaces: Vec<_> = sources.iter().map(|(id, text)| parse(id, text).unwrap()).collect();
    let kept = Kept::default();
    let found = discover(&marketplaces, cx, None, &context("1-discover"), &kept).await.unwrap();
    (found, kept.ends())
}

fn with(pages: Pages) -> CrawlContext {
    CrawlContext { fetch: Some(Arc::new(pages)), now: "2026-11-30T00:00:00Z".into(), ..CrawlContext::default() }
}

#[tokio::test]
async fn equal_listings_are_rows_of_their_own_and_one_server() {
    let text = "kind = \"file\"\ntitle = \"t\"\n".to_owned()
        + &"[[server]]\nname = \"a\"\ncommand = \"npx\"\nargs = [\"a\"]\n".repeat(3);
    let (found, ends) = run(&[("few", &text)], &CrawlContext::default()).await;
    let ids: HashSet<&str> = ends.iter().map(|e| e.outcome.input_id.as_str()).collect();
    assert_eq!((ids.len(), found.summary.kept, found.summary.dropped), (3, 1, 2));
}

#[tokio::test]
async fn the_starter_roster_goes_through_the_door_as_it_is() {
    let (found, ends) = run(&[("starter", STARTER)], &CrawlContext::default()).await;
    let table: toml::Table = STARTER.parse().unwrap();
    let servers = table["server"].as_array().unwrap();
    assert_eq!(found.summary.kept as usize, servers.len());
    for (server, end) in servers.iter().zip(&ends) {
        let args = server.get("args").and_then(|a| a.as_array()).into_iter().flatten().map(|a| a.as_str().unwrap().to_owned());
        let launch = Launch::Stdio { command: server["command"].as_str().unwrap().into(), args: args.collect() };
        assert_eq!((&end.rows[0].launch, &end.rows[0].id), (&launch, &ServerRecord::identify(&launch)));
        assert_eq!((end.rows[0].flags.len(), end.rows[0].description.as_deref()), (0, server["description"].as_str()));
    }
}

#[tokio::test]
async fn a_source_that_may_not_be_read_is_a_row_and_the_others_go_on() {
    let api =
        "kind = \"json-api\"\ntitle = \"t\"\nstart = [\"https://a.example/s\"]\nentries = [\"/s\"]\nlaunch = \"registry\"\n";
    let pages = Pages::default();
    pages.fail("https://a.example/s", mcpmill_core::edge::FetchErrorKind::Refused("status 403".into()));
    let (found, ends) = run(&[("api", api), ("starter", STARTER)], &with(pages)).await;
    let last = &ends.last().unwrap().outcome;
    assert_eq!((last.input_id.as_str(), last.outcome, last.reason.as_str()), ("api", OutcomeKind::Skipped, "source-refused"));
    assert!(found.summary.kept > 20 && last.cause.as_deref().unwrap().contains("403"));
}

#[tokio::test]
async fn a_failure_is_told_without_the_secrets_of_its_cause() {
    let api =
        "kind = \"json-api\"\ntitle = \"t\"\nstart = [\"https://a.example/s\"]\nentries = [\"/s\"]\nlaunch = \"registry\"\n";
    let pages = Pages::default();
    pages.serve("https://a.example/s", r#"{"error": "no access for planted@host.example, password=planted1"}"#);
    let (events, mut said) = mcpmill_core::event::Events::channel();
    let cx = Context { events, ..context("1-discover") };
    let marketplaces = [parse("api", api).unwrap(), parse("starter", STARTER).unwrap()];
    let found = discover(&marketplaces, &with(pages), None, &cx, &Kept::default()).await.unwrap();
    let said: String = std::iter::from_fn(|| said.try_recv().ok()).map(|event| format!("{event:?}")).collect();
    assert!(said.contains("unknown-shape") && !said.contains("planted"), "{said}");
    assert!(found.sources[0].ended.as_ref().is_some_and(|(_, cause)| !cause.contains("planted")));
}

/// A shelf that keeps nothing in memory but a count: what is written is written to nowhere.
struct Nowhere(std::sync::atomic::AtomicU64);

impl Shelf for Nowhere {
    fn put(&self, block: &[u8]) -> Option<u64> {
        Some(self.0.fetch_add(block.len() as u64, std::sync::atomic::Ordering::Relaxed))
    }

    fn get(&self, _: u64, _: usize) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn many_entries_take_little_memory_a_listing() {
    let declaration = "kind = \"json-api\"\ntitle = \"t\"\nstart = [\"https://a.example/s\"]\nlaunch = \"repository\"\n\
        [fields]\nname = [\"/name\"]\npackage = [\"/package\"]\nrepository = [\"/repo\"]\ndescription = [\"/text\"]\n";
    let declaration = declare::Declaration::parse(declaration).unwrap();
    let listing = |i: usize| {
        let entry = serde_json::json!({"name": format!("name-{i}"), "package": format!("package-{i}"), "repo": format!("https://code.example/o/r-{i}"),
            "text": format!("Does the things of number {i}, and many more of them. ").repeat(20)});
        map::draft(&declaration, &entry).unwrap().unwrap().listing("a")
    };
    let shelf: Arc<dyn Shelf> = Arc::new(Nowhere(std::sync::atomic::AtomicU64::default()));
    let mut gathered = Gathered::on(Some(&shelf));
    let mut snapshot = Snapshot::new(Head::default(), Some(&shelf));
    let mut taken = Vec::new();
    for i in 0..8_000 {
        let listing = listing(i);
        assert_eq!(listing.keys.len(), 2);
        gathered.add(&listing);
        let line = Line { key: format!("name-{i}"), hash: format!("{i:016x}"), listing: Some(listing), entry: None, read: 0 };
        snapshot.push(&serde_json::to_string(&line).unwrap()).unwrap();
        if i + 1 == 2_000 || i + 1 == 8_000 {
            taken.push((gathered.bytes(), snapshot.bytes()));
        }
    }
    // Room is doubled when it is full, so up to twice what is needed. The texts themselves are above 1,500 bytes each.
    let each = |from: usize, to: usize| (to - from) / 6_000;
    assert!(each(taken[0].0, taken[1].0) < 160, "{} bytes a listing", each(taken[0].0, taken[1].0));
    assert!(each(taken[0].1, taken[1].1) < 100, "{} bytes an entry of a snapshot", each(taken[0].1, taken[1].1));
}

//! Harvest of real servers with the real binary: what starts is listed, what does not is an outcome.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::collections::BTreeMap;

use common::{Folder, TWO_SERVERS, ok, rows, stage};
use mcpmill_core::record::{Outcome, ServerRecord, Tool};

#[test]
fn what_starts_is_listed_and_what_does_not_is_an_outcome() {
    let folder = Folder::with(&TWO_SERVERS);
    folder.list(
        "name = \"no-such-package\"\ncommand = \"npx\"\nargs = [\"-y\", \"@mcpmill-test/there-is-no-such-package@9.9.9\"]\n",
    );
    folder.list("name = \"container\"\ncommand = \"docker\"\nargs = [\"run\", \"-i\", \"some/image\"]\n");
    folder.list("name = \"wants-key\"\ncommand = \"npx\"\nargs = [\"-y\", \"whatever@1.0.0\"]\nsecrets = [\"SOME_API_KEY\"]\n");
    folder.list("name = \"broken\"\ncommand = 7\n");
    ok(&mut folder.mcpmill(&["run", "--to", "harvest"]));
    let run = folder.run();

    assert_eq!(stage(&run, "1-discover")["outcomes"]["failed"], 1, "the broken entry");
    let names: BTreeMap<String, String> =
        rows::<ServerRecord>(&run, "1-discover").into_iter().map(|s| (s.id.to_string(), s.name)).collect();
    let outcomes: BTreeMap<String, Outcome> =
        rows::<Outcome>(&run, "2-harvest").into_iter().map(|o| (names[&o.input_id].clone(), o)).collect();
    let reason = |name: &str| outcomes[name].reason.as_str();
    assert_eq!(reason("memory"), "ready");
    assert_eq!(reason("calculator"), "ready");
    assert_eq!(reason("no-such-package"), "install-failed");
    assert_eq!(reason("container"), "unsupported");
    assert_eq!(reason("wants-key"), "needs-credentials");
    assert!(outcomes["wants-key"].cause.as_deref().unwrap().contains("SOME_API_KEY"));
    let cause = outcomes["no-such-package"].cause.as_deref().unwrap();
    assert!(cause.contains("there-is-no-such-package"), "{cause}");

    let tools: Vec<Tool> = rows(&run, "2-harvest");
    assert_eq!(tools.len(), 10, "nine tools of memory, one of calculator");
    let read = tools.iter().find(|t| t.name == "open_nodes").unwrap();
    assert!(read.input_schema.starts_with('{') && read.schema()["properties"]["names"].is_object(), "{read:?}");
}

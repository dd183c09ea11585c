//! Harvest of real servers with the real binary: what starts is listed, what does not is an outcome.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{collections::BTreeMap, fs};

use common::{Folder, TWO_SERVERS, ok, rows, stage};
use mcpmill_core::record::{Outcome, ServerRecord, Tool};

#[test]
fn what_starts_is_listed_and_what_does_not_is_an_outcome() {
    let folder = Folder::with(&TWO_SERVERS);
    folder.list(
        "name = \"no-such-package\"\ncommand = \"npx\"\nargs = [\"-y\", \"@mcpmill-test/there-is-no-such-package@9.9.9\"]\n",
    );
    folder.list("name = \"container\"\ncommand = \"docker\"\nargs = [\"run\", \"-i\", \"some/image\"]\n");
    folder.list("name = \"wants-key\"\ncommand = \"npx\"\nargs = [\"-y\", \"@mcpmill-test/nor-is-this@1.0.0\"]\nsecrets = [\"SOME_API_KEY\"]\n");
    folder.list("name = \"broken\"\ncommand = 7\n");
    ok(&mut folder.mcpmill(&["run", "--to", "harvest"]));
    let run = folder.run();

    assert_eq!(stage(&run, "1-discover")["outcomes"]["failed"], 1, "the broken entry");
    let outcomes = outcomes(&folder);
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

    // The key is given: who waited for it is visited, without `--new`.
    let misspelt = "harvest.servers.\"npm:nor-is-this\".network=none";
    let given = ["run", "--to", "harvest", "--set", "secrets.SOME_API_KEY=HARVEST_TEST_KEY", "--set", misspelt];
    let said = ok(folder.mcpmill(&given).env("HARVEST_TEST_KEY", "any")).stderr;
    assert!(String::from_utf8_lossy(&said).contains("`npm:nor-is-this`, which is the package of no server"));
    assert_eq!(self::outcomes(&folder)["wants-key"].reason, "install-failed");
}

/// Outcomes of harvest by the name of the server.
fn outcomes(folder: &Folder) -> BTreeMap<String, Outcome> {
    let run = folder.run();
    let names: BTreeMap<String, String> =
        rows::<ServerRecord>(&run, "1-discover").into_iter().map(|s| (s.id.to_string(), s.name)).collect();
    rows::<Outcome>(&run, "2-harvest").into_iter().map(|o| (names[&o.input_id].clone(), o)).collect()
}

#[test]
fn who_ran_with_the_network_is_told_and_a_server_comes_before_its_marketplace() {
    let folder = Folder::with(&TWO_SERVERS);
    ok(&mut folder.mcpmill(&["run", "--to", "harvest"]));
    let closed = stage(&folder.run(), "2-harvest")["fingerprint"].clone();
    assert!(outcomes(&folder).values().all(|o| o.reason == "ready" && o.cause.is_none()), "{:?}", outcomes(&folder));

    let path = folder.path().join("marketplaces/few.toml");
    let text = fs::read_to_string(&path).unwrap().replacen("kind = \"file\"", "kind = \"file\"\nnetwork = \"full\"", 1);
    fs::write(path, text).unwrap();
    let shut = "harvest.servers.\"npm:@modelcontextprotocol/server-memory\".network=none";
    let said = ok(&mut folder.mcpmill(&["run", "--to", "harvest", "--set", shut]));
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("calculator runs with the network of this machine"), "{said}");
    let open = outcomes(&folder);
    assert_eq!(open["calculator"].cause.as_deref(), Some("calculator: network: full"));
    assert_eq!((open["memory"].reason.as_str(), open["memory"].cause.as_deref()), ("ready", None));
    assert_ne!(stage(&folder.run(), "2-harvest")["fingerprint"], closed, "what a server is given is part of what it says");
}

#[test]
fn a_seed_of_the_settings_is_in_the_world() {
    let folder = Folder::with(&TWO_SERVERS);
    fs::create_dir_all(folder.path().join("marketplaces/worlds")).unwrap();
    folder.write("marketplaces/worlds/broken.toml", "setup = [[\"sh\", \"-c\", \"exit 7\"]]\n[files]\n");
    let set = "harvest.servers.\"pypi:mcp-server-calculator\".world=[\"broken\"]";
    ok(&mut folder.mcpmill(&["run", "--to", "harvest", "--set", set]));
    let outcomes = outcomes(&folder);
    assert_eq!(outcomes["memory"].reason, "ready");
    let cause = outcomes["calculator"].cause.as_deref().unwrap();
    assert!(cause.contains("setup `sh -c exit 7` ended with Exited(7)"), "{cause}");
}

/// A config of the user's own is an input like any other: who is added to it is found by the next run.
#[test]
fn a_config_that_has_changed_is_read_again() {
    let folder = Folder::empty();
    let path = folder.path().join("mine.json");
    folder.write(
        "mcpmill.toml",
        &format!(
            "[discover]\nmarketplaces = [\"mcp-servers\"]\n[discover.values]\nmcp_servers = {:?}\n",
            path.display().to_string()
        ),
    );
    let config = |names: &[&str]| {
        let one = |name: &&str| format!("{name:?}: {{\"command\": \"npx\", \"args\": [\"-y\", \"{name}@1.0.0\"]}}");
        let servers: Vec<String> = names.iter().map(one).collect();
        folder.write("mine.json", &format!("{{\"mcpServers\": {{{}}}}}", servers.join(", ")));
    };
    let found = || -> Vec<String> {
        ok(&mut folder.mcpmill(&["run", "--to", "discover"]));
        rows::<ServerRecord>(&folder.run(), "1-discover").into_iter().map(|server| server.name).collect()
    };
    config(&["first"]);
    assert_eq!(found(), ["first"]);
    config(&["first", "second"]);
    assert_eq!(found().len(), 2);
    let before = folder.run();
    ok(&mut folder.mcpmill(&["discover", "--new"]));
    assert_ne!(folder.run(), before, "another run crawls again");
}

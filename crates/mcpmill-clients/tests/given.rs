//! What a server is given beyond its world: a package it may write to, and the network.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{fs, net::TcpListener, path::PathBuf, time::Duration};

use common::{assets, cache, cage};
use mcpmill_clients::{
    install::Installer,
    mcp::{CagedConnector, Program, ServerLimits},
};
use mcpmill_core::edge::{Bind, ConnectError, Network, ToolRunner, WorldSpec};

/// A server whose one tool is described by what came of an experiment, made before it answers.
const SERVER: &str = r#"
import json, os, socket, sys
def experiment():
    exec(sys.argv[1], globals())
experiment()
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "given", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "t", "description": came, "inputSchema": {"type": "object"}}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

struct Bench {
    connector: CagedConnector,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn new(limits: ServerLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("package")).unwrap();
        fs::write(folder.path().join("package/server.py"), SERVER).unwrap();
        fs::write(folder.path().join("package/notes"), "as installed").unwrap();
        let cage = cage().await;
        let installer = Installer::new(cage.clone(), assets(), cache());
        let connector = CagedConnector::new(cage, installer, folder.path().join("worlds")).with_limits(limits);
        Self { connector, folder }
    }

    fn package(&self) -> PathBuf {
        self.folder.path().join("package")
    }

    async fn start(&self, experiment: &str, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        let command = ["python3", "/opt/server/server.py", experiment].map(str::to_owned).to_vec();
        let binds = vec![Bind { host: self.package(), inside: "/opt/server".into(), writable: false }];
        let program = Program { name: "given".to_owned(), command, env: Vec::new(), binds };
        self.connector.start(&program, world).await
    }

    /// What came of an experiment.
    async fn came(&self, experiment: &str, world: &WorldSpec) -> String {
        let server = self.start(experiment, world).await.unwrap_or_else(|e| panic!("{e} {:?}", e.stderr));
        let page = server.list_tools(None).await.unwrap();
        server.close().await;
        page.tools[0].description.clone().unwrap()
    }

    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(fs::read_dir(self.folder.path().join("worlds")).unwrap().count(), 0);
        let mut names: Vec<_> = fs::read_dir(self.package()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        assert_eq!(names, ["notes", "server.py"], "the installed package is as it was");
        assert_eq!(fs::read_to_string(self.package().join("notes")).unwrap(), "as installed");
    }
}

fn quick() -> ServerLimits {
    ServerLimits { start: Duration::from_secs(20), answer: Duration::from_secs(10), ..ServerLimits::default() }
}

#[tokio::test]
async fn a_package_is_written_to_only_where_that_is_given_and_never_for_good() {
    let bench = Bench::new(quick()).await;
    let write = "open('/opt/server/made', 'w').write('x'); open('/opt/server/notes', 'a').write(', and more'); \
                 os.mkdir('/opt/server/logs'); os.remove('/opt/server/server.py'); came = open('/opt/server/notes').read()";
    let error = bench.start(write, &WorldSpec::default()).await.map(|_| ()).unwrap_err();
    assert!(error.detail.contains("Read-only file system: '/opt/server/made'"), "{error}");
    let writable = WorldSpec { writable_package: true, ..WorldSpec::default() };
    // Twice: what the first one wrote is gone with its world.
    for _ in 0..2 {
        assert_eq!(bench.came(write, &writable).await, "as installed, and more");
    }
    bench.is_clean();
}

#[tokio::test]
async fn what_is_written_to_a_package_is_bounded() {
    let bench = Bench::new(ServerLimits { disk_bytes: 8 << 20, ..quick() }).await;
    let fill = "import time; open('/opt/server/big', 'wb').write(b'x' * (32 << 20)); time.sleep(60); came = ''";
    let writable = WorldSpec { writable_package: true, ..WorldSpec::default() };
    let error = bench.start(fill, &writable).await.map(|_| ()).unwrap_err();
    assert_eq!(error.detail, "it wrote too much to its folders");
    bench.is_clean();
}

#[tokio::test]
async fn the_network_is_a_policy_and_none_by_default() {
    let bench = Bench::new(quick()).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ask = format!(
        "try:\n  socket.create_connection(('127.0.0.1', {port}), 5); came = 'reached'\nexcept OSError as e: came = str(e.__class__.__name__)"
    );
    assert_eq!(bench.came(&ask, &WorldSpec::default()).await, "ConnectionRefusedError");
    let full = WorldSpec { network: Network::Full, ..WorldSpec::default() };
    assert_eq!(bench.came(&ask, &full).await, "reached");

    let server = bench.start("came = ''", &full).await.unwrap();
    assert_eq!(server.info().network, Network::Full, "whoever reads its answers sees that it had the network");
    server.close().await;
    // Where packages come from on this machine is not told to servers.
    let told = "came = ' '.join(n for n in os.environ if 'INDEX' in n or 'registry' in n)";
    assert_eq!(bench.came(told, &full).await, "");
    // What prepares a world has no network, whatever its server has.
    let reach = format!("import socket; socket.create_connection(('127.0.0.1', {port}), 5)");
    let setup = WorldSpec { setup: vec![["python3", "-c", &reach].map(str::to_owned).to_vec()], ..full };
    assert!(bench.start("came = ''", &setup).await.is_err());
    bench.is_clean();
}

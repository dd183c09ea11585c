//! The cage, tried from inside with real programs.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{alive, cage, eventually};
use mcpmill_clients::cage::{Cage, HOME, Host, Input, WORLD};
use mcpmill_core::edge::{Bind, Confined, Limits, Process, ProcessEnd, ProcessOutput};
use rustix::io::{FdFlags, fcntl_setfd};

fn confined(command: &[&str]) -> Confined {
    Confined {
        what: "a test".to_owned(),
        command: command.iter().map(|&part| part.to_owned()).collect(),
        binds: Vec::new(),
        env: Vec::new(),
        workdir: None,
        network: false,
        limits: Limits { wall: Duration::from_secs(30), output_bytes: 1 << 20, memory_bytes: 256 << 20, processes: 64 },
    }
}

fn sh(script: &str) -> Confined {
    confined(&["/bin/sh", "-c", script])
}

fn python(script: &str) -> Confined {
    confined(&["python3", "-c", script])
}

fn world(folder: &Path) -> Bind {
    Bind { host: folder.to_owned(), inside: WORLD.into(), writable: true }
}

async fn run(program: &Confined) -> ProcessOutput {
    cage().await.run(program).await.unwrap()
}

/// A word in the command line of a program that only this test starts.
fn mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[tokio::test]
async fn it_works_here() {
    cage().await.probe().await.unwrap();
}

#[tokio::test]
async fn a_program_started_by_hand_is_in_the_same_cage() {
    let cage = cage().await;
    let look = sh(
        "id -u; pwd; env | sort; cat /proc/net/dev | wc -l; ls / /home/user; cut -d' ' -f2,4 /proc/mounts | grep -v '^/dev/' | sort",
    );
    let caged = cage.run(&look).await.unwrap().stdout;
    let (mut command, inherit) = cage.command(&look).await.unwrap();
    inherit.iter().for_each(|descriptor| fcntl_setfd(descriptor, FdFlags::empty()).unwrap());
    let by_hand = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&by_hand.stdout), caged);
    assert!(caged.starts_with("1000\n"), "{caged}");

    let bare = Cage::unsandboxed(Host::default()).unwrap();
    let (mut command, inherit) = bare.command(&sh("env | sort")).await.unwrap();
    assert!(inherit.is_empty());
    let by_hand = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert_eq!(by_hand, bare.run(&sh("env | sort")).await.unwrap().stdout);
}

#[tokio::test]
async fn nothing_of_the_host_can_be_read() {
    let home = std::env::var("HOME").unwrap();
    let planted = tempfile::Builder::new().prefix(".mcpmill-test").tempfile_in(&home).unwrap();
    fs::write(planted.path(), "secret").unwrap();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for path in
        [planted.path().to_str().unwrap(), manifest, "/etc/shadow", "/etc/hostname", "/var/log", "/run", "/sys", "/root/.ssh"]
    {
        let output = run(&confined(&["ls", "-d", path])).await;
        assert_ne!(output.end, ProcessEnd::Exited(0), "{path} is there: {output:?}");
    }
    let users = run(&sh("cat /etc/passwd; ls -A $HOME /tmp")).await;
    assert!(users.stdout.starts_with("user:x:1000:1000:"), "{users:?}");
    assert_eq!(users.stdout.lines().count(), 5, "{users:?}");
}

#[tokio::test]
async fn only_the_world_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let shown = tempfile::tempdir().unwrap();
    let mut program = sh(
        "echo mine > $1/made; for path in /made /usr/made /etc/made /dev/made /proc/made $2/made; do echo x > $path && echo $path; done; true",
    );
    program.command.extend(["sh".to_owned(), WORLD.to_owned(), shown.path().to_str().unwrap().to_owned()]);
    program.binds = vec![world(folder.path()), Bind { host: shown.path().into(), inside: shown.path().into(), writable: false }];
    let output = run(&program).await;
    assert_eq!((output.end, output.stdout.as_str()), (ProcessEnd::Exited(0), ""), "{output:?}");
    assert_eq!(fs::read_to_string(folder.path().join("made")).unwrap(), "mine\n");
    assert_eq!(fs::read_dir(shown.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn there_is_no_network_unless_asked_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('connected')");
    let output = run(&python(&script)).await;
    assert_eq!(output.end, ProcessEnd::Exited(1), "{output:?}");
    assert!(output.stderr.contains("refused"), "{output:?}");
    let interfaces = run(&sh("tail -n +3 /proc/net/dev | cut -d: -f1")).await;
    assert_eq!(interfaces.stdout.trim(), "lo");
    let local = run(&python("import socket; print(socket.gethostbyname('localhost'))")).await;
    assert_eq!(local.stdout.trim(), "127.0.0.1");

    let installer = Confined { network: true, ..python(&script) };
    let output = run(&installer).await;
    assert_eq!(output.stdout.trim(), "connected", "{output:?}");
}

#[tokio::test]
async fn the_environment_is_an_allow_list() {
    assert!(std::env::vars().count() > 7, "the parent has variables of its own");
    let mut program = python("import os; print(sorted(os.environ))");
    program.env = vec![("GIVEN".to_owned(), "value".to_owned())];
    let output = run(&program).await;
    assert_eq!(output.stdout.trim(), "['GIVEN', 'HOME', 'LANG', 'PATH', 'PWD', 'TMPDIR']", "{output:?}");
    let values = run(&sh("echo $HOME $PWD")).await;
    assert_eq!(values.stdout.trim(), format!("{HOME} {HOME}"));
}

#[tokio::test]
async fn nobody_is_root_and_nothing_leaks_in() {
    let output = run(&sh("id -u; grep CapEff /proc/self/status; ls /proc/self/fd | wc -l; tr '\\0' ' ' < /proc/1/cmdline")).await;
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!(&lines[..3], ["1000", "CapEff:\t0000000000000000", "4"], "{output:?}");
    assert!(!lines[3].contains("--bind") && !lines[3].contains("/root"), "{output:?}");
    let nested = run(&sh("unshare --user --map-root-user id -u; echo $?")).await;
    assert!(!nested.stdout.starts_with('0'), "in a namespace of its own neither: {nested:?}");
}

#[tokio::test]
async fn ends_are_told_apart() {
    assert_eq!(run(&sh("exit 3")).await.end, ProcessEnd::Exited(3));
    assert_eq!(run(&sh("kill -TERM $$")).await.end, ProcessEnd::Signalled(15));
    let absent = run(&confined(&["/no/such/program"])).await;
    assert_eq!(absent.end, ProcessEnd::Exited(127), "{absent:?}");
    assert!(absent.stderr.contains("/no/such/program"), "{absent:?}");
    let mut program = sh("true");
    program.binds = vec![world(Path::new("/no/such/folder"))];
    let error = cage().await.run(&program).await.unwrap_err();
    assert!(error.to_string().starts_with("failed to confine a test: bwrap: Can't find source path /no/such/folder"), "{error}");
}

#[tokio::test]
async fn daemons_end_with_the_program() {
    let mark = mark("daemon");
    let script = format!(
        "setsid sh -c 'sleep 1000; : {mark}' & (setsid nohup sh -c 'sleep 1001; : {mark}' >/dev/null 2>&1 &) ; \
         python3 -c \"import os, time; os.fork() or (os.setsid(), os.fork() or time.sleep(1002)) # {mark}\"; sleep 0.2; echo started"
    );
    let output = run(&sh(&script)).await;
    assert_eq!(output.stdout.trim(), "started", "{output:?}");
    assert_eq!(alive(&mark), Vec::<u32>::new());
}

#[tokio::test]
async fn a_hang_is_ended() {
    let mark = mark("hang");
    let mut program = sh(&format!("echo before; sleep 1000; : {mark}"));
    program.limits.wall = Duration::from_secs(1);
    let start = Instant::now();
    let output = run(&program).await;
    assert_eq!((output.end, output.stdout.as_str()), (ProcessEnd::TimedOut, "before\n"));
    assert!(start.elapsed() < Duration::from_secs(15));
    assert_eq!(alive(&mark), Vec::<u32>::new());
}

#[tokio::test]
async fn a_flood_is_ended() {
    let mut program = confined(&["yes", &mark("flood")]);
    program.limits.output_bytes = 10_000;
    let output = run(&program).await;
    assert_eq!((output.end, output.stdout.len()), (ProcessEnd::TooMuchOutput, 10_000));
    assert_eq!(alive(&mark("flood")), Vec::<u32>::new());
    let exact = Confined { limits: Limits { output_bytes: 4, ..program.limits }, ..sh("printf abcd") };
    assert_eq!(run(&exact).await.end, ProcessEnd::Exited(0));
}

#[tokio::test]
async fn a_memory_hog_is_ended() {
    let mut program = python("import time; hog = b'x' * (200 << 20); time.sleep(60)");
    program.limits.memory_bytes = 100 << 20;
    assert_eq!(run(&program).await.end, ProcessEnd::OutOfMemory);
}

#[tokio::test]
async fn a_fork_bomb_is_ended() {
    let mark = mark("bomb");
    let program = sh(&format!("for i in $(seq 200); do sleep 1000 & done; wait; : {mark}"));
    assert_eq!(run(&program).await.end, ProcessEnd::TooManyProcesses);
    assert_eq!(alive(&mark), Vec::<u32>::new());
}

#[tokio::test]
async fn a_full_disk_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = sh("head -c 20000000 /dev/zero > work/big; sleep 1000");
    program.binds = vec![world(folder.path())];
    let cage = cage().await.with_disk_bytes(4 << 20);
    assert_eq!(cage.run(&program).await.unwrap().end, ProcessEnd::TooMuchDisk);
    // What is not the host's disk is bounded by the cage itself.
    let full = run(&sh("head -c 400000000 /dev/zero > /tmp/big")).await;
    assert!(full.stderr.contains("No space left"), "{full:?}");
}

#[tokio::test]
async fn memory_that_is_in_no_process_counts() {
    let hidden = [
        // Files that lie in a private folder, and one that is deleted and on its way through a socket.
        "import array, os, socket, time; a, b = socket.socketpair(); fd = os.open('/tmp', os.O_TMPFILE | os.O_RDWR); [os.write(fd, b'x' * (1 << 20)) for _ in range(200)]; a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))]); os.close(fd); time.sleep(60)",
        "import time; f = open('/tmp/x', 'wb'); [f.write(b'x' * (1 << 20)) for _ in range(200)]; f.flush(); time.sleep(60)",
        "import time; f = open('/dev/shm/x', 'wb'); [f.write(b'x' * (1 << 20)) for _ in range(200)]; f.flush(); time.sleep(60)",
        // Files of no length.
        "import time\nfor i in range(110000): open(f'/tmp/{i}', 'w').close()\ntime.sleep(60)",
        // Memory that could be shared, of which a page stays mapped, and tables of pages without content.
        "import ctypes, mmap, time; libc = ctypes.CDLL(None); size = 10 << 20; kept = []\nfor _ in range(20):\n  m = mmap.mmap(-1, size); m.write(b'x' * size); start = ctypes.addressof(ctypes.c_char.from_buffer(m))\n  libc.munmap(ctypes.c_void_p(start + 4096), ctypes.c_size_t(size - 4096)); kept.append((m, start))\ntime.sleep(60)",
        "import mmap, time; step = 2 << 20; m = mmap.mmap(-1, 38400 * step, flags=0x4022, prot=mmap.PROT_READ); m.madvise(15); [m[i * step] for i in range(38400)]; time.sleep(60)",
    ];
    for script in hidden {
        let mut program = python(script);
        program.limits.memory_bytes = 100 << 20;
        assert_eq!(run(&program).await.end, ProcessEnd::OutOfMemory, "{script}");
    }
}

/// Python that goes on in `step`, which runs in another thread, and ends the first one.
fn without_first_thread(step: &str) -> Confined {
    let script = format!(
        "
import ctypes, os, threading, time
def after(next):
    threading.Thread(target=next).start()
{step}
after(step)
ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)"
    );
    python(&script)
}

#[tokio::test]
async fn what_goes_on_without_its_first_thread_counts() {
    let folder = tempfile::tempdir().unwrap();
    let memory = "
def step():
    global hog
    time.sleep(0.5); hog = b'x' * (200 << 20); time.sleep(60)";
    let disk = "
def step():
    f = open('x', 'wb'); os.unlink('x'); [f.write(b'x' * (1 << 20)) for _ in range(20)]; f.flush(); time.sleep(60)";
    // No thread is there for long.
    let fleeting = "
hog = []
def step():
    len(hog) == 100 or hog.append(b'x' * (2 << 20))
    after(step)";
    for (step, end) in [(memory, ProcessEnd::OutOfMemory), (disk, ProcessEnd::TooMuchDisk), (fleeting, ProcessEnd::OutOfMemory)] {
        let mut program = without_first_thread(step);
        program.limits.memory_bytes = 100 << 20;
        program.binds = vec![world(folder.path())];
        program.workdir = Some(WORLD.into());
        let cage = cage().await.with_disk_bytes(4 << 20);
        assert_eq!(cage.run(&program).await.unwrap().end, end, "{step}");
    }
    // It is no offence as such.
    let honest = without_first_thread("\ndef step(): time.sleep(3); os._exit(7)");
    assert_eq!(run(&honest).await.end, ProcessEnd::Exited(7));
}

#[tokio::test]
async fn nobody_makes_the_watchdog_blind() {
    let blinding = [
        // More descriptors than anybody needs, and more to read of what is mapped.
        "import os, time; [os.open('/dev/null', os.O_RDONLY) for _ in range(4000)]; [os.fork() or time.sleep(60) for _ in range(6)]; time.sleep(60)",
        "import mmap, os, time\nfor i in range(17):\n  os.mkdir('d' * 200)\n  os.chdir('d' * 200)\nf = open('x', 'w+b'); f.write(b'x' * 4096); f.flush(); kept = [mmap.mmap(f.fileno(), 4096) for _ in range(3000)]; os.fork(); time.sleep(60)",
    ];
    for script in blinding {
        assert_eq!(run(&python(script)).await.end, ProcessEnd::OutOfMemory, "{script}");
    }
    let many =
        "import os, time; [os.open('/dev/null', os.O_RDONLY) for _ in range(400)]; [os.fork() for _ in range(4)]; time.sleep(3)";
    assert_eq!(run(&python(many)).await.end, ProcessEnd::Exited(0), "6,400 are not");
}

#[tokio::test]
async fn disk_that_is_in_no_folder_counts() {
    let hidden = [
        // A file that is deleted but open, or mapped by one page, or on its way through a socket, folders closed to everybody, and a path too long to be named.
        "import os, time; f = open('x', 'wb'); os.unlink('x'); [f.write(b'x' * (1 << 20)) for _ in range(20)]; f.flush(); time.sleep(60)",
        "import mmap, os, time; f = open('x', 'w+b'); f.write(b'x' * (20 << 20)); f.flush(); os.fsync(f.fileno()); m = mmap.mmap(f.fileno(), 4096); os.unlink('x'); os.closerange(3, 99); time.sleep(60)",
        "import array, os, socket, time; a, b = socket.socketpair(); fd = os.open('.', os.O_TMPFILE | os.O_RDWR); [os.write(fd, b'x' * (1 << 20)) for _ in range(20)]; os.fsync(fd); a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))]); os.close(fd); time.sleep(60)",
        "import os, time; os.mkdir('a'); open('a/x', 'wb').write(b'x' * (20 << 20)); os.chmod('a', 0); time.sleep(60)",
        "import os, time\nfor i in range(40):\n  os.mkdir('d' * 200)\n  os.chdir('d' * 200)\nopen('x', 'wb').write(b'x' * (20 << 20)); time.sleep(60)",
    ];
    for script in hidden {
        let folder = tempfile::tempdir().unwrap();
        let mut program = python(script);
        program.binds = vec![world(folder.path())];
        program.workdir = Some(WORLD.into());
        let cage = cage().await.with_disk_bytes(4 << 20);
        assert_eq!(cage.run(&program).await.unwrap().end, ProcessEnd::TooMuchDisk, "{script}");
    }
}

/// A folder that is there for as long as this lives.
struct Planted(std::path::PathBuf);

impl Drop for Planted {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[tokio::test]
async fn settings_of_the_system_and_devices_of_the_host_stay_as_they_are() {
    // It writes back only what it has read.
    let script = "
import os
def tried(what, change):
    try:
        change()
        print('changed', what)
    except OSError as error:
        print('refused', what, error.errno)
def written_back(path):
    value = open(path).read()
    there = os.open(path, os.O_WRONLY)
    os.write(there, value.encode())
for name in ('vm/swappiness', 'kernel/core_pattern', 'fs/file-max', 'kernel/pid_max'):
    tried(name, lambda: written_back('/proc/sys/' + name))
tried('sysrq', lambda: os.open('/proc/sysrq-trigger', os.O_WRONLY))
for name in ('null', 'zero', 'full', 'random', 'urandom'):
    there = os.stat('/dev/' + name)
    tried(f'/dev/{name} {there.st_dev} {there.st_ino}', lambda: os.chmod('/dev/' + name, there.st_mode & 0o7777))
open('/dev/null', 'w').write('x'), open('/dev/urandom', 'rb').read(1), open('/dev/stdout', 'w').write('')
";
    let output = run(&python(script)).await;
    assert_eq!((output.end, output.stdout.lines().count()), (ProcessEnd::Exited(0), 10), "{output:?}");
    for line in output.stdout.lines().filter(|line| line.starts_with("changed")) {
        // A node made for this cage may be changed; the host's is another.
        let [path, device, inode] = line["changed ".len()..].split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let host = fs::metadata(path).unwrap();
        assert_ne!((device, inode), (host.dev().to_string().as_str(), host.ino().to_string().as_str()), "{line}");
    }
}

#[tokio::test]
async fn what_of_usr_is_no_programs_business_is_not_there() {
    assert_ne!(run(&confined(&["ls", "-d", "/usr/src"])).await.end, ProcessEnd::Exited(0));
    assert_ne!(run(&confined(&["ls", "-d", "/usr/local/etc"])).await.end, ProcessEnd::Exited(0), "npm keeps tokens there");
    // In many containers the project is in there; only root can try.
    let app = Planted(Path::new("/usr/src").join(mark("mcpmill-test")));
    if fs::create_dir_all(&app.0).is_ok() {
        fs::write(app.0.join("exchanges.sqlite"), "secret").unwrap();
        let output = run(&confined(&["cat", app.0.join("exchanges.sqlite").to_str().unwrap()])).await;
        assert!(!output.stdout.contains("secret"), "{output:?}");
    }
}

#[tokio::test]
async fn settings_of_an_interpreter_are_not_there() {
    let prefix = tempfile::tempdir().unwrap();
    let settings = ["etc/npmrc", "lib/node_modules/npm/npmrc", "pip.conf"];
    for name in settings.iter().chain(&["etc/fonts.conf", "lib/node_modules/npm/index.js"]) {
        let file = prefix.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "there").unwrap();
    }
    let mut program = sh("cd $1; cat etc/* lib/node_modules/npm/* pip.conf; echo x > pip.conf");
    program.command.extend(["sh".to_owned(), prefix.path().to_str().unwrap().to_owned()]);
    program.binds = vec![Bind { host: prefix.path().into(), inside: prefix.path().into(), writable: false }];
    let output = run(&program).await;
    assert_eq!(output.stdout, "therethere", "{output:?}");
    assert_eq!(fs::read_to_string(prefix.path().join("pip.conf")).unwrap(), "there");
}

#[tokio::test]
async fn what_is_hidden_is_hidden_wherever_it_lies() {
    let prefix = tempfile::tempdir().unwrap();
    let cache = prefix.path().join("share/project/cache");
    let own = cache.join("servers/own/prefix");
    for folder in [&own, &cache.join("servers/other/prefix"), &prefix.path().join("lib")] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("file"), "here").unwrap();
    }
    fs::write(cache.join("exchanges.sqlite"), "here").unwrap();
    // The interpreter's prefix is shown, and a package of the cache at a place of its own.
    let show = |host: &Path, inside: &Path| Bind { host: host.into(), inside: inside.into(), writable: false };
    let place = prefix.path().to_str().unwrap();
    let mut program = sh(&format!(
        "cat {place}/lib/file /opt/server/file; ls -A {place}/share/project/cache; echo x > {place}/share/project/cache/x; find {place} -name exchanges.sqlite"
    ));
    program.binds = vec![show(prefix.path(), prefix.path()), show(&own, Path::new("/opt/server"))];
    let shown = cage().await;
    assert!(shown.run(&program).await.unwrap().stdout.contains("exchanges.sqlite"), "unless it is hidden it is there");
    let output = shown.with_hidden([cache.clone(), cache.join("servers"), "/no/such/folder".into()]).run(&program).await.unwrap();
    assert_eq!(output.stdout, "herehere", "{output:?}");
    assert!(output.stderr.contains("Read-only"), "{output:?}");
    assert!(!cache.join("x").exists());
}

#[tokio::test]
async fn memory_that_nobody_could_count_is_refused() {
    // System V shared memory that is touched and let go, and memory files on their way through a socket.
    let script = "
import ctypes, errno, os, shutil
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
def tried(call, *args):
    return errno.errorcode[ctypes.get_errno()] if call(*args) < 0 else 'made'
print(tried(libc.shmget, 0, 128 << 20, 0o1600), tried(libc.shmget, 0, 1 << 40, 0o1600), tried(libc.shmget, 0, 4096, 0o1600))
print(tried(libc.msgget, 0, 0o1600), tried(libc.semget, 0, 32000, 0o1600), tried(libc.memfd_create, b'x', 0))
keyctl, vmsplice, clone = (250, 278, 56) if os.uname().machine == 'x86_64' else (219, 75, 220)
print(tried(libc.syscall, keyctl, 0, -4, 1))
# Pages that a pipe keeps. Who copies files has another way.
a, b = os.pipe()
here = os.open('x', os.O_RDWR | os.O_CREAT)
os.write(here, b'x')
print(tried(libc.sendfile, b, here, 0, 1), tried(libc.splice, here, 0, b, 0, 1, 0), tried(libc.tee, a, b, 1, 2), tried(libc.syscall, vmsplice, b, 0, 0, 0))
shutil.copyfile('x', 'y'); print(open('y').read())
# Rings that keep files, and threads with descriptors of their own.
print(*(tried(libc.syscall, number, 0, 0, 0, 0) for number in (425, 426, 427, 435)))
print(tried(libc.unshare, 0x400), tried(libc.unshare, 0), tried(libc.syscall, 436, 9, 9, 2), tried(libc.syscall, 436, 9, 9, 0))
print(tried(libc.syscall, clone, 0x10900, 0, 0, 0, 0), tried(libc.syscall, clone, 0x10d00 | 0x20000000, 0, 0, 0, 0))
";
    let output = run(&python(script)).await;
    // The last is refused by the wall around namespaces, and not for its descriptors.
    let refused = "ENOSPC ENOSPC made/ENOSYS ENOSYS ENOSYS/ENOSYS/EINVAL EINVAL EINVAL EINVAL/x/ENOSYS ENOSYS ENOSYS ENOSYS/EPERM made EPERM made/EPERM EINVAL";
    assert_eq!(output.stdout.trim().replace('\n', "/"), refused, "{output:?}");
    assert_eq!(run(&sh("ulimit -Hl")).await.stdout, "0\n");
    let open = run(&sh("ulimit -n; ulimit -Hn")).await;
    assert!(open.stdout.lines().all(|line| line.parse::<u32>().unwrap() <= 4096), "{open:?}");
}

#[tokio::test]
async fn memory_is_looked_at_while_the_disk_is_walked() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..10 {
        let inner = folder.path().join(i.to_string());
        fs::create_dir(&inner).unwrap();
        (0..1000).for_each(|j| fs::write(inner.join(j.to_string()), "").unwrap());
    }
    let mut program = python("import time; hog = b'x' * (200 << 20); time.sleep(60)");
    program.binds = vec![world(folder.path())];
    program.limits.memory_bytes = 100 << 20;
    assert_eq!(run(&program).await.end, ProcessEnd::OutOfMemory, "what was there before is not the program's");
}

#[tokio::test]
async fn many_small_files_are_too_much_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = python("import time\nfor i in range(20000): open(f'x{i}', 'w').close()\ntime.sleep(60)");
    program.binds = vec![world(folder.path())];
    program.workdir = Some(WORLD.into());
    assert_eq!(run(&program).await.end, ProcessEnd::TooMuchDisk);
}

#[tokio::test]
async fn a_disk_that_is_filled_fast_is_not_filled_far() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
for i in range(8000): open(f'x{i}', 'w').close()
import time; time.sleep(2)
block = b'x' * (8 << 20)
for i in range(400):
    with open(f'big{i}', 'wb', buffering=0) as f: f.write(block)
time.sleep(60)";
    let mut program = python(script);
    program.binds = vec![world(folder.path())];
    program.workdir = Some(WORLD.into());
    let start = Instant::now();
    assert_eq!(run(&program).await.end, ProcessEnd::TooMuchDisk);
    let big = fs::read_dir(folder.path()).unwrap().flatten().filter(|entry| entry.metadata().unwrap().len() > 0).count();
    assert!(big < 320, "{} MiB after {:?}", big * 8, start.elapsed());
}

#[tokio::test]
async fn nothing_outside_can_be_signalled_or_traced() {
    let mut outside = Command::new("sleep").arg("60").spawn().unwrap();
    let id = outside.id();
    let script = format!("kill -9 {id}; kill -9 -1; ls /proc/{id}; ls /proc | grep -c '^[0-9]'");
    let output = run(&sh(&format!("trap '' TERM; {script}"))).await;
    assert!(outside.try_wait().unwrap().is_none(), "{output:?}");
    outside.kill().unwrap();
    outside.wait().unwrap();
}

#[tokio::test]
async fn dropping_ends_it() {
    let mark = mark("dropped");
    let running = cage().await.spawn(&sh(&format!("sleep 1000; : {mark}")), Input::Nothing).await.unwrap();
    assert_ne!(alive(&mark), Vec::<u32>::new());
    drop(running);
    tokio::task::spawn_blocking(move || eventually("gone", || alive(&mark).is_empty())).await.unwrap();
}

/// Not a test of its own: the parent that `a_killed_parent_takes_the_cage_along` kills.
#[tokio::test]
async fn parent_that_is_killed() {
    let Ok(mark) = std::env::var("MCPMILL_TEST_MARK") else { return };
    let program = sh(&format!("setsid sh -c 'sleep 1000; : inner-{mark}' & sleep 1000; : outer-{mark}"));
    cage().await.run(&program).await.ok();
}

/// Starts a parent, kills it once `ready`, and returns the mark of what it started.
fn kill_parent(name: &str, ready: impl Fn(&str) -> bool) -> String {
    let mark = mark(name);
    let mut parent = Command::new(std::env::current_exe().unwrap());
    parent.args(["--exact", "parent_that_is_killed"]).env("MCPMILL_TEST_MARK", &mark).stdout(Stdio::null());
    let mut parent = parent.spawn().unwrap();
    eventually("started", || ready(&mark));
    parent.kill().unwrap();
    parent.wait().unwrap();
    mark
}

#[test]
fn a_killed_parent_takes_the_cage_along() {
    // bubblewrap, its child, two shells and two that sleep.
    let mark = kill_parent("orphan", |mark| alive(mark).len() >= 4);
    eventually("gone", || alive(&mark).is_empty());
}

#[tokio::test]
async fn a_parent_killed_at_the_start_leaves_nothing_that_runs() {
    for i in 0..12 {
        // As soon as bubblewrap starts, while it is being set up, and when the gate is reached.
        let mark = kill_parent(&format!("early{i}"), |mark| alive(mark).len() > i % 3);
        let runs = |mark: &str| {
            alive(mark)
                .into_iter()
                .any(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() != "bwrap"))
        };
        eventually("nothing runs", || !runs(&mark));
        if !alive(&mark).is_empty() {
            // What is left waits in an empty namespace; the next start ends it.
            tokio::time::sleep(Duration::from_millis(500)).await;
            cage().await;
        }
        eventually("gone", || alive(&mark).is_empty());
    }
}

#[tokio::test]
async fn standard_input_is_empty_or_ours() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    assert_eq!(run(&confined(&["wc", "-c"])).await.stdout.trim(), "0");
    let mut running = cage().await.spawn(&confined(&["cat"]), Input::Pipe).await.unwrap();
    running.stdin.take().unwrap().write_all(b"first\nsecond").await.unwrap();
    let mut said = String::new();
    running.stdout.take().unwrap().read_to_string(&mut said).await.unwrap();
    assert_eq!((said.as_str(), running.wait().await), ("first\nsecond", ProcessEnd::Exited(0)));
}

#[tokio::test]
async fn unsandboxed_is_bounded_too() {
    let folder = tempfile::tempdir().unwrap();
    let cage = Cage::unsandboxed(Host::discover().await).unwrap();
    cage.probe().await.unwrap();
    let mut program = sh(&format!("echo mine > {WORLD}/made; pwd; echo ${{CARGO_MANIFEST_DIR:-none}}"));
    program.binds = vec![world(folder.path())];
    program.workdir = Some(WORLD.into());
    let output = cage.run(&program).await.unwrap();
    assert_eq!(output.stdout, format!("{}\nnone\n", folder.path().display()), "{output:?}");
    assert_eq!(fs::read_to_string(folder.path().join("made")).unwrap(), "mine\n");

    let mark = mark("bare");
    let mut program = sh(&format!("sh -c 'sleep 1000; : {mark}' & sleep 1000"));
    program.limits.wall = Duration::from_secs(1);
    assert_eq!(cage.run(&program).await.unwrap().end, ProcessEnd::TimedOut);
    assert_eq!(alive(&mark), Vec::<u32>::new());
}

#[tokio::test]
async fn a_missing_bubblewrap_is_explained() {
    let cage = Cage::bubblewrap("/no/such/bwrap", Host::default()).unwrap();
    let error = cage.probe().await.unwrap_err();
    assert_eq!(error.kind, mcpmill_clients::cage::CageErrorKind::Missing, "{error}");
    assert_eq!(error.to_string(), "failed to set up the cage: `/no/such/bwrap` does not exist");
    assert!(error.hint().contains("install bubblewrap"));
}

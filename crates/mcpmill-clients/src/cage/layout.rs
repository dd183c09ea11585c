//! What a caged program sees, as arguments of bubblewrap.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Seek, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use mcpmill_core::edge::{Bind, Confined};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{HOME, Host, Interpreter, devices, filter, outside::Outside};

/// What programs need of /usr. The rest may be anybody's: in many containers the user's own project is in
/// `/usr/src/app`.
pub(super) const USR: [&str; 17] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/libexec",
    "/usr/include",
    "/usr/share",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/lib",
    "/usr/local/lib32",
    "/usr/local/lib64",
    "/usr/local/libexec",
    "/usr/local/include",
    "/usr/local/share",
];
/// System folders besides /usr; on most systems links into it.
const SYSTEM: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// What programs need of /etc, and nothing of it is about this machine's users or services.
const ETC: [&str; 11] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "mime.types",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
];
/// What name lookups need, shown only to programs that have the network.
const ETC_NETWORK: [&str; 4] = ["resolv.conf", "nsswitch.conf", "hosts", "gai.conf"];
/// Settings of package clients below a folder of the system or of an interpreter, wherever of it is shown: they
/// may hold tokens, and what programs need of them they are told.
const SETTINGS: [&str; 8] = [
    "etc/npmrc",
    "lib/node_modules/npm/npmrc",
    "share/nodejs/npm/npmrc",
    "node_modules/npm/npmrc",
    "nodejs/npm/npmrc",
    "npmrc",
    "pip.conf",
    ".condarc",
];
/// Bytes of each private folder in memory.
const TMP_BYTES: u64 = 256 << 20;

/// Where an overlay keeps what is written, and where it prepares it.
pub(crate) const WRITTEN: &str = "written";
const WORK: &str = "work";

/// Makes `folder`, which is empty, fit to be a writable bind over a read-only one at the same place.
pub(crate) fn make_overlay(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder.join(WRITTEN))?;
    fs::create_dir(folder.join(WORK))
}

/// Bytes of the empty folder that stands where something is hidden.
const HIDDEN_BYTES: &str = "65536";

/// Arguments of bubblewrap and the descriptors they name.
pub(super) struct Layout<'a> {
    args: Vec<OsString>,
    inherit: Vec<OwnedFd>,
    /// Folders of the host that are shown nowhere, whatever they lie in.
    hidden: &'a [PathBuf],
    /// Where they would have been seen.
    covered: Vec<PathBuf>,
}

impl<'a> Layout<'a> {
    /// The cage of `program`. Arguments travel in a memory file, so neither paths of the host nor
    /// values of variables show in the process list, inside or outside.
    pub(super) fn new(
        program: &Confined,
        host: &Host,
        hidden: &'a [PathBuf],
        outside: Option<&Outside>,
        nodes: Option<&Path>,
    ) -> io::Result<Self> {
        let mut layout = Self { args: Vec::new(), inherit: Vec::new(), hidden, covered: Vec::new() };
        layout.walls(program.network)?;
        layout.system(program.network)?;
        for (name, node) in nodes.iter().flat_map(|nodes| devices::NODES.map(|(name, ..)| (name, nodes.join(name)))) {
            layout.push([OsStr::new("--dev-bind"), node.as_os_str(), Path::new("/dev").join(name).as_os_str()]);
        }
        for shown in [&host.python, &host.node].into_iter().flatten().flat_map(Interpreter::parts) {
            layout.show(&shown)?;
        }
        for file in outside.map(|outside| outside.files.as_slice()).unwrap_or_default() {
            layout.show(file)?;
        }
        layout.binds(program)?;
        for covered in std::mem::take(&mut layout.covered) {
            layout.push([OsStr::new("--remount-ro"), covered.as_os_str()]);
        }
        // Who is root outside owns the settings of the whole system that stand in /proc.
        layout.push(["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]);
        layout.environment(program, host, outside);
        layout.push([OsStr::new("--chdir"), program.workdir.as_deref().unwrap_or(Path::new(HOME)).as_os_str()]);
        Ok(layout)
    }

    /// The descriptor that carries the arguments.
    pub(super) fn into_file(mut self) -> io::Result<(i32, Vec<OwnedFd>)> {
        let mut bytes = Vec::new();
        for arg in &self.args {
            if arg.as_bytes().contains(&0) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "a path or variable holds a zero byte"));
            }
            bytes.extend_from_slice(arg.as_bytes());
            bytes.push(0);
        }
        let number = self.hold(&bytes)?;
        Ok((number, self.inherit))
    }

    fn push<S: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = S>) {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
    }

    /// Keeps `bytes` in a file without a name and returns its number.
    fn hold(&mut self, bytes: &[u8]) -> io::Result<i32> {
        let mut file = File::from(memfd_create("mcpmill", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        file.rewind()?;
        let number = file.as_raw_fd();
        self.inherit.push(file.into());
        Ok(number)
    }

    fn walls(&mut self, network: bool) -> io::Result<()> {
        // Nobody is root inside, not in a namespace of its own either.
        self.push(["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--unshare-ipc"]);
        self.push(["--unshare-uts", "--hostname", "mcpmill", "--unshare-cgroup-try"]);
        if !network {
            self.push(["--unshare-net"]);
        }
        self.push(["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]);
        if let Some(filter) = filter::program() {
            let number = self.hold(&filter)?.to_string();
            self.push(["--seccomp", &number]);
        }
        Ok(())
    }

    fn system(&mut self, network: bool) -> io::Result<()> {
        for folder in USR.map(Path::new).into_iter().filter(|folder| folder.is_dir()) {
            self.show(folder)?;
        }
        for name in SYSTEM {
            let path = Path::new("/").join(name);
            match fs::read_link(&path) {
                Ok(target) => self.push([OsStr::new("--symlink"), target.as_os_str(), path.as_os_str()]),
                Err(_) if path.is_dir() => self.show(&path)?,
                Err(_) => {}
            }
        }
        self.push(["--ro-bind-try", "/nix/store", "/nix/store"]);
        for name in ETC.iter().chain(if network { ETC_NETWORK.as_slice() } else { &[] }) {
            let path = Path::new("/etc").join(name);
            self.push([OsStr::new("--ro-bind-try"), path.as_os_str(), path.as_os_str()]);
        }
        self.made("/etc/passwd", &format!("user:x:1000:1000:user:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))?;
        self.made("/etc/group", "user:x:1000:\nnogroup:x:65534:\n")?;
        if !network {
            self.made("/etc/hosts", "127.0.0.1 localhost mcpmill\n::1 localhost\n")?;
            self.made("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")?;
        }
        self.push(["--proc", "/proc", "--dev", "/dev"]);
        for folder in ["/dev/shm", "/tmp", HOME] {
            self.push([
                "--perms",
                if folder == HOME { "0700" } else { "1777" },
                "--size",
                &TMP_BYTES.to_string(),
                "--tmpfs",
                folder,
            ]);
        }
        Ok(())
    }

    /// A file of our own making, read-only.
    fn made(&mut self, path: impl AsRef<OsStr>, content: &str) -> io::Result<()> {
        let number = self.hold(content.as_bytes())?.to_string();
        self.push(["--perms", "0444", "--ro-bind-data", &number]);
        self.push([path]);
        Ok(())
    }

    /// A host path, read-only, at the same place. Where it leads through links, the place it leads
    /// to is shown too, as programs and scripts may name either. Settings in there are empty.
    fn show(&mut self, path: &Path) -> io::Result<()> {
        match fs::read_link(path) {
            // A program finds its library by where it lies itself, and not by where a link to it does.
            Ok(target) if path.is_file() => self.push([OsStr::new("--symlink"), target.as_os_str(), path.as_os_str()]),
            _ => {
                self.bind("--ro-bind", path, path);
                self.without_settings(path)?;
            }
        }
        if let Ok(real) = fs::canonicalize(path)
            && real != path
            && !is_shown(&real)
        {
            self.bind("--ro-bind", &real, &real);
            self.without_settings(&real)?;
        }
        Ok(())
    }

    /// Empties the settings of package clients below a folder that is shown. A link among them leads to what is not.
    fn without_settings(&mut self, folder: &Path) -> io::Result<()> {
        let settings = SETTINGS.iter().map(|name| folder.join(name));
        for file in settings.filter(|file| fs::symlink_metadata(file).is_ok_and(|meta| meta.is_file())) {
            self.made(file.as_os_str(), "")?;
        }
        Ok(())
    }

    /// A host path at some place, without what is hidden below it.
    fn bind(&mut self, flag: &str, host: &Path, inside: &Path) {
        self.push([OsStr::new(flag), host.as_os_str(), inside.as_os_str()]);
        let Ok(host) = fs::canonicalize(host) else { return };
        for hidden in self.hidden {
            let below = hidden.strip_prefix(&host).ok().filter(|below| !below.as_os_str().is_empty());
            if let Some(below) = below.filter(|_| hidden.is_dir()) {
                let place = inside.join(below);
                self.push(["--perms", "0555", "--size", HIDDEN_BYTES, "--tmpfs"]);
                self.push([&place]);
                self.covered.retain(|covered| *covered != place);
                self.covered.push(place);
            }
        }
    }

    fn binds(&mut self, program: &Confined) -> io::Result<()> {
        let mut binds: Vec<_> = program.binds.iter().collect();
        // Outer folders first, or they would hide inner ones.
        binds.sort_by_key(|bind| bind.inside.components().count());
        for &bind in &binds {
            let other = binds.iter().find(|other| other.inside == bind.inside && other.writable != bind.writable);
            match (other, bind.writable) {
                (Some(_), false) => continue,
                (Some(below), true) => {
                    self.overlay(&below.host, bind);
                    continue;
                }
                (None, _) => {}
            }
            if !bind.writable && bind.host == bind.inside {
                self.show(&bind.host)?;
                continue;
            }
            self.bind(if bind.writable { "--bind" } else { "--ro-bind" }, &bind.host, &bind.inside);
        }
        Ok(())
    }

    /// What lies below, with everything that is written going elsewhere.
    fn overlay(&mut self, below: &Path, over: &Bind) {
        let (written, work) = (over.host.join(WRITTEN), over.host.join(WORK));
        self.push([OsStr::new("--overlay-src"), below.as_os_str()]);
        self.push([OsStr::new("--overlay"), written.as_os_str(), work.as_os_str(), over.inside.as_os_str()]);
    }

    fn environment(&mut self, program: &Confined, host: &Host, outside: Option<&Outside>) {
        for (name, value) in base_environment(host, HOME).iter().chain(outside.map(|o| o.env.as_slice()).unwrap_or_default()) {
            self.push(["--setenv", name, value]);
        }
        for (name, value) in &program.env {
            self.push(["--setenv", name, value]);
        }
    }
}

/// Whether a path lies in a folder of the system that every program is shown.
pub(super) fn is_shown(path: &Path) -> bool {
    USR.iter().any(|folder| path.starts_with(folder))
}

/// The variables every program gets.
pub(super) fn base_environment(host: &Host, home: &str) -> Vec<(String, String)> {
    let own = [&host.python, &host.node].into_iter().flatten().filter(|i| !i.parts().is_empty()).filter_map(Interpreter::bin);
    let mut path: Vec<String> = own.map(|bin| bin.to_string_lossy().into_owned()).collect();
    path.extend(["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(str::to_owned));
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![set("HOME", home), set("PATH", &path.join(":")), set("TMPDIR", "/tmp"), set("LANG", "C.UTF-8")]
}

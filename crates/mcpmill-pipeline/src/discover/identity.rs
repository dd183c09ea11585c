//! Which listings are the same server, and what its one record says.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use mcpmill_core::{
    id::ServerId,
    launch,
    record::{Launch, ServerRecord},
    secrets::{REDACTED, is_secret_parameter},
};
use url::Url;

use super::{marketplace::Listing, snapshot::hashed};

/// How the launch of a server begins of which only a repository is known.
const ONLY_REPOSITORY: &str = "only a repository is known: ";
/// Forms of a package that are not started, each with a bit of its own: a server may have one of each.
const FORMS: [(&str, u8); 4] = [("oci ", 4), ("nuget ", 8), ("mcpb ", 16), ("cargo ", 32)];

/// Keys of a record: `npm:…`, `pypi:…`, `url:…`, `form:…` of what cannot be started but has a name,
/// `launch:…` of what is started in another way, and `repo:…`. `also` are further ways to start it.
pub(super) fn keys(server: &ServerRecord, also: &[Launch], repository: Option<&str>, subfolder: Option<&str>) -> Vec<String> {
    let mut keys: Vec<String> = [&server.launch].into_iter().chain(also).filter_map(form).collect();
    keys.extend(repository.and_then(|r| repo(r, subfolder)));
    if keys.is_empty() {
        keys.push(format!("launch:{}", server.id));
    }
    keys.sort();
    keys.dedup();
    keys
}

fn form(launch: &Launch) -> Option<String> {
    let itself = || Some(format!("launch:{}", ServerRecord::identify(launch)));
    match launch {
        Launch::Stdio { command, args } => match launch::parse(command, args) {
            Ok(parsed) => Some(package(&parsed)),
            Err(_) => itself(),
        },
        // An address with a part to be filled in is none that could be read.
        Launch::StreamableHttp { url, .. } | Launch::Sse { url, .. } => remote(url).or_else(itself),
        Launch::Unsupported { what } if FORMS.iter().any(|(form, _)| what.starts_with(form)) => Some(format!("form:{what}")),
        // Many servers may be all that is known of a repository.
        Launch::Unsupported { what } if what.starts_with(ONLY_REPOSITORY) => None,
        Launch::Unsupported { .. } => itself(),
    }
}

/// The launch of a server of which only a repository is known.
pub(super) fn only_repository(address: &str, subfolder: Option<&str>) -> Launch {
    let known = repo(address, subfolder);
    let place = known.as_deref().map_or(address, |key| key.trim_start_matches("repo:"));
    Launch::Unsupported { what: format!("{ONLY_REPOSITORY}`{place}`") }
}

/// Gives a record an id of its own when another server has the same launch: what the user starts with other
/// variables, or another server of a repository. Whether it could.
pub(super) fn set_apart(server: &mut ServerRecord, own: bool) -> bool {
    let name = server.title.as_deref().unwrap_or(&server.name);
    match &mut server.launch {
        Launch::Unsupported { what } if what.starts_with(ONLY_REPOSITORY) => {
            what.push_str(&format!(", and in it `{name}`"));
            server.id = ServerRecord::identify(&server.launch);
        }
        launch if own => server.id = ServerId::of(&(&*launch, &server.env, &server.name)),
        _ => return false,
    }
    true
}

fn package(package: &launch::Package) -> String {
    let name = package.key();
    // One package may hold several servers, each a program of its own.
    package.bin.as_ref().filter(|bin| **bin != package.name).map_or_else(|| name.clone(), |bin| format!("{name}#{bin}"))
}

/// An address without what does not tell servers apart; a key is the user's.
fn remote(url: &str) -> Option<String> {
    let parsed = Url::parse(url).ok()?;
    let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
    let open = |pair: &&str| !pair.is_empty() && !pair.split_once('=').is_some_and(|(name, _)| is_secret_parameter(name));
    let query = parsed.query().unwrap_or_default().split('&').filter(open).collect::<Vec<_>>().join("&");
    let query = if query.is_empty() { query } else { format!("?{query}") };
    Some(format!("url:{}{port}{}{query}", parsed.host_str()?, parsed.path().trim_end_matches('/')))
}

/// `repo:host/owner/name[/folder]` of a repository's address, in the forms that are in use.
pub(super) fn repo(address: &str, subfolder: Option<&str>) -> Option<String> {
    let parsed = Url::parse(&address_of(address.trim().trim_start_matches("git+"))).ok()?;
    let host = parsed.host_str()?.trim_start_matches("www.").to_lowercase();
    let mut parts = parsed.path().split('/').filter(|part| !part.is_empty());
    let (owner, name) = (parts.next()?.to_lowercase(), parts.next()?.trim_end_matches(".git").to_lowercase());
    let rest: Vec<&str> = parts.collect();
    let below = match rest.as_slice() {
        ["tree" | "src", _, folder @ ..] | ["-", "tree", _, folder @ ..] => folder.join("/"),
        ["blob", _, file @ ..] | ["-", "blob", _, file @ ..] => folder_of(file).join("/"),
        _ => String::new(),
    };
    let folder = subfolder.map(|s| s.trim_matches(['/', '.'])).filter(|s| !s.is_empty()).map_or(below, str::to_owned);
    let folder = if folder.is_empty() { folder } else { format!("/{}", folder.trim_matches('/')) };
    Some(format!("repo:{host}/{owner}/{name}{folder}"))
}

/// `git@host:owner/name` and `ssh://git@host:owner/name`, and `host:owner/name` of the known hosts, as addresses.
fn address_of(form: &str) -> String {
    let short = [("github:", "github.com"), ("gitlab:", "gitlab.com"), ("bitbucket:", "bitbucket.org")];
    if let Some((host, path)) = short.iter().find_map(|(head, host)| Some((host, form.strip_prefix(head)?))) {
        return format!("https://{host}/{path}");
    }
    let bare = form.strip_prefix("ssh://").unwrap_or(form);
    match bare.strip_prefix("git@").and_then(|rest| rest.split_once(':')) {
        Some((host, path)) if !host.contains('/') && !path.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("https://{host}/{}", path.trim_start_matches('/'))
        }
        _ => form.to_owned(),
    }
}

/// The folder of a file; some link to a folder as if it were one.
fn folder_of<'a>(path: &'a [&'a str]) -> &'a [&'a str] {
    match path.split_last() {
        Some((file, folder)) if file.contains('.') || !file.contains(|c: char| c.is_lowercase()) => folder,
        _ => path,
    }
}

/// Groups of listings that are one server, by their keys. Keeps 16 bytes a key and 9 a listing.
#[derive(Default)]
pub(super) struct Groups {
    /// Keys by which listings are one server, with the listing.
    named: Vec<(u64, u32)>,
    /// Keys of repositories, with the listing.
    repositories: Vec<(u64, u32)>,
    /// What a listing is launched from: a package, a remote server.
    kinds: Vec<u8>,
    /// Of every listing, hashes of its source and of what it is called.
    names: Vec<(u32, u32)>,
    /// Keys of the user's own packages with the variants they are started in.
    own: HashMap<u64, BTreeSet<String>>,
    waiting: Vec<(u32, u64, String)>,
}

const PACKAGE: u8 = 1;
const REMOTE: u8 = 2;
const KINDS: [u8; 6] = [PACKAGE, REMOTE, FORMS[0].1, FORMS[1].1, FORMS[2].1, FORMS[3].1];

/// What a key is of. Packages of npm and of PyPI are rivals; an image or a bundle is a further form of a server.
fn kind_of(key: &str) -> u8 {
    let form = key.strip_prefix("form:").and_then(|what| FORMS.iter().find(|(form, _)| what.starts_with(form)));
    form.map_or(if key.starts_with("url:") { REMOTE } else { PACKAGE }, |(_, bit)| *bit)
}

/// What tells apart what the user starts in one way: the variables, and the name where those hold secrets, which are
/// not kept.
fn variant(server: &ServerRecord) -> String {
    let name = server.env.iter().any(|variable| variable.secret).then_some(&server.name);
    ServerId::of(&(&server.id, &server.env, name)).to_string()
}

impl Groups {
    /// Adds the next listing.
    pub(super) fn add(&mut self, listing: &Listing) {
        let at = self.kinds.len() as u32;
        let mut kind = 0;
        for key in &listing.keys {
            let hash = hashed(key);
            if key.starts_with("repo:") {
                self.repositories.push((hash, at));
                continue;
            }
            kind |= kind_of(key);
            match listing.server.as_ref().ok().filter(|_| listing.own) {
                Some(server) => {
                    let variant = variant(server);
                    self.own.entry(hash).or_default().insert(variant.clone());
                    self.waiting.push((at, hash, variant));
                }
                None => self.named.push((hash, at)),
            }
        }
        self.kinds.push(kind);
        self.names.push(named(listing));
    }

    /// For every listing, the first one of its group.
    pub(super) fn finish(mut self) -> Vec<u32> {
        // A package that the user starts in two ways on purpose is two servers.
        for (at, key, variant) in std::mem::take(&mut self.waiting) {
            let one = self.own.get(&key).is_some_and(|variants| variants.len() == 1);
            self.named.push((if one { key } else { hashed(&format!("variant:{variant}")) }, at));
        }
        let mut united = Union((0..self.kinds.len() as u32).collect());
        self.named.sort_unstable();
        for pair in self.named.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            united.unite(pair[0].1, pair[1].1);
        }
        self.repositories.sort_unstable();
        for holders in self.repositories.chunk_by(|a, b| a.0 == b.0) {
            self.by_repository(holders, &mut united);
        }
        (0..self.kinds.len() as u32).map(|at| united.root(at)).collect()
    }

    /// Bytes it takes in memory, about.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        (self.named.capacity() + self.repositories.capacity()) * size_of::<(u64, u32)>()
            + self.kinds.capacity()
            + self.names.capacity() * size_of::<(u32, u32)>()
    }

    /// Whether one source lists several servers of which nothing but this repository is known.
    fn holds_several(&self, holders: &[(u64, u32)]) -> bool {
        let mut first: HashMap<u32, u32> = HashMap::new();
        let bare = holders.iter().map(|&(_, holder)| holder as usize).filter(|&holder| self.kinds[holder] == 0);
        bare.map(|holder| self.names[holder]).any(|(source, name)| *first.entry(source).or_insert(name) != name)
    }

    /// Unites the listings of a repository that are called the same, as far as they can be told apart by nothing else.
    fn by_name(&self, holders: &[(u64, u32)], whole: bool, all: &mut Union) {
        let mut first: HashMap<u32, u32> = HashMap::new();
        for &(_, holder) in holders.iter().filter(|(_, holder)| whole || self.kinds[*holder as usize] == 0) {
            let known = *first.entry(self.names[holder as usize].1).or_insert(holder);
            all.unite(known, holder);
        }
    }

    /// One repository may hold many servers: listings are united by it only where at most one package, one remote
    /// server and one of each further form claim it, and no source lists several of it by name alone.
    fn by_repository(&self, holders: &[(u64, u32)], all: &mut Union) {
        let mut claims: BTreeMap<u32, u8> = BTreeMap::new();
        for &(_, holder) in holders {
            *claims.entry(all.root(holder)).or_default() |= self.kinds[holder as usize];
        }
        let of = |kind: u8| claims.values().filter(|claim| **claim & kind != 0).count();
        let whole = KINDS.iter().all(|kind| of(*kind) <= 1);
        let several = self.holds_several(holders);
        if several {
            self.by_name(holders, whole, all);
        }
        let alike = |claim: u8| if several { whole && claim != 0 } else { whole || claim == 0 };
        let mut united = claims.iter().filter(|(_, claim)| alike(**claim)).map(|(root, _)| *root);
        let Some(first) = united.next() else { return };
        united.for_each(|other| all.unite(first, other));
    }
}

/// Hashes of the source of a listing and of its name in short: its title, or the end of its name.
fn named(listing: &Listing) -> (u32, u32) {
    let short = |text: &str| hashed(&text.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_lowercase()) as u32;
    let source = listing.id.split('#').next().unwrap_or_default();
    let name = listing.server.as_ref().map_or(0, |server| short(server.title.as_deref().unwrap_or(&server.name)));
    (hashed(source) as u32, name)
}

/// Sets of listings, each by its first one.
struct Union(Vec<u32>);

impl Union {
    fn root(&mut self, mut at: u32) -> u32 {
        while self.0[at as usize] != at {
            self.0[at as usize] = self.0[self.0[at as usize] as usize];
            at = self.0[at as usize];
        }
        at
    }

    fn unite(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b) as usize] = a.min(b);
    }
}

/// The one record of a group. The order of `listings` does not matter.
pub(super) fn merge(mut listings: Vec<Listing>) -> Option<ServerRecord> {
    listings.sort_by_cached_key(|l| (rank(l), l.id.clone(), mcpmill_core::canonical::content_hash(l)));
    newest_first(&mut listings);
    let own = listings.first().is_some_and(|l| l.own);
    let mut records = listings.into_iter().filter_map(|l| l.server.ok());
    let mut best = records.next()?;
    for other in records {
        best.title = best.title.or(other.title);
        best.description = best.description.or(other.description);
        best.version = best.version.or(other.version);
        best.licence = best.licence.or(other.licence);
        best.listed_tools = best.listed_tools.or(other.listed_tools);
        best.categories.extend(other.categories);
        best.sources.extend(other.sources);
        best.flags.extend(other.flags);
        // What the user wrote is complete; a variable of a form that is not launched is none of ours.
        let kin = std::mem::discriminant(&best.launch) == std::mem::discriminant(&other.launch);
        if !own && kin {
            let news = other.env.into_iter().filter(|v| best.env.iter().all(|known| known.name != v.name));
            let news: Vec<_> = news.collect();
            best.env.extend(news);
        }
    }
    best.sources.sort_by(|a, b| (&a.marketplace, &a.url).cmp(&(&b.marketplace, &b.url)));
    best.sources.dedup();
    best.categories.sort();
    best.categories.dedup();
    best.flags.sort();
    best.flags.dedup();
    Some(best)
}

/// Of the listings of the package that the first one pins, puts the one with the newest version first.
fn newest_first(listings: &mut [Listing]) {
    let Some((package, _)) = listings.first().filter(|first| !first.own).and_then(pinned) else { return };
    let alike = listings.iter().enumerate().filter_map(|(at, listing)| {
        let (name, version) = pinned(listing).filter(|_| !listing.own)?;
        (name == package).then_some((version, Reverse(at)))
    });
    if let Some((_, Reverse(at))) = alike.max() {
        listings[..=at].rotate_right(1);
    }
}

/// The package that a listing pins, and how new its version is.
fn pinned(listing: &Listing) -> Option<(String, Age)> {
    let Launch::Stdio { command, args } = &listing.server.as_ref().ok()?.launch else { return None };
    let parsed = launch::parse(command, args).ok()?;
    Some((package(&parsed), age(parsed.version.as_deref()?)))
}

/// Numbers of a release, whether it is before (0), at (1) or after (2) that release, and what tells those apart.
type Age = (Vec<u64>, u8, Vec<(String, u64)>);

/// How new a version is, near enough to what npm and PyPI say: the larger is the newer.
fn age(version: &str) -> Age {
    let version = version.trim_start_matches(|c: char| !c.is_ascii_digit()).split('+').next().unwrap_or_default();
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let (release, rest) = version.split_at(end);
    let mut numbers: Vec<u64> = release.split('.').filter_map(|part| part.parse().ok()).collect();
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    let rest = rest.trim_start_matches(['-', '.', '_']);
    let stage = if rest.is_empty() { 1 } else { u8::from(rest.starts_with("post")) * 2 };
    // `rc10` is newer than `rc9`, and a number older than a word.
    let parts = rest.split(['.', '-', '_']).filter(|part| !part.is_empty()).map(|part| {
        let word = part.trim_end_matches(|c: char| c.is_ascii_digit());
        (word.to_owned(), part[word.len()..].parse().unwrap_or_default())
    });
    (numbers, stage, parts.collect())
}

/// The best listing is the lowest: what the user wrote, a pinned package, a package, a remote server, the rest.
fn rank(listing: &Listing) -> u8 {
    let Ok(server) = &listing.server else { return 9 };
    match &server.launch {
        _ if listing.own => 0,
        Launch::Stdio { command, args } => match launch::parse(command, args) {
            Ok(package) if package.version.is_some() => 1,
            Ok(_) => 2,
            Err(_) => 5,
        },
        // With a key that was cut out it is an address that nobody can use.
        Launch::StreamableHttp { url, .. } | Launch::Sse { url, .. } if url.contains(REDACTED) => 5,
        Launch::StreamableHttp { .. } => 3,
        Launch::Sse { .. } => 4,
        Launch::Unsupported { .. } => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_an_order() {
        for (older, newer) in [
            ("0.9.0", "1.0.0"),
            ("1.9.0", "1.10.0"),
            ("1.0.0-rc.9", "1.0.0-rc.10"),
            ("1.0.0-alpha", "1.0.0-beta.1"),
            ("1.0.0-rc.1", "1.0.0"),
            ("2.0rc9", "2.0rc10"),
            ("2.0b1", "2.0"),
            ("2.0", "2.0.post1"),
            ("2.0.post1", "2.0.1"),
            ("latest", "0.0.1"),
        ] {
            assert!(age(older) < age(newer), "{older} {newer}");
        }
        assert_eq!(age("v1.0.0+build"), age("1"));
        age("99999999999999999999999.1");
    }

    #[test]
    fn names_and_addresses_are_normalised() {
        let forms = [
            "git+https://github.com/Acme/Parcel.git",
            "git@github.com:acme/parcel.git",
            "https://www.github.com/acme/parcel/",
            "ssh://git@github.com/acme/parcel",
            "git+ssh://git@github.com:acme/parcel.git",
            "github:acme/parcel",
            "https://github.com/acme/parcel/blob/main/README.md",
        ];
        assert!(forms.iter().all(|form| repo(form, None).as_deref() == Some("repo:github.com/acme/parcel")));
        let folder = Some("repo:github.com/acme/parcel/src/mail".to_owned());
        assert_eq!(repo("https://github.com/acme/parcel/tree/main/src/mail", None), folder);
        assert_eq!(repo("https://github.com/acme/parcel", Some("./src/mail/")), folder);
        assert_eq!(remote("HTTPS://API.Acme.example:443/mcp/"), remote("https://api.acme.example/mcp"));
        assert_ne!(remote("https://api.acme.example/a"), remote("https://api.acme.example/b"));
        assert_eq!(repo("acme/parcel", None), None);
        assert_eq!(repo("https://github.com/acme/parcel/blob/main/src/mail/README.md", None), folder);
        assert_eq!(repo("https://gitlab.com/c/c/-/blob/main/src/mail", None).as_deref(), Some("repo:gitlab.com/c/c/src/mail"));
        for form in
            ["git@gitlab.com:c/c.git", "git+ssh://git@gitlab.com:c/c.git", "gitlab:c/c", "ssh://git@gitlab.com:22/c/c.git"]
        {
            assert_eq!(repo(form, None).as_deref(), Some("repo:gitlab.com/c/c"), "{form}");
        }
        let plain = remote("https://h.example/mcp");
        assert_eq!(remote("https://h.example/mcp?api_key=<redacted>"), plain);
        assert_eq!(remote("https://h.example/mcp?api_key=YOURKEY&"), plain);
        assert_ne!(remote("https://h.example/mcp?team=a&api_key=k"), plain);
    }
}

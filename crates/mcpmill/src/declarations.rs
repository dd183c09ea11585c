//! The five folders: embedded in the binary, each file replaced by one of the same name in the
//! working folder.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use include_dir::{Dir, include_dir};
use mcpmill_core::{
    canonical::sha256_hex,
    edge::{OpeningCall, WorldSpec},
};
use mcpmill_pipeline::{
    discover,
    export::{
        Dataset,
        profile::{Profile, Training},
    },
    filter::HeldOut,
    prompt::Prompt,
};
use serde::Deserialize;
use serde_json::Value;

use crate::{error::Failure, fixtures::Fixture};

static MARKETPLACES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../marketplaces");
static PROMPTS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../prompts");
static FILTERS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../filters");
static DATASETS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../datasets");
static EVAL: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../eval");

/// Where export profiles are declared.
pub const PROFILES: &str = "datasets/profiles";

/// Bytes of a file that rows must not repeat.
const LARGEST_SET: u64 = 256 << 20;
/// Bytes of one declaration file that are read.
const LARGEST: u64 = 4 << 20;

/// Every declaration, by its path (`prompts/call.md`), with its text.
#[derive(Clone, Debug)]
pub struct Declarations {
    files: BTreeMap<String, String>,
    folder: PathBuf,
    /// Paths that the working folder replaces or adds.
    pub from_folder: Vec<String>,
}

impl Declarations {
    /// The embedded files, with those of `folder` laid over them.
    ///
    /// # Errors
    /// A file of the folder cannot be read, is too large or is no text.
    pub fn load(folder: &Path) -> Result<Self, Failure> {
        let mut files = BTreeMap::new();
        for (top, dir) in embedded() {
            collect(top, dir, &mut files);
        }
        let mut from_folder = Vec::new();
        for (top, _) in embedded() {
            for path in walk(&folder.join(top))? {
                let relative = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
                let text = read(&path)?;
                if files.get(&relative) != Some(&text) {
                    from_folder.push(relative.clone());
                    files.insert(relative, text);
                }
            }
        }
        Ok(Self { files, folder: folder.to_owned(), from_folder })
    }

    /// The working folder, whose files are laid over the embedded ones.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes out the embedded files below `folder`; files that exist stay as they are.
    /// Returns the paths that were written.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_out(folder: &Path) -> Result<Vec<String>, Failure> {
        let mut files = BTreeMap::new();
        for (top, dir) in embedded() {
            collect(top, dir, &mut files);
        }
        files.insert(crate::config::FILE.into(), crate::config::DEFAULT.into());
        let mut written = Vec::new();
        for (path, text) in files {
            let target = folder.join(&path);
            if target.exists() {
                continue;
            }
            let write = || -> std::io::Result<()> {
                std::fs::create_dir_all(target.parent().unwrap_or(folder))?;
                std::fs::write(&target, text)
            };
            write().map_err(|e| Failure::usage(format!("failed to write `{}`: {e}", target.display())))?;
            written.push(path);
        }
        Ok(written)
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Ids of the files `folder/<id><ending>`.
    pub fn ids(&self, folder: &str, ending: &str) -> Vec<String> {
        let id = |path: &String| path.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(ending).map(str::to_owned);
        self.files.keys().filter_map(id).filter(|id| !id.contains('/')).collect()
    }

    /// Folders directly below `folder`, as `folder/<name>`.
    pub fn folders(&self, folder: &str) -> Vec<String> {
        let below = |path: &String| {
            path.strip_prefix(folder)?.strip_prefix('/')?.split_once('/').map(|(name, _)| format!("{folder}/{name}"))
        };
        let mut found: Vec<String> = self.files.keys().filter_map(below).collect();
        found.dedup();
        found
    }

    /// SHA-256 over the files whose path begins with one of `prefixes`, for fingerprints.
    pub fn hash(&self, prefixes: &[&str]) -> String {
        let used = self.files.iter().filter(|(path, _)| prefixes.iter().any(|p| path.starts_with(p)));
        sha256_hex(used.map(|(path, text)| format!("{path}\n{}\n", sha256_hex(text))).collect::<String>())
    }

    /// A prompt by its id.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    pub fn prompt(&self, id: &str) -> Result<Prompt, Failure> {
        let text = self.text(&format!("prompts/{id}.md")).ok_or_else(|| self.missing("prompt", id, "prompts", ".md"))?;
        Prompt::parse(id, text).map_err(|e| Failure::usage(e.to_string()).hint(format!("see prompts/{id}.md")))
    }

    /// A marketplace by its id.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    pub fn marketplace(&self, id: &str) -> Result<Box<dyn discover::Marketplace>, Failure> {
        let text = self
            .text(&format!("marketplaces/{id}.toml"))
            .ok_or_else(|| self.missing("marketplace", id, "marketplaces", ".toml"))?;
        discover::parse(id, text).map_err(|e| Failure::usage(e.to_string()).hint(format!("see marketplaces/{id}.toml")))
    }

    /// Saved pages of a name: those of the working folder, or those that are built in.
    pub fn fixture(&self, name: &str) -> Option<Fixture> {
        let built_in = || MARKETPLACES.get_dir(Path::new("fixtures").join(name)).map(Fixture::BuiltIn);
        Fixture::below(&self.folder.join("marketplaces/fixtures"), name).or_else(built_in)
    }

    /// The text of a filter chain.
    ///
    /// # Errors
    /// There is none.
    pub fn chain(&self, id: &str) -> Result<&str, Failure> {
        self.text(&format!("filters/{id}.toml")).ok_or_else(|| self.missing("filter chain", id, "filters", ".toml"))
    }

    /// What rows must not repeat: the evaluation sets and tasks of eval/, and the files that are named beside them, seen
    /// from the working folder.
    ///
    /// # Errors
    /// A file that is named cannot be read, is too large or is no text.
    pub fn held_out(&self, more: &[PathBuf]) -> Result<HeldOut, Failure> {
        let is_set = |path: &str| path.starts_with("eval/sets/") && path.ends_with(".jsonl");
        let is_task = |path: &str| path.starts_with("eval/tasks/") && path.ends_with(".md");
        let own = self.files.iter().filter(|(path, _)| is_set(path) || is_task(path));
        let named = more.iter().map(|path| {
            let text = read_most(&self.folder.join(path), LARGEST_SET)?;
            Ok((path.to_string_lossy().into_owned(), text))
        });
        let named = named.collect::<Result<Vec<_>, Failure>>().map_err(|f| f.hint("see `filter.decontaminate`"))?;
        Ok(HeldOut::read(
            own.chain(named.iter().map(|pair| (&pair.0, &pair.1))).map(|(path, text)| (path.as_str(), text.as_str())),
        ))
    }

    /// A dataset and its card template.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    pub fn dataset(&self, name: &str) -> Result<(Dataset, &str), Failure> {
        let part = |file: &str| {
            self.text(&format!("datasets/{name}/{file}")).ok_or_else(|| {
                Failure::usage(format!("there is no `datasets/{name}/{file}`"))
                    .hint("`export.datasets` names folders of datasets/")
            })
        };
        let dataset = Dataset::parse(name, part("dataset.toml")?).map_err(|e| Failure::usage(e.to_string()))?;
        Ok((dataset, part("card.md")?))
    }

    /// Names of the datasets: the folders of datasets/ but for that of the profiles.
    pub fn datasets(&self) -> Vec<String> {
        let names = self.folders("datasets").into_iter().map(|folder| folder.trim_start_matches("datasets/").to_owned());
        names.filter(|name| name != "profiles").collect()
    }

    /// An export profile by its name.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    pub fn profile(&self, name: &str) -> Result<Profile, Failure> {
        let text = self
            .text(&format!("{PROFILES}/{name}.toml"))
            .ok_or_else(|| self.missing("export profile", name, PROFILES, ".toml"))?;
        Profile::parse(name, text).map_err(|e| Failure::usage(e.to_string()).hint(format!("see {PROFILES}/{name}.toml")))
    }

    /// How the profiles train.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn training(&self) -> Result<Training, Failure> {
        let text = self.text("datasets/training.toml").unwrap_or_default();
        Training::parse(text).map_err(|e| Failure::usage(format!("failed to read `datasets/training.toml`: {e}")))
    }

    /// World seeds by name, those made of others with all that these hold.
    ///
    /// # Errors
    /// A seed cannot be read, or is made of one that is not there or is itself made of others.
    pub fn worlds(&self) -> Result<BTreeMap<String, WorldSpec>, Failure> {
        let mut seeds = BTreeMap::new();
        for name in self.ids("marketplaces/worlds", ".toml") {
            let text = self.text(&format!("marketplaces/worlds/{name}.toml")).unwrap_or_default();
            let seed: Seed = toml::from_str(text)
                .map_err(|e| Failure::usage(format!("failed to read `marketplaces/worlds/{name}.toml`: {}", e.message())))?;
            seeds.insert(name, seed);
        }
        seeds.iter().map(|(name, seed)| Ok((name.clone(), seed.whole(name, &seeds)?))).collect()
    }

    fn missing(&self, what: &str, id: &str, folder: &str, ending: &str) -> Failure {
        let known = self.ids(folder, ending).join(", ");
        Failure::usage(format!("there is no {what} `{id}`")).hint(format!("{folder}/ has: {known}"))
    }
}

/// A world seed as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Seed {
    /// Seeds whose files, commands and calls it takes; what a person would know of it stands in its own words.
    #[serde(default)]
    from: Vec<String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    setup: Vec<Vec<String>>,
    #[serde(default)]
    opening: Vec<OpeningCall>,
    #[serde(default)]
    at_hand: Vec<String>,
}

impl Seed {
    fn whole(&self, name: &str, seeds: &BTreeMap<String, Self>) -> Result<WorldSpec, Failure> {
        let mut world = WorldSpec { at_hand: self.at_hand.clone(), ..WorldSpec::default() };
        let own = self.own();
        if let Some(path) = own.stray() {
            return Err(Failure::usage(format!(
                "failed to read `marketplaces/worlds/{name}.toml`: `{path}` is no path inside the world"
            ))
            .hint("paths of files are relative and have no `..`"));
        }
        if let Some(call) = self.opening.iter().find(|call| holds_a_date(&Value::Object(call.arguments.clone()))) {
            return Err(Failure::usage(format!(
                "failed to read `marketplaces/worlds/{name}.toml`: the opening call `{}` holds a date without quotes",
                call.tool
            ))
            .hint("JSON has no dates: write it as a text"));
        }
        for part in &self.from {
            let wrong = |what: &str| {
                let known: Vec<&str> =
                    seeds.iter().filter(|(_, seed)| seed.from.is_empty()).map(|(name, _)| name.as_str()).collect();
                Failure::usage(format!("failed to read `marketplaces/worlds/{name}.toml`: `from` names `{part}`, which {what}"))
                    .hint(format!("it may name {}", known.join(", ")))
            };
            let part = seeds.get(part).ok_or_else(|| wrong("is not there"))?;
            if !part.from.is_empty() {
                return Err(wrong("is made of others itself"));
            }
            world.take(&part.own());
        }
        world.take(&own);
        Ok(world)
    }

    fn own(&self) -> WorldSpec {
        let Self { files, setup, opening, .. } = self;
        WorldSpec { files: files.clone(), setup: setup.clone(), opening: opening.clone(), ..WorldSpec::default() }
    }
}

/// TOML's own dates come through as objects of one member.
fn holds_a_date(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(holds_a_date),
        Value::Object(map) => map.iter().any(|(key, item)| key.starts_with("$__toml") || holds_a_date(item)),
        _ => false,
    }
}

fn embedded() -> [(&'static str, &'static Dir<'static>); 5] {
    [("marketplaces", &MARKETPLACES), ("prompts", &PROMPTS), ("filters", &FILTERS), ("datasets", &DATASETS), ("eval", &EVAL)]
}

fn collect(top: &str, dir: &Dir<'_>, files: &mut BTreeMap<String, String>) {
    // What was measured of the declarations declares nothing.
    for file in dir.files().filter(|file| !file.path().ends_with("PROFILES.md")) {
        if let Some(text) = file.contents_utf8() {
            files.insert(format!("{top}/{}", file.path().to_string_lossy()), text.to_owned());
        }
    }
    // Pages that tests read declare nothing, and `init` must not write them out.
    dir.dirs().filter(|d| !d.path().ends_with("fixtures")).for_each(|d| collect(top, d, files));
}

/// Files below `folder`, three levels deep at most; none when it does not exist.
fn walk(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    let mut waiting = vec![(folder.to_owned(), 0)];
    while let Some((dir, depth)) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries {
            let entry = entry.map_err(|e| Failure::usage(format!("failed to read `{}`: {e}", dir.display())))?;
            let name = entry.file_name();
            // Saved pages declare nothing and may be large.
            let hidden = name.to_string_lossy().starts_with('.') || name == "fixtures";
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < 3 && !hidden => waiting.push((entry.path(), depth + 1)),
                Ok(kind) if kind.is_file() && !hidden => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String, Failure> {
    read_most(path, LARGEST)
}

/// The text of a file of at most so many bytes.
///
/// # Errors
/// It cannot be read, is larger or is no text.
pub fn read_most(path: &Path, most: u64) -> Result<String, Failure> {
    let fail = |why: String| Failure::usage(format!("failed to read `{}`: {why}", path.display()));
    let size = path.metadata().map_err(|e| fail(e.to_string()))?.len();
    if size > most {
        return Err(fail(format!("it has {size} bytes, more than {most}")));
    }
    std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_folder_replaces_the_embedded_one() {
        let dir = tempfile::tempdir().unwrap();
        let embedded = Declarations::load(dir.path()).unwrap();
        assert!(embedded.from_folder.is_empty());
        assert!(embedded.ids("prompts", ".md").contains(&"call".to_owned()));
        std::fs::create_dir(dir.path().join("filters")).unwrap();
        std::fs::write(dir.path().join("filters/mine.toml"), "[[step]]\nname = \"a\"\nkind = \"schema-valid\"\n").unwrap();
        std::fs::write(dir.path().join("filters/trajectory.toml"), "# none\n").unwrap();
        let own = Declarations::load(dir.path()).unwrap();
        assert_eq!(own.from_folder, ["filters/mine.toml", "filters/trajectory.toml"]);
        assert_eq!(own.chain("trajectory").unwrap(), "# none\n");
        assert_ne!(own.hash(&["filters/"]), embedded.hash(&["filters/"]));
        assert_eq!(own.hash(&["prompts/"]), embedded.hash(&["prompts/"]));
    }

    #[test]
    fn written_out_files_are_the_embedded_ones() {
        let dir = tempfile::tempdir().unwrap();
        let written = Declarations::write_out(dir.path()).unwrap();
        assert!(written.contains(&"mcpmill.toml".to_owned()));
        assert!(Declarations::load(dir.path()).unwrap().from_folder.is_empty());
        assert!(Declarations::write_out(dir.path()).unwrap().is_empty(), "nothing is written over");
        assert!(!dir.path().join("marketplaces/fixtures").exists(), "pages of tests are no declarations");
        assert!(!dir.path().join("datasets/PROFILES.md").exists(), "nor is what was measured");
    }

    #[test]
    fn a_seed_made_of_others_holds_what_they_hold_and_speaks_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let worlds = dir.path().join("marketplaces/worlds");
        std::fs::create_dir_all(&worlds).unwrap();
        let write = |name: &str, text: &str| std::fs::write(worlds.join(name).with_extension("toml"), text).unwrap();
        write("pens", "at_hand = ['/home/user/work/pens.txt']\nsetup = [['true']]\n[files]\n'pens.txt' = 'blue'");
        write("desk", "from = ['pens']\nat_hand = ['a desk']\nopening = [{ tool = 'sit', arguments = { at = 'desk' } }]");
        let seeds = Declarations::load(dir.path()).unwrap().worlds().unwrap();
        let desk = &seeds["desk"];
        assert_eq!(
            (desk.files["pens.txt"].as_str(), desk.setup.len(), &desk.at_hand[..]),
            ("blue", 1, &["a desk".to_owned()][..])
        );
        assert_eq!((desk.opening[0].tool.as_str(), &desk.opening[0].arguments["at"]), ("sit", &serde_json::json!("desk")));
        assert_eq!(seeds["pens"].opening, []);

        for (from, want) in [("ink", "`ink`, which is not there"), ("desk", "`desk`, which is made of others itself")] {
            write("room", &format!("from = ['{from}']"));
            let failure = Declarations::load(dir.path()).unwrap().worlds().unwrap_err();
            assert!(failure.to_string().contains(want) && failure.hint.unwrap().contains("pens"), "{want}");
        }
        for (text, want) in [
            ("form = ['pens']", "unknown field `form`"),
            ("network = 'full'", "unknown field `network`"),
            ("[files]\n'../ink' = ''", "`../ink` is no path"),
            ("opening = [{ tool = 'sit', arguments = { at = 2026-03-02 } }]", "holds a date"),
            ("opening = [{ tool = 'sit', argument = {} }]", "unknown field `argument`"),
        ] {
            write("room", text);
            let failure = Declarations::load(dir.path()).unwrap().worlds().unwrap_err().to_string();
            assert!(failure.contains(want), "{failure}");
        }
    }

    #[test]
    fn every_embedded_declaration_can_be_used() {
        let all = Declarations::load(Path::new("/nonexistent")).unwrap();
        for id in all.ids("prompts", ".md") {
            all.prompt(&id).unwrap();
        }
        for id in all.ids("marketplaces", ".toml") {
            all.marketplace(&id).unwrap();
        }
        all.worlds().unwrap();
        all.dataset("mcp-tool-calls").unwrap();
        all.training().unwrap();
        for id in all.ids(PROFILES, ".toml") {
            all.profile(&id).unwrap();
        }
        assert_eq!(all.datasets(), ["mcp-tool-calls"]);
        assert!(all.prompt("cal").unwrap_err().hint.unwrap().contains("call"));
    }
}

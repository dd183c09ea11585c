//! What a text says of itself by its form: how it begins, whether it is one sentence, what it repeats of the call.
//!
//! A word proves nothing: published lists of words drop up to three quarters of good answers. So words count here only
//! at the place where a report of failure has them, in a text that is short enough to be one, and never when the call
//! itself holds them. The loose words of [`Asked::doubts`] decide nothing but that a judge is asked.

use std::sync::LazyLock;

use mcpmill_core::{naming::words, text::clipped};
use regex::Regex;
use serde_json::{Map, Value};

/// Characters of a text that can be a report of failure as a whole.
const REPORT: usize = 4000;
/// Characters of one that is a sentence or two.
const SENTENCES: usize = 400;
/// Characters of a text that is more than a report of failure would be.
const LONG: usize = 1500;
/// Characters by which a long text shows what it is.
const HEAD: usize = 300;

/// What an answer is compared with.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    /// The tool's own name.
    pub(super) tool: &'a str,
    pub(super) arguments: &'a Map<String, Value>,
}

type Pattern = LazyLock<Option<Regex>>;

fn finds(pattern: &Pattern, text: &str) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

/// A first line that names what follows as an error: `Error: …`, `Database error: …`, `TypeError: …`,
/// `Error executing query: …`, `fatal: …`, `ENOENT: …`.
static LABEL: Pattern = LazyLock::new(|| {
    Regex::new(
        r"(?x)^(?:
        (?: (?:[\w.'-]+\x20){0,4}? [\w.-]*(?:[Ee]rror|ERROR|[Ee]xception) (?:\s\([^)\n]{0,60}\))? \]? \s?:\s? )
        | (?: (?:Error|ERROR)\x20?\n )
        | (?: MCP\serror\s-?\d+\s?:\s )
        | (?: Error\s\w+ing\s\w[^:\n]{0,120}: )
        | (?: (?:[\w.'-]+\x20){0,4}? [Ee]rror\x20(?:while|when|during|in|from|with|at|on|occurred)\b [^:\n]{0,100}: )
        | (?: (?:[\w.'-]+\x20){0,4}? (?:[Ff]ailed|FAILED|[Ff]ailure) \s?:\s )
        | (?: (?:Tool|Command|Request|Query|Operation)\b[^:\n]{0,80}\bfailed\b [^:\n]{0,20} : )
        | (?: [Ff]atal:\s | FATAL:\s | panic:\s | thread\s'[^'\n]*'\spanicked | Traceback\s\(most\srecent\scall\slast\): )
        | (?: E[A-Z]{3,14}:\s )
        | (?: (?:错误|失败|出错|エラー|오류|Fehler|Erreur|Errore|Ошибка|Erro)\s?[:：] )
        )",
    )
    .ok()
});
/// The same without anything behind it: `Error executing tool cache_get`.
static GERUND: Pattern = LazyLock::new(|| Regex::new(r"^Error\s(?:while\s)?\w+ing\s").ok());
/// What people do about errors, and write texts about.
static ABOUT_ERRORS: Pattern =
    LazyLock::new(|| Regex::new(r"^(?i)errors?\s(?:handling|logging|reporting|tracking|checking|monitoring|correcting)\b").ok());
/// Such a first line that a note or a log may have as well: the tool's own reports begin with the error.
static CONTENT: Pattern =
    LazyLock::new(|| Regex::new(r"^(?:[\w.'-]+ ){1,4}?(?:[Ee]rror|ERROR|[Ee]xception|[Ff]ailed|FAILED|[Ff]ailure)\b").ok());
/// What stands behind such a label when nothing failed: `Last error: none`, `Standard error: 0.12`, `Failed: 0`.
static NOTHING: Pattern =
    LazyLock::new(|| Regex::new(r"(?i)^\W*(?:none|null|nil|no|nothing|n/a|false|empty|-?[\d.,]+\s?%?)\W*(?:$|\n|,|;|\|)").ok());
/// How a sentence begins that says what could not be done.
static OPENING: Pattern = LazyLock::new(|| {
    Regex::new(
        r"(?x)^(?:(?:Sorry|Oops)\W+)?(?:(?:I|We)\s(?:was|were|am|are)\s)?(?i:
          could\snot\s | couldn't\s | cannot\s | can't\s | can\snot\s | unable\sto\s | failed\sto\s | failure\sto\s
        | (?:access|permission|request|authori[sz]ation|authentication|login|connection)\s(?:was\s)?(?:denied|refused|failed|rejected|timed\sout|blocked)\b
        | not\s(?:found|authori[sz]ed|authenticated|allowed|permitted|supported|implemented|connected|logged\sin|signed\sin)\b
        | no\ssuch\s | fetch\sfailed\b | request\stimed\sout\b | operation\stimed\sout\b | timed\sout\b | unauthori[sz]ed\b
        | invalid\s[\w\s]{1,30}:\s | unknown\s[\w\s]{1,30}:\s | unsupported\s[\w\s]{1,30}:\s
        | missing\s(?:required|argument|parameter) | rate\slimit\sexceeded | too\smany\srequests
        )",
    )
    .ok()
});
/// A sentence that says of a thing that it is not there or not fit.
static PREDICATE: Pattern = LazyLock::new(|| {
    Regex::new(
        r"(?x)\b(?:was\snot\sfound|not\sfound|does\snot\sexist|doesn't\sexist|do\snot\sexist|no\slonger\sexists
        |(?:is|are|was)\snot\s(?:available|supported|allowed|permitted|installed|configured|running|connected|initiali[sz]ed|enabled|ready|valid|recogni[sz]ed|open|loaded)
        |could\snot\sbe\s\w+|cannot\sbe\s\w+|can't\sbe\s\w+)\b",
    )
    .ok()
});
/// A sentence of one thing that failed, not of how many did.
static FAILED: Pattern = LazyLock::new(|| Regex::new(r"^[A-Z][a-z]+(?:\s[\w.'-]+){0,3}\s(?:has\s)?failed\b").ok());
/// An operating system's own words for a failed call.
static ERRNO: Pattern = LazyLock::new(|| {
    Regex::new(
        r"\[Errno (?:-?\d+|None)\]|\(os error \d+\)|\bE(?:NOENT|ACCES|CONNREFUSED|CONNRESET|NOTFOUND|TIMEDOUT|PERM|EXIST|ISDIR|NOTDIR|AI_AGAIN|HOSTUNREACH|NETUNREACH)\b",
    )
    .ok()
});
/// A web server's page for a failed request.
static PAGE: Pattern = LazyLock::new(|| {
    Regex::new(r"(?i)<title>\s*(?:error\s*)?[45]\d\d\b|^HTTP(?:/[\d.]+)?\s[45]\d\d\b|failed with status(?: code)? [45]\d\d\b")
        .ok()
});
/// A command that ended with something else than 0.
static EXIT: Pattern = LazyLock::new(|| Regex::new(r"(?i)^\W*exit (?:status|code)\W{1,3}-?[1-9]\d*\b").ok());
/// A command that says at the end that it ended with 0.
static ENDED_WELL: Pattern = LazyLock::new(|| Regex::new(r"(?i)\b(?:exit|return) (?:code|status)\W{1,3}0\W*$").ok());
/// A part of the output with a heading of its own.
static OUTPUT: Pattern = LazyLock::new(|| Regex::new(r"(?im)^\W*(?:std)?out(?:put)?\W*$").ok());
static ERROR_OUTPUT: Pattern = LazyLock::new(|| Regex::new(r"(?im)^\W*(?:stderr|error|errors)\W*$").ok());
/// Nothing was found, and it says so.
static NONE: Pattern = LazyLock::new(|| {
    Regex::new(r"(?i)^(?:there (?:are|is|were) )?(?:no|0|zero) (?:[\w'-]+ ){0,5}?[\w'-]+(?: (?:found|yet|available|matched|set|here)\b[^.\n]{0,80})?\.?$").ok()
});
/// What a report of failure may have anywhere: reason to ask, never to drop.
static LOOSE: Pattern = LazyLock::new(|| {
    Regex::new(
        r"(?ix)\b(?:\w*err(?:or)?s?|\w*exception|fail\w*|fault|faulty|no|not|nothing|none|nor|never|\w+n't|cannot|unable|unknown|invalid|denied|denial|refus\w*
        |reject\w*|miss(?:ing|ed)|unavailable|unsupported|unauthori[sz]ed|unrecogni[sz]ed|unexpected|unresolved|forbidden|require[sd]?|must|needs?|timeout|timed\sout|expired
        |exceed\w*|exhausted|limit(?:ed)?|quota|too|abort\w*|undefined|already|only|please|try|instead|blocked|disabled|locked|offline|closed\sby
        |stderr|traceback|fatal|panic\w*|problem|trouble|unfortunately|sorry|without|skipp\w*|lack\w*|wrong|bad|outside|beyond|out\sof|down|stale|rebuilt|maintenance|switched\soff|thrown)\b
        |\b[45]\d\d\b|[❌⚠✗✘]",
    )
    .ok()
});

/// Why a text is a report of failure, if its form says so.
pub(super) fn failure(text: &str, asked: &Asked<'_>) -> Option<String> {
    let bare = bare(text);
    let first = bare.lines().next().unwrap_or_default();
    let length = bare.chars().take(REPORT + 1).count();
    // What the call itself holds is what it was to print, write or find.
    if length == 0 || length > REPORT || asked.holds(first) {
        return None;
    }
    let lines = bare.lines().filter(|line| !line.trim().is_empty()).count();
    let told = |what: &str| Some(format!("{what}: {}", clipped(first, 160)));
    if let Some(label) = LABEL.as_ref().and_then(|label| label.find(bare))
        && !finds(&NOTHING, &bare[label.end()..])
        && !finds(&ABOUT_ERRORS, bare)
        && !asked.is(label.as_str().trim_end_matches([':', ' ', '\n']))
        && !(asked.reads() && lines > 1 && finds(&CONTENT, bare))
    {
        return told("it begins as errors do");
    }
    if finds(&EXIT, bare) && !has_output(bare) {
        return told("the command failed");
    }
    if finds(&ERROR_OUTPUT, bare) && !has_output(bare) && is_headed(bare, &ERROR_OUTPUT) {
        return told("it has errors and no output");
    }
    if finds(&PAGE, bare) {
        return told("it is the page of a failed request");
    }
    if length > SENTENCES || lines > 4 {
        return None;
    }
    if lines == 1 && finds(&GERUND, bare) && !finds(&ABOUT_ERRORS, bare) {
        return told("it begins as errors do");
    }
    if lines == 1 && !asked.searches() && finds(&FAILED, bare) {
        return told("it says that something failed");
    }
    if finds(&OPENING, bare) {
        return told("it begins with what could not be done");
    }
    if ERRNO.as_ref().and_then(|errno| errno.find(bare)).is_some_and(|found| !asked.holds(found.as_str())) {
        return told("it holds the error of a system call");
    }
    let predicate = PREDICATE.as_ref().and_then(|predicate| predicate.find(first)).filter(|found| !asked.holds(found.as_str()));
    if lines == 1 && predicate.is_some() && asked.named_in(first) && !asked.searches() && !finds(&NONE, bare) {
        return told("what was named is not there or not fit");
    }
    None
}

/// Without white space and the marks of headings and emphasis around it.
fn bare(text: &str) -> &str {
    text.trim().trim_start_matches(|c: char| {
        matches!(c, '#' | '*' | '_' | '>' | '[' | '❌' | '⚠' | '✗' | '\u{fe0f}') || c.is_whitespace()
    })
}

/// Whether a part called output holds something.
fn has_output(text: &str) -> bool {
    let Some(found) = OUTPUT.as_ref().and_then(|output| output.find(text)) else { return false };
    let after = text[found.end()..].trim_start();
    let none = |after: &str| after.is_empty() || after.to_lowercase().starts_with("(no output)");
    let other = ERROR_OUTPUT.as_ref().and_then(|errors| errors.find(after)).is_some_and(|errors| errors.start() == 0);
    !none(after) && !other
}

/// Whether a heading of marks stands in it (`--- Error ---`), not only a word on a line.
fn is_headed(text: &str, heading: &Pattern) -> bool {
    let marked = |line: &&str| line.starts_with("--") || line.starts_with("==");
    text.lines().map(str::trim).filter(marked).any(|line| finds(heading, line))
}

/// Why a text that reports no failure is an answer by its form alone.
pub(super) fn fine(text: &str, asked: &Asked<'_>) -> Option<&'static str> {
    let text = text.trim();
    let length = text.chars().count();
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
    let rest = asked.without(text);
    if asked.holds(text) || rest.len() < text.len() && rest.split_whitespace().count() <= 2 && !asked.doubts(text) {
        return Some("it is what the call holds");
    }
    let first = text.replace('_', " ");
    let first = first.split_once(". ").map_or(first.trim(), |(sentence, _)| sentence.trim());
    if lines == 1 && length <= 200 && asked.lists() && finds(&NONE, first) {
        return Some("it says that there is none");
    }
    if asked.denies(text) {
        return Some("it denies what the tool's name asks");
    }
    if asked.reads() && lines >= 3 && !asked.mentioned_in(text) {
        return Some("it is what was to be read");
    }
    if finds(&ENDED_WELL, text) {
        return Some("the command ended well");
    }
    if lines >= 3 && text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('|')) {
        return Some("it is a table");
    }
    if lines > 0 && text.lines().filter(|line| !line.trim().is_empty()).all(|line| is_value(line, asked)) {
        return Some("it is nothing but values");
    }
    if is_output(text) {
        return Some("it has output and no errors");
    }
    if !asked.doubts(text) && asked.is_done_in(text) && length <= SENTENCES && lines <= 4 {
        return Some("it says that it was done");
    }
    if !asked.doubts(text) && (is_list(text) || asked.tells_more(text) || asked.reads() && lines >= 2) {
        return Some("it is data and tells of no failure");
    }
    let first = text.lines().next().unwrap_or_default();
    let shown = if length > LONG && lines >= 10 { first.to_owned() } else { text.chars().take(HEAD).collect() };
    (length > SENTENCES && !asked.doubts(&shown)).then_some("it goes on for long and begins well")
}

/// Lines of a list or a table: bullets, numbers, names with values.
fn is_list(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let item = |line: &&&str| {
        line.starts_with(['-', '*', '•', '|', '['])
            || line.starts_with(|c: char| c.is_ascii_digit())
            || line.contains(": ")
            || line.contains('\t')
    };
    lines.len() >= 3 && lines.iter().filter(item).count() * 3 >= lines.len() * 2
}

/// Whether it has a heading for its output (`--- Output ---`) and none for errors.
fn is_output(text: &str) -> bool {
    is_headed(text, &OUTPUT) && !is_headed(text, &ERROR_OUTPUT)
}

/// Numbers, dates, paths, single words: what needs no sentence.
fn is_value(text: &str, asked: &Asked<'_>) -> bool {
    let plain = |c: char| c.is_ascii_graphic() || c == ' ';
    let words = text.split_whitespace().count();
    let telling = text.chars().any(|c| c.is_ascii_digit() || matches!(c, '/' | '.' | ':'));
    let ended = text.ends_with(['.', '!', '?']);
    (1..=4).contains(&words)
        && text.len() <= 80
        && text.chars().all(plain)
        && !ended
        && (telling || words == 1)
        && !asked.doubts(text)
}

impl Asked<'_> {
    /// Whether a string of the call's arguments holds the text.
    pub(super) fn holds(&self, text: &str) -> bool {
        let wanted = squeezed(text);
        wanted.len() >= 4 && self.strings(|held| squeezed(held).contains(&wanted))
    }

    /// Whether somebody should look at a text, but for what the call itself holds.
    pub(super) fn doubts(&self, text: &str) -> bool {
        // Names of files and addresses are no words.
        let is_word = |word: &&str| !word.contains('/') && !word.trim_end_matches(['.', ':', '!', '?', ',']).contains('.');
        let words: Vec<&str> = text.split(' ').filter(is_word).collect();
        finds(&LOOSE, &self.without(&words.join(" ")).replace('_', " "))
    }

    /// A text without what the call itself holds.
    fn without(&self, text: &str) -> String {
        let mut rest = text.to_owned();
        self.strings(|held| {
            if held.len() > 2 {
                rest = rest.replace(held, " ");
            }
            false
        });
        rest
    }

    /// Whether a text names a value of the call, or puts something into quotes.
    fn named_in(&self, text: &str) -> bool {
        text.contains(['"', '\'', '`', '«', '“']) || self.mentioned_in(text)
    }

    /// Whether a text names a value of the call, or the file of a path.
    fn mentioned_in(&self, text: &str) -> bool {
        let low = text.to_lowercase();
        self.strings(|held| {
            let file = held.rsplit('/').next().unwrap_or_default().to_lowercase();
            file.len() > 1 && low.contains(&file)
        })
    }

    /// Whether a text is about a value of the call or what the tool's name says, and has numbers that the call does not have.
    fn tells_more(&self, text: &str) -> bool {
        let low = text.to_lowercase();
        let named = || words(self.tool).iter().any(|word| word.len() > 3 && low.contains(word));
        let about = self.strings(|held| held.len() > 1 && low.contains(&held.to_lowercase())) || named();
        let numbers = low.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
        let fresh = numbers.filter(|number| !self.strings(|held| held.contains(number))).count();
        about && fresh > 0 && text.chars().filter(char::is_ascii).count() * 10 >= text.chars().count() * 9
    }

    fn strings(&self, mut is: impl FnMut(&str) -> bool) -> bool {
        fn any(value: &Value, is: &mut dyn FnMut(&str) -> bool) -> bool {
            match value {
                Value::String(text) => is(text),
                Value::Number(number) => is(&number.to_string()),
                Value::Array(items) => items.iter().any(|item| any(item, is)),
                Value::Object(fields) => fields.values().any(|field| any(field, is)),
                _ => false,
            }
        }
        self.arguments.values().any(|value| any(value, &mut is))
    }

    /// Whether the tool looks for things, so that one that is not there may be its answer.
    pub(super) fn searches(&self) -> bool {
        let verbs =
            ["search", "find", "grep", "query", "check", "exist", "contain", "validate", "verify", "test", "lookup", "match"];
        words(self.tool).iter().any(|word| verbs.contains(&word.as_str()))
    }

    /// Whether its answer is what stands somewhere, whatever that is about.
    fn reads(&self) -> bool {
        let verbs =
            ["read", "cat", "show", "print", "view", "head", "tail", "display", "convert", "extract", "text", "file", "document"];
        let commands = ["cat", "head", "tail", "less", "type"];
        let runs = |held: &str| held.split_whitespace().next().is_some_and(|first| commands.contains(&first));
        words(self.tool).iter().any(|word| verbs.contains(&word.as_str())) || self.strings(runs)
    }

    /// Whether a sentence says no to what the tool's name asks: `check_language_available`, `Klingon is not available`.
    pub(super) fn denies(&self, text: &str) -> bool {
        let predicate = PREDICATE.as_ref().and_then(|predicate| predicate.find(text));
        let asks = words(self.tool);
        text.lines().count() == 1
            && predicate.is_some_and(|found| words(found.as_str()).iter().any(|word| word.len() > 4 && asks.contains(word)))
    }

    /// Whether a string of the call's arguments is just that.
    fn is(&self, text: &str) -> bool {
        self.strings(|held| held.eq_ignore_ascii_case(text))
    }

    /// Whether its answer may be that there is none.
    fn lists(&self) -> bool {
        let verbs = ["list", "get", "show", "view", "all", "history", "read", "query", "status"];
        self.searches() || words(self.tool).iter().any(|word| verbs.contains(&word.as_str()))
    }

    /// Whether a text says that what the tool's name says was done: `create_table`, `Table created`.
    fn is_done_in(&self, text: &str) -> bool {
        let said = words(text);
        said.iter()
            .any(|word| ["successfully", "success", "completed", "finished"].contains(&word.as_str()) || self.is_participle(word))
            || text.contains("成功")
    }

    /// Whether a word is the participle of the verb that the tool's name begins with.
    pub(super) fn is_participle(&self, word: &str) -> bool {
        let irregular = [
            ("set", "set"),
            ("write", "written"),
            ("send", "sent"),
            ("put", "put"),
            ("run", "ran"),
            ("make", "made"),
            ("build", "built"),
        ];
        words(self.tool).iter().any(|verb| {
            let doubled = verb.chars().last().map(|last| format!("{verb}{last}ed")).unwrap_or_default();
            let regular = |stem: &str| verb.len() > 2 && word == format!("{stem}ed");
            irregular.contains(&(verb.as_str(), word))
                || regular(verb.trim_end_matches('e'))
                || verb.strip_suffix('y').is_some_and(|stem| regular(&format!("{stem}i")))
                || verb.len() > 2 && word == doubled
        })
    }
}

/// In lower case and with one blank between words.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

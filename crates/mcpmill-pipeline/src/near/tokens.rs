//! A text as a row of tokens: words, values, and pairs of letters where a script has no spaces.

use std::hash::{DefaultHasher, Hasher};

use unicode_normalization::UnicodeNormalization;

/// Tokens of a text that are looked at; what follows them counts as one value.
const MAX_TOKENS: usize = 2_000;

/// Letters of a chunk; a longer one is cut into several.
const MAX_CHUNK: usize = 400;

/// Letters between quotation marks; marks further apart quote nothing.
const MAX_QUOTE: usize = 200;

/// Letters of a word that count, so that most endings of a word do not.
const STEM: usize = 6;

/// One token, with what its place says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    /// Hash of the folded token.
    pub full: u64,
    /// Hash of its stem; that of the token where it has none.
    pub stem: u64,
    pub mark: Mark,
}

/// What the writing of a token says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// Certainly a value: digits, a path, an address, an identifier.
    pub value: bool,
    /// Digits only, so that how often it stands counts.
    pub number: bool,
    /// Between quotation marks.
    pub quoted: bool,
    /// Capital or mixed case where no sentence starts, in a text whose case says something.
    pub capital: bool,
    /// Stands in a text whose case says something.
    pub cased: bool,
    /// Joins the values before and after it, as `and` does.
    pub joins: bool,
}

/// Numerals and ordinals, so that a changed one is a changed value; `one` and `first` are too often no number.
const NUMERALS: [(&str, &str); 30] = [
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("twenty", "20"),
    ("thirty", "30"),
    ("forty", "40"),
    ("fifty", "50"),
    ("hundred", "100"),
    ("thousand", "1000"),
    ("second", "2nd"),
    ("third", "3rd"),
    ("fourth", "4th"),
    ("fifth", "5th"),
    ("sixth", "6th"),
    ("seventh", "7th"),
    ("eighth", "8th"),
    ("ninth", "9th"),
    ("tenth", "10th"),
    ("zwei", "2"),
    ("drei", "3"),
    ("dos", "2"),
    ("trois", "3"),
];

const JOINING: [&str; 12] = ["and", "or", "und", "oder", "et", "ou", "y", "e", "och", "en", "и", "或"];

/// Words of a language that writes its nouns with capitals, where a capital says nothing of names.
const CAPITAL_NOUNS: [&str; 20] = [
    "der", "das", "und", "ist", "nicht", "ein", "eine", "einen", "mit", "für", "auf", "dem", "den", "zu", "von", "ich", "bitte",
    "alle", "wie", "welche",
];

/// The tokens of `text`, in their order; never none.
pub(super) fn read(text: &str) -> Vec<Token> {
    let letters: Vec<char> = match text.is_ascii() {
        true => text.chars().collect(),
        false => text.nfkc().collect(),
    };
    let mut reader = Reader { letters: &letters, at: 0, tokens: vec![], starts: true, quote_ends: 0, words: Casing::default() };
    reader.run();
    let useful = reader.words.useful();
    let mut tokens = reader.tokens;
    if tokens.is_empty() {
        let full = hash(text.trim());
        tokens.push(Token { full, stem: full, mark: Mark { value: true, ..Mark::default() } });
    }
    for token in &mut tokens {
        token.mark.cased = useful;
        token.mark.capital &= useful;
    }
    tokens
}

/// The hash of a token, the same in every run.
pub(super) fn hash(token: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(token.as_bytes());
    hasher.finish()
}

/// How a text uses capitals.
#[derive(Default)]
struct Casing {
    inner: usize,
    capital: usize,
    lower: bool,
    nouns: usize,
}

impl Casing {
    fn useful(&self) -> bool {
        self.lower && self.capital * 2 <= self.inner.max(2) && self.nouns < 2
    }
}

struct Reader<'a> {
    letters: &'a [char],
    at: usize,
    tokens: Vec<Token>,
    /// Whether a sentence starts here.
    starts: bool,
    /// Where the open quotation ends; 0 when none is open.
    quote_ends: usize,
    words: Casing,
}

impl Reader<'_> {
    fn run(&mut self) {
        while let Some(&c) = self.letters.get(self.at) {
            if self.tokens.len() >= MAX_TOKENS {
                return self.rest();
            }
            if self.at >= self.quote_ends {
                self.quote_ends = 0;
            }
            if is_unspaced(c) {
                self.unspaced();
            } else if self.opens_chunk() {
                self.chunk();
            } else {
                self.sign(c);
                self.at += 1;
            }
        }
    }

    /// What is too much to look at: one value, so that only texts with the same rest are alike.
    fn rest(&mut self) {
        let rest: String =
            self.letters[self.at..].iter().filter(|c| c.is_alphanumeric()).flat_map(|c| c.to_lowercase()).collect();
        self.at = self.letters.len();
        self.push(&rest, Mark { value: true, ..Mark::default() });
    }

    fn get(&self, at: usize) -> char {
        self.letters.get(at).copied().unwrap_or(' ')
    }

    fn before(&self) -> char {
        self.at.checked_sub(1).map_or(' ', |at| self.letters[at])
    }

    /// A letter that is part of no token: it may end a sentence, open a quotation or be an operator.
    fn sign(&mut self, c: char) {
        match c {
            '.' | '!' | '?' | ':' | '\n' | '。' | '…' => self.starts = true,
            '<' | '>' | '+' | '*' | '^' | '=' => self.push(&c.to_string(), Mark { value: true, ..Mark::default() }),
            _ if self.quote_ends == 0 => {
                if let Some(end) = self.quotation(c) {
                    self.quote_ends = end;
                }
            }
            _ => {}
        }
    }

    /// Where the quotation that `c` opens ends.
    fn quotation(&self, c: char) -> Option<usize> {
        let close = match c {
            '"' | '`' | '\'' if !self.before().is_alphanumeric() => c,
            '‘' => '’',
            '“' | '„' => '”',
            '«' => '»',
            '「' => '」',
            '『' => '』',
            _ => return None,
        };
        let ends = |&at: &usize| {
            let here = self.get(at);
            let closes = here == close || (c == '„' && here == '“');
            closes && (close != '\'' && close != '’' || !self.get(at + 1).is_alphanumeric())
        };
        (self.at + 1..self.letters.len().min(self.at + 1 + MAX_QUOTE)).find(ends)
    }

    /// A run of a script without spaces: pairs of letters.
    fn unspaced(&mut self) {
        let from = self.at;
        while self.at < self.letters.len() && is_unspaced(self.letters[self.at]) && self.at - from < MAX_CHUNK {
            self.at += 1;
        }
        let run = &self.letters[from..self.at];
        let mark = Mark { quoted: self.quote_ends > 0, ..Mark::default() };
        let pairs: Vec<String> = run.windows(2).map(|pair| pair.iter().collect()).collect();
        pairs.iter().for_each(|pair| self.push(pair, mark));
        if let [only] = run {
            self.push(&only.to_string(), Mark { joins: "和与或と".contains(*only), ..mark });
        }
        self.starts = false;
    }

    fn opens_chunk(&self) -> bool {
        let (c, next) = (self.get(self.at), self.get(self.at + 1));
        let sign = match c {
            '/' | '~' | '.' | '\\' | '@' | '#' | '_' | '*' => {
                next.is_alphanumeric() || (c == '~' && next == '/') || (c == '*' && next == '.')
            }
            '-' | '+' => next.is_ascii_digit() && !self.before().is_alphanumeric(),
            '$' | '€' | '£' | '¥' => next.is_ascii_digit(),
            _ => c.is_alphanumeric(),
        };
        sign && !is_unspaced(c)
    }

    /// Whether the chunk that started at `from` goes on with the letter here.
    fn goes_on(&self, from: usize, address: bool) -> bool {
        let (c, next) = (self.get(self.at), self.get(self.at + 1));
        let inner = next.is_alphanumeric() && !is_unspaced(next);
        match c {
            _ if is_unspaced(c) => false,
            '/' | '_' | '\\' | '@' | '$' | '~' => true,
            '.' | '-' | '&' | '#' | '+' => inner || next == '/' || next == '_' || next == '.' && self.get(self.at + 2) == '/',
            ':' => inner || next == '/' || next == ':' || self.before() == ':',
            '*' => self.at == from || next == '.',
            '?' | '=' | '%' => address && inner,
            ',' => {
                let digits = (1..4).all(|n| self.get(self.at + n).is_ascii_digit());
                self.before().is_ascii_digit() && digits && !self.get(self.at + 4).is_ascii_digit()
            }
            '\'' | '’' => self.before().is_alphanumeric() && inner && self.at != self.quote_ends,
            _ => c.is_alphanumeric() || is_joiner(c),
        }
    }

    /// A run of letters without a space: a word, words with hyphens, or a value.
    fn chunk(&mut self) {
        let from = self.at;
        let mut address = false;
        while self.at < self.letters.len() && self.at - from < MAX_CHUNK && self.goes_on(from, address) {
            self.at += 1;
            address |= self.letters[from..self.at].ends_with(&[':', '/', '/']);
        }
        self.at = self.at.max(from + 1);
        let raw = &self.letters[from..self.at];
        let quoted = self.quote_ends > 0;
        if is_value(raw) {
            let folded: String = fold(raw).chars().filter(|c| *c != ',').collect();
            let folded = folded.trim_end_matches(['.', ':', '/', '-']);
            let number = folded.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit() || b == b'.');
            self.push(folded, Mark { value: true, number, quoted, ..Mark::default() });
            self.starts = false;
        } else {
            for word in raw.split(|c| !c.is_alphanumeric() && !is_joiner(*c) && *c != '\'' && *c != '’') {
                self.word(word, quoted);
            }
        }
    }

    fn word(&mut self, raw: &[char], quoted: bool) {
        let raw = match raw {
            [inner @ .., '\'' | '’', 's' | 'S'] => inner,
            _ => raw,
        };
        let Some(&first) = raw.first() else { return };
        let folded = fold(raw);
        let letters: String = folded.chars().filter(|c| !matches!(c, '\'' | '’')).collect();
        let own = letters == "i" || folded.starts_with("i'") || folded.starts_with("i’");
        // The middle of a word tells an identifier even where a sentence starts.
        let mixed = raw.windows(2).any(|w| w[0].is_lowercase() && w[1].is_uppercase());
        let capital = (first.is_uppercase() && !self.starts && !own) || mixed;
        self.words.lower |= raw.iter().any(|c| c.is_lowercase());
        self.words.nouns += usize::from(CAPITAL_NOUNS.contains(&letters.as_str()));
        if !self.starts && !quoted {
            self.words.inner += 1;
            self.words.capital += usize::from(capital);
        }
        self.starts = false;
        if let Some((_, digits)) = NUMERALS.iter().find(|(word, _)| *word == letters) {
            return self.push(digits, Mark { value: true, number: true, quoted, ..Mark::default() });
        }
        let joins = JOINING.contains(&letters.as_str());
        let mark = Mark { quoted, capital: capital && !quoted, joins, ..Mark::default() };
        let plural = letters.chars().count() > 3 && letters.ends_with('s') && !letters.ends_with("ss");
        let stem: String = letters[..letters.len() - usize::from(plural)].chars().take(STEM).collect();
        self.tokens.push(Token { full: hash(&letters), stem: hash(&stem), mark });
    }

    fn push(&mut self, token: &str, mark: Mark) {
        let full = hash(token);
        self.tokens.push(Token { full, stem: full, mark });
    }
}

/// Whether a chunk is a value by its signs: digits, a path, an address, an identifier, a file name.
fn is_value(raw: &[char]) -> bool {
    let inner_point = || {
        let parts: Vec<&[char]> = raw.split(|c| *c == '.').filter(|part| !part.is_empty()).collect();
        raw.contains(&'.') && (parts.len() < 2 || parts.iter().any(|part| part.len() > 1))
    };
    raw.iter().any(|c| c.is_numeric() || matches!(c, '/' | '_' | '\\' | '@' | '#' | '~' | '*' | ':' | '$')) || inner_point()
}

fn fold(raw: &[char]) -> String {
    let mut out = String::with_capacity(raw.len());
    for &c in raw {
        match c {
            'ß' | 'ẞ' => out.push_str("ss"),
            'ς' => out.push('σ'),
            // The dot that the small form of a Turkish capital leaves behind says nothing.
            '\u{307}' => {}
            _ => out.extend(c.to_lowercase().filter(|c| *c != '\u{307}')),
        }
    }
    out
}

/// Marks that stand inside words of several scripts.
fn is_joiner(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{64b}'..='\u{65f}' | '\u{591}'..='\u{5c7}' | '\u{93c}' | '\u{94d}' | '\u{200c}' | '\u{200d}')
}

/// Scripts whose words have no spaces between them, or endings without end.
fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3005}'..='\u{3007}' | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

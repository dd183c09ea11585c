//! What a server is given: its variables, and arguments in which nothing is left open.

use std::collections::HashMap;

use mcpmill_core::{
    record::{HarvestOutcome, ServerRecord},
    template::{Form, Hole, as_variable, fill, is_open},
};

use super::{Failure, world::is_placed};

/// What is asked for where nothing says what belongs there.
pub(super) const UNNAMED: &str = "ARGUMENT";

/// Bytes of a variable or an argument once it is filled. The system takes little more, and variables that name each
/// other twice would double with each.
const LONGEST: usize = 100_000;
/// Variables that name each other in a chain.
const MOST_LEVELS: usize = 32;

/// The variables and arguments of one server, from its listing and from the user's credentials.
pub(super) struct Given<'a> {
    credentials: &'a HashMap<String, String>,
    env: Vec<(String, String)>,
    missing: Vec<String>,
    /// What became longer than it may be.
    too_long: Option<String>,
}

/// A variable before what it names is filled in.
struct Own<'s> {
    name: &'s str,
    value: &'s str,
    /// The user gave this very value: whatever stands in it is meant.
    is_given: bool,
}

/// Variables on their way to their values.
struct Settling<'s> {
    own: Vec<Own<'s>>,
    settled: Vec<Option<String>>,
    /// Those whose values are being made, each named by the one before.
    inside: Vec<usize>,
}

impl Settling<'_> {
    /// The variable of this name, unless its value is being made: a circle has none.
    fn other(&self, name: &str) -> Option<usize> {
        let at = self.own.iter().position(|own| own.name == name)?;
        (!self.inside.contains(&at) && self.inside.len() < MOST_LEVELS).then_some(at)
    }
}

impl<'a> Given<'a> {
    /// The variables of `server`. A value that is there to be replaced is none.
    pub(super) fn new(server: &ServerRecord, credentials: &'a HashMap<String, String>) -> Result<Self, Failure> {
        let mut given = Self { credentials, env: Vec::new(), missing: Vec::new(), too_long: None };
        let mut own = Vec::new();
        for variable in &server.env {
            let name = variable.name.as_str();
            if name.is_empty() || name.contains(['=', '/', '\0']) {
                return Err(Failure::new(HarvestOutcome::Unsupported, format!("`{name}` is no name of a variable")));
            }
            let listed = variable.value.as_deref();
            let named = listed.filter(|value| !is_open(value));
            // A secret's listed value is at most the name of what belongs there, and what names others has none yet.
            let by_name = credentials.get(name).filter(|_| variable.secret || named.is_none_or(names_others));
            match by_name.map(String::as_str).or(named) {
                Some(value) => own.push(Own { name, value, is_given: by_name.is_some() }),
                None if variable.required || listed.is_some() => given.lacks(name),
                None => {}
            }
        }
        let mut settling = Settling { settled: vec![None; own.len()], own, inside: Vec::new() };
        let settled = (0..settling.own.len()).map(|at| (settling.own[at].name.to_owned(), given.settle(&mut settling, at)));
        given.env = settled.collect();
        Ok(given)
    }

    /// The value of a variable, those that it names filled in first.
    fn settle(&mut self, settling: &mut Settling<'_>, at: usize) -> String {
        if let Some(value) = &settling.settled[at] {
            return value.clone();
        }
        let Own { name, value, is_given } = settling.own[at];
        let mut settled = value.to_owned();
        if !is_given {
            settling.inside.push(at);
            settled = self.bounded(name, value, |given, hole| match settling.other(&hole.name) {
                Some(other) if !is_placed(hole.written) => given.settle(settling, other),
                _ => given.value(hole, ""),
            });
            settling.inside.pop();
        }
        settling.settled[at].insert(settled).clone()
    }

    /// `args` with nothing left open in them: `--api-key <redacted>` is asked for as `API_KEY`.
    pub(super) fn args(&mut self, args: &[String]) -> Vec<String> {
        let mut before = String::new();
        let mut out = Vec::with_capacity(args.len());
        for arg in args {
            out.push(self.bounded("an argument", arg, |given, hole| given.value(hole, &before)));
            before = if arg.starts_with('-') && !arg.contains('=') { as_variable(arg) } else { String::new() };
        }
        out
    }

    /// The variables, once the arguments are filled.
    pub(super) fn into_env(self) -> Result<Vec<(String, String)>, Failure> {
        if let Some(name) = self.too_long {
            let detail = format!("`{name}` has more than {LONGEST} bytes once it is filled");
            return Err(Failure::new(HarvestOutcome::Unsupported, detail));
        }
        match self.missing.is_empty() {
            true => Ok(self.env),
            false => {
                let missing: Vec<String> = self.missing.iter().map(|name| format!("`{name}`")).collect();
                Err(Failure::new(HarvestOutcome::NeedsCredentials, format!("it needs {}", missing.join(", "))))
            }
        }
    }

    /// `text` with its holes filled, as long as it does not become too long.
    fn bounded(&mut self, name: &str, text: &str, mut value: impl FnMut(&mut Self, &Hole<'_>) -> String) -> String {
        let mut length = 0;
        let filled = fill(text, |hole| {
            let value = if length > LONGEST { String::new() } else { value(self, hole) };
            length += value.len();
            value
        });
        if length <= LONGEST {
            return filled;
        }
        self.too_long.get_or_insert_with(|| name.to_owned());
        String::new()
    }

    fn value(&mut self, hole: &Hole<'_>, before: &str) -> String {
        if is_placed(hole.written) {
            return hole.written.to_owned();
        }
        let name = match hole.form {
            Form::Redacted if hole.name.is_empty() => before,
            _ => hole.name.as_str(),
        };
        let name = if name.is_empty() { UNNAMED } else { name };
        let own = self.env.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
        if let Some(value) = own.or_else(|| self.credentials.get(name).cloned()) {
            return value;
        }
        match (hole.form, hole.default) {
            (_, Some(default)) => default.to_owned(),
            // `{x}` may be an argument's own text; `{API_KEY}` hardly ever is.
            (Form::Brace, None) if name.contains(|c: char| c.is_lowercase()) => hole.written.to_owned(),
            _ => {
                self.lacks(name);
                String::new()
            }
        }
    }

    fn lacks(&mut self, name: &str) {
        if !self.missing.iter().any(|known| known == name) {
            self.missing.push(name.to_owned());
        }
    }
}

/// Whether a value names variables: `${LEVEL}`, `${LEVEL:-1}`.
fn names_others(value: &str) -> bool {
    let mut names = false;
    fill(value, |hole| {
        names |= hole.form == Form::Dollar;
        String::new()
    });
    names
}

#[cfg(test)]
mod tests {
    use mcpmill_core::record::{EnvVar, Launch};

    use super::*;

    fn server(env: &[(&str, Option<&str>)]) -> ServerRecord {
        let launch = Launch::Stdio { command: "npx".into(), args: Vec::new() };
        let variable = |(name, value): &(&str, Option<&str>)| EnvVar {
            name: (*name).to_owned(),
            secret: value.is_none(),
            required: value.is_none(),
            value: value.map(str::to_owned),
        };
        ServerRecord { env: env.iter().map(variable).collect(), ..mcpmill_testkit::server("s", launch) }
    }

    type Ready = (Vec<String>, Vec<(String, String)>);

    fn ends(env: &[(&str, Option<&str>)], args: &[&str]) -> Result<Ready, String> {
        let credentials = [("API_KEY", "k1"), ("OTHER", "k2")].map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut given = Given::new(&server(env), &credentials).map_err(|f| f.detail)?;
        let args = given.args(&args);
        given.into_env().map(|env| (args, env)).map_err(|f| f.detail)
    }

    #[test]
    fn arguments_are_filled_from_variables_and_credentials() {
        let (args, _) = ends(
            &[("PORT", Some("80"))],
            &["--api-key", "${API_KEY}", "--tok={OTHER}", "--key", "<api key>", "--p=${PORT}", "--api-key", "<redacted>", "{x}"],
        )
        .unwrap();
        assert_eq!(args, ["--api-key", "k1", "--tok=k2", "--key", "k1", "--p=80", "--api-key", "k1", "{x}"]);
        assert_eq!(ends(&[], &["--d=${DIR:-/tmp}"]).unwrap().0, ["--d=/tmp"]);
    }

    #[test]
    fn what_is_left_open_is_named() {
        let lacks = |args: &[&str]| ends(&[], args).unwrap_err();
        assert_eq!(lacks(&["${GONE}", "{GONE}"]), "it needs `GONE`");
        assert_eq!(lacks(&["--token=<redacted>", "--k3", "<redacted>", "YOUR_NAME"]), "it needs `TOKEN`, `K3`, `YOUR_NAME`");
    }

    #[test]
    fn a_variable_that_names_another_gets_its_value() {
        let ends = |value: &str, given: &[(&str, &str)]| {
            let credentials = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let mut server = server(&[("API_KEY", Some(value))]);
            server.env[0].secret = true;
            let given = Given::new(&server, &credentials).map_err(|f| f.detail)?;
            given.into_env().map(|env| env[0].1.clone()).map_err(|f| f.detail)
        };
        assert_eq!(ends("${MY_KEY}", &[("MY_KEY", "k1")]).unwrap(), "k1");
        assert_eq!(ends("${MY_KEY}", &[("API_KEY", "k2"), ("MY_KEY", "k1")]).unwrap(), "k2");
        assert_eq!(ends("${MY_KEY}", &[]).unwrap_err(), "it needs `MY_KEY`");
        assert_eq!(ends("${API_KEY}", &[("API_KEY", "k2")]).unwrap(), "k2");
        assert_eq!(ends("${API_KEY}", &[]).unwrap_err(), "it needs `API_KEY`");
    }

    #[test]
    fn a_variable_with_a_hole_has_no_value_of_its_own() {
        assert_eq!(ends(&[("DB", Some("postgres://<redacted>h/db"))], &[]).unwrap_err(), "it needs `DB`");
        let (_, env) = ends(&[("API_KEY", Some("YOUR_KEY")), ("URL", Some("x/${OTHER}"))], &[]).unwrap();
        assert_eq!(env, [("API_KEY".to_owned(), "k1".to_owned()), ("URL".to_owned(), "x/k2".to_owned())]);
    }

    #[test]
    fn variables_name_each_other_in_any_order() {
        let all = |env: &[(&str, Option<&str>)]| ends(env, &["${A}"]);
        let (args, env) = all(&[("A", Some("a-${B}")), ("B", Some("b-${API_KEY}")), ("C", Some("${B:-x}"))]).unwrap();
        let values: Vec<&str> = env.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!((values, args), (vec!["a-b-k1", "b-k1", "b-k1"], vec!["a-b-k1".to_owned()]));
        assert_eq!(all(&[("A", Some("${B}")), ("B", Some("${GONE}"))]).unwrap_err(), "it needs `GONE`");
        assert_eq!(all(&[("A", Some("${B}")), ("B", Some("${A}"))]).unwrap_err(), "it needs `A`");
        assert_eq!(all(&[("A", Some("${A}"))]).unwrap_err(), "it needs `A`");
        assert_eq!(all(&[("A", Some("${B}")), ("B", Some("${A:-z}"))]).unwrap().0, ["z"]);
    }

    #[test]
    fn what_the_user_gave_stays_as_it_is() {
        let credentials = [("LEVEL", "${PORT}"), ("MY", "${LEVEL}")].map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        let server = server(&[("LEVEL", Some("${OTHER:-1}")), ("X", Some("x ${MY}")), ("PORT", Some("80"))]);
        let env = Given::new(&server, &credentials).and_then(Given::into_env).unwrap_or_default();
        let values: Vec<&str> = env.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["${PORT}", "x ${LEVEL}", "80"]);
    }

    #[test]
    fn variables_that_double_end() {
        let names: Vec<(String, String)> = (0..60).map(|i| (format!("V{i}"), format!("${{V{0}}}${{V{0}}}", i + 1))).collect();
        let mut env: Vec<(&str, Option<&str>)> =
            names.iter().map(|(name, value)| (name.as_str(), Some(value.as_str()))).collect();
        env.truncate(30);
        env.push(("V30", Some("0123456789")));
        assert!(ends(&env, &[]).unwrap_err().contains("bytes once it is filled"));
    }
}

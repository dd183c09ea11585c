//! What a server is given: its variables, and arguments in which nothing is left open.

use std::collections::HashMap;

use mcpmill_core::{
    record::{HarvestOutcome, ServerRecord},
    template::{Form, Hole, as_variable, fill, is_open},
};

use super::{Failure, world::is_placed};

/// What is asked for where nothing says what belongs there.
pub(super) const UNNAMED: &str = "ARGUMENT";

/// The variables and arguments of one server, from its listing and from the user's credentials.
pub(super) struct Given<'a> {
    credentials: &'a HashMap<String, String>,
    env: Vec<(String, String)>,
    missing: Vec<String>,
}

impl<'a> Given<'a> {
    /// The variables of `server`. A value that is there to be replaced is none.
    pub(super) fn new(server: &ServerRecord, credentials: &'a HashMap<String, String>) -> Result<Self, Failure> {
        let mut given = Self { credentials, env: Vec::new(), missing: Vec::new() };
        for variable in &server.env {
            let name = variable.name.as_str();
            if name.is_empty() || name.contains(['=', '/', '\0']) {
                return Err(Failure::new(HarvestOutcome::Unsupported, format!("`{name}` is no name of a variable")));
            }
            let listed = variable.value.as_ref();
            let named = listed.filter(|value| !is_open(value));
            // A secret's listed value is at most the name of what belongs there.
            let own = credentials.get(name).filter(|_| variable.secret || named.is_none()).or(named).cloned();
            match own {
                Some(value) => given.env.push((name.to_owned(), value)),
                None if variable.required || listed.is_some() => given.lacks(name),
                None => {}
            }
        }
        // Variables may name each other, and credentials.
        let values: Vec<String> = given.env.clone().iter().map(|(_, value)| given.filled(value, "")).collect();
        given.env.iter_mut().zip(values).for_each(|((_, own), value)| *own = value);
        Ok(given)
    }

    /// `args` with nothing left open in them: `--api-key <redacted>` is asked for as `API_KEY`.
    pub(super) fn args(&mut self, args: &[String]) -> Vec<String> {
        let mut before = String::new();
        let mut out = Vec::with_capacity(args.len());
        for arg in args {
            out.push(self.filled(arg, &before));
            before = if arg.starts_with('-') && !arg.contains('=') { as_variable(arg) } else { String::new() };
        }
        out
    }

    /// The variables, once the arguments are filled.
    pub(super) fn into_env(self) -> Result<Vec<(String, String)>, Failure> {
        match self.missing.is_empty() {
            true => Ok(self.env),
            false => {
                let missing: Vec<String> = self.missing.iter().map(|name| format!("`{name}`")).collect();
                Err(Failure::new(HarvestOutcome::NeedsCredentials, format!("it needs {}", missing.join(", "))))
            }
        }
    }

    fn filled(&mut self, text: &str, before: &str) -> String {
        fill(text, |hole| self.value(hole, before))
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
        // `API_KEY=${API_KEY}` is not its own value.
        let other = |(own, value): &&(String, String)| own == name && !value.contains(hole.written);
        let own = self.env.iter().find(other).map(|(_, value)| value.clone());
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
}

//! How an endpoint is reached, paced and asked.

use std::{num::NonZeroU32, time::Duration};

use mcpmill_core::{account::Price, canonical::content_hash, edge::ChatRequest, schema_view::Provider};
use reqwest::{Url, header};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{flow::Bounds, wire::Api};
use crate::secret::Secret;

/// Tokens of thinking by effort, for an API that wants a number.
const EFFORTS: [(&str, u32); 5] = [("minimal", 1024), ("low", 2048), ("medium", 8192), ("high", 16_384), ("xhigh", 32_768)];
/// The version of Anthropic's API that is spoken.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// How an endpoint is reached and paced.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// Up to and with the version (`https://host/v1`).
    pub base_url: String,
    /// The model's name at that endpoint.
    pub model: String,
    /// What it speaks; without it, what its host is known to speak.
    pub api: Option<Api>,
    /// Its key, when it wants one.
    pub key: Option<Secret>,
    /// Requests in flight at most.
    pub concurrency: usize,
    /// Requests a minute, when limited.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Tokens a minute, read and generated, when limited.
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Tries after the first.
    pub retries: usize,
    /// Wall time of one request.
    pub timeout: Duration,
    /// How long calls wait for a provider that does not answer at all.
    pub give_up_after: Duration,
    /// What its tokens cost, when that is known.
    pub price: Option<Price>,
    /// What is said in place of what requests say.
    pub sampling: Sampling,
    /// Fields added to every request body.
    pub extra: Map<String, Value>,
    /// Whose rules the schemas of offered tools are made to fit; verbatim without it.
    pub tool_schema: Option<Provider>,
}

/// Settings that take the place of what requests say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// How much a reasoning model thinks, in the provider's own word (`low`, `medium`, `high`, …).
    pub reasoning_effort: Option<String>,
    /// Most tokens to generate; thinking of Anthropic's models comes on top.
    pub max_tokens: Option<u32>,
    /// 0 is greedy.
    pub temperature: Option<f64>,
    /// Nucleus sampling, 1 for all.
    pub top_p: Option<f64>,
    /// Same seed, same answer, where the endpoint can promise that.
    pub seed: Option<u64>,
}

impl Sampling {
    /// Tokens of thinking that the effort stands for; none without one, and none of an unknown one.
    pub(super) fn thinking(&self) -> u32 {
        let effort = self.reasoning_effort.as_deref().unwrap_or_default();
        EFFORTS.into_iter().find(|(name, _)| *name == effort).map_or(0, |(_, tokens)| tokens)
    }

    fn fields(&self) -> Map<String, Value> {
        let fields = [
            ("reasoning_effort", self.reasoning_effort.as_ref().map(|v| json!(v))),
            ("max_tokens", self.max_tokens.map(|v| json!(v))),
            ("temperature", self.temperature.map(|v| json!(v))),
            ("top_p", self.top_p.map(|v| json!(v))),
            ("seed", self.seed.map(|v| json!(v))),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// An endpoint that cannot be set up.
#[derive(Debug, Error)]
#[error("failed to set up endpoint `{base_url}`: {detail}")]
pub struct EndpointError {
    /// The endpoint.
    pub base_url: String,
    /// Why not.
    pub detail: String,
}

impl EndpointSettings {
    pub(super) fn api(&self) -> Api {
        self.api.unwrap_or_else(|| Api::of_url(&self.base_url))
    }

    /// Where requests go.
    pub(super) fn url(&self) -> Result<Url, EndpointError> {
        let mut url = Url::parse(self.base_url.trim()).map_err(|e| self.error(e.to_string()))?;
        let mut path = url.path().trim_end_matches('/').to_owned();
        if self.api() == Api::Anthropic && path.is_empty() {
            // Its own documentation names the host alone.
            path.push_str("/v1");
        }
        // What the address asks for stays behind the path.
        url.set_path(&format!("{path}/{}", self.api().path()));
        url.set_fragment(None);
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() {
            return Err(self.error("want an http or https URL without user name".into()));
        }
        Ok(url)
    }

    /// Headers of every request.
    pub(super) fn headers(&self) -> Result<header::HeaderMap, EndpointError> {
        let mut headers = header::HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        let anthropic = self.api() == Api::Anthropic;
        if anthropic {
            headers.insert("anthropic-version", header::HeaderValue::from_static(ANTHROPIC_VERSION));
        }
        if let Some(Secret(key)) = &self.key {
            let text = if anthropic { key.clone() } else { format!("Bearer {key}") };
            let mut value = header::HeaderValue::from_str(&text)
                .map_err(|_| self.error("the key has characters that no header can carry".into()))?;
            value.set_sensitive(true);
            let name = if anthropic { header::HeaderName::from_static("x-api-key") } else { header::AUTHORIZATION };
            headers.insert(name, value);
        }
        Ok(headers)
    }

    pub(super) fn error(&self, detail: String) -> EndpointError {
        EndpointError { base_url: shown_url(&self.base_url), detail }
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            most: self.concurrency,
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            give_up_after: self.give_up_after,
        }
    }

    /// Most tokens a request may generate.
    pub(super) fn most_output(&self, request: &ChatRequest) -> u64 {
        let thinking = if self.api() == Api::Anthropic { self.sampling.thinking() } else { 0 };
        let said = ["max_tokens", "max_completion_tokens"].iter().filter_map(|field| self.extra.get(*field)?.as_u64()).max();
        let most = u64::from(self.sampling.max_tokens.unwrap_or(request.max_tokens)) + u64::from(thinking);
        said.unwrap_or(most)
    }

    /// Model, endpoint and, where the requests carry further fields or other schemas, these: all that the answers depend
    /// on.
    pub(super) fn name(&self) -> String {
        let mut fields = self.sampling.fields();
        fields.extend(self.extra.clone());
        let fields = if fields.is_empty() { String::new() } else { format!("+{}", &content_hash(&fields)[..8]) };
        let view = self.tool_schema.map(|provider| format!("+{provider}")).unwrap_or_default();
        let api = match self.api() {
            api if api == Api::of_url(&self.base_url) => "",
            Api::OpenAi => "+openai",
            Api::Anthropic => "+anthropic",
        };
        format!("{}@{}{fields}{view}{api}", self.model, shown_url(&self.base_url))
    }

    /// Whether the host says what a call cost only when it is asked.
    pub(super) fn asks_cost(&self) -> bool {
        let host = Url::parse(&self.base_url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        host == "openrouter.ai" || host.ends_with(".openrouter.ai")
    }
}

/// A base URL without what could be a secret, and without the `/v1` that all have.
fn shown_url(base: &str) -> String {
    match Url::parse(base) {
        Ok(url) => {
            let port = url.port().map(|p| format!(":{p}")).unwrap_or_default();
            let path = url.path().trim_end_matches('/');
            format!("{}{port}{}", url.host_str().unwrap_or_default(), path.strip_suffix("/v1").unwrap_or(path))
        }
        Err(_) => base.chars().take(80).collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::chat) fn settings(base_url: &str) -> EndpointSettings {
        EndpointSettings {
            base_url: base_url.into(),
            model: "m".into(),
            api: None,
            key: None,
            concurrency: 4,
            requests_per_minute: None,
            tokens_per_minute: None,
            retries: 3,
            timeout: Duration::from_secs(5),
            give_up_after: Duration::from_secs(5),
            price: None,
            sampling: Sampling::default(),
            extra: Map::new(),
            tool_schema: None,
        }
    }

    #[test]
    fn all_that_answers_depend_on_is_in_the_name() {
        let plain = settings("https://host:81/a/v1");
        assert_eq!(plain.name(), "m@host:81/a");
        let mut names = vec![plain.name()];
        for sampling in [
            Sampling { reasoning_effort: Some("low".into()), ..Sampling::default() },
            Sampling { max_tokens: Some(1), ..Sampling::default() },
            Sampling { temperature: Some(1.0), ..Sampling::default() },
            Sampling { top_p: Some(1.0), ..Sampling::default() },
            Sampling { seed: Some(1), ..Sampling::default() },
        ] {
            names.push(EndpointSettings { sampling, ..plain.clone() }.name());
        }
        names.push(EndpointSettings { api: Some(Api::Anthropic), ..plain.clone() }.name());
        names.push(EndpointSettings { tool_schema: Some(Provider::OpenAi), ..plain.clone() }.name());
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
        assert_eq!(EndpointSettings { retries: 9, concurrency: 1, ..plain.clone() }.name(), plain.name());
    }

    #[test]
    fn a_router_is_asked_what_calls_cost() {
        assert!(settings("https://openrouter.ai/api/v1").asks_cost());
        assert!(!settings("https://not-openrouter.ai/v1").asks_cost() && !settings("http://127.0.0.1:1/v1").asks_cost());
    }

    #[test]
    fn anthropic_is_known_by_its_host_and_may_be_named_without_version() {
        for base in ["https://api.anthropic.com", "https://api.anthropic.com/", "https://api.anthropic.com/v1"] {
            let own = settings(base);
            assert_eq!(own.url().unwrap().as_str(), "https://api.anthropic.com/v1/messages");
            assert_eq!((own.api(), own.name().as_str()), (Api::Anthropic, "m@api.anthropic.com"));
        }
        let proxy = EndpointSettings { api: Some(Api::Anthropic), ..settings("http://127.0.0.1:8/x/v1") };
        assert_eq!(proxy.url().unwrap().path(), "/x/v1/messages");
    }
}

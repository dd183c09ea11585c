//! Clients for other protocols over HTTP, under the same rule of addresses as the crawler.

use std::time::Duration;

use mcpmill_core::edge::FetchErrorKind;
use reqwest::{Client, Url, redirect::Policy};

use super::{
    CrawlerError,
    address::{self, Resolver},
};

/// Time for a connection to come about.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);

/// Gives clients that only reach public addresses, and those on loopback that are named. They follow no
/// redirect and keep no cookie; time and bytes are their user's to bound.
#[derive(Clone, Debug)]
pub struct Reach {
    public: Client,
    loopback: Client,
    allowed: Vec<String>,
}

impl Reach {
    /// Clients; of loopback only the hosts with ports in `allow_loopback` (`127.0.0.1:8080`) are reached.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(allow_loopback: Vec<String>) -> Result<Self, CrawlerError> {
        let client = |loopback| {
            let builder = Client::builder().user_agent(concat!("mcpmill/", env!("CARGO_PKG_VERSION"))).redirect(Policy::none());
            let built = builder.no_proxy().connect_timeout(CONNECTED_WITHIN).dns_resolver(Resolver { loopback }).build();
            built.map_err(|e| CrawlerError(e.without_url().to_string()))
        };
        Ok(Self { public: client(false)?, loopback: client(true)?, allowed: allow_loopback })
    }

    /// The client for an address.
    ///
    /// # Errors
    /// The address is none, or not a public one. Names are looked at once more when they are resolved.
    pub fn client(&self, url: &str) -> Result<Client, FetchErrorKind> {
        let url = address::usable(url, &self.allowed)?;
        Ok(if address::is_listed(&url, &self.allowed) { self.loopback.clone() } else { self.public.clone() })
    }

    /// Whether the credentials of a user may be sent there: encrypted, or without leaving the machine.
    pub fn is_private(&self, url: &Url) -> bool {
        address::is_private_channel(url, &self.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_public_addresses_and_named_ones() {
        let reach = Reach::new(vec!["127.0.0.1:8080".into()]).unwrap();
        for url in ["http://127.0.0.1:8080/mcp", "https://host.example/mcp"] {
            assert!(reach.client(url).is_ok(), "{url}");
        }
        for url in [
            "http://127.0.0.1:8081/mcp",
            "http://10.0.0.1/",
            "http://[::1]/",
            "http://2130706433/",
            "http://169.254.169.254/",
            "file:///x",
            "x",
        ] {
            assert!(reach.client(url).is_err(), "{url}");
        }
        // A name that leads inward is found out when it is resolved.
        let client = reach.client("http://localhost:9/").unwrap();
        let error = client.get("http://localhost:9/").send().await.unwrap_err();
        assert!(matches!(super::super::body::failure(&error), FetchErrorKind::NotPublic(_)), "{error:?}");
    }
}

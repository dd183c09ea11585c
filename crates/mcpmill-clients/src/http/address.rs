//! Which addresses may be fetched from: checked in the URL, and again when a name is resolved.

use std::{
    error::Error,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use mcpmill_core::edge::FetchErrorKind;
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use thiserror::Error;

/// A longer address is not used.
const LONGEST_URL: usize = 8 << 10;

/// Parses an address and refuses what no marketplace has. Odd spellings of IP addresses (decimal,
/// octal, shortened) are already undone by the parser.
pub(super) fn usable(text: &str, loopback: &[String]) -> Result<Url, FetchErrorKind> {
    let bad = |why: &str| FetchErrorKind::BadUrl(why.to_owned());
    if text.len() > LONGEST_URL {
        return Err(bad("the address is too long"));
    }
    let mut url = Url::parse(text).map_err(|e| FetchErrorKind::BadUrl(e.to_string()))?;
    check(&url, loopback)?;
    url.set_fragment(None);
    Ok(url)
}

/// Refuses a parsed address by its scheme, its user information, or the IP address it names.
pub(super) fn check(url: &Url, loopback: &[String]) -> Result<(), FetchErrorKind> {
    let bad = |why: &str| FetchErrorKind::BadUrl(why.to_owned());
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad("want an `http` or `https` address"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("an address must not have user information"));
    }
    if url.as_str().len() > LONGEST_URL {
        return Err(bad("the address is too long"));
    }
    match literal(url) {
        Some(ip) if !is_allowed(ip, is_listed(url, loopback)) => Err(FetchErrorKind::NotPublic(ip.to_string())),
        _ => Ok(()),
    }
}

/// The IP address that stands in the URL itself; reqwest asks no resolver for it.
pub(super) fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// Whether the config names this host and port as one that may be on loopback.
pub(super) fn is_listed(url: &Url, loopback: &[String]) -> bool {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return false };
    let named = format!("{host}:{port}");
    loopback.iter().any(|entry| entry.eq_ignore_ascii_case(&named))
}

/// Whether the keys of a user may be sent there: encrypted, or without leaving the machine.
pub(super) fn is_private_channel(url: &Url, loopback: &[String]) -> bool {
    url.scheme() == "https" || is_listed(url, loopback)
}

/// A name none of whose addresses may be used.
#[derive(Debug, Error)]
#[error("its address {0} is not a public one")]
struct NotPublic(IpAddr);

/// Resolves names with the system's resolver and hands on only addresses that may be used, so that
/// what was checked is what is connected to.
pub(super) struct Resolver {
    /// Whether loopback is fine; only the client of hosts that the config names has this.
    pub loopback: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let loopback = self.loopback;
        Box::pin(async move {
            let addresses = resolved(name.as_str(), loopback).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// The usable addresses of a name.
async fn resolved(name: &str, loopback: bool) -> Result<Vec<SocketAddr>, Box<dyn Error + Send + Sync>> {
    let all: Vec<SocketAddr> = tokio::net::lookup_host((name, 0)).await?.collect();
    let usable: Vec<SocketAddr> = all.iter().copied().filter(|address| is_allowed(address.ip(), loopback)).collect();
    match (usable.is_empty(), all.first()) {
        (false, _) => Ok(usable),
        (true, Some(refused)) => Err(Box::new(NotPublic(refused.ip()))),
        (true, None) => Err(Box::new(io::Error::other("the name has no address"))),
    }
}

/// Refuses a name that this machine itself can resolve, to addresses that are not public. Behind a
/// proxy nobody else looks; a name that only the proxy knows passes.
pub(super) async fn check_name(url: &Url) -> Result<(), FetchErrorKind> {
    let Some(host) = url.host_str().filter(|_| literal(url).is_none()) else { return Ok(()) };
    match resolved(host, false).await {
        Err(error) => not_public(&*error).map_or(Ok(()), Err),
        Ok(_) => Ok(()),
    }
}

/// The refusal of a resolver, somewhere among an error's causes.
pub(super) fn not_public(error: &(dyn Error + 'static)) -> Option<FetchErrorKind> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(NotPublic(ip)) = error.downcast_ref() {
            return Some(FetchErrorKind::NotPublic(ip.to_string()));
        }
        cause = error.source();
    }
    None
}

fn is_allowed(ip: IpAddr, loopback: bool) -> bool {
    is_public(ip) || (loopback && ip.to_canonical().is_loopback())
}

/// Whether an address is one of the public internet, by the registries of special-purpose addresses.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = match a {
        0 | 10 | 127 | 224.. => true,
        100 => (64..128).contains(&b),
        169 => b == 254,
        172 => (16..32).contains(&b),
        192 => b == 168 || (b == 0 && (c == 0 || c == 2)) || (b == 88 && c == 99),
        198 => b == 18 || b == 19 || (b == 51 && c == 100),
        203 => b == 0 && c == 113,
        _ => false,
    };
    !special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let part = ip.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match part[0] {
        // NAT64: what counts is the address behind it.
        0x64 => part[1..6] == [0xff9b, 0, 0, 0, 0] && is_public_v4(v4(part[6], part[7])),
        // 6to4, likewise.
        0x2002 => is_public_v4(v4(part[1], part[2])),
        // Teredo and other protocols' blocks, documentation.
        0x2001 => part[1] >= 0x200 && part[1] != 0xdb8,
        0x3fff => part[1] >= 0x1000,
        first => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_pass() {
        for text in [
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.31.0.1",
            "192.168.1.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "64:ff9b::a00:1",
            "64:ff9b:1::808:808",
            "3fff::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "100.128.0.1",
            "172.32.0.1",
            "192.1.2.3",
            "::ffff:8.8.8.8",
            "2606:4700::1111",
            "64:ff9b::808:808",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn odd_spellings_of_inner_addresses_are_seen_through() {
        for text in [
            "http://2130706433/",
            "http://0177.0.0.1/",
            "http://0x7f.1/",
            "http://127.1/",
            "http://127.0.0.1./",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://169.254.169.254/latest",
            "http://1２7.0.0.1/",
            "https://0/",
        ] {
            assert!(matches!(usable(text, &[]), Err(FetchErrorKind::NotPublic(_))), "{text}");
        }
    }

    #[test]
    fn only_the_named_port_of_loopback_is_open() {
        let listed = ["127.0.0.1:8080".to_owned(), "10.0.0.1:80".to_owned()];
        assert!(usable("http://127.0.0.1:8080/x", &listed).is_ok());
        for text in
            ["http://127.0.0.1/", "http://127.0.0.1:8081/", "http://127.0.0.2:8080/", "http://10.0.0.1/", "http://[::1]:8080/"]
        {
            assert!(matches!(usable(text, &listed), Err(FetchErrorKind::NotPublic(_))), "{text}");
        }
    }

    #[test]
    fn schemes_and_user_information_are_refused() {
        for text in [
            "ftp://example.com/",
            "file:///etc/passwd",
            "http://user@example.com/",
            "http://:pw@example.com/",
            "example.com",
            "http://",
        ] {
            assert!(matches!(usable(text, &[]), Err(FetchErrorKind::BadUrl(_))), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let error = resolved("localhost", false).await.unwrap_err();
        assert!(matches!(not_public(&*error), Some(FetchErrorKind::NotPublic(_))), "{error}");
        assert!(resolved("localhost", true).await.is_ok());
    }
}

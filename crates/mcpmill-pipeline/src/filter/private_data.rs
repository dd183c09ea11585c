//! `private-data`: secrets and personal data in a row and in what tools answered. Only what its shape or its check digits
//! make sure; what the user said himself, and example domains, are none. Costs nothing.
//!
//! Public addresses of the internet are not looked for: servers answer with them by the hundred (name servers, mirrors,
//! versions of four parts look the same), and hardly ever do they lead to a person.

use std::sync::LazyLock;

use async_trait::async_trait;
use mcpmill_core::{
    record::{Message, Verdict},
    secrets,
};
use regex::Regex;
use serde_json::json;

use super::{Bench, Case, Filter, Plant};
use crate::{ask::Meter, generate::values::texts};

/// Bytes of one text that are looked into.
const READ: usize = 400_000;

pub(super) struct PrivateData {
    pub(super) name: String,
}

/// A kind of personal data: its name, its shape, and what makes sure that it is one.
struct Kind {
    name: &'static str,
    shape: Regex,
    sure: fn(&str) -> bool,
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    type Sure = fn(&str) -> bool;
    let kinds: [(&str, &str, Sure); 6] = [
        ("a mail address", r"(?i)\b[a-z0-9._%+-]{1,64}@(?:[a-z0-9-]{1,63}\.)+[a-z]{2,24}\b", is_mailbox),
        ("an account number (IBAN)", r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", is_iban),
        ("a number of a credit card", r"\b(?:[0-9]{4}[ -]){3}[0-9]{1,7}\b|\b3[47][0-9]{2}[ -][0-9]{6}[ -][0-9]{5}\b", is_card),
        (
            "a phone number",
            r"(?:^|[\s(:,])\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)|[0-9]{1,4})(?:[ .-][0-9]{2,4}){2,4}\b",
            is_phone,
        ),
        (
            "a social security number",
            r"(?i)\b(?:ssn|social security (?:number|no\.?))\W{0,3}[0-9]{3}-[0-9]{2}-[0-9]{4}\b",
            |_| true,
        ),
        ("a national id (CPF)", r"\b[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}\b", is_cpf),
    ];
    let read = |(name, shape, sure): (_, &str, _)| Some(Kind { name, shape: Regex::new(shape).ok()?, sure });
    kinds.into_iter().filter_map(read).collect()
});

#[async_trait]
impl Filter for PrivateData {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_free(&self) -> bool {
        true
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::Personal, Plant::Secret]
    }

    async fn judge(&self, case: &Case<'_>, _: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let requests = case.requests();
        let values: Vec<String> =
            case.messages().iter().flat_map(Message::tool_calls).flat_map(|call| texts(&call.function.arguments)).collect();
        let said = requests.iter().map(|text| ("the instruction", *text));
        let values = values.iter().map(|text| ("an argument", text.as_str()));
        let answered = case.responses().into_iter().map(|text| ("a response", text));
        let secret = said.chain(values.clone()).chain(answered.clone()).find_map(|(place, text)| {
            let name = secrets::find(&text[..text.floor_char_boundary(READ)])?;
            Some((place, name))
        });
        // What a user says of himself is his to say; what others bring is not.
        let personal = || values.chain(answered).find_map(|(place, text)| Some((place, personal(text, &requests)?)));
        match secret.or_else(personal) {
            // The value itself stands in no verdict.
            Some((place, name)) => Verdict {
                evidence: Some(json!({ "place": place, "kind": name }).to_string()),
                ..bench.drop(format!("private-data: {place} holds {name}"))
            },
            None => bench.keep("ok: no secrets and no personal data"),
        }
    }
}

/// The kind of personal data that `text` holds and that none of `said` states.
fn personal(text: &str, said: &[&str]) -> Option<&'static str> {
    let text = &text[..text.floor_char_boundary(READ)];
    let holds = |kind: &&Kind| {
        kind.shape.find_iter(text).map(|found| found.as_str().trim_start_matches(['(', ':', ',']).trim()).any(|found| {
            let known = || said.iter().any(|said| said.to_lowercase().contains(&found.to_lowercase()));
            (kind.sure)(found) && !known()
        })
    };
    KINDS.iter().find(holds).map(|kind| kind.name)
}

/// Whether an address is one of a person: no example, no machine and no public desk.
fn is_mailbox(address: &str) -> bool {
    let address = address.to_lowercase();
    let Some((who, domain)) = address.split_once('@') else { return false };
    let top = domain.rsplit('.').next().unwrap_or_default();
    let reserved = ["example", "test", "invalid", "localhost", "local", "internal"].contains(&top);
    let named =
        domain.split('.').any(|label| label == "example" || label == "yourdomain" || label == "yourcompany" || label == "domain");
    // `logo@2x.png`, `pkg@1.2.tgz`, a file and no host.
    let file =
        ["png", "jpg", "jpeg", "svg", "gif", "webp", "js", "ts", "py", "md", "css", "json", "tgz", "so", "html"].contains(&top);
    let desk = [
        "git",
        "noreply",
        "no-reply",
        "info",
        "support",
        "contact",
        "hello",
        "admin",
        "security",
        "help",
        "sales",
        "press",
        "team",
        "office",
        "root",
        "user",
        "name",
        "you",
        "email",
        "postmaster",
        "webmaster",
        "abuse",
        "legal",
        "privacy",
    ];
    !(reserved || named || file || desk.contains(&who) || who.contains("noreply") || domain.ends_with("noreply.github.com"))
}

/// Whether a number passes the check of account numbers (ISO 13616).
fn is_iban(text: &str) -> bool {
    let plain: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    if !(15..=34).contains(&plain.len()) {
        return false;
    }
    let turned = plain[4..].iter().chain(&plain[..4]);
    let rest = turned.filter_map(|c| c.to_digit(36)).fold(0, |rest, n| (rest * if n > 9 { 100 } else { 10 } + n) % 97);
    rest == 1
}

/// Whether a number passes the check of credit cards (Luhn), begins as one does, and is none of those made for tests.
fn is_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    if !(13..=19).contains(&digits.len()) || !(3..=6).contains(&digits[0]) {
        return false;
    }
    let mut kinds = digits.clone();
    kinds.sort_unstable();
    kinds.dedup();
    let double = |(i, n): (usize, &u32)| if i % 2 == 0 { *n } else { n * 2 - if *n > 4 { 9 } else { 0 } };
    let sum: u32 = digits.iter().rev().enumerate().map(double).sum();
    // Numbers of test cards are of few digits, over and over.
    sum.is_multiple_of(10) && kinds.len() > 3
}

/// Whether a number with a country's prefix has the length of one that can be called, and is not of a range for fiction.
fn is_phone(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    (9..=15).contains(&digits.len()) && !digits.contains("555") && !digits.contains("0000") && !digits.contains("12345")
}

/// Whether a number passes both check digits of a CPF.
fn is_cpf(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let check = |count: usize| {
        let sum: u32 = digits[..count].iter().zip((2..=count as u32 + 1).rev()).map(|(n, weight)| n * weight).sum();
        sum * 10 % 11 % 10
    };
    digits.len() == 11 && digits.iter().any(|n| *n != digits[0]) && check(9) == digits[9] && check(10) == digits[10]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_sure_is_personal() {
        for (text, want) in [
            ("Write to ada.lovelace@some-firm.org today", Some("a mail address")),
            ("pay to GB82 WEST 1234 5698 7654 32", Some("an account number (IBAN)")),
            ("DE89370400440532013000", Some("an account number (IBAN)")),
            ("card 4539 5787 6362 1486", Some("a number of a credit card")),
            ("call +49 30 901820 44 now", None),
            ("call +49 30 9018 2044 now", Some("a phone number")),
            ("SSN: 078-05-1120", Some("a social security number")),
            ("cpf 529.982.247-25", Some("a national id (CPF)")),
            ("GB82 WEST 1234 5698 7654 33", None),
            ("card 4539 5787 6362 1487", None),
            ("card 4242 4242 4242 4242", None),
            ("cpf 529.982.247-26", None),
            ("ada@example.com, bob@mail.example.org, x@shop.test", None),
            ("git@github.com:a/b.git, logo@2x.png, noreply@firm.org", None),
            ("1.2.3.4 and 2026-11-30T10:00:00+01:00", None),
            ("call +1 202 555 0143", None),
            ("0123456789012345678 and 1700000000000", None),
        ] {
            assert_eq!(personal(text, &[]), want, "{text}");
        }
        assert_eq!(personal("sent to Ada@firm.org", &["Write to ada@firm.org, please."]), None);
    }
}

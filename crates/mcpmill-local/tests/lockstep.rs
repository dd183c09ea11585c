//! The same requests alone and in company, on SmolLM2-135M-Instruct: the answers are equal.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::sync::atomic::Ordering;
use std::thread::{scope, sleep};
use std::time::Duration;

use mcpmill_local::{Constraint, Generated, Generation, LoadOptions, LocalError, LocalModel, Role, Turn, tighten};
use serde_json::json;

#[path = "../src/test_model.rs"]
mod test_model;

const TOWNS: [&str; 12] =
    ["Oslo", "Rome", "Lima", "Kyoto", "Quito", "Accra", "Hanoi", "Perth", "Minsk", "Turin", "Lagos", "Osaka"];

fn load(lockstep: usize) -> LocalModel {
    let options = LoadOptions { max_context: 512, prefix_slots: 2, lockstep };
    LocalModel::load(&test_model::path(), &options).unwrap()
}

/// Requests of every sort: three kinds of prompt, one without a slot, drawn and likeliest tokens, each constraint.
fn requests() -> Vec<Generation> {
    let turn = |role, content: &str| Turn { role, content: content.into() };
    let schema = json!({"type": "object", "required": ["town", "days"], "properties": {
        "town": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "season": {"type": "string", "enum": ["spring", "summer", "autumn", "winter"]}}});
    let request = |(n, town): (usize, &&str)| {
        let rules = ["Answer in one short sentence.", "You plan journeys and love detail. "][n % 2].repeat(1 + n % 3 * 4);
        let ask = format!("I travel to {town} with {n} friends. What should we see?");
        Generation {
            messages: vec![turn(Role::System, &rules), turn(Role::User, &ask)],
            constraint: match n % 4 {
                0 => Constraint::JsonSchema(tighten(&schema)),
                1 => Constraint::Regex("[A-Z][a-z ,]{10,60}[.]".into()),
                _ => Constraint::None,
            },
            max_tokens: 10 + 4 * (n % 4),
            temperature: [0., 0.9][n / 2 % 2],
            top_p: 0.95,
            seed: n as u64,
            prefix_slot: [Some("plan"), Some("see"), Some("third"), None][n % 4].map(String::from),
            ..Generation::default()
        }
    };
    TOWNS.iter().enumerate().map(request).collect()
}

/// What the answer is, without what it cost.
fn said(generated: Generated) -> Generated {
    Generated { cached_tokens: 0, ..generated }
}

/// A number below `most`, by a small congruential generator.
fn draw(state: &mut u64, most: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % most
}

#[test]
fn company_changes_no_answer() {
    let requests = requests();
    let lonely = load(1);
    let alone: Vec<Generated> = requests.iter().map(|request| said(lonely.generate(request).unwrap())).collect();
    assert!(alone.iter().all(|answer| answer.output_tokens > 3), "{alone:?}");
    let distinct: std::collections::HashSet<_> = alone.iter().map(|answer| &answer.text).collect();
    assert!(distinct.len() > 9, "too alike to prove anything: {alone:?}");
    for (round, places) in [(1, 4), (2, 12), (3, 3)] {
        let model = load(places);
        let mut state = round;
        let mut order: Vec<usize> = (0..requests.len()).collect();
        (1..order.len()).rev().for_each(|n| order.swap(n, draw(&mut state, n + 1)));
        scope(|scope| {
            for n in order {
                let (model, request, alone) = (&model, &requests[n], &alone[n]);
                let (late, given_up, patience) = (draw(&mut state, 400), draw(&mut state, 3) == 0, draw(&mut state, 300));
                scope.spawn(move || {
                    sleep(Duration::from_millis(late as u64));
                    assert_eq!(&said(model.generate(request).unwrap()), alone, "request {n} in round {round}");
                });
                // Others come for a while and go again.
                given_up.then(|| {
                    scope.spawn(move || {
                        let mut request = Generation { max_tokens: 80, seed: 77, ..request.clone() };
                        request.cancel = std::sync::Arc::default();
                        request.constraint = Constraint::None;
                        let cancel = request.cancel.clone();
                        sleep(Duration::from_millis(late as u64));
                        scope.spawn(move || {
                            sleep(Duration::from_millis(patience as u64));
                            cancel.store(true, Ordering::Relaxed);
                        });
                        let ended = model.generate(&request);
                        assert!(matches!(ended, Ok(_) | Err(LocalError::Cancelled)), "{ended:?}");
                    })
                });
            }
        });
    }
}

//! `report.html`: one file without scripts, links or anything from elsewhere. All text of others is made visible, escaped
//! by the template engine, and the page's own policy lets nothing load or run.

use base64::{Engine, engine::general_purpose::STANDARD};
use mcpmill_core::text::{is_unsafe, shown};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value as Safe, context};
use plotters::style::RGBColor;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    browse::Browse,
    chart::{self, COLOURS, ChartError},
    funnel::Step,
    scores::Histogram,
    timeline::Point,
};
use crate::error::{Exit, Failure};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// Units of the funnel, each with a chart of its own.
const UNITS: [&str; 2] = ["servers", "rows"];

/// The page of a report and of rows to look at.
///
/// # Errors
/// A chart cannot be drawn or the template filled: faults of mcpmill.
pub fn render(report: &Value, browse: &[Browse]) -> Result<String, Failure> {
    let fail = |why: String| Failure::new(Exit::Unexpected, format!("failed to write the report's page: {why}"));
    let mut report = report.clone();
    let mut browse = json!(browse);
    harmless(&mut report);
    harmless(&mut browse);
    let charts = charts(&report).map_err(|e| fail(e.to_string()))?;
    let style = style();
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        STANDARD.encode(Sha256::digest(style.as_bytes()))
    );
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    // Whatever the template is called: nothing is put into the page unescaped but what `Safe` says is ours.
    env.set_auto_escape_callback(|_| AutoEscape::Html);
    env.add_filter("two", |number: f64| format!("{number:.2}"));
    env.add_filter("seconds", seconds);
    let values = context! {
        report => Safe::from_serialize(&report),
        browse => Safe::from_serialize(&browse),
        charts => charts,
        style => Safe::from_safe_string(style),
        policy => policy,
    };
    env.render_str(TEMPLATE, values).map_err(|e| fail(format!("{e:#}")))
}

/// The style sheet, with the colours of charts.
fn style() -> String {
    let rule = |(RGBColor(r, g, b), name): (RGBColor, &str)| {
        let colour = format!("#{r:02X}{g:02X}{b:02X}");
        format!("svg [fill=\"{colour}\"]{{fill:var({name})}}svg [stroke=\"{colour}\"]{{stroke:var({name})}}\n")
    };
    let colours: String = COLOURS.into_iter().map(rule).collect();
    format!("{STYLE}{colours}")
}

/// What a line is of, and its height at a point.
type Line = (&'static str, fn(&Point) -> f64);

/// Charts by the place where the page wants them.
fn charts(report: &Value) -> Result<Safe, ChartError> {
    let steps: Vec<Step> = of(report["funnel"].clone())?;
    let mut funnels = Vec::new();
    for unit in UNITS {
        let steps: Vec<Step> = steps.iter().filter(|step| step.unit == unit).cloned().collect();
        if !steps.is_empty() {
            funnels.push(context! { unit, svg => Safe::from_safe_string(chart::bars(&steps)?) });
        }
    }
    let mut scores = Vec::new();
    for filter in report["filters"].as_array().into_iter().flatten().filter(|filter| !filter["scores"].is_null()) {
        let histogram: Histogram = of(filter["scores"].clone())?;
        let svg = Safe::from_safe_string(chart::histogram(&histogram)?);
        let (stage, name) = (filter["stage"].as_str(), filter["filter"].as_str());
        scores.push(context! { stage, name, svg, rows => histogram.rows, thresholds => histogram.thresholds });
    }
    let points: Vec<Point> = of(report["timeline"].clone())?;
    let mut used = Vec::new();
    let lines: [Line; 4] = [
        ("prompt tokens", |point| point.input_tokens as f64),
        ("generated tokens", |point| point.output_tokens as f64),
        ("US dollars", |point| point.cost),
        ("rows that ended", |point| point.rows as f64),
    ];
    for (what, number) in lines {
        if points.len() > 1 && points.iter().any(|point| number(point) > 0.0) {
            let (unit, svg) = chart::line(&points, number, what)?;
            used.push(context! { what, unit, svg => Safe::from_safe_string(svg) });
        }
    }
    Ok(context! { funnels, scores, used })
}

fn of<T: DeserializeOwned>(value: Value) -> Result<T, ChartError> {
    Ok(serde_json::from_value(value)?)
}

/// Seconds as `0.3 s`, `90 s`, `12 min`.
fn seconds(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { crate::reporter::human_seconds(seconds) }
}

/// Makes visible what hides or turns text around: control and bidirectional characters. Lines stay lines.
fn harmless(value: &mut Value) {
    match value {
        Value::String(text) if text.chars().any(is_unsafe) => {
            *text = text.split('\n').map(|line| shown(line, usize::MAX)).collect::<Vec<_>>().join("\n");
        }
        Value::Array(items) => items.iter_mut().for_each(harmless),
        Value::Object(fields) => {
            let hidden: Vec<String> = fields.keys().filter(|key| key.chars().any(is_unsafe)).cloned().collect();
            for key in hidden {
                if let Some(value) = fields.remove(&key) {
                    fields.insert(shown(&key, usize::MAX), value);
                }
            }
            fields.values_mut().for_each(harmless);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::browse::RowShown;

    /// What somebody would put into a name, a description or an answer.
    const EVIL: &str = "</script><script>alert(1)</script>\n---\nlicense: evil\n---\n<img src=x onerror=alert(2)>{{ 7 * 7 }}\u{202e}]]>\" onmouseover=\"alert(3)";

    fn report() -> Value {
        json!({
            "run": EVIL, "mcpmill": "0", "state": "finished", "alerts": [EVIL], "models": { EVIL: EVIL }, "used": {}, "repeated": 0,
            "accounts": { EVIL: { "answered": 1, "failed": 0, "stored": 0, "input_tokens": 1, "output_tokens": 1, "cost": 0.5 } },
            "funnel": [{ "what": EVIL, "unit": "rows", "count": 3 }, { "what": "b", "unit": "rows", "count": 1 }],
            "stages": [{
                "stage": EVIL, "input_rows": 1, "output_rows": 1, "cost": 0.0, "input_tokens": 0, "output_tokens": 0,
                "outcomes": { "kept": 1, "dropped": 0, "failed": 0, "skipped": 0 }, "reasons": { EVIL: 1 },
                "numbers": { "kinds": { EVIL: 1 }, "marketplaces": { EVIL: 1 } },
            }],
            "filters": [{
                "stage": EVIL, "filter": EVIL, "keep": 1, "drop": 1, "unjudged": 0,
                "alone": { "hits": 1, "n": 2, "value": 0.5, "low": 0.1, "high": 0.9 },
                "overlap": { EVIL: { "hits": 1, "n": 1, "value": 1.0, "low": 0.0, "high": 1.0 } },
                "exam": null, "scores": { "low": 0.0, "width": 0.1, "columns": [[1, 2, 3]], "thresholds": [0.05], "rows": 6 },
            }],
            "servers": { "all": 1, "failed": 1, "slowest": [], "slowest_runs": [], "failing": [{
                "server": EVIL, "marketplaces": [EVIL], "harvest": EVIL, "cause": EVIL, "seconds": 1.0, "tools": 0, "runs": 0,
                "usable": 0, "broken": 0, "broken_cause": null, "longest_run_seconds": 0.0,
            }] },
            "timeline": [],
        })
    }

    fn rows() -> Vec<Browse> {
        let row = RowShown {
            id: EVIL.into(),
            kind: "single",
            tools: vec![(EVIL.into(), EVIL.into())],
            turns: vec![("user", EVIL.into()), ("answer", EVIL.into())],
            verdicts: serde_json::from_value(json!([{
                "subject_id": EVIL, "filter": EVIL, "judgement": "drop", "reason": EVIL, "score": 1.0, "threshold": 0.5, "evidence": EVIL,
            }]))
            .unwrap(),
        };
        vec![Browse { stage: "4-filter", filter: EVIL.into(), dropped: vec![row.clone()], unjudged: vec![], kept: vec![row] }]
    }

    /// Tags of a page by their names, with their attributes' names.
    fn tags(page: &str) -> Vec<(String, Vec<String>)> {
        let body = page.split("</style>").nth(1).unwrap();
        let tag = regex::Regex::new(r#"<([a-zA-Z!/?][^\s>]*)((?:\s+[^\s=>]+(?:="[^"]*")?)*)\s*/?>"#).unwrap();
        let attribute = regex::Regex::new(r#"([^\s=>"]+)="[^"]*""#).unwrap();
        let name = |found: regex::Captures<'_>| {
            let names = attribute.captures_iter(found.get(2).map_or("", |m| m.as_str())).map(|a| a[1].to_owned());
            (found[1].to_lowercase(), names.collect())
        };
        tag.captures_iter(body).map(name).collect()
    }

    #[test]
    fn nothing_that_was_planted_becomes_a_tag_or_an_attribute() {
        let page = render(&report(), &rows()).unwrap();
        let own = "a article body dd details div dl dt figcaption figure footer h1 h2 h3 h4 head header li main meta nav p section \
                   span strong summary svg line rect text polyline polygon path circle table tbody td th thead title tr ul b code em html";
        let own: Vec<&str> = own.split_whitespace().collect();
        let tags = tags(&page);
        assert!(tags.len() > 100);
        for (name, attributes) in &tags {
            assert!(own.contains(&name.trim_start_matches('/')), "<{name}> in the page");
            assert!(!attributes.iter().any(|a| a.starts_with("on") || a == "style" || a == "src"), "<{name} {attributes:?}>");
        }
        let plain = page.matches("&lt;script&gt;alert(1)").count();
        assert!(plain > 20, "the text is there to be read: {plain}");
        assert!(!page.contains('\u{202e}') && page.contains("\\u{202e}"));
        assert!(!page.contains("49{{") && page.contains("{{ 7 * 7 }}"));
    }

    #[test]
    fn the_policy_lets_only_the_own_style_in() {
        let page = render(&report(), &rows()).unwrap();
        let style = page.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
        let hash = STANDARD.encode(Sha256::digest(style.as_bytes()));
        let policy = regex::Regex::new(r#"http-equiv="Content-Security-Policy" content="([^"]*)""#).unwrap();
        let said = policy.captures(&page).unwrap()[1].replace("&#x27;", "'").replace("&#x2f;", "/").replace("&#39;", "'");
        assert_eq!(said, format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'"));
        assert!(
            !page.contains("http://") || page.matches("http://").count() == page.matches("http://www.w3.org/2000/svg").count()
        );
        assert!(!page.contains("https://") && !page.contains("url("));
    }

    #[test]
    fn a_run_that_has_nothing_yet_has_a_page() {
        let empty = json!({
            "run": "r", "mcpmill": "0", "state": "unfinished", "alerts": [], "models": {}, "used": {}, "repeated": 0, "accounts": {},
            "funnel": [], "stages": [], "filters": [], "servers": { "all": 0, "failed": 0, "failing": [], "slowest": [], "slowest_runs": [] },
            "timeline": [],
        });
        assert!(render(&empty, &[]).unwrap().contains("<h1>"));
    }
}

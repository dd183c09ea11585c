//! Random records for tests: every option both ways, empty and long lists, text of all kinds.

use mcpmill_core::{
    id::{ClusterId, SampleId, ServerId, ToolId, TrajectoryId},
    record::{
        Ended, EnvVar, ExportRow, FunctionCall, Judgement, Launch, Message, Outcome, OutcomeKind, PolicyDecision, Prediction,
        ResponseVerdict, Revision, Sample, SampleKind, ServerRecord, Source, Split, Tool, ToolCall, Trajectory, Verdict,
    },
};
use serde_json::{Map, Value, json};

/// A small generator of numbers (SplitMix64), so that a failing case has a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 0
    }

    pub fn text(&mut self) -> String {
        const WORDS: [&str; 9] = ["", "weather", "é", "日本語", "a\nb\t\"c\"\\", "\u{0}\u{1}", "🦀🧵", "null", "\u{202e}x"];
        (0..self.below(4)).map(|_| WORDS[self.below(9) as usize]).collect()
    }

    fn maybe(&mut self) -> Option<String> {
        self.flip().then(|| self.text())
    }

    fn many<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| make(self)).collect()
    }

    fn float(&mut self) -> f64 {
        match self.below(4) {
            0 => 0.0,
            1 => -1.5e-300,
            2 => self.roll() as f64 / u64::MAX as f64,
            _ => self.below(100) as f64,
        }
    }

    fn arguments(&mut self) -> Map<String, Value> {
        (0..self.below(3))
            .map(|i| (format!("{}{i}", self.text()), json!([self.text(), self.roll(), null, {"x": true}])))
            .collect()
    }

    fn message(&mut self) -> Message {
        match self.below(5) {
            0 => Message::system(self.text()),
            1 => Message::user(self.text()),
            2 => Message::Tool { tool_call_id: self.text(), name: self.text(), content: self.text() },
            _ => Message::Assistant {
                content: self.maybe(),
                tool_calls: self.many(|d| ToolCall::new(d.text(), FunctionCall { name: d.text(), arguments: d.arguments() })),
            },
        }
    }

    pub fn server(&mut self) -> ServerRecord {
        let launch = match self.below(4) {
            0 => Launch::Stdio { command: self.text(), args: self.many(Self::text) },
            1 => Launch::StreamableHttp { url: self.text(), headers: Vec::new() },
            2 => Launch::Sse { url: self.text(), headers: Vec::new() },
            _ => Launch::Unsupported { what: self.text() },
        };
        ServerRecord {
            id: ServerId::of(&self.roll()),
            name: self.text(),
            title: self.maybe(),
            description: self.maybe(),
            version: self.maybe(),
            launch,
            env: self.many(|d| EnvVar { name: d.text(), value: d.maybe(), secret: d.flip(), required: d.flip() }),
            licence: self.maybe(),
            sources: self.many(|d| Source { marketplace: d.text(), url: d.maybe() }),
            world: self.many(Self::text),
            flags: self.many(Self::text),
            categories: self.many(Self::text),
            listed_tools: self.maybe(),
        }
    }

    pub fn tool(&mut self) -> Tool {
        Tool {
            id: ToolId::of(&self.roll()),
            server_id: ServerId::of(&self.below(9)),
            name: self.text(),
            title: self.maybe(),
            description: self.maybe(),
            input_schema: r#"{"z":1,"a":{"$ref":"é"}}"#.into(),
            output_schema: self.maybe(),
            annotations: self.maybe(),
            schema_hash: self.text(),
            cluster_id: ClusterId::of(&self.below(9)),
        }
    }

    pub fn sample(&mut self) -> Sample {
        Sample {
            id: SampleId::of(&self.roll()),
            kind: SampleKind::Single,
            tool_ids: self.many(|d| ToolId(d.text())),
            withheld: self.many(|d| ToolId(d.text())),
            server_ids: self.many(|d| ServerId(d.text())),
            language: self.text(),
            instruction: self.text(),
            messages: self.many(Self::message),
            lineage: self.many(Self::revision),
        }
    }

    fn revision(&mut self) -> Revision {
        Revision { step: self.text(), prompt: self.maybe(), model: self.maybe(), parent: self.maybe(), text: self.text() }
    }

    pub fn export_row(&mut self) -> ExportRow {
        ExportRow {
            id: SampleId::of(&self.roll()),
            messages: self.many(Self::message),
            loss: self.many(Self::flip),
            tools: self.text(),
            kind: SampleKind::Single,
            language: self.text(),
            server: self.text(),
            server_version: self.maybe(),
            tool_ids: self.many(|d| ToolId(d.text())),
            withheld: self.many(|d| ToolId(d.text())),
            licence: self.maybe(),
            live: self.text(),
            policy: self.flip().then(|| PolicyDecision { allowed: self.flip(), rule: self.text(), why: self.text() }),
            lineage: self.many(Self::revision),
            verdicts: self.many(Self::verdict),
            split: [Split::Train, Split::SeenTool, Split::UnseenTool, Split::UnseenServer][self.below(4) as usize],
        }
    }

    pub fn prediction(&mut self) -> Prediction {
        Prediction {
            sample_id: SampleId::of(&self.roll()),
            split: self.text(),
            candidates: self.roll(),
            answers: self.many(|d| ToolId(d.text())),
            chosen: self.maybe().map(ToolId),
            correct: self.flip(),
            parse_failure: self.maybe(),
        }
    }

    pub fn trajectory(&mut self) -> Trajectory {
        let ended = [Ended::Answer, Ended::Limit, Ended::Failed, Ended::Refused][self.below(4) as usize];
        Trajectory {
            id: TrajectoryId::of(&self.roll()),
            sample_id: SampleId::of(&self.roll()),
            messages: self.many(Self::message),
            ended,
            cause: self.maybe(),
            policy: PolicyDecision { allowed: self.flip(), rule: self.text(), why: self.text() },
            result: self.maybe(),
            response_verdict: self.flip().then(|| ResponseVerdict::ALL[self.below(10) as usize]),
            masked: self.many(|d| d.roll() as u32),
            lineage: self.many(Self::revision),
        }
    }

    pub fn outcome(&mut self) -> Outcome {
        let kind = [OutcomeKind::Kept, OutcomeKind::Dropped, OutcomeKind::Failed, OutcomeKind::Skipped][self.below(4) as usize];
        Outcome {
            cause: self.maybe(),
            raw: self.maybe(),
            attempts: self.roll() as u32,
            seconds: self.float(),
            input_tokens: self.roll(),
            output_tokens: self.roll(),
            cost_usd: self.float(),
            ..Outcome::new(self.text(), kind, self.text())
        }
    }

    pub fn verdict(&mut self) -> Verdict {
        Verdict {
            subject_id: self.text(),
            filter: self.text(),
            judgement: [Judgement::Keep, Judgement::Drop, Judgement::Unjudged][self.below(3) as usize],
            reason: self.text(),
            score: self.flip().then(|| self.float()),
            threshold: self.flip().then(|| self.float()),
            evidence: self.maybe(),
        }
    }
}

//! Which tools stand beside a labelled one where a model is to choose.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Toolbox, placed};
use crate::{
    edge::{EmbedError, RecordedEmbedder, cosine},
    id::ToolId,
    record::Tool,
};

/// How distractors are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distract {
    /// From all tools: whoever understands what a request is about finds the right one.
    #[default]
    Random,
    /// From the server of the labelled tool, so that the very tool has to be told from its siblings.
    SameServer,
    /// Those whose names and descriptions lie nearest by an embedding model, whatever their server.
    Nearest,
}

/// Distractors, ready to be drawn.
pub struct Distractors {
    how: Distract,
    /// Of all tools, where they are compared.
    vectors: HashMap<ToolId, Vec<f32>>,
}

impl Distract {
    /// Whether tools have to be embedded for it.
    pub fn embeds(self) -> bool {
        self == Self::Nearest
    }
}

impl Distractors {
    /// Makes them ready: for `nearest` each tool of the box is embedded once. `embedder` says why there is none.
    ///
    /// # Errors
    /// Tools have to be embedded, and there is no embedding model, or as [`RecordedEmbedder::embed`].
    pub async fn new(how: Distract, tools: &Toolbox, embedder: &Result<RecordedEmbedder, String>) -> Result<Self, String> {
        let vectors = match embedder {
            _ if !how.embeds() => HashMap::new(),
            Ok(embedder) => embedded(tools, embedder).await.map_err(|error| error.to_string())?,
            Err(why) => return Err(format!("no embedding model: {why}")),
        };
        Ok(Self { how, vectors })
    }

    /// The `labelled` tools among others, `count` in all, in an order that gives nothing away; the same for the same
    /// `key`. Where too few are close enough, random ones fill up. `turn` of `turns` takes every so many-th of the
    /// closest, so that each turn is shown others.
    pub fn candidates<'a>(
        &self,
        tools: &'a Toolbox,
        labelled: &[&'a Tool],
        count: usize,
        key: &str,
        (turn, turns): (usize, usize),
    ) -> Vec<&'a Tool> {
        let wanted = count.saturating_sub(labelled.len());
        let closeness = |tool: &Tool| self.closeness(labelled, tool);
        let mut all = match self.how {
            // Whichever the key draws: those of two turns are others by their keys.
            Distract::Random | Distract::SameServer => tools.closest(labelled, wanted, key, closeness, |_| true),
            Distract::Nearest => {
                let pool = tools.closest(labelled, wanted.saturating_mul(turns), "nearest", closeness, |_| true);
                let own = pool.iter().skip(turn).step_by(turns.max(1)).copied();
                // In a small box the turns share what there is.
                let rest = pool.iter().enumerate().filter(|(at, _)| at % turns.max(1) != turn).map(|(_, tool)| *tool);
                own.chain(rest).take(wanted).collect()
            }
        };
        all.extend(labelled);
        placed(all, key)
    }

    fn closeness(&self, labelled: &[&Tool], tool: &Tool) -> f64 {
        match self.how {
            Distract::Random => 0.0,
            Distract::SameServer => f64::from(u8::from(labelled.iter().any(|other| other.server_id == tool.server_id))),
            Distract::Nearest => labelled.iter().map(|other| self.near(other, tool)).fold(-1.0, f64::max),
        }
    }

    fn near(&self, a: &Tool, b: &Tool) -> f64 {
        let [a, b] = [a, b].map(|tool| self.vectors.get(&tool.id).map_or(&[][..], |vector| vector));
        f64::from(cosine(a, b))
    }
}

async fn embedded(tools: &Toolbox, embedder: &RecordedEmbedder) -> Result<HashMap<ToolId, Vec<f32>>, EmbedError> {
    let texts: Vec<String> = tools.all().iter().map(said_of).collect();
    embedder.embed_ahead(texts.iter().map(String::as_str)).await?;
    let mut vectors = HashMap::with_capacity(texts.len());
    for (tool, text) in tools.all().iter().zip(&texts) {
        vectors.insert(tool.id.clone(), embedder.embed(text).await?);
    }
    Ok(vectors)
}

/// What a tool is compared by: its name in words, and its description.
pub fn said_of(tool: &Tool) -> String {
    format!("{}: {}", tool.name.replace(['_', '-'], " "), tool.description_text())
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Arc};

    use async_trait::async_trait;
    use serde_json::json;

    use super::*;
    use crate::{
        edge::{Embedder, Mode, Recorder, exchange::tests::Memory},
        id::{ClusterId, ServerId},
        record::{ToolDraft, Twin},
    };

    /// A tool is as far as its number says.
    struct Numbers;

    #[async_trait]
    impl Embedder for Numbers {
        fn model(&self) -> &str {
            "numbers"
        }

        async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
            let angle = |text: &String| text.rsplit(' ').next().and_then(|n| n.parse::<f32>().ok()).unwrap_or_default() * 0.05;
            Ok(texts.iter().map(|text| vec![angle(text).cos(), angle(text).sin()]).collect())
        }
    }

    fn tool(server: &str, n: usize) -> Tool {
        let draft = ToolDraft {
            name: format!("tool_{n}"),
            title: None,
            description: Some(format!("does {n}")),
            input_schema: json!({"n": n}),
            output_schema: None,
            annotations: None,
        };
        Tool::new(ServerId(server.into()), draft)
    }

    /// Four tools of one server, then twenty of others.
    fn tools() -> Vec<Tool> {
        (0..24).map(|n| tool(if n < 4 { "srv_own" } else { ["srv_a", "srv_b"][n % 2] }, n)).collect()
    }

    fn names(tools: &[&Tool]) -> Vec<usize> {
        let mut numbers: Vec<usize> = tools.iter().map(|t| t.name[5..].parse().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    }

    async fn of(how: Distract, tools: &Toolbox) -> Distractors {
        let recorder = Arc::new(Recorder::new(Arc::new(Memory::default()), Mode::Reuse));
        let embedder = if how.embeds() { Ok(RecordedEmbedder::new(Arc::new(Numbers), recorder)) } else { Err("none".into()) };
        Distractors::new(how, tools, &embedder).await.unwrap()
    }

    #[tokio::test]
    async fn without_an_embedding_model_nothing_is_near() {
        let why = Distractors::new(Distract::Nearest, &Toolbox::new(tools()), &Err("not here".into())).await.err().unwrap();
        assert!(why.contains("not here"), "{why}");
    }

    #[tokio::test]
    async fn random_ones_are_those_that_were_always_drawn() {
        let (tools, all) = (tools(), Toolbox::new(tools()));
        for key in ["a", "b"] {
            let drawn = of(Distract::Random, &all).await.candidates(&all, &[&tools[0]], 5, key, (0, 2));
            assert_eq!(drawn, all.candidates(&[&tools[0]], 5, key, |_| true));
        }
    }

    #[tokio::test]
    async fn siblings_come_first_and_random_ones_fill_up() {
        let (tools, all) = (tools(), Toolbox::new(tools()));
        let near = of(Distract::SameServer, &all).await;
        let draw = |count, key: &str| names(&near.candidates(&all, &[&tools[0]], count, key, (0, 1)));
        assert_eq!(draw(4, "k"), [0, 1, 2, 3]);
        let two: HashSet<Vec<usize>> = (0..20).map(|key| draw(3, &key.to_string())).collect();
        assert!(two.len() == 3 && two.iter().flatten().all(|n| *n < 4), "{two:?}");
        let six = draw(6, "k");
        assert!(six.len() == 6 && six[..4] == [0, 1, 2, 3], "{six:?}");
        assert_ne!(draw(6, "k"), draw(6, "other"), "what fills up is drawn");
    }

    #[tokio::test]
    async fn the_nearest_are_near_and_each_turn_has_its_own() {
        let (tools, all) = (tools(), Toolbox::new(tools()));
        let near = of(Distract::Nearest, &all).await;
        assert_eq!(names(&near.candidates(&all, &[&tools[9]], 5, "k", (0, 1))), [7, 8, 9, 10, 11]);
        let [first, second] = [0, 1].map(|turn| names(&near.candidates(&all, &[&tools[0]], 3, "k", (turn, 2))));
        assert_eq!((first, second), (vec![0, 1, 3], vec![0, 2, 4]));
        let few = Toolbox::new(tools[..4].to_vec());
        let near = of(Distract::Nearest, &few).await;
        let [first, second] = [0, 1].map(|turn| names(&near.candidates(&few, &[&tools[0]], 4, "k", (turn, 2))));
        assert_eq!((first, second), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]), "a small box is used up");
    }

    #[tokio::test]
    async fn no_twin_is_near() {
        let mut tools = tools();
        tools[5].cluster_id = tools[9].cluster_id.clone();
        let near_copy = |t: &Tool| Twin {
            tool_id: t.id.clone(),
            server_id: t.server_id.clone(),
            exact_id: t.cluster_id.clone(),
            near_id: ClusterId("clu_near".into()),
            server_cluster: t.server_id.clone(),
            keeper: false,
        };
        let twins = [near_copy(&tools[9]), near_copy(&tools[10])];
        let all = Toolbox::new(tools.clone()).with_twins(&twins);
        let offered = names(&of(Distract::Nearest, &all).await.candidates(&all, &[&tools[9]], 9, "k", (0, 1)));
        assert!(!offered.contains(&5) && !offered.contains(&10), "a copy of the right answer is no wrong one: {offered:?}");
        assert!(offered.contains(&8) && offered.contains(&11));
    }
}

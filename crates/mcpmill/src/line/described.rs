//! What is told of the samples of a run when they are all there.

use mcpmill_core::record::{Sample, Tool};
use mcpmill_core::toolbox::Toolbox;
use mcpmill_pipeline::{filter::Chain, generate::diversity::Counting};
use mcpmill_store::{parquet_file::Rows, run_dir::StageInfo};
use serde_json::json;

use super::Line;
use crate::{
    error::{Exit, Failure},
    stage::Stage,
};

impl Line {
    /// Counts how much the samples differ, notes it in `stage.json` and says it.
    pub(super) async fn describe(&self, info: StageInfo) -> Result<StageInfo, Failure> {
        let toolbox = Toolbox::new(self.input::<Tool>(Stage::Harvest)?);
        let mut counting = Counting::default();
        let fail = |e: &dyn std::error::Error| Failure::from_error(Exit::Unexpected, e);
        for sample in Rows::<Sample>::open(&self.path_of::<Sample>(Stage::Generate)).map_err(|e| fail(&e))? {
            counting.add(&sample.map_err(|e| fail(&e))?, &toolbox);
        }
        let found = counting.finish(&toolbox, &self.vectors(&counting).await);
        self.events.note(format!("{}: {}", Stage::Generate, found.line()));
        let folder = self.run.path().join(Stage::Generate.folder());
        info.describe(&folder, json!(found)).map_err(|e| fail(&e))
    }

    /// Vectors of the drawn instructions, where the filters embed them anyway and the model is there; a text that
    /// cannot be embedded is left out.
    async fn vectors(&self, counting: &Counting) -> Vec<Vec<f32>> {
        let embeds = self.declarations.chain(&self.config.filter.samples).is_ok_and(|chain| Chain::needs(chain).embedder);
        let embedder = if embeds { self.embedder().await.ok() } else { None };
        let mut vectors = Vec::new();
        for text in counting.drawn() {
            if let Some(embedder) = &embedder {
                vectors.extend(embedder.embed(text).await.ok());
            }
        }
        vectors
    }
}

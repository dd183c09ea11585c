//! What discover has of the world.

use std::sync::Arc;

use mcpmill_core::edge::{Fetch, Mode};
use mcpmill_pipeline::discover::{CrawlContext, Marketplace};

use super::Line;
use crate::{
    error::Failure,
    snapshots::{DiskShelf, DiskSnapshots, RecordedSnapshots, beginning, registry},
    sources::{DiskFiles, RecordedFetch, SavedPages},
};

impl Line {
    /// What discover has of the world. Sources that stand in their own file need nothing of it.
    pub(super) async fn crawl_context(&self, marketplaces: &[Box<dyn Marketplace>]) -> Result<CrawlContext, Failure> {
        let config = &self.config;
        if marketplaces.iter().all(|marketplace| marketplace.is_own_file()) {
            return Ok(CrawlContext::default());
        }
        let replay = config.mode == Mode::Replay;
        let keys = marketplaces.iter().flat_map(|marketplace| marketplace.keys()).map(|key| key.name).collect();
        let mut fetch: Arc<dyn Fetch> = Arc::new(RecordedFetch::new(self.edges.crawler(&keys)?, Arc::clone(&self.recorder)));
        if let Some(folder) = &self.record {
            fetch = Arc::new(SavedPages::new(fetch, folder)?);
        }
        let mut values = config.discover.values.clone();
        let npm = "npm_registry";
        if !values.contains_key(npm) && marketplaces.iter().any(|marketplace| marketplace.values().contains(npm)) {
            values.extend(registry(&self.recorder).await?.map(|registry| (npm.to_owned(), registry)));
        }
        // A replay starts from what the run it replays did, and leaves nothing for the next crawl.
        let keeps = config.discover.incremental && !replay && self.record.is_none();
        let disk = keeps.then(|| DiskSnapshots::new(&config.cache_dir));
        let shelf = DiskShelf::new(&config.cache_dir).map_err(|e| {
            Failure::environment(format!("failed to put listings aside in `{}`: {e}", config.cache_dir.display()))
        })?;
        Ok(CrawlContext {
            fetch: Some(fetch),
            files: Some(Arc::new(DiskFiles)),
            snapshots: Some(Arc::new(RecordedSnapshots::new(disk, Arc::clone(&self.recorder)))),
            shelf: Some(Arc::new(shelf)),
            now: beginning(&self.recorder).await?,
            values,
        })
    }
}

//! The model that tests run on.

use std::path::{Path, PathBuf};

use mcpmill_clients::assets::{AssetId, Assets};

/// The pinned model, fetched like the program itself fetches it.
pub(crate) fn path() -> PathBuf {
    let cache = std::env::var_os("MCPMILL_CACHE_DIR");
    let cache = cache.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cache"), PathBuf::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fetched = runtime.block_on(Assets::new(cache).fetch(AssetId::SmolLm2));
    fetched.unwrap_or_else(|e| panic!("{e}\nhint: {}", e.hint()))
}

//! Real embeddings: the pinned MiniLM on the pinned ONNX Runtime.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use mcpmill_clients::{
    assets::{AssetId, Assets},
    embed::{EmbedFiles, FastEmbedder},
};
use mcpmill_core::edge::{Embedder, RecordedEmbedder, cosine};

fn cache() -> PathBuf {
    std::env::var_os("MCPMILL_CACHE_DIR").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cache"), PathBuf::from)
}

#[tokio::test]
async fn related_texts_lie_near_and_unrelated_ones_far() {
    let assets = Assets::new(cache());
    let runtime = assets.fetch(AssetId::OnnxRuntime).await.unwrap_or_else(|e| panic!("{e}\nhint: {}", e.hint()));
    let folder = assets.fetch(AssetId::MiniLm).await.unwrap_or_else(|e| panic!("{e}\nhint: {}", e.hint()));
    let part = |file: &str| folder.join(file);
    let files = EmbedFiles {
        runtime: runtime.clone(),
        model: part("model.onnx"),
        tokenizer: ["tokenizer.json", "config.json", "special_tokens_map.json", "tokenizer_config.json"].map(part),
    };
    let model = FastEmbedder::load("minilm", &files, 1).unwrap();
    let texts = [
        "Get the weather forecast for a city",
        "What will the weather be like in Oslo tomorrow?",
        "Create a branch in a git repository",
    ];
    let vectors = model.embed(&texts.map(str::to_owned)).await.unwrap();
    assert_eq!(vectors[0].len(), 384);
    let (near, far) = (cosine(&vectors[0], &vectors[1]), cosine(&vectors[0], &vectors[2]));
    assert!(near > 0.45 && far < 0.2, "near {near}, far {far}");

    // However many texts a pass has, and however long the others are, a text has one vector: rows may not depend on it.
    let mut many: Vec<String> = texts.map(str::to_owned).to_vec();
    many.extend((1..40).map(|n| format!("{} number {n}", texts[n % 3]).repeat(n % 7 + 1)));
    let model = Arc::new(model);
    let recorded = || RecordedEmbedder::new(Arc::<FastEmbedder>::clone(&model), mcpmill_testkit::recorder());
    let (ahead, single) = (recorded(), recorded());
    ahead.embed_ahead(many.iter().map(String::as_str)).await.unwrap();
    for text in &many {
        assert_eq!(ahead.embed(text).await.unwrap(), single.embed(text).await.unwrap(), "{text}");
    }

    let missing = EmbedFiles { runtime: folder.join("no-such-library.so"), ..files };
    let error = FastEmbedder::load("minilm", &missing, 1).err().unwrap().to_string();
    assert!(error.contains("no-such-library.so"), "{error}");
}

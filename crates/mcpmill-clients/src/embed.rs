//! Embeddings: fastembed over an ONNX Runtime library loaded at run time.

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use async_trait::async_trait;
use fastembed::{InitOptionsUserDefined, Pooling, TextEmbedding, TokenizerFiles, UserDefinedEmbeddingModel};
use mcpmill_core::edge::{EmbedError, Embedder};
use thiserror::Error;
use tokio::sync::oneshot;

/// Tokens of a text that are looked at: MiniLM was trained on 256.
const MAX_TOKENS: usize = 256;
/// Texts of one forward pass.
const BATCH: usize = 32;

/// Where the parts of an embedding model lie.
#[derive(Clone, Debug)]
pub struct EmbedFiles {
    /// The ONNX Runtime library (`libonnxruntime.so.*`).
    pub runtime: PathBuf,
    /// The model (`model.onnx`).
    pub model: PathBuf,
    /// `tokenizer.json`, `config.json`, `special_tokens_map.json`, `tokenizer_config.json`.
    pub tokenizer: [PathBuf; 4],
}

/// An embedding model that cannot be loaded.
#[derive(Debug, Error)]
#[error("failed to load the embedding model: {what} `{}`: {detail}", path.display())]
pub struct LoadError {
    /// Which part.
    pub what: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// Why not.
    pub detail: String,
}

type Job = (Vec<String>, oneshot::Sender<Result<Vec<Vec<f32>>, String>>);

/// An embedding model in a thread of its own, since a session takes one caller at a time.
pub struct FastEmbedder {
    name: String,
    jobs: mpsc::Sender<Job>,
}

impl FastEmbedder {
    /// Loads the model; `name` names it in verdicts and keys, `threads` are the threads of one pass.
    ///
    /// # Errors
    /// A part is missing or is not what it should be.
    pub fn load(name: &str, files: &EmbedFiles, threads: usize) -> Result<Self, LoadError> {
        init_runtime(&files.runtime)?;
        let [tokenizer, config, special, tokenizer_config] = &files.tokenizer;
        let model = UserDefinedEmbeddingModel::new(
            read("model", &files.model)?,
            TokenizerFiles {
                tokenizer_file: read("tokenizer", tokenizer)?,
                config_file: read("configuration", config)?,
                special_tokens_map_file: read("special tokens", special)?,
                tokenizer_config_file: read("tokenizer configuration", tokenizer_config)?,
            },
        )
        .with_pooling(Pooling::Mean);
        let options = InitOptionsUserDefined::new().with_max_length(MAX_TOKENS).with_intra_threads(threads.max(1));
        let mut session = TextEmbedding::try_new_from_user_defined(model, options).map_err(|e| LoadError {
            what: "model",
            path: files.model.clone(),
            detail: e.to_string(),
        })?;
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (texts, answer) in queue {
                let vectors = session.embed(&texts, Some(BATCH)).map_err(|e| e.to_string());
                // A caller that went away wants no answer.
                answer.send(vectors).ok();
            }
        });
        Ok(Self { name: name.to_owned(), jobs })
    }
}

#[async_trait]
impl Embedder for FastEmbedder {
    fn model(&self) -> &str {
        &self.name
    }

    async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let fail = |detail: &str| EmbedError { model: self.name.clone(), detail: detail.to_owned() };
        let (answer, vectors) = oneshot::channel();
        self.jobs.send((texts.to_vec(), answer)).map_err(|_| fail("the model's thread has ended"))?;
        vectors.await.map_err(|_| fail("the model's thread has ended"))?.map_err(|detail| fail(&detail))
    }
}

/// Loads the library once per process; asking for it this way gives an error where the
/// environment variable would make ort panic at first use.
fn init_runtime(path: &Path) -> Result<(), LoadError> {
    let fail = |detail: String| LoadError { what: "ONNX Runtime", path: path.to_owned(), detail };
    if !path.is_file() {
        return Err(fail("no such file".into()));
    }
    // Loading is what matters here; the environment comes into being with the first session.
    let _environment = ort::init_from(path).map_err(|e| fail(e.to_string()))?;
    Ok(())
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|e| LoadError { what, path: path.to_owned(), detail: e.to_string() })
}

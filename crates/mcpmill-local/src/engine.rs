//! A loaded model and the lock that its callers share.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::chat::ChatMl;
use crate::config::{Architecture, Config};
use crate::constraint::Grammars;
use crate::error::{LoadProblem, LocalError};
use crate::generate::{Generated, Generation, generate};
use crate::gguf::{Gguf, malformed};
use crate::model::Model;
use crate::prefix::Slots;
use crate::tokenizer::Vocabulary;

/// How a model is held in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// Longest prompt and answer together, in tokens. The model's own limit applies as well.
    pub max_context: usize,
    /// Kinds of prompt whose beginnings are kept. In the 1.5B model each takes up to 0.057 MB per token of
    /// `max_context`, as far as it is used.
    pub prefix_slots: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { max_context: 2048, prefix_slots: 8 }
    }
}

/// What the file says about the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// `qwen2` or `llama`.
    pub architecture: &'static str,
    /// The name the file gives itself; may be empty.
    pub name: String,
    /// Tokens the model was trained to handle.
    pub context_length: usize,
    /// Tokens it handles here: the least of that and [`LoadOptions::max_context`].
    pub max_context: usize,
    /// Tokens it knows.
    pub vocabulary_size: usize,
}

/// An embedded language model. Answers one request at a time; further callers wait.
///
/// The work is done on the calling thread and on candle's own threads, as many as the machine has cores or
/// `RAYON_NUM_THREADS` says at the first request (candle offers no other way to set it). These threads meet after
/// every matrix, a few hundred times per token: where other programs use all cores, one thread is several times
/// faster than two. Call it from a blocking thread, not from an async task.
pub struct LocalModel {
    info: ModelInfo,
    engine: Engine,
    slots: Mutex<Slots>,
}

/// The parts that never change after loading.
pub(crate) struct Engine {
    pub model: Model,
    pub vocabulary: Vocabulary,
    pub chat: ChatMl,
    pub grammars: Grammars,
    pub max_context: usize,
}

impl LocalModel {
    /// Reads a GGUF file of the qwen2 or llama architecture whose chat template is ChatML.
    ///
    /// The file is read, not mapped. Expect about 2.7 GB of memory for a 1.5B model with 4-bit weights.
    ///
    /// # Errors
    ///
    /// [`LocalError::Load`], naming the file.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<LocalModel, LocalError> {
        read(path, options).map_err(|problem| LocalError::Load { path: path.to_path_buf(), problem })
    }

    /// What the file says about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Writes one answer. Blocks for as long as that takes, seconds rather than milliseconds.
    ///
    /// The same request gives the same answer on the same machine, whatever was asked before.
    ///
    /// # Errors
    ///
    /// [`LocalError::Constraint`] if the constraint cannot be followed, [`LocalError::PromptTooLong`],
    /// [`LocalError::Cancelled`].
    pub fn generate(&self, request: &Generation) -> Result<Generated, LocalError> {
        // A panic while the lock was held lost the slot in use and nothing else.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let name = request.prefix_slot.as_deref();
        let mut slot = slots.take(&self.engine.model, name)?;
        let generated = generate(&self.engine, request, &mut slot);
        slots.put_back(name, slot);
        generated
    }
}

fn read(path: &Path, options: &LoadOptions) -> Result<LocalModel, LoadProblem> {
    let mut gguf = Gguf::open(path)?;
    let config = Config::read(&gguf)?;
    let max_context = options.max_context.min(config.context_length);
    if max_context < 2 {
        return Err(malformed(format!("a context of {max_context} tokens")));
    }
    let info = ModelInfo {
        architecture: match config.architecture {
            Architecture::Qwen2 => "qwen2",
            Architecture::Llama => "llama",
        },
        name: gguf.text("general.name").unwrap_or_default().to_string(),
        context_length: config.context_length,
        max_context,
        vocabulary_size: config.vocabulary,
    };
    let vocabulary = Vocabulary::read(&gguf)?;
    let chat = ChatMl::read(&gguf, &vocabulary)?;
    let grammars = Grammars::new(&vocabulary)?;
    let model = Model::read(&mut gguf, config, max_context)?;
    let engine = Engine { model, vocabulary, chat, grammars, max_context };
    let slots = Mutex::new(Slots::new(options.prefix_slots, max_context));
    Ok(LocalModel { info, engine, slots })
}

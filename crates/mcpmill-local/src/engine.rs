//! A loaded model, ready to answer.

use std::path::Path;
use std::sync::mpsc::sync_channel;

use crate::chat::ChatMl;
use crate::config::{Architecture, Config};
use crate::constraint::Grammars;
use crate::error::{LoadProblem, LocalError};
use crate::generate::{Generated, Generation};
use crate::gguf::{Gguf, malformed};
use crate::lockstep::{Lockstep, Reply};
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
    /// Requests that are answered at the same time, from 1 to 64; further callers wait. Each takes as much memory as a
    /// prefix slot. The answers are the same whatever this is.
    pub lockstep: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { max_context: 2048, prefix_slots: 8, lockstep: 8 }
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

/// An embedded language model. Answers up to [`LoadOptions::lockstep`] requests at a time; further callers wait.
///
/// The work is done on one thread of the model's own and on candle's threads, as many as the machine has cores or
/// `RAYON_NUM_THREADS` says at the first request (candle offers no other way to set it). These threads meet after
/// every matrix, a few hundred times per token: where other programs use all cores, one thread is several times
/// faster than two. Several requests at once share the reading of the weights and take much less time than one
/// after the other.
pub struct LocalModel {
    info: ModelInfo,
    lockstep: Lockstep,
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
    /// The file is read, not mapped. Expect up to 3.7 GB of memory for a 1.5B model with 4-bit weights.
    ///
    /// # Errors
    ///
    /// [`LocalError::Load`], naming the file.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<LocalModel, LocalError> {
        let load = || {
            let (info, engine) = read(path, options)?;
            let slots = Slots::new(options.prefix_slots, info.max_context);
            Ok(LocalModel { lockstep: Lockstep::start(engine, slots, options.lockstep)?, info })
        };
        load().map_err(|problem| LocalError::Load { path: path.to_path_buf(), problem })
    }

    /// What the file says about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Writes one answer. Blocks for as long as that takes, seconds rather than milliseconds; call it from a blocking
    /// thread, not from an async task.
    ///
    /// The same request gives the same answer on the same machine, whatever was asked before and whatever is asked
    /// at the same time.
    ///
    /// # Errors
    ///
    /// [`LocalError::Constraint`] if the constraint cannot be followed, [`LocalError::PromptTooLong`],
    /// [`LocalError::Cancelled`].
    pub fn generate(&self, request: &Generation) -> Result<Generated, LocalError> {
        let (reply, answer) = sync_channel(1);
        self.submit(request.clone(), Box::new(move |generated| drop(reply.send(generated))));
        answer.recv().unwrap_or_else(|_| Err(LocalError::Compute("the thread of the model is gone".into())))
    }

    /// Asks without waiting. The reply is called on the model's thread, so it must be quick.
    pub(crate) fn submit(&self, request: Generation, reply: Reply) {
        self.lockstep.submit(request, reply);
    }
}

pub(crate) fn read(path: &Path, options: &LoadOptions) -> Result<(ModelInfo, Engine), LoadProblem> {
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
    Ok((info, engine))
}

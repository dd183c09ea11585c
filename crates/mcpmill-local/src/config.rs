//! The shape of the model, from the file's metadata.

use crate::error::LoadProblem;
use crate::gguf::{Gguf, malformed};

/// The transformer families the forward pass knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// Rotary pairs are (i, i + half); biases on q, k, v.
    Qwen2,
    /// Rotary pairs are neighbours, as the converter permutes q and k.
    Llama,
}

/// Sizes of everything; checked once, so that the forward pass need not.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub architecture: Architecture,
    pub layers: usize,
    pub hidden: usize,
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    pub rope_base: f64,
    pub norm_epsilon: f64,
}

impl Config {
    pub(crate) fn read(gguf: &Gguf) -> Result<Self, LoadProblem> {
        let name = gguf.text("general.architecture")?;
        let architecture = match name {
            "qwen2" => Architecture::Qwen2,
            "llama" => Architecture::Llama,
            other => return Err(LoadProblem::Unsupported(format!("the architecture `{other}`"))),
        };
        let key = |suffix: &str| format!("{name}.{suffix}");
        let hidden = gguf.size(&key("embedding_length"), 1, 1 << 16)?;
        let heads = gguf.size(&key("attention.head_count"), 1, 1 << 10)?;
        let kv_heads = match gguf.has(&key("attention.head_count_kv")) {
            true => gguf.size(&key("attention.head_count_kv"), 1, 1 << 10)?,
            false => heads,
        };
        if hidden % heads != 0 || heads % kv_heads != 0 || (hidden / heads) % 2 != 0 {
            return Err(malformed(format!("{hidden} values, {heads} heads and {kv_heads} key heads do not divide")));
        }
        let config = Config {
            architecture,
            layers: gguf.size(&key("block_count"), 1, 512)?,
            hidden,
            feed_forward: gguf.size(&key("feed_forward_length"), 1, 1 << 20)?,
            heads,
            kv_heads,
            head_dim: hidden / heads,
            vocabulary: gguf.texts("tokenizer.ggml.tokens")?.len(),
            context_length: gguf.size(&key("context_length"), 1, 1 << 24)?,
            rope_base: if gguf.has(&key("rope.freq_base")) { gguf.float(&key("rope.freq_base"))? } else { 10_000. },
            norm_epsilon: gguf.float(&key("attention.layer_norm_rms_epsilon"))?,
        };
        config.refuse_variants(gguf, name)?;
        Ok(config)
    }

    /// Variants of the two families whose numbers would come out wrong without a word.
    fn refuse_variants(&self, gguf: &Gguf, name: &str) -> Result<(), LoadProblem> {
        if !(self.rope_base > 0. && self.rope_base.is_finite() && (0. ..1.).contains(&self.norm_epsilon)) {
            let (base, epsilon) = (self.rope_base, self.norm_epsilon);
            return Err(malformed(format!("a rotary base of {base} with a norm epsilon of {epsilon}")));
        }
        for suffix in ["rope.dimension_count", "attention.key_length", "attention.value_length"] {
            let key = format!("{name}.{suffix}");
            if gguf.has(&key) && gguf.integer(&key)? != self.head_dim as i64 {
                return Err(LoadProblem::Unsupported(format!("`{key}` other than {}", self.head_dim)));
            }
        }
        let scaling = format!("{name}.rope.scaling.type");
        if gguf.has_tensor("rope_freqs.weight") || (gguf.has(&scaling) && gguf.text(&scaling)? != "none") {
            return Err(LoadProblem::Unsupported("a scaled rotary embedding".into()));
        }
        if gguf.has(&format!("{name}.expert_count")) && gguf.integer(&format!("{name}.expert_count"))? > 0 {
            return Err(LoadProblem::Unsupported("a mixture of experts".into()));
        }
        Ok(())
    }

    /// Query heads that share one key head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of the keys, and of the values, of one position.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

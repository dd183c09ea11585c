//! The forward pass of Qwen2 and Llama models.
//!
//! Several sequences of different lengths share one step: everything but attention works on the rows of all of
//! them at once, attention on one sequence after the other. What comes out for a sequence does not depend, to the
//! last bit, on who else is in the step: no operation adds across rows, and none picks its kernel by their number
//! (`Linear` sees to that).

use candle_core::{D, Device, Result, Tensor};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use candle_nn::rotary_emb::{rope, rope_i};

use crate::config::{Architecture, Config};
use crate::error::LoadProblem;
use crate::gguf::Gguf;
use crate::kv::Kv;
use crate::weights::{Layer, Weights};

/// A sequence and the tokens that continue it.
pub(crate) type Continuation<'a> = (&'a mut Kv, &'a [u32]);

/// The weights with the tables that depend on the context only.
pub(crate) struct Model {
    pub config: Config,
    weights: Weights,
    /// `(context, head size / 2)`.
    cos: Tensor,
    sin: Tensor,
}

impl Model {
    /// `context` is the longest sequence that will ever be asked for.
    pub(crate) fn read(gguf: &mut Gguf, config: Config, context: usize) -> std::result::Result<Self, LoadProblem> {
        let weights = Weights::read(gguf, &config)?;
        let (cos, sin) = rotation(&config, context)?;
        Ok(Model { config, weights, cos, sin })
    }

    /// Appends the tokens to their sequences; returns the last hidden row of each, `(sequences, hidden)`.
    pub(crate) fn step(&self, batch: &mut [Continuation]) -> Result<Tensor> {
        let tokens: Vec<u32> = batch.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let masks = batch.iter().map(|(kv, tokens)| mask(kv.len(), tokens.len())).collect::<Result<Vec<_>>>()?;
        let epsilon = self.config.norm_epsilon as f32;
        let mut x = self.weights.embedding.embedding(&Tensor::new(tokens, &Device::Cpu)?)?;
        for (n, layer) in self.weights.layers.iter().enumerate() {
            let normed = rms_norm(&x, &layer.attention_norm, epsilon)?;
            x = (x + self.attention(n, layer, &normed, batch, &masks)?)?;
            let normed = rms_norm(&x, &layer.feed_forward_norm, epsilon)?;
            let gated = (silu(&layer.gate.forward(&normed)?)? * layer.up.forward(&normed)?)?;
            x = (x + layer.down.forward(&gated)?)?;
        }
        let mut last_rows = Vec::with_capacity(batch.len());
        let mut end = 0;
        for (kv, tokens) in batch {
            kv.advance(tokens.len());
            end += tokens.len();
            last_rows.push(x.narrow(0, end - 1, 1)?);
        }
        Tensor::cat(&last_rows, 0)
    }

    /// The scores of every token of the vocabulary to follow each of some hidden rows `(rows, hidden)`.
    pub(crate) fn logits(&self, hidden: &Tensor) -> Result<Vec<Vec<f32>>> {
        let normed = rms_norm(hidden, &self.weights.norm, self.config.norm_epsilon as f32)?;
        self.weights.output.forward(&normed)?.to_vec2()
    }

    fn attention(&self, n: usize, layer: &Layer, x: &Tensor, batch: &[Continuation], masks: &[Option<Tensor>]) -> Result<Tensor> {
        let (query, key, value) = (layer.query.forward(x)?, layer.key.forward(x)?, layer.value.forward(x)?);
        let mut mixed = Vec::with_capacity(batch.len());
        let mut start = 0;
        for ((kv, tokens), mask) in batch.iter().zip(masks) {
            let rows = |all: &Tensor| all.narrow(0, start, tokens.len());
            let (q, k, v) = (rows(&query)?, rows(&key)?, rows(&value)?);
            mixed.push(self.attend(n, kv, &q, &k, &v, mask.as_ref())?);
            start += tokens.len();
        }
        let mixed = if mixed.len() == 1 { mixed.remove(0) } else { Tensor::cat(&mixed, 0)? };
        layer.attention_out.forward(&mixed)
    }

    /// Attention of `m` new rows of one sequence to everything before them. The query heads that share a key head
    /// are stacked as rows, so that keys and values are read in place and never repeated.
    fn attend(&self, n: usize, kv: &Kv, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let Config { heads, kv_heads, head_dim, .. } = self.config;
        let (m, group) = (q.dim(0)?, self.config.group());
        let q = (self.rotate(&by_head(q, heads, head_dim)?, kv.len())? * (head_dim as f64).powf(-0.5))?;
        let k = self.rotate(&by_head(k, kv_heads, head_dim)?, kv.len())?;
        let v = by_head(v, kv_heads, head_dim)?;
        let (keys, values) = kv.store(n, &k.squeeze(0)?, &v.squeeze(0)?)?;
        let mut scores = q.reshape((kv_heads, group * m, head_dim))?.matmul(&keys.t()?)?;
        if let Some(mask) = mask {
            let total = scores.dim(D::Minus1)?;
            scores = scores.reshape((heads, m, total))?.broadcast_add(mask)?.reshape((kv_heads, group * m, total))?;
        }
        let mixed = softmax_last_dim(&scores)?.matmul(&values)?;
        mixed.reshape((heads, m, head_dim))?.transpose(0, 1)?.reshape((m, heads * head_dim))
    }

    fn rotate(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let m = x.dim(2)?;
        let (cos, sin) = (self.cos.narrow(0, position, m)?, self.sin.narrow(0, position, m)?);
        match self.config.architecture {
            Architecture::Qwen2 => rope(x, &cos, &sin),
            Architecture::Llama => rope_i(x, &cos, &sin),
        }
    }
}

/// `(m, heads * size)` to `(1, heads, m, size)`.
fn by_head(x: &Tensor, heads: usize, size: usize) -> Result<Tensor> {
    x.reshape((1, x.dim(0)?, heads, size))?.transpose(1, 2)?.contiguous()
}

/// Hides from each of `m` new rows the ones behind it; a single row sees everything.
fn mask(position: usize, m: usize) -> Result<Option<Tensor>> {
    if m == 1 {
        return Ok(None);
    }
    let total = position + m;
    let hidden = |row: usize, column: usize| if column > position + row { f32::NEG_INFINITY } else { 0. };
    let values: Vec<f32> = (0..m).flat_map(|row| (0..total).map(move |column| hidden(row, column))).collect();
    Tensor::from_vec(values, (m, total), &Device::Cpu).map(Some)
}

fn rotation(config: &Config, context: usize) -> Result<(Tensor, Tensor)> {
    let half = config.head_dim / 2;
    let frequency = |i: usize| config.rope_base.powf(-((2 * i) as f64) / config.head_dim as f64);
    let angles: Vec<f32> = (0..context).flat_map(|p| (0..half).map(move |i| (p as f64 * frequency(i)) as f32)).collect();
    let angles = Tensor::from_vec(angles, (context, half), &Device::Cpu)?;
    Ok((angles.cos()?, angles.sin()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_hides_what_comes_later() {
        assert!(mask(5, 1).unwrap().is_none());
        let rows = mask(1, 2).unwrap().unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(rows, [[0., 0., f32::NEG_INFINITY], [0., 0., 0.]]);
    }

    #[test]
    fn sequences_in_one_step_do_not_mix() {
        let path = crate::test_model::path();
        let mut gguf = Gguf::open(&path).unwrap();
        let config = Config::read(&gguf).unwrap();
        let model = Model::read(&mut gguf, config, 32).unwrap();
        let kv = || Kv::new(&model.config, 32).unwrap();
        let (long, short) = ([500, 737, 974, 1211, 1448], [9000, 40, 7]);
        let alone = |tokens: &[u32]| {
            let mut kv = kv();
            model.step(&mut [(&mut kv, &tokens[..2])]).unwrap();
            model.logits(&model.step(&mut [(&mut kv, &tokens[2..])]).unwrap()).unwrap().remove(0)
        };
        let (mut one, mut two) = (kv(), kv());
        model.step(&mut [(&mut one, &long[..2]), (&mut two, &short[..2])]).unwrap();
        let rows = model.step(&mut [(&mut one, &long[2..]), (&mut two, &short[2..])]).unwrap();
        let together = model.logits(&rows).unwrap();
        let bits = |scores: &[f32]| scores.iter().map(|score| score.to_bits()).collect::<Vec<u32>>();
        for (n, tokens) in [&long[..], &short[..]].into_iter().enumerate() {
            assert!(bits(&together[n]) == bits(&alone(tokens)), "sequence {n} depends on its neighbour");
        }
    }
}

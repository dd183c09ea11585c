//! Turns the tensors of a file into layers.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};

use crate::config::Config;
use crate::error::LoadProblem;
use crate::gguf::{Gguf, malformed};

/// A matrix, with the bias that some models add.
pub(crate) struct Linear {
    weight: QMatMul,
    bias: Option<Tensor>,
}

impl Linear {
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let m = x.dim(0)?;
        let y = match rows_at_least(&self.weight, m) {
            rows if rows == m => self.weight.forward(x)?,
            rows => self.weight.forward(&x.pad_with_zeros(0, 0, rows - m)?)?.narrow(0, 0, m)?,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// How many rows a matrix must be given for `m` of them to come out as among any others.
///
/// candle picks its kernel by the number of rows, and kernels add in different orders. On x86 a single row meets
/// 6-bit weights in another kernel than several do; on ARM only groups of four share one. All other kernels treat
/// each row by itself.
fn rows_at_least(weight: &QMatMul, m: usize) -> usize {
    let QMatMul::QTensor(stored) = weight else { return m };
    if cfg!(target_arch = "aarch64") {
        m.next_multiple_of(4)
    } else if stored.dtype() == GgmlDType::Q6K {
        m.max(2)
    } else {
        m
    }
}

/// One transformer block.
pub(crate) struct Layer {
    pub attention_norm: Tensor,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub attention_out: Linear,
    pub feed_forward_norm: Tensor,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

/// Everything the file holds.
pub(crate) struct Weights {
    /// Stays quantised: as 32-bit numbers it would take 0.9 GB in the 1.5B model.
    pub embedding: Arc<QTensor>,
    pub layers: Vec<Layer>,
    pub norm: Tensor,
    pub output: Linear,
}

impl Weights {
    pub(crate) fn read(gguf: &mut Gguf, config: &Config) -> std::result::Result<Self, LoadProblem> {
        let shape = [config.vocabulary, config.hidden];
        let embedding = Arc::new(gguf.tensor("token_embd.weight", &shape)?);
        let layers = (0..config.layers).map(|n| Layer::read(gguf, config, n)).collect::<std::result::Result<_, _>>()?;
        let norm = vector(gguf, "output_norm.weight", config.hidden)?;
        // Small models use the embedding table twice.
        let output = match gguf.has_tensor("output.weight") {
            true => matrix(gguf, "output", config.vocabulary, config.hidden)?,
            false => Linear { weight: QMatMul::from_arc(embedding.clone())?, bias: None },
        };
        Ok(Weights { embedding, layers, norm, output })
    }
}

impl Layer {
    fn read(gguf: &mut Gguf, config: &Config, n: usize) -> std::result::Result<Self, LoadProblem> {
        let (hidden, inner, kv) = (config.hidden, config.feed_forward, config.kv_width());
        let name = |part: &str| format!("blk.{n}.{part}");
        Ok(Layer {
            attention_norm: vector(gguf, &name("attn_norm.weight"), hidden)?,
            query: matrix(gguf, &name("attn_q"), hidden, hidden)?,
            key: matrix(gguf, &name("attn_k"), kv, hidden)?,
            value: matrix(gguf, &name("attn_v"), kv, hidden)?,
            attention_out: matrix(gguf, &name("attn_output"), hidden, hidden)?,
            feed_forward_norm: vector(gguf, &name("ffn_norm.weight"), hidden)?,
            gate: matrix(gguf, &name("ffn_gate"), inner, hidden)?,
            up: matrix(gguf, &name("ffn_up"), inner, hidden)?,
            down: matrix(gguf, &name("ffn_down"), hidden, inner)?,
        })
    }
}

fn vector(gguf: &mut Gguf, name: &str, len: usize) -> std::result::Result<Tensor, LoadProblem> {
    Ok(gguf.tensor(name, &[len])?.dequantize(&Device::Cpu)?)
}

fn matrix(gguf: &mut Gguf, name: &str, rows: usize, columns: usize) -> std::result::Result<Linear, LoadProblem> {
    let stored = gguf.tensor(&format!("{name}.weight"), &[rows, columns])?;
    let weight = QMatMul::from_qtensor(with_fast_kernel(name, stored, columns)?)?;
    let bias = format!("{name}.bias");
    let bias = if gguf.has_tensor(&bias) { Some(vector(gguf, &bias, rows)?) } else { None };
    Ok(Linear { weight, bias })
}

/// candle 0.11 multiplies some number types one value at a time; as `Q8_0` they are three to five times faster and
/// no less exact than the 4 and 5 bit types they come from.
fn with_fast_kernel(name: &str, stored: QTensor, columns: usize) -> std::result::Result<QTensor, LoadProblem> {
    use GgmlDType::{Q2K, Q3K, Q4_0, Q4K, Q5K, Q6K, Q8_0};
    if matches!(stored.dtype(), Q2K | Q3K | Q4_0 | Q4K | Q5K | Q6K | Q8_0) {
        return Ok(stored);
    }
    if !columns.is_multiple_of(Q8_0.block_size()) {
        return Err(malformed(format!("matrix `{name}` has {columns} columns, not a multiple of 32")));
    }
    Ok(QTensor::quantize(&stored.dequantize(&Device::Cpu)?, Q8_0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the whole design of lockstep rests on, for all types that are not converted when a file is read.
    #[test]
    fn a_row_comes_out_the_same_among_any_number_of_rows() {
        use GgmlDType::{Q2K, Q3K, Q4_0, Q4K, Q5K, Q6K, Q8_0};
        for dtype in [Q2K, Q3K, Q4_0, Q4K, Q5K, Q6K, Q8_0] {
            // Columns and rows that suit the fast kernels, and some that do not.
            for (columns, rows) in [(512, 64), (512, 72), (576, 64)].into_iter().filter(|(k, _)| k % dtype.block_size() == 0) {
                let stored = QTensor::quantize(&noise(rows, columns), dtype).unwrap();
                let matrix = Linear { weight: QMatMul::from_qtensor(stored).unwrap(), bias: None };
                let x = noise(80, columns);
                let all = bits(&matrix.forward(&x).unwrap());
                for m in [1, 2, 3, 4, 5, 8, 9, 16, 33] {
                    for at in [0, 1, 46] {
                        let some = bits(&matrix.forward(&x.narrow(0, at, m).unwrap()).unwrap());
                        assert!(some == all[at..at + m], "{dtype:?} {columns} x {rows}: {m} rows");
                    }
                }
            }
        }
    }

    fn bits(x: &Tensor) -> Vec<Vec<u32>> {
        let rows = x.to_vec2::<f32>().unwrap();
        rows.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
    }

    fn noise(rows: usize, columns: usize) -> Tensor {
        let mut state = rows as u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.
        };
        let values: Vec<f32> = (0..rows * columns).map(|_| next()).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }
}

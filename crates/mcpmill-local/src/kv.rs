//! The keys and values of one sequence, in memory that is reserved once and then only written.

use candle_core::{DType, Device, Result, Tensor};

use crate::config::Config;

/// One sequence: for every layer the keys and the values, each `(key heads, capacity, head size)`.
pub(crate) struct Kv {
    layers: Vec<(Tensor, Tensor)>,
    len: usize,
}

impl Kv {
    /// Zeroed pages, which the system commits only when they are written.
    pub(crate) fn new(config: &Config, capacity: usize) -> Result<Self> {
        let shape = (config.kv_heads, capacity, config.head_dim);
        let zeros = || Tensor::zeros(shape, DType::F32, &Device::Cpu);
        let layers = (0..config.layers).map(|_| Ok((zeros()?, zeros()?))).collect::<Result<_>>()?;
        Ok(Kv { layers, len: 0 })
    }

    /// Positions that hold a token.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Forgets every position from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Becomes a copy of another sequence of the same model and capacity.
    pub(crate) fn copy_from(&mut self, other: &Kv) -> Result<()> {
        self.len = 0;
        for ((keys, values), (from_keys, from_values)) in self.layers.iter().zip(&other.layers) {
            keys.slice_set(&from_keys.narrow(1, 0, other.len)?.contiguous()?, 1, 0)?;
            values.slice_set(&from_values.narrow(1, 0, other.len)?.contiguous()?, 1, 0)?;
        }
        self.len = other.len;
        Ok(())
    }

    /// Called once per step, after every layer has stored `n` new positions.
    pub(crate) fn advance(&mut self, n: usize) {
        self.len += n;
    }

    /// Writes keys and values `(key heads, n, head size)` behind the sequence and returns views on all of it.
    pub(crate) fn store(&self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        let (all_keys, all_values) = &self.layers[layer];
        let total = self.len + keys.dim(1)?;
        all_keys.slice_set(keys, 1, self.len)?;
        all_values.slice_set(values, 1, self.len)?;
        Ok((all_keys.narrow(1, 0, total)?, all_values.narrow(1, 0, total)?))
    }
}

//! Tool selection: does a model choose the right tool among many? And the metrics that say so.

pub mod select;

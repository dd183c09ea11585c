//! The embedded language model

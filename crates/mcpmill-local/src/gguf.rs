//! Reads a GGUF file as hostile input: every length is checked against what is left of the file before it is
//! believed, and nothing is kept that the engine does not use.
//!
//! candle has a reader of its own, but a zero `general.alignment` makes it panic and numeric arrays cost it 32
//! bytes per element; its quantised tensors are used, its reader is not.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QTensor, ggml_file::qtensor_from_ggml};

use crate::error::LoadProblem;

/// Most metadata entries or tensors a file may announce.
const MAX_ENTRIES: u64 = 1 << 16;
/// Longest string, in bytes; chat templates are the longest in practice.
const MAX_STRING: u64 = 1 << 20;
/// Most elements of an array that is kept (vocabulary, merges).
const MAX_ARRAY: u64 = 1 << 22;
const MAX_DIMS: u32 = 4;

/// A metadata value, widened to what the engine asks for.
#[derive(Debug)]
pub(crate) enum Value {
    Integer(i64),
    Float(f64),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    /// Of no use here: booleans, arrays outside the tokenizer.
    Other,
}

struct TensorInfo {
    /// Rows first, as candle counts.
    dims: Vec<usize>,
    dtype: GgmlDType,
    /// From the start of the data section.
    offset: u64,
}

/// An open model file whose header has been read.
pub(crate) struct Gguf {
    file: File,
    file_len: u64,
    data_start: u64,
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, TensorInfo>,
}

impl Gguf {
    pub(crate) fn open(path: &Path) -> Result<Self, LoadProblem> {
        let file = File::open(path)?;
        let file_len = file.metadata()?.len();
        let mut header = Header { file: BufReader::new(file), read: 0, file_len };
        header.magic()?;
        let tensor_count = header.count("tensors")?;
        let entry_count = header.count("metadata entries")?;
        let mut metadata = HashMap::new();
        for _ in 0..entry_count {
            let key = header.text()?;
            let kind = header.u32()?;
            let value = header.value(kind, key.starts_with("tokenizer.ggml."))?;
            metadata.insert(key, value);
        }
        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let name = header.text()?;
            let info = header.tensor_info(&name)?;
            tensors.insert(name, info);
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Value::Integer(n @ 1..=65536)) => *n as u64,
            Some(other) => return Err(malformed(format!("its alignment is {other:?}"))),
        };
        let data_start = header.read.next_multiple_of(alignment);
        Ok(Gguf { file: header.file.into_inner(), file_len, data_start, metadata, tensors })
    }

    pub(crate) fn integer(&self, key: &str) -> Result<i64, LoadProblem> {
        match self.metadata.get(key) {
            Some(Value::Integer(n)) => Ok(*n),
            other => Err(wrong_type(key, "a whole number", other)),
        }
    }

    /// A whole number between `min` and `max`.
    pub(crate) fn size(&self, key: &str, min: i64, max: i64) -> Result<usize, LoadProblem> {
        match self.integer(key)? {
            n if (min..=max).contains(&n) => Ok(n as usize),
            n => Err(malformed(format!("`{key}` is {n}, expected {min} to {max}"))),
        }
    }

    pub(crate) fn float(&self, key: &str) -> Result<f64, LoadProblem> {
        match self.metadata.get(key) {
            Some(Value::Float(x)) => Ok(*x),
            other => Err(wrong_type(key, "a decimal number", other)),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str, LoadProblem> {
        match self.metadata.get(key) {
            Some(Value::Text(text)) => Ok(text),
            other => Err(wrong_type(key, "a text", other)),
        }
    }

    pub(crate) fn texts(&self, key: &str) -> Result<&[String], LoadProblem> {
        match self.metadata.get(key) {
            Some(Value::Texts(texts)) => Ok(texts),
            other => Err(wrong_type(key, "a list of texts", other)),
        }
    }

    pub(crate) fn integers(&self, key: &str) -> Result<&[i64], LoadProblem> {
        match self.metadata.get(key) {
            Some(Value::Integers(numbers)) => Ok(numbers),
            other => Err(wrong_type(key, "a list of whole numbers", other)),
        }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Reads a tensor that must have exactly these dimensions.
    pub(crate) fn tensor(&mut self, name: &str, dims: &[usize]) -> Result<QTensor, LoadProblem> {
        let info = self.tensors.get(name).ok_or_else(|| malformed(format!("it has no tensor `{name}`")))?;
        if info.dims != dims {
            let found = &info.dims;
            return Err(malformed(format!("tensor `{name}` has the shape {found:?}, expected {dims:?}")));
        }
        let (block, bytes_per_block) = (info.dtype.block_size(), info.dtype.type_size());
        let elements = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let size = elements
            .filter(|_| dims.last().is_some_and(|last| last % block == 0))
            .and_then(|n| (n / block).checked_mul(bytes_per_block))
            .ok_or_else(|| malformed(format!("tensor `{name}` of shape {dims:?} does not fit its number type")))?;
        let start = self.data_start.checked_add(info.offset);
        let end = start.and_then(|start| start.checked_add(size as u64));
        let (Some(start), Some(_)) = (start, end.filter(|end| *end <= self.file_len)) else {
            return Err(LoadProblem::Truncated(format!("tensor `{name}`")));
        };
        self.file.seek(SeekFrom::Start(start))?;
        let mut bytes = vec![0; size];
        self.file.read_exact(&mut bytes)?;
        Ok(qtensor_from_ggml(info.dtype, &bytes, dims.to_vec(), &Device::Cpu)?)
    }
}

/// The header while it is read; counts what it consumes.
struct Header {
    file: BufReader<File>,
    read: u64,
    file_len: u64,
}

impl Header {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadProblem> {
        self.claim(N as u64)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes `n` bytes off the budget, or says that the file is too short.
    fn claim(&mut self, n: u64) -> Result<(), LoadProblem> {
        if n > self.file_len - self.read {
            return Err(LoadProblem::Truncated("its header".into()));
        }
        self.read += n;
        Ok(())
    }

    fn skip(&mut self, n: u64) -> Result<(), LoadProblem> {
        self.claim(n)?;
        let n = i64::try_from(n).map_err(|_| malformed("an array is too long".into()))?;
        Ok(self.file.seek_relative(n)?)
    }

    fn u32(&mut self) -> Result<u32, LoadProblem> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, LoadProblem> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn magic(&mut self) -> Result<(), LoadProblem> {
        let (magic, version) = (self.array::<4>()?, self.u32()?);
        if &magic == b"GGUF" && matches!(version, 2 | 3) { Ok(()) } else { Err(LoadProblem::NotGguf) }
    }

    fn count(&mut self, what: &str) -> Result<u64, LoadProblem> {
        match self.u64()? {
            n if n <= MAX_ENTRIES => Ok(n),
            n => Err(malformed(format!("it announces {n} {what}"))),
        }
    }

    fn text(&mut self) -> Result<String, LoadProblem> {
        let len = self.u64()?;
        if len > MAX_STRING {
            return Err(malformed(format!("a text of {len} bytes exceeds {MAX_STRING}")));
        }
        self.claim(len)?;
        let mut bytes = vec![0; len as usize];
        self.file.read_exact(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn value(&mut self, kind: u32, keep_arrays: bool) -> Result<Value, LoadProblem> {
        Ok(match kind {
            8 => Value::Text(self.text()?),
            9 => self.list(keep_arrays)?,
            _ => self.scalar(kind)?,
        })
    }

    fn scalar(&mut self, kind: u32) -> Result<Value, LoadProblem> {
        Ok(match kind {
            0 => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Integer(self.u32()?.into()),
            5 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => self.array::<1>().map(|_| Value::Other)?,
            // A count beyond i64 fails every later range check.
            10 => Value::Integer(i64::try_from(self.u64()?).unwrap_or(i64::MAX)),
            11 => Value::Integer(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(malformed(format!("metadata of the unknown type {kind}"))),
        })
    }

    fn list(&mut self, keep: bool) -> Result<Value, LoadProblem> {
        let (kind, len) = (self.u32()?, self.u64()?);
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 => 8,
            10..=12 => 8,
            _ => return Err(malformed(format!("a list of the type {kind}"))),
        };
        // Each text takes at least its length prefix, so this bounds the loop below as well.
        let least = len.checked_mul(width).filter(|n| *n <= self.file_len - self.read);
        let Some(least) = least else {
            return Err(LoadProblem::Truncated("its header".into()));
        };
        match kind {
            8 if keep && len <= MAX_ARRAY => Ok(Value::Texts((0..len).map(|_| self.text()).collect::<Result<_, _>>()?)),
            0..=5 | 10 | 11 if keep && len <= MAX_ARRAY => {
                let number = |value| if let Value::Integer(n) = value { n } else { 0 };
                Ok(Value::Integers((0..len).map(|_| self.scalar(kind).map(number)).collect::<Result<_, _>>()?))
            }
            8 => {
                for _ in 0..len {
                    let bytes = self.u64()?;
                    self.skip(bytes)?;
                }
                Ok(Value::Other)
            }
            _ => self.skip(least).map(|()| Value::Other),
        }
    }

    fn tensor_info(&mut self, name: &str) -> Result<TensorInfo, LoadProblem> {
        let rank = self.u32()?;
        if rank > MAX_DIMS {
            return Err(malformed(format!("tensor `{name}` has {rank} dimensions")));
        }
        let dims: Result<Vec<usize>, LoadProblem> = (0..rank)
            .map(|_| {
                let dim = self.u64()?;
                usize::try_from(dim).map_err(|_| malformed(format!("tensor `{name}` has a dimension of {dim}")))
            })
            .collect();
        let mut dims = dims?;
        dims.reverse();
        let dtype = number_type(self.u32()?)?;
        Ok(TensorInfo { dims, dtype, offset: self.u64()? })
    }
}

/// The number types candle can read.
fn number_type(code: u32) -> Result<GgmlDType, LoadProblem> {
    Ok(match code {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        30 => GgmlDType::BF16,
        _ => return Err(LoadProblem::Unsupported(format!("the number type {code}"))),
    })
}

pub(crate) fn malformed(what: String) -> LoadProblem {
    LoadProblem::Malformed(what)
}

fn wrong_type(key: &str, expected: &str, found: Option<&Value>) -> LoadProblem {
    match found {
        None => malformed(format!("`{key}` is missing")),
        Some(_) => malformed(format!("`{key}` is not {expected}")),
    }
}

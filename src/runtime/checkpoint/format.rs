//! The file: a safetensors header with our metadata, and the tensors' bytes behind it.
//!
//! `stepgraph.checksum` is the BLAKE3 hash of the whole file in which the checksum's own 64 digits are zeros.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::content::{Content, Saved};
use super::error::CheckpointError;
use super::resume::CheckpointFile;
use crate::ir::DType;

/// The format that is written, and the newest one that is read.
const FORMAT: u64 = 1;
/// The longest header that safetensors allows, in bytes.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes in front of the header: its length.
const PREFIX: usize = 8;
/// Digits of a checksum.
const DIGITS: usize = 64;
/// The safetensors format keeps this name for its metadata.
const RESERVED: &str = "__metadata__";
/// What stands before the checksum's digits. Quotes inside of JSON strings are escaped, so only the key itself reads like this.
const BEFORE_CHECKSUM: &str = "\"stepgraph.checksum\":\"";
/// Keys of the user's metadata start with it.
const USER: &str = "user.";

/// What a checkpoint says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// The program's name.
    pub program: String,
    /// Launches that led to this state, over all sessions that were resumed on the way.
    pub launches: u64,
    /// The session's seed of random initial values.
    pub seed: u64,
    /// The user's own metadata.
    pub metadata: BTreeMap<String, String>,
}

impl CheckpointInfo {
    /// Reads a checkpoint and checks it, whatever its program is.
    ///
    /// # Errors
    /// A file that is none, is damaged, or has a newer format.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        CheckpointFile::read(path.as_ref()).map(CheckpointFile::into_info)
    }
}

/// The beginning of a file, with zeros where its checksum goes.
#[derive(Debug)]
pub(super) struct Header {
    /// The header's length and the header.
    pub(super) bytes: Vec<u8>,
    /// Where the checksum's digits stand.
    pub(super) checksum: Range<usize>,
}

impl Header {
    pub(super) fn new(content: &Content, info: &CheckpointInfo, hash: &str) -> Result<Self, CheckpointError> {
        let unwritable = |reason: String| CheckpointError::Unwritable { reason };
        if content.all().any(|tensor| tensor.name == RESERVED) {
            return Err(unwritable(format!(
                "safetensors files keep the name `{RESERVED}`: rename the buffer or scalar"
            )));
        }
        let left_out: Vec<_> = content.left_out.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut metadata: HashMap<String, String> = [
            ("format", FORMAT.to_string()),
            ("program", info.program.clone()),
            ("hash", hash.to_owned()),
            ("left_out", left_out.join(" ")),
            ("seed", info.seed.to_string()),
            ("launches", info.launches.to_string()),
            ("checksum", "0".repeat(DIGITS)),
        ]
        .map(|(key, value)| (format!("stepgraph.{key}"), value))
        .into();
        metadata.extend(info.metadata.iter().map(|(key, value)| (format!("{USER}{key}"), value.clone())));
        let metadata =
            Metadata::new(Some(metadata), tensors(&content.saved)).map_err(|error| unwritable(error.to_string()))?;
        let mut json = serde_json::to_value(&metadata).map_err(|error| unwritable(error.to_string()))?;
        if let Some(metadata) = json.get_mut(RESERVED).and_then(serde_json::Value::as_object_mut) {
            metadata.sort_keys();
        }
        let mut text = json.to_string().into_bytes();
        text.resize(text.len().next_multiple_of(PREFIX), b' ');
        if text.len() as u64 > MAX_HEADER {
            return Err(unwritable(format!("its header has {} bytes of at most {MAX_HEADER}", text.len())));
        }
        let checksum = find_checksum(&text).ok_or_else(|| unwritable("its header has no checksum".to_owned()))?;
        let bytes = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
        Ok(Self { bytes, checksum: checksum.start + PREFIX..checksum.end + PREFIX })
    }
}

fn tensors(content: &[Saved]) -> Vec<(String, TensorInfo)> {
    let mut end = 0;
    let info = |tensor: &Saved| {
        let start = end;
        end += tensor.at.bytes as usize;
        let shape = tensor.shape.dims().iter().map(|&dim| dim as usize).collect();
        (tensor.name.clone(), TensorInfo { dtype: dtype(tensor.dtype), shape, data_offsets: (start, end) })
    };
    content.iter().map(info).collect()
}

pub(super) const fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
    }
}

/// Where the checksum's digits stand in a header's text.
fn find_checksum(text: &[u8]) -> Option<Range<usize>> {
    let pattern = BEFORE_CHECKSUM.as_bytes();
    let start = text.windows(pattern.len()).position(|part| part == pattern)? + pattern.len();
    text.get(start..start + DIGITS).map(|_| start..start + DIGITS)
}

/// What a file's bytes say, all of it checked but the program.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) metadata: Metadata,
    pub(super) info: CheckpointInfo,
    /// The program's hash.
    pub(super) hash: String,
    /// State that the file does not hold, because another lane wrote it.
    pub(super) left_out: Vec<String>,
    /// Where the tensors' bytes start.
    pub(super) payload: usize,
}

/// Reads a file's bytes.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed, CheckpointError> {
    let found = bytes.len() as u64;
    let truncated = |expected: u64| CheckpointError::Truncated { path: path.to_owned(), expected, found };
    let not_safetensors = |reason: String| CheckpointError::NotSafetensors { path: path.to_owned(), reason };
    let Some((length, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        let nothing = CheckpointError::Empty { path: path.to_owned() };
        return Err(if bytes.is_empty() { nothing } else { truncated(PREFIX as u64) });
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(not_safetensors(format!("its first 8 bytes ask for a header of {length} bytes")));
    }
    let header_end = PREFIX as u64 + length;
    let Some(text) = rest.get(..length as usize) else { return Err(truncated(header_end)) };
    let metadata: Metadata = serde_json::from_slice(text).map_err(|error| not_safetensors(error.to_string()))?;
    let expected = header_end.saturating_add(metadata.data_len() as u64);
    if found < expected {
        return Err(truncated(expected));
    }
    let facts = Facts { path, known: metadata.metadata().clone().unwrap_or_default() };
    let format = facts.format()?;
    if format > FORMAT {
        return Err(CheckpointError::NewerFormat { path: path.to_owned(), found: format, known: FORMAT });
    }
    check_sum(path, bytes, text)?;
    if found > expected {
        return Err(facts.damaged(format!("it has {} bytes too many", found - expected)));
    }
    let user = facts.known.iter().filter_map(|(key, value)| Some((key.strip_prefix(USER)?.to_owned(), value.clone())));
    let info = CheckpointInfo {
        program: facts.get("program")?.to_owned(),
        launches: facts.number("launches")?,
        seed: facts.number("seed")?,
        metadata: user.collect(),
    };
    let hash = facts.get("hash")?.to_owned();
    let left_out = facts.get("left_out")?.split_whitespace().map(str::to_owned).collect();
    Ok(Parsed { metadata, info, hash, left_out, payload: header_end as usize })
}

fn check_sum(path: &Path, bytes: &[u8], text: &[u8]) -> Result<(), CheckpointError> {
    let damaged = |reason: &str| CheckpointError::Damaged { path: path.to_owned(), reason: reason.to_owned() };
    let digits = find_checksum(text).ok_or_else(|| damaged("it has no checksum"))?;
    let (start, end) = (digits.start + PREFIX, digits.end + PREFIX);
    let mut hash = blake3::Hasher::new();
    hash.update(&bytes[..start]).update(&[b'0'; DIGITS]).update(&bytes[end..]);
    if hash.finalize().to_hex().as_bytes() != &bytes[start..end] {
        return Err(damaged("its contents do not have the checksum that it states"));
    }
    Ok(())
}

/// The metadata of one file.
struct Facts<'a> {
    path: &'a Path,
    known: HashMap<String, String>,
}

impl Facts<'_> {
    fn damaged(&self, reason: String) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.to_owned(), reason }
    }

    fn format(&self) -> Result<u64, CheckpointError> {
        let Some(text) = self.known.get("stepgraph.format") else {
            return Err(CheckpointError::NotACheckpoint { path: self.path.to_owned() });
        };
        text.parse().map_err(|_| self.damaged(format!("its format is `{text}`, not a number")))
    }

    fn get(&self, key: &str) -> Result<&str, CheckpointError> {
        let key = format!("stepgraph.{key}");
        self.known.get(&key).map(String::as_str).ok_or_else(|| self.damaged(format!("it has no `{key}`")))
    }

    fn number(&self, key: &str) -> Result<u64, CheckpointError> {
        let text = self.get(key)?;
        text.parse().map_err(|_| self.damaged(format!("its `stepgraph.{key}` is `{text}`, not a number")))
    }
}

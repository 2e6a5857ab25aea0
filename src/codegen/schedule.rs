//! Launches of generated kernels, and the order in which reductions combine.

use crate::ir::{LaunchConfig, Reduce, Shape};

/// Threads of a generated kernel's block.
const BLOCK: u32 = 256;

/// The launch of a map over an index space: one thread per element.
pub fn map_launch(space: &Shape) -> LaunchConfig {
    let blocks = space.elements().div_ceil(u64::from(BLOCK)).max(1);
    LaunchConfig::linear(u32::try_from(blocks).unwrap_or(u32::MAX), BLOCK)
}

/// In which order a reduction combines values, and how it is launched.
///
/// The `count` values of one result are cut into chunks of `chunk` values. Inside a chunk, lane `l` of `lanes` combines the values
/// `l`, `l + lanes`, `l + 2·lanes`, … in this order; then lanes are combined pairwise, lane `l` with lane `l + lanes/2`, then
/// `lanes/4`, … down to lane 0. The chunks' results are combined in the same way, chunk `c` being value `c`. So the result
/// depends on `count` alone: not on the device, nor on how launches are grouped; host and device agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceSchedule {
    /// Values of one chunk; `count` where there is one chunk.
    pub chunk: u64,
    /// Chunks of one result.
    pub chunks: u64,
    /// Lanes inside a chunk: a power of two.
    pub lanes: u32,
    /// Lanes when chunks are combined: a power of two; 1 where there is one chunk.
    pub chunk_lanes: u32,
    /// The launch that reduces chunks; with one chunk it also finishes.
    pub first: LaunchConfig,
    /// The launch that combines chunks and finishes, where there is more than one.
    pub second: Option<LaunchConfig>,
    /// Bytes of scratch for the chunks' results.
    pub scratch: u64,
}

/// The schedule of a reduction.
pub fn reduce_schedule(reduce: &Reduce) -> ReduceSchedule {
    let _ = reduce;
    ReduceSchedule {
        chunk: 1,
        chunks: 1,
        lanes: 1,
        chunk_lanes: 1,
        first: LaunchConfig::linear(1, 1),
        second: None,
        scratch: 0,
    }
}

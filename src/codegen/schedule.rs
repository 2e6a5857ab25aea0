//! Launches of generated kernels, and the order in which reductions combine.

use crate::ir::{Combiner, LaunchConfig, NodeOp, Reduce, Shape};

/// Threads of a generated kernel's block, where nothing else decides.
pub(super) const BLOCK: u32 = 256;
/// Threads of a block that reduces columns: more than elsewhere, because each column has few lanes.
const COLUMN_BLOCK: u32 = 512;
/// Columns that one block reduces: a warp's width, so that loads coalesce.
const COLUMN_WIDTH: u64 = 32;
/// Below so many blocks, a reduction with long lanes is cut into chunks: it would leave multiprocessors idle.
const BUSY_BLOCKS: u64 = 256;
/// The most blocks that chunking makes: about one wave of a large device.
const WAVE_BLOCKS: u64 = 1024;
/// A lane that combines more values than this is long.
const LONG_LANE: u64 = 64;
/// A lane of a chunk combines at least so many values, so that the second launch pays.
const SHORT_LANE: u64 = 16;

/// The launch of a map over an index space: one thread per element.
pub fn map_launch(space: &Shape) -> LaunchConfig {
    LaunchConfig::linear(blocks(space.elements(), u64::from(BLOCK)), BLOCK)
}

/// In which order a reduction combines values, and how it is launched.
///
/// # The order
/// Results are numbered row-major over the kept axes. The values of one result are numbered row-major over the reduced axes,
/// `0 .. count`, and are cut into chunks of [`chunk`](Self::chunk) values (the last one may be shorter). In a chunk of `n`
/// values with `lanes` lanes:
///
/// 1. lane `l` starts with value `l` and combines `l + lanes`, `l + 2·lanes`, … into it, in this order; a lane without a
///    value (`l ≥ n`) is absent;
/// 2. for `s` = `lanes/2`, `lanes/4`, … 1: each lane `l < s` becomes `combine(l, l + s)`, unless lane `l + s` is absent
///    (`l + s ≥ n`);
/// 3. lane 0 is the chunk's result.
///
/// With more than one chunk the same happens again with [`chunk_lanes`](Self::chunk_lanes) lanes, chunk `c`'s result being
/// value `c`, all in one chunk. So the result depends on the declaration alone: not on the device, nor on how launches are
/// grouped, and host and device agree.
///
/// # The combiners
/// `combine(a, b)` takes the state of the lower-numbered values first.
///
/// | combiner | state of a value | `combine(a, b)` | result |
/// | --- | --- | --- | --- |
/// | sum | x | a + b (integers wrap) | a |
/// | max | x | [`BinaryOp::Max`](crate::ir::BinaryOp::Max) of a and b | a |
/// | argmax | (x, i), i being the value's number | b if `b.x > a.x`, or `b.x = a.x` and `b.i < a.i`, or a.x is NaN and either b.x is not or `b.i < a.i`; else a | i |
/// | log-sum-exp | (m, s) = (x, 1) | if `a.m = b.m`: (a.m, a.s + b.s); if `a.m > b.m`: (a.m, a.s + b.s·e^(b.m - a.m)); else (b.m, b.s + a.s·e^(a.m - b.m)) | m + ln s |
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
    let (results, count) = (reduce.kept().elements().max(1), reduce.count().max(1));
    let layout = ReduceLayout::of(reduce);
    let (lanes, results_per_block) = layout.lanes(results, count);
    let groups = results.div_ceil(results_per_block);
    let (chunk, chunks) = chunking(count, u64::from(lanes), groups);
    let first = layout.launch(lanes, results_per_block, groups, chunks);
    if chunks == 1 {
        return ReduceSchedule { chunk, chunks, lanes, chunk_lanes: 1, first, second: None, scratch: 0 };
    }
    let (chunk_lanes, results_per_block) = layout.lanes(results, chunks);
    let second = layout.launch(chunk_lanes, results_per_block, results.div_ceil(results_per_block), 1);
    let scratch = results * chunks * state_bytes(reduce.combiner);
    ReduceSchedule { chunk, chunks, lanes, chunk_lanes, first, second: Some(second), scratch }
}

/// Bytes of workspace that a node's generated kernels need: a chunked reduction's scratch, and a loop's counter and bound.
///
/// A loop's workspace is in use from its entry to the end of its last iteration.
pub fn workspace_bytes(op: &NodeOp) -> u64 {
    match op {
        NodeOp::Reduce(reduce) => reduce_schedule(reduce).scratch,
        NodeOp::While { .. } => 8,
        _ => 0,
    }
}

/// How threads are laid over a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReduceLayout {
    /// Neighbouring values of one result lie side by side: lanes run along x, results along y.
    Rows,
    /// Neighbouring results lie side by side: results run along x, lanes along y.
    Columns,
}

impl ReduceLayout {
    pub(super) fn of(reduce: &Reduce) -> Self {
        let innermost = reduce.space.dims().iter().rposition(|&extent| extent > 1);
        let kept = innermost.is_some_and(|axis| !reduce.axes.iter().any(|&reduced| usize::from(reduced) == axis));
        if kept { Self::Columns } else { Self::Rows }
    }

    /// Lanes per result, and results per block.
    fn lanes(self, results: u64, count: u64) -> (u32, u64) {
        let most = floor_power_of_two(count);
        match self {
            Self::Rows => {
                let few = count <= 256 || (count <= 1024 && results >= 1024);
                let lanes = most.min(if few { 32 } else { u64::from(BLOCK) });
                // Whole warps, because lanes are folded by shuffles.
                let wanted = results.next_power_of_two().max(32u64.div_ceil(lanes));
                (to_u32(lanes), (u64::from(BLOCK) / lanes).min(wanted))
            }
            Self::Columns => {
                let width = results.next_power_of_two().min(COLUMN_WIDTH);
                (to_u32(most.min(u64::from(COLUMN_BLOCK) / width)), width)
            }
        }
    }

    fn launch(self, lanes: u32, results_per_block: u64, groups: u64, chunks: u64) -> LaunchConfig {
        let block = match self {
            Self::Rows => [lanes, to_u32(results_per_block), 1],
            Self::Columns => [to_u32(results_per_block), lanes, 1],
        };
        LaunchConfig { grid: [to_u32(groups), to_u32(chunks), 1], block, shared: 0 }
    }
}

/// Bytes of one chunk's state.
fn state_bytes(combiner: Combiner) -> u64 {
    match combiner {
        Combiner::Sum | Combiner::Max => 4,
        Combiner::Argmax | Combiner::LogSumExp => 8,
    }
}

/// Values per chunk, and chunks: one, unless lanes are long and blocks are few.
fn chunking(count: u64, lanes: u64, groups: u64) -> (u64, u64) {
    let per_lane = count.div_ceil(lanes);
    if per_lane <= LONG_LANE || groups >= BUSY_BLOCKS {
        return (count, 1);
    }
    let wanted = (WAVE_BLOCKS / groups).min(per_lane / SHORT_LANE);
    let chunk = count.div_ceil(wanted).next_multiple_of(lanes);
    (chunk, count.div_ceil(chunk))
}

fn blocks(elements: u64, per_block: u64) -> u32 {
    to_u32(elements.div_ceil(per_block).max(1))
}

fn floor_power_of_two(x: u64) -> u64 {
    1 << x.max(1).ilog2()
}

/// Validated programs have at most 2³¹ elements, so that nothing is lost here.
fn to_u32(x: u64) -> u32 {
    u32::try_from(x).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Expr;

    fn schedule(dims: &[u32], axes: &[u8], combiner: Combiner) -> ReduceSchedule {
        reduce_schedule(&Reduce {
            space: Shape::new(dims).expect("few axes"),
            axes: axes.to_vec(),
            combiner,
            expr: Expr::default(),
            finish: Expr::default(),
            stores: Vec::new(),
        })
    }

    /// Protects: every value belongs to exactly one chunk, every result to one block, and no launch breaks a device limit.
    #[test]
    fn launches_cover_every_value_and_keep_device_limits() {
        let extents = [1u32, 2, 3, 7, 31, 32, 33, 256, 257, 1000, 4096, 100_003];
        for (rows, columns) in extents.into_iter().flat_map(|rows| extents.map(|columns| (rows, columns))) {
            for (axes, kept, count) in [(&[0u8][..], columns, rows), (&[1], rows, columns), (&[0, 1], 1, 0)] {
                let count = if count == 0 { u64::from(rows) * u64::from(columns) } else { u64::from(count) };
                let found = schedule(&[rows, columns], axes, Combiner::Sum);
                let context = format!("{rows}×{columns} over {axes:?}: {found:?}");
                assert!(found.chunks * found.chunk >= count && (found.chunks - 1) * found.chunk < count, "{context}");
                assert!(found.lanes.is_power_of_two() && found.chunk_lanes.is_power_of_two(), "{context}");
                assert!(u64::from(found.lanes) <= found.chunk, "{context}");
                assert_eq!(found.second.is_some(), found.chunks > 1, "{context}");
                assert_eq!(found.scratch, if found.chunks > 1 { 4 * found.chunks * u64::from(kept) } else { 0 });
                for (launch, lanes) in [(Some(found.first), found.lanes), (found.second, found.chunk_lanes)] {
                    let Some(launch) = launch else { continue };
                    let threads: u32 = launch.block.iter().product();
                    assert!(threads <= 1024 && launch.grid[1] <= 65_535, "{context}");
                    let covered = u64::from(launch.grid[0]) * u64::from(threads / lanes);
                    assert!(covered >= u64::from(kept), "{context}");
                }
            }
        }
    }

    /// Protects: a sum of 10⁸ values fills the device and needs little scratch; a bias gradient reads whole rows.
    #[test]
    fn long_and_column_reductions_use_the_device() {
        let sum = schedule(&[100_000_000], &[0], Combiner::LogSumExp);
        assert_eq!((sum.chunks, sum.lanes, sum.first.grid), (1023, 256, [1, 1023, 1]));
        assert_eq!(sum.scratch, 8184);
        let bias = schedule(&[256, 512], &[0], Combiner::Sum);
        assert_eq!((bias.chunks, bias.first.grid, bias.first.block), (1, [16, 1, 1], [32, 16, 1]));
        let softmax = schedule(&[64, 10], &[1], Combiner::LogSumExp);
        assert_eq!((softmax.first.grid, softmax.first.block), ([2, 1, 1], [8, 32, 1]));
    }
}

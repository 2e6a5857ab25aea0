//! Launch configurations: what a kernel's rule gives for a call, and whether a device can run it.

use rustc_hash::FxHashMap;

use super::error::{PlanError, PlanNode};
use super::options::Target;
use crate::ir::{Arg, Dim, KernelCall, KernelDecl, LaunchConfig, LaunchRule, NodeOp, Program, Shape};

/// The extent of each symbol of a kernel's declaration, as the arguments of a call bind it. A group is one flat axis.
pub(super) fn symbols<'a>(program: &'a Program, call: &KernelCall) -> FxHashMap<&'a str, u32> {
    let decl = &program.kernels[call.kernel];
    let mut bound = FxHashMap::default();
    for (param, shape) in arguments(program, decl, call) {
        for (dim, &extent) in decl.params[param].shape.iter().flatten().zip(shape.dims()) {
            if let Dim::Symbol(symbol) = dim {
                bound.entry(symbol.as_str()).or_insert(extent);
            }
        }
    }
    bound
}

/// The launch of a kernel call.
///
/// # Errors
/// [`PlanError::LaunchRule`], and [`PlanError::LaunchLimit`] for numbers beyond 32 bits.
pub(super) fn kernel_launch(program: &Program, node: &PlanNode, call: &KernelCall) -> Result<LaunchConfig, PlanError> {
    let decl = &program.kernels[call.kernel];
    let missing =
        |name: &str| PlanError::LaunchRule { node: node.clone(), kernel: decl.name.clone(), name: name.into() };
    let shape_of = |name: &str| {
        let wanted = |(param, _): &(usize, Shape)| decl.params[*param].name == name;
        arguments(program, decl, call).find(wanted).map(|(_, shape)| shape).ok_or_else(|| missing(name))
    };
    let narrow = |what, found: u64| {
        let remedy = "let each block do more";
        let limit = u64::from(GRID_LIMITS[0]);
        u32::try_from(found).map_err(|_| PlanError::LaunchLimit { node: node.clone(), what, found, limit, remedy })
    };
    let (grid, block) = match &decl.launch {
        LaunchRule::Elements { of, block, per_thread } => {
            let per_block = (u64::from(*block) * u64::from(*per_thread)).max(1);
            let blocks = shape_of(of)?.elements().div_ceil(per_block);
            ([narrow("grid x", blocks)?, 1, 1], [*block, 1, 1])
        }
        LaunchRule::Rows { of, block } => {
            let shape = shape_of(of)?;
            let row = shape.dims().last().map_or(1, |&extent| u64::from(extent.max(1)));
            ([narrow("grid x", shape.elements() / row)?, 1, 1], [*block, 1, 1])
        }
        LaunchRule::Tiles { of, tile: [rows, columns], block } => {
            let shape = shape_of(of)?;
            let dims = shape.dims();
            let outer: u64 = dims[..dims.len().saturating_sub(2)].iter().map(|&extent| u64::from(extent)).product();
            let extent = |from_last: usize| dims.len().checked_sub(from_last).map_or(1, |axis| dims[axis]);
            let grid =
                [extent(1).div_ceil((*columns).max(1)), extent(2).div_ceil((*rows).max(1)), narrow("grid z", outer)?];
            (grid, [*block, 1, 1])
        }
        LaunchRule::Fixed { grid, block } => (*grid, *block),
    };
    let per_unit = match &decl.shared.per_unit {
        Some((bytes, symbol)) => {
            let extent = *symbols(program, call).get(symbol.as_str()).ok_or_else(|| missing(symbol))?;
            u64::from(*bytes) * u64::from(extent)
        }
        None => 0,
    };
    let shared = u64::from(decl.shared.base) + per_unit;
    let limit = u64::from(u32::MAX);
    let too_much = |_| PlanError::SharedMemory { node: node.clone(), found: shared, limit };
    Ok(LaunchConfig { grid, block, shared: u32::try_from(shared).map_err(too_much)? })
}

/// The buffer arguments of a call, with the number of their parameter.
fn arguments<'a>(
    program: &'a Program,
    decl: &'a KernelDecl,
    call: &'a KernelCall,
) -> impl Iterator<Item = (usize, Shape)> + 'a {
    let taken = decl.params.iter().enumerate().filter(|(_, param)| param.class.needs_argument());
    taken.zip(&call.args).filter_map(|((number, param), arg)| match *arg {
        Arg::View(view) => Some((number, view.shape())),
        Arg::Group(group) => {
            let elements = program.group_layout(group).1 / param.dtype.size();
            Some((number, Shape::new(&[u32::try_from(elements).unwrap_or(u32::MAX)])?))
        }
        Arg::Scalar(_) | Arg::Const(_) => None,
    })
}

const GRID_LIMITS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_LIMITS: [u32; 3] = [1024, 1024, 64];
const THREADS_LIMIT: u64 = 1024;
const CLUSTER_LIMIT: u64 = 8;
/// Threads, and blocks, that one multiprocessor holds at once.
const RESIDENT_THREADS: u64 = 2048;
const RESIDENT_BLOCKS: u64 = 32;
/// Shared memory that the system takes for each block.
const SYSTEM_SHARED: u64 = 1024;

/// Whether the target can run a launch at all.
///
/// # Errors
/// The limit that the launch exceeds.
pub(super) fn check_limits(node: &PlanNode, config: &LaunchConfig, target: &Target) -> Result<(), PlanError> {
    let axes = |extents: [u32; 3], limits: [u32; 3], names: [&'static str; 3], what, remedy| {
        if extents.contains(&0) {
            return Err(PlanError::EmptyLaunch { node: node.clone(), what });
        }
        let over = (0..3).find(|&axis| extents[axis] > limits[axis]);
        over.map_or(Ok(()), |axis| {
            let (found, limit) = (u64::from(extents[axis]), u64::from(limits[axis]));
            Err(PlanError::LaunchLimit { node: node.clone(), what: names[axis], found, limit, remedy })
        })
    };
    axes(config.grid, GRID_LIMITS, ["grid x", "grid y", "grid z"], "grid", "let each block do more")?;
    axes(config.block, BLOCK_LIMITS, ["block x", "block y", "block z"], "block", "take smaller blocks")?;
    let found = product(config.block);
    if found > THREADS_LIMIT {
        let (what, remedy) = ("the number of threads of a block", "take smaller blocks");
        return Err(PlanError::LaunchLimit { node: node.clone(), what, found, limit: THREADS_LIMIT, remedy });
    }
    if config.shared > target.shared_per_block {
        let (found, limit) = (u64::from(config.shared), u64::from(target.shared_per_block));
        return Err(PlanError::SharedMemory { node: node.clone(), found, limit });
    }
    Ok(())
}

/// Whether the target can run a hand-written kernel: its launch, its cluster, its cooperative grid.
///
/// # Errors
/// The limit that it exceeds.
pub(super) fn check_kernel(
    node: &PlanNode,
    decl: &KernelDecl,
    config: &LaunchConfig,
    target: &Target,
) -> Result<(), PlanError> {
    check_limits(node, config, target)?;
    if let Some(cluster) = decl.cluster {
        let text = cluster.map(|extent| extent.to_string()).join("×");
        cluster_fault(cluster, config.grid, target)
            .map_or(Ok(()), |reason| Err(PlanError::Cluster { node: node.clone(), cluster: text, reason }))?;
    }
    let per_multiprocessor = RESIDENT_BLOCKS
        .min(RESIDENT_THREADS / product(config.block))
        .min((u64::from(target.shared_per_block) + SYSTEM_SHARED) / (u64::from(config.shared) + SYSTEM_SHARED));
    let (found, limit) = (product(config.grid), per_multiprocessor * u64::from(target.multiprocessors));
    if decl.cooperative && found > limit {
        let multiprocessors = target.multiprocessors;
        return Err(PlanError::CooperativeGrid { node: node.clone(), found, limit, multiprocessors });
    }
    Ok(())
}

fn cluster_fault(cluster: [u32; 3], grid: [u32; 3], target: &Target) -> Option<String> {
    if target.sm < 90 {
        return Some(format!("needs sm_90 or later, the target is sm_{}: drop the cluster", target.sm));
    }
    if cluster.contains(&0) || product(cluster) > CLUSTER_LIMIT {
        return Some(format!("has {} blocks: between 1 and {CLUSTER_LIMIT} are portable", product(cluster)));
    }
    let axis = (0..3).find(|&axis| !grid[axis].is_multiple_of(cluster[axis]))?;
    let name = ["x", "y", "z"][axis];
    Some(format!("does not divide the grid: its {} along {name} into {}; round the grid up", cluster[axis], grid[axis]))
}

/// Whether the target's driver knows a conditional node.
///
/// # Errors
/// [`PlanError::DriverTooOld`].
pub(super) fn check_driver(node: &PlanNode, op: &NodeOp, target: &Target) -> Result<(), PlanError> {
    let (what, needed) = match op {
        NodeOp::If { else_body, .. } if else_body.is_empty() => ("a conditional node", 12_040),
        NodeOp::If { .. } => ("a conditional node with `else`", 12_080),
        NodeOp::While { .. } => ("a loop node", 12_040),
        NodeOp::Switch { .. } => ("a switch node", 12_080),
        _ => return Ok(()),
    };
    if target.driver >= needed {
        return Ok(());
    }
    Err(PlanError::DriverTooOld { node: node.clone(), what, found: target.driver, needed })
}

fn product(extents: [u32; 3]) -> u64 {
    extents.iter().fold(1u64, |product, &extent| product.saturating_mul(u64::from(extent)))
}

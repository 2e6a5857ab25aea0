//! Taking over the nodes of a captured library call into a graph that is built node by node.

use std::collections::HashMap;

use cudarc::driver::sys::{self, CUgraphNodeType};

use super::error::CudaError;
use super::graph::{Graph, GraphBody, Node, RawEdge, kernel_name_of, kernel_params_of, type_of};

/// A captured graph whose nodes were copied. The copies need it: it stays alive as long as they do.
#[derive(Debug)]
pub(crate) struct Harvest {
    /// The copies that depend on no other copy.
    pub(crate) first: Vec<Node>,
    /// The copies that no other copy depends on.
    pub(crate) last: Vec<Node>,
    /// Every copy, with what it runs.
    pub(crate) nodes: Vec<(Node, String)>,
    /// Edges between copies.
    pub(crate) edges: usize,
    /// The captured graph.
    _source: Graph,
}

impl Harvest {
    /// Copies every node of `source` into `into`, with its edges and launch attributes.
    pub(crate) fn new(source: Graph, into: &mut GraphBody<'_>) -> Result<Self, CudaError> {
        let (originals, edges) = source.contents()?;
        let mut copies = HashMap::with_capacity(originals.len());
        let mut nodes = Vec::with_capacity(originals.len());
        for &original in &originals {
            let (copy, what) = copy_node(original, into)?;
            copies.insert(original, copy);
            nodes.push((copy, what));
        }
        let mapped: Vec<_> =
            edges.iter().filter_map(|&(from, to, data)| Some((*copies.get(&from)?, *copies.get(&to)?, data))).collect();
        into.add_raw_edges(&mapped)?;
        let free = |of: fn(&RawEdge) -> Node| {
            let mut left: Vec<_> = nodes.iter().map(|&(node, _)| node).collect();
            left.retain(|&node| mapped.iter().all(|edge| of(edge) != node));
            left
        };
        Ok(Self { first: free(|edge| edge.1), last: free(|edge| edge.0), edges: mapped.len(), nodes, _source: source })
    }
}

fn copy_node(original: Node, into: &mut GraphBody<'_>) -> Result<(Node, String), CudaError> {
    match type_of(original)? {
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => {
            let params = kernel_params_of(original)?;
            let name = kernel_name_of(&params)?;
            let copy = into.add_kernel_params(&params)?;
            // SAFETY: both are kernel nodes of live graphs.
            unsafe { driver_call!(cuGraphKernelNodeCopyAttributes(copy.0, original.0)) }?;
            let (grid, block) = (
                [params.gridDimX, params.gridDimY, params.gridDimZ],
                [params.blockDimX, params.blockDimY, params.blockDimZ],
            );
            Ok((copy, format!("kernel {name} grid {grid:?} block {block:?} shared {}", params.sharedMemBytes)))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => {
            let mut params =
                sys::CUDA_MEMSET_NODE_PARAMS { dst: 0, pitch: 0, value: 0, elementSize: 1, width: 0, height: 0 };
            // SAFETY: the node is a memset node of a live graph, and `params` outlives the call.
            unsafe { driver_call!(cuGraphMemsetNodeGetParams(original.0, &raw mut params)) }?;
            let bytes = params.width * params.elementSize as usize * params.height.max(1);
            Ok((into.add_fill_params(&params)?, format!("memset {bytes} bytes")))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => {
            let mut params =
                super::launch::CopyBox { from: 0, from_pitch: 0, to: 0, to_pitch: 0, width: 0, height: 0 }.params();
            // SAFETY: the node is a memcpy node of a live graph, and `params` outlives the call.
            unsafe { driver_call!(cuGraphMemcpyNodeGetParams(original.0, &raw mut params)) }?;
            let bytes = params.WidthInBytes * params.Height * params.Depth;
            Ok((into.add_copy_params(&params)?, format!("memcpy {bytes} bytes")))
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => Ok((into.add_empty()?, "empty".to_owned())),
        // Allocation nodes above all: a second copy of one would own nothing.
        other => Err(CudaError::HarvestRefused { found: format!("{other:?}") }),
    }
}

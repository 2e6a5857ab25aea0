//! Executables: what of a graph can run, and graphs as they were when they were instantiated.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cudarc::driver::sys::{
    self as bindings, CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphInstantiateResult, CUgraphNode,
    CUresult, CUstream,
};

use crate::driver::code;
use crate::entry::{get, put};
use crate::graph::{NodeKind, graph_parts, queue};
use crate::objects::{Graph, Handle, Node, Object, Work, World};

/// What an executable runs: a graph as it was, with its bodies.
pub(crate) struct Snapshot {
    /// In an order that the edges allow.
    pub(crate) nodes: Vec<NodeKind>,
    pub(crate) bodies: Vec<Arc<Snapshot>>,
}

/// Copies a graph as it is, which may lie inside of a loop; `Err` with a node where it cannot run.
fn snapshot(world: &mut World, graph: Handle, in_loop: bool) -> Result<Snapshot, (Handle, CUgraphInstantiateResult)> {
    let Some(Object::Graph(found)) = world.object(graph) else {
        return Err((0, CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR));
    };
    let (nodes, edges) = (found.nodes.clone(), found.edges.clone());
    let mut waiting: HashMap<Handle, usize> = nodes.iter().map(|&node| (node, 0)).collect();
    edges.iter().for_each(|(_, to, _)| *waiting.entry(*to).or_default() += 1);
    let mut ready: Vec<Handle> = nodes.iter().copied().filter(|node| waiting[node] == 0).rev().collect();
    let (mut ordered, mut bodies) = (Vec::new(), Vec::new());
    while let Some(node) = ready.pop() {
        let Some(Object::Node(found)) = world.object(node) else { continue };
        let kind = found.kind.clone();
        if let NodeKind::Conditional { bodies: inner, is_loop, .. } = &kind {
            for &body in inner {
                if matches!(world.object(body), Some(Object::Graph(body)) if body.nodes.is_empty()) {
                    world.violation("a conditional body without nodes".to_owned());
                }
                bodies.push(Arc::new(snapshot(world, body, in_loop || *is_loop)?));
            }
        }
        ordered.push(kind);
        for (_, to, _) in edges.iter().filter(|(from, ..)| *from == node) {
            let left = waiting.entry(*to).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                ready.push(*to);
            }
        }
    }
    if in_loop && has_conditionals_side_by_side(world, graph) {
        world.violation("conditional nodes side by side inside of a loop: devices hang there".to_owned());
    }
    if ordered.len() == nodes.len() {
        return Ok(Snapshot { nodes: ordered, bodies });
    }
    let stuck = nodes.into_iter().find(|node| waiting[node] > 0).unwrap_or(0);
    Err((stuck, CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE))
}

/// Whether a graph has two conditional nodes that may run at the same time.
fn has_conditionals_side_by_side(world: &World, graph: Handle) -> bool {
    let Some(Object::Graph(Graph { nodes, edges, .. })) = world.object(graph) else { return false };
    let is_conditional =
        |node| matches!(world.object(node), Some(Object::Node(Node { kind: NodeKind::Conditional { .. }, .. })));
    let conditionals: Vec<Handle> = nodes.iter().copied().filter(|&node| is_conditional(node)).collect();
    let follow = |from: Handle| {
        let (mut seen, mut stack) = (HashSet::new(), vec![from]);
        while let Some(at) = stack.pop() {
            let next = edges.iter().filter(|(earlier, ..)| *earlier == at).map(|&(_, later, _)| later);
            stack.extend(next.filter(|&later| seen.insert(later)));
        }
        seen
    };
    let reached: Vec<HashSet<Handle>> = conditionals.iter().map(|&node| follow(node)).collect();
    let pairs = (0..conditionals.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    pairs.into_iter().any(|(a, b)| !reached[a].contains(&conditionals[b]) && !reached[b].contains(&conditionals[a]))
}

exports! {
    bindings, CUresult, code, CUresult::CUDA_SUCCESS;

    fn cuGraphInstantiateWithParams(world, place: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) {
        graph_parts(world, graph)?;
        match snapshot(world, graph as usize, false) {
            Ok(snapshot) => {
                put(place, world.add(Object::Exec(Arc::new(snapshot))) as CUgraphExec);
                Ok(())
            }
            Err((node, result)) => {
                let params_now = get(params);
                put(params, CUDA_GRAPH_INSTANTIATE_PARAMS { hErrNode_out: node as CUgraphNode, result_out: result, ..params_now });
                Err(CUresult::CUDA_ERROR_INVALID_VALUE)
            }
        }
    }

    #[release]
    fn cuGraphExecDestroy(world, exec: CUgraphExec) {
        world.remove(exec as usize, "destruction of an executable").map(drop)
    }

    fn cuGraphUpload(world, exec: CUgraphExec, _stream: CUstream) {
        match world.object(exec as usize) {
            Some(Object::Exec(_)) => Ok(()),
            _ => Err(world.violation("an upload of an executable that is not alive".to_owned())),
        }
    }

    fn cuGraphLaunch(world, exec: CUgraphExec, stream: CUstream) {
        let Some(Object::Exec(snapshot)) = world.object(exec as usize) else {
            return Err(world.violation("a launch of an executable that is not alive".to_owned()));
        };
        let snapshot = Arc::clone(snapshot);
        queue(world, stream as usize, Work::Graph(snapshot))
    }
}

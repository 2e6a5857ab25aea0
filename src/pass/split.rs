//! Takes out of matrix products what the matrix library cannot compute behind them.

use rustc_hash::{FxHashMap, FxHashSet};

use super::edit::{Rewrite, bodies_mut, unmoved};
use super::library::library_epilogue;
use crate::entity::{NodeId, PrimaryMap, StepId, ValueId};
use crate::ir::{Expr, ExprOp, Gemm, IndexTerm, Item, Map, Node, NodeOp, Program, Step, Store, Target, View};

/// Makes a product whose epilogue the library lacks two nodes: the product alone, `NAME.mm`, and in its place the map `NAME`
/// that applies the epilogue to D where it lies. So every device runs the same units, and no memory is added.
pub(super) fn split(program: &Program, step: StepId) -> Option<Rewrite> {
    let is_beyond =
        |gemm: &Gemm| gemm.epilogue.as_ref().is_some_and(|epilogue| library_epilogue(program, gemm, epilogue).is_err());
    let nodes = program.steps[step].nodes.iter();
    let beyond: Vec<NodeId> =
        nodes.filter(|(_, node)| matches!(&node.op, NodeOp::Gemm(gemm) if is_beyond(gemm))).map(|(id, _)| id).collect();
    if beyond.is_empty() {
        return None;
    }
    let mut rewrite = unmoved(program.clone(), step);
    let Rewrite { program, made, .. } = &mut rewrite;
    let edited = &mut program.steps[step];
    let mut taken: FxHashSet<String> = edited.nodes.values().map(|node| node.name.clone()).collect();
    let products: FxHashMap<NodeId, NodeId> =
        beyond.into_iter().filter_map(|id| Some((id, product_of(edited, id, &mut taken)?))).collect();
    made.extend(products.iter().map(|(&map, &product)| (product, Item::Node(step, map))));
    list_before(edited, &products);
    Some(rewrite)
}

/// Turns a product into the map of its epilogue, and gives the new node that is the product.
fn product_of(step: &mut Step, id: NodeId, taken: &mut FxHashSet<String>) -> Option<NodeId> {
    let node = &mut step.nodes[id];
    let NodeOp::Gemm(gemm) = &mut node.op else { return None };
    let epilogue = gemm.epilogue.take()?;
    let stores = vec![Store { target: Target::View(gemm.d), scatter: None }];
    let map = NodeOp::Map(Map { space: gemm.d.shape(), expr: of_result(&epilogue, gemm.d), stores });
    let op = std::mem::replace(&mut node.op, map);
    let mut name = [&node.name, ".mm"].concat();
    while !taken.insert(name.clone()) {
        name.push('_');
    }
    let after = std::mem::take(&mut node.after);
    Some(step.nodes.push(Node { name, op, after }))
}

/// The epilogue with each element of D for the accumulator.
fn of_result(epilogue: &Expr, d: View) -> Expr {
    let element = ExprOp::Load { view: d, index: vec![IndexTerm::Axis(0), IndexTerm::Axis(1)] };
    let replaced = |op: &ExprOp| if *op == ExprOp::Acc { element.clone() } else { op.clone() };
    let ops: PrimaryMap<ValueId, ExprOp> = epilogue.ops().values().map(replaced).collect();
    Expr::new(&ops, epilogue.roots())
}

/// Lists each product before its map.
fn list_before(step: &mut Step, products: &FxHashMap<NodeId, NodeId>) {
    let insert = |list: &mut Vec<NodeId>| {
        *list = list.iter().flat_map(|node| products.get(node).into_iter().chain([node]).copied()).collect();
    };
    step.phases.values_mut().for_each(|phase| insert(&mut phase.nodes));
    step.nodes.values_mut().flat_map(|node| bodies_mut(&mut node.op)).for_each(insert);
}

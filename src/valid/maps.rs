//! Maps and reductions: index spaces, axes, results and where they go.

use rustc_hash::FxHashSet;

use super::NodeTypes;
use super::expr::{self, Place, Types};
use super::report::{Site, quoted};
use super::shapes;
use crate::entity::ValueId;
use crate::ir::{Combiner, Expr, IndexTerm, Item, Map, ProgramError, Reduce, Scatter, Shape, Store, Target, ValueType};

/// Checks a map.
pub(super) fn map(site: &mut Site<'_, '_>, map: &Map) -> Option<NodeTypes> {
    if !shapes::space(site, &map.space) {
        return None;
    }
    let place = Place { part: "expr", space: map.space, acc: None };
    let types = expr::check(site, &map.expr, place);
    results(site, &map.expr, &types, &map.stores, place);
    Some(NodeTypes { expr: expr::complete(&map.expr, &types)?, ..NodeTypes::default() })
}

/// Checks a reduction.
pub(super) fn reduce(site: &mut Site<'_, '_>, reduce: &Reduce) -> Option<NodeTypes> {
    if !shapes::space(site, &reduce.space) || !axes(site, reduce) {
        return None;
    }
    let place = Place { part: "expr", space: reduce.space, acc: None };
    let types = expr::check(site, &reduce.expr, place);
    if reduce.expr.roots().len() != 1 {
        let found = reduce.expr.roots().len();
        site.fail("expr", |node| ProgramError::ResultCount { node, part: "expr", found, expected: "1".into() });
        return None;
    }
    let acc = combined(site, reduce.combiner, types[reduce.expr.roots()[0]]);
    let kept = reduce.kept();
    // Where the combined type is unknown the fault was reported; any type avoids a second report about `acc`.
    let place = Place { part: "finish", space: kept, acc: Some(acc.unwrap_or(ValueType::F32)) };
    let finish = expr::check(site, &reduce.finish, place);
    acc?;
    results(site, &reduce.finish, &finish, &reduce.stores, place);
    Some(NodeTypes { expr: expr::complete(&reduce.expr, &types)?, finish: expr::complete(&reduce.finish, &finish)? })
}

fn axes(site: &mut Site<'_, '_>, reduce: &Reduce) -> bool {
    let (axes, rank) = (&reduce.axes, reduce.space.rank());
    let expected = if axes.is_empty() {
        "name at least one axis"
    } else if axes.iter().any(|&axis| usize::from(axis) >= rank) {
        "name axes that the space has"
    } else if axes.windows(2).any(|pair| pair[0] >= pair[1]) {
        "name each axis once, in ascending order"
    } else if reduce.combiner == Combiner::Argmax && axes.len() != 1 {
        "argmax takes exactly one axis"
    } else {
        return true;
    };
    let (found, space) = (format!("{axes:?}"), reduce.space);
    site.fail("axes", |node| ProgramError::BadAxes { node, found, space, expected });
    false
}

/// The type of a combined value.
fn combined(site: &mut Site<'_, '_>, combiner: Combiner, of: Option<ValueType>) -> Option<ValueType> {
    let of = of?;
    let (fits, expected) = match combiner {
        Combiner::LogSumExp => (of == ValueType::F32, "it combines f32: cast first"),
        Combiner::Sum | Combiner::Max | Combiner::Argmax => {
            (of != ValueType::Bool, "it combines f32, i32 or u32: cast first")
        }
    };
    if !fits {
        let (op, found) = (combiner.name().into(), of.name().into());
        site.fail("expr", |node| ProgramError::ExprType { node, op, found, expected });
        return None;
    }
    Some(if combiner == Combiner::Argmax { ValueType::U32 } else { of })
}

/// Checks that an expression's roots are what the stores need: the values, then every computed place.
fn results(site: &mut Site<'_, '_>, expr: &Expr, types: &Types, stores: &[Store], place: Place) {
    if stores.is_empty() {
        let kind = site.program.steps[site.step].nodes[site.node].op.kind();
        site.fail("", |node| ProgramError::Empty { what: format!("{kind} `{node}`") });
        return;
    }
    let places: FxHashSet<ValueId> =
        stores.iter().filter_map(|store| store.scatter.as_ref()).flat_map(computed).collect();
    let further: FxHashSet<ValueId> = expr.roots().iter().skip(stores.len()).copied().collect();
    if expr.roots().len() < stores.len() || places != further {
        let (found, expected) = (expr.roots().len(), format!("{} and {} places", stores.len(), places.len()));
        site.fail(place.part, |node| ProgramError::ResultCount { node, part: place.part, found, expected });
        return;
    }
    for (at, (store, &root)) in stores.iter().zip(expr.roots()).enumerate() {
        self::store(site, &Item::store_part(at), store, types[root], types, &place.space);
    }
}

fn computed(scatter: &Scatter) -> impl Iterator<Item = ValueId> {
    scatter.index.iter().filter_map(|term| match term {
        IndexTerm::Value(value) => Some(*value),
        IndexTerm::Axis(_) | IndexTerm::Fixed(_) => None,
    })
}

fn store(site: &mut Site<'_, '_>, part: &str, store: &Store, value: Option<ValueType>, types: &Types, space: &Shape) {
    let (name, element) = match store.target {
        Target::View(view) => {
            let Some(name) = site.buffer(part, view.buffer).map(|buffer| quoted(&buffer.name)) else { return };
            let Some(viewed) = site.view(part, &name, view) else { return };
            match &store.scatter {
                Some(scatter) => {
                    expr::check_index(site, part, &name, &scatter.index, &viewed.shape, space, |value| types[value]);
                    scatter_rule(site, part, &name, scatter);
                }
                None => site.same_shape(part, &name, viewed.shape, *space),
            }
            (name, ValueType::of(viewed.dtype))
        }
        Target::Scalar(id) => {
            let Some(scalar) = site.scalar(part, id) else { return };
            let name = quoted(&scalar.name);
            scalar_target(site, part, &name, store, space);
            (name, ValueType::of(scalar.init.dtype()))
        }
    };
    let Some(value) = value else { return };
    site.same_type(part, &format!("the value for {name}"), value.name(), element.name());
}

fn scatter_rule(site: &mut Site<'_, '_>, part: &str, name: &str, scatter: &Scatter) {
    if scatter.rule.is_none() {
        site.fail(part, |node| ProgramError::ScatterWithoutRule { node, part: name.into() });
    }
}

fn scalar_target(site: &mut Site<'_, '_>, part: &str, name: &str, store: &Store, space: &Shape) {
    if let Some(scatter) = &store.scatter {
        let (found, expected) = (format!("{} terms", scatter.index.len()), "none: it is a scalar".into());
        site.fail(part, |node| ProgramError::BadIndex { node, part: name.into(), found, expected });
    }
    if space.elements() != 1 {
        site.fail(part, |node| ProgramError::ShapeMismatch {
            node,
            part: format!("the value for {name}"),
            found: space.to_string(),
            expected: "a single element: it goes to a scalar".into(),
        });
    }
}

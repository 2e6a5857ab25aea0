//! What one node touches: outputs apart from each other, nothing read that the node writes elsewhere, nothing written that
//! belongs to the host.

use super::report::{MAX_REPEATS, Site};
use crate::entity::{GroupId, ScalarId};
use crate::ir::{
    Access, Arg, Expr, ExprOp, Factor, Gemm, IndexTerm, Item, KernelCall, LoopBound, MAX_OPERANDS, Node, NodeOp,
    Program, ProgramError, Resource, Role, Store, Target, View, Writer, node_accesses,
};

/// Checks a node whose parts are sound by themselves. Gives its accesses.
pub(super) fn check(site: &mut Site<'_, '_>) -> Vec<Access> {
    let step = &site.program.steps[site.step];
    let accesses = node_accesses(site.program, step, site.node);
    let op = &step.nodes[site.node].op;
    owners(site, op, &accesses);
    if site.broken {
        return accesses;
    }
    match op {
        NodeOp::Map(map) => generated(site, &[("expr", &map.expr, true)], &map.stores, accesses.len()),
        NodeOp::Reduce(reduce) => {
            let exprs = [("expr", &reduce.expr, false), ("finish", &reduce.finish, true)];
            generated(site, &exprs, &reduce.stores, accesses.len());
        }
        NodeOp::Gemm(gemm) => matrices(site, gemm, accesses.len()),
        NodeOp::Copy { from, to } if from.overlaps(to) => reads_own(site, "from", "from", Resource::View(*from)),
        NodeOp::Kernel(call) => arguments(site, call),
        _ => {}
    }
    accesses
}

/// Whether every id of a node names something, so that its accesses can be asked for.
pub(super) fn resolves(program: &Program, op: &NodeOp) -> bool {
    let view = |view: &View| program.buffers.is_valid(view.buffer);
    let scalar = |id: &ScalarId| program.scalars.is_valid(*id);
    let expr = |expr: &Expr| {
        expr.ops().values().all(|op| match op {
            ExprOp::Load { view: loaded, .. } => view(loaded),
            ExprOp::Scalar(id) => scalar(id),
            _ => true,
        })
    };
    let stores = |stores: &[Store]| {
        stores.iter().all(|store| match &store.target {
            Target::View(target) => view(target),
            Target::Scalar(id) => scalar(id),
        })
    };
    let factor = |factor: &Factor| !matches!(factor, Factor::Scalar(id) if !scalar(id));
    let group = |id: &GroupId| {
        let group = program.groups.get(*id);
        group.is_some_and(|group| group.members.iter().all(|&member| program.buffers.is_valid(member)))
    };
    match op {
        NodeOp::Map(map) => expr(&map.expr) && stores(&map.stores),
        NodeOp::Reduce(reduce) => expr(&reduce.expr) && expr(&reduce.finish) && stores(&reduce.stores),
        NodeOp::Copy { from, to } => view(from) && view(to),
        NodeOp::Fill { to, .. } => view(to),
        NodeOp::Gemm(gemm) => {
            [gemm.a.view, gemm.b.view, gemm.d].iter().all(view)
                && factor(&gemm.alpha)
                && gemm.add.iter().all(|(beta, c)| factor(beta) && view(c))
                && gemm.epilogue.iter().all(expr)
        }
        NodeOp::Kernel(call) => {
            let arg = |arg: &Arg| match arg {
                Arg::View(given) => view(given),
                Arg::Group(id) => group(id),
                Arg::Scalar(id) => scalar(id),
                Arg::Const(_) => true,
            };
            program.kernels.is_valid(call.kernel) && call.args.iter().all(arg)
        }
        NodeOp::If { condition, .. } => scalar(condition),
        NodeOp::Switch { selector, .. } => scalar(selector),
        NodeOp::While { max, index, until, .. } => {
            let bound = !matches!(max, LoopBound::Scalar(id) if !scalar(id));
            bound && index.iter().chain(until).all(scalar)
        }
    }
}

/// The part of a node that touches a resource, writing it or not: the name of an [`Item::Part`](crate::ir::Item::Part).
pub(super) fn part(program: &Program, node: &Node, resource: &Resource, writes: bool) -> String {
    let overlaps = |view: &View| matches!(resource, Resource::View(other) if other.overlaps(view));
    let is_target = |target: &Target| match target {
        Target::View(view) => overlaps(view),
        Target::Scalar(scalar) => *resource == Resource::Scalar(*scalar),
    };
    let stored = |stores: &[Store]| {
        let at = stores.iter().position(|store| is_target(&store.target));
        at.filter(|_| writes).map(|at| Item::store_part(at).into_owned())
    };
    let found = match &node.op {
        NodeOp::Map(map) => Some(stored(&map.stores).unwrap_or_else(|| "expr".into())),
        NodeOp::Reduce(reduce) => Some(stored(&reduce.stores).unwrap_or_else(|| "expr".into())),
        NodeOp::Copy { .. } => Some(if writes { "to".into() } else { "from".into() }),
        NodeOp::Fill { .. } => Some("to".into()),
        NodeOp::Gemm(gemm) => Some(gemm_part(gemm, overlaps, writes).into()),
        NodeOp::Kernel(call) => kernel_part(program, call, resource, writes),
        NodeOp::If { .. } | NodeOp::Switch { .. } | NodeOp::While { .. } => None,
    };
    found.unwrap_or_default()
}

fn gemm_part(gemm: &Gemm, overlaps: impl Fn(&View) -> bool, writes: bool) -> &'static str {
    match gemm {
        _ if writes => "d",
        gemm if overlaps(&gemm.a.view) => "a",
        gemm if overlaps(&gemm.b.view) => "b",
        gemm if gemm.add.is_some_and(|(_, c)| overlaps(&c)) => "c",
        _ => "epilogue",
    }
}

fn kernel_part(program: &Program, call: &KernelCall, resource: &Resource, writes: bool) -> Option<String> {
    let params = program.kernels[call.kernel].params.iter().filter(|param| param.class.needs_argument());
    let mut given = params.zip(&call.args).filter(|(param, _)| param.class.writes() == writes || !writes);
    given.find(|(_, arg)| touches(program, arg, resource)).map(|(param, _)| param.name.clone())
}

fn touches(program: &Program, arg: &Arg, resource: &Resource) -> bool {
    match (arg, resource) {
        (Arg::View(own), Resource::View(other)) => own.overlaps(other),
        (Arg::Group(group), Resource::View(other)) => program.groups[*group].members.contains(&other.buffer),
        (Arg::Scalar(own), Resource::Scalar(other)) => own == other,
        _ => false,
    }
}

/// Inputs and host scalars are the host's.
fn owners(site: &mut Site<'_, '_>, op: &NodeOp, accesses: &[Access]) {
    let (program, node) = (site.program, &site.program.steps[site.step].nodes[site.node]);
    let mut inputs = 0;
    for access in accesses.iter().filter(|access| access.mode.writes()) {
        match access.resource {
            Resource::View(view) if program.buffers[view.buffer].role == Role::Input => {
                inputs += 1;
                if inputs > MAX_REPEATS {
                    break;
                }
                let buffer = program.buffers[view.buffer].name.clone();
                let part = part(program, node, &access.resource, true);
                site.fail(&part, |node| ProgramError::WritesInput { node, buffer });
            }
            // A loop's cells have a rule of their own.
            Resource::Scalar(id)
                if program.scalars[id].writer == Writer::Host && !matches!(op, NodeOp::While { .. }) =>
            {
                let scalar = program.scalars[id].name.clone();
                let part = part(program, node, &access.resource, true);
                site.fail(&part, |node| ProgramError::WritesHostScalar { node, scalar });
            }
            _ => {}
        }
    }
}

fn is_too_many(site: &mut Site<'_, '_>, found: usize) -> bool {
    if found > MAX_OPERANDS {
        site.fail("", |node| ProgramError::TooManyOperands { node, found });
    }
    found > MAX_OPERANDS
}

/// A map or reduction; an expression with `true` runs once per result, so that it may read the result's own place.
fn generated(site: &mut Site<'_, '_>, exprs: &[(&str, &Expr, bool)], stores: &[Store], touched: usize) {
    if is_too_many(site, touched) {
        return;
    }
    let mut outputs: Vec<Resource> = Vec::new();
    for (at, store) in stores.iter().enumerate() {
        let resource = match store.target {
            Target::View(view) => Resource::View(view),
            Target::Scalar(scalar) => Resource::Scalar(scalar),
        };
        if let Some(first) = outputs.iter().position(|other| other.overlaps(&resource)) {
            let [first, second] = [first, at].map(|at| Item::store_part(at).into_owned());
            overlapping(site, first, second, resource);
            return;
        }
        outputs.push(resource);
    }
    for &(part, expr, in_place) in exprs {
        let clash = expr.ops().values().find_map(|op| read_elsewhere(op, stores, in_place));
        if let Some(resource) = clash {
            reads_own(site, part, part, resource);
        }
    }
}

/// The memory that an operation reads although the node writes it, unless it reads just the element's own place.
fn read_elsewhere(op: &ExprOp, stores: &[Store], in_place: bool) -> Option<Resource> {
    match op {
        ExprOp::Load { view, index } => {
            let written = |store: &&Store| matches!(store.target, Target::View(target) if target.overlaps(view));
            let store = stores.iter().find(written)?;
            let own = store.scatter.is_none() && store.target == Target::View(*view) && is_own_place(view, index);
            (!own || !in_place).then_some(Resource::View(*view))
        }
        ExprOp::Scalar(scalar) if !in_place => {
            let is_written = stores.iter().any(|store| store.target == Target::Scalar(*scalar));
            is_written.then_some(Resource::Scalar(*scalar))
        }
        _ => None,
    }
}

/// Whether an index takes each axis of the view by the same axis of the index space, which then has the view's shape.
fn is_own_place(view: &View, index: &[IndexTerm]) -> bool {
    index.iter().zip(view.shape().dims()).enumerate().all(|(axis, (term, &dim))| match term {
        IndexTerm::Axis(own) => usize::from(*own) == axis,
        IndexTerm::Fixed(_) => dim == 1,
        IndexTerm::Value(_) => false,
    })
}

fn matrices(site: &mut Site<'_, '_>, gemm: &Gemm, touched: usize) {
    if is_too_many(site, touched) {
        return;
    }
    let c = gemm.add.map(|(_, c)| c).filter(|&c| c != gemm.d);
    for (part, view) in [("a", Some(gemm.a.view)), ("b", Some(gemm.b.view)), ("c", c)] {
        if let Some(view) = view.filter(|view| view.overlaps(&gemm.d)) {
            reads_own(site, part, part, Resource::View(view));
        }
    }
    let loads = gemm.epilogue.iter().flat_map(|epilogue| epilogue.ops().values());
    let clash = loads.into_iter().find_map(|op| match op {
        ExprOp::Load { view, .. } if view.overlaps(&gemm.d) => Some(*view),
        _ => None,
    });
    if let Some(view) = clash {
        reads_own(site, "epilogue", "the epilogue", Resource::View(view));
    }
}

/// Arguments of a kernel are `__restrict__`: what one writes no other touches.
fn arguments(site: &mut Site<'_, '_>, call: &KernelCall) {
    let program = site.program;
    let supplied = program.kernels[call.kernel].params.iter().filter(|param| param.class.needs_argument());
    let given: Vec<_> = supplied.zip(&call.args).filter(|(_, arg)| !matches!(arg, Arg::Const(_))).collect();
    for (at, &(param, arg)) in given.iter().enumerate().filter(|(_, (param, _))| param.class.writes()) {
        for (other_at, &(other, other_arg)) in given.iter().enumerate().filter(|&(other, _)| other != at) {
            // Two written arguments meet once, not once from each side.
            if other.class.writes() && other_at < at {
                continue;
            }
            let Some(resource) = shared(program, arg, other_arg) else { continue };
            if other.class.writes() {
                overlapping(site, param.name.clone(), other.name.clone(), resource);
            } else {
                reads_own(site, &other.name, &format!("`{}`", other.name), resource);
            }
        }
    }
}

/// Memory that two arguments share.
fn shared(program: &Program, a: &Arg, b: &Arg) -> Option<Resource> {
    match (a, b) {
        (Arg::View(a), Arg::View(b)) => a.overlaps(b).then_some(Resource::View(*a)),
        (Arg::Scalar(a), Arg::Scalar(b)) => (a == b).then_some(Resource::Scalar(*a)),
        (Arg::Group(group), Arg::View(view)) | (Arg::View(view), Arg::Group(group)) => {
            program.groups[*group].members.contains(&view.buffer).then_some(Resource::View(*view))
        }
        (Arg::Group(a), Arg::Group(b)) if a == b => {
            let member = *program.groups[*a].members.first()?;
            Some(Resource::View(View::full(member, &program.buffers[member].shape)))
        }
        _ => None,
    }
}

fn overlapping(site: &mut Site<'_, '_>, first: String, second: String, resource: Resource) {
    let (place, buffer) = (second.clone(), name(site.program, &resource));
    site.fail(&place, |node| ProgramError::OverlappingOutputs { node, first, second, buffer });
}

fn reads_own(site: &mut Site<'_, '_>, place: &str, part: &str, resource: Resource) {
    let buffer = name(site.program, &resource);
    site.fail(place, |node| ProgramError::ReadsOwnOutput { node, part: part.into(), buffer });
}

fn name(program: &Program, resource: &Resource) -> String {
    let scalar = |id: ScalarId| program.scalars[id].name.clone();
    match resource {
        Resource::View(view) => program.buffers[view.buffer].name.clone(),
        Resource::Scalar(id) => scalar(*id),
    }
}

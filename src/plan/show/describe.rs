//! What a unit does, in a form that text and JSON share.

use super::expr::{ExprText, literal};
use super::names::Names;
use crate::codegen::ReduceSchedule;
use crate::entity::ScalarId;
use crate::ir::{
    Arg, Expr, ExprOp, Factor, Gemm, KernelCall, KernelParam, LaunchConfig, LoopBound, Map, NodeOp, Operand,
    ParamClass, Reduce, Store, Target, View,
};
use crate::plan::launch::symbols;
use crate::plan::options::GemmImpl;
use crate::plan::types::{Body, Unit, Work};

/// A unit, described.
pub(super) struct Description<'a> {
    /// The operation and how it runs, in one line.
    pub(super) headline: String,
    /// The kernel launches that are known before a library chooses its own.
    pub(super) launches: Vec<LaunchConfig>,
    /// What it takes.
    pub(super) arguments: Vec<Argument>,
    /// What it computes, one line each.
    pub(super) formulas: Vec<String>,
    /// The bodies of a conditional with their labels; empty ones are left out.
    pub(super) bodies: Vec<(String, &'a Body)>,
}

/// One argument.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Argument {
    /// The parameter's name; empty for what an expression names itself.
    pub(super) name: String,
    /// Its class, in the words of kernel declarations.
    pub(super) class: &'static str,
    /// The memory or value.
    pub(super) value: String,
    /// Its type, shape and whatever else must be known.
    pub(super) detail: String,
}

/// Describes a unit.
pub(super) fn describe<'a>(names: &Names<'a>, unit: &'a Unit) -> Description<'a> {
    let op = &names.program.steps[names.plan.step].nodes[unit.node].op;
    let (headline, arguments, formulas) = match (op, &unit.work) {
        (NodeOp::Kernel(call), Work::Kernel(config)) => kernel(names, call, config),
        (NodeOp::Gemm(product), Work::Gemm(implementation)) => gemm(names, product, implementation),
        (NodeOp::Map(own), Work::Map(config)) => map(names, own, config),
        (NodeOp::Reduce(own), Work::Reduce(schedule)) => reduce(names, own, schedule),
        (NodeOp::Copy { from, to }, _) => {
            let arguments = vec![memory(names, "from", "In", from), memory(names, "to", "Out", to)];
            ("copy".to_owned(), arguments, Vec::new())
        }
        (NodeOp::Fill { to, value }, _) => {
            let arguments = vec![memory(names, "to", "Out", to), constant("value", literal(*value))];
            ("fill".to_owned(), arguments, Vec::new())
        }
        (NodeOp::If { condition, .. }, _) => {
            (format!("if {} != 0", names.scalar(*condition)), vec![cell(names, "", "Scalar", *condition)], Vec::new())
        }
        (NodeOp::Switch { selector, .. }, _) => {
            (format!("switch {}", names.scalar(*selector)), vec![cell(names, "", "Scalar", *selector)], Vec::new())
        }
        (NodeOp::While { max, index, until, .. }, _) => repeat(names, *max, *index, *until),
        (op, _) => (op.kind().to_owned(), Vec::new(), Vec::new()),
    };
    Description { headline, launches: launches(&unit.work), arguments, formulas, bodies: bodies(&unit.work) }
}

fn launches(work: &Work) -> Vec<LaunchConfig> {
    match work {
        Work::Kernel(config) | Work::Map(config) => vec![*config],
        Work::Reduce(schedule) => std::iter::once(schedule.first).chain(schedule.second).collect(),
        _ => Vec::new(),
    }
}

type Parts = (String, Vec<Argument>, Vec<String>);

fn kernel(names: &Names<'_>, call: &KernelCall, config: &LaunchConfig) -> Parts {
    let decl = &names.program.kernels[call.kernel];
    let symbols = symbols(names.program, call);
    let mut given = call.args.iter();
    let argument = |param: &KernelParam| {
        let (name, class) = (param.name.as_str(), param.class.name());
        if param.class == ParamClass::Size {
            let extent = symbols.get(name).map_or("?".to_owned(), u32::to_string);
            return Argument { name: name.to_owned(), class, value: extent, detail: String::new() };
        }
        match given.next() {
            Some(Arg::View(view)) => memory(names, name, class, view),
            Some(Arg::Scalar(scalar)) => cell(names, name, class, *scalar),
            Some(Arg::Const(value)) => Argument { class, ..constant(name, literal(*value)) },
            Some(Arg::Group(group)) => {
                let elements = names.program.group_layout(*group).1 / param.dtype.size();
                let members = names.program.groups[*group].members.len();
                let detail = format!("{}[{elements}] group of {members}", param.dtype);
                Argument { name: name.to_owned(), class, value: names.program.groups[*group].name.clone(), detail }
            }
            None => Argument { name: name.to_owned(), class, value: "?".to_owned(), detail: String::new() },
        }
    };
    let arguments = decl.params.iter().map(argument).collect();
    let mut headline = format!("kernel {} ({})  {config}", decl.name, decl.source.file);
    if let Some([x, y, z]) = decl.cluster {
        headline += &format!("  cluster {x}×{y}×{z}");
    }
    if decl.cooperative {
        headline += "  cooperative";
    }
    if let Some(pdl) = &decl.pdl {
        let early = if pdl.early.is_empty() { "nothing".to_owned() } else { pdl.early.join(", ") };
        headline += &format!("  may launch early, reads {early} before it waits");
    }
    (headline, arguments, Vec::new())
}

fn gemm(names: &Names<'_>, gemm: &Gemm, implementation: &GemmImpl) -> Parts {
    let (m, n, k) = gemm.dims().unwrap_or_default();
    let GemmImpl::Library { algo, workspace } = implementation;
    let headline =
        format!("gemm m {m} n {n} k {k} {}  library(algo={algo}, workspace={workspace})", gemm.compute.name());
    let mut arguments = vec![memory(names, "a", "In", &gemm.a.view), memory(names, "b", "In", &gemm.b.view)];
    arguments.extend(gemm.add.iter().map(|(_, c)| memory(names, "c", "In", c)));
    for (name, factor) in [("alpha", Some(gemm.alpha)), ("beta", gemm.add.map(|(beta, _)| beta))] {
        match factor {
            Some(Factor::Scalar(scalar)) => arguments.push(cell(names, name, "Scalar", scalar)),
            Some(Factor::Const(value)) if value != 1.0 => arguments.push(constant(name, format!("{value:?}"))),
            _ => {}
        }
    }
    arguments.extend(gemm.epilogue.iter().flat_map(|epilogue| reads(names, epilogue)));
    arguments.push(memory(names, "d", "Out", &gemm.d));
    let operand =
        |operand: &Operand| format!("{}{}", names.view(&operand.view), if operand.transposed { "'" } else { "" });
    let scaled = |factor: Factor, text: String| match factor {
        Factor::Const(1.0) => text,
        Factor::Const(value) => format!("{value:?} * {text}"),
        Factor::Scalar(scalar) => format!("{} * {text}", names.scalar(scalar)),
    };
    let mut product = scaled(gemm.alpha, format!("{} @ {}", operand(&gemm.a), operand(&gemm.b)));
    if let Some((beta, c)) = gemm.add {
        product += &format!(" + {}", scaled(beta, names.view(&c)));
    }
    let formulas = match &gemm.epilogue {
        None => vec![format!("{} = {product}", names.view(&gemm.d))],
        Some(epilogue) => {
            let text = ExprText::new(names, epilogue);
            let result = text.roots.iter().map(|root| format!("{}[i0, i1] = {root}", names.view(&gemm.d)));
            std::iter::once(format!("acc = {product}")).chain(text.named.iter().cloned()).chain(result).collect()
        }
    };
    (headline, arguments, formulas)
}

fn map(names: &Names<'_>, map: &Map, config: &LaunchConfig) -> Parts {
    let text = ExprText::new(names, &map.expr);
    let arguments = with_stores(names, reads(names, &map.expr), &map.stores);
    (format!("map over {}  {config}", map.space), arguments, stored(names, &text, &map.stores, map.space.rank()))
}

fn reduce(names: &Names<'_>, reduce: &Reduce, schedule: &ReduceSchedule) -> Parts {
    let axes: Vec<String> = reduce.axes.iter().map(|axis| format!("i{axis}")).collect();
    let mut headline = format!(
        "reduce {} over {} of {}  {} lanes {}",
        reduce.combiner.name(),
        axes.join(", "),
        reduce.space,
        schedule.first,
        schedule.lanes
    );
    if let Some(second) = &schedule.second {
        let (chunks, lanes) = (schedule.chunks, schedule.chunk_lanes);
        headline += &format!(", {chunks} chunks of {}, then {second} lanes {lanes}", schedule.chunk);
    }
    let inner = ExprText::new(names, &reduce.expr);
    let outer = ExprText::new(names, &reduce.finish);
    let mut taken = reads(names, &reduce.expr);
    for argument in reads(names, &reduce.finish) {
        if !taken.contains(&argument) {
            taken.push(argument);
        }
    }
    let mut formulas = inner.named.clone();
    let combined = inner.roots.first().map_or("", String::as_str);
    formulas.push(format!("acc = {} over {} of {combined}", reduce.combiner.name(), axes.join(", ")));
    formulas.extend(stored(names, &outer, &reduce.stores, reduce.kept().rank()));
    (headline, with_stores(names, taken, &reduce.stores), formulas)
}

fn repeat(names: &Names<'_>, max: LoopBound, index: Option<ScalarId>, until: Option<ScalarId>) -> Parts {
    let mut arguments = Vec::new();
    let bound = match max {
        LoopBound::Const(count) => count.to_string(),
        LoopBound::Scalar(scalar) => {
            arguments.push(cell(names, "max", "Scalar", scalar));
            names.scalar(scalar).to_owned()
        }
    };
    let mut headline = format!("while up to {bound} times");
    if let Some(index) = index {
        arguments.push(cell(names, "index", "ScalarOut", index));
        headline += &format!(", counted by {}", names.scalar(index));
    }
    if let Some(until) = until {
        arguments.push(cell(names, "until", "ScalarInOut", until));
        headline += &format!(", until {} != 0", names.scalar(until));
    }
    (headline, arguments, Vec::new())
}

fn bodies(work: &Work) -> Vec<(String, &Body)> {
    let labelled: Vec<(String, &Body)> = match work {
        Work::If { then_body, else_body } => vec![("then".to_owned(), then_body), ("else".to_owned(), else_body)],
        Work::Switch { bodies } => {
            bodies.iter().enumerate().map(|(number, body)| (format!("case {number}"), body)).collect()
        }
        Work::While { body } => vec![("do".to_owned(), body)],
        _ => Vec::new(),
    };
    labelled.into_iter().filter(|(_, body)| !body.units.is_empty()).collect()
}

/// The memory that an expression reads, in the order of its operations.
fn reads(names: &Names<'_>, expr: &Expr) -> Vec<Argument> {
    let mut found: Vec<Argument> = Vec::new();
    for op in expr.ops().values() {
        let argument = match op {
            ExprOp::Load { view, .. } => memory(names, "", "In", view),
            ExprOp::Scalar(scalar) => cell(names, "", "Scalar", *scalar),
            _ => continue,
        };
        if !found.contains(&argument) {
            found.push(argument);
        }
    }
    found
}

/// Adds what stores write; what is read as well becomes an in-place argument.
fn with_stores(names: &Names<'_>, mut arguments: Vec<Argument>, stores: &[Store]) -> Vec<Argument> {
    for store in stores {
        let mut argument = match store.target {
            Target::View(view) => memory(names, "", "Out", &view),
            Target::Scalar(scalar) => cell(names, "", "ScalarOut", scalar),
        };
        if let Some(scatter) = &store.scatter {
            argument.detail += &format!(" scattered {}", scatter.rule.map_or("without a rule", |rule| rule.name()));
        }
        match arguments.iter_mut().find(|read| read.value == argument.value) {
            Some(read) if read.class == "Scalar" => read.class = "ScalarInOut",
            Some(read) if read.class == "In" => *read = Argument { class: "InOut", ..argument },
            _ => arguments.push(argument),
        }
    }
    arguments
}

/// One line per store, after the lines of named parts.
fn stored(names: &Names<'_>, text: &ExprText, stores: &[Store], rank: usize) -> Vec<String> {
    let own: Vec<String> = (0..rank).map(|axis| format!("i{axis}")).collect();
    let mut lines = text.named.clone();
    for (store, root) in stores.iter().zip(&text.roots) {
        let target = match (&store.target, &store.scatter) {
            (Target::Scalar(scalar), _) => names.scalar(*scalar).to_owned(),
            (Target::View(view), Some(scatter)) => names.view(view) + &text.place(&scatter.index),
            (Target::View(view), None) if rank == 0 => names.view(view),
            (Target::View(view), None) => format!("{}[{}]", names.view(view), own.join(", ")),
        };
        lines.push(format!("{target} = {root}"));
    }
    lines
}

fn memory(names: &Names<'_>, name: &str, class: &'static str, view: &View) -> Argument {
    Argument { name: name.to_owned(), class, value: names.view(view), detail: names.view_type(view) }
}

fn cell(names: &Names<'_>, name: &str, class: &'static str, scalar: ScalarId) -> Argument {
    Argument { name: name.to_owned(), class, value: names.scalar(scalar).to_owned(), detail: names.scalar_type(scalar) }
}

fn constant(name: &str, value: String) -> Argument {
    Argument { name: name.to_owned(), class: "Const", value, detail: String::new() }
}

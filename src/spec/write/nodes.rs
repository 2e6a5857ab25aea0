//! Steps, phases and nodes.

use std::collections::BTreeSet;

use super::expr::{ExprText, Scope, implied_space, is_acc, is_whole, name_text, symbols, view_text};
use super::implied::{Implied, then_pair};
use super::line;
use super::toml::{Keys, constant, float, list, numbers, one_or_list, quoted, shape, single_key};
use crate::entity::{BufferId, NodeId, ScalarId};
use crate::ir::{
    Arg, Combiner, Compute, Expr, Factor, Gemm, IndexTerm, KernelCall, LoopBound, Map, Node, NodeOp, Operand, Phase,
    Program, Reduce, Resource, Shape, Step, Store, Target, ValueType, View, node_accesses, value_types,
};
use crate::spec::{is_plain_step_name, nodes::KINDS};

/// Writes every step.
pub(super) fn write(text: &mut String, program: &Program, implied: &Implied) {
    let taken = symbols(program);
    let mut writer = NodeWriter { program, implied, taken: &taken, written: BTreeSet::new() };
    for step in program.steps.values() {
        let own = single_key(&step.name);
        let key = if is_plain_step_name(&step.name) { own } else { format!("step.{own}") };
        if !step.variants.is_empty() || step.phases.is_empty() {
            line(text, format_args!("\n[{key}]"));
        }
        if !step.variants.is_empty() {
            line(text, format_args!("variants = {}", list(step.variants.iter().map(String::as_str))));
        }
        for phase in step.phases.values() {
            writer.phase(text, step, phase, &key);
        }
    }
}

struct NodeWriter<'p> {
    program: &'p Program,
    implied: &'p Implied,
    taken: &'p BTreeSet<&'p str>,
    /// Buffers that an earlier node wrote, so that they are declared.
    written: BTreeSet<BufferId>,
}

/// The fields of a node's table, in order.
struct Table(Vec<String>);

impl Table {
    fn of(key: &str, value: String) -> Self {
        Self(vec![format!("{key} = {value}")])
    }

    fn add(&mut self, key: &str, value: String) {
        self.0.push(format!("{key} = {value}"));
    }
}

impl NodeWriter<'_> {
    fn phase(&mut self, text: &mut String, step: &Step, phase: &Phase, step_key: &str) {
        let shared = step.phases.values().filter(|other| other.name == phase.name).count() > 1;
        let key = format!("{step_key}.{}", single_key(&phase.name));
        match shared {
            true => line(text, format_args!("\n[[{key}]]")),
            false => line(text, format_args!("\n[{key}]")),
        }
        if !phase.variants.is_empty() {
            line(text, format_args!("variants = {}", list(phase.variants.iter().map(String::as_str))));
        }
        if let Some(guard) = phase.guard {
            line(text, format_args!("guard = {}", quoted(&self.program.scalars[guard].name)));
        }
        self.body(text, step, &phase.nodes, "", "");
    }

    /// One line a node; `end` closes each one inside a body.
    fn body(&mut self, text: &mut String, step: &Step, nodes: &[NodeId], indent: &str, end: &str) {
        let keys = Keys::new(nodes.iter().map(|&node| step.nodes[node].name.as_str()));
        let mut at = 0;
        while let Some(&id) = nodes.get(at) {
            let node = &step.nodes[id];
            let pair = nodes.get(at + 1).and_then(|&next| then_pair(self.program, step, id, next));
            let (name, mut table) = match pair {
                Some((gemm, map)) => {
                    let name = &step.nodes[nodes[at + 1]].name;
                    (name, self.product_and_map(name, gemm, map))
                }
                None => (&node.name, self.node(step, node, indent)),
            };
            if !node.after.is_empty() {
                let after: Vec<_> = node.after.iter().map(|&after| step.nodes[after].name.clone()).collect();
                table.add("after", one_or_list(&after));
            }
            line(text, format_args!("{indent}{} = {{ {} }}{end}", keys.key(name), table.0.join(", ")));
            let taken = if pair.is_some() { 2 } else { 1 };
            nodes[at..at + taken].iter().for_each(|&node| self.mark(step, node));
            at += taken;
        }
    }

    fn mark(&mut self, step: &Step, node: NodeId) {
        for access in node_accesses(self.program, step, node) {
            if let Resource::View(view) = access.resource {
                self.written.insert(view.buffer);
            }
        }
    }

    fn node(&mut self, step: &Step, node: &Node, indent: &str) -> Table {
        match &node.op {
            NodeOp::Kernel(call) => self.call(call),
            NodeOp::Gemm(gemm) => {
                let mut table = self.product(gemm);
                self.out_view(&mut table, &node.name, gemm.d);
                table
            }
            NodeOp::Map(map) => self.map(&node.name, map),
            NodeOp::Reduce(reduce) => self.reduce(&node.name, reduce),
            NodeOp::Copy { from, to } => {
                let mut table = Table::of("copy", quoted(&view_text(self.program, from)));
                self.out_view(&mut table, &node.name, *to);
                table
            }
            NodeOp::Fill { to, value } => {
                let mut table = Table::of("fill", constant(*value));
                self.out_view(&mut table, &node.name, *to);
                table
            }
            NodeOp::If { condition, then_body, else_body } => {
                let mut table = Table::of("if", quoted(&self.program.scalars[*condition].name));
                table.add("then", self.inner(step, then_body, indent));
                if !else_body.is_empty() {
                    table.add("else", self.inner(step, else_body, indent));
                }
                table
            }
            NodeOp::Switch { selector, bodies } => {
                let mut table = Table::of("switch", quoted(&self.program.scalars[*selector].name));
                let bodies: Vec<_> = bodies.iter().map(|body| self.inner(step, body, indent)).collect();
                table.add("bodies", format!("[{}]", bodies.join(", ")));
                table
            }
            NodeOp::While { max, index, until, body } => {
                let scalar = |scalar: &ScalarId| quoted(&self.program.scalars[*scalar].name);
                let mut table = match max {
                    LoopBound::Const(count) => Table::of("while", count.to_string()),
                    LoopBound::Scalar(bound) => Table::of("while", scalar(bound)),
                };
                index.iter().for_each(|index| table.add("index", scalar(index)));
                until.iter().for_each(|until| table.add("until", scalar(until)));
                table.add("body", self.inner(step, body, indent));
                table
            }
        }
    }

    /// A body as a table over several lines.
    fn inner(&mut self, step: &Step, nodes: &[NodeId], indent: &str) -> String {
        let mut text = String::from("{\n");
        self.body(&mut text, step, nodes, &format!("{indent}    "), ",");
        text.push_str(indent);
        text.push('}');
        text
    }

    fn product(&self, gemm: &Gemm) -> Table {
        let operand = |operand: &Operand| {
            let mark = if operand.transposed { "'" } else { "" };
            format!("{}{mark}", view_text(self.program, &operand.view))
        };
        let mut table = Table::of("gemm", quoted(&format!("{} @ {}", operand(&gemm.a), operand(&gemm.b))));
        if !is_one(gemm.alpha) {
            table.add("alpha", self.factor(gemm.alpha));
        }
        if let Some((beta, c)) = &gemm.add {
            table.add("add", quoted(&view_text(self.program, c)));
            if !is_one(*beta) {
                table.add("beta", self.factor(*beta));
            }
        }
        if gemm.compute != Compute::F32 {
            table.add("compute", quoted(gemm.compute.name()));
        }
        if let Some(epilogue) = &gemm.epilogue {
            let scope = self.scope(gemm.product_shape(), ValueType::F32);
            table.add("epilogue", quoted(&ExprText::new(&scope, epilogue).results(epilogue.roots())));
        }
        table
    }

    fn factor(&self, factor: Factor) -> String {
        match factor {
            Factor::Const(value) => float(value),
            Factor::Scalar(scalar) => quoted(&self.program.scalars[scalar].name),
        }
    }

    fn product_and_map(&self, name: &str, gemm: &Gemm, map: &Map) -> Table {
        let mut table = self.product(gemm);
        let scope = Scope { acc: Some(gemm.d.buffer), ..self.scope(map.space, ValueType::F32) };
        let text = ExprText::new(&scope, &map.expr);
        table.add("then", quoted(&text.results(map.expr.roots())));
        self.outs(&mut table, name, &map.stores, &text);
        table
    }

    fn map(&self, name: &str, map: &Map) -> Table {
        let text = ExprText::new(&self.scope(map.space, ValueType::F32), &map.expr);
        let values = &map.expr.roots()[..map.stores.len().min(map.expr.roots().len())];
        let mut table = Table::of("map", quoted(&text.results(values)));
        if self.map_space(map) != Some(map.space) {
            table.add("over", shape(&map.space));
        }
        self.outs(&mut table, name, &map.stores, &text);
        table
    }

    /// The index space that a map has when its spec does not state one; none where that is not worth telling.
    fn map_space(&self, map: &Map) -> Option<Shape> {
        let known = |store: &&Store| store.scatter.is_none() && !self.implied.declares(store.target, &self.written);
        match map.stores.iter().find(known).map(|store| store.target) {
            Some(Target::View(view)) => Some(view.shape()),
            Some(Target::Scalar(_)) => Some(Shape::SCALAR),
            None if map.stores.iter().any(|store| store.scatter.is_some()) => None,
            None => implied_space(&map.expr, &map.space),
        }
    }

    fn reduce(&self, name: &str, reduce: &Reduce) -> Table {
        let roots = reduce.expr.roots();
        let text = ExprText::new(&self.scope(reduce.space, ValueType::F32), &reduce.expr);
        let mut table = Table::of("reduce", quoted(&text.results(roots)));
        table.add("by", quoted(reduce.combiner.name()));
        table.add("axes", numbers(&reduce.axes));
        if implied_space(&reduce.expr, &reduce.space) != Some(reduce.space) {
            table.add("over", shape(&reduce.space));
        }
        let types = value_types(self.program, &reduce.expr, ValueType::F32);
        let combined = match (reduce.combiner, roots) {
            (Combiner::Argmax, _) => ValueType::U32,
            (_, [root, ..]) => types[*root],
            _ => ValueType::F32,
        };
        let finish = ExprText::new(&self.scope(reduce.kept(), combined), &reduce.finish);
        if !is_acc(&reduce.finish) {
            table.add("finish", quoted(&finish.results(values(&reduce.finish, &reduce.stores))));
        }
        self.outs(&mut table, name, &reduce.stores, &finish);
        table
    }

    fn scope(&self, space: Shape, acc_type: ValueType) -> Scope<'_> {
        Scope { program: self.program, taken: self.taken, space, acc_type, acc: None }
    }

    /// Adds `out` and `scatter`, unless the node writes what has its own name.
    fn outs(&self, table: &mut Table, name: &str, stores: &[Store], text: &ExprText) {
        let outs: Vec<_> = stores.iter().map(|store| self.out(store, text)).collect();
        if outs != [name_text(name)] && outs != [format!("={name}")] {
            table.add("out", one_or_list(&outs));
        }
        let rules: Vec<_> = stores.iter().filter_map(|store| store.scatter.as_ref()?.rule).collect();
        match &rules[..] {
            [] => {}
            [first, rest @ ..] if rest.iter().all(|rule| rule == first) => table.add("scatter", quoted(first.name())),
            _ => table.add("scatter", list(rules.iter().map(|rule| rule.name()))),
        }
    }

    fn out(&self, store: &Store, text: &ExprText) -> String {
        let view = match store.target {
            Target::Scalar(scalar) => return name_text(&self.program.scalars[scalar].name),
            Target::View(view) => view,
        };
        if self.implied.declares(store.target, &self.written) {
            return format!("={}", self.program.buffers[view.buffer].name);
        }
        let place = view_text(self.program, &view);
        let Some(scatter) = &store.scatter else { return place };
        let buffer = &self.program.buffers[view.buffer];
        // Two brackets are a box and the place in it; one is enough for a place that no slice can be.
        let could_be_slice = scatter.index.iter().all(|term| matches!(term, IndexTerm::Fixed(_)));
        let slices = if could_be_slice && is_whole(&view, &buffer.shape) {
            format!("[{}]", vec![":"; buffer.shape.rank()].join(", "))
        } else {
            String::new()
        };
        format!("{place}{slices}[{}]", text.terms(&scatter.index))
    }

    fn out_view(&self, table: &mut Table, name: &str, view: View) {
        let buffer = &self.program.buffers[view.buffer];
        let declares = self.implied.declares(Target::View(view), &self.written);
        if buffer.name == name && is_whole(&view, &buffer.shape) {
            return;
        }
        let place = view_text(self.program, &view);
        table.add("out", quoted(&if declares { format!("={}", buffer.name) } else { place }));
    }

    fn call(&self, call: &KernelCall) -> Table {
        let decl = &self.program.kernels[call.kernel];
        let mut table = Table::of("kernel", quoted(&decl.name));
        let params = decl.params.iter().filter(|param| param.class.needs_argument());
        let args: Vec<_> = params.zip(&call.args).map(|(param, arg)| (&param.name, self.arg(arg))).collect();
        let clashes = |name: &str| name == "after" || name == "args" || KINDS.contains(&name);
        if args.iter().any(|(name, _)| clashes(name)) {
            let args: Vec<_> = args.iter().map(|(name, arg)| format!("{} = {arg}", single_key(name))).collect();
            table.add("args", format!("{{ {} }}", args.join(", ")));
        } else {
            args.into_iter().for_each(|(name, arg)| table.add(&single_key(name), arg));
        }
        table
    }

    fn arg(&self, arg: &Arg) -> String {
        match arg {
            Arg::View(view) if self.implied.declares(Target::View(*view), &self.written) => {
                quoted(&format!("={}", self.program.buffers[view.buffer].name))
            }
            Arg::View(view) => quoted(&view_text(self.program, view)),
            Arg::Group(group) => quoted(&name_text(&self.program.groups[*group].name)),
            Arg::Scalar(scalar) => quoted(&name_text(&self.program.scalars[*scalar].name)),
            Arg::Const(value) => constant(*value),
        }
    }
}

/// The roots that are stored; the others are places.
fn values<'e>(expr: &'e Expr, stores: &[Store]) -> &'e [crate::entity::ValueId] {
    &expr.roots()[..stores.len().min(expr.roots().len())]
}

fn is_one(factor: Factor) -> bool {
    matches!(factor, Factor::Const(value) if value.to_bits() == 1.0f32.to_bits())
}

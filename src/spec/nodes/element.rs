//! `map` and `reduce`: nodes that evaluate an expression at every element of an index space.

use super::output::{Output, OutputText, Stored, hints, store};
use super::{Draft, StepReader};
use crate::ir::{Combiner, DType, Map, NodeOp, Reduce, ScatterRule, Shape, ValueType};
use crate::spec::context::Context;
use crate::spec::document::{Fields, Span};
use crate::spec::error::SpecError;
use crate::spec::expr::{Acc, Lowering};
use crate::spec::space;
use crate::spec::syntax::{self, ProgramAst};

impl<'d> StepReader<'_, '_, 'd> {
    /// `{ map = "…", over = […], out = …, scatter = … }`.
    pub(super) fn map(&mut self, name: &str, fields: &mut Fields<'d>) -> Option<Draft> {
        let entry = fields.take("map")?;
        let text = self.cx.text(&entry, "an expression");
        let over = self.over(fields);
        let outputs = self.output_texts(name, fields);
        let text = text?;
        let ast = syntax::program(self.cx, &text);
        let (ast, texts, over) = (ast?, outputs?, over?);
        let outputs = self.outputs(&texts)?;
        let rules = self.scatter_rules(fields, scattered(&outputs))?;
        let declared = outputs.iter().find_map(|output| match output {
            Output::View(_, Some(_), _) | Output::New { .. } => None,
            known => known.space(),
        });
        let space = match over.or(declared) {
            Some(space) => space,
            None => self.implied_space(&ast, None, name, text.whole())?,
        };
        let results = Results { ast: &ast, span: text.whole(), texts: &texts, rules, new: None };
        self.mapped(space, Acc::Node(ValueType::F32), results)
    }

    /// A map over a known space.
    pub(super) fn mapped(&mut self, space: Shape, acc: Acc, results: Results<'_>) -> Option<Draft> {
        let Results { ast, span, texts, rules, new } = results;
        let outputs = self.outputs(texts)?;
        check_count(self.cx, ast, &outputs, &span)?;
        let mut lowering = Lowering::new(self.cx, space, acc);
        let hints = hints(&lowering, &outputs);
        let values = lowering.results(ast, &hints)?;
        let Stored { expr, stores, mut parts } = store(lowering, values, &outputs, rules, new)?;
        parts.push(("expr".into(), span));
        Some(Draft { op: NodeOp::Map(Map { space, expr, stores }), parts })
    }

    /// `{ reduce = "…", by = "sum", axes = […], finish = "…", over = […], out = … }`.
    pub(super) fn reduce(&mut self, name: &str, fields: &mut Fields<'d>) -> Option<Draft> {
        let entry = fields.take("reduce")?;
        let text = self.cx.text(&entry, "an expression");
        let combiner = fields.need(self.cx, "by");
        let words = Combiner::ALL.map(|combiner| (combiner.name(), combiner));
        let combiner = combiner.and_then(|combiner| self.cx.choice(&combiner, &words));
        let axes_entry = fields.take("axes");
        let axes = match &axes_entry {
            Some(entry) => self.axes(entry).map(Some),
            None => Some(None),
        };
        let finish = fields.take("finish").map(|finish| self.cx.text(&finish, "an expression of `acc`"));
        let over = self.over(fields);
        let texts = self.output_texts(name, fields);
        let text = text?;
        let ast = syntax::program(self.cx, &text);
        let finish_text = match finish {
            Some(finish) => Some(finish?),
            None => None,
        };
        let finish = match &finish_text {
            Some(text) => syntax::program(self.cx, text)?,
            None => ProgramAst::acc(text.whole()),
        };
        let (ast, combiner, axes, over, texts) = (ast?, combiner?, axes?, over?, texts?);
        let space = match over {
            Some(space) => space,
            None => self.implied_space(&ast, None, name, text.whole())?,
        };
        let axes = axes.unwrap_or_else(|| (0u8..).take(space.rank()).collect());
        if ast.results.len() != 1 {
            let error = SpecError::OutputCount { results: ast.results.len(), outputs: 1 };
            return self.cx.fail(text.whole(), error);
        }
        let mut lowering = Lowering::new(self.cx, space, Acc::Node(ValueType::F32));
        let root = lowering.results(&ast, &[])?;
        let combined = if combiner == Combiner::Argmax { ValueType::U32 } else { lowering.type_of(root[0]) };
        let expr = lowering.finish(&root);

        let outputs = self.outputs(&texts)?;
        let finish_span = finish_text.as_ref().map_or(text.whole(), |finish| finish.whole());
        check_count(self.cx, &finish, &outputs, &finish_span)?;
        let rules = self.scatter_rules(fields, scattered(&outputs))?;
        let kept = space.without(|axis| axes.iter().any(|&reduced| usize::from(reduced) == axis));
        let mut lowering = Lowering::new(self.cx, kept, Acc::Node(combined));
        let hints = hints(&lowering, &outputs);
        let values = lowering.results(&finish, &hints)?;
        let Stored { expr: finish, stores, mut parts } = store(lowering, values, &outputs, rules, None)?;
        parts.push(("expr".into(), text.whole()));
        parts.push(("finish".into(), finish_span));
        parts.extend(axes_entry.map(|entry| ("axes".into(), entry.span())));
        Some(Draft { op: NodeOp::Reduce(Reduce { space, axes, combiner, expr, finish, stores }), parts })
    }

    fn axes(&mut self, entry: &crate::spec::document::Entry<'d>) -> Option<Vec<u8>> {
        let elements = self.cx.array(entry, "a list of axes, counted from 0")?;
        let axes = elements.iter().map(|element| {
            let axis = self.cx.unsigned(element)?;
            u8::try_from(axis).ok().or_else(|| self.cx.wrong_type(element, "an axis, counted from 0"))
        });
        axes.collect()
    }

    /// The index space that a node states: a shape, or the name of a buffer that has it.
    fn over(&mut self, fields: &mut Fields<'d>) -> Option<Option<Shape>> {
        let Some(entry) = fields.take("over") else { return Some(None) };
        if entry.value.is_array() {
            return self.cx.shape("over", &entry).map(Some);
        }
        let text = self.cx.text(&entry, "a shape, or a buffer that has it")?;
        let place = syntax::place(self.cx, &text)?;
        let view = crate::spec::view::resolve_view(self.cx, &place)?;
        Some(Some(view.shape()))
    }

    /// The index space that the operands imply.
    pub(super) fn implied_space(
        &mut self,
        ast: &ProgramAst,
        acc: Option<Shape>,
        name: &str,
        span: Span,
    ) -> Option<Shape> {
        let (space, found) = space::infer(self.cx, ast, acc)?;
        if found {
            return Some(space);
        }
        // An expression that means nothing says so itself.
        let mut lowering = Lowering::new(self.cx, space, Acc::Node(ValueType::F32));
        if lowering.results(ast, &[Some(ValueType::F32)]).is_some() {
            let remedy = "state the index space with `over`";
            self.cx.error(span, SpecError::CannotInfer { what: format!("`{name}`"), remedy });
        }
        None
    }
}

/// What a map evaluates, and where it goes.
pub(super) struct Results<'t> {
    pub(super) ast: &'t ProgramAst,
    pub(super) span: Span,
    pub(super) texts: &'t [OutputText],
    pub(super) rules: Vec<Option<ScatterRule>>,
    /// The type of outputs that are declared here; without it they get the type of their value.
    pub(super) new: Option<DType>,
}

fn scattered(outputs: &[Output<'_>]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::View(_, Some(_), _))).count()
}

fn check_count(cx: &mut Context<'_>, ast: &ProgramAst, outputs: &[Output<'_>], span: &Span) -> Option<()> {
    if ast.results.len() == outputs.len() {
        return Some(());
    }
    let error = SpecError::OutputCount { results: ast.results.len(), outputs: outputs.len() };
    cx.fail(span.clone(), error)
}

//! Where a node's results go: `out`, or memory of the node's own name.

use std::borrow::Cow;

use super::StepReader;
use crate::entity::ValueId;
use crate::ir::{
    DType, Expr, IndexTerm, Item, Role, Scatter, ScatterRule, Shape, Store, Symbol, Target, ValueType, View,
};
use crate::spec::document::{Fields, Span, Text};
use crate::spec::error::SpecError;
use crate::spec::expr::Lowering;
use crate::spec::syntax::{self, Ast};
use crate::spec::view::{self, Place};

/// One output as written.
#[derive(Debug)]
pub(super) enum OutputText {
    /// A `Temp` to be declared.
    New { name: String, span: Span },
    /// Existing memory.
    Known(Ast),
}

/// One output that is understood.
#[derive(Debug)]
pub(super) enum Output<'t> {
    New { name: &'t str, span: Span },
    View(View, Option<&'t [syntax::IndexEntry]>, Span),
    Scalar(crate::entity::ScalarId, Span),
}

impl Output<'_> {
    /// The shape that the output asks of the index space, where it asks for one.
    pub(super) fn space(&self) -> Option<Shape> {
        match self {
            Self::View(view, None, _) => Some(view.shape()),
            Self::Scalar(..) => Some(Shape::SCALAR),
            Self::New { .. } | Self::View(_, Some(_), _) => None,
        }
    }

    fn span(&self) -> Span {
        match self {
            Self::New { span, .. } | Self::View(_, _, span) | Self::Scalar(_, span) => span.clone(),
        }
    }
}

impl<'d> StepReader<'_, '_, 'd> {
    /// The outputs that a node names, or the one of its own name.
    pub(super) fn output_texts(&mut self, name: &str, fields: &mut Fields<'d>) -> Option<Vec<OutputText>> {
        let Some(entry) = fields.take("out") else {
            return Some(vec![self.own_output(name, &fields.span)]);
        };
        let texts = self.cx.text_or_texts(&entry, "the name of a buffer or scalar, or a list of them")?;
        let outputs: Vec<_> = texts.iter().map(|text| self.output_text(text)).collect();
        outputs.into_iter().collect()
    }

    fn own_output(&self, name: &str, span: &Span) -> OutputText {
        if !matches!(self.cx.symbols.get(name), Some(Symbol::Buffer(_) | Symbol::Scalar(_))) {
            return OutputText::New { name: name.to_owned(), span: span.clone() };
        }
        OutputText::Known(Ast::name(name, span.clone()))
    }

    fn output_text(&mut self, text: &Text<'_>) -> Option<OutputText> {
        if let Some(name) = text.text.strip_prefix('=') {
            let name = name.trim();
            self.is_new(name, &text.whole())?;
            return Some(self.own_output(name, &text.whole()));
        }
        syntax::place(self.cx, text).map(OutputText::Known)
    }

    /// Whether a name with `=` before it names a `Temp`, new or of another step or variant: what else is declared would be
    /// overwritten by what looks like a declaration.
    pub(super) fn is_new(&mut self, name: &str, span: &Span) -> Option<()> {
        let is_temp =
            |symbol: &Symbol| matches!(symbol, Symbol::Buffer(id) if self.cx.program.buffers[*id].role == Role::Temp);
        if self.cx.symbols.get(name).is_none_or(is_temp) {
            return Some(());
        }
        let expected = "a new name: leave out the `=` to write what is declared";
        self.cx.fail(span.clone(), SpecError::WrongKind { name: name.to_owned(), found: "declared already", expected })
    }

    /// What the outputs stand for.
    pub(super) fn outputs<'t>(&mut self, texts: &'t [OutputText]) -> Option<Vec<Output<'t>>> {
        let outputs: Vec<_> = texts.iter().map(|text| self.output(text)).collect();
        outputs.into_iter().collect()
    }

    fn output<'t>(&mut self, text: &'t OutputText) -> Option<Output<'t>> {
        let ast = match text {
            OutputText::New { name, span } => return Some(Output::New { name, span: span.clone() }),
            OutputText::Known(ast) => ast,
        };
        match view::resolve(self.cx, ast, "buffer or scalar")? {
            Place::View(view, index) => Some(Output::View(view, index, ast.span.clone())),
            Place::Scalar(scalar) => Some(Output::Scalar(scalar, ast.span.clone())),
            Place::Group(group) => {
                let name = self.cx.program.groups[group].name.clone();
                let error = SpecError::WrongKind { name, found: "a group", expected: "a buffer or scalar" };
                self.cx.fail(ast.span.clone(), error)
            }
        }
    }

    /// The one view that a node without an expression writes; a new one gets this shape and type.
    pub(super) fn output_view(
        &mut self,
        name: &str,
        fields: &mut Fields<'d>,
        like: Option<(Shape, DType)>,
    ) -> Option<(View, Span)> {
        let texts = self.output_texts(name, fields)?;
        let [text] = &texts[..] else {
            let error = SpecError::OutputCount { results: 1, outputs: texts.len() };
            return self.cx.fail(fields.span.clone(), error);
        };
        match (text, like) {
            (OutputText::Known(ast), _) => Some((view::resolve_view(self.cx, ast)?, ast.span.clone())),
            (OutputText::New { name, span }, Some((shape, dtype))) => {
                let buffer = self.cx.declare_temp(name, dtype, shape, span.clone());
                Some((View::full(buffer, &shape), span.clone()))
            }
            (OutputText::New { span, .. }, None) => {
                let remedy = "declare it under [temp], or name existing memory with `out`";
                self.cx.fail(span.clone(), SpecError::CannotInfer { what: format!("`{name}`"), remedy })
            }
        }
    }

    /// The scatter rules of a node, one per scattered output: one for all, or a list.
    pub(super) fn scatter_rules(&mut self, fields: &mut Fields<'d>, count: usize) -> Option<Vec<Option<ScatterRule>>> {
        let words = ScatterRule::ALL.map(|rule| (rule.name(), rule));
        let Some(entry) = fields.take("scatter") else { return Some(vec![None; count]) };
        let rules = match entry.value.is_array() {
            false => vec![self.cx.choice(&entry, &words); count],
            true => {
                let elements = self.cx.array(&entry, "a rule per scattered output")?;
                elements.iter().map(|element| self.cx.choice(element, &words)).collect()
            }
        };
        let rules = rules.into_iter().map(|rule| rule.map(Some)).collect::<Option<Vec<_>>>()?;
        if rules.len() != count || count == 0 {
            return self.cx.wrong_type(&entry, &format!("a rule for each of the {count} scattered outputs"));
        }
        Some(rules)
    }
}

/// The types that results must have, where the outputs say so.
pub(super) fn hints(lowering: &Lowering<'_, '_>, outputs: &[Output<'_>]) -> Vec<Option<ValueType>> {
    let hint = |output: &Output<'_>| match output {
        Output::New { .. } => None,
        Output::View(view, _, _) => Some(ValueType::of(lowering.cx.program.buffers[view.buffer].dtype)),
        Output::Scalar(scalar, _) => Some(ValueType::of(lowering.cx.program.scalars[*scalar].init.dtype())),
    };
    outputs.iter().map(hint).collect()
}

/// The expression of all results, where they go, and where each output was written.
pub(super) struct Stored {
    pub(super) expr: Expr,
    pub(super) stores: Vec<Store>,
    pub(super) parts: Vec<(Cow<'static, str>, Span)>,
}

/// Stores `values` to the outputs.
///
/// `new` is the type of new outputs; without it they get the type of their value.
pub(super) fn store(
    mut lowering: Lowering<'_, '_>,
    mut values: Vec<ValueId>,
    outputs: &[Output<'_>],
    rules: Vec<Option<ScatterRule>>,
    new: Option<DType>,
) -> Option<Stored> {
    let count = values.len();
    let mut places = Vec::new();
    for output in outputs {
        let terms = match output {
            Output::View(view, Some(entries), span) if entries.len() != view.shape().rank() => {
                return view::index_count(lowering.cx, view.buffer, entries.len(), span);
            }
            Output::View(_, Some(entries), _) => Some(lowering.terms(entries)?),
            _ => None,
        };
        values.extend(terms.iter().flatten().filter_map(|term| match term {
            IndexTerm::Value(value) => Some(*value),
            IndexTerm::Axis(_) | IndexTerm::Fixed(_) => None,
        }));
        places.push(terms);
    }
    let mut targets = Vec::new();
    for (output, &value) in outputs.iter().zip(&values) {
        targets.push(match output {
            Output::View(view, _, _) => Target::View(*view),
            Output::Scalar(scalar, _) => Target::Scalar(*scalar),
            Output::New { name, span } => {
                let dtype = new.unwrap_or(match lowering.type_of(value) {
                    ValueType::F32 => DType::F32,
                    ValueType::I32 => DType::I32,
                    ValueType::U32 | ValueType::Bool => DType::U32,
                });
                let space = lowering.space;
                let buffer = lowering.cx.declare_temp(name, dtype, space, span.clone());
                Target::View(View::full(buffer, &space))
            }
        });
    }
    let expr = lowering.finish(&values);
    let mut roots = expr.roots()[count..].iter().copied();
    let mut rules = rules.into_iter();
    let mut scatter = |terms: Vec<IndexTerm>| {
        let rename = |term| match term {
            IndexTerm::Value(value) => IndexTerm::Value(roots.next().unwrap_or(value)),
            fixed => fixed,
        };
        Scatter { index: terms.into_iter().map(rename).collect(), rule: rules.next().flatten() }
    };
    let stores =
        targets.into_iter().zip(places).map(|(target, terms)| Store { target, scatter: terms.map(&mut scatter) });
    let stores = stores.collect();
    let parts = outputs.iter().enumerate().map(|(at, output)| (Item::store_part(at), output.span())).collect();
    Some(Stored { expr, stores, parts })
}

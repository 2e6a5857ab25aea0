//! `copy` and `fill`, and the conditionals `if`, `switch` and `while`.

use toml::de::DeValue;

use super::{Draft, StepReader, is_node};
use crate::entity::{NodeId, ScalarId};
use crate::ir::{DType, LoopBound, NodeOp};
use crate::spec::document::{Entry, Fields, Span, flatten};
use crate::spec::{syntax, view};

impl<'d> StepReader<'_, '_, 'd> {
    /// `{ copy = "from", out = "to" }`.
    pub(super) fn copy(&mut self, name: &str, fields: &mut Fields<'d>) -> Option<Draft> {
        let entry = fields.take("copy")?;
        let text = self.cx.text(&entry, "the name of a buffer, or a slice of one")?;
        let place = syntax::place(self.cx, &text)?;
        let from = view::resolve_view(self.cx, &place)?;
        let like = (from.shape(), self.cx.program.buffers[from.buffer].dtype);
        let (to, to_span) = self.output_view(name, fields, Some(like))?;
        Some(Draft::new(NodeOp::Copy { from, to }, vec![("from", text.whole()), ("to", to_span)]))
    }

    /// `{ fill = 0.0, out = "to" }`.
    pub(super) fn fill(&mut self, name: &str, fields: &mut Fields<'d>) -> Option<Draft> {
        let entry = fields.take("fill")?;
        let (to, to_span) = self.output_view(name, fields, None)?;
        let dtype = match self.cx.program.buffers[to.buffer].dtype {
            DType::Bf16 => DType::F32,
            dtype => dtype,
        };
        let value = self.cx.constant(&entry, dtype)?;
        Some(Draft::new(NodeOp::Fill { to, value }, vec![("to", to_span)]))
    }

    /// `{ if = "flag", then = { … }, else = { … } }`.
    pub(super) fn branch(&mut self, fields: &mut Fields<'d>) -> Option<Draft> {
        let (condition, span) = self.cell(fields, "if")?;
        let then_body = fields.need(self.cx, "then");
        let else_body = fields.take("else");
        let then_body = then_body.and_then(|body| self.inner(&body));
        let else_body = else_body.map_or(Some(Vec::new()), |body| self.inner(&body));
        let op = NodeOp::If { condition, then_body: then_body?, else_body: else_body? };
        Some(Draft::new(op, vec![("condition", span)]))
    }

    /// `{ switch = "selector", bodies = [{ … }, { … }] }`.
    pub(super) fn switch(&mut self, fields: &mut Fields<'d>) -> Option<Draft> {
        let (selector, span) = self.cell(fields, "switch")?;
        let bodies = fields.need(self.cx, "bodies")?;
        let bodies = self.cx.array(&bodies, "a list of bodies, each a table of nodes")?;
        let bodies: Vec<_> = bodies.iter().map(|body| self.inner(body)).collect();
        let bodies = bodies.into_iter().collect::<Option<_>>()?;
        Some(Draft::new(NodeOp::Switch { selector, bodies }, vec![("condition", span)]))
    }

    /// `{ while = 100, index = "i", until = "done", body = { … } }`; the bound may be a scalar.
    pub(super) fn repeat(&mut self, fields: &mut Fields<'d>) -> Option<Draft> {
        let entry = fields.take("while")?;
        let max = match entry.value {
            DeValue::String(text) if self.is_cell(text) => {
                let text = self.cx.text(&entry, "a number, or the name of a scalar")?;
                LoopBound::Scalar(self.cx.scalar(&text)?)
            }
            _ => LoopBound::Const(self.cx.unsigned(&entry)?),
        };
        let mut parts = vec![("condition", entry.span())];
        let index = self.optional_cell(fields, "index", &mut parts);
        let until = self.optional_cell(fields, "until", &mut parts);
        let body = fields.need(self.cx, "body").and_then(|body| self.inner(&body));
        Some(Draft::new(NodeOp::While { max, index: index?, until: until?, body: body? }, parts))
    }

    /// Whether a loop's bound is a scalar's name, declared or not; all else is dimension arithmetic.
    fn is_cell(&self, text: &str) -> bool {
        let is_name = !text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
        self.cx.symbols.contains_key(text) || (is_name && !self.cx.dims.contains_key(text))
    }

    fn optional_cell(
        &mut self,
        fields: &mut Fields<'d>,
        key: &'static str,
        parts: &mut Vec<(&'static str, Span)>,
    ) -> Option<Option<ScalarId>> {
        let Some(entry) = fields.take(key) else { return Some(None) };
        let (cell, span) = self.named_cell(&entry)?;
        parts.push((key, span));
        Some(Some(cell))
    }

    fn cell(&mut self, fields: &mut Fields<'d>, key: &'static str) -> Option<(ScalarId, Span)> {
        let entry = fields.take(key)?;
        self.named_cell(&entry)
    }

    fn named_cell(&mut self, entry: &Entry<'d>) -> Option<(ScalarId, Span)> {
        let text = self.cx.text(entry, "the name of a scalar")?;
        Some((self.cx.scalar(&text)?, text.whole()))
    }

    /// The nodes of a body.
    fn inner(&mut self, entry: &Entry<'d>) -> Option<Vec<NodeId>> {
        let Some(table) = entry.table() else { return self.cx.wrong_type(entry, "a body: a table of nodes") };
        Some(self.body(flatten(table, is_node), entry))
    }
}

//! `gemm`: matrix products, with what follows them.

use super::element::Results;
use super::output::OutputText;
use super::{Draft, StepReader};
use crate::ir::{Compute, DType, Factor, Gemm, NodeOp, Operand, Shape, Symbol, ValueType, View};
use crate::spec::document::{Entry, Fields, Span, Text};
use crate::spec::expr::{Acc, Lowering};
use crate::spec::syntax::{self, OperandAst};
use crate::spec::view;

impl<'d> StepReader<'_, '_, 'd> {
    /// `{ gemm = "x @ w'", then = "…", alpha = …, add = "…", beta = …, compute = "…", epilogue = "…", out = … }`.
    ///
    /// With `then` it is two nodes: the product `NAME.mm`, and a map `NAME` of it.
    pub(super) fn gemm(&mut self, name: &str, fields: &mut Fields<'d>) -> Option<Vec<(String, Draft)>> {
        fields.exclusive(self.cx, "then", "epilogue");
        let product = self.product(fields);
        let then = fields.take("then").map(|then| self.cx.text(&then, "an expression of `acc`"));
        let product = product?;
        let like = (product.shape(), self.cx.program.buffers[product.a.view.buffer].dtype);
        let Some(then) = then else {
            let (d, d_span) = self.output_view(name, fields, Some(like))?;
            return Some(vec![(name.to_owned(), self.product_node(product, d, d_span)?)]);
        };
        let (then, texts) = (then?, self.output_texts(name, fields)?);
        let ast = syntax::program(self.cx, &then)?;
        let mut texts = texts;
        let declared = self.outputs(&texts)?.iter().find_map(|output| output.space());
        let space = declared.unwrap_or(like.0);
        // The map's own memory is declared before the product's, as the Rust API does.
        for text in &mut texts {
            if let OutputText::New { name, span } = text {
                self.cx.declare_temp(name, like.1, space, span.clone());
                *text = OutputText::Known(syntax::Ast::name(name, span.clone()));
            }
        }
        let product_name = [name, ".mm"].concat();
        let d = match self.cx.symbols.get(&product_name) {
            Some(&Symbol::Buffer(known)) => View::full(known, &self.cx.program.buffers[known].shape),
            _ => {
                let temp = self.cx.declare_temp(&product_name, like.1, like.0, fields.span.clone());
                View::full(temp, &like.0)
            }
        };
        let product = self.product_node(product, d, fields.span.clone())?;
        let results = Results { ast: &ast, span: then.whole(), texts: &texts, rules: Vec::new(), new: None };
        let map = self.mapped(space, Acc::Product(d), results)?;
        Some(vec![(product_name, product), (name.to_owned(), map)])
    }

    fn product(&mut self, fields: &mut Fields<'d>) -> Option<Product<'d>> {
        let entry = fields.take("gemm")?;
        let text = self.cx.text(&entry, "a product such as \"x @ w'\"");
        let alpha = fields.take("alpha");
        let alpha = alpha.map_or(Some(Factor::Const(1.0)), |alpha| self.factor(&alpha));
        let add = fields.take("add").map(|add| self.cx.text(&add, "the name of a buffer"));
        let beta = match add {
            Some(_) => fields.take("beta").map_or(Some(Factor::Const(1.0)), |beta| self.factor(&beta)),
            None => Some(Factor::Const(1.0)),
        };
        let compute = fields.take("compute");
        let words = Compute::ALL.map(|compute| (compute.name(), compute));
        let compute = compute.map_or(Some(Compute::F32), |compute| self.cx.choice(&compute, &words));
        let epilogue = fields.take("epilogue").map(|text| self.cx.text(&text, "an expression of `acc`"));
        let (a, b) = syntax::product(self.cx, &text?)?;
        let spans = (a.place.span.clone(), b.place.span.clone());
        let (a, b) = (self.operand(&a), self.operand(&b));
        let c = match add {
            Some(text) => {
                let text = text?;
                let place = syntax::place(self.cx, &text)?;
                Some((view::resolve_view(self.cx, &place)?, text.whole()))
            }
            None => None,
        };
        let epilogue = match epilogue {
            Some(text) => Some(text?),
            None => None,
        };
        Some(Product { a: a?, b: b?, spans, alpha: alpha?, beta: beta?, c, compute: compute?, epilogue })
    }

    fn operand(&mut self, ast: &OperandAst) -> Option<Operand> {
        Some(Operand { view: view::resolve_view(self.cx, &ast.place)?, transposed: ast.transposed })
    }

    fn factor(&mut self, entry: &Entry<'d>) -> Option<Factor> {
        if let toml::de::DeValue::String(_) = entry.value {
            let text = self.cx.text(entry, "a scalar")?;
            if !text.text.contains('(') {
                return self.cx.scalar(&text).map(Factor::Scalar);
            }
        }
        let value = self.cx.constant(entry, DType::F32)?;
        Some(Factor::Const(f32::from_bits(value.bits())))
    }

    fn product_node(&mut self, product: Product<'d>, d: View, d_span: Span) -> Option<Draft> {
        let shape = product.shape();
        let Product { a, b, spans, alpha, beta, c, compute, epilogue } = product;
        let mut parts = vec![("a", spans.0), ("b", spans.1), ("d", d_span)];
        parts.extend(c.iter().map(|(_, span)| ("c", span.clone())));
        let expr = match &epilogue {
            Some(text) => {
                let ast = syntax::program(self.cx, text)?;
                let mut lowering = Lowering::new(self.cx, shape, Acc::Node(ValueType::F32));
                let roots = lowering.results(&ast, &[Some(ValueType::F32)])?;
                Some(lowering.finish(&roots))
            }
            None => None,
        };
        parts.extend(epilogue.iter().map(|text| ("epilogue", text.whole())));
        let add = c.map(|(view, _)| (beta, view));
        Some(Draft::new(NodeOp::Gemm(Gemm { a, b, d, alpha, add, compute, epilogue: expr }), parts))
    }
}

/// A product that has no destination yet.
struct Product<'d> {
    a: Operand,
    b: Operand,
    spans: (Span, Span),
    alpha: Factor,
    beta: Factor,
    c: Option<(View, Span)>,
    compute: Compute,
    epilogue: Option<Text<'d>>,
}

impl Product<'_> {
    fn shape(&self) -> Shape {
        Gemm::shape_of(&self.a, &self.b)
    }
}

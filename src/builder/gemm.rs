//! Matrix products.

use super::body::Body;
use super::value::{IntoVal, Val};
use crate::handle::{ProgramTag, Scalar, Tensor};
use crate::ir::{Compute, Element, Factor, Gemm, NodeOp, Operand, Origin, ProgramError, Shape};

/// A product of two matrices that no node computes yet.
#[derive(Clone, Copy, Debug)]
pub struct Product<T: Element> {
    a: Tensor<T>,
    transposed_a: bool,
    b: Tensor<T>,
    transposed_b: bool,
}

impl<T: Element> Product<T> {
    pub(super) const fn new(a: Tensor<T>, transposed_a: bool, b: Tensor<T>, transposed_b: bool) -> Self {
        Self { a, transposed_a, b, transposed_b }
    }
}

/// A factor, with the program that made it where it is a cell.
pub type TaggedFactor = (Option<ProgramTag>, Factor);

/// A factor of a product: a number that is baked, or a cell.
pub trait IntoFactor {
    /// The factor.
    fn into_factor(self) -> TaggedFactor;
}

impl IntoFactor for f32 {
    fn into_factor(self) -> TaggedFactor {
        (None, Factor::Const(self))
    }
}

impl IntoFactor for Scalar<f32> {
    fn into_factor(self) -> TaggedFactor {
        (Some(self.tag), Factor::Scalar(self.id))
    }
}

/// A matrix product that is being described. One of [`done`](Self::done), [`to`](Self::to), [`then`](Self::then) or
/// [`then_to`](Self::then_to) adds it.
#[derive(Debug)]
#[must_use = "the product is added by done(), to(), then() or then_to()"]
pub struct GemmBuilder<'a, 'b, T: Element> {
    body: &'a mut Body<'b>,
    name: String,
    product: Product<T>,
    alpha: TaggedFactor,
    add: Option<(TaggedFactor, Tensor<T>)>,
    compute: Compute,
    origin: Origin,
}

impl<'a, 'b, T: Element> GemmBuilder<'a, 'b, T> {
    pub(super) fn new(body: &'a mut Body<'b>, name: &str, product: Product<T>, origin: Origin) -> Self {
        let alpha = (None, Factor::Const(1.0));
        Self { body, name: name.into(), product, alpha, add: None, compute: Compute::F32, origin }
    }

    /// Multiplies the product by a number or a cell.
    pub fn alpha(mut self, alpha: impl IntoFactor) -> Self {
        self.alpha = alpha.into_factor();
        self
    }

    /// Adds `beta · c`.
    pub fn add(mut self, beta: impl IntoFactor, c: Tensor<T>) -> Self {
        self.add = Some((beta.into_factor(), c));
        self
    }

    /// Chooses the arithmetic; full float32 otherwise.
    pub fn compute(mut self, compute: Compute) -> Self {
        self.compute = compute;
        self
    }

    /// Adds the product, into a `Temp` of the node's name.
    pub fn done(self) -> Tensor<T> {
        let (name, shape) = (self.name.clone(), self.shape());
        let out = self.body.core.temp(&name, shape, self.origin);
        self.to(out)
    }

    /// Adds the product, into existing memory.
    pub fn to(self, out: Tensor<T>) -> Tensor<T> {
        let Self { body, name, product, alpha, add, compute, origin } = self;
        let mut operand = |part: &str, tensor: Tensor<T>, transposed| {
            if !body.core.own(&name, part, tensor.tag, origin) {
                return None;
            }
            let operand = tensor.operand(transposed);
            if operand.is_none() {
                let error = ProgramError::ShapeMismatch {
                    node: name.clone(),
                    part: part.into(),
                    found: "a group".into(),
                    expected: "a matrix".into(),
                };
                body.core.fail(error, origin);
            }
            operand
        };
        let a = operand("A", product.a, product.transposed_a);
        let b = operand("B", product.b, product.transposed_b);
        let d = operand("D", out, false);
        let added = add.map(|(beta, c)| (beta, operand("C", c, false)));
        let alpha = own_factor(body, &name, "alpha", alpha, origin);
        let add = match added {
            Some((beta, Some(Operand { view, .. }))) => Some((own_factor(body, &name, "beta", beta, origin), view)),
            _ => None,
        };
        if let (Some(a), Some(b), Some(Operand { view: d, .. })) = (a, b, d) {
            body.add(&name, NodeOp::Gemm(Gemm { a, b, d, alpha, add, compute, epilogue: None }), origin);
        }
        out
    }

    /// Adds the product as `NAME.mm`, and a map `NAME` of it, into a `Temp` of that name. Fusion decides whether they
    /// become one launch.
    pub fn then(self, map: impl FnOnce(Val<T::Value>) -> Val<T::Value>) -> Tensor<T> {
        let (name, shape, origin) = (self.name.clone(), self.shape(), self.origin);
        let out = self.body.core.temp(&name, shape, origin);
        self.then_to(out, map)
    }

    /// Adds the product as `NAME.mm`, and a map `NAME` of it, into existing memory.
    pub fn then_to(mut self, out: Tensor<T>, map: impl FnOnce(Val<T::Value>) -> Val<T::Value>) -> Tensor<T> {
        let (name, origin) = (self.name.clone(), self.origin);
        self.name = format!("{name}.mm");
        let shape = self.shape();
        let product = self.body.core.temp(&self.name, shape, origin);
        let Self { body, product: operands, alpha, add, compute, name: product_name, .. } = self;
        let gemm = GemmBuilder { body: &mut *body, name: product_name, product: operands, alpha, add, compute, origin };
        let product = gemm.to(product);
        super::map::MapBuilder::new(body, &name, origin).store(out, map(product.into_val())).done();
        out
    }

    /// The shape of the product; some shape where the operands have none.
    fn shape(&self) -> Shape {
        let Product { a, transposed_a, b, transposed_b } = self.product;
        let extent = |tensor: Tensor<T>, axis: usize| {
            tensor.shape().and_then(|shape| shape.dims().get(axis).copied()).unwrap_or(1)
        };
        let (m, n) = (extent(a, usize::from(transposed_a)), extent(b, usize::from(!transposed_b)));
        Shape::new(&[m, n]).unwrap_or_default()
    }
}

fn own_factor(body: &mut Body<'_>, node: &str, part: &str, (tag, factor): TaggedFactor, origin: Origin) -> Factor {
    if let Some(tag) = tag {
        body.core.own(node, part, tag, origin);
    }
    factor
}

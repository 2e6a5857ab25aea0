//! Reductions.

use std::marker::PhantomData;
use std::rc::Rc;

use super::Extents;
use super::body::Body;
use super::lower::{Lowering, space_of};
use super::map::{Result, lower_results};
use super::value::{IntoVal, Node, Val};
use crate::handle::{Scalar, Tensor};
use crate::ir::{Combiner, Element, NodeOp, Origin, Reduce, ScalarElement, Shape, Target};

/// A reduction that is being described: of values of type `V`, giving `A`. One of [`done`](Self::done), [`to`](Self::to)
/// or [`to_scalar`](Self::to_scalar) adds it.
#[derive(Debug)]
#[must_use = "the node is added by done(), to() or to_scalar()"]
pub struct ReduceBuilder<'a, 'b, A> {
    body: &'a mut Body<'b>,
    name: String,
    axes: Vec<u8>,
    combiner: Combiner,
    value: Rc<Node>,
    space: Option<Vec<u32>>,
    finish: Val<A>,
    origin: Origin,
    result: PhantomData<A>,
}

impl<A: ScalarElement> ReduceBuilder<'_, '_, A> {
    /// Sets the index space; otherwise it is the smallest that broadcasts every tensor.
    pub fn over(mut self, space: impl Extents) -> Self {
        self.space = Some(space.extents());
        self
    }

    /// Finishes each combined value; tensors in the expression broadcast over the kept axes.
    pub fn finish(mut self, finish: impl FnOnce(Val<A>) -> Val<A>) -> Self {
        self.finish = finish(Val::acc());
        self
    }

    /// Adds the node, into a `Temp` of its name.
    pub fn done(self) -> Tensor<A> {
        let (space, axes) = (self.space(), self.axes.clone());
        let space = self.body.core.shape(&self.name, &space, self.origin);
        let kept = space.without(|axis| axes.iter().any(|&reduced| usize::from(reduced) == axis));
        let out = self.body.core.temp(&self.name, kept, self.origin);
        self.to(out)
    }

    /// Adds the node, into existing memory.
    pub fn to<T: Element<Value = A>>(self, out: Tensor<T>) -> Tensor<T> {
        if let Some(target) = self.body.view_target(&self.name, out, self.origin) {
            self.add(target);
        }
        out
    }

    /// Adds the node, into a device scalar; every axis must be reduced.
    pub fn to_scalar(self, out: Scalar<A>) {
        if self.body.core.own(&self.name, "the output", out.tag, self.origin) {
            self.add(Target::Scalar(out.id));
        }
    }

    fn space(&self) -> Vec<u32> {
        self.space.clone().unwrap_or_else(|| space_of(&[Rc::clone(&self.value)]))
    }

    fn add(self, target: Target) {
        let space = self.space();
        let Self { body, name, axes, combiner, value, finish, origin, .. } = self;
        let space = body.core.shape(&name, &space, origin);
        let expr = {
            let mut lowering = Lowering::new(body.core, &name, space, origin);
            let root = lowering.lower(&value);
            lowering.finish(&[root])
        };
        let kept: Shape = space.without(|axis| axes.iter().any(|&reduced| usize::from(reduced) == axis));
        let results = [Result { value: Rc::clone(finish.node()), target, scatter: None }];
        let (finish, stores) = lower_results(body, &name, kept, &results, origin);
        body.add(&name, NodeOp::Reduce(Reduce { space, axes, combiner, expr, finish, stores }), origin);
    }
}

impl<'b> Body<'b> {
    /// The sum along axes.
    #[track_caller]
    pub fn sum<'a, T: ScalarElement>(
        &'a mut self,
        name: &str,
        axes: &[u8],
        value: impl IntoVal<T>,
    ) -> ReduceBuilder<'a, 'b, T> {
        self.reduce(name, axes, Combiner::Sum, value.into_val().node(), super::here())
    }

    /// The largest value along axes; NaN if any is NaN.
    #[track_caller]
    pub fn largest<'a, T: ScalarElement>(
        &'a mut self,
        name: &str,
        axes: &[u8],
        value: impl IntoVal<T>,
    ) -> ReduceBuilder<'a, 'b, T> {
        self.reduce(name, axes, Combiner::Max, value.into_val().node(), super::here())
    }

    /// The index of the largest value along one axis: the first on a tie.
    #[track_caller]
    pub fn argmax<'a>(&'a mut self, name: &str, axis: u8, value: impl IntoVal<f32>) -> ReduceBuilder<'a, 'b, u32> {
        self.reduce(name, &[axis], Combiner::Argmax, value.into_val().node(), super::here())
    }

    /// ln Σ eˣ along axes.
    #[track_caller]
    pub fn log_sum_exp<'a>(
        &'a mut self,
        name: &str,
        axes: &[u8],
        value: impl IntoVal<f32>,
    ) -> ReduceBuilder<'a, 'b, f32> {
        self.reduce(name, axes, Combiner::LogSumExp, value.into_val().node(), super::here())
    }

    fn reduce<'a, A: ScalarElement>(
        &'a mut self,
        name: &str,
        axes: &[u8],
        combiner: Combiner,
        value: &Rc<Node>,
        origin: Origin,
    ) -> ReduceBuilder<'a, 'b, A> {
        ReduceBuilder {
            body: self,
            name: name.into(),
            axes: axes.to_vec(),
            combiner,
            value: Rc::clone(value),
            space: None,
            finish: Val::acc(),
            origin,
            result: PhantomData,
        }
    }
}

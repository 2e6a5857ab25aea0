//! Element-wise nodes.

use std::rc::Rc;

use super::Extents;
use super::body::Body;
use super::lower::{Lowering, space_of};
use super::value::{IntoVal, Ix, Node};
use crate::handle::{Place, Scalar, Tensor};
use crate::ir::{
    Element, Expr, IndexTerm, Map, NodeOp, Origin, ProgramError, ScalarElement, Scatter, ScatterRule, Shape, Store,
    Target,
};

/// An element-wise node that is being described; [`done`](Self::done) adds it.
#[derive(Debug)]
#[must_use = "the node is added by done()"]
pub struct MapBuilder<'a, 'b> {
    body: &'a mut Body<'b>,
    name: String,
    space: Option<Vec<u32>>,
    pub(super) results: Vec<Result>,
    origin: Origin,
}

/// One result, before its expression is lowered.
#[derive(Debug)]
pub(super) struct Result {
    pub(super) value: Rc<Node>,
    pub(super) target: Target,
    pub(super) scatter: Option<(Vec<Ix>, Option<ScatterRule>)>,
}

impl<'a, 'b> MapBuilder<'a, 'b> {
    pub(super) fn new(body: &'a mut Body<'b>, name: &str, origin: Origin) -> Self {
        Self { body, name: name.into(), space: None, results: Vec::new(), origin }
    }

    /// Sets the index space. Otherwise it is the shape of the first output that is not scattered or, with none, the
    /// smallest that broadcasts every tensor.
    pub fn over(mut self, space: impl Extents) -> Self {
        self.space = Some(space.extents());
        self
    }

    /// Stores a value at the element's own place.
    pub fn store<T: Element>(mut self, out: Tensor<T>, value: impl IntoVal<T::Value>) -> Self {
        if let Some(target) = self.body.view_target(&self.name, out, self.origin) {
            self.results.push(Result { value: Rc::clone(value.into_val().node()), target, scatter: None });
        }
        self
    }

    /// Stores a value in a device scalar; the index space must have one element.
    pub fn store_scalar<T: ScalarElement>(mut self, out: Scalar<T>, value: impl IntoVal<T>) -> Self {
        if self.body.core.own(&self.name, "the output", out.tag, self.origin) {
            let target = Target::Scalar(out.id);
            self.results.push(Result { value: Rc::clone(value.into_val().node()), target, scatter: None });
        }
        self
    }

    /// Stores a value at a computed place, with a promise about elements that meet there. Places outside are skipped.
    pub fn scatter<T: Element, const N: usize>(
        mut self,
        out: Tensor<T>,
        index: [Ix; N],
        rule: ScatterRule,
        value: impl IntoVal<T::Value>,
    ) -> Self {
        if let Some(target) = self.body.view_target(&self.name, out, self.origin) {
            let scatter = Some((index.to_vec(), Some(rule)));
            self.results.push(Result { value: Rc::clone(value.into_val().node()), target, scatter });
        }
        self
    }

    /// Adds the node.
    pub fn done(self) {
        let Self { body, name, space, results, origin } = self;
        let space = space.unwrap_or_else(|| default_space(&results));
        let space = body.core.shape(&name, &space, origin);
        if results.is_empty() {
            body.core.fail(ProgramError::Empty { what: format!("map `{name}`") }, origin);
            return;
        }
        let (expr, stores) = lower_results(body, &name, space, &results, origin);
        body.add(&name, NodeOp::Map(Map { space, expr, stores }), origin);
    }
}

fn default_space(results: &[Result]) -> Vec<u32> {
    let plain = results.iter().find(|result| result.scatter.is_none());
    match plain.map(|result| result.target) {
        Some(Target::View(view)) => view.shape().dims().to_vec(),
        Some(Target::Scalar(_)) => Vec::new(),
        None => space_of(&results.iter().map(|result| Rc::clone(&result.value)).collect::<Vec<_>>()),
    }
}

/// The expression of all results, values first and then the places of scattered stores, and the stores.
pub(super) fn lower_results(
    body: &mut Body<'_>,
    name: &str,
    space: Shape,
    results: &[Result],
    origin: Origin,
) -> (Expr, Vec<Store>) {
    let mut lowering = Lowering::new(body.core, name, space, origin);
    let mut roots: Vec<_> = results.iter().map(|result| lowering.lower(&result.value)).collect();
    let mut places = Vec::new();
    for result in results {
        let index = result.scatter.as_ref().map(|(index, _)| lowering.terms(index)).unwrap_or_default();
        for term in &index {
            if let IndexTerm::Value(value) = term {
                roots.push(*value);
            }
        }
        places.push(index);
    }
    let expr = lowering.finish(&roots);
    let mut renamed = expr.roots()[results.len()..].iter().copied();
    let mut rename = |term| match term {
        IndexTerm::Value(value) => IndexTerm::Value(renamed.next().unwrap_or(value)),
        fixed => fixed,
    };
    let stores = results.iter().zip(places).map(|(result, index)| Store {
        target: result.target,
        scatter: result
            .scatter
            .as_ref()
            .map(|(_, rule)| Scatter { index: index.into_iter().map(&mut rename).collect(), rule: *rule }),
    });
    let stores = stores.collect();
    (expr, stores)
}

impl<'b> Body<'b> {
    /// An element-wise node into a `Temp` of its name; the index space is the smallest that broadcasts every tensor.
    #[track_caller]
    pub fn map<T: ScalarElement>(&mut self, name: &str, value: impl IntoVal<T>) -> Tensor<T> {
        let (origin, value) = (super::here(), value.into_val());
        let space = space_of(&[Rc::clone(value.node())]);
        let shape = self.core.shape(name, &space, origin);
        let out = self.core.temp(name, shape, origin);
        MapBuilder::new(self, name, origin).store(out, value).done();
        out
    }

    /// An element-wise node over a given index space, into a `Temp` of its name.
    #[track_caller]
    pub fn map_over<T: ScalarElement>(&mut self, name: &str, space: impl Extents, value: impl IntoVal<T>) -> Tensor<T> {
        let origin = super::here();
        let shape = self.core.shape(name, &space.extents(), origin);
        let out = self.core.temp(name, shape, origin);
        MapBuilder::new(self, name, origin).store(out, value).done();
        out
    }

    /// An element-wise node into existing memory.
    #[track_caller]
    pub fn map_to<T: Element>(&mut self, name: &str, out: Tensor<T>, value: impl IntoVal<T::Value>) -> Tensor<T> {
        MapBuilder::new(self, name, super::here()).store(out, value).done();
        out
    }

    /// A node that writes a device scalar.
    #[track_caller]
    pub fn set<T: ScalarElement>(&mut self, name: &str, out: Scalar<T>, value: impl IntoVal<T>) {
        MapBuilder::new(self, name, super::here()).store_scalar(out, value).done();
    }

    /// An element-wise node with several results, scattered ones included.
    #[track_caller]
    pub fn map_node<'a>(&'a mut self, name: &str) -> MapBuilder<'a, 'b> {
        MapBuilder::new(self, name, super::here())
    }

    pub(super) fn view_target<T: Element>(&mut self, node: &str, out: Tensor<T>, origin: Origin) -> Option<Target> {
        match self.core.own_place(node, "the output", out, origin)? {
            Place::View(view) => Some(Target::View(view)),
            Place::Group(_) => {
                let error = ProgramError::ShapeMismatch {
                    node: node.into(),
                    part: "the output".into(),
                    found: "a group".into(),
                    expected: "a buffer: a group is an argument for kernels".into(),
                };
                self.core.fail(error, origin);
                None
            }
        }
    }
}

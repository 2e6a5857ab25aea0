//! Maps, copies and fills: a result per element, nothing between elements.

use super::error::HostError;
use super::expr::{Code, Registers};
use super::memory::HostMemory;
use super::resolve::Resolver;
use super::store::{Sink, accesses, finish, sinks, store_chunk};
use super::walk::Walk;
use crate::ir::{ConstValue, ExprBuilder, ExprOp, IndexTerm, Map, Store, Target, ValueType, View};

/// A map, ready to run.
#[derive(Clone, Debug)]
pub(super) struct MapRun {
    code: Code,
    sinks: Vec<Sink>,
    walk: Walk,
}

impl MapRun {
    pub(super) fn new(resolver: &Resolver<'_>, map: &Map) -> Result<Self, HostError> {
        let mut code = Code::new(resolver, &map.expr, ValueType::F32)?;
        let mut sinks = sinks(resolver, &code, &map.stores)?;
        let order: Vec<usize> = (0..map.space.rank()).collect();
        let walk = code.onto(map.space.dims(), &order, accesses(&mut sinks));
        Ok(Self { code, sinks, walk })
    }

    /// A copy is the map that stores what it loads.
    pub(super) fn copy(resolver: &Resolver<'_>, from: View, to: View) -> Result<Self, HostError> {
        let space = to.shape();
        let index = (0..space.rank() as u8).map(IndexTerm::Axis).collect();
        Self::of_one(resolver, to, ExprOp::Load { view: from, index })
    }

    /// A fill is the map that stores a constant.
    pub(super) fn fill(resolver: &Resolver<'_>, to: View, value: ConstValue) -> Result<Self, HostError> {
        Self::of_one(resolver, to, ExprOp::Const(value))
    }

    fn of_one(resolver: &Resolver<'_>, to: View, op: ExprOp) -> Result<Self, HostError> {
        let mut builder = ExprBuilder::new();
        let root = builder.push(op);
        let stores = vec![Store { target: Target::View(to), scatter: None }];
        Self::new(resolver, &Map { space: to.shape(), expr: builder.finish(&[root]), stores })
    }

    pub(super) fn run(
        &mut self,
        memory: &mut HostMemory,
        registers: &mut Registers,
        node: &str,
    ) -> Result<(), HostError> {
        self.code.begin(&self.walk, memory, registers);
        for chunk in self.walk.chunks() {
            self.code.chunk(&self.walk, memory, chunk, &[], registers);
            store_chunk(&mut self.sinks, &self.code, &self.walk, memory, chunk.1, registers);
        }
        finish(&mut self.sinks, memory, node)
    }
}

//! The whole plan as one graph of points, bodies of conditionals included: what certainly happens before what.
//!
//! A unit is one point; a conditional is two, before and after its bodies. Loops are one point with everything inside: what a
//! body leaves in one iteration may be used in the next, so its memory lives for the whole loop. Graphs follow one another.

use super::types::{Body, GraphPlan, Unit, Work};
use crate::analysis::Dag;
use crate::entity::{PrimaryMap, SecondaryMap, UnitId};

/// Points and their order.
pub(super) struct Timeline {
    /// The order; points are numbered as plans list units.
    pub(super) dag: Dag,
    /// The point at which each unit runs; for a conditional, the one before its bodies.
    pub(super) point: SecondaryMap<UnitId, u32>,
}

impl Timeline {
    pub(super) fn new(units: &PrimaryMap<UnitId, Unit>, graphs: &[GraphPlan]) -> Self {
        let mut flat = Flattening {
            units,
            edges: Vec::new(),
            points: 0,
            enter: SecondaryMap::new(),
            exit: SecondaryMap::new(),
            follows: SecondaryMap::new(),
            is_followed: SecondaryMap::new(),
        };
        let mut before = None;
        for graph in graphs {
            before = Some(flat.joined(&graph.body, before));
        }
        flat.edges.sort_unstable_by_key(|&(from, to)| (to, from));
        flat.edges.dedup();
        Self { dag: Dag::new(flat.points as usize, &flat.edges), point: flat.enter }
    }
}

struct Flattening<'a> {
    units: &'a PrimaryMap<UnitId, Unit>,
    edges: Vec<(u32, u32)>,
    points: u32,
    enter: SecondaryMap<UnitId, u32>,
    exit: SecondaryMap<UnitId, u32>,
    /// Whether an edge of its body leads to the unit, and from it.
    follows: SecondaryMap<UnitId, bool>,
    is_followed: SecondaryMap<UnitId, bool>,
}

impl Flattening<'_> {
    /// Lays out a body and a point after all of it; everything in it follows `before`.
    fn joined(&mut self, body: &Body, before: Option<u32>) -> u32 {
        let ends = self.body(body, before);
        let join = self.next();
        self.edges.extend(ends.into_iter().chain(before).map(|end| (end, join)));
        join
    }

    /// Lays out a body; gives the points that nothing in it follows.
    fn body(&mut self, body: &Body, before: Option<u32>) -> Vec<u32> {
        for edge in &body.edges {
            self.follows[edge.to] = true;
            self.is_followed[edge.from] = true;
        }
        for &unit in &body.units {
            self.unit(unit);
            self.edges.extend(before.filter(|_| !self.follows[unit]).map(|before| (before, self.enter[unit])));
        }
        self.edges.extend(body.edges.iter().map(|edge| (self.exit[edge.from], self.enter[edge.to])));
        body.units.iter().filter(|&&unit| !self.is_followed[unit]).map(|&unit| self.exit[unit]).collect()
    }

    fn unit(&mut self, unit: UnitId) {
        let point = self.next();
        self.enter[unit] = point;
        self.exit[unit] = match &self.units[unit].work {
            Work::While { body } => {
                self.collapse(body, point);
                point
            }
            Work::If { then_body, else_body } => self.branches(&[then_body, else_body], point),
            Work::Switch { bodies } => self.branches(&bodies.iter().collect::<Vec<_>>(), point),
            _ => point,
        };
    }

    fn branches(&mut self, bodies: &[&Body], before: u32) -> u32 {
        let mut ends = vec![before];
        for body in bodies {
            ends.extend(self.body(body, Some(before)));
        }
        let join = self.next();
        self.edges.extend(ends.into_iter().map(|end| (end, join)));
        join
    }

    fn collapse(&mut self, body: &Body, point: u32) {
        for &unit in &body.units {
            self.enter[unit] = point;
            self.units[unit].work.bodies().into_iter().for_each(|inner| self.collapse(inner, point));
        }
    }

    fn next(&mut self) -> u32 {
        self.points += 1;
        self.points - 1
    }
}

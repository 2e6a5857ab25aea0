//! The whole plan as one graph of points, bodies of conditionals included: what certainly happens before what.
//!
//! A unit is one point; a conditional is two, before and after its bodies. A loop's body stands there once. What only the body
//! uses carries nothing from one iteration to the next, because it is written before it is read; so one iteration tells how
//! long it lives. What is used outside as well lives as long as the loop. Graphs follow one another.

use super::types::{Body, GraphPlan, Unit, Work};
use crate::analysis::Dag;
use crate::entity::{PrimaryMap, SecondaryMap, UnitId};

/// Points and their order.
pub(super) struct Timeline {
    /// The order; points are numbered as plans list units.
    pub(super) dag: Dag,
    /// The point at which each unit starts, and the one at which it has ended: for a conditional, before and after its bodies.
    enter: SecondaryMap<UnitId, u32>,
    exit: SecondaryMap<UnitId, u32>,
    /// The innermost loop around each unit.
    holder: SecondaryMap<UnitId, Option<UnitId>>,
}

impl Timeline {
    pub(super) fn new(units: &PrimaryMap<UnitId, Unit>, graphs: &[GraphPlan]) -> Self {
        let mut flat = Flattening {
            units,
            edges: Vec::new(),
            points: 0,
            enter: SecondaryMap::new(),
            exit: SecondaryMap::new(),
            holder: SecondaryMap::new(),
            around: None,
            follows: SecondaryMap::new(),
            is_followed: SecondaryMap::new(),
        };
        let mut before = None;
        for graph in graphs {
            before = Some(flat.joined(&graph.body, before));
        }
        flat.edges.sort_unstable_by_key(|&(from, to)| (to, from));
        flat.edges.dedup();
        let dag = Dag::new(flat.points as usize, &flat.edges);
        Self { dag, enter: flat.enter, exit: flat.exit, holder: flat.holder }
    }

    /// The points at which memory is in use that these units touch.
    pub(super) fn points(&self, users: &[UnitId]) -> Vec<u32> {
        let common = self.common_loop(users);
        let mut points = Vec::with_capacity(users.len());
        for &user in users {
            let span = self.loops(user).take_while(|&found| Some(found) != common).last().unwrap_or(user);
            points.push(self.enter[span]);
            if self.exit[span] != self.enter[span] {
                points.push(self.exit[span]);
            }
        }
        points
    }

    /// The innermost loop that has all of these units in its body.
    fn common_loop(&self, users: &[UnitId]) -> Option<UnitId> {
        let (first, others) = users.split_first()?;
        self.loops(*first).find(|&found| others.iter().all(|&user| self.loops(user).any(|other| other == found)))
    }

    /// The loops around a unit, innermost first.
    fn loops(&self, unit: UnitId) -> impl Iterator<Item = UnitId> {
        std::iter::successors(self.holder[unit], |&around| self.holder[around])
    }
}

struct Flattening<'a> {
    units: &'a PrimaryMap<UnitId, Unit>,
    edges: Vec<(u32, u32)>,
    points: u32,
    enter: SecondaryMap<UnitId, u32>,
    exit: SecondaryMap<UnitId, u32>,
    holder: SecondaryMap<UnitId, Option<UnitId>>,
    /// The innermost loop around what is laid out.
    around: Option<UnitId>,
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
        self.holder[unit] = self.around;
        self.exit[unit] = match &self.units[unit].work {
            Work::While { body } => {
                let outer = self.around.replace(unit);
                let end = self.branches(&[body], point);
                self.around = outer;
                end
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

    fn next(&mut self) -> u32 {
        self.points += 1;
        self.points - 1
    }
}

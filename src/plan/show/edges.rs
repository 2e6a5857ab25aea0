//! Edges by the unit that waits: whom it follows, and why.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::names::Names;
use crate::entity::{BufferId, GroupId, SecondaryMap, UnitId};
use crate::ir::Resource;
use crate::plan::arena::groups;
use crate::plan::types::{Body, Cause, EdgeKind};

/// Something that a unit waits for.
pub(super) struct Wait<'a> {
    /// The earlier unit.
    pub(super) from: &'a str,
    /// The source of the edge whose path makes the unit wait, where that is not `from` itself.
    pub(super) via: Option<&'a str>,
    /// The later unit, where it is not the edge's target.
    pub(super) to: Option<&'a str>,
    /// Why, in words.
    pub(super) causes: Vec<String>,
    /// Whether the edge is programmatic.
    pub(super) programmatic: bool,
}

/// Explains the edges of bodies.
pub(super) struct Waits<'a> {
    names: Names<'a>,
    groups: SecondaryMap<BufferId, Option<GroupId>>,
}

impl<'a> Waits<'a> {
    pub(super) fn new(names: Names<'a>) -> Self {
        Self { names, groups: groups(names.program) }
    }

    /// What each unit of a body waits for: its edges first, then what their paths cover.
    pub(super) fn of(&self, body: &'a Body) -> FxHashMap<UnitId, Vec<Wait<'a>>> {
        let place: FxHashMap<UnitId, usize> =
            body.units.iter().enumerate().map(|(place, &unit)| (unit, place)).collect();
        let place_of = |unit: UnitId| place.get(&unit).copied().unwrap_or(usize::MAX);
        let mut direct: FxHashMap<UnitId, Vec<Wait<'a>>> = FxHashMap::default();
        let mut covered: FxHashMap<UnitId, Covered<'_>> = FxHashMap::default();
        for edge in &body.edges {
            let mut own = Vec::new();
            for cause in &edge.causes {
                let Some(pair) = cause.via() else {
                    own.push(cause);
                    continue;
                };
                let key = (place_of(pair.0), place_of(edge.from), place_of(pair.1));
                let pair = Pair { from: pair.0, via: edge.from, to: pair.1 };
                covered.entry(edge.to).or_default().entry(key).or_insert((pair, Vec::new())).1.push(cause);
            }
            let programmatic = edge.kind == EdgeKind::Programmatic;
            let causes = self.causes(&own);
            let wait = Wait { from: self.names.unit(edge.from), via: None, to: None, causes, programmatic };
            direct.entry(edge.to).or_default().push(wait);
        }
        for (to, pairs) in covered {
            let waits = pairs.into_values().map(|(pair, causes)| Wait {
                from: self.names.unit(pair.from),
                via: Some(self.names.unit(pair.via)),
                to: (pair.to != to).then(|| self.names.unit(pair.to)),
                causes: self.causes(&causes),
                programmatic: false,
            });
            direct.entry(to).or_default().extend(waits);
        }
        direct
    }

    /// Causes in words. Where all members of a group have the same hazard, the group stands for them.
    fn causes(&self, causes: &[&Cause]) -> Vec<String> {
        let mut members: FxHashMap<(GroupId, &str), usize> = FxHashMap::default();
        for cause in causes {
            if let Some((group, hazard)) = self.whole_member(cause) {
                *members.entry((group, hazard)).or_default() += 1;
            }
        }
        let mut words: Vec<String> = Vec::with_capacity(causes.len());
        for cause in causes {
            let complete = self
                .whole_member(cause)
                .filter(|key| members[key] == self.names.program.groups[key.0].members.len() && members[key] > 1);
            let word = match (complete, cause) {
                (Some((group, hazard)), _) => format!("{hazard} {}", self.names.program.groups[group].name),
                (None, Cause::Hazard { hazard, resource, .. }) => {
                    format!("{} {}", hazard.name(), self.names.resource(resource))
                }
                (None, Cause::After { .. }) => "after".to_owned(),
                (None, Cause::OneAtATime { .. }) => "one at a time".to_owned(),
                (None, Cause::Chain) => "chain".to_owned(),
            };
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words
    }

    fn whole_member(&self, cause: &Cause) -> Option<(GroupId, &'static str)> {
        let Cause::Hazard { hazard, resource: Resource::View(view), .. } = cause else { return None };
        let whole = view.is_full(&self.names.program.buffers[view.buffer].shape);
        self.groups[view.buffer].filter(|_| whole).map(|group| (group, hazard.name()))
    }
}

/// Covered pairs with their causes, by the places of their units.
type Covered<'c> = BTreeMap<(usize, usize, usize), (Pair, Vec<&'c Cause>)>;

struct Pair {
    from: UnitId,
    via: UnitId,
    to: UnitId,
}

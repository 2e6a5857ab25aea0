//! The edges of a body: dependencies, cut down to what must be said, with their causes.

use super::types::{Body, Cause, Edge, EdgeKind};
use crate::analysis::{Dag, Dependency, Kept, Reason, dependencies, transitive_reduction};
use crate::entity::UnitId;
use crate::ir::Access;

/// Orders the units of a body, given in program order with what each touches, and with what else orders places in that list.
/// In a chain each unit follows the one before it; otherwise each follows only what it must.
pub(super) fn order(units: Vec<UnitId>, accesses: &[Vec<Access>], others: &[Dependency], chain: bool) -> Body {
    let found = dependencies(accesses, others);
    let edges = if chain { chained(&units, &found) } else { reduced(&units, &found) };
    Body { units, edges }
}

fn chained(units: &[UnitId], found: &[Dependency]) -> Vec<Edge> {
    let mut edges: Vec<Edge> = units.windows(2).map(|pair| edge(pair[0], pair[1], vec![Cause::Chain])).collect();
    let (direct, covered): (Vec<_>, Vec<_>) = found.iter().partition(|dependency| dependency.from + 1 == dependency.to);
    for dependency in direct.into_iter().chain(covered) {
        let via = dependency.from + 1 != dependency.to;
        edges[dependency.to as usize - 1].causes.push(cause(units, dependency, via));
    }
    edges
}

fn reduced(units: &[UnitId], found: &[Dependency]) -> Vec<Edge> {
    let mut pairs: Vec<_> = found.iter().map(|dependency| (dependency.from, dependency.to)).collect();
    pairs.dedup();
    let dag = Dag::new(units.len(), &pairs);
    let kept = transitive_reduction(&dag, &pairs);
    let mut places = vec![0; pairs.len()];
    let mut edges = Vec::new();
    for (pair, &(from, to)) in pairs.iter().enumerate().filter(|&(pair, _)| kept[pair] == Kept::Yes) {
        places[pair] = edges.len();
        edges.push(edge(units[from as usize], units[to as usize], Vec::new()));
    }
    let mut covered = Vec::new();
    let mut pair = 0;
    for dependency in found {
        while pairs[pair] != (dependency.from, dependency.to) {
            pair += 1;
        }
        match kept[pair] {
            Kept::Yes => edges[places[pair]].causes.push(cause(units, dependency, false)),
            Kept::ImpliedBy(last) => covered.push((last, dependency)),
        }
    }
    for (last, dependency) in covered {
        let into = dag.edges_into(dependency.to);
        let offset = dag.sources(dependency.to).partition_point(|&from| from < last);
        edges[places[into.start + offset]].causes.push(cause(units, dependency, true));
    }
    edges
}

fn edge(from: UnitId, to: UnitId, causes: Vec<Cause>) -> Edge {
    Edge { from, to, causes, kind: EdgeKind::Full }
}

fn cause(units: &[UnitId], dependency: &Dependency, covered: bool) -> Cause {
    let via = covered.then(|| (units[dependency.from as usize], units[dependency.to as usize]));
    match dependency.reason {
        Reason::Hazard { hazard, resource } => Cause::Hazard { hazard, resource, via },
        Reason::After => Cause::After { via },
        Reason::OneAtATime => Cause::OneAtATime { via },
    }
}

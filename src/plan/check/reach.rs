//! Reachability inside a body, for many pairs at once.

use crate::plan::types::StepPlan;

use super::structure::Bodies;

/// Sources that are followed at once.
const BLOCK: usize = 512;

type Row = [u64; BLOCK / 64];

/// Pairs of places (earlier, later) of one body that no path of its edges joins, out of `pairs`; sorted, without duplicates.
pub(super) fn unreached(bodies: &Bodies<'_>, body: usize, mut pairs: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    pairs.sort_unstable();
    pairs.dedup();
    let view = bodies.list[body].body;
    let mut sources: Vec<Vec<u32>> = vec![Vec::new(); view.units.len()];
    for edge in &view.edges {
        if let (Some((_, from)), Some((_, to))) = (bodies.place[edge.from], bodies.place[edge.to]) {
            sources[to as usize].push(from);
        }
    }
    let mut missing = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    for group in pairs.chunk_by(|a, b| a.0 as usize / BLOCK == b.0 as usize / BLOCK) {
        let first = group[0].0 as usize / BLOCK * BLOCK;
        let last = group.iter().map(|&(from, to)| from.max(to) as usize).max().unwrap_or(first);
        follow(&sources, first, last, &mut rows);
        let reached = |&(from, to): &(u32, u32)| {
            let bit = from as usize - first;
            from < to && rows[to as usize - first][bit / 64] & (1 << (bit % 64)) != 0
        };
        missing.extend(group.iter().filter(|pair| !reached(pair)));
    }
    missing
}

/// For each place from `first` to `last`, which of the [`BLOCK`] places from `first` on are, or come before, it.
fn follow(sources: &[Vec<u32>], first: usize, last: usize, rows: &mut Vec<Row>) {
    rows.clear();
    for at in first..=last {
        let mut row = [0; BLOCK / 64];
        for &from in sources[at].iter().filter(|&&from| from as usize >= first && (from as usize) < at) {
            row.iter_mut().zip(&rows[from as usize - first]).for_each(|(own, other)| *own |= other);
        }
        if at - first < BLOCK {
            row[(at - first) / 64] |= 1 << ((at - first) % 64);
        }
        rows.push(row);
    }
}

/// The name of the unit at a place.
pub(super) fn name_at(plan: &StepPlan, bodies: &Bodies<'_>, body: usize, place: u32) -> String {
    plan.units[bodies.list[body].body.units[place as usize]].name.clone()
}

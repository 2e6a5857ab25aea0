//! Takes out nodes whose results nothing uses.

use rustc_hash::FxHashMap;

use super::edit::{Fate, Rewrite, fates, without};
use crate::entity::{BufferId, NodeId, SecondaryMap, StepId};
use crate::ir::{Access, Program, Resource, Role, View, subtree_accesses};

/// Keeps the nodes that write something which outlives the launch, and the nodes that those read from. A conditional node
/// stays or goes as a whole. A variant of which nothing would be left stays as it is.
pub(super) fn prune(program: &Program, step: StepId) -> Option<Rewrite> {
    let edited = &program.steps[step];
    let outer: Vec<NodeId> = edited.phases.values().flat_map(|phase| phase.nodes.iter().copied()).collect();
    let mut liveness =
        Liveness { program, accesses: SecondaryMap::new(), writers: FxHashMap::default(), live: SecondaryMap::new() };
    for &node in &outer {
        liveness.add(node, subtree_accesses(program, edited, node));
    }
    liveness.spread(outer.iter().copied().filter(|&node| liveness.lasts(node)).collect());
    for form in edited.forms() {
        let own: Vec<NodeId> = edited.phases_in(form).flat_map(|(_, phase)| phase.nodes.iter().copied()).collect();
        if own.iter().all(|&node| !liveness.live[node]) {
            liveness.spread(own);
        }
    }
    let dead: Vec<NodeId> = outer.iter().copied().filter(|&node| !liveness.live[node]).collect();
    if dead.is_empty() {
        return None;
    }
    let mut gone = fates(edited);
    edited.walk(&dead).into_iter().for_each(|node| gone[node] = Fate::Goes);
    Some(without(program, step, &gone))
}

struct Liveness<'a> {
    program: &'a Program,
    accesses: SecondaryMap<NodeId, Vec<Access>>,
    /// The nodes that write each Temp, with the box; those that are live are taken out.
    writers: FxHashMap<BufferId, Vec<(View, NodeId)>>,
    live: SecondaryMap<NodeId, bool>,
}

impl Liveness<'_> {
    fn add(&mut self, node: NodeId, accesses: Vec<Access>) {
        for access in accesses.iter().filter(|access| access.mode.writes()) {
            if let Resource::View(view) = access.resource {
                self.writers.entry(view.buffer).or_default().push((view, node));
            }
        }
        self.accesses[node] = accesses;
    }

    /// Marks these nodes, then whatever they read from.
    fn spread(&mut self, mut waiting: Vec<NodeId>) {
        waiting.iter().for_each(|&node| self.live[node] = true);
        while let Some(node) = waiting.pop() {
            for access in std::mem::take(&mut self.accesses[node]) {
                let Resource::View(view) = access.resource else { continue };
                let Some(writers) = self.writers.get_mut(&view.buffer).filter(|_| access.mode.reads()) else {
                    continue;
                };
                writers.retain(|&(written, writer)| {
                    let needed = written.overlaps(&view);
                    if needed && !self.live[writer] {
                        self.live[writer] = true;
                        waiting.push(writer);
                    }
                    !needed
                });
            }
        }
    }

    fn lasts(&self, node: NodeId) -> bool {
        self.accesses[node].iter().filter(|access| access.mode.writes()).any(|access| match access.resource {
            Resource::Scalar(_) => true,
            Resource::View(view) => {
                let buffer = &self.program.buffers[view.buffer];
                buffer.role != Role::Temp || buffer.tap
            }
        })
    }
}

//! What a launch finds in `Temp` and `Output` buffers: nothing is read, or updated, before it was written in full.

use rustc_hash::FxHashSet;

use super::access;
use super::control::{Event, Layout};
use super::region::Region;
use super::report::{MAX_REPEATS, Report};
use crate::entity::{BufferId, NodeId, SecondaryMap, StepId};
use crate::ir::{Access, AccessMode, Item, Program, ProgramError, Resource, Role, View};

/// What each node of a step touches.
pub(super) struct Touched {
    /// By node. Those of a broken node count as full writes and nothing else, so that one error does not cause more.
    pub(super) accesses: Vec<Vec<Access>>,
    pub(super) broken: Vec<bool>,
}

/// Checks a step in each of its variants.
pub(super) fn check(program: &Program, step: StepId, layout: &Layout, touched: &Touched, report: &mut Report<'_>) {
    let mut lives = Lives {
        program,
        step,
        touched,
        written_ever: written_ever(touched),
        written: SecondaryMap::new(),
        saved_in: SecondaryMap::new(),
        scopes: Vec::new(),
        next_scope: 1,
        reported: FxHashSet::default(),
    };
    let all = layout.phases.iter().fold(0, |all, phase| all | phase.mask);
    for bit in (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| all & bit != 0) {
        lives.written.clear();
        lives.saved_in.clear();
        for phase in layout.phases.iter().filter(|phase| phase.mask & bit != 0) {
            let is_guarded = program.steps[step].phases[phase.phase].guard.is_some();
            if is_guarded {
                lives.enter();
            }
            phase.events.iter().for_each(|event| lives.event(*event, report));
            if is_guarded {
                lives.leave();
            }
        }
    }
}

/// Every output has a writer, whichever step or variant it is in.
pub(super) fn check_outputs(program: &Program, written: &FxHashSet<BufferId>, report: &mut Report<'_>) {
    for (id, buffer) in program.buffers_of(Role::Output).filter(|(id, _)| !written.contains(id)) {
        report.add(&Item::Buffer(id), ProgramError::UnwrittenOutput { buffer: buffer.name.clone() });
    }
}

/// The buffers that nodes write.
pub(super) fn written_ever(touched: &Touched) -> FxHashSet<BufferId> {
    let writes = touched.accesses.iter().flatten().filter(|access| access.mode.writes());
    writes.filter_map(|access| view(access).map(|view| view.buffer)).collect()
}

fn view(access: &Access) -> Option<View> {
    match access.resource {
        Resource::View(view) => Some(view),
        Resource::Scalar(_) => None,
    }
}

struct Lives<'a> {
    program: &'a Program,
    step: StepId,
    touched: &'a Touched,
    /// Buffers that some node of the step writes.
    written_ever: FxHashSet<BufferId>,
    /// What was written so far.
    written: SecondaryMap<BufferId, Region>,
    /// The scope that last kept a buffer's region from before its own writes.
    saved_in: SecondaryMap<BufferId, u64>,
    /// The bodies and guarded phases that we are in: they may not run, so what they write counts only inside.
    scopes: Vec<Scope>,
    next_scope: u64,
    /// Buffers with an error; one each is enough.
    reported: FxHashSet<BufferId>,
}

struct Scope {
    number: u64,
    before: Vec<(BufferId, Region)>,
}

impl Lives<'_> {
    fn enter(&mut self) {
        self.scopes.push(Scope { number: self.next_scope, before: Vec::new() });
        self.next_scope += 1;
    }

    fn leave(&mut self) {
        let Some(scope) = self.scopes.pop() else { return };
        for (buffer, region) in scope.before.into_iter().rev() {
            self.written[buffer] = region;
        }
    }

    fn event(&mut self, event: Event, report: &mut Report<'_>) {
        match event {
            Event::Enter => self.enter(),
            Event::Leave => self.leave(),
            Event::Node(node) => self.node(node, report),
        }
    }

    fn node(&mut self, node: NodeId, report: &mut Report<'_>) {
        let touched = self.touched;
        let accesses = &touched.accesses[node.as_u32() as usize];
        if touched.broken[node.as_u32() as usize] {
            for view in accesses.iter().filter(|access| access.mode.writes()).filter_map(view) {
                self.wrote(View::full(view.buffer, &self.program.buffers[view.buffer].shape));
            }
            return;
        }
        let of_launch = |view: &View| matches!(self.program.buffers[view.buffer].role, Role::Temp | Role::Output);
        let here: Vec<(View, AccessMode)> = accesses
            .iter()
            .filter_map(|access| view(access).filter(of_launch).map(|view| (view, access.mode)))
            .collect();
        let unwritten = |(view, mode): &&(View, AccessMode)| {
            mode.reads() && !self.written[view.buffer].covers(view.ranges()) && !self.reported.contains(&view.buffer)
        };
        let faults: Vec<_> = here.iter().filter(unwritten).copied().collect();
        for (at, (view, mode)) in faults.iter().enumerate() {
            self.reported.insert(view.buffer);
            if at < MAX_REPEATS {
                self.fail(node, view, *mode, report);
            }
        }
        for (view, _) in here.iter().filter(|(_, mode)| *mode == AccessMode::Write) {
            self.wrote(*view);
        }
    }

    fn wrote(&mut self, view: View) {
        if let Some(scope) = self.scopes.last_mut().filter(|scope| self.saved_in[view.buffer] != scope.number) {
            scope.before.push((view.buffer, self.written[view.buffer].clone()));
            self.saved_in[view.buffer] = scope.number;
        }
        self.written[view.buffer].add(view.ranges());
    }

    fn fail(&self, id: NodeId, view: &View, mode: AccessMode, report: &mut Report<'_>) {
        let step = &self.program.steps[self.step];
        let (node, buffer) = (step.nodes[id].name.clone(), self.program.buffers[view.buffer].name.clone());
        let error = if !self.written_ever.contains(&view.buffer) {
            ProgramError::NeverWritten { step: step.name.clone(), node, buffer }
        } else if mode == AccessMode::Update {
            ProgramError::UpdateBeforeWrite { node, buffer }
        } else {
            ProgramError::ReadBeforeWrite { node, buffer }
        };
        let part = access::part(self.program, &step.nodes[id], &Resource::View(*view), mode.writes());
        let item = if part.is_empty() { Item::Node(self.step, id) } else { Item::Part(self.step, id, part.into()) };
        report.add(&item, error);
    }
}

//! Plans of random programs: order, memory and the independent check against brute force.

mod common;

use std::collections::{BTreeSet, HashMap};

use common::random::{Recipe, recipes};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use stepgraph::entity::{BufferId, NodeId, UnitId};
use stepgraph::ir::{Access, Origins, Resource, Role, node_accesses, subtree_accesses};
use stepgraph::plan::{
    Body, Fuse, FusionPlan, Graphs, Placement, PlanParts, Region, Repeat, Schedule, StepPlan, Target, Tuning, Work,
    check, plan,
};
use stepgraph::valid::{ValidProgram, validate};

fn valid(recipe: &Recipe) -> ValidProgram {
    let (program, host_fns) = recipe.build();
    validate(program, Origins::default(), host_fns).expect("random programs are valid")
}

/// The same without inputs, so that it can make several steps per launch: what the host would write is state.
fn device_made(recipe: &Recipe) -> ValidProgram {
    let (mut program, host_fns) = recipe.build();
    for buffer in program.buffers.values_mut().filter(|buffer| buffer.role == Role::Input) {
        buffer.role = Role::State;
    }
    validate(program, Origins::default(), host_fns).expect("state can be read wherever an input can")
}

/// Every way of cutting, ordering and fusing.
fn fusion_plans() -> Vec<FusionPlan> {
    let mut plans = Vec::new();
    for graphs in [Graphs::PerNode, Graphs::PerPhase, Graphs::Mega] {
        for schedule in [Schedule::Chain, Schedule::Dag] {
            for fuse in [Fuse::None, Fuse::All] {
                plans.push(FusionPlan {
                    name: "test".into(),
                    graphs,
                    schedule,
                    fuse,
                    pdl: false,
                    repeat: Repeat::Once,
                });
            }
        }
    }
    plans
}

/// Ways of making several steps per launch.
fn repeated_plans() -> Vec<FusionPlan> {
    let plans = fusion_plans().into_iter().filter(|fusion| fusion.fuse == Fuse::None);
    let unrolled = plans.clone().map(|fusion| fusion.repeated(Repeat::Unroll(2)));
    let looped = plans.filter(|fusion| fusion.graphs == Graphs::Mega).map(|fusion| fusion.repeated(Repeat::Loop(3)));
    unrolled.chain(looped).collect()
}

/// Every plan of every step and variant, single and repeated.
fn all_plans(recipe: &Recipe) -> Vec<StepPlan> {
    let (once, repeated) = (valid(recipe), device_made(recipe));
    let once = fusion_plans().into_iter().flat_map(|fusion| plans(&once, &fusion)).collect::<Vec<_>>();
    let repeated = repeated_plans().into_iter().flat_map(|fusion| plans(&repeated, &fusion));
    once.into_iter().chain(repeated).collect()
}

/// The plans of every step and variant.
fn plans(program: &ValidProgram, fusion: &FusionPlan) -> Vec<StepPlan> {
    let mut found = Vec::new();
    for step in program.program().steps.values() {
        for form in step.forms() {
            let plan = plan(program, &step.name, form, fusion, &Target::default(), &Tuning::default());
            found.push(plan.unwrap_or_else(|error| panic!("{}: {error}", step.name)));
        }
    }
    found
}

/// Body and place, from the graph inwards.
type Place = Vec<(usize, usize)>;

/// Bytes, the units that touch them, and whether nothing may share them.
type Piece = (Placement, Vec<UnitId>, bool);

/// A body with its conditional, and its nodes in program order.
struct BodyOf<'a> {
    body: &'a Body,
    owner: Option<UnitId>,
    nodes: Vec<Listed>,
}

/// A node, and the step of an unrolled plan that it belongs to.
type Listed = (NodeId, u32);

/// What brute force says about a plan: every pair of nodes, every pair of buffers.
struct Oracle<'a> {
    parts: &'a PlanParts,
    bodies: Vec<BodyOf<'a>>,
    reach: Vec<Vec<Vec<bool>>>,
    home: HashMap<UnitId, (usize, usize)>,
}

impl<'a> Oracle<'a> {
    fn new(parts: &'a PlanParts) -> Self {
        let step = &parts.program.program().steps[parts.step];
        let mut bodies: Vec<BodyOf<'a>> = Vec::new();
        let phases: Vec<Vec<Listed>> = (0..parts.fusion.repeat.copies())
            .flat_map(|iteration| step.phases_in(parts.variant.as_deref()).map(move |(_, phase)| (iteration, phase)))
            .map(|(iteration, phase)| phase.nodes.iter().map(|&node| (node, iteration)).collect())
            .collect();
        let per_graph = if parts.fusion.graphs == Graphs::PerPhase { phases } else { vec![phases.concat()] };
        for (graph, nodes) in parts.graphs.iter().zip(per_graph) {
            bodies.push(BodyOf { body: &graph.body, owner: None, nodes });
        }
        let mut at = 0;
        while at < bodies.len() {
            for &unit in &bodies[at].body.units {
                let found = &parts.units[unit];
                let nodes = step.nodes[found.node].op.bodies();
                for (body, nodes) in found.work.bodies().into_iter().zip(nodes) {
                    let nodes = nodes.iter().map(|&node| (node, found.iteration)).collect();
                    bodies.push(BodyOf { body, owner: Some(unit), nodes });
                }
            }
            at += 1;
        }
        let reach = bodies.iter().map(|body| reachable(body.body)).collect();
        let home = bodies.iter().enumerate().flat_map(|(number, body)| {
            body.body.units.iter().enumerate().map(move |(place, &unit)| (unit, (number, place)))
        });
        let home = home.collect();
        Self { parts, bodies, reach, home }
    }

    fn accesses(&self, node: NodeId) -> Vec<Access> {
        let program = self.parts.program.program();
        subtree_accesses(program, &program.steps[self.parts.step], node)
    }

    /// The pairs of places of a body that conflict, that the user ordered, or that are conditionals inside of a loop.
    fn required(&self, body: usize) -> BTreeSet<(usize, usize)> {
        let step = &self.parts.program.program().steps[self.parts.step];
        let BodyOf { body: Body { units: body_units, .. }, nodes, .. } = &self.bodies[body];
        let listed = |unit| (self.parts.units[unit].node, self.parts.units[unit].iteration);
        let place: HashMap<Listed, usize> =
            body_units.iter().enumerate().map(|(place, &unit)| (listed(unit), place)).collect();
        let accesses: Vec<_> = nodes.iter().map(|&(node, _)| self.accesses(node)).collect();
        let mut pairs = BTreeSet::new();
        for (later, node) in nodes.iter().enumerate() {
            for (earlier, other) in nodes[..later].iter().enumerate() {
                if conflict(&accesses[earlier], &accesses[later]) {
                    pairs.insert((place[other], place[node]));
                }
            }
            let after = step.nodes[node.0].after.iter();
            pairs.extend(after.filter_map(|&other| Some((*place.get(&(other, node.1))?, place[node]))));
        }
        if self.bodies[body].owner.is_some_and(|owner| self.path(owner).iter().any(|&(.., is_loop)| is_loop)) {
            let is_conditional = |&place: &usize| !self.parts.units[body_units[place]].work.bodies().is_empty();
            let conditionals: Vec<usize> = (0..body_units.len()).filter(is_conditional).collect();
            pairs.extend(conditionals.windows(2).map(|pair| (pair[0], pair[1])));
        }
        pairs
    }

    fn keeps_order(&self) -> bool {
        (0..self.bodies.len()).all(|body| self.required(body).iter().all(|&(from, to)| self.reach[body][from][to]))
    }

    /// From the graph inwards: body and place, with whether a loop stands there.
    fn path(&self, unit: UnitId) -> Vec<(usize, usize, bool)> {
        let mut path = Vec::new();
        let mut at = Some(unit);
        while let Some(unit) = at {
            let (body, place) = self.home[&unit];
            path.push((body, place, matches!(self.parts.units[unit].work, Work::While { .. })));
            at = self.bodies[body].owner;
        }
        path.reverse();
        path
    }

    /// Where memory is in use: at its users, but what is also used outside of a loop is in use at the loop as a whole.
    fn uses(&self, users: &[UnitId]) -> Vec<Place> {
        let paths: Vec<_> = users.iter().map(|&user| self.path(user)).collect();
        let is_outside = |prefix: &[(usize, usize, bool)]| {
            paths.iter().any(|path| path.len() <= prefix.len() || !path.starts_with(prefix))
        };
        let cut = |path: &Vec<(usize, usize, bool)>| {
            let end = (1..path.len()).find(|&end| path[end - 1].2 && is_outside(&path[..end])).unwrap_or(path.len());
            path[..end].iter().map(|&(body, place, _)| (body, place)).collect()
        };
        paths.iter().map(cut).collect()
    }

    fn precedes(&self, a: &Place, b: &Place) -> bool {
        let Some((level, (x, y))) = a.iter().zip(b).enumerate().find(|(_, (x, y))| x != y) else { return false };
        if x.0 == y.0 { self.reach[x.0][x.1][y.1] } else { level == 0 && x.0 < y.0 }
    }

    /// Everything in scratch: its bytes, and the units that touch it.
    fn scratch(&self) -> Vec<Piece> {
        let program = self.parts.program.program();
        let step = &program.steps[self.parts.step];
        let mut users: HashMap<BufferId, Vec<UnitId>> = HashMap::new();
        for (id, unit) in self.parts.units.iter() {
            for access in node_accesses(program, step, unit.node) {
                if let Resource::View(view) = access.resource {
                    users.entry(view.buffer).or_default().push(id);
                }
            }
        }
        let arena = &self.parts.arena;
        let mut found = Vec::new();
        let grouped: BTreeSet<BufferId> =
            program.groups.values().flat_map(|group| group.members.iter().copied()).collect();
        for (id, buffer) in
            program.buffers.iter().filter(|(id, buffer)| buffer.role == Role::Temp && !grouped.contains(id))
        {
            let used = users.get(&id).cloned().unwrap_or_default();
            found.extend(arena.buffers[id].map(|placement| (placement, used, buffer.tap)));
        }
        for (group, content) in program.groups.iter() {
            let Some(first) = arena.buffers[content.members[0]].filter(|place| place.region == Region::Scratch) else {
                continue;
            };
            let used = content.members.iter().filter_map(|member| users.get(member)).flatten().copied().collect();
            let tapped = content.members.iter().any(|&member| program.buffers[member].tap);
            found.push((Placement { bytes: program.group_layout(group).1, ..first }, used, tapped));
        }
        let workspaces = self.parts.units.keys().filter_map(|id| Some((arena.workspaces[id]?, vec![id], false)));
        found.extend(workspaces);
        found
    }

    fn keeps_memory(&self) -> bool {
        let pieces: Vec<_> =
            self.scratch().into_iter().map(|(piece, users, tap)| (piece, self.uses(&users), tap)).collect();
        let size = self.parts.arena.size(Region::Scratch);
        let all_before = |a: &[Place], b: &[Place]| a.iter().all(|x| b.iter().all(|y| self.precedes(x, y)));
        type Used = (Placement, Vec<Place>, bool);
        let apart = |(a, a_users, a_tap): &Used, (b, b_users, b_tap): &Used| {
            !a.overlaps(b) || !(*a_tap || *b_tap) && (all_before(a_users, b_users) || all_before(b_users, a_users))
        };
        pieces.iter().all(|(piece, ..)| piece.end() <= size)
            && pieces.iter().enumerate().all(|(at, a)| pieces[..at].iter().all(|b| apart(a, b)))
    }

    fn is_sound(&self) -> bool {
        self.keeps_order() && self.keeps_memory()
    }
}

fn conflict(earlier: &[Access], later: &[Access]) -> bool {
    let clash = |a: &Access, b: &Access| (a.mode.writes() || b.mode.writes()) && a.resource.overlaps(&b.resource);
    earlier.iter().any(|a| later.iter().any(|b| clash(a, b)))
}

fn reachable(body: &Body) -> Vec<Vec<bool>> {
    let place: HashMap<UnitId, usize> = body.units.iter().enumerate().map(|(place, &unit)| (unit, place)).collect();
    let edges = body.edges.iter().map(|edge| (place[&edge.from], place[&edge.to])).collect::<Vec<_>>();
    closure(body.units.len(), &edges)
}

fn closure(count: usize, edges: &[(usize, usize)]) -> Vec<Vec<bool>> {
    let mut reach = vec![vec![false; count]; count];
    edges.iter().for_each(|&(from, to)| reach[from][to] = true);
    for middle in 0..count {
        for from in 0..count {
            if reach[from][middle] {
                let row = reach[middle].clone();
                reach[from].iter_mut().zip(row).for_each(|(own, other)| *own |= other);
            }
        }
    }
    reach
}

/// The edges of every body, to be damaged.
fn bodies_mut(parts: &mut PlanParts) -> Vec<&mut Body> {
    let outer = parts.graphs.iter_mut().map(|graph| &mut graph.body);
    let inner = parts.units.values_mut().flat_map(|unit| match &mut unit.work {
        Work::If { then_body, else_body } => vec![then_body, else_body],
        Work::Switch { bodies } => bodies.iter_mut().collect(),
        Work::While { body } => vec![body],
        _ => Vec::new(),
    });
    outer.chain(inner).collect()
}

fn case() -> impl Strategy<Value = (Recipe, prop::sample::Index, [prop::sample::Index; 3])> {
    (recipes(), any::<prop::sample::Index>(), any::<[prop::sample::Index; 3]>())
}

/// The plan of one case: any way of planning any step.
fn one_plan(recipe: &Recipe, pick: &prop::sample::Index) -> Option<StepPlan> {
    let all = all_plans(recipe);
    (!all.is_empty()).then(|| all[pick.index(all.len())].clone())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Protects: every way of planning every valid program gives a plan that the independent check accepts, and brute force
    /// agrees.
    #[test]
    fn every_plan_is_sound(recipe in recipes()) {
        for plan in all_plans(&recipe) {
            prop_assert_eq!(check(&plan), Ok(()));
            prop_assert!(Oracle::new(&plan.into_parts()).is_sound());
        }
    }

    /// Protects: a dag orders what conflicts, and conditionals inside of a loop, and nothing else, with no edge that others imply;
    /// a chain orders everything.
    #[test]
    fn edges_are_the_reduction_of_all_conflicts(recipe in recipes()) {
        for plan in all_plans(&recipe) {
            let parts = plan.into_parts();
            let is_chain = parts.fusion.schedule == Schedule::Chain || parts.fusion.graphs == Graphs::PerNode;
            let oracle = Oracle::new(&parts);
            for (number, of) in oracle.bodies.iter().enumerate() {
                let count = of.body.units.len();
                if is_chain {
                    prop_assert_eq!(of.body.edges.len(), count.saturating_sub(1));
                    continue;
                }
                let required: Vec<_> = oracle.required(number).into_iter().collect();
                prop_assert_eq!(&oracle.reach[number], &closure(count, &required));
                for skipped in 0..of.body.edges.len() {
                    let mut fewer = of.body.clone();
                    fewer.edges.remove(skipped);
                    prop_assert_ne!(reachable(&fewer), oracle.reach[number].clone());
                }
            }
        }
    }

    /// Protects: each hazard that an edge only covers lies on a path through that edge.
    #[test]
    fn covered_causes_lie_on_their_paths((recipe, pick, _) in case()) {
        let Some(plan) = one_plan(&recipe, &pick) else { return Ok(()) };
        let parts = plan.into_parts();
        let oracle = Oracle::new(&parts);
        for (number, of) in oracle.bodies.iter().enumerate() {
            let place = |unit: UnitId| oracle.home[&unit].1;
            let joined = |from: UnitId, to: UnitId| from == to || oracle.reach[number][place(from)][place(to)];
            for edge in &of.body.edges {
                prop_assert!(!edge.causes.is_empty());
                for cause in &edge.causes {
                    if let Some((from, to)) = cause.via() {
                        prop_assert!(joined(from, edge.from) && joined(edge.to, to));
                    }
                }
            }
        }
    }

    /// Protects: a plan that lost an edge is refused exactly when some conflict, or some reuse of memory, lost its order.
    #[test]
    fn a_dropped_edge_is_refused_when_it_matters((recipe, pick, [body, edge, _]) in case()) {
        let Some(plan) = one_plan(&recipe, &pick) else { return Ok(()) };
        let mut parts = plan.into_parts();
        let mut bodies = bodies_mut(&mut parts);
        bodies.retain(|body| !body.edges.is_empty());
        if bodies.is_empty() {
            return Ok(());
        }
        let at = body.index(bodies.len());
        let dropped = edge.index(bodies[at].edges.len());
        bodies[at].edges.remove(dropped);
        let sound = Oracle::new(&parts).is_sound();
        prop_assert_eq!(StepPlan::from_parts(parts).is_ok(), sound);
    }

    /// Protects: two neighbours that change places are refused exactly when they conflict.
    #[test]
    fn reordered_units_are_refused_when_they_conflict((recipe, pick, [body, at, _]) in case()) {
        let Some(plan) = one_plan(&recipe, &pick) else { return Ok(()) };
        let mut parts = plan.into_parts();
        let mut bodies = bodies_mut(&mut parts);
        bodies.retain(|body| body.units.len() > 1);
        if bodies.is_empty() {
            return Ok(());
        }
        let number = body.index(bodies.len());
        let body = &mut *bodies[number];
        let first = at.index(body.units.len() - 1);
        body.units.swap(first, first + 1);
        let (now_first, now_second) = (body.units[first], body.units[first + 1]);
        for edge in &mut body.edges {
            if (edge.from, edge.to) == (now_second, now_first) {
                (edge.from, edge.to) = (now_first, now_second);
            }
        }
        let sound = Oracle::new(&parts).is_sound();
        prop_assert_eq!(StepPlan::from_parts(parts).is_ok(), sound);
    }

    /// Protects: a buffer that is moved onto another one is refused exactly when both are in use at a time, or one is tapped.
    #[test]
    fn overlapping_buffers_are_refused_when_both_live((recipe, pick, [a, b, _]) in case()) {
        let Some(plan) = one_plan(&recipe, &pick) else { return Ok(()) };
        let mut parts = plan.into_parts();
        let program = parts.program.program();
        let grouped: BTreeSet<BufferId> =
            program.groups.values().flat_map(|group| group.members.iter().copied()).collect();
        let temps: Vec<BufferId> = program
            .buffers_of(Role::Temp)
            .map(|(id, _)| id)
            .filter(|id| !grouped.contains(id) && parts.arena.buffers[*id].is_some())
            .collect();
        if temps.len() < 2 {
            return Ok(());
        }
        let (moved, onto) = (temps[a.index(temps.len())], temps[b.index(temps.len())]);
        let offset = parts.arena.buffers[onto].map_or(0, |placement| placement.offset);
        if let Some(placement) = &mut parts.arena.buffers[moved] {
            placement.offset = offset;
        }
        let sound = Oracle::new(&parts).is_sound();
        prop_assert_eq!(StepPlan::from_parts(parts).is_ok(), sound);
    }

    /// Protects: a plan without one of its units, with one twice, or with a launch that its rule does not give, is refused.
    #[test]
    fn missing_units_and_wrong_launches_are_refused((recipe, pick, [body, at, kind]) in case()) {
        let Some(plan) = one_plan(&recipe, &pick) else { return Ok(()) };
        let mut parts = plan.into_parts();
        let launches: Vec<UnitId> =
            parts.units.iter().filter(|(_, unit)| matches!(unit.work, Work::Map(_) | Work::Kernel(_))).map(|(id, _)| id).collect();
        if kind.index(3) == 2 && !launches.is_empty() {
            match &mut parts.units[launches[at.index(launches.len())]].work {
                Work::Map(config) | Work::Kernel(config) => config.grid[0] += 1,
                _ => {}
            }
        } else {
            let mut bodies = bodies_mut(&mut parts);
            bodies.retain(|body| !body.units.is_empty());
            let number = body.index(bodies.len());
            let body = &mut *bodies[number];
            let unit = body.units[at.index(body.units.len())];
            if kind.index(2) == 0 {
                body.units.retain(|&own| own != unit);
                body.edges.retain(|edge| edge.from != unit && edge.to != unit);
            } else {
                body.units.push(unit);
            }
        }
        prop_assert!(StepPlan::from_parts(parts).is_err());
    }

    /// Protects: everything lies in its region, aligned; what outlives a launch lies the same in every plan of a program, and
    /// parameters keep their declared order.
    #[test]
    fn lasting_memory_is_the_same_in_every_plan(recipe in recipes()) {
        let program = device_made(&recipe);
        let ways = fusion_plans().into_iter().chain(repeated_plans());
        let all: Vec<_> = ways.flat_map(|fusion| plans(&program, &fusion)).collect();
        for pair in all.windows(2) {
            let (a, b) = (pair[0].arena(), pair[1].arena());
            for (id, _) in program.program().buffers.iter().filter(|(_, buffer)| buffer.role != Role::Temp) {
                prop_assert!(a.buffers[id].is_some());
                prop_assert_eq!(a.buffers[id], b.buffers[id]);
            }
            for id in program.program().scalars.keys() {
                prop_assert_eq!(a.scalars[id], b.scalars[id]);
            }
            for region in [Region::Inbox, Region::Persistent, Region::Output] {
                prop_assert_eq!(a.size(region), b.size(region));
            }
        }
    }

    /// Protects: the same input gives the same bytes, in every form.
    #[test]
    fn every_form_is_stable((recipe, pick, _) in case()) {
        let (Some(a), Some(b)) = (one_plan(&recipe, &pick), one_plan(&recipe, &pick)) else { return Ok(()) };
        prop_assert_eq!(a.text(), b.text());
        prop_assert_eq!(a.dot(), b.dot());
        prop_assert_eq!(a.json().to_string(), b.json().to_string());
        prop_assert_eq!(a.identity(), b.identity());
    }
}

/// Protects: the oracle itself can say no, to order and to memory; else the damage tests would prove nothing.
#[test]
fn the_oracle_sees_damage() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut lost_order, mut lost_memory) = (0, 0);
    for _ in 0..64 {
        let recipe = recipes().new_tree(&mut runner).expect("recipes can be drawn").current();
        let program = valid(&recipe);
        for plan in plans(&program, &FusionPlan::mega()) {
            let mut parts = plan.into_parts();
            bodies_mut(&mut parts).into_iter().for_each(|body| body.edges.clear());
            let oracle = Oracle::new(&parts);
            lost_order += usize::from(!oracle.keeps_order());
            lost_memory += usize::from(!oracle.keeps_memory());
        }
    }
    assert!(lost_order > 10 && lost_memory > 10, "{lost_order} lost their order, {lost_memory} their memory");
}

/// Protects: a view is a box, not its buffer: column siblings of one buffer stay unordered.
#[test]
fn siblings_run_side_by_side() {
    let mut p = stepgraph::Builder::new("siblings");
    let x = p.input::<f32>("x", [8, 4]);
    let wide = p.output::<f32>("wide", [8, 8]);
    p.step("run", |s| {
        s.phase("only", |f| {
            f.copy("left", x, wide.cols(0..4));
            f.copy("right", x, wide.cols(4..8));
        });
    });
    let plan = p.build().expect("valid").plan("run", &FusionPlan::mega(), &Target::default(), &Tuning::default());
    assert_eq!(plan.expect("plannable").graphs()[0].body.edges, []);
}

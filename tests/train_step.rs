//! The flagship's training step on the host where no golden file reaches: drawing from the replay buffer, relabelling, drawn masks,
//! bad transitions, odd shapes; and its canonical specs.

#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "common/dqn.rs"]
mod dqn;

use std::path::Path;

use dqn::hyper::{Hyper, HyperError, Mask, Source};
use dqn::replay::{Transitions, extents, fact};
use dqn::train::Dqn;
use stepgraph::Builder;
use stepgraph::handle::Tensor;
use stepgraph::ir::{Compute, Program, Role};
use stepgraph::plan::{FusionPlan, Repeat, Target, Tuning};
use stepgraph::runtime::{Device, Session};
use stepgraph::spec::{self, SpecOptions};
use stepgraph::valid::ValidProgram;

const EXPOSURE: u32 = 0;

fn hyper(atoms: u32) -> Hyper {
    Hyper {
        batch: 16,
        observation: 8,
        trunk: 32,
        head: 16,
        blocks: 2,
        branches: vec![9, 3, 3],
        classes: 3,
        atoms,
        support: [-10.0, 10.0],
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        compute: Compute::F32,
        source: Source::Replay { capacity: 96, exposure: EXPOSURE },
        mask: Mask::Drawn,
    }
}

// ---- specs --------------------------------------------------------------------------------------------------------------

fn program(name: &str, hyper: &Hyper) -> ValidProgram {
    let mut p = Builder::new(name);
    let dqn = Dqn::declare(&mut p, hyper);
    dqn.add_train(&mut p);
    p.build().unwrap_or_else(|errors| panic!("{errors}"))
}

/// Protects: the canonical specs are the program that the builder makes, and read back to the same program.
/// `UPDATE_SPECS=1 cargo test --test train_step specs` writes them anew.
#[test]
fn specs_are_the_builders_program() {
    for (name, atoms) in [("dqn_ddqn", 1), ("dqn_c51", 11)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("graph_specs/{name}.toml"));
        let built: Program = program(name, &hyper(atoms)).program().clone();
        let text = spec::write(&built);
        if std::env::var_os("UPDATE_SPECS").is_some() {
            std::fs::write(&path, &text).expect("graph_specs can be written");
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(stored == text, "{name}.toml is not what the builder makes: see this test's comment");
        let read = spec::read(&path, &SpecOptions::default()).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(read.program, built);
    }
}

// ---- a system with a replay buffer --------------------------------------------------------------------------------------

/// Transitions that one launch inserts.
const ROWS: u32 = 40;

/// A session whose replay buffer is filled through inputs.
struct System {
    session: Session,
    dqn: Dqn,
    rows: Transitions,
    index: Tensor<u32>,
    relabelled: Tensor<u32>,
    donor: Tensor<u32>,
}

impl System {
    fn open(hyper: &Hyper) -> Self {
        Self::open_repeated(hyper, Repeat::Once)
    }

    /// A system whose launches of `train` make several steps.
    fn open_repeated(hyper: &Hyper, repeat: Repeat) -> Self {
        hyper.check().expect("a network");
        let mut p = Builder::new("system");
        let dqn = Dqn::declare(&mut p, hyper);
        let rows = Transitions {
            observation: p.input("observation", [ROWS, hyper.observation]),
            next: p.input("next", [ROWS, hyper.observation]),
            action: p.input("action", [ROWS, hyper.branch_count()]),
            facts: p.input("facts", [ROWS, fact::COUNT]),
            class: p.input("class", [ROWS]),
        };
        let replay = dqn.replay.expect("a replay buffer");
        p.step("insert", |s| s.phase("insert", |f| replay.insert(f, &rows, ROWS)));
        p.step("start", |s| {
            s.phase("target", |f| {
                for (index, (from, to)) in dqn.theta.layers().zip(dqn.target.layers()).enumerate() {
                    f.copy(&format!("w{index}"), from.w, to.w);
                    f.copy(&format!("b{index}"), from.b, to.b);
                }
            });
        });
        dqn.add_train(&mut p);
        let (index, relabelled, donor) = (p.tensor("draw.index"), p.tensor("relabel"), p.tensor("donor"));
        for tensor in [index, relabelled, donor] {
            p.tap(tensor);
        }
        for tensor in [dqn.batch.x, dqn.batch.reward, dqn.batch.done, dqn.batch.weight] {
            p.tap(tensor);
        }
        p.tap(dqn.batch.action);
        dqn.mask.into_iter().for_each(|mask| p.tap(mask));
        let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
        let (fusion, target, tuning) = (FusionPlan::mega(), Target::default(), Tuning::default());
        let mut plans: Vec<_> = ["insert", "start"]
            .map(|step| program.plan(step, &fusion, &target, &tuning).expect("a plan"))
            .into_iter()
            .collect();
        for variant in hyper.variants() {
            let fusion = fusion.clone().repeated(repeat);
            plans.push(program.plan_variant("train", variant, &fusion, &target, &tuning).expect("a plan"));
        }
        let mut session = Session::builder().seed(11).open(Device::Host, plans).expect("a session");
        session.launch("start").expect("a launch");
        Self { session, dqn, rows, index, relabelled, donor }
    }

    /// Opens a system and inserts 40 random transitions.
    fn filled(hyper: &Hyper) -> Self {
        let mut system = Self::open(hyper);
        system.insert(1);
        system
    }

    fn insert(&mut self, seed: u32) {
        let Hyper { observation, branches, classes, .. } = self.dqn.hyper.clone();
        let (n, s) = (ROWS as usize, observation as usize);
        let mut draw = Draws(seed);
        let facts: Vec<f32> = (0..n).flat_map(|row| transition(&mut draw, row)).collect();
        let actions: Vec<i32> =
            (0..n).flat_map(|_| branches.iter().map(|&k| (draw.word() % k) as i32).collect::<Vec<_>>()).collect();
        let classes: Vec<i32> = (0..n).map(|_| (draw.word() % classes) as i32).collect();
        let session = &mut self.session;
        session.write_input(self.rows.observation, &draw.floats(n * s)).expect("the right length");
        session.write_input(self.rows.next, &draw.floats(n * s)).expect("the right length");
        session.write_input(self.rows.action, &actions).expect("the right length");
        session.write_input(self.rows.facts, &facts).expect("the right length");
        session.write_input(self.rows.class, &classes).expect("the right length");
        session.launch("insert").expect("a launch");
    }

    fn train(&mut self) -> Vec<f32> {
        let variant = self.dqn.hyper.variants()[0];
        let ticket = self.session.launch_variant("train", variant).expect("a launch");
        let mut outputs = ticket.wait(&mut self.session).expect("no failure");
        outputs.read(self.dqn.outputs.metrics).expect("still there")
    }

    fn metric(&self, row: &[f32], name: &str) -> f32 {
        let names = stepgraph::kernel::library::dqn::METRICS;
        row[names.iter().position(|&known| known == name).expect("a metric")]
    }

    fn read(&mut self, tensor: Tensor<f32>) -> Vec<f32> {
        self.session.read(tensor).expect("readable")
    }
}

/// Small random test data.
struct Draws(u32);

impl Draws {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(1);
        stepgraph::host::philox4x32([self.0, 0, 0, 0], [77, 0])[0]
    }

    fn float(&mut self) -> f32 {
        (self.word() >> 8) as f32 / 8_388_608.0 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// A transition's facts.
fn transition(draw: &mut Draws, row: usize) -> [f32; 6] {
    let (reward, drift, target, pace) = (draw.float(), draw.float(), draw.float(), draw.float().abs());
    let mut facts = [0.0; 6];
    facts[fact::REWARD as usize] = reward;
    facts[fact::DONE as usize] = if row % 7 == 3 { 1.0 } else { 0.0 };
    facts[fact::DRIFT as usize] = drift;
    facts[fact::TARGET as usize] = target;
    facts[fact::PACE as usize] = pace;
    facts[fact::RATE as usize] = draw.float().abs();
    facts
}

/// Protects: a launch of several training steps leaves everything as single launches do: weights, moments, priorities, counters,
/// what was drawn last, and the last step's metrics.
#[test]
fn several_steps_per_launch_are_the_single_steps() {
    let everything = |atoms: u32, repeat: Repeat, launches: usize| {
        let mut system = System::open_repeated(&hyper(atoms), repeat);
        system.insert(1);
        let metrics = (0..launches).map(|_| system.train()).last().expect("a launch");
        let program = system.session.plans()[0].program().clone();
        let buffers = program.program().buffers.values().filter(|buffer| buffer.role != Role::Temp || buffer.tap);
        let mut kept: Vec<_> = buffers
            .map(|buffer| (buffer.name.clone(), system.session.read_by_name(&buffer.name).expect("readable").bytes))
            .collect();
        for cell in program.program().scalars.values() {
            let value = system.session.read_scalar_by_name(&cell.name).expect("a cell");
            kept.push((cell.name.clone(), value.bits().to_le_bytes().to_vec()));
        }
        (metrics, kept)
    };
    for atoms in [1, 11] {
        let single = everything(atoms, Repeat::Once, 6);
        for (repeat, launches) in [(Repeat::Unroll(3), 2), (Repeat::Loop(3), 2), (Repeat::Loop(6), 1)] {
            let found = everything(atoms, repeat, launches);
            assert_eq!(found.0, single.0, "metrics of {atoms} atoms, {repeat}");
            for (found, single) in found.1.iter().zip(&single.1) {
                assert!(found == single, "`{}` of {atoms} atoms differs under {repeat}", found.0);
            }
        }
    }
}

/// Protects: insertion is a ring: the oldest transitions are overwritten, the counters follow, new ones rank highest.
#[test]
fn insertion_wraps_around() {
    let mut system = System::open(&hyper(1));
    let replay = system.dqn.replay.expect("a replay buffer");
    assert_eq!((replay.capacity, extents(96), extents(1_000_000)), (96, [3, 32], [977, 1024]));
    let mut inserted = Vec::new();
    for (round, (cursor, size)) in (1u32..).zip([(40, 40), (80, 80), (24, 96), (64, 96)]) {
        system.insert(100 * round);
        let mut draw = Draws(100 * round);
        inserted.extend((0..ROWS as usize).map(|row| transition(&mut draw, row)));
        let session = &mut system.session;
        assert_eq!(session.read_scalar(replay.cursor).expect("a cell"), cursor);
        assert_eq!(session.read_scalar(replay.size).expect("a cell"), size);
    }
    let facts = system.read(replay.facts);
    for (place, stored) in facts.chunks_exact(6).enumerate() {
        let last = (0..inserted.len()).filter(|at| at % 96 == place).max().expect("every place was written");
        assert_eq!(stored, inserted[last], "place {place}");
    }
    assert!(system.read(replay.priority).iter().all(|&priority| priority == 1.0));
}

/// Protects: the batch is what was drawn: rows are copies of their transitions, relabelled ones follow the donor on the row's own
/// price path, and importance weights and new priorities are those of Schaul et al.
///
/// A reward is two products and a difference of numbers below 2: 5e-7. A weight or priority is a power of a number good to 5e-6
/// relative (a sum of up to 96 priorities): 1e-5.
#[test]
fn a_step_learns_from_what_it_drew() {
    for share in [0.0f32, 0.5, 1.0] {
        let mut system = System::filled(&hyper(1));
        let (replay, batch) = (system.dqn.replay.expect("a replay buffer"), system.dqn.batch);
        system.session.set(replay.relabel, share).expect("a host scalar");
        system.train(); // so that priorities differ
        let before = system.read(replay.priority);
        let metrics = system.train();
        assert_eq!(system.metric(&metrics, "applied"), 1.0);

        let read_u32 = |system: &mut System, tensor| system.session.read::<u32>(tensor).expect("a tap");
        let (index_of, relabel_of, donor_of) = (system.index, system.relabelled, system.donor);
        let index = read_u32(&mut system, index_of);
        let (relabelled, donor) = (read_u32(&mut system, relabel_of), read_u32(&mut system, donor_of));
        let (facts, stored) = (system.read(replay.facts), system.read(replay.observation));
        let (next, reward, x) = (system.read(replay.next), system.read(batch.reward), system.read(batch.x));
        let (done, weight) = (system.read(batch.done), system.read(batch.weight));
        let action = system.session.read::<i32>(batch.action).expect("a tap");
        let actions = system.session.read::<i32>(replay.action).expect("state");
        let (b, s) = (index.len(), 8);
        assert_eq!(relabelled.contains(&1), share > 0.0);
        assert_eq!(relabelled.contains(&0), share < 1.0);
        for row in 0..b {
            let own = index[row] as usize;
            let giver = if relabelled[row] == 1 { donor[row] as usize } else { own };
            assert!(own < 40 && giver < 40, "only what is held is drawn");
            let fact = |place: usize, column: u32| facts[place * 6 + column as usize];
            assert_eq!(x[row * s..][..s], stored[own * s..][..s]);
            assert_eq!(action[row * 3..][..3], actions[giver * 3..][..3]);
            assert_eq!(done[row], fact(own, fact::DONE));
            let mut expected = (fact(own, fact::REWARD), next[own * s..][..s].to_vec());
            if relabelled[row] == 1 {
                let held = stored[own * s + EXPOSURE as usize];
                let after = held + fact(giver, fact::PACE) * (fact(giver, fact::TARGET) - held);
                expected.0 = after * fact(own, fact::DRIFT) - fact(giver, fact::RATE) * (after - held).abs();
                expected.1[EXPOSURE as usize] = after;
            }
            let (expected_reward, expected) = expected;
            assert!((reward[row] - expected_reward).abs() < 5e-7, "reward of row {row}");
            assert_eq!(x[(b + row) * s..][..s], expected);
        }

        let total: f64 = before.iter().map(|&priority| f64::from(priority)).sum();
        let raw: Vec<f64> =
            index.iter().map(|&i| (f64::from(before[i as usize]) / total * 40.0).powf(-f64::from(0.4f32))).collect();
        let largest = raw.iter().copied().fold(0.0, f64::max);
        for (found, raw) in weight.iter().zip(raw) {
            assert!((f64::from(*found) - raw / largest).abs() < 1e-5, "{found} is not {}", raw / largest);
        }
        let (after, errors) = (system.read(replay.priority), system.read(system.dqn.outputs.priorities));
        for place in 0..before.len() {
            let last = (0..b).rev().find(|&row| index[row] as usize == place);
            let expected = last.map_or(f64::from(before[place]), |row| {
                (f64::from(errors[row]) + f64::from(1e-3f32)).powf(f64::from(0.6f32))
            });
            assert!((f64::from(after[place]) - expected).abs() <= 1e-5 * expected, "priority {place}");
        }
        let most = after.iter().copied().fold(1.0f32, f32::max);
        let kept = system.session.read_scalar(replay.max_priority).expect("a cell");
        assert!(kept >= most, "{kept} is below {most}");
    }
}

/// Protects: a transition whose reward is not finite costs one step and is never drawn again; training goes on.
#[test]
fn a_bad_transition_is_drawn_once() {
    let mut system = System::filled(&hyper(1));
    let replay = system.dqn.replay.expect("a replay buffer");
    system.session.set(replay.relabel, 0.0).expect("a host scalar");
    system.session.load(replay.facts.pick(0, 5).slice(0, 0..1), &[f32::NAN]).expect("state");
    let mut applied = Vec::new();
    for _ in 0..40 {
        let row = system.train();
        applied.push(system.metric(&row, "applied"));
        assert_eq!(system.metric(&row, "nonfinite_samples") > 0.0, applied.last() == Some(&0.0));
    }
    assert_eq!(applied.iter().filter(|&&applied| applied == 0.0).count(), 1, "{applied:?}");
    assert_eq!(system.read(replay.priority)[5], 0.0);
    let counters = system.dqn.counters;
    assert_eq!(system.session.read_scalar(counters.t).expect("a cell"), 39);
    assert_eq!(system.session.read_scalar(counters.skipped).expect("a cell"), 1);
    let theta: Vec<f32> =
        system.dqn.theta.layers().flat_map(|layer| system.session.read(layer.w).expect("a weight")).collect();
    assert!(theta.iter().all(|weight| weight.is_finite()));
}

/// Protects: no quantity that the host may change is frozen into the plan: each of them changes what two steps leave behind.
#[test]
fn every_host_scalar_matters() {
    let result = |change: &dyn Fn(&mut Session, &Dqn)| {
        let mut system = System::filled(&hyper(1));
        let dqn = system.dqn.clone();
        change(&mut system.session, &dqn);
        // Twice: exponents show in the priorities of the first step, and so in the draw of the second.
        let mut seen = system.train();
        seen.extend(system.train());
        seen.extend(system.read(dqn.target.out.w));
        seen.extend(system.read(dqn.theta.trunk.w));
        seen
    };
    let base = result(&|_, _| {});
    assert_eq!(base, result(&|_, _| {}), "the same seed gives the same bits");
    let set = |pick: fn(&Dqn) -> stepgraph::handle::Scalar<f32>, value: f32| {
        result(&move |session, dqn| session.set(pick(dqn), value).expect("a host scalar"))
    };
    for (name, found) in [
        ("aux_w", set(|dqn| dqn.scalars.aux_w, 0.7)),
        ("lr", set(|dqn| dqn.scalars.lr, 1e-2)),
        ("tau", set(|dqn| dqn.scalars.tau, 0.5)),
        ("sigma_max", set(|dqn| dqn.scalars.sigma_max, 0.25)),
        ("max_norm", set(|dqn| dqn.scalars.max_norm, 1e-3)),
        ("gamma", set(|dqn| dqn.scalars.gamma, 0.1)),
        ("keep", set(|dqn| dqn.scalars.keep, 0.3)),
        ("replay.exponent", set(|dqn| dqn.replay.expect("a buffer").exponent, 0.0)),
        ("replay.correction", set(|dqn| dqn.replay.expect("a buffer").correction, 1.0)),
        ("replay.relabel", set(|dqn| dqn.replay.expect("a buffer").relabel, 1.0)),
        ("seed", result(&|session, dqn| session.set(dqn.scalars.seed, 5).expect("a host scalar"))),
    ] {
        assert!(found != base, "{name} changes nothing");
    }
}

/// Protects: a drawn mask is one factor per block, 0 or 1/keep, another one at each step.
#[test]
fn masks_are_drawn() {
    let mut system = System::filled(&Hyper { blocks: 5, ..hyper(1) });
    let mask = system.dqn.mask.expect("a mask");
    system.session.set(system.dqn.scalars.keep, 0.5).expect("a host scalar");
    let mut seen = Vec::new();
    for _ in 0..20 {
        system.train();
        let drawn = system.read(mask);
        assert!(drawn.len() == 5 && drawn.iter().all(|&factor| factor == 0.0 || factor == 2.0), "{drawn:?}");
        seen.push(drawn);
    }
    let kept = seen.concat().iter().filter(|&&factor| factor > 0.0).count();
    // 100 draws of probability 1/2: 30 to 70 is four standard deviations.
    assert!((30..=70).contains(&kept), "{kept} of 100");
    seen.dedup();
    assert!(seen.len() > 10, "masks repeat");
}

/// Protects: any dimensions give a step that runs: no residual block, one branch of one action, one sample, two atoms.
#[test]
fn odd_shapes_train() {
    let odd = |atoms| Hyper { batch: 1, trunk: 3, head: 1, blocks: 0, branches: vec![1], classes: 1, ..hyper(atoms) };
    let wide = |atoms| Hyper { batch: 33, branches: vec![2; 35], ..hyper(atoms) };
    for hyper in [odd(1), odd(2), wide(1), wide(3)] {
        let mut system = System::filled(&hyper);
        for _ in 0..3 {
            let row = system.train();
            assert_eq!(system.metric(&row, "applied"), 1.0, "{hyper:?}");
            assert!(row.iter().all(|value| value.is_finite()), "{hyper:?}: {row:?}");
        }
    }
}

/// Protects: dimensions that give no network are refused by name.
#[test]
fn bad_dimensions_are_refused() {
    let refusal = |hyper: Hyper| hyper.check().map_err(|error: HyperError| error.to_string()).expect_err("refused");
    let found = [
        refusal(Hyper { batch: 0, ..hyper(1) }),
        refusal(Hyper { branches: vec![], ..hyper(1) }),
        refusal(Hyper { branches: vec![3, 0], ..hyper(1) }),
        refusal(Hyper { support: [1.0, 1.0], ..hyper(2) }),
        refusal(Hyper { support: [f32::NEG_INFINITY, 1.0], ..hyper(2) }),
        refusal(Hyper { source: Source::Replay { capacity: 0, exposure: 0 }, ..hyper(1) }),
        refusal(Hyper { source: Source::Replay { capacity: 9, exposure: 8 }, ..hyper(1) }),
    ];
    insta::assert_snapshot!(found.join("\n"), @r"
    the extent `batch` is 0: at least 1 is needed
    there are no branches: at least one is needed
    the number of actions of branch 1 is 0: at least 1 is needed
    the support 1 to 1 of 2 atoms is empty or not finite: the first must be below the second
    the support -inf to 1 of 2 atoms is empty or not finite: the first must be below the second
    the replay capacity is 0: at least 1 is needed
    column 8 cannot hold the exposure: an observation has 8 columns
    ");
}

//! Random programs on the host: the order of execution, the grouping of launches and the reuse of memory never show in results.

mod common;

use std::sync::atomic::AtomicBool;

use common::random;
use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};
use stepgraph::entity::UnitId;
use stepgraph::host::{HostError, HostExecutor, HostMemory, philox4x32};
use stepgraph::ir::{DType, Origins, Program, Role};
use stepgraph::plan::{Body, FusionPlan, Placement, Repeat, Schedule, StepPlan, Target, Tuning};
use stepgraph::valid::{ValidProgram, validate};

/// Memory with values in every input, parameter and state, the same for every plan of a program.
fn filled(plan: &StepPlan) -> HostMemory {
    let (program, arena) = (plan.program().program(), plan.arena());
    let mut memory = HostMemory::for_arenas([arena]).expect("there is room");
    for (id, buffer) in program.buffers.iter() {
        let Some(at) = arena.buffers[id].filter(|_| matches!(buffer.role, Role::Input | Role::Param | Role::State))
        else {
            continue;
        };
        let word = |i: u64| philox4x32([i as u32, 0, 0, 0], [id.as_u32(), 1])[0];
        let bytes: Vec<u8> = (0..buffer.shape.elements())
            .flat_map(|i| match buffer.dtype {
                DType::F32 => (word(i) as f32 / 2f32.powi(31) - 1.0).to_ne_bytes().to_vec(),
                DType::Bf16 => half::bf16::from_f32(word(i) as f32 / 2f32.powi(31) - 1.0).to_ne_bytes().to_vec(),
                DType::I32 | DType::U32 => (word(i) % 5).to_ne_bytes().to_vec(),
            })
            .collect();
        memory.bytes_mut(at)[..bytes.len()].copy_from_slice(&bytes);
    }
    for (id, scalar) in program.scalars.iter() {
        if let Some(at) = arena.scalars[id] {
            memory.bytes_mut(at).copy_from_slice(&scalar.init.bits().to_ne_bytes());
        }
    }
    memory
}

/// What a plan leaves behind in everything but temps, padding of groups included, by name; or that the program breaks a promise.
fn results(plan: &StepPlan, order: Option<u64>, poison: bool) -> Result<Vec<(String, Vec<u8>)>, ()> {
    results_of(plan, 1, order, poison)
}

/// The same after several launches.
fn results_of(plan: &StepPlan, launches: u32, order: Option<u64>, poison: bool) -> Result<Vec<(String, Vec<u8>)>, ()> {
    let mut executor = HostExecutor::new(plan).unwrap_or_else(|error| panic!("{error}"));
    let mut memory = filled(plan);
    if poison {
        memory.poison_scratch();
    }
    let stop = AtomicBool::new(false);
    let ran = (0..launches).try_for_each(|_| match order {
        None => executor.run(&mut memory, &stop),
        Some(seed) => executor.run_in_order(&mut memory, &stop, &mut |body| legal_order(body, seed)),
    });
    match ran {
        Ok(()) => Ok(kept(plan, &memory)),
        Err(HostError::BrokenScatterRule { .. }) => Err(()),
        Err(error) => panic!("{error}"),
    }
}

fn kept(plan: &StepPlan, memory: &HostMemory) -> Vec<(String, Vec<u8>)> {
    let (program, arena) = (plan.program().program(), plan.arena());
    let buffers = program.buffers.iter().filter(|(_, buffer)| buffer.role != Role::Temp);
    let buffers = buffers.map(|(id, buffer)| (&buffer.name, arena.buffers[id]));
    let scalars = program.scalars.iter().map(|(id, scalar)| (&scalar.name, arena.scalars[id]));
    let groups = program.groups.iter().map(|(id, group)| {
        let bytes = program.group_layout(id).1;
        let first = group.members.first().filter(|&&member| program.buffers[member].role != Role::Temp);
        (&group.name, first.and_then(|&member| arena.buffers[member]).map(|at| Placement { bytes, ..at }))
    });
    let placed =
        buffers.chain(scalars).chain(groups).filter_map(|(name, at)| Some((name.clone(), memory.bytes(at?).to_vec())));
    placed.collect()
}

/// The names of what differs.
fn differences(
    found: &Result<Vec<(String, Vec<u8>)>, ()>,
    expected: &Result<Vec<(String, Vec<u8>)>, ()>,
) -> Vec<String> {
    match (found, expected) {
        (Ok(found), Ok(expected)) => {
            assert_eq!(found.len(), expected.len());
            let pairs = found.iter().zip(expected).filter(|(found, expected)| found != expected);
            pairs.map(|(found, _)| found.0.clone()).collect()
        }
        (Err(()), Err(())) => Vec::new(),
        _ => vec!["whether a promise is broken".to_owned()],
    }
}

/// A random order of a body that its edges allow.
fn legal_order(body: &Body, seed: u64) -> Vec<UnitId> {
    let mut left = body.units.clone();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let waits = |unit: &UnitId| body.edges.iter().any(|edge| edge.to == *unit && left.contains(&edge.from));
        let ready: Vec<usize> = (0..left.len()).filter(|&at| !waits(&left[at])).collect();
        let [word, ..] = philox4x32([order.len() as u32, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
        order.push(left.remove(ready[word as usize % ready.len()]));
    }
    order
}

fn valid(program: Program, host_fns: stepgraph::kernel::HostFns) -> ValidProgram {
    validate(program, Origins::default(), host_fns).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Every step and variant of a program that has something to run.
fn forms(program: &ValidProgram) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    for step in program.program().steps.values() {
        let forms = step.forms().into_iter().filter(|form| step.phases_in(*form).next().is_some());
        found.extend(forms.map(|form| (step.name.clone(), form.map(str::to_owned))));
    }
    found
}

fn plan(program: &ValidProgram, (step, variant): &(String, Option<String>), fusion: &FusionPlan) -> StepPlan {
    let (target, tuning) = (Target::default(), Tuning::default());
    let plan = match variant {
        Some(variant) => program.plan_variant(step, variant, fusion, &target, &tuning),
        None => program.plan(step, fusion, &target, &tuning),
    };
    plan.unwrap_or_else(|error| panic!("{error}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Protects: any order that a plan's edges allow gives the same bits, over the plan's reused memory; and so does every
    /// grouping into graphs.
    #[test]
    fn any_legal_order_gives_the_same_bits(recipe in random::recipes(), seed in any::<u64>()) {
        let (program, host_fns) = recipe.build();
        let program = valid(program, host_fns);
        for form in forms(&program) {
            let reference = results(&plan(&program, &form, &FusionPlan::debug()), None, false);
            for fusion in [FusionPlan::phases(), FusionPlan::mega()] {
                let plan = plan(&program, &form, &fusion);
                for order in [None, Some(seed), Some(!seed)] {
                    let differ = differences(&results(&plan, order, false), &reference);
                    prop_assert!(differ.is_empty(), "{differ:?} differ, {} in order {order:?}", fusion.name);
                }
            }
        }
    }

    /// Protects: a plan of several steps, unrolled or in a loop, however it is cut, in any legal order and over scratch full of
    /// NaN, leaves the bits of as many launches of the single step.
    #[test]
    fn repeated_steps_are_as_many_launches(recipe in random::recipes(), seed in any::<u64>(), steps in 1u32..5) {
        let (mut program, host_fns) = recipe.build();
        for buffer in program.buffers.values_mut().filter(|buffer| buffer.role == Role::Input) {
            buffer.role = Role::State;
        }
        let program = valid(program, host_fns);
        for form in forms(&program) {
            let reference = results_of(&plan(&program, &form, &FusionPlan::debug()), steps, None, false);
            let mega = FusionPlan::mega();
            for fusion in [
                FusionPlan::debug().repeated(Repeat::Unroll(steps)),
                FusionPlan::phases().repeated(Repeat::Unroll(steps)),
                mega.clone().repeated(Repeat::Unroll(steps)),
                FusionPlan { schedule: Schedule::Chain, ..mega.clone() }.repeated(Repeat::Loop(steps)),
                mega.repeated(Repeat::Loop(steps)),
            ] {
                let plan = plan(&program, &form, &fusion);
                for order in [None, Some(seed)] {
                    let differ = differences(&results(&plan, order, true), &reference);
                    prop_assert!(differ.is_empty(), "{differ:?} differ, {} in order {order:?}", fusion.name);
                }
            }
        }
    }

    /// Protects: no plan reads scratch that the step has not written: NaN in it changes nothing.
    #[test]
    fn poisoned_scratch_changes_nothing(recipe in random::recipes()) {
        let (program, host_fns) = recipe.build();
        let program = valid(program, host_fns);
        for form in forms(&program) {
            let plan = plan(&program, &form, &FusionPlan::mega());
            let differ = differences(&results(&plan, None, true), &results(&plan, None, false));
            prop_assert!(differ.is_empty(), "{differ:?} differ");
        }
    }
}

/// Protects: an order that leaves a unit out, repeats one, or breaks an edge is refused.
#[test]
fn illegal_orders_are_refused() {
    let mut p = stepgraph::Builder::new("orders");
    let x = p.input::<f32>("x", [4]);
    let y = p.output::<f32>("y", [4]);
    p.step("s", |s| {
        s.phase("p", |f| {
            let a = f.map::<f32>("a", x + 1.0f32);
            let b = f.map::<f32>("b", a * 2.0f32);
            f.map_to("y", y, b - 1.0f32);
        });
    });
    let program = p.build().expect("valid");
    let plan = plan(&program, &("s".into(), None), &FusionPlan::mega());
    let run = |reorder: &dyn Fn(&mut Vec<UnitId>)| {
        let order = &mut |body: &Body| {
            let mut order = body.units.clone();
            reorder(&mut order);
            order
        };
        let mut executor = HostExecutor::new(&plan).expect("it needs nothing");
        executor.run_in_order(&mut filled(&plan), &AtomicBool::new(false), order).map_err(|error| error.to_string())
    };
    assert_eq!(run(&|_| {}), Ok(()));
    assert!(run(&|order| order.swap(0, 1)).is_err_and(|error| error.contains("depends on has not run")));
    assert!(run(&|order| _ = order.pop()).is_err_and(|error| error.contains("`p.y`") && error.contains("left out")));
    assert!(run(&|order| order.push(order[0])).is_err_and(|error| error.contains("already run")));
}

/// Protects: a kernel without a host function is refused when the plan is opened, with the kernel's and the node's name.
#[test]
fn a_missing_host_function_is_named() {
    use stepgraph::kernel::library::optim::adam;
    use stepgraph::{handle::Const, ir::Init};
    let mut p = stepgraph::Builder::new("missing");
    let (lr, t) = (p.host_scalar("lr", 0.1f32), p.device_scalar("t", 1u32));
    let grad = p.input::<f32>("grad", [8]);
    let [param, m, v] = ["param", "m", "v"].map(|name| p.state::<f32>(name, [8], Init::Zeros));
    p.step("s", |s| {
        s.phase("p", |f| {
            let (beta1, beta2, eps) = (Const(0.9), Const(0.999), Const(1e-8));
            f.kernel("update", adam::Args { param, grad, m, v, step: t, lr, beta1, beta2, eps });
        });
    });
    let program = p.build().expect("valid").program().clone();
    let program = valid(program, stepgraph::kernel::HostFns::new());
    let error = HostExecutor::new(&plan(&program, &("s".into(), None), &FusionPlan::debug()));
    let error = error.expect_err("there is no host function").to_string();
    assert!(error.contains("`p.update`") && error.contains("`adam`"), "{error}");
}

/// A program whose products have epilogues that no matrix library has: inside the product, or as maps behind it.
fn wide_epilogues(key: &str) -> ValidProgram {
    let text = format!(
        r#"
        program = "wide"
        [scalar]
        gain = {{ init = 0.75, writer = "host" }}
        [input]
        x = [5, 7]
        z = [5, 3]
        [param]
        w = [3, 7]
        b = [3]
        [state]
        total = [5, 3]
        [output]
        y = [5, 3]
        [s.main]
        y = {{ gemm = "x @ w'", alpha = "gain", {key} = "tanh(acc) * z + b" }}
        total = {{ gemm = "x @ w'", add = "total", beta = 0.5, {key} = "select(acc > 0.0, acc, exp(acc) - 1.0)" }}
        "#
    );
    let parsed = stepgraph::spec::parse(&text, &stepgraph::spec::SpecOptions::default()).expect("a spec");
    parsed.validate().expect("valid")
}

/// Protects: an epilogue of float32 has the bits of the same map behind the product, though the library lacks it.
#[test]
fn wide_epilogues_equal_maps() {
    let of = |key| {
        let plan = plan(&wide_epilogues(key), &("s".into(), None), &FusionPlan::mega());
        results_of(&plan, 3, None, true).expect("it promises nothing")
    };
    assert_eq!(of("epilogue"), of("then"));
}

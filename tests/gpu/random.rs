//! Random programs: every plan gives the same bits on the device, and exact programs have the host's.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stepgraph::ir::{BinaryOp, Combiner, Expr, ExprOp, NodeOp, Origins, Program, UnaryOp};
use stepgraph::plan::{FusionPlan, StepPlan, Tuning};
use stepgraph::runtime::{Device, Session};
use stepgraph::valid::{ValidProgram, validate};

use crate::common::random::recipes;
use crate::support::{Memory, device, fill, target};

/// Programs of one run.
const CASES: usize = 60;

pub(crate) fn programs() -> Vec<ValidProgram> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[5; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..CASES)
        .map(|_| {
            let recipe = recipes().new_tree(&mut runner).expect("a recipe").current();
            let (program, host_fns) = recipe.build();
            validate(program, Origins::default(), host_fns).expect("recipes keep every rule")
        })
        .collect()
}

/// Plans of every step and variant.
fn plans(program: &ValidProgram, fusion: &FusionPlan) -> Vec<StepPlan> {
    let forms =
        program.program().steps.values().flat_map(|step| step.forms().into_iter().map(|form| (&step.name, form)));
    let plan = |(step, form): (&String, Option<&str>)| match form {
        Some(variant) => program.plan_variant(step, variant, fusion, &target(), &Tuning::default()),
        None => program.plan(step, fusion, &target(), &Tuning::default()),
    };
    forms.map(|form| plan(form).unwrap_or_else(|error| panic!("it plans: {error}"))).collect()
}

/// Two rounds of every step and variant, each launched so often; `None` where the host finds a broken scatter promise, which a device does not check.
pub(crate) fn leaves(device: Device, program: &ValidProgram, fusion: &FusionPlan, launches: usize) -> Option<Memory> {
    let plans = plans(program, fusion);
    let forms: Vec<_> =
        plans.iter().map(|plan| (plan.step_name().to_owned(), plan.variant().map(str::to_owned))).collect();
    let mut session = Session::open(device, plans).unwrap_or_else(|error| panic!("it opens: {error:?}"));
    fill(&mut session, program.program(), 2);
    for (step, variant) in forms.iter().chain(&forms).flat_map(|form| std::iter::repeat_n(form, launches)) {
        let launched = match variant {
            Some(variant) => session.launch_variant(step, variant),
            None => session.launch(step),
        };
        match launched {
            Ok(_) => {}
            Err(stepgraph::runtime::RuntimeError::Host(_)) if device == Device::Host => return None,
            Err(error) => panic!("it launches: {error:?}"),
        }
    }
    session.wait().unwrap_or_else(|error| panic!("it runs: {error:?}"));
    Some(Memory::of(&mut session, program.program()))
}

/// Whether every operation is exact or correctly rounded in the same order on both sides.
fn is_exact(program: &Program) -> bool {
    let is_exact_expr = |expr: &Expr| {
        expr.ops().values().all(|op| match op {
            ExprOp::Unary(op, _) => !matches!(
                op,
                UnaryOp::Exp
                    | UnaryOp::Log
                    | UnaryOp::Expm1
                    | UnaryOp::Log1p
                    | UnaryOp::Tanh
                    | UnaryOp::Sigmoid
                    | UnaryOp::Sin
                    | UnaryOp::Cos
            ),
            ExprOp::Binary(op, ..) => *op != BinaryOp::Pow,
            _ => true,
        })
    };
    program.steps.values().flat_map(|step| step.nodes.values()).all(|node| match &node.op {
        NodeOp::Gemm(_) => false,
        NodeOp::Map(map) => is_exact_expr(&map.expr),
        NodeOp::Reduce(reduce) => {
            reduce.combiner != Combiner::LogSumExp && is_exact_expr(&reduce.expr) && is_exact_expr(&reduce.finish)
        }
        _ => true,
    })
}

/// Protects: everything that programs can be made of, in combinations that nobody wrote down: grouping and order change no bit
/// on the device, and what is exact is exactly the host's.
#[test]
fn random_programs_agree_across_plans_and_with_the_host() {
    let Some(device) = device() else { return };
    let (mut compared, mut exact) = (0, 0);
    for (case, program) in programs().iter().enumerate() {
        let Some(host) = leaves(Device::Host, program, &FusionPlan::debug(), 1) else { continue };
        let debug = leaves(device, program, &FusionPlan::debug(), 1).expect("the host ran it");
        for fusion in [FusionPlan::phases(), FusionPlan::mega()] {
            let other = leaves(device, program, &fusion, 1).expect("the host ran it");
            debug.assert_same(&other, &format!("case {case}: debug and {}", fusion.name));
        }
        compared += 1;
        if is_exact(program.program()) {
            exact += 1;
            host.assert_same(&debug, &format!("case {case}: host and device"));
        }
    }
    assert!(compared >= CASES / 2 && exact >= 5, "{compared} programs ran, {exact} of them exact");
}

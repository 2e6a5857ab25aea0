//! Plans of random programs: order, memory and checks against brute force.

mod common;

use common::random::{Recipe, recipes};
use proptest::prelude::*;
use stepgraph::ir::Origins;
use stepgraph::plan::{Fuse, FusionPlan, Graphs, PlanError, Schedule, StepPlan, Target, Tuning, check, plan};
use stepgraph::valid::{ValidProgram, validate};

fn valid(recipe: &Recipe) -> ValidProgram {
    let (program, host_fns) = recipe.build();
    validate(program, Origins::default(), host_fns).expect("random programs are valid")
}

/// Every way of cutting, ordering and fusing.
fn fusion_plans() -> Vec<FusionPlan> {
    let mut plans = Vec::new();
    for graphs in [Graphs::PerNode, Graphs::PerPhase, Graphs::Mega] {
        for schedule in [Schedule::Chain, Schedule::Dag] {
            for fuse in [Fuse::None, Fuse::All] {
                plans.push(FusionPlan { name: "test".into(), graphs, schedule, fuse, pdl: false });
            }
        }
    }
    plans
}

/// The plans of every step and variant.
fn plans(program: &ValidProgram, fusion: &FusionPlan) -> Vec<StepPlan> {
    let mut found = Vec::new();
    for step in program.program().steps.values() {
        for form in step.forms() {
            match plan(program, &step.name, form, fusion, &Target::default(), &Tuning::default()) {
                Ok(plan) => found.push(plan),
                Err(PlanError::NothingToRun { .. }) => {}
                Err(error) => panic!("{}: {error}", step.name),
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Protects: every way of planning every valid program gives a plan that the independent check accepts.
    #[test]
    fn every_plan_passes_its_check(recipe in recipes()) {
        let program = valid(&recipe);
        for fusion in fusion_plans() {
            for plan in plans(&program, &fusion) {
                prop_assert_eq!(check(&plan), Ok(()));
            }
        }
    }
}

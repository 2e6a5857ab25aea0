//! Random programs through validation.

mod common;

use common::random::{self, mutation};
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};
use stepgraph::ir::Origins;
use stepgraph::plan::{FusionPlan, PlanError, Target, Tuning, plan};
use stepgraph::valid::validate;

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// Protects: the rules refuse nothing that their documentation allows.
    #[test]
    fn random_programs_are_valid(recipe in random::recipes()) {
        let (program, host_fns) = recipe.build();
        let errors = validate(program, Origins::default(), host_fns).err().map(|errors| errors.to_string());
        prop_assert_eq!(errors, None);
    }

    /// Protects: no damaged program makes validation panic, what is said about it is the same every time, and one that is still
    /// valid can be planned, or refused for its size, without a panic.
    #[test]
    fn damaged_programs_are_judged(
        recipe in random::recipes(),
        damages in proptest::collection::vec(mutation::mutations(), 1..4),
    ) {
        let (mut program, host_fns) = recipe.build();
        damages.iter().for_each(|damage| damage.apply(&mut program));
        let judge = || validate(program.clone(), Origins::default(), host_fns.clone());
        let first = judge();
        let second = judge();
        prop_assert_eq!(first.as_ref().err(), second.as_ref().err());
        let Ok(valid) = first else { return Ok(()) };
        for step in valid.program().steps.values() {
            for form in step.forms() {
                let (fusion, target, tuning) = (FusionPlan::mega(), Target::default(), Tuning::default());
                let plan = plan(&valid, &step.name, form, &fusion, &target, &tuning);
                prop_assert!(!matches!(plan, Err(PlanError::Unsound(_))), "{plan:?}");
            }
        }
    }
}

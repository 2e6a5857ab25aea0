//! Random programs through validation.

mod common;

use common::random;
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use stepgraph::ir::Origins;
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
}

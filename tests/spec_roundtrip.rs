//! Any program survives being written as a canonical spec and read again.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::random;
use proptest::prelude::*;
use stepgraph::ir::Program;
use stepgraph::spec::{self, SpecOptions};

/// Options under which the program's own kernel sources are found.
fn with_sources(program: &Program) -> SpecOptions {
    let sources: BTreeMap<String, Arc<str>> =
        program.kernels.values().map(|kernel| (kernel.source.file.clone(), Arc::clone(&kernel.source.text))).collect();
    SpecOptions { sources, ..SpecOptions::default() }
}

fn check(program: &Program) -> Result<(), TestCaseError> {
    let text = spec::write(program);
    let parsed = match spec::parse(&text, &with_sources(program)) {
        Ok(parsed) => parsed,
        Err(errors) => return Err(TestCaseError::fail(format!("{errors}\n{text}"))),
    };
    prop_assert_eq!(&parsed.program, program, "{}", text);
    prop_assert_eq!(spec::write(&parsed.program), text);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Protects: program → canonical spec → program is the identity, and the canonical text is stable.
    #[test]
    fn canonical_specs_give_the_program_back(recipe in random::recipes()) {
        let (program, _) = recipe.build();
        check(&program)?;
    }
}

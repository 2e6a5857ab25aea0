//! Any program survives being written as a canonical spec and read again.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
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

/// Protects: names that mean something to specs, or whose dots would meet other names, can still be written.
#[test]
fn awkward_names_survive() -> Result<(), TestCaseError> {
    let text = r#"program = "a.b"
[scalar]
let = { init = -0.0, writer = "host" }
i0 = { type = "u32", init = 4294967295, writer = "device" }
"i0.x" = { type = "i32", init = -2147483648, writer = "host" }
[buffer]
acc = { role = "param", shape = [4], init = -inf }
nan = { role = "input", shape = [4] }
v0 = { role = "param", shape = [4], init = "bits(0x3f800001)" }
"v0.shape" = { role = "state", shape = [2, 4], type = "bf16" }
shape.shape = { role = "temp", shape = [4], tap = true }
[step.input.variants]
v0 = { map = "`acc` * `let` + `nan` * nan + inf", out = "acc" }
"v0.mm" = { map = "let v = exp(`nan`); v * v + bits(0x7fc00001)" }
tick = { map = "`i0` + i0 + (i0)", over = [1], out = "i0" }
["a.b".guard]
map = { map = "v0.shape[i0, (i0)] + neg(-1.0) - -`acc`[:][3]", over = [2] }
shape.shape = { fill = -0.0 }
guard = { copy = "shape.shape" }
"#;
    let parsed =
        spec::parse(text, &SpecOptions::default()).map_err(|errors| TestCaseError::fail(errors.to_string()))?;
    check(&parsed.program)
}

/// Protects: a deep or much-shared expression is written in parts, so that it can be read again.
#[test]
fn deep_expressions_survive() -> Result<(), TestCaseError> {
    let doubled = "let a = a + a; ".repeat(300);
    let deep = "exp(".repeat(100) + "a" + &")".repeat(100);
    let text = format!(
        "program = \"t\"\n[input]\nx = [4]\n[s.p]\ny = {{ map = \"let a = x; {doubled}let b = {deep}; b, a\", out = [\"=p\", \"=q\"] }}\n"
    );
    let parsed =
        spec::parse(&text, &SpecOptions::default()).map_err(|errors| TestCaseError::fail(errors.to_string()))?;
    check(&parsed.program)
}

/// Protects: the specs of the repository, with their own kernels, survive too, and are valid.
#[test]
fn repository_specs_survive() -> Result<(), TestCaseError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("graph_specs");
    let paths = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut specs = 0;
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")) {
        let parsed = spec::read(&path, &SpecOptions::default());
        let parsed = parsed.map_err(|errors| TestCaseError::fail(errors.to_string()))?;
        check(&parsed.program)?;
        parsed.validate().map_err(|errors| TestCaseError::fail(errors.to_string()))?;
        specs += 1;
    }
    prop_assert!(specs > 1);
    Ok(())
}

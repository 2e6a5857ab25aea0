//! The rule tables of `docs/ir.md` equal the error types, and a test breaks every rule of a program.

use std::fs;
use std::path::Path;

use stepgraph::Builder;
use stepgraph::ir::{Init, ProgramError};

fn text(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect(file)
}

/// The variants of an error type with their documentation, from its source.
fn documented(file: &str, name: &str) -> Vec<(String, String)> {
    let source = text(file);
    let body = source.split_once(&format!("pub enum {name} {{")).expect("the enum").1;
    let mut found = Vec::new();
    let mut rule: Vec<&str> = Vec::new();
    for line in body.lines().take_while(|line| *line != "}") {
        let Some(inner) = line.strip_prefix("    ") else { continue };
        if let Some(text) = inner.strip_prefix("/// ") {
            rule.push(text);
        } else if inner.starts_with(|first: char| first.is_ascii_uppercase()) {
            let end = inner.find(|c: char| !c.is_alphanumeric()).unwrap_or(inner.len());
            found.push((inner[..end].to_owned(), plain(&rule.join(" "))));
            rule.clear();
        }
    }
    found
}

/// Without the brackets of rustdoc links.
fn plain(rule: &str) -> String {
    rule.replace("[`", "`").replace("`]", "`")
}

/// The first two columns of the rule table under a heading.
fn tabulated(heading: &str) -> Vec<(String, String)> {
    let page = text("docs/ir.md");
    let section = page.split_once(&format!("## {heading}\n")).expect("the heading").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let columns = rows.map(|row| {
        let mut columns = row.trim_matches('|').split(" | ").map(str::trim);
        let name = columns.next().unwrap_or_default().trim_matches('`').to_owned();
        (name, columns.next().unwrap_or_default().to_owned())
    });
    columns.collect()
}

/// Protects: what users read about a rule is what the code says.
#[test]
fn the_rule_tables_equal_the_error_types() {
    assert_eq!(tabulated("Rules of a program"), documented("src/ir/error.rs", "ProgramError"));
    assert_eq!(tabulated("Rules of planning"), documented("src/plan/error.rs", "PlanError"));
}

/// Protects: no rule of a program is without a test that breaks it.
#[test]
fn every_rule_is_broken_by_a_test() {
    let mut tests = vec![text("tests/rules.rs"), text("tests/builder.rs")];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/valid/tests");
    for entry in fs::read_dir(folder).expect("the tests of validation") {
        tests.push(fs::read_to_string(entry.expect("an entry").path()).expect("UTF-8"));
    }
    let is_broken = |name: &str| {
        let asserted = [format!("ProgramError::{name} {{"), format!(", {name}, \""), format!("\n        {name},\n")];
        tests.iter().any(|test| asserted.iter().any(|text| test.contains(text.as_str())))
    };
    let rules = documented("src/ir/error.rs", "ProgramError");
    let unbroken: Vec<_> = rules.iter().map(|(name, _)| name).filter(|name| !is_broken(name)).collect();
    assert!(unbroken.is_empty(), "no test breaks {unbroken:?}");
}

/// Protects: no rule of planning is without a test that breaks it, but for those that no valid program can break.
#[test]
fn every_rule_of_planning_is_broken_by_a_test() {
    // Validation refuses such launch rules before; a plan that fails its check is a defect of the planner.
    let out_of_reach = ["EmptyLaunch", "LaunchRule", "Unsound"];
    let tests = ["tests/plan_rules.rs", "tests/plan_repeat.rs"].map(text).concat();
    let is_broken = |name: &str| [" {", "("].iter().any(|end| tests.contains(&format!("PlanError::{name}{end}")));
    let rules = documented("src/plan/error.rs", "PlanError");
    let unbroken: Vec<_> = rules.iter().map(|(name, _)| name.as_str()).filter(|name| !is_broken(name)).collect();
    assert_eq!(unbroken, out_of_reach);
}

/// Protects: a program equals itself whatever numbers it holds, NaN included, and tells them apart by their bits.
#[test]
fn a_program_with_nan_equals_itself() {
    let program = |init, alpha| {
        let mut p = Builder::new("odd");
        let x = p.state::<f32>("x", [4, 4], init);
        p.step("run", |s| s.phase("main", |f| _ = f.gemm("y", x.nn(x)).alpha(alpha).done()));
        p.build().expect("valid").program().clone()
    };
    assert_eq!(program(Init::Constant(f32::NAN), f32::NAN), program(Init::Constant(f32::NAN), f32::NAN));
    assert_ne!(program(Init::Constant(0.0), 1.0), program(Init::Constant(-0.0), 1.0));
    assert_ne!(program(Init::Constant(0.0), 0.0), program(Init::Constant(0.0), -0.0));
}

/// Protects: a shape with too many axes, which a program cannot even hold, is an error with the place that declared it.
#[test]
fn too_many_axes() {
    let mut p = Builder::new("deep");
    let x = p.state::<f32>("x", [1, 2, 3, 4, 5], Init::Zeros);
    p.step("run", |s| s.phase("main", |f| f.fill("clear", x, 0.0)));
    let errors = p.build().expect_err("five axes").0;
    assert!(matches!(&errors[0].error, ProgramError::RankTooHigh { what, found: 5 } if what == "x"), "{errors:?}");
    assert!(errors[0].to_string().starts_with("tests/rules.rs:"), "{}", errors[0]);
}

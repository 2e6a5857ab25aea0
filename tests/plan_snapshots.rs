//! Snapshots: the text of every plan of every step of every spec, for review.
//!
//! A new spec in `graph_specs/` is picked up by itself; until its snapshots are accepted (`INSTA_UPDATE=always cargo test --test
//! plan_snapshots`) this fails.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use stepgraph::plan::{FusionPlan, Repeat, StepPlan, Target, Tuning, plan};
use stepgraph::spec::{self, SpecOptions};
use stepgraph::valid::{ValidProgram, validate};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn specs() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("graph_specs")).expect("graph_specs exists");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    assert!(!paths.is_empty(), "there are no specs");
    paths
}

fn valid(path: &Path) -> ValidProgram {
    let parsed =
        spec::read(path, &SpecOptions::default()).unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
    validate(parsed.program, parsed.origins, parsed.host_fns)
        .unwrap_or_else(|errors| panic!("{}: {errors}", path.display()))
}

/// The spec and the step that are also shown as several steps per run.
const REPEATED: (&str, &str) = ("digits", "train");

/// Every named plan of every step and variant, with the name of its snapshot.
fn plans(path: &Path) -> Vec<(String, StepPlan)> {
    let program = valid(path);
    let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("specs have plain names");
    let mut found = Vec::new();
    for step in program.program().steps.values() {
        let mut fusions: Vec<_> = FusionPlan::NAMES.iter().filter_map(|name| FusionPlan::named(name)).collect();
        if (stem, step.name.as_str()) == REPEATED {
            fusions.extend([Repeat::Unroll(2), Repeat::Loop(4)].map(|repeat| FusionPlan::mega().repeated(repeat)));
        }
        for form in step.forms() {
            for fusion in &fusions {
                let made = plan(&program, &step.name, form, fusion, &Target::default(), &Tuning::default());
                let made = made.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let variant = form.map(|variant| format!("-{variant}")).unwrap_or_default();
                found.push((format!("{stem}-{}{variant}-{}", step.name, fusion.name.replace(' ', "-")), made));
            }
        }
    }
    found
}

/// Protects: what users review does not change unseen, and each spec has been reviewed.
#[test]
fn every_plan_of_every_spec_is_as_reviewed() {
    let mut expected = BTreeSet::new();
    for path in specs() {
        for (name, plan) in plans(&path) {
            expected.insert(format!("{name}.snap"));
            insta::with_settings!({ snapshot_path => "snapshots/plans", prepend_module_to_snapshot => false, omit_expression => true }, {
                insta::assert_snapshot!(name, plan.text());
            });
        }
    }
    let kept: BTreeSet<String> = std::fs::read_dir(root().join("tests/snapshots/plans"))
        .expect("snapshots exist")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".snap"))
        .collect();
    assert_eq!(kept, expected, "snapshots without a spec must be removed");
}

/// Protects: a plan prints the same bytes when it is made again from the file, and its JSON can be read.
#[test]
fn specs_give_the_same_bytes_again() {
    for path in specs() {
        for ((name, first), (_, second)) in plans(&path).into_iter().zip(plans(&path)) {
            assert_eq!(first.text(), second.text(), "{name}");
            assert_eq!(first.dot(), second.dot(), "{name}");
            assert_eq!(first.identity(), second.identity(), "{name}");
            let json = first.json().to_string();
            assert_eq!(json, second.json().to_string(), "{name}");
            let read: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
            assert_eq!(read["step"], first.step_name());
        }
    }
}

/// Lines that are only in one of two texts.
fn changed_lines(a: &str, b: &str) -> usize {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let mut common = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, x) in a.iter().enumerate().rev() {
        for (j, y) in b.iter().enumerate().rev() {
            common[i][j] = if x == y { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    a.len() + b.len() - 2 * common[0][0]
}

/// A chain of layers, with one more map behind layer `extra`.
fn layers(extra: Option<usize>) -> StepPlan {
    let mut p = stepgraph::Builder::new("layers");
    let mut x = p.input::<f32>("x", [32, 64]);
    let out = p.output::<f32>("out", [32, 64]);
    let weights: Vec<_> =
        (0..12).map(|at| p.param::<f32>(&format!("w{at}"), [64, 64], stepgraph::ir::Init::Zeros)).collect();
    p.step("run", |s| {
        s.phase("forward", |f| {
            for (at, &w) in weights.iter().enumerate() {
                x = f.gemm(&format!("h{at}"), x.nt(w)).then(|acc| acc.relu());
                if extra == Some(at) {
                    x = f.map("inserted", x * 2.0f32);
                }
            }
            f.copy("result", x, out);
        });
    });
    let program = p.build().expect("valid");
    program.plan("run", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("plannable")
}

/// Protects: one more node is a small diff: its own lines, the names in the nodes that now read it, the counts, and above the
/// byte offsets nothing else.
#[test]
fn one_inserted_node_changes_few_lines() {
    let (before, after) = (layers(None).text(), layers(Some(5)).text());
    let above = |text: &str| text.split("\nmemory").next().unwrap_or("").to_owned();
    // New: a blank line, name, headline, two arguments, formula, `after`: 7. In the reader: three aligned arguments, formula
    // and `after`, each gone and come: 10. In the counts: units, edges, levels: 6.
    assert!(changed_lines(&above(&before), &above(&after)) <= 23);
}

//! The flagship's training step against numbers from outside: automatic differentiation in float64.

#![cfg(feature = "cli")]

#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "../examples/dqn"]
mod dqn {
    pub(crate) mod backward;
    pub(crate) mod golden;
    pub(crate) mod hyper;
    pub(crate) mod network;
    pub(crate) mod replay;
    pub(crate) mod train;
    pub(crate) mod verify;
    pub(crate) mod verify_command;
}

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::Parser;
use dqn::golden::Golden;
use dqn::verify::{Options, Report, verify};
use dqn::verify_command;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use stepgraph::ir::Compute;
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Device;

fn file(case: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &format!("{case}.safetensors")].iter().collect()
}

fn golden(case: &str) -> Golden {
    Golden::load(&file(case)).unwrap_or_else(|error| panic!("{case}: {error}"))
}

fn run(golden: &Golden, plan: &str, compute: Compute) -> Report {
    let options = Options { device: Device::Host, plan: FusionPlan::named(plan).expect("a known plan"), compute };
    verify(golden, &options).unwrap_or_else(|error| panic!("{} under {plan}: {error}", golden.case))
}

const CASES: [&str; 7] =
    ["ddqn_tiny", "mse_tiny", "c51_tiny", "ddqn_odd", "ddqn_scalars", "ddqn_nonfinite", "ddqn_ties"];

/// Protects: the step computes what the reference computes, in every variant and under every way of launching it.
#[test]
fn every_case_passes_under_every_plan() {
    for case in CASES.map(golden) {
        for plan in FusionPlan::NAMES {
            let report = run(&case, plan, Compute::F32);
            assert!(report.passed(), "{} under {plan}:\n{report}", case.case);
            assert_eq!(report.rows.len(), 12 + 10 * (case.snapshots.len() - 1), "{report}");
        }
    }
}

/// Protects: with operands rounded to TF32 the step stays within the tolerances that the reference measured for that.
#[test]
fn every_case_passes_with_tf32() {
    for case in CASES.map(golden) {
        let report = run(&case, "mega", Compute::Tf32);
        assert!(report.passed(), "{}:\n{report}", case.case);
        let loss = report.rows.iter().find(|row| row.category == "loss").expect("a row");
        assert!(loss.error > 1e-6, "{}: an error of {} is that of full products", case.case, loss.error);
    }
}

/// Protects: plans that differ only in grouping give the same bits, so their reports are equal to the last digit.
#[test]
fn grouping_changes_no_bit() {
    for case in ["ddqn_odd", "mse_tiny", "c51_tiny"].map(golden) {
        let debug = run(&case, "debug", Compute::F32);
        assert_eq!(debug, run(&case, "phases", Compute::F32), "{}", case.case);
        assert_eq!(debug, run(&case, "mega", Compute::F32), "{}", case.case);
    }
}

// ---- files that are off -------------------------------------------------------------------------------------------------

/// A tensor as a file holds it.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// A golden file that can be spoilt.
struct File {
    metadata: HashMap<String, String>,
    tensors: BTreeMap<String, Stored>,
}

impl File {
    fn read(case: &str) -> Self {
        let bytes = std::fs::read(file(case)).expect("the file is there");
        let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let stored = |view: &TensorView<'_>| Stored {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        let tensors = file.tensors().iter().map(|(name, view)| (name.clone(), stored(view))).collect();
        Self { metadata: metadata.metadata().clone().expect("metadata"), tensors }
    }

    fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, stored)| {
            let view = TensorView::new(stored.dtype, stored.shape.clone(), &stored.bytes).expect("a legal tensor");
            (name.clone(), view)
        });
        safetensors::serialize(views, Some(self.metadata.clone())).expect("a legal file")
    }

    fn tensor(&mut self, name: &str) -> &mut Stored {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    fn refusal(&self) -> String {
        chain(Golden::parse(&self.bytes()).expect_err("the file must be refused"))
    }
}

/// An error with its causes, as the example prints it.
fn chain(error: dqn::golden::GoldenError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// Protects: a file that lacks something, or has it in the wrong form, is refused by name before anything runs.
#[test]
fn bad_files_are_refused() {
    let spoilt = |spoil: &dyn Fn(&mut File)| {
        let mut file = File::read("c51_tiny");
        spoil(&mut file);
        file.refusal()
    };
    let hyper = |from: &'static str, to: &'static str| {
        spoilt(&move |file: &mut File| {
            let hyper = file.metadata.get_mut("hyper").expect("there");
            assert!(hyper.contains(from), "{hyper}");
            *hyper = hyper.replace(from, to);
        })
    };
    let found = [
        spoilt(&|file| drop(file.tensors.remove("init/u/adv1.fc1"))),
        spoilt(&|file| drop(file.tensors.remove("after10/target/res1.fc2.w"))),
        spoilt(&|file| file.tensor("init/p/adv2.out.w").shape = vec![12, 22]),
        spoilt(&|file| file.tensor("grad1/trunk.in.b").dtype = Dtype::I64),
        spoilt(&|file| file.tensor("scalar/lr").bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes())),
        spoilt(&|file| file.tensor("batch/a").bytes[4..8].copy_from_slice(&3i32.to_le_bytes())),
        spoilt(&|file| drop(file.metadata.remove("hyper"))),
        spoilt(&|file| drop(file.metadata.insert("layout".into(), "2".into()))),
        hyper("\"H\": 16, ", ""),
        hyper("\"branches\": [4, 3, 2]", "\"branches\": [4, 0, 2]"),
        hyper("\"vmax\": 10.0", "\"vmax\": -10.0"),
        hyper("\"variant\": \"c51\"", "\"variant\": \"mse\""),
        hyper("\"snapshots\": [1, 10]", "\"snapshots\": [10]"),
        chain(Golden::parse(b"no such thing").expect_err("no safetensors")),
    ];
    insta::assert_snapshot!(found.join("\n"), @r"
    tensor `init/u/adv1.fc1` is missing
    tensor `after10/target/res1.fc2.w` is missing
    tensor `init/p/adv2.out.w` has the shape [12, 22], expected [22, 12]
    tensor `grad1/trunk.in.b` holds I64, expected F64
    tensor `scalar/lr`, element 1, is NaN: a finite number is needed
    tensor `batch/a`, element 1, is 3: expected 0 to 2
    the metadata has no entry `hyper`: this is no golden file
    the layout is `2`, expected `1`
    the metadata entry `hyper` is wrong: missing field `H` at line 1 column 560
    the metadata entry `hyper` is wrong: the number of actions of branch 1 is 0: at least 1 is needed
    the metadata entry `hyper` is wrong: the support -10 to -10 of 11 atoms is empty or not finite: the first must be below the second
    the metadata entry `hyper`: variant `mse` does not go with 11 atoms: expected c51
    the metadata entry `hyper`: snapshots [10] of 10 steps; expected ascending steps, 1 and 10 among them
    not a safetensors file, or an incomplete one: header too large
    ");
}

/// Protects: the verdict can be FAIL. Each change is far above the tolerance of its category, and is found in that category.
#[test]
fn wrong_numbers_fail() {
    let cases: [(&str, &str, &str); 6] = [
        ("out/loss", "loss", ""),
        ("after1/v/res0.fc1.w", "v", ""),
        ("after10/p/adv0.out.b", "dp", ""),
        ("after10/target/value.fc1.b", "dtarget", ""),
        ("grad1/aux.out.w", "grad", ""),
        ("out/next_action", "", "out/next_action, element 0,"),
    ];
    for (tensor, category, unequal) in cases {
        let mut file = File::read("ddqn_tiny");
        let stored = file.tensor(tensor);
        if stored.dtype == Dtype::I32 {
            stored.bytes[0] ^= 1;
        } else {
            let first = f64::from_le_bytes(stored.bytes[..8].try_into().expect("eight bytes"));
            stored.bytes[..8].copy_from_slice(&(first * 1.01 + 1e-3).to_le_bytes());
        }
        let report = run(&Golden::parse(&file.bytes()).expect("a legal file"), "mega", Compute::F32);
        assert!(!report.passed(), "{tensor}:\n{report}");
        let failed: Vec<_> =
            report.rows.iter().filter(|row| row.error > row.tolerance).map(|row| row.category).collect();
        assert!(category.is_empty() || failed.contains(&category), "{tensor}:\n{report}");
        assert!(report.unequal.iter().all(|what| !unequal.is_empty() && what.starts_with(unequal)), "{report}");
    }
}

/// Protects: the command prints a verdict in its last line and returns it; a bad file is an error that names the file.
#[test]
fn the_command_ends_with_its_verdict() {
    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        verify: verify_command::Args,
    }
    let command = |files: &[PathBuf]| {
        let files = files.iter().map(|path| path.as_os_str().to_owned());
        let args = ["verify", "--device", "host", "--plan", "phases"].map(Into::into).into_iter().chain(files);
        let mut out = Vec::new();
        let passed =
            verify_command::run(&Command::parse_from(args).verify, &mut out).map_err(|error| format!("{error:#}"))?;
        Ok::<_, String>((passed, String::from_utf8(out).expect("text")))
    };
    let (passed, text) = command(&[file("ddqn_ties"), file("mse_tiny")]).expect("good files");
    assert!(passed && text.ends_with("\nverified: PASS\n"), "{text}");
    assert!(text.starts_with("ddqn_ties: ddqn, 10 steps on host under phases, f32\n  after 1   loss "), "{text}");

    let folder = tempfile::tempdir().expect("a folder");
    let spoilt = folder.path().join("spoilt.safetensors");
    let mut wrong = File::read("ddqn_tiny");
    wrong.tensor("after10/t").bytes[0] += 1;
    std::fs::write(&spoilt, wrong.bytes()).expect("room");
    let (passed, text) = command(&[file("ddqn_ties"), spoilt.clone()]).expect("a legal file");
    assert!(!passed && text.ends_with("\nverified: FAIL\n"), "{text}");
    assert!(text.contains("after10/t, element 0, is 10, expected 11  FAIL"), "{text}");

    std::fs::write(&spoilt, b"{}").expect("room");
    let error = command(&[spoilt]).expect_err("no golden file");
    assert!(error.contains("spoilt.safetensors: not a safetensors file"), "{error}");
}

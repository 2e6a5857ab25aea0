//! The digits example: its program, its data, and what it learns on the host.

#[path = "../examples/digits/data.rs"]
mod data;
#[path = "../examples/digits/program.rs"]
mod program;
#[path = "../examples/digits/train.rs"]
mod train;

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use stepgraph::ir::Role;
use stepgraph::plan::{FusionPlan, Repeat, Target};
use stepgraph::runtime::{Device, Session};
use stepgraph::spec::{self, SpecOptions};

const DIGITS: &[u8] = include_bytes!("../examples/data/digits.csv.gz");

/// Protects: the spec under `graph_specs/` is the program that the example builds.
#[test]
fn spec_and_builder_agree() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("graph_specs/digits.toml");
    let spec = spec::read(&path, &SpecOptions::default()).unwrap_or_else(|errors| panic!("{errors}"));
    let built = program::digits().expect("the example's program is valid");
    let built = built.program.program();
    // Part by part first, for a message that can be read.
    assert_eq!(spec.program.scalars, built.scalars);
    assert_eq!(spec.program.buffers, built.buffers);
    assert_eq!(spec.program.groups, built.groups);
    for (ours, theirs) in spec.program.steps.values().zip(built.steps.values()) {
        for (ours, theirs) in ours.nodes.values().zip(theirs.nodes.values()) {
            assert_eq!(ours, theirs, "node {}", theirs.name);
        }
    }
    assert_eq!(&spec.program, built);
}

/// Remembers each step's loss.
#[derive(Default)]
struct Losses(Vec<f32>);

impl train::Watch for Losses {
    fn wants_loss(&self, _step: u32) -> bool {
        true
    }

    fn after_launch(&mut self, _steps: Range<u32>, loss: Option<f32>) {
        self.0.extend(loss);
    }
}

fn run(fusion: &FusionPlan, seed: u32, epochs: u32) -> (Vec<f32>, f32) {
    let (train_set, test_set) = data::read(DIGITS).expect("the data is complete");
    let digits = program::digits().expect("the program is valid");
    let plans = train::plans(&digits, fusion, &Target::default()).expect("the program can be planned");
    let mut session = Session::builder().seed(u64::from(seed)).open(Device::Host, plans).expect("the host is there");
    train::load(&mut session, &digits, seed, &train_set, &test_set).expect("the data fits");
    let mut losses = Losses::default();
    for epoch in 0..epochs {
        train::epoch(&mut session, &digits, (epoch, epochs), &mut losses).expect("the host runs");
    }
    (losses.0, train::accuracy(&mut session, &digits).expect("the host runs"))
}

/// Protects: the first job learns what it promises, with the default number of epochs.
#[test]
fn the_network_learns_the_digits() {
    let (losses, accuracy) = run(&FusionPlan::mega(), 0, 40);
    assert!(accuracy >= 0.975, "accuracy {accuracy}");
    assert!(losses.iter().all(|loss| loss.is_finite()));
}

/// Protects: one seed gives the same numbers in every run and under every plan, another seed gives others.
#[test]
fn a_seed_decides_every_number() {
    let first = run(&FusionPlan::mega(), 3, 2);
    for name in ["debug", "phases", "mega"] {
        assert_eq!(run(&FusionPlan::named(name).expect("a named plan"), 3, 2), first, "plan {name}");
    }
    assert_ne!(run(&FusionPlan::mega(), 4, 2).0, first.0);
}

/// Protects: an epoch in one launch, or in two, learns as well as one in 22 launches, whichever way its steps are repeated.
#[test]
fn an_epoch_can_be_one_launch() {
    let (losses, accuracy) = run(&FusionPlan::mega().repeated(Repeat::Loop(train::STEPS)), 0, 40);
    assert_eq!(losses.len(), 40, "one launch an epoch");
    assert!(accuracy >= 0.975, "accuracy {accuracy}");
    let unrolled = run(&FusionPlan::mega().repeated(Repeat::Unroll(11)), 3, 2);
    assert_eq!(unrolled.0.len(), 4);
    assert_eq!(run(&FusionPlan::mega().repeated(Repeat::Loop(11)), 3, 2), unrolled);
    assert_eq!(run(&FusionPlan::debug().repeated(Repeat::Unroll(11)), 3, 2), unrolled);
}

/// Protects: many steps in one launch leave every weight, moment, counter and output as single steps do under the same rate.
#[test]
fn repeated_steps_are_the_single_steps() {
    let (train_set, test_set) = data::read(DIGITS).expect("the data is complete");
    let digits = program::digits().expect("the program is valid");
    let after = |repeat: Repeat, launches: u32| {
        let fusion = FusionPlan::mega().repeated(repeat);
        let plans = train::plans(&digits, &fusion, &Target::default()).expect("it plans");
        let mut session = Session::open(Device::Host, plans).expect("the host is there");
        train::load(&mut session, &digits, 5, &train_set, &test_set).expect("the data fits");
        for rate in [2e-3, 1e-3] {
            session.set(digits.rate, rate).expect("a host scalar");
            for _ in 0..launches {
                session.launch("train").expect("the host runs");
            }
        }
        let program = digits.program.program();
        let kept = program.buffers.values().filter(|buffer| buffer.role != Role::Temp);
        let buffers: Vec<_> =
            kept.map(|buffer| session.read_by_name(&buffer.name).expect("it can be read").bytes).collect();
        let cells = program.scalars.values().map(|cell| session.read_scalar_by_name(&cell.name).expect("a cell"));
        (buffers, cells.collect::<Vec<_>>())
    };
    let single = after(Repeat::Once, 6);
    assert_eq!(after(Repeat::Unroll(2), 3), single);
    assert_eq!(after(Repeat::Loop(6), 1), single);
}

/// Protects: what the epoch reports is the mean of its mini-batches' losses.
///
/// 22 additions in float32 and one division: each rounds by 2⁻²⁴ of a partial sum that is at most the whole one.
#[test]
fn the_report_is_the_mean_loss() {
    let (train_set, test_set) = data::read(DIGITS).expect("the data is complete");
    let digits = program::digits().expect("the program is valid");
    let plans = train::plans(&digits, &FusionPlan::mega(), &Target::default()).expect("the program can be planned");
    let mut session = Session::open(Device::Host, plans).expect("the host is there");
    train::load(&mut session, &digits, 0, &train_set, &test_set).expect("the data fits");
    for epoch in 0..2 {
        let mut losses = Losses::default();
        let mean = train::epoch(&mut session, &digits, (epoch, 2), &mut losses).expect("the host runs");
        let expected = losses.0.iter().map(|&loss| f64::from(loss)).sum::<f64>() / f64::from(train::STEPS);
        let tolerance = f64::from(train::STEPS + 1) * f64::powi(2.0, -24) * expected;
        assert!((f64::from(mean) - expected).abs() <= tolerance, "epoch {epoch}: {mean} is not {expected}");
    }
}

/// Protects: the split holds every image once, and not in the order of the file.
#[test]
fn the_split_is_a_permutation() {
    let (train_set, test_set) = data::read(DIGITS).expect("the data is complete");
    assert_eq!((train_set.labels.len(), test_set.labels.len()), (1437, 360));
    // Counted in the file itself, with awk: how many images show each digit.
    let file = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180];
    let mut counts = [0; 10];
    train_set.labels.iter().chain(&test_set.labels).for_each(|&label| counts[label as usize] += 1);
    assert_eq!(counts, file);
    assert_ne!(train_set.labels[..20], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

/// Protects: a damaged data file is an error that says what and where, never a panic or a silent run.
#[test]
fn bad_data_is_refused() {
    let row = |label: &str| format!("{}{label}\n", "3,".repeat(64));
    let good = row("7");
    let message = |bytes: &[u8]| format!("{:#}", data::read(bytes).expect_err("the file is damaged"));
    for (text, expected) in [
        (good.clone(), "1 rows"),
        (format!("{good}1,2,3\n"), "line 2: 3 columns, expected 65"),
        (good.replacen('3', "NaN", 1), "line 1, column 1: NaN is no grey value"),
        (good.replacen('3', "17", 1), "17 is no grey value"),
        (good.replacen('3', "x", 1), "line 1, column 1"),
        (row("10"), "10 is no digit"),
        (row("0.5"), "0.5 is no digit"),
        (String::new(), "0 rows"),
    ] {
        let found = message(&gzip(&text));
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
    assert!(message(&DIGITS[..DIGITS.len() / 2]).contains("not a complete gzip file"));
    assert!(message(b"pixel,pixel,label").contains("not a complete gzip file"));
}

//! A run of the flagship that is interrupted and goes on: every number is what it would have been.

#[allow(dead_code, reason = "the example uses what these tests do not")]
#[path = "common/dqn.rs"]
mod dqn;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Device;
use stepgraph::runtime::checkpoint::CheckpointInfo;

use dqn::folds::{Fold, walk_forward};
use dqn::keeper::Keeper;
use dqn::market::Prices;
use dqn::setup::{Setup, Size, World};
use dqn::trainer::{Ending, Judgement, Trainer};
use dqn::validation::Validated;
use dqn::{folds, keeper, places, synthetic};

const RUN: &str = "the run of this test";
const UPDATES: usize = 60;
const EPOCHS: usize = 4;

struct Fixture {
    prices: Prices,
    setup: Setup,
    folds: Vec<Fold>,
}

fn fixture() -> Fixture {
    let prices = synthetic::prices(800, 6, synthetic::Reversion::default(), 42);
    let mut setup =
        Setup { updates: UPDATES, epochs: EPOCHS, random_runs: 2, ..Setup::new(Size::Ci, World::Synthetic, "ddqn") };
    setup.folds = folds::FoldSpec { train: 400, validation: 60, step: 60, most: Some(2), ..setup.folds };
    let folds = walk_forward(prices.days(), &setup.folds).expect("long enough");
    Fixture { prices, setup, folds }
}

/// Everything that a fold ends with.
#[derive(Debug, PartialEq)]
struct End {
    judged: Judgement,
    validated: Vec<Validated>,
    /// Hashes, so that a difference is readable.
    weights: blake3::Hash,
    moments: blake3::Hash,
    losses: Vec<(usize, u32)>,
}

impl Fixture {
    fn trainer(&self, folder: Option<&Path>) -> Trainer {
        let trainer = Trainer::open(self.setup.clone(), &self.prices, Device::Host, &FusionPlan::mega(), 9);
        let mut trainer = trainer.expect("a valid program");
        if let Some(folder) = folder {
            trainer.keep(Keeper::new(folder, RUN.to_owned()));
        }
        trainer
    }

    /// Trains the first fold to its end, or until so many steps are done.
    fn train(&self, trainer: &mut Trainer, until: usize) -> (Ending, Vec<(usize, u32)>) {
        self.train_over(trainer, until, |_| ())
    }

    /// As [`Fixture::train`], at the pace of the disk: no epoch goes without a checkpoint because the one before is still written.
    fn train_slowly(&self, trainer: &mut Trainer, until: usize, folder: &Path) -> (Ending, Vec<(usize, u32)>) {
        let is_there = |done: usize| folder.join(format!("fold-001/step-{done}.safetensors")).is_file();
        self.train_over(trainer, until, |done| {
            let last = (done - 1) / (UPDATES / EPOCHS) * (UPDATES / EPOCHS);
            let patience = Instant::now();
            while last > 0 && !is_there(last) && patience.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(1));
            }
            // Behind its name, the file's folder is made safe as well.
            thread::sleep(Duration::from_millis(5));
        })
    }

    fn train_over(&self, trainer: &mut Trainer, until: usize, pace: impl Fn(usize)) -> (Ending, Vec<(usize, u32)>) {
        let (mut losses, stop) = (Vec::new(), trainer.stop());
        let ending = trainer.train(0, &self.folds[0], 1, |progress, _| {
            losses.push((progress.done, progress.loss.to_bits()));
            pace(progress.done);
            if progress.done == until {
                stop.store(true, Ordering::Relaxed);
            }
        });
        (ending.expect("the host does not fail"), losses)
    }

    fn end(&self, trainer: &mut Trainer, losses: Vec<(usize, u32)>) -> End {
        let bits = |values: Vec<f32>| blake3::hash(&values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>());
        let (weights, moments) = (trainer.system.dqn.theta.flat, trainer.system.dqn.m.flat);
        End {
            judged: trainer.judge(&self.folds[0]).expect("the host does not fail"),
            validated: trainer.validated().to_vec(),
            weights: bits(trainer.session.read(weights).expect("a group")),
            moments: bits(trainer.session.read(moments).expect("a group")),
            losses,
        }
    }
}

/// Protects: a run that was interrupted anywhere, within an epoch or at its end, goes on in a new session to the same losses,
/// weights, moments, validation results and judgement, bit for bit.
#[test]
fn an_interrupted_run_ends_as_one_that_was_not() {
    let fixture = fixture();
    let mut straight = fixture.trainer(None);
    let (ending, losses) = fixture.train(&mut straight, usize::MAX);
    assert_eq!(ending, Ending::Complete);
    let expected = fixture.end(&mut straight, losses);
    assert_eq!(expected.validated.iter().map(|result| result.epoch).collect::<Vec<_>>(), [1, 2, 3, 4]);

    for until in [1, 14, UPDATES / EPOCHS, 31, UPDATES - 1] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = fixture.trainer(Some(folder.path()));
        let (ending, mut losses) = fixture.train(&mut first, until);
        assert_eq!(ending, Ending::Interrupted);
        let file = first.save().expect("it is written").expect("checkpoints are kept");
        drop(first);

        let mut second = fixture.trainer(None);
        second.resume(&file, RUN, &fixture.folds).expect("it goes on");
        assert_eq!(second.next_fold(), 0);
        let (ending, more) = fixture.train(&mut second, usize::MAX);
        assert_eq!(ending, Ending::Complete);
        losses.extend(more);
        assert_eq!(fixture.end(&mut second, losses), expected, "interrupted after {until} steps");
    }
}

/// Protects: the best epoch's checkpoint is named in an interrupted run as in one that was not, also where its result came only while
/// the run was being interrupted.
#[test]
fn an_interrupted_run_names_the_best_epoch() {
    let fixture = fixture();
    let best_of = |folder: &Path| {
        let best = CheckpointInfo::read(folder.join("fold-001/best.safetensors")).expect("the best epoch is kept");
        let position: keeper::Position = serde_json::from_str(&best.metadata["position"]).expect("a position");
        position.done
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut straight = fixture.trainer(Some(folder.path()));
    fixture.train_slowly(&mut straight, usize::MAX, folder.path());
    straight.judge(&fixture.folds[0]).expect("the host does not fail");
    let expected = best_of(folder.path());

    for until in [expected + 1, expected + UPDATES / EPOCHS - 1] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = fixture.trainer(Some(folder.path()));
        fixture.train_slowly(&mut first, until, folder.path());
        first.save().expect("it is written").expect("checkpoints are kept");
        drop(first);
        let mut second = fixture.trainer(Some(folder.path()));
        second.resume(folder.path(), RUN, &fixture.folds).expect("it goes on");
        fixture.train_slowly(&mut second, usize::MAX, folder.path());
        second.judge(&fixture.folds[0]).expect("the host does not fail");
        assert_eq!(best_of(folder.path()), expected, "interrupted after {until} steps");
    }
}

/// Protects: what a killed run leaves is enough: the newest checkpoint of an epoch, written while training went on, leads to the
/// same end, the validation that it had begun included; and the best epoch's checkpoint is there under its name.
#[test]
fn a_killed_run_goes_on_from_its_last_epoch() {
    let fixture = fixture();
    let mut straight = fixture.trainer(None);
    let (_, losses) = fixture.train(&mut straight, usize::MAX);
    let expected = fixture.end(&mut straight, losses);

    let folder = tempfile::tempdir().expect("a folder");
    let mut first = fixture.trainer(Some(folder.path()));
    let (_, losses) = fixture.train_slowly(&mut first, 50, folder.path());
    // Nothing is saved on the way out; a checkpoint that is being written is finished when its session is dropped.
    drop(first);

    let mut second = fixture.trainer(Some(folder.path()));
    second.resume(folder.path(), RUN, &fixture.folds).expect("it goes on");
    let (_, more) = fixture.train_slowly(&mut second, usize::MAX, folder.path());
    let resumed_at = more[0].0 - 1;
    assert!(resumed_at > 0 && resumed_at % (UPDATES / EPOCHS) == 0 && resumed_at < 50, "an epoch's end: {resumed_at}");
    let losses = losses.into_iter().filter(|&(done, _)| done <= resumed_at).chain(more).collect();
    assert_eq!(fixture.end(&mut second, losses), expected);
    let best = folder.path().join("fold-001/best.safetensors");
    assert!(best.is_file(), "the best epoch is kept");
}

/// Protects: a checkpoint of another run, of another program, or of nothing is refused with the reason, and changes nothing.
#[test]
fn other_checkpoints_are_refused() {
    let fixture = fixture();
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = fixture.trainer(Some(folder.path()));
    fixture.train(&mut first, 5);
    let file = first.save().expect("it is written").expect("checkpoints are kept");

    let mut second = fixture.trainer(None);
    let before: Vec<f32> = second.session.read(second.system.dqn.theta.flat).expect("a group");
    let mut refused =
        |from: &Path, run: &str| format!("{:#}", second.resume(from, run, &fixture.folds).expect_err("refused"));
    let error = refused(&file, "another run");
    assert!(error.contains("another run") && error.contains(RUN), "{error}");
    let empty = tempfile::tempdir().expect("a folder");
    let error = refused(empty.path(), RUN);
    assert!(error.contains("no checkpoint"), "{error}");
    let error = refused(&empty.path().join("missing.safetensors"), RUN);
    assert!(error.contains("missing.safetensors"), "{error}");
    let text = empty.path().join("text.safetensors");
    std::fs::write(&text, "no checkpoint at all").expect("it is written");
    let error = refused(&text, RUN);
    assert!(error.contains("text.safetensors"), "{error}");
    // The folder of a fold stands for its newest; with nothing whole in it the message does not say that there is nothing.
    let fold = file.parent().expect("a folder");
    assert!(refused(fold, "another run").contains("another run"));
    std::fs::write(&file, &std::fs::read(&file).expect("a file")[..100]).expect("it is written");
    let error = refused(folder.path(), RUN);
    assert!(error.contains("is whole") && error.contains("cut off"), "{error}");
    let after: Vec<f32> = second.session.read(second.system.dqn.theta.flat).expect("a group");
    assert_eq!(before, after);
}

/// Protects: a new run never takes the places of an earlier one's checkpoints.
#[test]
fn a_used_folder_is_for_resuming() {
    let folder = tempfile::tempdir().expect("a folder");
    places::check_checkpoints(folder.path(), None).expect("an empty folder");
    let fold = folder.path().join("fold-002");
    std::fs::create_dir(&fold).expect("a folder");
    places::check_checkpoints(folder.path(), None).expect("nothing that would be replaced");
    for name in ["best.safetensors", "step-7.safetensors"] {
        std::fs::write(fold.join(name), "").expect("written");
        let error = places::check_checkpoints(folder.path(), None).expect_err("an earlier run").to_string();
        assert!(error.contains(&format!("{name} is of an earlier run: go on with --resume")), "{error}");
    }
    // A run that goes on from elsewhere is another one, too.
    let elsewhere = tempfile::tempdir().expect("a folder");
    places::check_checkpoints(folder.path(), Some(elsewhere.path())).expect_err("an earlier run");
    for own in [folder.path(), &fold, &fold.join("step-7.safetensors")] {
        places::check_checkpoints(folder.path(), Some(own)).expect("it goes on here");
    }
    let missing = elsewhere.path().join("missing");
    places::check_checkpoints(folder.path(), Some(&missing)).expect("told when it is read");
}

/// Protects: a place that cannot be written is told before a run; looking at places leaves nothing and changes nothing.
#[test]
fn places_are_looked_at_before_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let (results, text) = (folder.path().join("results.json"), "of an earlier run");
    places::check_results(&results).expect("a new file");
    assert!(!results.exists());
    std::fs::write(&results, text).expect("written");
    places::check_results(&results).expect("a file");
    assert_eq!(std::fs::read_to_string(&results).expect("a file"), text);
    let refused = |path: &Path| format!("{:#}", places::check_results(path).expect_err("no place"));
    assert!(refused(folder.path()).contains("name a file in it"));
    assert!(refused(&folder.path().join("none/results.json")).contains("cannot write"));

    places::check_checkpoints(&folder.path().join("new/run"), None).expect("it is made");
    let error = places::check_checkpoints(&results, None).expect_err("a file").to_string();
    assert!(error.contains("cannot make the folder"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2);
}

/// Protects: a checkpoint of another program is refused.
#[test]
fn checkpoints_of_another_program_are_refused() {
    let fixture = fixture();
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = fixture.trainer(Some(folder.path()));
    fixture.train(&mut first, 5);
    let file = first.save().expect("it is written").expect("checkpoints are kept");
    let mut setup = fixture.setup.clone();
    setup.hyper.head += 4;
    let other = Trainer::open(setup, &fixture.prices, Device::Host, &FusionPlan::mega(), 9);
    let error = other.expect("a valid program").resume(&file, RUN, &fixture.folds).expect_err("another program");
    assert!(format!("{error:#}").contains("program"), "{error:#}");
}

//! The flagship's epochs on a device: validation beside training, and what the host never does meanwhile.

use stepgraph::cuda::calls;
use stepgraph::plan::FusionPlan;

use crate::dqn::folds::{Fold, FoldSpec, walk_forward};
use crate::dqn::keeper::Keeper;
use crate::dqn::market::Prices;
use crate::dqn::setup::{Setup, Size, World};
use crate::dqn::synthetic;
use crate::dqn::trainer::{Ending, Trainer};
use crate::support::{device, real_device};

fn small() -> (Setup, Prices, Vec<Fold>) {
    let mut setup = Setup { updates: 240, epochs: 6, random_runs: 2, ..Setup::new(Size::Ci, World::Synthetic, "ddqn") };
    setup.folds = FoldSpec { train: 400, validation: 60, step: 60, most: Some(2), ..setup.folds };
    let prices = synthetic::prices(800, 6, synthetic::Reversion::default(), 42);
    let folds = walk_forward(prices.days(), &setup.folds).expect("long enough");
    (setup, prices, folds)
}

/// Protects: in the epochs of a fold, with validations beside them, the host never waits for the device, a stream or a blocking
/// copy: it waits for single launches alone; and no loss gets lost on its way. The second fold is watched: by then every path has
/// been taken once.
#[test]
fn epochs_wait_for_launches_alone() {
    const BLOCKING: [&str; 3] = ["cuCtxSynchronize", "cuStreamSynchronize", "cuMemAlloc_v2"];
    let Some(device) = real_device() else { return };
    let (setup, prices, folds) = small();
    let mut trainer = Trainer::open(setup.clone(), &prices, device, &FusionPlan::mega(), 5).expect("it opens");
    let mut told = Vec::new();
    trainer.train(0, &folds[0], 7, |progress, _| told.push(progress.done)).expect("it trains");
    let expected: Vec<usize> = (7..=240).step_by(7).chain([240]).collect();
    assert_eq!(told, expected, "each loss is told once, in order, although it arrives late");
    trainer.judge(&folds[0]).expect("it evaluates");
    let before = calls::snapshot();
    let ending = trainer.train(1, &folds[1], 40, |_, _| {}).expect("it trains");
    let found = calls::since(&before);
    assert_eq!(ending, Ending::Complete);
    for call in BLOCKING {
        assert_eq!(found.get(call), None, "{found:?}");
    }
    let copies = found.keys().filter(|call| call.starts_with("cuMemcpy"));
    let blocking: Vec<_> = copies.filter(|call| !call.contains("Async")).collect();
    assert!(blocking.is_empty(), "{blocking:?}");
    assert!(found.contains_key("cuMemcpyDtoDAsync_v2"), "weights were published: {found:?}");
    assert!(!trainer.validated().is_empty(), "results arrived while training went on");
    trainer.judge(&folds[1]).expect("it evaluates");
}

/// Protects: validations and checkpoints beside training change no bit of it, and a run that goes on from a checkpoint of the device
/// ends with the same bits as one that was not interrupted.
#[test]
fn validation_and_checkpoints_change_no_bit() {
    let Some(device) = device() else { return };
    let (setup, prices, folds) = small();
    let open = |epochs: usize| {
        let setup = Setup { epochs, ..setup.clone() };
        Trainer::open(setup, &prices, device, &FusionPlan::mega(), 5).expect("it opens")
    };
    let weights = |trainer: &mut Trainer| -> Vec<u32> {
        let flat = trainer.session.read(trainer.system.dqn.theta.flat).expect("a group");
        flat.into_iter().map(f32::to_bits).collect()
    };
    let mut rare = open(1);
    rare.train(0, &folds[0], 240, |_, _| {}).expect("it trains");
    let expected = weights(&mut rare);
    let judged = rare.judge(&folds[0]).expect("it evaluates");

    let folder = tempfile::tempdir().expect("a folder");
    let mut often = open(24);
    often.keep(Keeper::new(folder.path(), "run".to_owned()));
    often.train(0, &folds[0], 10, |_, _| {}).expect("it trains");
    assert!(weights(&mut often) == expected, "validations and checkpoints change weights");
    assert_eq!(often.judge(&folds[0]).expect("it evaluates"), judged);
    drop(often);

    let mut resumed = open(24);
    let stored = folder.path().join("fold-001");
    let mut files: Vec<_> =
        std::fs::read_dir(&stored).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    files.retain(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")));
    files.sort_by_key(|file| file.to_string_lossy().len());
    let first = files.first().expect("a checkpoint");
    resumed.resume(first, "run", &folds).expect("it goes on");
    resumed.train(0, &folds[0], 10, |_, _| {}).expect("it trains");
    assert!(weights(&mut resumed) == expected, "the resumed run ends elsewhere");
    assert_eq!(resumed.judge(&folds[0]).expect("it evaluates"), judged);
}

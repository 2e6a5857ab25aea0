//! Folders of checkpoints: which files stay, which one is the best, and which one a run goes on from.

#[allow(dead_code, reason = "another test uses the rest")]
#[path = "common/little.rs"]
mod little;

use std::collections::BTreeMap;
use std::fs;

use stepgraph::runtime::{CheckpointError, CheckpointFolder};

use little::{Other, folder, little, names_in, notes};

/// Protects: the newest checkpoints stay, the best one always; what a killed writer left goes; other files are let be.
#[test]
fn a_folder_keeps_the_newest_and_the_best() {
    let (little, folder) = (little(Other::Nothing), folder());
    let inner = folder.path().join("checkpoints");
    fs::create_dir(&inner).expect("a folder");
    for name in
        [".checkpoint-abc.tmp", "notes.txt", "step-x.safetensors", "step-+9.safetensors", "step-009.safetensors"]
    {
        fs::write(inner.join(name), "left").expect("it is written");
    }
    fs::create_dir(inner.join("step-12.safetensors")).expect("a folder");
    let kept = CheckpointFolder::open(&inner, 2).expect("it opens");
    let mut session = little.open(1);
    assert_eq!(kept.newest_loadable(&session).expect("it is read").path, None);
    for number in [8, 9, 10, 11] {
        session.launch("step").expect("the host runs");
        kept.save(&mut session, number, &BTreeMap::new()).expect("it starts");
    }
    kept.save_best(&mut session, &notes()).expect("it starts").wait().expect("it is written");
    let others =
        ["notes.txt", "step-+9.safetensors", "step-009.safetensors", "step-12.safetensors", "step-x.safetensors"];
    let own = ["best.safetensors", "step-10.safetensors", "step-11.safetensors"];
    let mut expected = [&others[..], &own].concat();
    expected.sort_unstable();
    assert_eq!(names_in(&inner), expected);
    let numbers: Vec<_> = kept.steps().expect("it is read").into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, [11, 10]);
    assert_eq!(kept.best(), Some(inner.join("best.safetensors")));
    // A file that was just written stays even where newer numbers are there.
    kept.save(&mut session, 3, &BTreeMap::new()).expect("it starts").wait().expect("it is written");
    assert!(inner.join("step-3.safetensors").exists());
}

/// Protects: opening a folder again, to look for the best checkpoint say, leaves the file alone that is being written into it, and
/// still removes what a killed process left.
#[test]
fn opening_a_folder_disturbs_no_checkpoint() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (running, left) = (folder.path().join(".checkpoint-running.tmp"), folder.path().join(".checkpoint-left.tmp"));
    let file = fs::File::create(&running).expect("it is made");
    file.lock().expect("it is free");
    fs::write(&left, "left").expect("it is written");
    let kept = CheckpointFolder::open(folder.path(), 2).expect("it opens");
    assert!(running.exists() && !left.exists());
    drop(file);
    CheckpointFolder::open(folder.path(), 2).expect("it opens");
    assert_eq!(names_in(folder.path()), Vec::<String>::new());

    let mut session = little.open(1);
    for number in 0..50 {
        session.launch("step").expect("the host runs");
        let ticket = kept.save(&mut session, number, &BTreeMap::new()).expect("it starts");
        while !ticket.is_done() {
            CheckpointFolder::open(folder.path(), 2).expect("it opens");
        }
        ticket.wait().expect("it is written");
    }
}

/// Protects: a numbered checkpoint becomes the best one without being written again, outlives its number, and nothing happens where
/// there is no such number.
#[test]
fn a_numbered_checkpoint_becomes_the_best() {
    let (little, folder) = (little(Other::Nothing), folder());
    let kept = CheckpointFolder::open(folder.path(), 1).expect("it opens");
    let mut session = little.open(1);
    assert!(!kept.set_best(1).expect("it is looked up"));
    for number in 1..=3 {
        session.launch("step").expect("the host runs");
        kept.save(&mut session, number, &BTreeMap::new()).expect("it starts").wait().expect("it is written");
        if number < 3 {
            assert!(kept.set_best(number).expect("it is there") && kept.set_best(number).expect("a second time"));
        }
    }
    assert!(!kept.set_best(9).expect("it is looked up"));
    session.finish_checkpoints().expect("all went well");
    assert_eq!(names_in(folder.path()), ["best.safetensors", "step-3.safetensors"]);
    assert_eq!(session.resume(kept.best().expect("there is one")).expect("it is whole").launches, 2);
}

/// Protects: damaged files are passed over and reported; a file of another program is not, since it is somebody's work.
#[test]
fn the_newest_loadable_file_is_found() {
    let (own, folder) = (little(Other::Nothing), folder());
    let kept = CheckpointFolder::open(folder.path(), 5).expect("it opens");
    let mut session = own.open(1);
    for number in 1..=3 {
        session.launch("step").expect("the host runs");
        kept.save(&mut session, number, &BTreeMap::new()).expect("it starts").wait().expect("it is written");
    }
    let third = folder.path().join("step-3.safetensors");
    let bytes = fs::read(&third).expect("it is there");
    fs::write(&third, &bytes[..bytes.len() - 1]).expect("it is written");
    fs::write(folder.path().join("step-4.safetensors"), "").expect("it is written");
    let newest = kept.newest_loadable(&session).expect("it is read");
    assert_eq!(newest.path, Some(folder.path().join("step-2.safetensors")));
    let reasons: Vec<_> = newest.skipped.iter().map(ToString::to_string).collect();
    assert!(reasons.len() == 2 && reasons[0].contains("step-4") && reasons[1].contains("step-3"), "{reasons:?}");

    let mut other = little(Other::Node).open(1);
    kept.save(&mut other, 9, &BTreeMap::new()).expect("it starts").wait().expect("it is written");
    assert!(matches!(kept.newest_loadable(&session), Err(CheckpointError::OtherVersion { .. })));
}

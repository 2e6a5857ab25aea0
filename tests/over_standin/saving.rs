//! Checkpoints over the stand-in: each of their calls fails once, nothing leaks, and no file is lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use stepgraph::Builder;
use stepgraph::ir::{DType, Init};
use stepgraph::plan::{FusionPlan, Target, Tuning};
use stepgraph::runtime::{CheckpointError, Device, Session};

use crate::{ALL, child, is_child, is_release, say, text};

/// Elements of each buffer: a checkpoint is a few pieces long.
const ELEMENTS: u32 = 3 << 19;

fn open() -> Result<Session, stepgraph::runtime::RuntimeError> {
    let mut p = Builder::new("saving");
    let x = p.input::<f32>("x", [ELEMENTS]);
    let a = p.state::<f32>("a", [ELEMENTS], Init::Constant(1.0));
    let apart = p.output::<f32>("apart", [ELEMENTS]);
    let count = p.device_scalar("count", 3u32);
    let seen = p.state::<u32>("seen", [1], Init::Zeros);
    p.step("run", |s| {
        s.phase("main", |f| {
            f.copy("in", x, a);
            f.map_to("look", seen, count.val());
            f.fill("clear", apart, 0.0);
        });
    });
    let program = p.build().expect("valid");
    let plan = program.plan("run", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("it plans");
    Session::open(Device::Cuda { ordinal: 0 }, [plan])
}

fn set(session: &mut Session, value: f32) -> Result<(), CheckpointError> {
    let bytes = value.to_ne_bytes().repeat(ELEMENTS as usize);
    session.write_by_name("x", DType::F32, &bytes).map_err(CheckpointError::Device)?;
    session.launch("run").map(drop).map_err(CheckpointError::Device)
}

fn holds(session: &mut Session, value: f32) -> Result<bool, CheckpointError> {
    let found = session.read_by_name("a").map_err(CheckpointError::Device)?;
    Ok(found.bytes == value.to_ne_bytes().repeat(ELEMENTS as usize))
}

/// Saves twice while it trains on, resumes, and looks at what came back.
fn save_and_resume(session: &mut Session, path: &Path) -> Result<(), CheckpointError> {
    set(session, 5.0)?;
    session.try_checkpoint(path, &BTreeMap::new())?.wait()?;
    set(session, 6.0)?;
    let ticket = session.try_checkpoint(path, &BTreeMap::new())?;
    set(session, 7.0)?;
    ticket.wait()?;
    session.resume(path)?;
    assert!(holds(session, 6.0)?, "the moment of the second checkpoint");
    Ok(())
}

#[test]
#[ignore = "runs over the stand-in"]
fn scenario() {
    if !is_child() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved");
    let mut session = match open() {
        Ok(session) => session,
        Err(error) => return say(&format!("error: {}", text(&error))),
    };
    match save_and_resume(&mut session, &path) {
        Ok(()) => say("fine"),
        Err(error) => {
            say(&format!("error: {}", text(&error)));
            // Whatever is there under the name is whole, and nothing unfinished is left.
            session.finish_checkpoints().expect("the ticket told it");
            let names = fs::read_dir(folder.path()).expect("a folder").count();
            assert!(names == usize::from(path.exists()), "something unfinished is left");
            match save_and_resume(&mut session, &path) {
                Ok(()) => say("usable again"),
                Err(error) => say(&format!("dead: {}", text(&error))),
            }
        }
    }
}

const SCENARIO: [&str; 2] = ["--exact", "saving::scenario"];

/// Protects: the snapshot's copies and events are used while they are alive, and nothing is left behind.
#[test]
fn checkpoints_are_legal_and_leave_nothing() {
    let outcome = child(&ALL, &SCENARIO, &[]);
    assert!(outcome.output.contains("standin: fine"), "{}", outcome.output);
    assert_eq!(outcome.complaints, Vec::<String>::new());
}

/// Protects: whichever call of a checkpoint or resume fails, the error names it, nothing leaks, no file is lost or left half
/// written, and the session saves and resumes as before.
#[test]
fn every_call_of_a_checkpoint_fails_once() {
    let mut cases: Vec<(String, u64)> = Vec::new();
    for (call, count) in child(&ALL, &SCENARIO, &[]).calls {
        // Opening is the other scenario's; the last third of each call's uses is what belongs to saving.
        let later = [count.div_ceil(3), count.div_ceil(2), (2 * count).div_ceil(3), count];
        cases.extend(later.into_iter().filter(|_| call.starts_with("cu")).map(|nth| (call.clone(), nth)));
    }
    cases.dedup();
    assert!(cases.len() > 40, "{cases:?}");
    let cases = Mutex::new(cases);
    let work = || {
        while let Some((call, nth)) = { cases.lock().expect("no panic holds it").pop() } {
            check(&call, nth);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
}

fn check(call: &str, nth: u64) {
    let wish = format!("{call}:{nth}:999");
    let outcome = child(&ALL, &SCENARIO, &[("STANDIN_FAIL", &wish)]);
    let context = format!("{wish}\n{}", outcome.output);
    assert_eq!(outcome.complaints, Vec::<String>::new(), "{context}");
    assert!(!outcome.output.contains("standin: dead"), "{context}");
    let error = outcome.output.lines().find_map(|line| line.split_once("standin: error: ")).map(|(_, error)| error);
    match error {
        Some(error) => assert!(error.contains(call), "the call is named: {context}"),
        // A destructor may have met the failure: then there is nobody to tell.
        None => assert!(is_release(call) || call.starts_with("cuCtx") || call.ends_with("Synchronize"), "{context}"),
    }
}

/// Protects: after a fault of device code a checkpoint says so and the old file stays.
#[test]
fn a_dead_device_loses_no_file() {
    let outcome = child(&ALL, &["--exact", "saving::dying"], &[("STANDIN_FAIL", "cuMemcpyDtoHAsync_v2:6:700")]);
    assert!(outcome.output.contains("standin: error: the state could not be copied"), "{}", outcome.output);
    assert!(outcome.output.contains("standin: the old file is whole"), "{}", outcome.output);
    assert_eq!(outcome.complaints, Vec::<String>::new());
}

#[test]
#[ignore = "runs over the stand-in"]
fn dying() {
    if !is_child() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved");
    let mut session = open().expect("it opens");
    for value in [1.0, 2.0] {
        set(&mut session, value).expect("it launches");
        if let Err(error) = session.checkpoint(&path, &BTreeMap::new()).and_then(|ticket| ticket.wait()) {
            say(&format!("error: {}", text(&error)));
        }
        let info = stepgraph::runtime::checkpoint::CheckpointInfo::read(&path);
        if info.as_ref().is_ok_and(|info| info.launches == 1) && value == 2.0 {
            say("the old file is whole");
        }
    }
}

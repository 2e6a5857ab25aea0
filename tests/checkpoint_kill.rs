//! A process that is killed while it trains and saves leaves checkpoints that load, and training goes on from them as if nothing
//! had happened.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use stepgraph::Builder;
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::Init;
use stepgraph::plan::{FusionPlan, Target, Tuning};
use stepgraph::runtime::checkpoint::CheckpointInfo;
use stepgraph::runtime::{CheckpointFolder, Device, Session};

/// The variable that names the folder, in the process that is killed.
const FOLDER: &str = "STEPGRAPH_KILL_FOLDER";
const KILLS: u32 = 100;

struct Walk {
    w: Tensor<f32>,
    count: Scalar<u32>,
}

/// A state of 256 KiB that depends on every launch so far.
fn open() -> (Session, Walk) {
    let mut p = Builder::new("walk");
    let count = p.device_scalar("count", 0u32);
    let w = p.param::<f32>("w", [1 << 16], Init::Normal { std: 1.0 });
    p.step("step", |s| {
        s.phase("main", |f| {
            f.map_to("w", w, w * 0.5f32 + count.val().to_f32());
            f.set("tick", count, count + 1u32);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let plan = program.plan("step", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("it plans");
    let session = Session::builder().seed(11).open(Device::Host, [plan]).expect("the host is there");
    (session, Walk { w, count })
}

/// Trains and saves as fast as it can, until it is killed.
fn train_for_ever(folder: &OsStr) {
    let (mut session, _) = open();
    let folder = CheckpointFolder::open(folder, 2).expect("it opens");
    let newest = folder.newest_loadable(&session).expect("it is read");
    let mut step = newest.path.map_or(0, |path| session.resume(path).expect("it loads").launches);
    loop {
        session.launch("step").expect("the host runs");
        step += 1;
        folder.save(&mut session, step, &BTreeMap::new()).expect("it is saved");
    }
}

#[test]
#[ignore = "runs in a process of its own, until it is killed"]
fn trains_until_it_is_killed() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        train_for_ever(&folder);
    }
}

fn start(folder: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "trains_until_it_is_killed", "--ignored", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// Waits until the folder has another newest checkpoint than `before`.
fn wait_for_news(folder: &CheckpointFolder, before: Option<u64>) {
    let start = Instant::now();
    while folder.steps().expect("it is read").first().map(|(number, _)| *number) == before {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is saved");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Protects: killed at any moment (SIGKILL, 100 times), a process leaves a folder whose newest checkpoint loads and holds exactly
/// what a straight run holds after as many launches; and every file under a checkpoint's name is whole.
#[test]
fn a_killed_process_leaves_a_checkpoint_that_loads() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let (mut resumed, walk) = open();
    let (mut straight, straight_walk) = open();
    let (mut launched, mut unfinished) = (0, 0);
    let mut newest = None;
    for kill in 0..KILLS {
        let folder = CheckpointFolder::open(place.path(), 2).expect("it opens");
        let mut child = start(place.path());
        wait_for_news(&folder, newest);
        // Anything up to 32 ms, spread by the golden ratio: many times what one checkpoint takes.
        thread::sleep(Duration::from_micros(u64::from(kill.wrapping_mul(2_654_435_769) >> 17)));
        child.kill().expect("it is killed");
        child.wait().expect("it is gone");

        let names = fs::read_dir(place.path()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        unfinished += names.filter(|name| name.to_string_lossy().ends_with(".tmp")).count();
        for (_, path) in folder.steps().expect("it is read") {
            CheckpointInfo::read(&path).unwrap_or_else(|error| panic!("kill {kill}: {error}"));
        }
        let found = folder.newest_loadable(&resumed).expect("it is read");
        assert!(found.skipped.is_empty(), "kill {kill}: {:?}", found.skipped);
        let info = resumed.resume(found.path.expect("there was one before the kill")).expect("it loads");
        assert!(info.launches > newest.unwrap_or(0), "kill {kill}: the training went on");
        newest = Some(info.launches);
        while launched < info.launches {
            straight.launch("step").expect("the host runs");
            launched += 1;
        }
        assert_eq!(u64::from(resumed.read_scalar(walk.count).expect("a scalar")), launched);
        let weights = [resumed.read(walk.w), straight.read(straight_walk.w)].map(|w| w.expect("a parameter"));
        assert!(weights[0] == weights[1], "kill {kill}: launch {launched} has other weights");
    }
    assert!(unfinished > 0, "no kill came while a file was being written");
}

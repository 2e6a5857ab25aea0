//! Checkpoints on the host: what a file holds, that resuming changes nothing about what follows, and that no wrong file gets in.

mod common;
#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "../examples/digits/data.rs"]
mod data;
#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "common/dqn.rs"]
mod dqn;
#[allow(dead_code, reason = "another test uses the rest")]
#[path = "common/little.rs"]
mod little;
#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "../examples/digits/program.rs"]
mod program;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/support.rs"]
mod support;
#[allow(dead_code, reason = "the example uses what this test does not")]
#[path = "../examples/digits/train.rs"]
mod train;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::random;
use proptest::prelude::*;
use safetensors::SafeTensors;
use stepgraph::Builder;
use stepgraph::ir::{Compute, Init, Origins, Program, Role};
use stepgraph::plan::{FusionPlan, Repeat, StepPlan, Target, Tuning};
use stepgraph::runtime::checkpoint::CheckpointInfo;
use stepgraph::runtime::{CheckpointError, Device, Link, RuntimeError, Session, SessionBuilder};
use stepgraph::valid::{ValidProgram, validate};

use little::{Little, Other, folder, little, names_in, notes};

/// Every bit of what is state, by name.
fn state(session: &mut Session) -> Vec<(String, Vec<u8>)> {
    let program = session.plans()[0].program().program().clone();
    let is_state = |role| matches!(role, Role::Param | Role::State | Role::Input);
    let mut found = Vec::new();
    for buffer in program.buffers.values().filter(|buffer| is_state(buffer.role)) {
        found.push((buffer.name.clone(), session.read_by_name(&buffer.name).expect("it can be read").bytes));
    }
    for scalar in program.scalars.values() {
        let value = session.read_scalar_by_name(&scalar.name).expect("it can be read");
        found.push((scalar.name.clone(), value.bits().to_ne_bytes().to_vec()));
    }
    found
}

/// Protects: the file is plain safetensors with every state under its own name, and says what it is; the same state gives the same
/// bytes.
#[test]
fn the_file_holds_the_state_by_name() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, path) = little.saved(folder.path());
    let bytes = fs::read(&path).expect("it is there");
    let file = SafeTensors::deserialize(&bytes).expect("plain safetensors");
    let mut names = file.names();
    names.sort_unstable();
    assert_eq!(names, ["count", "half", "rate", "table", "w", "x"]);
    let count = file.tensor("count").expect("there");
    assert_eq!((count.shape(), count.data()), (&[][..], &10u32.to_le_bytes()[..]));
    let w = session.read(little.w).expect("it can be read");
    assert_eq!(file.tensor("w").expect("there").data(), bytemuck::cast_slice::<f32, u8>(&w));
    let expected = CheckpointInfo { program: "little".into(), launches: 3, seed: 5, metadata: notes() };
    assert_eq!(CheckpointInfo::read(&path).expect("it is whole"), expected);

    let again = folder.path().join("again.safetensors");
    session.checkpoint(&again, &notes()).expect("it starts").wait().expect("it is written");
    assert_eq!(fs::read(again).expect("it is there"), bytes);
    assert_eq!(names_in(folder.path()), ["again.safetensors", "little.safetensors"], "nothing unfinished is left");
}

/// Protects: what follows a resume has the same bits as what followed the checkpoint; launches and the seed are taken over.
#[test]
fn a_resumed_session_goes_on_bit_for_bit() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, path) = little.saved(folder.path());
    let mut other = little.open(6);
    other.launch("step").expect("the host runs");
    let info = other.resume(&path).expect("it is its own");
    assert_eq!((info.launches, info.seed, &info.metadata), (3, 5, &notes()));
    for session in [&mut session, &mut other] {
        session.launch("step").expect("the host runs");
    }
    assert_eq!(state(&mut session), state(&mut other));
    let second = folder.path().join("second.safetensors");
    other.checkpoint(&second, &notes()).expect("it starts").wait().expect("it is written");
    assert_eq!(CheckpointInfo::read(second).expect("whole").launches, 4, "launches are counted on");
    for session in [&mut session, &mut other] {
        session.reset().expect("the host resets");
    }
    assert_eq!(state(&mut session), state(&mut other), "the seed came along");
}

/// Protects: a checkpoint holds the moment of the call, whatever is launched or set while it is written.
#[test]
fn a_checkpoint_is_of_its_moment() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, _) = little.saved(folder.path());
    let before = state(&mut session);
    let path = folder.path().join("moment.safetensors");
    let ticket = session.checkpoint(&path, &BTreeMap::new()).expect("it starts");
    session.set(little.rate, 100.0).expect("a host scalar");
    session.launch("step").expect("the host runs");
    ticket.wait().expect("it is written");
    assert_ne!(state(&mut session), before);
    session.resume(&path).expect("it is its own");
    assert_eq!(state(&mut session), before);
}

/// Protects: a ticket from before a resume does not read what the resume put there.
#[test]
fn tickets_from_before_a_resume_are_superseded() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, path) = little.saved(folder.path());
    let ticket = session.launch("step").expect("the host runs");
    session.resume(path).expect("it is its own");
    let mut outputs = ticket.wait(&mut session).expect("it ran");
    for refused in [outputs.read(little.y).map(drop), outputs.read_scalar(little.count).map(drop)] {
        assert!(refused.expect_err("superseded").to_string().contains("a resume from a checkpoint"));
    }
}

/// Protects: a program saved under one plan resumes under another.
#[test]
fn plans_share_checkpoints() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, path) = little.saved(folder.path());
    for name in ["debug", "phases", "fast"] {
        let fusion = FusionPlan::named(name).expect("a named plan");
        let plan = little.program.plan("step", &fusion, &Target::default(), &Tuning::default()).expect("a plan");
        let mut other = Session::open(Device::Host, [plan]).expect("the host is there");
        other.resume(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(state(&mut other), state(&mut session), "{name}");
    }
}

/// Protects: the hash is of the declared program, so that plans of several steps per launch take each other's checkpoints.
#[test]
fn plans_of_several_steps_share_checkpoints() {
    let mut p = Builder::new("many");
    let w = p.param::<f32>("w", [8], Init::Normal { std: 1.0 });
    let count = p.device_scalar("count", 0u32);
    p.step("step", |s| {
        s.phase("main", |f| {
            f.map_to("w", w, w * 0.5f32 + count.val().to_f32());
            f.set("tick", count, count + 1u32);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let open = |repeat| {
        let fusion = FusionPlan::mega().repeated(repeat);
        let plan = program.plan("step", &fusion, &Target::default(), &Tuning::default()).expect("it plans");
        Session::open(Device::Host, [plan]).expect("the host is there")
    };
    let folder = folder();
    let path = folder.path().join("many");
    let mut single = open(Repeat::Once);
    single.launch("step").expect("the host runs");
    single.checkpoint(&path, &notes()).expect("it starts").wait().expect("it is written");
    for _ in 0..6 {
        single.launch("step").expect("the host runs");
    }
    for repeat in [Repeat::Loop(3), Repeat::Unroll(2)] {
        let mut several = open(repeat);
        several.resume(&path).unwrap_or_else(|error| panic!("{repeat}: {error}"));
        for _ in 0..6 / repeat.steps() {
            several.launch("step").expect("the host runs");
        }
        assert_eq!(state(&mut several), state(&mut single), "{repeat}");
    }
}

/// Protects: what another lane writes is left out, since it may be half-way; a session without that lane takes the rest, and one with
/// it takes a file that has everything.
#[test]
fn what_another_lane_writes_is_left_out() {
    let mut p = Builder::new("lanes");
    let w = p.param::<f32>("w", [3], Init::Uniform { bound: 1.0 });
    let copy = p.state::<f32>("copy", [3], Init::Zeros);
    let seen = p.state::<f32>("seen", [3], Init::Zeros);
    let rounds = p.device_scalar("rounds", 0u32);
    p.step("train", |s| s.phase("main", |f| f.map_to("w", w, w + 1.0f32)));
    p.step("look", |s| {
        s.phase("main", |f| {
            f.map_to("seen", seen, copy.val());
            f.set("round", rounds, rounds + 1u32);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let plan = |step| program.plan(step, &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("a plan");
    let with_lane = || {
        let builder = Session::builder().lane("watch", [plan("look")]).link(Link::new("weights").copy(w, copy));
        builder.open(Device::Host, [plan("train")]).expect("the host is there")
    };
    let mut session = with_lane();
    for step in ["train", "look"] {
        session.launch(step).expect("the host runs");
        session.publish("weights").expect("there is a link");
    }
    let folder = folder();
    let [part, all] = ["part", "all"].map(|name| folder.path().join(name));
    session.checkpoint(&part, &notes()).expect("it starts").wait().expect("it is written");
    let bytes = fs::read(&part).expect("it is there");
    assert_eq!(SafeTensors::deserialize(&bytes).expect("plain safetensors").names(), ["w"]);

    let mut alone = Session::open(Device::Host, [plan("train")]).expect("the host is there");
    alone.load(seen, &[5.0; 3]).expect("state");
    alone.resume(&part).expect("the rest is left out on purpose");
    assert_eq!(alone.read(w).expect("a parameter"), session.read(w).expect("a parameter"));
    assert_eq!(alone.read(seen).expect("state"), [5.0; 3]);
    alone.checkpoint(&all, &notes()).expect("it starts").wait().expect("it is written");
    let mut other = with_lane();
    other.resume(&all).expect("more is welcome");
    assert_eq!(other.read(seen).expect("state"), [5.0; 3]);
}

// ---- files that are refused ----------------------------------------------------------------------------------------------

/// Resumes a session from a file that must not get in, and proves that nothing changed.
fn refused(little: &Little, path: &Path) -> CheckpointError {
    let mut session = little.open(9);
    session.set(little.rate, 8.0).expect("a host scalar");
    let before = state(&mut session);
    let error = session.resume(path).expect_err("it is refused");
    assert_eq!(state(&mut session), before, "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error} names the file");
    error
}

/// Protects: each kind of wrong file is told apart by its own error, and changes nothing.
#[test]
fn each_wrong_file_has_its_own_error() {
    use CheckpointError as E;
    let (own, folder) = (little(Other::Nothing), folder());
    let (_, good) = own.saved(folder.path());
    let of = |other: Other| {
        let inner = folder.path().join(format!("{other:?}"));
        fs::create_dir(&inner).expect("a folder");
        let (_, path) = little(other).saved(&inner);
        refused(&own, &path)
    };
    assert!(
        matches!(of(Other::Name), E::OtherProgram { expected, found, .. } if expected == "little" && found == "another")
    );
    assert!(matches!(of(Other::Type), E::OtherType { name, .. } if name == "table"));
    assert!(matches!(of(Other::Shape), E::OtherShape { name, found, .. } if name == "table" && found == [4, 1]));
    assert!(matches!(of(Other::OneMore), E::ExtraTensor { name, .. } if name == "more"));
    assert!(matches!(of(Other::OneLess), E::MissingTensor { name, .. } if name == "table"));
    assert!(matches!(of(Other::Node), E::OtherVersion { .. }));

    let path = folder.path().join("wrong.safetensors");
    let wrong = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("it is written");
        refused(&own, &path)
    };
    let bytes = fs::read(good).expect("it is there");
    assert!(matches!(wrong(b""), E::Empty { .. }));
    assert!(matches!(wrong(b"just some text, not a header"), E::NotSafetensors { .. }));
    assert!(matches!(wrong(&[&[16, 0, 0, 0, 0, 0, 0, 0][..], b"not json at all!"].concat()), E::NotSafetensors { .. }));
    assert!(matches!(wrong(&[&bytes[..], b"more"].concat()), E::Damaged { .. }));
    // Tensors whose bytes reach the end of 64 bits: together with the header they would be counted beyond it.
    let (most, mut start) = ((1u64 << 61) - 1, 0u64);
    let mut endless = String::from("{\"__metadata__\":{\"stepgraph.format\":\"1\"}");
    for (at, bytes) in std::iter::repeat_n(most, 8).chain([7]).enumerate() {
        let end = start + bytes;
        endless += &format!(",\"{at}\":{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[{start},{end}]}}");
        start = end;
    }
    endless.push('}');
    let length = (endless.len() as u64).to_le_bytes();
    assert!(matches!(wrong(&[&length[..], endless.as_bytes()].concat()), E::Truncated { expected: u64::MAX, .. }));
    let plain =
        safetensors::serialize::<&str, safetensors::tensor::TensorView<'_>, _>([], None).expect("an empty file");
    assert!(matches!(wrong(&plain), E::NotACheckpoint { .. }));
    let (now, later) = (&b"\"stepgraph.format\":\"1\""[..], &b"\"stepgraph.format\":\"2\""[..]);
    let at = bytes.windows(now.len()).position(|part| part == now).expect("it says its format");
    let newer = [&bytes[..at], later, &bytes[at + now.len()..]].concat();
    assert!(matches!(wrong(&newer), E::NewerFormat { found: 2, known: 1, .. }));

    assert!(matches!(refused(&own, folder.path()), E::IsFolder { .. }));
    assert!(matches!(refused(&own, &folder.path().join("nowhere")), E::Read { .. }));
}

/// Protects: a file that is cut off anywhere is known to be.
#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, path) = little.saved(folder.path());
    let before = state(&mut session);
    let bytes = fs::read(&path).expect("it is there");
    for length in 1..bytes.len() {
        fs::write(&path, &bytes[..length]).expect("it is written");
        let error = session.resume(&path).expect_err("it is refused");
        let is_told = matches!(error, CheckpointError::Truncated { expected, found, .. } if found == length as u64 && expected > found);
        assert!(is_told && error.is_damage(), "{length} bytes: {error}");
    }
    assert_eq!(state(&mut session), before);
}

/// Protects: no changed bit gets in, wherever it is.
#[test]
fn every_flipped_bit_is_refused() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, path) = little.saved(folder.path());
    let before = state(&mut session);
    let bytes = fs::read(&path).expect("it is there");
    for at in 0..bytes.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut bytes = bytes.clone();
            bytes[at] ^= flip;
            fs::write(&path, &bytes).expect("it is written");
            assert!(session.resume(&path).is_err(), "byte {at} with {flip:#x} flipped got in");
        }
    }
    assert_eq!(state(&mut session), before);
}

// ---- failures of writing -------------------------------------------------------------------------------------------------

/// Protects: a folder that is missing or a name that is taken by a folder is a typed error of the ticket, and nothing is left.
#[test]
fn a_file_that_cannot_be_written_is_an_error_of_its_ticket() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, _) = little.saved(folder.path());
    let taken = folder.path().join("taken");
    fs::create_dir_all(taken.join("inside")).expect("a folder");
    for path in [folder.path().join("missing/file"), taken] {
        let error = session.checkpoint(&path, &notes()).expect("it starts").wait().expect_err("it cannot be written");
        assert!(matches!(&error, CheckpointError::Write { path: named, .. } if *named == path), "{error}");
        // Printed with its causes, as `anyhow` does, the message says nothing twice.
        assert!(std::error::Error::source(&error).is_none());
    }
    assert_eq!(names_in(folder.path()), ["little.safetensors", "taken"]);
    session.finish_checkpoints().expect("the tickets told it");
}

/// Protects: a checkpoint takes the place of files alone, never of a socket, pipe or device, and a link stays a link.
#[cfg(unix)]
#[test]
fn a_checkpoint_replaces_files_alone() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, saved) = little.saved(folder.path());
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let error = session.checkpoint(&socket, &notes()).expect("it starts").wait().expect_err("it is no file");
    assert!(error.to_string().contains("a device, pipe or socket: name a file"), "{error}");
    assert!(!fs::symlink_metadata(&socket).expect("still there").is_file());

    let (link, target) = (folder.path().join("link"), folder.path().join("target"));
    fs::write(&target, "old").expect("written");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    session.checkpoint(&link, &notes()).expect("it starts").wait().expect("written");
    assert!(fs::symlink_metadata(&link).expect("still there").is_symlink());
    assert_eq!(fs::read(&target).expect("a file").len(), fs::read(&saved).expect("a file").len());
}

/// Protects: a failure is not lost with its ticket: the next call tells it, once.
#[test]
fn a_failure_outlives_its_ticket() {
    let (little, folder) = (little(Other::Nothing), folder());
    let (mut session, path) = little.saved(folder.path());
    let missing = folder.path().join("missing/file");
    let lose = |session: &mut Session| drop(session.checkpoint(&missing, &notes()).expect("it starts"));
    let is_earlier = |error: CheckpointError| {
        assert!(
            matches!(error, CheckpointError::Earlier { .. }) && error.to_string().contains("missing/file"),
            "{error}"
        );
    };
    lose(&mut session);
    is_earlier(session.checkpoint(&path, &notes()).expect_err("the earlier one failed"));
    session.checkpoint(&path, &notes()).expect("told once").wait().expect("it is written");
    lose(&mut session);
    is_earlier(session.finish_checkpoints().expect_err("the earlier one failed"));
    session.finish_checkpoints().expect("told once");
    // A ticket that is still there tells it itself, even behind a later checkpoint.
    let kept = session.checkpoint(&missing, &notes()).expect("it starts");
    session.checkpoint(&path, &notes()).expect("the first one has a ticket").wait().expect("it is written");
    kept.wait().expect_err("it failed");
    session.finish_checkpoints().expect("told already");
}

/// Protects: when the disk is full the old file stays as it was and nothing unfinished is left. A limit on file sizes stands in for a
/// full disk: writing fails in the same call.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_old_file() {
    const FOLDER: &str = "STEPGRAPH_FULL_DISK";
    let wide = || {
        let mut p = Builder::new("wide");
        let w = p.state::<f32>("w", [1 << 16], Init::Zeros);
        p.step("step", |s| s.phase("main", |f| f.map_to("w", w, w + 1.0f32)));
        let program = p.build().expect("valid");
        let plan = program.plan("step", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("a plan");
        Session::open(Device::Host, [plan]).expect("the host is there")
    };
    if let Some(folder) = std::env::var_os(FOLDER) {
        let mut session = wide();
        session.launch("step").expect("the host runs");
        let path = Path::new(&folder).join("wide.safetensors");
        let error = session.checkpoint(&path, &notes()).expect("it starts").wait().expect_err("there is no room");
        assert!(matches!(&error, CheckpointError::Write { doing: "writing its contents", .. }), "{error}");
        return;
    }
    let folder = folder();
    let path = folder.path().join("wide.safetensors");
    let mut session = wide();
    session.checkpoint(&path, &notes()).expect("it starts").wait().expect("it is written");
    let old = fs::read(&path).expect("it is there");
    // 64 KiB for a file of 256 KiB; without the signal that would end the process.
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact a_full_disk_leaves_the_old_file";
    let child = Command::new("bash")
        .args(["-c", script])
        .arg(std::env::current_exe().expect("this binary"))
        .env(FOLDER, folder.path())
        .output()
        .expect("it starts");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert_eq!(fs::read(&path).expect("it is there"), old);
    assert_eq!(names_in(folder.path()), ["wide.safetensors"]);
    session.resume(&path).expect("it is whole");
}

// ---- folders -------------------------------------------------------------------------------------------------------------

/// Protects: a device that fails is told apart from files, also where it failed an earlier checkpoint or half-way through a resume.
#[test]
fn a_device_at_fault_is_told_apart() {
    use CheckpointError as E;
    let lost = || RuntimeError::DeviceUnavailable { device: "cuda:0".to_owned(), reason: "lost".to_owned() };
    let path = Path::new("saved").to_owned();
    let restore = E::Restore { path: path.clone(), source: lost() };
    for error in [E::Device(lost()), restore, E::Earlier { cause: Box::new(E::Device(lost())) }] {
        assert!(error.is_device_failure(), "{error}");
    }
    for error in [E::Empty { path: path.clone() }, E::Earlier { cause: Box::new(E::Empty { path }) }] {
        assert!(!error.is_device_failure(), "{error}");
    }
}

// ---- whole programs ------------------------------------------------------------------------------------------------------

/// Protects: the digits network trains on after a resume with the same bits as without the break.
#[test]
fn digits_train_on_bit_for_bit() {
    let (train_set, test_set) =
        data::read(include_bytes!("../examples/data/digits.csv.gz")).expect("the data is complete");
    let digits = program::digits().expect("the program is valid");
    let open = |seed| {
        let plans = train::plans(&digits, &FusionPlan::mega(), &Target::default()).expect("it plans");
        Session::builder().seed(seed).open(Device::Host, plans).expect("the host is there")
    };
    let steps = |session: &mut Session, from: u32, to: u32| {
        for step in from..to {
            session.set(digits.rate, 1e-3 + step as f32 * 1e-5).expect("a host scalar");
            session.launch("train").expect("the host runs");
        }
    };
    let mut straight = open(3);
    train::load(&mut straight, &digits, 3, &train_set, &test_set).expect("the data fits");
    steps(&mut straight, 0, 12);
    let folder = folder();
    let path = folder.path().join("digits.safetensors");
    let ticket = straight.checkpoint(&path, &BTreeMap::new()).expect("it starts");
    steps(&mut straight, 12, 30);
    ticket.wait().expect("it is written");
    let mut resumed = open(0);
    resumed.resume(&path).expect("it is its own");
    steps(&mut resumed, 12, 30);
    assert!(state(&mut resumed) == state(&mut straight), "the weights differ");
    for session in [&mut straight, &mut resumed] {
        session.launch("test").expect("the host runs");
    }
    let correct = [&mut straight, &mut resumed].map(|session| session.read(digits.correct).expect("an output"));
    assert_eq!(correct[0], correct[1]);
}

/// Protects: drawing from the replay buffer, priorities, masks, moments and counters of the flagship go on bit for bit.
#[test]
fn the_flagship_trains_on_bit_for_bit() {
    let hyper = dqn::hyper::Hyper {
        batch: 16,
        observation: 8,
        trunk: 32,
        head: 16,
        blocks: 2,
        branches: vec![9, 3, 3],
        classes: 3,
        atoms: 1,
        support: [-10.0, 10.0],
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        compute: Compute::F32,
        source: dqn::hyper::Source::Replay { capacity: 96, exposure: 0 },
        mask: dqn::hyper::Mask::Drawn,
    };
    let mut p = Builder::new("dqn");
    let dqn = dqn::train::Dqn::declare(&mut p, &hyper);
    dqn.add_train(&mut p);
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    assert!(check_resume(&program, Session::builder().seed(4)), "the step runs");
}

/// Runs every step of a program, saves, runs on; and the same from the file in a session with other contents. `false` where the
/// program breaks its own promises, which the host notices.
fn check_resume(program: &ValidProgram, builder: SessionBuilder) -> bool {
    let plans = plans(program);
    let forms: Vec<_> =
        plans.iter().map(|plan| (plan.step_name().to_owned(), plan.variant().map(str::to_owned))).collect();
    let run = |session: &mut Session| {
        forms.iter().cycle().take(2 * forms.len()).try_for_each(|(step, variant)| match variant {
            Some(variant) => session.launch_variant(step, variant).map(drop),
            None => session.launch(step).map(drop),
        })
    };
    let mut straight = builder.open(Device::Host, plans.clone()).expect("the host is there");
    support::fill(&mut straight, program.program(), 3);
    if run(&mut straight).is_err() {
        return false;
    }
    let folder = folder();
    let path = folder.path().join("saved.safetensors");
    let saved = state(&mut straight);
    straight.checkpoint(&path, &BTreeMap::new()).expect("it starts").wait().expect("it is written");
    let mut resumed = Session::builder().seed(77).open(Device::Host, plans).expect("the host is there");
    support::fill(&mut resumed, program.program(), 8);
    resumed.resume(&path).unwrap_or_else(|error| panic!("{error}"));
    assert!(state(&mut resumed) == saved, "resuming is not the identity");
    let ended = [&mut straight, &mut resumed]
        .map(|session| (run(session).is_ok(), support::Memory::of(session, program.program())));
    assert_eq!(ended[0].0, ended[1].0);
    ended[0].1.assert_same(&ended[1].1, "after more launches");
    true
}

fn plans(program: &ValidProgram) -> Vec<StepPlan> {
    let plan = |(step, form): (&str, Option<&str>)| {
        let (fusion, target, tuning) = (FusionPlan::mega(), Target::default(), Tuning::default());
        let plan = match form {
            Some(variant) => program.plan_variant(step, variant, &fusion, &target, &tuning),
            None => program.plan(step, &fusion, &target, &tuning),
        };
        plan.unwrap_or_else(|error| panic!("it plans: {error}"))
    };
    let steps = program.program().steps.values();
    steps.flat_map(|step| step.forms().into_iter().map(|form| (step.name.as_str(), form))).map(plan).collect()
}

fn valid(recipe: &random::Recipe) -> ValidProgram {
    let (program, host_fns): (Program, _) = recipe.build();
    validate(program, Origins::default(), host_fns).expect("recipes keep every rule")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Protects: checkpoint and resume together change nothing, whatever the program holds.
    #[test]
    fn any_program_survives_a_checkpoint(recipe in random::recipes()) {
        check_resume(&valid(&recipe), Session::builder().seed(2));
    }
}

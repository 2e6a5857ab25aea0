//! The driver layer, emission and the CUDA backend over a stand-in for the driver: no GPU is needed.
//!
//! Each check runs in a process of its own, which finds the stand-in (`tests/standin/`) where it looks for libcuda, NVRTC and
//! cuBLASLt. The stand-in reports every misuse, and what was still alive at the end.

#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/checkpoint.rs"]
mod checkpoint;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/cost.rs"]
mod cost;
#[allow(dead_code, reason = "the example uses what these tests do not")]
#[path = "common/dqn.rs"]
mod dqn;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/epochs.rs"]
mod epochs;
#[path = "over_standin/failing.rs"]
mod failing;
#[path = "kernels/axpy.rs"]
mod kernels;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/lanes.rs"]
mod lanes;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/lifetime.rs"]
mod lifetime;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/network.rs"]
mod network;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/products.rs"]
mod products;
#[path = "over_standin/saving.rs"]
mod saving;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/support.rs"]
mod support;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/twins.rs"]
mod twins;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use half::bf16;
use stepgraph::Builder;
use stepgraph::builder::Bound;
use stepgraph::cuda::nvrtc::{Arch, Nvrtc, NvrtcError, Source};
use stepgraph::cuda::{Context, CudaError, Event, Stream, probe};
use stepgraph::ir::Init;
use stepgraph::plan::{Fuse, FusionPlan, GemmImpl, Repeat, StepPlan, Target, Tuning};
use stepgraph::runtime::{Device, RuntimeError, Session};
use stepgraph::valid::ValidProgram;

use kernels::axpy;

stepgraph::kernel! {
    /// Adds 1, with every launch attribute that a kernel can have.
    pub together in "tests/kernels/together.cu" (x: InOut<f32>[n], n: Size)
    launch fixed(grid = [4, 1, 1], block = [64, 1, 1])
    shared(65536)
    cluster [2, 1, 1]
    cooperative
}

/// The variable that marks the process over the stand-in.
const CHILD: &str = "STEPGRAPH_STANDIN_CHILD";

/// A folder in which the stand-in has the names of these libraries.
fn folder(libraries: &[&str]) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let library = BUILT.get_or_init(|| {
        // target/PROFILE/deps/THIS_TEST
        let deps = std::env::current_exe().expect("this binary");
        let profile = deps.parent().and_then(Path::parent).expect("a target folder").to_owned();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--example", "standin", "--manifest-path"]);
        build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success(), "the stand-in does not build");
        profile.join("examples/libstandin.so")
    });
    let folder = library.with_file_name("standin-libraries").join(libraries.join("+"));
    std::fs::create_dir_all(&folder).expect("a folder");
    for name in libraries {
        let link = folder.join(name);
        if std::fs::read_link(&link).ok().as_ref() != Some(library) {
            // Tests run side by side: the link is there at any time, and made whole before it has its name.
            let aside = tempfile::tempdir_in(&folder).expect("a folder");
            std::os::unix::fs::symlink(library, aside.path().join(name)).expect("a link");
            std::fs::rename(aside.path().join(name), &link).expect("a rename");
        }
    }
    folder
}

const ALL: [&str; 3] = ["libcuda.so", "libcublasLt.so", "libnvrtc.so"];

/// What a process over the stand-in did.
#[derive(Debug)]
struct Outcome {
    output: String,
    calls: BTreeMap<String, u64>,
    /// Misuses, and objects that were still alive at the end.
    complaints: Vec<String>,
}

/// Runs tests of this binary over the stand-in. A panic in there is one here.
#[track_caller]
fn child(libraries: &[&str], tests: &[&str], variables: &[(&str, &str)]) -> Outcome {
    static NUMBER: Mutex<u32> = Mutex::new(0);
    let number = {
        let mut number = NUMBER.lock().expect("no panic holds it");
        *number += 1;
        *number
    };
    let folder = folder(libraries);
    let report = folder.join(format!("report-{}-{number}", std::process::id()));
    let output = Command::new(std::env::current_exe().expect("this binary"))
        .args(tests)
        .args(["--nocapture", "--include-ignored", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(CHILD, "1")
        .env("STEPGRAPH_REQUIRE_GPU", "1")
        .env("STEPGRAPH_CACHE", "")
        .env("STANDIN_REPORT", &report)
        .env_remove("STEPGRAPH_GPU_DRY_RUN")
        .envs(variables.iter().copied())
        .output()
        .expect("it starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{tests:?} with {variables:?}: {}\n{text}", output.status);
    let facts = std::fs::read_to_string(&report).unwrap_or_default();
    let _ = std::fs::remove_file(&report);
    let mut outcome = Outcome { output: text, calls: BTreeMap::new(), complaints: Vec::new() };
    for fact in facts.lines() {
        match fact.strip_prefix("call ").and_then(|fact| fact.split_once(' ')) {
            Some((name, count)) => drop(outcome.calls.insert(name.to_owned(), count.parse().expect("a number"))),
            None => outcome.complaints.push(fact.to_owned()),
        }
    }
    outcome
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Tells the process that started this one.
#[expect(clippy::print_stdout, reason = "the other process reads it")]
fn say(what: &str) {
    println!("standin: {what}");
}

/// One program with every node kind, in the forms that reach every call of the driver layer.
fn everything() -> ValidProgram {
    let mut p = Builder::new("everything");
    let x = p.state::<f32>("x", [6, 8], Init::Zeros);
    let w = p.param::<f32>("w", [5, 8], Init::Uniform { bound: 0.5 });
    let b = p.param::<f32>("b", [5], Init::Zeros);
    let y = p.state::<f32>("y", [6, 8], Init::Zeros);
    let half = p.state::<bf16>("half", [9, 4], Init::Zeros);
    let hidden = p.output::<f32>("hidden", [6, 5]);
    let long = p.state::<f32>("long", [100_000], Init::Zeros);
    let (alpha, choice) = (p.host_scalar("alpha", 1.0f32), p.host_scalar("choice", 0u32));
    let (index, until, sum) =
        (p.device_scalar("index", 0u32), p.device_scalar("until", 0u32), p.device_scalar("sum", 0.0f32));
    p.step("run", |s| {
        s.phase("moves", |f| {
            f.copy("whole", x, y);
            f.copy("columns", x.cols(2..5), y.cols(4..7));
            f.fill("words", y.cols(0..2), 1.0);
            f.fill("halves", half.cols(1..3), 2.0);
        });
        s.phase("compute", |f| {
            f.gemm("product", x.nt(w)).then_to(hidden, |acc| (acc + b).relu());
            f.gemm("scaled", x.nt(w)).alpha(alpha).add(0.5, hidden).to(hidden);
            f.sum("total", &[0], long.val()).to_scalar(sum);
            f.kernel("axpy", axpy::Args { x: w.pick(0, 0), y: w.pick(0, 1), a: alpha });
            f.kernel("together", together::Args { x: long });
        });
        s.phase("control", |f| {
            f.when_else(
                "either",
                choice,
                |b| b.copy("there", x, y),
                |b| {
                    b.gemm("inner", x.nt(w)).to(hidden);
                },
            );
            f.switch("which", choice, &mut [&mut |b| b.fill("zero", y, 0.0), &mut |b| b.fill("one", y, 1.0)]);
            f.repeat("loop", Bound::Const(3), Some(index), Some(until), |b| {
                b.when("early", choice, |c| {
                    c.when("some", choice, |d| d.fill("first", y.rows(0..1), 3.0));
                    c.when("others", choice, |d| d.fill("second", y.rows(1..2), 3.0));
                });
                b.when("late", choice, |c| c.fill("more", y.rows(2..4), 4.0));
                b.set("end", until, index.val().equal(1u32).to_u32());
            });
        });
    });
    p.build().expect("valid")
}

fn plans(fusions: &[FusionPlan]) -> Vec<StepPlan> {
    let program = everything();
    let mut tuning = Tuning::default();
    // The third suggestion records every kind of node.
    for compute in stepgraph::ir::Compute::ALL {
        let key = stepgraph::plan::GemmKey::new([6, 5, 8], false, true, compute);
        tuning.gemms.insert(key, GemmImpl::Library { algo: 2, workspace: 4096 });
    }
    let plan = |fusion| program.plan("run", fusion, &Target::default(), &tuning).expect("it plans");
    fusions.iter().map(plan).collect()
}

fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Opens, launches, waits, reads and drops under one plan. A failed launch is tried once more.
fn use_session(plan: StepPlan) -> Result<(), RuntimeError> {
    let program = plan.program().clone();
    let mut session = Session::open(Device::Cuda { ordinal: 0 }, [plan])?;
    let used = (|| {
        for name in ["x", "w", "long"] {
            let buffer = program.program().buffers.values().find(|buffer| buffer.name == name).expect("declared");
            let bytes = vec![0; buffer.bytes() as usize];
            session.write_by_name(name, buffer.dtype, &bytes)?;
        }
        for choice in 0..6 {
            session.set_by_name("choice", stepgraph::ir::ConstValue::U32(choice))?;
            let ticket = session.launch("run")?;
            ticket.try_take(&mut session)?;
            ticket.wait(&mut session)?;
        }
        session.read_by_name("y")?;
        session.read_by_name("hidden").map(drop)
    })();
    if used.is_err() {
        let again = session.launch("run").and_then(|ticket| ticket.wait(&mut session).map(drop));
        match again {
            Ok(()) => say("usable again"),
            Err(error) => say(&format!("dead: {}", text(&error))),
        }
    }
    used
}

/// Two lanes, publications until both slots are in use and after, and results of both.
fn use_lanes() -> Result<(), RuntimeError> {
    let twins = twins::twins();
    let mut session = twins.open(Device::Cuda { ordinal: 0 }, &FusionPlan::mega())?;
    let mut used = Ok(());
    // A failure is tried over, so that what it left behind is met.
    for round in 0..8 {
        let done = (|| {
            session.set_by_name("scale", stepgraph::ir::ConstValue::F32(round as f32))?;
            session.launch("train")?;
            session.publish(twins::LINK)?;
            let looked = session.launch("look")?;
            let _ = session.try_publish(twins::LINK)?;
            looked.wait(&mut session)?.read(twins.product)?;
            session.read(twins.seen).map(drop)
        })();
        used = used.and(done);
    }
    if used.is_err() {
        match session.wait() {
            Ok(()) => say("usable again"),
            Err(error) => say(&format!("dead: {}", text(&error))),
        }
    }
    used
}

fn use_events() -> Result<(), CudaError> {
    let context = Context::primary(0)?;
    let (stream, other) = (Stream::new(&context)?, Stream::new(&context)?);
    let (early, late) = (Event::timed(&context)?, Event::timed(&context)?);
    early.record(&stream)?;
    other.wait(&early)?;
    late.record(&stream)?;
    late.synchronize()?;
    early.milliseconds_to(&late)?;
    context.memory()?;
    probe::devices().map(drop)
}

/// Portable code, which a compiler that does not know the device falls back to.
fn use_compiler() -> Result<(), NvrtcError> {
    let source = Source { name: "empty", text: "", headers: &[], options: &[] };
    Nvrtc::load()?.compile(&source, Arch::Virtual(80)).map(drop)
}

#[test]
#[ignore = "runs over the stand-in"]
fn scenario() {
    if !is_child() {
        return;
    }
    let fused = FusionPlan { fuse: Fuse::All, ..FusionPlan::mega() };
    let [unrolled, looped] = [Repeat::Unroll(2), Repeat::Loop(2)].map(|repeat| FusionPlan::mega().repeated(repeat));
    let plans = plans(&[FusionPlan::debug(), FusionPlan::phases(), fused, unrolled, looped]);
    let used = plans.into_iter().try_for_each(use_session).and_then(|()| use_lanes()).map_err(|error| text(&error));
    let used = used.and_then(|()| use_events().map_err(|error| text(&error)));
    match used.and_then(|()| use_compiler().map_err(|error| text(&error))) {
        Ok(()) => say("fine"),
        Err(error) => say(&format!("error: {error}")),
    }
}

/// Protects: handles are used while they are alive and freed once, addresses lie in live memory when work runs, conditional
/// handles belong to their graphs, and nothing is left behind.
#[test]
fn every_call_is_legal_and_nothing_is_left() {
    let outcome = child(&ALL, &["--exact", "scenario"], &[]);
    assert!(outcome.output.contains("standin: fine"), "{}", outcome.output);
    assert_eq!(outcome.complaints, Vec::<String>::new());
}

/// Every call of the driver and its libraries that the source of the driver layer makes.
fn calls_of_the_source() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
    let files = std::fs::read_dir(folder).expect("the driver layer").map(|entry| entry.expect("a file").path());
    let mut found = BTreeSet::new();
    for text in files.map(|file| std::fs::read_to_string(file).expect("source")) {
        for start in ["driver_call!(", "blas_call!(", "sys::"] {
            let names = text.split(start).skip(1).filter_map(|rest| rest.split_once('(')).map(|(name, _)| name);
            let is_call = |name: &&str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
            let of_library = |name: &&str| ["cu", "nvrtc"].iter().any(|library| name.starts_with(library));
            found.extend(names.filter(is_call).filter(of_library).map(str::to_owned));
        }
    }
    found
}

/// Calls that release something: their failure cannot be told to anybody, and must not lose anything else.
fn is_release(call: &str) -> bool {
    ["Destroy", "Free", "Unload", "Release"].iter().any(|word| call.contains(word))
}

/// Calls that are made for one node, so that their errors name it.
fn is_of_a_node(call: &str) -> bool {
    let names = [
        "cuGraphAdd",
        "cuGraphMem",
        "cublasLt",
        "cuFunc",
        "cuKernel",
        "cuModuleGetFunction",
        "cuLaunchKernelEx",
        "cuMemcpy3D",
        "cuStreamBegin",
    ];
    names.iter().any(|name| call.starts_with(name)) && call != "cuGraphAddDependencies_v2"
}

/// Protects: every call that the driver layer makes, if it fails once, gives a typed error that names the call, and the node where
/// there is one; nothing leaks, nothing is used after its end, nothing panics, and the session is usable again.
#[test]
fn every_call_fails_once_with_a_typed_error() {
    let calls = child(&ALL, &["--exact", "scenario"], &[]).calls;
    // Newer bindings know some calls by a second name.
    let is_reached = |call: &String| calls.contains_key(call) || calls.contains_key(&format!("{call}_v2"));
    let missed: Vec<String> = calls_of_the_source().into_iter().filter(|call| !is_reached(call)).collect();
    assert!(calls.len() > 60 && missed.is_empty(), "calls that are not tried: {missed:?}");
    let mut cases: Vec<(String, u64)> = Vec::new();
    for (call, count) in calls {
        cases.extend((count > 1).then(|| (call.clone(), count.div_ceil(2))));
        cases.push((call, 1));
    }
    let cases = Mutex::new(cases);
    let work = || {
        while let Some((call, nth)) = { cases.lock().expect("no panic holds it").pop() } {
            check_failure(&call, nth, 999);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
}

fn check_failure(call: &str, nth: u64, code: u32) {
    let wish = format!("{call}:{nth}:{code}");
    let outcome = child(&ALL, &["--exact", "scenario"], &[("STANDIN_FAIL", &wish)]);
    let context = format!("{wish}\n{}", outcome.output);
    assert_eq!(outcome.complaints, Vec::<String>::new(), "{context}");
    assert!(!outcome.output.contains("standin: dead"), "{context}");
    let error = outcome.output.lines().find_map(|line| line.split_once("standin: error: ")).map(|(_, error)| error);
    match error {
        Some(error) => {
            assert!(error.contains(call), "the call is named: {context}");
            assert!(!is_of_a_node(call) || error.contains("node `"), "the node is named: {context}");
        }
        // A destructor may have met the failure: then there is nobody to tell.
        None => assert!(is_release(call) || call.starts_with("cuCtx") || call == "cuStreamSynchronize", "{context}"),
    }
}

/// Protects: after a fault of device code the session says that it is dead, at once and on every call, and is still dropped
/// without a leak.
#[test]
fn a_device_fault_kills_the_session_clearly() {
    let outcome = child(&ALL, &["--exact", "scenario"], &[("STANDIN_FAIL", "cuEventSynchronize:1:700")]);
    assert!(outcome.output.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", outcome.output);
    assert!(outcome.output.contains("standin: dead: the device failed earlier"), "{}", outcome.output);
    assert_eq!(outcome.complaints, Vec::<String>::new());
}

/// Protects: a library that is missing, and a driver that is too old, are typed errors with a remedy, not panics; and a driver
/// that is only too old for one node is refused at that node.
#[test]
fn missing_and_old_libraries_are_errors_with_a_remedy() {
    let no_blas = child(&["libcuda.so", "libnvrtc.so"], &["--exact", "scenario"], &[]);
    assert!(no_blas.output.contains("libcublasLt.so cannot be loaded; install"), "{}", no_blas.output);
    assert!(no_blas.output.contains("node `compute."), "{}", no_blas.output);
    assert_eq!(no_blas.complaints, Vec::<String>::new());
    let no_compiler = child(&["libcuda.so", "libcublasLt.so"], &["--exact", "scenario"], &[]);
    assert!(no_compiler.output.to_lowercase().contains("nvrtc"), "{}", no_compiler.output);
    let no_driver = child(&["libnvrtc.so"], &["--exact", "scenario"], &[]);
    assert!(no_driver.output.contains("no CUDA device can be used"), "{}", no_driver.output);
    assert!(no_driver.output.contains("--device host"), "{}", no_driver.output);
    let old = child(&ALL, &["--exact", "scenario"], &[("STANDIN_VERSION", "12020")]);
    assert!(old.output.contains("supports CUDA 12.2, but stepgraph needs CUDA 12.4"), "{}", old.output);
    let middle = child(&ALL, &["--exact", "scenario"], &[("STANDIN_VERSION", "12040")]);
    assert!(middle.output.contains("node `control.either`"), "{}", middle.output);
    assert!(middle.output.contains("an `if` node with an else body needs CUDA 12.8"), "{}", middle.output);
    assert_eq!(middle.complaints, Vec::<String>::new());
}

/// Protects: the GPU tests that need no kernel to run pass over the stand-in too: matrix products as explicit nodes, the calls of a
/// steady step, dropping in any order, and memory that stays flat.
#[test]
fn gpu_tests_without_kernels_pass() {
    let tests = [
        "products::products_are_right_in_every_arithmetic_and_transposition",
        "products::factors_come_from_constants_and_cells",
        "products::views_and_bfloat16_are_taken_as_they_lie",
        "checkpoint::launches_go_on_while_a_checkpoint_is_written",
        "checkpoint::checkpoints_take_memory_once",
        "checkpoint::lent_memory_is_saved_and_restored",
        "checkpoint::nothing_moves_an_address",
        "cost::a_steady_step_is_one_copy_and_one_launch",
        "cost::a_phases_step_is_one_launch_per_phase",
        "cost::the_report_counts_what_was_built",
        "epochs::epochs_wait_for_launches_alone",
        "lanes::an_epoch_with_publications_waits_for_nothing",
        "lifetime::everything_can_be_dropped_in_any_order",
        "lifetime::sessions_tickets_and_handles_are_dropped_in_any_order",
        "lifetime::a_hundred_builds_leave_nothing_behind",
        "lifetime::bodies_hold_no_memory_nodes",
        "lifetime::the_dump_names_every_node",
        "lifetime::the_users_context_and_stream_are_used",
    ];
    let arguments: Vec<&str> = std::iter::once("--exact").chain(tests).collect();
    let outcome = child(&ALL, &arguments, &[]);
    assert!(outcome.output.contains(&format!("{} passed", tests.len())), "{}", outcome.output);
    assert_eq!(outcome.complaints, Vec::<String>::new());
}

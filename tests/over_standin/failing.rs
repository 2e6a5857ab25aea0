//! The failure policy over the stand-in: refused graphs, faults that end every session, and failures that end none.

use stepgraph::Builder;
use stepgraph::ir::{DType, Init};
use stepgraph::plan::{FusionPlan, Repeat, Target, Tuning};
use stepgraph::runtime::{Device, OnFailure, RuntimeError, Session, SessionBuilder};

use crate::{ALL, Outcome, child, is_child, say, text};

/// Two phases of copies, which the stand-in carries out.
fn open(builder: SessionBuilder, device: Device) -> Result<Session, RuntimeError> {
    let mut p = Builder::new("copies");
    let x = p.input::<f32>("x", [4]);
    let (a, b) = (p.state::<f32>("a", [4], Init::Zeros), p.state::<f32>("b", [4], Init::Zeros));
    p.step("run", |s| {
        s.phase("first", |f| f.copy("in", x, a));
        s.phase("second", |f| f.copy("on", a, b));
    });
    let program = p.build().expect("valid");
    let plan = program.plan("run", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("it plans");
    builder.open(device, [plan])
}

/// Launches once with these values and reads them at the other end.
fn carry(session: &mut Session, value: f32) -> Result<(), RuntimeError> {
    let bytes = value.to_ne_bytes().repeat(4);
    session.write_by_name("x", DType::F32, &bytes)?;
    session.launch("run")?.wait(session)?;
    assert_eq!(session.read_by_name("b")?.bytes, bytes, "the values arrive");
    Ok(())
}

const CUDA: Device = Device::Cuda { ordinal: 0 };

fn run(test: &str, variables: &[(&str, &str)]) -> Outcome {
    let outcome = child(&ALL, &["--exact", test], variables);
    assert_eq!(outcome.complaints, Vec::<String>::new(), "{}", outcome.output);
    outcome
}

fn said<'a>(outcome: &'a Outcome, what: &str) -> &'a str {
    let mut lines = outcome.output.lines().filter_map(|line| line.split_once("standin: ").map(|(_, said)| said));
    lines.find_map(|line| line.strip_prefix(what)).unwrap_or_else(|| panic!("`{what}` is not in\n{}", outcome.output))
}

#[test]
#[ignore = "runs over the stand-in"]
fn refusal() {
    if !is_child() {
        return;
    }
    let policy = if std::env::var_os("FALL_BACK").is_some() { OnFailure::Phases } else { OnFailure::Report };
    match open(Session::builder().on_failure(policy), CUDA) {
        Ok(mut session) => {
            carry(&mut session, 3.0).expect("it runs");
            let report = session.report();
            say(&format!("graphs: {}", report.plans[0].emitted.graphs));
            say(&format!("fallbacks: {}", report.fallbacks.len()));
            say(&format!("report: {}", report.to_string().replace('\n', "; ")));
        }
        Err(error) => say(&format!("error: {}", text(&error))),
    }
}

/// Protects: a graph that the driver refuses is an error; where the user asked for it, the step runs by phase, gives what it
/// should, and the report says so. A lost device, and a driver that refuses again, are errors all the same.
#[test]
fn a_refused_graph_falls_back_only_where_asked() {
    let refuse = ("STANDIN_FAIL", "cuGraphInstantiateWithParams:1:1");
    let plain = run("failing::refusal", &[]);
    assert_eq!((said(&plain, "graphs: "), said(&plain, "fallbacks: ")), ("1", "0"));
    let reported = run("failing::refusal", &[refuse]);
    assert!(said(&reported, "error: ").contains("cuGraphInstantiateWithParams"), "{}", reported.output);
    let fallen = run("failing::refusal", &[refuse, ("FALL_BACK", "1")]);
    assert_eq!((said(&fallen, "graphs: "), said(&fallen, "fallbacks: ")), ("2", "1"));
    let report = said(&fallen, "report: ");
    assert!(report.contains("step `run` runs plan phases in place of mega: building"), "{report}");
    assert!(report.contains("cuGraphInstantiateWithParams failed with"), "{report}");
    for call in ["cuGraphAddNode_v2", "cuGraphAddMemcpyNode", "cuGraphUpload"] {
        if plain.calls.contains_key(call) {
            let fallen = run("failing::refusal", &[("STANDIN_FAIL", &format!("{call}:1:999")), ("FALL_BACK", "1")]);
            assert_eq!(said(&fallen, "fallbacks: "), "1", "{call}");
        }
    }
    let lost = [("STANDIN_FAIL", "cuGraphInstantiateWithParams:1:700"), ("FALL_BACK", "1")];
    assert!(said(&run("failing::refusal", &lost), "error: ").contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
    let again = [("STANDIN_FAIL", "cuGraphInstantiateWithParams:1:1"), ("STANDIN_STICKY", "1"), ("FALL_BACK", "1")];
    assert!(said(&run("failing::refusal", &again), "error: ").contains("CUDA_ERROR_INVALID_VALUE"));
}

/// Two phases that hand a value on, twice in a launch.
#[test]
#[ignore = "runs over the stand-in"]
fn repeated_refusal() {
    let Some(repeat) = std::env::var_os("REPEAT").filter(|_| is_child()) else { return };
    let repeat = if repeat == "unroll" { Repeat::Unroll(2) } else { Repeat::Loop(2) };
    let mut p = Builder::new("repeated");
    let [a, b, c] = ["a", "b", "c"].map(|name| p.state::<f32>(name, [4], Init::Zeros));
    p.step("run", |s| {
        s.phase("first", |f| f.copy("far", b, c));
        s.phase("second", |f| f.copy("near", a, b));
    });
    let (program, fusion) = (p.build().expect("valid"), FusionPlan::mega().repeated(repeat));
    let plan = program.plan("run", &fusion, &Target::default(), &Tuning::default()).expect("it plans");
    match Session::builder().on_failure(OnFailure::Phases).open(CUDA, [plan]) {
        Ok(mut session) => {
            session.load(a, &[1.0; 4]).expect("it loads");
            session.launch("run").and_then(|ticket| ticket.wait(&mut session).map(drop)).expect("it runs");
            assert_eq!(session.read(c).expect("it reads"), [1.0; 4], "the value takes two steps");
            say(&format!("report: {}", session.report().to_string().replace('\n', "; ")));
        }
        Err(error) => say(&format!("error: {}", text(&error))),
    }
}

/// Protects: an unrolled plan falls back to the graphs of its phases, as many steps of them; a looped one has nothing to fall back to,
/// and the driver's reason is told.
#[test]
fn an_unrolled_plan_falls_back_and_a_looped_one_does_not() {
    let refused = |repeat| {
        let refuse = ("STANDIN_FAIL", "cuGraphInstantiateWithParams:1:1");
        run("failing::repeated_refusal", &[refuse, ("REPEAT", repeat)])
    };
    let unrolled = refused("unroll");
    let report = said(&unrolled, "report: ");
    assert!(report.contains("runs plan mega unroll 2 by phase in place of mega unroll 2"), "{report}");
    assert!(said(&refused("loop"), "error: ").contains("cuGraphInstantiateWithParams"));
}

#[test]
#[ignore = "runs over the stand-in"]
fn two_sessions() {
    if !is_child() {
        return;
    }
    let mut first = open(Session::builder(), CUDA).expect("it opens");
    let mut second = open(Session::builder(), CUDA).expect("it opens");
    carry(&mut second, 1.0).expect("it runs");
    for round in 0..2 {
        match carry(&mut first, 2.0) {
            Ok(()) => say(&format!("first {round}: fine")),
            Err(error) => say(&format!("first {round}: {}", text(&error))),
        }
    }
    for round in 0..2 {
        match carry(&mut second, 3.0) {
            Ok(()) => say(&format!("second {round}: fine")),
            Err(error) => say(&format!("second {round}: {}", text(&error))),
        }
    }
    match open(Session::builder(), CUDA).and_then(|mut third| carry(&mut third, 4.0)) {
        Ok(()) => say("third: fine"),
        Err(error) => say(&format!("third: {}", text(&error))),
    }
    drop(first);
    let mut host = open(Session::builder(), Device::Host).expect("the host is there");
    carry(&mut host, 5.0).expect("the host runs");
    say("host: fine");
}

/// Protects: a call that fails in one session leaves the others, and that one's next launch, as they were.
#[test]
fn a_failed_call_ends_no_session() {
    for call in ["cuGraphLaunch:2:999", "cuEventRecord:3:999", "cuMemcpyHtoDAsync_v2:2:999"] {
        let outcome = run("failing::two_sessions", &[("STANDIN_FAIL", call)]);
        let name = call.split(':').next().expect("a name");
        assert!(said(&outcome, "first 0: ").contains(name), "{}", outcome.output);
        for other in ["first 1: ", "second 0: ", "second 1: ", "third: ", "host: "] {
            assert_eq!(said(&outcome, other), "fine", "{call}, {other}");
        }
    }
}

/// Protects: a fault of device code is told with launch and step by every session of the device, each of which then says that it
/// is dead; a new session is a typed error; the host goes on; and all of it can still be dropped.
#[test]
fn a_fault_ends_every_session_of_the_device_and_says_so() {
    let plain = run("failing::two_sessions", &[]);
    let launches = plain.calls["cuGraphLaunch"];
    assert_eq!(launches, 6, "one for each carry on the device");
    let wishes = ["cuEventSynchronize:2:700", "cuGraphLaunch:2:700"];
    for wish in wishes {
        let outcome = run("failing::two_sessions", &[("STANDIN_FAIL", wish), ("STANDIN_STICKY", "1")]);
        for (session, launch) in [("first 0: ", "launch 1"), ("second 0: ", "launch 2")] {
            let told = said(&outcome, session);
            assert!(told.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{wish}, {session}: {told}");
            assert!(told.contains("another session of this process"), "{wish}, {session}: {told}");
            assert!(told.contains(launch), "{wish}, {session}: {told}");
        }
        for session in ["first 1: ", "second 1: "] {
            let told = said(&outcome, session);
            assert!(told.starts_with("the device failed earlier") && told.contains("in a new process"), "{told}");
        }
        assert!(said(&outcome, "third: ").contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", outcome.output);
        assert_eq!(said(&outcome, "host: "), "fine");
    }
}

/// Protects: an error that was there before the session is not blamed on one of its launches.
#[test]
fn a_stale_error_is_told_when_the_session_opens() {
    let outcome = run("failing::refusal", &[("STANDIN_FAIL", "cuStreamSynchronize:1:700")]);
    let told = said(&outcome, "error: ");
    assert!(told.contains("work that was queued before this session failed"), "{told}");
}

/// Protects: a driver that does not keep what it was told, code whose parameters are not the declared ones, and a library that allocates
/// inside of a product are noticed when the step is built, at the node.
#[test]
fn what_the_driver_does_not_keep_is_noticed() {
    let lies = [
        ("parameters", "does not match its declaration", "node `compute."),
        ("attributes", "cuGraphKernelNodeSetAttribute did not take effect", "node `compute.together`"),
        ("shared", "cuFuncSetAttribute did not take effect", "node `compute.together`"),
        ("allocation", "the library call recorded a node of type CU_GRAPH_NODE_TYPE_MEM_ALLOC", "node `compute."),
    ];
    for (lie, error, node) in lies {
        let outcome = run("scenario", &[("STANDIN_LIE", lie)]);
        let told = said(&outcome, "error: ");
        assert!(told.contains(error) && told.contains(node), "{lie}: {told}");
    }
}

/// Protects: what cannot be declared node by node, a product of the library, is the only thing that is ever recorded from a stream.
#[test]
fn only_products_are_captured() {
    let copies = run("failing::refusal", &[]);
    assert!(!copies.calls.contains_key("cuStreamBeginCapture_v2"), "{:?}", copies.calls);
    let network = run("cost::a_steady_step_is_one_copy_and_one_launch", &[]);
    let counts = ["cuStreamBeginCapture_v2", "cublasLtMatmul"].map(|call| network.calls.get(call).copied());
    assert_eq!(counts[0], counts[1], "{:?}", network.calls);
    assert!(counts[0].is_some_and(|count| count > 1), "{:?}", network.calls);
}

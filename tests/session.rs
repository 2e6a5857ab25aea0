//! Sessions on the host: what they keep, what they refuse, and that results never mix.

use stepgraph::Builder;
use stepgraph::builder::Val;
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{ConstValue, DType, Init, ScatterRule};
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning};
use stepgraph::runtime::{Device, RuntimeError, Session};
use stepgraph::valid::ValidProgram;

/// y = rate · x + w, in two steps that both write `y`, with a counter and a tapped temp.
struct Fixture {
    program: ValidProgram,
    rate: Scalar<f32>,
    bias: Scalar<f32>,
    count: Scalar<u32>,
    x: Tensor<f32>,
    w: Tensor<f32>,
    v: Tensor<f32>,
    both: Tensor<f32>,
    y: Tensor<f32>,
    z: Tensor<f32>,
    scaled: Tensor<f32>,
    hidden: Tensor<f32>,
}

fn fixture() -> Fixture {
    let mut p = Builder::new("session");
    let rate = p.host_scalar("rate", 2f32);
    let bias = p.host_scalar("bias", 0.5f32);
    let count = p.device_scalar("count", 7u32);
    let x = p.input::<f32>("x", [2, 3]);
    let w = p.param::<f32>("w", [3], Init::Uniform { bound: 1.0 });
    let v = p.param::<f32>("v", [2, 3], Init::Normal { std: 1.0 });
    let both = p.group("both", &[w, v]);
    let y = p.output::<f32>("y", [2, 3]);
    let z = p.output::<f32>("z", [3]);
    let (scaled, hidden) = p.step("a", |s| {
        s.phase("p", |f| {
            let scaled = f.map::<f32>("scaled", x * rate);
            let hidden = f.map::<f32>("hidden", scaled + v);
            f.map_to("y", y, hidden + w);
            f.set("tick", count, count + 1u32);
            (scaled, hidden)
        })
    });
    p.tap(scaled);
    p.step("b", |s| {
        s.phase("p", |f| {
            f.map_to("y", y, x + bias);
        });
    });
    p.step("c", |s| {
        s.phase("p", |f| {
            f.map_to("z", z, w * bias);
            f.map_to("w", w, w + 1.0f32);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    Fixture { program, rate, bias, count, x, w, v, both, y, z, scaled, hidden }
}

impl Fixture {
    fn plan(&self, step: &str) -> StepPlan {
        self.program.plan(step, &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("a plan")
    }

    fn open(&self) -> Session {
        self.open_with(0)
    }

    fn open_with(&self, seed: u64) -> Session {
        let plans = ["a", "b", "c"].map(|step| self.plan(step));
        Session::builder().seed(seed).open(Device::Host, plans).expect("the host is there")
    }
}

const X: [f32; 6] = [1.0, -2.0, 3.0, 0.25, 5.0, -6.0];

fn message<T>(result: Result<T, RuntimeError>) -> String {
    result.err().expect("refused").to_string()
}

/// Protects: values go in and come out by handle, and launches compute with them.
#[test]
fn values_go_in_and_come_out() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    session.write_input(f.x, &X)?;
    session.set(f.rate, 3.0)?;
    session.load(f.w, &[10.0, 20.0, 30.0])?;
    session.load(f.v, &[1.0; 6])?;
    let ticket = session.launch("a")?;
    let mut outputs = ticket.wait(&mut session)?;
    let y = outputs.read(f.y)?;
    let expected: Vec<f32> = (0..6).map(|i| X[i] * 3.0 + 1.0 + [10.0, 20.0, 30.0][i % 3]).collect();
    assert_eq!(y, expected);
    assert_eq!(outputs.read_scalar(f.count)?, 8);
    assert_eq!((session.read_scalar(f.count)?, session.read_scalar(f.rate)?), (8, 3.0));
    assert_eq!(session.read(f.x)?, X);
    assert_eq!(session.read(f.y.rows(1..2).cols(1..3))?, expected[4..]);
    Ok(())
}

/// Protects: a box of an input or parameter can be written alone.
#[test]
fn boxes_are_written_alone() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    session.load(f.v, &[0.0; 6])?;
    session.load(f.v.cols(1..3), &[1.0, 2.0, 3.0, 4.0])?;
    assert_eq!(session.read(f.v)?, [0.0, 1.0, 2.0, 0.0, 3.0, 4.0]);
    session.write_input(f.x.rows(1..2), &[7.0, 8.0, 9.0])?;
    assert_eq!(session.read(f.x)?, [0.0, 0.0, 0.0, 7.0, 8.0, 9.0]);
    Ok(())
}

/// Protects: a group is one flat array whose padding is zero and stays so.
#[test]
fn groups_are_flat_with_zero_padding() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    // w has 3 elements and v 6; members start at multiples of 16 bytes.
    let flat = [1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 0.0, 0.0];
    session.load(f.both, &flat)?;
    assert_eq!(session.read(f.both)?, flat);
    assert_eq!(session.read(f.w)?, [1.0, 2.0, 3.0]);
    let mut bad = flat;
    bad[3] = 1.0;
    assert!(message(session.load(f.both, &bad)).contains("element 3 is padding"));
    assert_eq!(session.read(f.both)?, flat, "a refused load changes nothing");
    Ok(())
}

/// Protects: a ticket reads what its own launch wrote, or says what has overwritten it; never newer data.
#[test]
fn a_ticket_never_reads_newer_data() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    let a = session.launch("a")?;
    let c = session.launch("c")?;
    a.wait(&mut session)?.read(f.y)?;
    let b = session.launch("b")?;
    let superseded = message(a.wait(&mut session)?.read(f.y));
    assert!(superseded.contains("`y`") && superseded.contains("launch 1") && superseded.contains("step `b`"));
    a.wait(&mut session)?.read_scalar(f.count)?;
    b.wait(&mut session)?.read(f.y)?;
    c.wait(&mut session)?.read(f.z)?;
    assert!(message(b.wait(&mut session)?.read(f.z)).contains("does not write `z`"));

    c.wait(&mut session)?.read(f.w)?;
    session.load(f.w, &[0.0; 3])?;
    assert!(message(c.wait(&mut session)?.read(f.w)).contains("a load"));
    session.reset()?;
    assert!(message(b.wait(&mut session)?.read(f.y)).contains("a reset"));
    session.launch("a")?;
    assert!(b.try_take(&mut session)?.is_some(), "the launch itself is done");
    Ok(())
}

/// Protects: a tapped temp can be read until the next launch takes the scratch; others never.
#[test]
fn temps_are_read_only_where_they_are_kept() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    assert!(matches!(session.read(f.scaled), Err(RuntimeError::NotKept { .. })), "nothing has run");
    session.write_input(f.x, &X)?;
    let a = session.launch("a")?;
    let expected = X.map(|x| 2.0 * x);
    assert_eq!(session.read(f.scaled)?, expected);
    assert_eq!(a.wait(&mut session)?.read(f.scaled)?, expected);
    assert!(message(session.read(f.hidden)).contains("`hidden`"));
    session.launch("b")?;
    assert!(matches!(session.read(f.scaled), Err(RuntimeError::NotKept { .. })));
    assert!(matches!(a.wait(&mut session)?.read(f.scaled), Err(RuntimeError::Superseded { .. })));
    Ok(())
}

/// Protects: a reset brings back every initial value in place, and a seed decides them.
#[test]
fn a_reset_brings_back_the_beginning() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open_with(5);
    let first = (session.read(f.both)?, session.read_scalar(f.count)?);
    session.write_input(f.x, &X)?;
    session.set(f.bias, 9.0)?;
    session.launch("a")?;
    session.launch("c")?;
    assert_ne!(session.read(f.w)?, first.0[..3]);
    session.reset()?;
    assert_eq!((session.read(f.both)?, session.read_scalar(f.count)?), first);
    assert_eq!(
        (session.read(f.x)?, session.read(f.y)?, session.read_scalar(f.bias)?),
        (vec![0.0; 6], vec![0.0; 6], 0.5)
    );
    assert_ne!(f.open_with(6).read(f.w)?, first.0[..3]);
    session.reset_to(6)?;
    assert_eq!(session.read(f.both)?, f.open_with(6).read(f.both)?);
    Ok(())
}

/// Protects: every host scalar changes what the next launch computes: none is frozen into a plan.
#[test]
fn every_host_scalar_reaches_the_next_launch() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    session.write_input(f.x, &X)?;
    for (scalar, step) in [(f.rate, "a"), (f.bias, "b")] {
        let mut seen = Vec::new();
        for value in [1.0, 2.0, 3.0, 1.0] {
            session.set(scalar, value)?;
            let ticket = session.launch(step)?;
            seen.push(ticket.wait(&mut session)?.read(f.y)?);
        }
        assert_eq!(seen[0], seen[3], "step {step}");
        assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2], "step {step}: {seen:?}");
    }
    Ok(())
}

/// Protects: the inbox travels when something in it has changed, and only then.
#[test]
fn the_inbox_travels_only_when_it_changed() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    session.launch("a")?;
    session.launch("a")?;
    session.set(f.rate, 2.0)?;
    session.launch("a")?;
    assert_eq!(session.report().inbox_copies, 1, "the same value is no change");
    session.set(f.rate, 4.0)?;
    session.launch("b")?;
    session.launch("a")?;
    let report = session.report();
    assert_eq!((report.inbox_copies, report.launches), (2, 5));
    assert_eq!(report.plans.iter().map(|plan| plan.step.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    Ok(())
}

/// Protects: each misuse is a typed error that names what is wrong and what to do.
#[test]
fn misuse_is_refused() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    let mut other = Builder::new("other");
    let foreign = other.host_scalar("rate", 1f32);
    let foreign_tensor = other.input::<f32>("x", [2, 3]);
    assert!(matches!(session.set(foreign, 1.0), Err(RuntimeError::ForeignHandle { .. })));
    assert!(matches!(session.write_input(foreign_tensor, &X), Err(RuntimeError::ForeignHandle { .. })));
    assert!(matches!(session.read(foreign_tensor), Err(RuntimeError::ForeignHandle { .. })));

    assert!(message(session.set(f.count, 1)).contains("device scalar"));
    assert!(message(session.write_input(f.x, &X[..5])).contains("takes 6 elements, 5 were given"));
    assert!(message(session.write_input(f.w, &X[..3])).contains("load"));
    assert!(message(session.load(f.x, &X)).contains("write_input"));
    assert!(message(session.load(f.y, &X)).contains("output"));

    assert!(message(session.launch("d")).contains("step `a`; step `b`; step `c`"));
    assert!(matches!(session.launch_variant("a", "fast"), Err(RuntimeError::NoPlan { .. })));
    let ticket = f.open().launch("a")?;
    assert!(matches!(ticket.wait(&mut session), Err(RuntimeError::ForeignTicket)));
    assert!(matches!(ticket.try_take(&mut session), Err(RuntimeError::ForeignTicket)));
    Ok(())
}

/// Protects: the same rules by name, for the command line.
#[test]
fn names_are_checked_like_handles() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    session.set_by_name("rate", ConstValue::F32(4.0))?;
    assert_eq!(session.read_scalar_by_name("rate")?, ConstValue::F32(4.0));
    assert!(message(session.set_by_name("rate", ConstValue::U32(4))).contains("holds f32, u32 was given"));
    assert!(message(session.set_by_name("count", ConstValue::U32(4))).contains("device scalar"));
    assert!(message(session.set_by_name("x", ConstValue::F32(4.0))).contains("no scalar `x`"));

    let bytes = bytemuck::cast_slice(&X);
    session.write_by_name("x", DType::F32, bytes)?;
    session.write_by_name("v", DType::F32, bytes)?;
    let data = session.read_by_name("v")?;
    assert_eq!((data.dtype, data.shape.dims(), data.bytes.as_slice()), (DType::F32, &[2, 3][..], bytes));
    assert_eq!(session.read_by_name("both")?.shape.dims(), [12]);
    assert!(message(session.write_by_name("x", DType::I32, bytes)).contains("holds f32"));
    assert!(message(session.write_by_name("x", DType::F32, &bytes[4..])).contains("takes 6 elements"));
    assert!(message(session.write_by_name("x", DType::F32, &bytes[..23])).contains("takes 6 elements"));
    assert!(message(session.write_by_name("y", DType::F32, bytes)).contains("output"));
    assert!(message(session.write_by_name("nothing", DType::F32, bytes)).contains("no buffer `nothing`"));
    assert!(message(session.read_by_name("rate")).contains("no buffer `rate`"));
    Ok(())
}

/// Protects: a session is over plans of one program, one for each step and variant.
#[test]
fn plans_of_a_session_belong_together() {
    let (f, g) = (fixture(), fixture());
    let open = |plans: Vec<StepPlan>| Session::open(Device::Host, plans);
    assert!(matches!(open(vec![]), Err(RuntimeError::NoPlans)));
    assert!(message(open(vec![f.plan("a"), f.plan("b"), f.plan("a")])).contains("two plans are for step `a`"));
    assert!(message(open(vec![f.plan("a"), g.plan("b")])).contains("another build of it"));
}

/// Protects: variants of a step are launched by name, each with its own phases.
#[test]
fn variants_are_launched_by_name() -> Result<(), RuntimeError> {
    let mut p = Builder::new("variants");
    let y = p.output::<f32>("y", [2]);
    p.step_with_variants("s", &["one", "two"], |s| {
        s.phase_in("p", &["one"], |f| _ = f.map_to("y1", y, 1.0f32));
        s.phase_in("p", &["two"], |f| _ = f.map_to("y2", y, 2.0f32));
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let (target, tuning) = (Target::default(), Tuning::default());
    let plans = ["one", "two"]
        .map(|variant| program.plan_variant("s", variant, &FusionPlan::phases(), &target, &tuning).expect("a plan"));
    let mut session = Session::open(Device::Host, plans)?;
    for (variant, expected) in [("two", 2.0), ("one", 1.0)] {
        let ticket = session.launch_variant("s", variant)?;
        assert_eq!(ticket.wait(&mut session)?.read(y)?, [expected; 2]);
    }
    assert!(message(session.launch("s")).contains("variant `one`"));
    Ok(())
}

/// Protects: a guarded phase runs only where its cell is not 0.
#[test]
fn guards_skip_phases() -> Result<(), RuntimeError> {
    let mut p = Builder::new("guards");
    let guard = p.host_scalar("guard", 0u32);
    let count = p.device_scalar("count", 0u32);
    p.step("s", |s| s.phase_if("p", guard, |f| f.set("tick", count, count + 1u32)));
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let plan = program.plan("s", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("a plan");
    let mut session = Session::open(Device::Host, [plan])?;
    for (value, expected) in [(0, 0), (1, 1), (5, 2), (0, 2)] {
        session.set(guard, value)?;
        session.launch("s")?;
        assert_eq!(session.read_scalar(count)?, expected);
    }
    Ok(())
}

/// Protects: asking for a device that is not there is an error with the reason, not a panic, and `host` always works.
#[test]
fn a_missing_device_is_an_error() {
    let f = fixture();
    // No machine has so many devices, so the test holds where there is one, too.
    let error = Session::open(Device::Cuda { ordinal: 999 }, [f.plan("a")]).expect_err("there is no such device");
    assert!(error.is_device_failure(), "{error}");
    assert!(error.to_string().contains("cuda:999"), "{error}");
}

/// Protects: the padding of a group of temps is zero when a kernel reads the flat array, whatever scratch holds: an optimiser
/// would carry it into the weights' padding, and a norm over the group would count it.
#[test]
fn padding_of_temps_stays_zero() -> Result<(), RuntimeError> {
    use stepgraph::handle::Const;
    use stepgraph::ir::Role;
    use stepgraph::kernel::library::optim::adam;
    let mut p = Builder::new("padding");
    let (lr, t) = (p.host_scalar("lr", 0.1f32), p.device_scalar("t", 1u32));
    let x = p.input::<f32>("x", [3]);
    let w = p.param::<f32>("w", [3], Init::Constant(1.0));
    let theta = p.group("theta", &[w]);
    let (m, v) = (p.group_like("m", theta, Role::State), p.group_like("v", theta, Role::State));
    let grad = p.group_like("grad", theta, Role::Temp);
    p.step("s", |s| {
        s.phase("p", |f| {
            let part = f.tensor::<f32>("grad.w");
            f.map_to("gradient", part, x * 2.0f32);
            let (beta1, beta2, eps) = (Const(0.9), Const(0.999), Const(1e-8));
            f.kernel("adam", adam::Args { param: theta, grad, m, v, step: t, lr, beta1, beta2, eps });
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let plan = program.plan("s", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("a plan");
    let mut session = Session::builder().poison_scratch().open(Device::Host, [plan])?;
    session.write_input(x, &[1.0, 2.0, 3.0])?;
    session.launch("s")?;
    let found = [theta, m, v].map(|group| session.read(group).map(|flat| flat[3].to_bits()));
    for padding in found {
        assert_eq!(padding?, 0);
    }
    assert_ne!(session.read(w)?, [1.0; 3], "the weights themselves have moved");
    Ok(())
}

/// Protects: a box that leaves its buffer is refused; it would read or write the memory of another one.
#[test]
fn boxes_outside_are_refused() -> Result<(), RuntimeError> {
    let f = fixture();
    let mut session = f.open();
    let w = session.read(f.w)?;
    for outside in
        [f.v.rows(1..3), f.v.cols(2..4), f.v.pick(0, 4_000_000_000), f.v.rows(0..1).rows(1..2), f.v.slice(2, 0..1)]
    {
        let elements = outside.shape().map_or(0, |shape| shape.elements()) as usize;
        let values = vec![9.0; elements.min(1000)];
        assert!(matches!(session.load(outside, &values), Err(RuntimeError::OutOfBounds { .. })));
        assert!(message(session.read(outside)).contains("`v`, whose shape is [2, 3]"));
    }
    assert!(matches!(session.write_input(f.x.rows(1..3), &X), Err(RuntimeError::OutOfBounds { .. })));
    let ticket = session.launch("a")?;
    assert!(matches!(ticket.wait(&mut session)?.read(f.y.rows(2..3)), Err(RuntimeError::OutOfBounds { .. })));
    assert_eq!(session.read(f.w)?, w);
    Ok(())
}

/// Protects: a handle that was made by hand with another type does not reinterpret memory.
#[test]
fn handles_have_the_type_of_their_memory() {
    let f = fixture();
    let mut session = f.open();
    let forged = Tensor::<u32>::new(f.w.tag, f.w.place);
    assert!(matches!(session.read(forged), Err(RuntimeError::WrongType { .. })));
}

/// Protects: a launch that fails half-way has overwritten what it reached, and earlier tickets say so in place of reading it.
#[test]
fn a_ticket_never_reads_what_a_failed_launch_wrote() -> Result<(), RuntimeError> {
    let mut p = Builder::new("failing");
    let stride = p.host_scalar("stride", 1u32);
    let count = p.device_scalar("count", 0u32);
    let places = p.state::<f32>("places", [4], Init::Zeros);
    p.step("store", |s| {
        s.phase("main", |f| {
            f.set("tick", count, count + 1u32);
            let place = Val::<u32>::index(0) * stride;
            f.map_node("store").over([2]).scatter(places, [place.into()], ScatterRule::Unique, 1.0f32).done();
            f.after("store", &["tick"]);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let plan = program.plan("store", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("it plans");
    let mut session = Session::open(Device::Host, [plan])?;
    let ticket = session.launch("store")?;
    assert_eq!(ticket.wait(&mut session)?.read_scalar(count)?, 1);
    session.set(stride, 0)?;
    assert!(message(session.launch("store")).contains("`unique`"));
    assert!(message(ticket.wait(&mut session)?.read_scalar(count)).contains("a later launch of step `store`"));
    assert_eq!(session.read_scalar(count)?, 2, "what is there now can be read");
    session.set(stride, 1)?;
    let ticket = session.launch("store")?;
    assert_eq!(ticket.wait(&mut session)?.read_scalar(count)?, 3);
    Ok(())
}

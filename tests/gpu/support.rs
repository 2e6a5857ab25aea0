//! Opening devices, running a program on both, and comparing everything that it leaves behind.

use stepgraph::cuda::probe;
use stepgraph::ir::{ConstValue, DType, Element, Program, Role};
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning};
use stepgraph::runtime::{Device, Session};
use stepgraph::valid::ValidProgram;

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

pub(crate) fn is_dry_run() -> bool {
    is_set("STEPGRAPH_GPU_DRY_RUN")
}

/// The device under test, or `None`, with a printed reason, where there is none.
#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
pub(crate) fn device() -> Option<Device> {
    if is_dry_run() {
        return Some(Device::Host);
    }
    match probe::devices() {
        Ok(devices) if !devices.is_empty() => Some(Device::Cuda { ordinal: 0 }),
        found => {
            let reason = found.map_or_else(|error| error.to_string(), |_| "the driver knows no device".to_owned());
            assert!(!is_set("STEPGRAPH_REQUIRE_GPU"), "a GPU is required here: {reason}");
            eprintln!("skipped: {reason}");
            None
        }
    }
}

/// The device, for tests that look at the driver itself and so mean nothing on the host.
#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
pub(crate) fn real_device() -> Option<Device> {
    if is_dry_run() {
        eprintln!("skipped: a dry run has no driver");
        return None;
    }
    device()
}

/// The device class to plan for: the one at hand, or the default.
pub(crate) fn target() -> Target {
    let found = probe::devices().ok().and_then(|devices| devices.into_iter().next());
    found.map_or_else(Target::default, |device| Target {
        sm: device.sm,
        multiprocessors: device.multiprocessors,
        shared_per_block: device.shared_per_block,
        driver: device.driver,
    })
}

/// A plan for a step without variants.
pub(crate) fn plan(program: &ValidProgram, step: &str, fusion: &FusionPlan) -> StepPlan {
    program.plan(step, fusion, &target(), &Tuning::default()).expect("it plans")
}

/// Every named plan.
pub(crate) fn named_plans() -> Vec<FusionPlan> {
    FusionPlan::NAMES.iter().filter_map(|name| FusionPlan::named(name)).collect()
}

/// Numbers that look random and are the same everywhere (a 64-bit linear congruential generator, Knuth's constants).
#[derive(Clone, Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).expect("31 bits")
    }

    /// Uniform in [-1, 1), on a grid of 2⁻²³.
    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 7) as f32 / 8_388_608.0 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}

/// Fills every input, parameter and state of a session with numbers that depend on names alone. Integers stay below 64, so
/// that they can be indices of small tables.
pub(crate) fn fill(session: &mut Session, program: &Program, seed: u64) {
    for buffer in program.buffers.values().filter(|buffer| buffer.role != Role::Temp && buffer.role != Role::Output) {
        let salt = buffer.name.bytes().fold(seed, |salt, byte| salt.wrapping_mul(31).wrapping_add(byte.into()));
        let mut numbers = Numbers(salt);
        let count = usize::try_from(buffer.shape.elements()).expect("small");
        let bytes: Vec<u8> = (0..count)
            .flat_map(|_| match buffer.dtype {
                DType::F32 => numbers.unit().to_le_bytes().to_vec(),
                DType::Bf16 => half::bf16::from_f32(numbers.unit()).to_le_bytes().to_vec(),
                DType::I32 | DType::U32 => (numbers.next() % 64).to_le_bytes().to_vec(),
            })
            .collect();
        session.write_by_name(&buffer.name, buffer.dtype, &bytes).expect("it takes values");
    }
}

/// What is left in memory by name: every buffer but temps, and every scalar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Memory(pub(crate) Vec<(String, Contents)>);

/// The elements of a buffer, or the one of a scalar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Contents {
    /// Floats; `bf16` widened.
    Floats(Vec<f32>),
    /// 32-bit integers.
    Words(Vec<u32>),
}

impl Memory {
    pub(crate) fn of(session: &mut Session, program: &Program) -> Self {
        let mut found = Vec::new();
        for buffer in program.buffers.values().filter(|buffer| buffer.role != Role::Temp) {
            let data = session.read_by_name(&buffer.name).expect("it can be read");
            let contents = match data.dtype {
                DType::F32 => Contents::Floats(elements(&data.bytes)),
                DType::Bf16 => {
                    Contents::Floats(elements::<half::bf16>(&data.bytes).into_iter().map(half::bf16::to_f32).collect())
                }
                DType::I32 | DType::U32 => Contents::Words(elements(&data.bytes)),
            };
            found.push((buffer.name.clone(), contents));
        }
        for scalar in program.scalars.values() {
            let contents = match session.read_scalar_by_name(&scalar.name).expect("it can be read") {
                ConstValue::F32(x) => Contents::Floats(vec![x]),
                other => Contents::Words(vec![other.bits()]),
            };
            found.push((scalar.name.clone(), contents));
        }
        Self(found)
    }

    pub(crate) fn floats(&self, name: &str) -> &[f32] {
        match self.0.iter().find(|(own, _)| own == name) {
            Some((_, Contents::Floats(values))) => values,
            found => panic!("`{name}` has no floats: {found:?}"),
        }
    }

    pub(crate) fn words(&self, name: &str) -> &[u32] {
        match self.0.iter().find(|(own, _)| own == name) {
            Some((_, Contents::Words(values))) => values,
            found => panic!("`{name}` has no words: {found:?}"),
        }
    }

    /// Panics at the first element where `agree` does not hold. Integers must be equal.
    #[track_caller]
    pub(crate) fn assert_agrees(&self, other: &Self, context: &str, agree: impl Fn(f32, f32) -> bool) {
        assert_eq!(self.0.len(), other.0.len(), "{context}");
        for ((name, mine), (_, theirs)) in self.0.iter().zip(&other.0) {
            match (mine, theirs) {
                (Contents::Floats(mine), Contents::Floats(theirs)) => {
                    for (at, (&a, &b)) in mine.iter().zip(theirs).enumerate() {
                        assert!(same(a, b) || agree(a, b), "{context}: `{name}`[{at}] is {a:e} and {b:e}");
                    }
                }
                _ => assert_eq!(mine, theirs, "{context}: `{name}`"),
            }
        }
    }

    /// Panics at the first element that is not the same bit for bit; any NaN is the same as any other, since devices make
    /// them with other payloads.
    #[track_caller]
    pub(crate) fn assert_same(&self, other: &Self, context: &str) {
        self.assert_agrees(other, context, |_, _| false);
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// Opens a session of one step with this plan, fills its memory and launches it.
pub(crate) fn run(device: Device, program: &ValidProgram, step: &str, fusion: &FusionPlan, launches: u32) -> Memory {
    let mut session = Session::open(device, [plan(program, step, fusion)]).expect("it opens");
    fill(&mut session, program.program(), 1);
    for _ in 0..launches {
        session.launch(step).expect("it launches");
    }
    session.wait().expect("it runs");
    Memory::of(&mut session, program.program())
}

/// The distance of two floats in units in the last place; `u32::MAX` where one is NaN and the other is not.
pub(crate) fn ulps(a: f32, b: f32) -> u32 {
    if a.is_nan() || b.is_nan() {
        return if a.is_nan() && b.is_nan() { 0 } else { u32::MAX };
    }
    let ordered = |x: f32| {
        let bits = x.to_bits().cast_signed();
        i64::from(if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits })
    };
    u32::try_from((ordered(a) - ordered(b)).unsigned_abs()).unwrap_or(u32::MAX)
}

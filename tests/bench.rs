//! The comparison of plans: what it checks before it times, and what it reports.

use std::time::Duration;

use stepgraph::Builder;
use stepgraph::bench::{Agreement, BenchError, BenchOptions, Contender, bench};
use stepgraph::ir::Init;
use stepgraph::plan::{FusionPlan, Repeat, StepPlan, Target, Tuning};
use stepgraph::runtime::Device;

const OPTIONS: BenchOptions = BenchOptions { checked: 3, warm_up: 1, rounds: 4, launches: 2, seed: 5 };

/// A step that multiplies, adds and sums; `factor` is a part of the program, so that another factor is another result.
fn plan(fusion: &FusionPlan, factor: f32) -> StepPlan {
    let mut p = Builder::new("small");
    let w = p.param::<f32>("w", [16, 8], Init::Normal { std: 1.0 });
    let x = p.state::<f32>("x", [4, 8], Init::Normal { std: 1.0 });
    let y = p.output::<f32>("y", [4]);
    p.step("run", |s| {
        let h = s.phase("forward", |f| f.gemm("h", x.nt(w)).then(|acc| acc.tanh() * factor));
        s.phase("sum", |f| f.sum("total", &[1], h).to(y));
    });
    let program = p.build().expect("valid");
    program.plan("run", fusion, &Target::default(), &Tuning::default()).expect("plans")
}

fn contender(name: &str, plan: StepPlan) -> Contender {
    Contender { name: name.into(), plan, planned_in: Duration::ZERO }
}

/// Protects: no plan is called faster or slower after a handful of samples, in which chance decides.
#[test]
fn few_samples_claim_nothing() {
    let contenders =
        [contender("debug", plan(&FusionPlan::debug(), 1.0)), contender("mega", plan(&FusionPlan::mega(), 1.0))];
    for (rounds, tells) in [(1, false), (4, false), (5, true)] {
        let options = BenchOptions { rounds, ..OPTIONS };
        let report =
            bench(Device::Host, &contenders, &options, |_| Ok::<_, BenchError>(()), |_| ()).expect("the host runs");
        assert_eq!(report.to_string().contains("too few samples"), !tells, "{report}");
    }
}

/// Protects: grouping-only plans are found bit-equal, every one is timed, and the report carries counts and a noise floor.
#[test]
fn equal_plans_are_compared_and_timed() {
    let plans = [FusionPlan::debug(), FusionPlan::phases(), FusionPlan::mega()];
    let contenders = plans.map(|fusion| contender(&fusion.name, plan(&fusion, 1.0)));
    let mut opened = 0;
    let count = |_: &mut _| {
        opened += 1;
        Ok::<(), BenchError>(())
    };
    let report = bench(Device::Host, &contenders, &OPTIONS, count, |_| ()).expect("compares");
    assert_eq!(opened, 4, "each contender, and the first one again");
    assert_eq!(report.contenders.len(), 3);
    for found in &report.contenders {
        assert_eq!(found.agreement, Agreement::BitEqual, "{}", found.name);
        let timing = found.timing.expect("timed");
        assert!(timing.step_us.low > 0.0 && timing.step_us.low <= timing.step_us.median, "{timing:?}");
        assert!(found.cost.arena_bytes >= 16 * 8 * 4, "{:?}", found.cost);
    }
    assert!(report.noise.expect("timed twice") > 0.0);
    let text = report.to_string();
    assert!(text.contains("noise floor") && text.contains("bit-equal"), "{text}");
    assert!(report.json().expect("plain data").contains("\"step_us\""));
}

/// Protects: a contender whose results differ is named with the buffer, and is not timed.
#[test]
fn a_contender_that_differs_is_not_timed() {
    let fusion = FusionPlan::mega();
    let contenders = [contender("right", plan(&fusion, 1.0)), contender("wrong", plan(&fusion, 1.5))];
    let report = bench::<BenchError>(Device::Host, &contenders, &OPTIONS, |_| Ok(()), |_| ()).expect("compares");
    let Agreement::Differs(mismatch) = &report.contenders[1].agreement else { panic!("{report}") };
    assert_eq!(mismatch.name, "y");
    assert!((mismatch.relative - 0.5).abs() < 1e-6, "{mismatch:?}");
    assert!(report.contenders[1].timing.is_none());
    assert!(report.to_string().contains("not timed: `y` differs"), "{report}");
}

/// A step that counts and adds on the device, so that every step changes what the next one reads.
fn counting(repeat: Repeat) -> StepPlan {
    let mut p = Builder::new("counting");
    let t = p.device_scalar("t", 0u32);
    let sum = p.state::<f32>("sum", [64], Init::Zeros);
    p.step("run", |s| {
        s.phase("only", |f| {
            f.set("tick", t, t + 1u32);
            f.map_to("add", sum, sum * 0.5f32 + t.val().to_f32());
        });
    });
    let program = p.build().expect("valid");
    let fusion = FusionPlan::mega().repeated(repeat);
    program.plan("run", &fusion, &Target::default(), &Tuning::default()).expect("plans")
}

/// Protects: plans of different numbers of steps per launch are compared after the same number of steps, and timed per step.
#[test]
fn repeated_plans_are_compared_step_by_step() {
    let repeats = [Repeat::Once, Repeat::Unroll(4), Repeat::Loop(6)];
    let contenders = repeats.map(|repeat| contender(&repeat.to_string(), counting(repeat)));
    let report = bench::<BenchError>(Device::Host, &contenders, &OPTIONS, |_| Ok(()), |_| ()).expect("compares");
    assert_eq!(report.checked, 12);
    for (found, steps) in report.contenders.iter().zip([1, 4, 6]) {
        assert_eq!(found.agreement, Agreement::BitEqual, "{}", found.name);
        assert_eq!(found.cost.steps, steps);
        assert!(found.timing.is_some_and(|timing| timing.step_us.low > 0.0), "{}", found.name);
    }
    assert!(report.to_string().contains(" / 4"), "{report}");
    let never = [Repeat::Loop(1_048_575), Repeat::Loop(1_048_576)].map(|repeat| contender("x", counting(repeat)));
    let refused = bench(Device::Host, &never, &OPTIONS, |_| Ok(()), |_| ());
    assert!(matches!(refused, Err(BenchError::NoCommonSteps { .. })));
}

/// Protects: nothing to compare, and samples of nothing, are errors.
#[test]
fn empty_comparisons_are_errors() {
    let nothing = bench(Device::Host, &[], &OPTIONS, |_| Ok(()), |_| ());
    assert!(matches!(nothing, Err(BenchError::NoContender)));
    let one = [contender("mega", plan(&FusionPlan::mega(), 1.0))];
    let none = bench(Device::Host, &one, &BenchOptions { rounds: 0, ..OPTIONS }, |_| Ok(()), |_| ());
    assert!(matches!(none, Err(BenchError::Zero { what: "rounds" })));
}

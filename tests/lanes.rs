//! Lanes on the host: what they share, what they refuse, and that results are the same as on one lane.

#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "gpu/twins.rs"]
mod twins;

use stepgraph::Builder;
use stepgraph::builder::Bound;
use stepgraph::handle::Tensor;
use stepgraph::ir::Init;
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning};
use stepgraph::runtime::{Device, Link, Publish, RuntimeError, Session, SessionBuilder};
use stepgraph::valid::ValidProgram;

use twins::{LINK, twins};

fn plan(program: &ValidProgram, step: &str) -> StepPlan {
    program.plan(step, &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("it plans")
}

/// Protects: a look sees the last publication before it and nothing younger, under every plan.
#[test]
fn a_look_sees_the_last_publication() {
    for name in FusionPlan::NAMES {
        let twins = twins();
        let mut session = twins.open(Device::Host, &FusionPlan::named(name).expect("a name")).expect("it opens");
        let mut seen = Vec::new();
        for round in 0..4 {
            session.launch("train").expect("it launches");
            if round != 1 {
                assert_eq!(session.try_publish(LINK).expect("it answers"), Publish::Done);
            }
            session.launch("train").expect("it launches");
            let look = session.launch("look").expect("it launches");
            seen.push(twins.publication(&mut session, &look));
        }
        assert_eq!(seen, [1.0, 1.0, 5.0, 7.0], "{name}");
        let weights = session.read(twins.weights).expect("a group");
        assert_eq!(weights[0].to_bits(), 8f32.to_bits(), "{name}");
    }
}

/// Protects: each lane gets a changed scalar before its next launch, and none gets it twice.
#[test]
fn each_lane_has_its_own_inbox() {
    let twins = twins();
    let mut session = twins.open(Device::Host, &FusionPlan::mega()).expect("it opens");
    for step in ["train", "look", "train", "look"] {
        session.launch(step).expect("it launches");
    }
    assert_eq!(session.report().inbox_copies, 2, "the first launch of each lane");
    session.set(twins.scale, 2.0).expect("a host scalar");
    for step in ["look", "train", "look"] {
        session.launch(step).expect("it launches");
    }
    let report = session.report();
    assert_eq!(report.inbox_copies, 4, "one more for each lane");
    let lanes: Vec<&str> = report.plans.iter().map(|plan| plan.lane.as_str()).collect();
    assert_eq!(lanes, ["main", "look"]);
    assert_eq!(report.lanes.len(), 1);
    assert!(report.to_string().contains("lane look, scratch"), "{report}");
}

/// Steps that share memory in every way that lanes can.
struct Shared {
    program: ValidProgram,
    w: Tensor<f32>,
    copy: Tensor<f32>,
    other: Tensor<f32>,
    small: Tensor<f32>,
    unread: Tensor<f32>,
    written: Tensor<f32>,
    input: Tensor<f32>,
}

fn shared() -> Shared {
    let mut p = Builder::new("shared");
    let lr = p.host_scalar("lr", 0.5f32);
    let count = p.device_scalar("count", 0u32);
    let input = p.input::<f32>("input", [4]);
    let w = p.param::<f32>("w", [4], Init::Zeros);
    let [copy, other, unread, written] =
        ["copy", "other", "unread", "written"].map(|name| p.state::<f32>(name, [4], Init::Zeros));
    let small = p.state::<f32>("small", [2], Init::Zeros);
    let table = p.param::<f32>("table", [4], Init::Uniform { bound: 1.0 });
    let [hidden, shown] = ["hidden", "shown"].map(|name| p.output::<f32>(name, [4]));
    let mut step = |name: &str, target: Tensor<f32>, value: stepgraph::builder::Val<f32>| {
        p.step(name, |s| {
            s.phase("main", |f| {
                f.map_to("node", target, value);
            });
        });
    };
    step("train", w, w + table * lr + input);
    step("reads_w", hidden, w + table);
    step("reads_copy", written, copy + table * lr + input + other + small.pick(0, 1));
    step("reads_copy_too", shown, copy + table);
    step("reads_count", hidden, table * count.val().to_f32());
    p.step("counts", |s| s.phase("main", |f| f.set("tick", count, count + 1u32)));
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    Shared { program, w, copy, other, small, unread, written, input }
}

impl Shared {
    /// A session with `main` on the main lane and the others on a lane each.
    fn open(
        &self,
        main: &str,
        others: &[&str],
        links: impl IntoIterator<Item = Link>,
    ) -> Result<Session, RuntimeError> {
        let lane = |builder: SessionBuilder, step: &&str| builder.lane(step, [plan(&self.program, step)]);
        let builder = others.iter().fold(Session::builder(), lane);
        let builder = links.into_iter().fold(builder, SessionBuilder::link);
        builder.open(Device::Host, [plan(&self.program, main)])
    }

    #[track_caller]
    fn refused(&self, main: &str, others: &[&str], links: impl IntoIterator<Item = Link>) -> String {
        self.open(main, others, links).expect_err("it breaks a rule").to_string()
    }
}

/// Protects: what one lane writes no other touches, buffers and scalars alike; what nobody writes, inputs and host scalars may be
/// shared; and a link is the way out that the message names.
#[test]
fn lanes_share_nothing_that_one_of_them_writes() {
    let shared = shared();
    let error = shared.refused("train", &["reads_w"], []);
    for part in ["buffer `w`", "step `train` on lane `main`", "step `reads_w` on lane `reads_w`", "publish"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = shared.refused("reads_count", &["counts"], []);
    for part in ["scalar `count`", "step `counts` on lane `counts`", "step `reads_count` on lane `main`"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = shared.refused("reads_w", &["reads_count"], []);
    assert!(error.contains("`hidden`"), "two lanes write it: {error}");
    shared
        .open("train", &["reads_copy", "reads_copy_too"], [])
        .expect("`table`, `copy`, `input` and `lr` are only read");
}

/// Protects: a link joins what one lane writes with what one other lane only reads, whole and alike; each other shape of it is
/// refused with its names.
#[test]
fn links_that_cannot_be_are_refused() {
    let shared = shared();
    let Shared { w, copy, other, small, unread, written, input, .. } = shared;
    let link = || Link::new("weights");
    let cases: [(Link, &[&str]); 11] = [
        (link(), &["`weights`", "at least one"]),
        (link().copy(w.slice(0, 0..2), small), &["`w`", "whole"]),
        (link().copy(w, small), &["`w`", "[4]", "`small`", "[2]"]),
        (link().copy(input, copy), &["`input`", "input"]),
        (link().copy(w, unread), &["`unread`", "no step"]),
        (link().copy(w, written), &["`written`", "step `reads_copy` writes it"]),
        (link().copy(w, w), &["`w`", "step `train` writes it"]),
        (link().copy(written, other), &["`other`", "lane `reads_copy`"]),
        (link().copy_by_name("w", "missing"), &["`missing`"]),
        (link().copy_by_name("lr", "copy"), &["`lr`"]),
        (link().copy(w, other).copy(written, copy), &["`copy`", "lane `reads_copy`"]),
    ];
    for (link, parts) in cases {
        let error = shared.refused("train", &["reads_copy"], [link]);
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    }
    let error = shared.refused("train", &["reads_copy", "reads_copy_too"], [link().copy(w, copy)]);
    assert!(error.contains("`copy`") && error.contains("two lanes"), "{error}");
    let error = shared.refused("train", &["reads_copy"], [link().copy(w, copy), link().copy(w, other)]);
    assert!(error.contains("two links are called `weights`"), "{error}");
    let foreign = self::shared().w;
    let error = shared.refused("train", &["reads_copy"], [link().copy(foreign, copy)]);
    assert!(error.contains("another program"), "{error}");
    let twice = Session::builder().lane("main", [plan(&shared.program, "reads_copy")]);
    let error = twice.open(Device::Host, [plan(&shared.program, "train")]).expect_err("the name is taken").to_string();
    assert!(error.contains("two lanes are called `main`"), "{error}");
    let unnamed = Session::builder().lane("", [plan(&shared.program, "reads_copy")]);
    let error = unnamed.open(Device::Host, [plan(&shared.program, "train")]).expect_err("no name").to_string();
    assert!(error.contains("empty name"), "{error}");
    let mut session = shared.open("train", &["reads_copy"], [link().copy(w, copy).copy(w, other)]).expect("it opens");
    session.publish("weights").expect("it publishes");
    let error = session.publish("bias").expect_err("there is none").to_string();
    assert!(error.contains("`bias`") && error.contains("weights"), "{error}");
    let error = session.stop_handle_of("side").expect_err("there is none").to_string();
    assert!(error.contains("`side`") && error.contains("main, reads_copy"), "{error}");
}

/// Protects: a ticket's temps live in its lane's scratch, which another lane's launches leave alone.
#[test]
fn a_ticket_keeps_its_temps_while_other_lanes_run() {
    let mut p = Builder::new("temps");
    let rate = p.host_scalar("rate", 3.0f32);
    let weights = p.param::<f32>("weights", [2], Init::Constant(1.0));
    let mut taps = Vec::new();
    for (step, factor) in [("first", 2.0f32), ("second", 5.0)] {
        let out = p.output::<f32>(&format!("{step}.out"), [2]);
        let temp = p.step(step, |s| {
            s.phase("main", |f| {
                let temp = f.map::<f32>(&format!("{step}.temp"), weights * rate * factor);
                f.map_to("out", out, temp + 1.0f32);
                temp
            })
        });
        p.tap(temp);
        taps.push(temp);
    }
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let open = |lane: bool| {
        let (first, second) = (plan(&program, "first"), plan(&program, "second"));
        if lane {
            Session::builder().lane("side", [second]).open(Device::Host, [first])
        } else {
            Session::open(Device::Host, [first, second])
        }
    };
    for (lane, kept) in [(true, true), (false, false)] {
        let mut session = open(lane).expect("it opens");
        let ticket = session.launch("first").expect("it launches");
        session.launch("second").expect("it launches");
        let read = ticket.wait(&mut session).expect("it ran").read(taps[0]);
        match read {
            Ok(found) => assert!(kept && found == [6.0, 6.0], "{found:?}"),
            Err(error) => assert!(!kept, "{error}"),
        }
    }
}

/// Protects: stopping one lane's loops leaves those of others running, and stopping all stops all.
#[test]
fn lanes_are_stopped_one_by_one_or_together() {
    let mut p = Builder::new("loops");
    let counts = ["main_count", "side_count"].map(|name| p.device_scalar(name, 0u32));
    for (step, count) in ["main_loop", "side_loop"].into_iter().zip(counts) {
        p.step(step, |s| {
            s.phase("main", |f| f.repeat("loop", Bound::Const(5), None, None, |b| b.set("tick", count, count + 1u32)));
        });
    }
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let mut session = Session::builder()
        .lane("side", [plan(&program, "side_loop")])
        .open(Device::Host, [plan(&program, "main_loop")])
        .expect("it opens");
    let run = |session: &mut Session| {
        for step in ["main_loop", "side_loop"] {
            session.launch(step).expect("it launches");
        }
        counts.map(|count| session.read_scalar(count).expect("a scalar"))
    };
    let side = session.stop_handle_of("side").expect("a lane");
    side.stop();
    assert_eq!(run(&mut session), [5, 0]);
    side.clear();
    let all = session.stop_handle();
    all.stop();
    assert_eq!(run(&mut session), [5, 0]);
    all.clear();
    assert_eq!(run(&mut session), [10, 5]);
}

/// Protects: a link may take over what another brought, in whatever order both are declared: what a link writes belongs to the lane
/// that reads it, and is copied on from there.
#[test]
fn links_form_chains_in_any_order() {
    let mut p = Builder::new("chain");
    let w = p.param::<f32>("w", [4], Init::Constant(1.0));
    let [there, back] = ["there", "back"].map(|name| p.state::<f32>(name, [4], Init::Zeros));
    let [passed, returned] = ["passed", "returned"].map(|name| p.output::<f32>(name, [4]));
    p.step("train", |s| {
        s.phase("main", |f| {
            f.map_to("w", w, w + 1.0f32);
            f.map_to("returned", returned, back * 1.0f32);
        });
    });
    p.step("pass", |s| {
        s.phase("main", |f| {
            f.map_to("passed", passed, there * 1.0f32);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let links = || [Link::new("forth").copy(w, there), Link::new("back").copy(there, back)];
    let open = |links: Vec<Link>| {
        let builder = Session::builder().lane("side", [plan(&program, "pass")]);
        links.into_iter().fold(builder, SessionBuilder::link).open(Device::Host, [plan(&program, "train")])
    };
    for links in [links().to_vec(), links().into_iter().rev().collect()] {
        let mut session = open(links).expect("it opens");
        for (link, expected) in [("forth", 0.0), ("back", 2.0)] {
            session.launch("train").expect("it launches");
            session.publish(link).expect("it publishes");
            assert_eq!(session.read(back).expect("a state"), [expected; 4]);
        }
    }
    let itself = open(vec![Link::new("itself").copy(there, there)]).expect_err("it joins nothing").to_string();
    assert!(itself.contains("source and target are both of lane `side`"), "{itself}");
}

/// Protects: members of a group that no step writes, such as frozen weights, do not count as another lane's.
#[test]
fn groups_with_frozen_members_are_published() {
    let mut p = Builder::new("frozen");
    let learned = p.param::<f32>("learned", [5], Init::Constant(2.0));
    let frozen = p.param::<f32>("frozen", [7], Init::Constant(3.0));
    let weights = p.group("weights", &[frozen, learned]);
    let seen = p.group_like("seen", weights, stepgraph::ir::Role::State);
    let seen_frozen = p.tensor::<f32>("seen.frozen");
    let shown = p.output::<f32>("shown", [7]);
    let mut step = |name: &str, target: Tensor<f32>, value: stepgraph::builder::Val<f32>| {
        p.step(name, |s| {
            s.phase("main", |f| {
                f.map_to("node", target, value);
            });
        });
    };
    step("train", learned, learned + 1.0f32);
    step("look", shown, seen_frozen * 2.0f32);
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    let mut session = Session::builder()
        .lane("trainer", [plan(&program, "train")])
        .link(Link::new("weights").copy(weights, seen))
        .open(Device::Host, [plan(&program, "look")])
        .expect("it opens");
    session.launch("train").expect("it launches");
    session.publish("weights").expect("it publishes");
    let look = session.launch("look").expect("it launches");
    assert_eq!(look.wait(&mut session).expect("it ran").read(shown).expect("an output"), [6.0; 7]);
    let published = session.read(seen).expect("a group");
    assert_eq!(published, session.read(weights).expect("a group"));
    assert_eq!(session.read(learned).expect("a parameter"), [3.0; 5]);
}

/// Protects: a session whose plans are all on lanes of their own runs as any other, and one without any plan is refused.
#[test]
fn the_main_lane_may_be_empty() {
    let shared = shared();
    let mut session = Session::builder()
        .lane("side", [plan(&shared.program, "train")])
        .lane("idle", [])
        .open(Device::Host, [])
        .expect("it opens");
    session.load(shared.w, &[1.0; 4]).expect("a parameter");
    session.launch("train").expect("it launches").wait(&mut session).expect("it ran");
    assert_eq!(session.read(shared.w).expect("a parameter").len(), 4);
    assert!(session.report().to_string().contains("persistent"), "{}", session.report());
    let error = Session::builder().lane("idle", []).open(Device::Host, []).expect_err("nothing to run").to_string();
    assert!(error.contains("at least one plan"), "{error}");
}

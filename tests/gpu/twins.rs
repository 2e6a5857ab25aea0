//! Two steps for two lanes, one that trains and one that looks at a published copy of the weights: what tests of lanes run.

use stepgraph::Builder;
use stepgraph::builder::Bound;
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{Init, Role};
use stepgraph::plan::{FusionPlan, Target, Tuning};
use stepgraph::runtime::{Device, Link, RuntimeError, Session, Ticket};
use stepgraph::valid::ValidProgram;

/// The link from `weights` to `seen`.
pub(crate) const LINK: &str = "weights";

/// The program and its handles.
pub(crate) struct Twins {
    pub(crate) program: ValidProgram,
    pub(crate) seen: Tensor<f32>,
    pub(crate) weights: Tensor<f32>,
    /// What `train` made of the weights that it found.
    pub(crate) loss: Scalar<f32>,
    /// Launches of `train`.
    pub(crate) steps: Scalar<u32>,
    /// How often `look` multiplies.
    pub(crate) turns: Scalar<u32>,
    /// A factor of `train`'s loss.
    pub(crate) scale: Scalar<f32>,
    /// `look`'s product with the copy.
    pub(crate) product: Tensor<f32>,
    /// The extremes of the copy's two members, as `look` found them: least and greatest of each.
    pub(crate) extremes: [Scalar<f32>; 4],
}

/// `train` sets every weight to its count of launches; `look` multiplies with its copy `turns` times, then finds its extremes.
pub(crate) fn twins() -> Twins {
    let mut p = Builder::new("twins");
    let turns = p.host_scalar("turns", 1u32);
    let scale = p.host_scalar("scale", 1.0f32);
    let steps = p.device_scalar("steps", 0u32);
    let loss = p.device_scalar("loss", 0.0f32);
    let extremes = ["least_w", "greatest_w", "least_b", "greatest_b"].map(|name| p.device_scalar(name, -1.0f32));
    let x = p.param::<f32>("x", [32, 48], Init::Uniform { bound: 1.0 });
    let w = p.param::<f32>("w", [40, 48], Init::Zeros);
    let b = p.param::<f32>("b", [7], Init::Zeros);
    let unread = p.param::<f32>("unread", [3], Init::Zeros);
    let weights = p.group("weights", &[w, b, unread]);
    let seen = p.group_like("seen", weights, Role::State);
    let [seen_w, seen_b] = ["w", "b"].map(|name| p.tensor::<f32>(&format!("seen.{name}")));
    let product = p.output::<f32>("product", [32, 40]);
    p.step("train", |s| {
        s.phase("main", |f| {
            f.set("tick", steps, steps + 1u32);
            let h = f.gemm("h", x.nt(w)).done();
            f.sum("loss", &[0, 1], h * scale).to_scalar(loss);
            f.map_to("w", w, w * 0.0f32 + steps.val().to_f32());
            f.map_to("b", b, b * 0.0f32 + steps.val().to_f32());
        });
    });
    p.step("look", |s| {
        s.phase("main", |f| {
            f.repeat("turns", Bound::Scalar(turns), None, None, |f| {
                f.gemm("product", x.nt(seen_w)).to(product);
            });
            let [least_w, greatest_w, least_b, greatest_b] = extremes;
            let lowest = f.largest("lowest_w", &[0, 1], -seen_w.val()).done();
            f.set("least_w", least_w, -lowest.val());
            f.largest("greatest_w", &[0, 1], seen_w.val()).to_scalar(greatest_w);
            let lowest = f.largest("lowest_b", &[0], -seen_b.val()).done();
            f.set("least_b", least_b, -lowest.val());
            f.largest("greatest_b", &[0], seen_b.val()).to_scalar(greatest_b);
        });
    });
    let program = p.build().expect("valid");
    Twins { program, seen, weights, loss, steps, turns, scale, product, extremes }
}

impl Twins {
    /// A session with `train` on the main lane and `look` on its own.
    pub(crate) fn open(&self, device: Device, fusion: &FusionPlan) -> Result<Session, RuntimeError> {
        let plan = |step| {
            self.program.plan(step, fusion, &Target::default(), &Tuning::default()).expect("the steps are simple")
        };
        let link = Link::new(LINK).copy(self.weights, self.seen);
        Session::builder().lane("look", [plan("look")]).link(link).open(device, [plan("train")])
    }

    /// What a launch of `look` found: all weights are of one publication, whose number this is.
    pub(crate) fn publication(&self, session: &mut Session, ticket: &Ticket) -> f32 {
        let mut outputs = ticket.wait(session).expect("it runs");
        let found = self.extremes.map(|scalar| outputs.read_scalar(scalar).expect("it is current"));
        assert!(found.iter().all(|&value| value.to_bits() == found[0].to_bits()), "a torn publication: {found:?}");
        found[0]
    }
}

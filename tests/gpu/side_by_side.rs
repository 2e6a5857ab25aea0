//! Conditionals that do not depend on each other, and kernels beside them: inside of a loop one at a time, elsewhere side by side,
//! they all come back. What happens otherwise, `side_by_side.cu` shows; the numbers are those of `docs/plans.md`.

use stepgraph::Builder;
use stepgraph::builder::{Body, Bound};
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::{ConstValue, Init};
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::{Device, Session};
use stepgraph::valid::ValidProgram;

use crate::support::{device, plan};

#[derive(Clone, Copy, Debug)]
enum Kind {
    If,
    Switch,
    /// Of two iterations.
    While,
    /// Of 20 iterations, each with an If.
    WhileOfIf,
}

/// What stands side by side: conditionals of a kind, each with a cell of its own, and chains of six kernels.
#[derive(Clone, Copy, Debug)]
struct Beside {
    kind: Kind,
    conditionals: usize,
    chains: usize,
}

/// The cells and buffers of these.
struct Memory {
    one: Scalar<u32>,
    cells: Vec<Scalar<u32>>,
    /// What the body of each Switch that never runs would write.
    others: Vec<Scalar<u32>>,
    chains: Vec<Tensor<f32>>,
}

impl Beside {
    fn add(self, f: &mut Body<'_>, memory: &Memory) {
        let one = memory.one;
        for (i, &cell) in memory.cells.iter().enumerate() {
            let name = format!("c{i}");
            let count = |b: &mut Body<'_>| b.set(&format!("add{i}"), cell, cell + 1u32);
            match self.kind {
                Kind::If => f.when(&name, one, count),
                Kind::Switch => f.switch(
                    &name,
                    one,
                    &mut [&mut |b| b.set(&format!("never{i}"), memory.others[i], 1u32), &mut |b| count(b)],
                ),
                Kind::While => f.repeat(&name, Bound::Const(2), None, None, count),
                Kind::WhileOfIf => {
                    f.repeat(&name, Bound::Const(20), None, None, |b| b.when(&format!("d{i}"), one, count));
                }
            }
        }
        for (i, &data) in memory.chains.iter().enumerate() {
            for k in 0..6 {
                f.map_to(&format!("w{i}_{k}"), data, data * 0.5f32 + 1.0f32);
            }
        }
    }

    /// How often each cell is counted up where these run once.
    const fn counts(self) -> u32 {
        match self.kind {
            Kind::If | Kind::Switch => 1,
            Kind::While => 2,
            Kind::WhileOfIf => 20,
        }
    }

    /// A step of these, inside of a loop of so many rounds where there are any.
    fn program(self, rounds: Option<u32>) -> ValidProgram {
        let mut p = Builder::new("side_by_side");
        let memory = Memory {
            one: p.host_scalar("one", 1u32),
            cells: (0..self.conditionals).map(|i| p.device_scalar(&format!("cell{i}"), 0u32)).collect(),
            others: match self.kind {
                Kind::Switch => (0..self.conditionals).map(|i| p.device_scalar(&format!("other{i}"), 0u32)).collect(),
                Kind::If | Kind::While | Kind::WhileOfIf => Vec::new(),
            },
            chains: (0..self.chains).map(|i| p.state::<f32>(&format!("chain{i}"), [4096], Init::Zeros)).collect(),
        };
        p.step("run", |s| {
            s.phase("only", |f| match rounds {
                Some(rounds) => f.repeat("rounds", Bound::Const(rounds), None, None, |b| self.add(b, &memory)),
                None => self.add(f, &memory),
            });
        });
        p.build().expect("valid")
    }

    /// Launches so often, with a few launches on their way at a time; each conditional must have run each time.
    fn come_back(self, device: Device, rounds: Option<u32>, launches: u32) {
        let program = self.program(rounds);
        let mut session = Session::open(device, [plan(&program, "run", &FusionPlan::mega())]).expect("it opens");
        for launch in 1..=launches {
            session.launch("run").expect("it launches");
            if launch % 16 == 0 {
                session.wait().expect("it runs");
            }
        }
        session.wait().expect("it runs");
        for i in 0..self.conditionals {
            let found = session.read_scalar_by_name(&format!("cell{i}")).expect("a scalar");
            let expected = self.counts() * rounds.unwrap_or(1) * launches;
            assert_eq!(found, ConstValue::U32(expected), "{self:?}, {rounds:?} rounds, {launches} launches");
        }
    }
}

/// So often on a device; the host, where a loop is a loop, needs a few only.
const fn often(device: Device, times: u32) -> u32 {
    match device {
        Device::Host => 3,
        Device::Cuda { .. } => times,
    }
}

/// Protects: a loop with conditionals of any kind, many or few, beside many or few kernels, ends.
#[test]
fn conditionals_inside_of_loops_come_back() {
    let Some(device) = device() else { return };
    for kind in [Kind::If, Kind::Switch, Kind::While] {
        for (conditionals, chains, rounds) in [(4, 8, 5000), (8, 0, 4000), (2, 16, 4000), (4, 2, 4000)] {
            Beside { kind, conditionals, chains }.come_back(device, Some(often(device, rounds)), 2);
        }
    }
    Beside { kind: Kind::WhileOfIf, conditionals: 4, chains: 4 }.come_back(device, Some(often(device, 500)), 2);
}

/// Protects: outside of loops conditionals run side by side, loops of conditionals among them, and come back.
#[test]
fn conditionals_outside_of_loops_come_back() {
    let Some(device) = device() else { return };
    for kind in [Kind::If, Kind::Switch, Kind::While] {
        Beside { kind, conditionals: 4, chains: 8 }.come_back(device, None, often(device, 20_000));
    }
    Beside { kind: Kind::WhileOfIf, conditionals: 4, chains: 4 }.come_back(device, None, often(device, 1000));
}

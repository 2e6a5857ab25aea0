//! A little program and a checkpoint of it: what tests of checkpoint files and folders save.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::bf16;
use stepgraph::Builder;
use stepgraph::handle::{Scalar, Tensor};
use stepgraph::ir::Init;
use stepgraph::plan::{FusionPlan, Target, Tuning};
use stepgraph::runtime::{Device, Session};
use stepgraph::valid::ValidProgram;
use tempfile::TempDir;

/// w moves by x · rate in each step; a counter and a bfloat16 state move too.
pub(crate) struct Little {
    pub(crate) program: ValidProgram,
    pub(crate) rate: Scalar<f32>,
    pub(crate) count: Scalar<u32>,
    pub(crate) x: Tensor<f32>,
    pub(crate) w: Tensor<f32>,
    pub(crate) y: Tensor<f32>,
}

/// What a variation of the program declares otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Other {
    Nothing,
    Name,
    Type,
    Shape,
    OneMore,
    OneLess,
    Node,
}

pub(crate) fn little(other: Other) -> Little {
    let mut p = Builder::new(if other == Other::Name { "another" } else { "little" });
    let rate = p.host_scalar("rate", 2f32);
    let count = p.device_scalar("count", 7u32);
    let x = p.input::<f32>("x", [3]);
    let w = p.param::<f32>("w", [3], Init::Uniform { bound: 1.0 });
    let half = p.state::<bf16>("half", [3], Init::Constant(1.0));
    match other {
        Other::Type => drop(p.state::<u32>("table", [2, 2], Init::Zeros)),
        Other::Shape => drop(p.state::<f32>("table", [4, 1], Init::Zeros)),
        Other::OneLess => {}
        _ => drop(p.state::<f32>("table", [2, 2], Init::Zeros)),
    }
    if other == Other::OneMore {
        p.state::<f32>("more", [1], Init::Zeros);
    }
    let y = p.output::<f32>("y", [3]);
    p.step("step", |s| {
        s.phase("main", |f| {
            f.map_to("half", half, half + w);
            f.map_to("w", w, w + x * rate);
            let scale = if other == Other::Node { 3.0f32 } else { 2.0f32 };
            f.map_to("y", y, w * scale);
            f.set("tick", count, count + 1u32);
        });
    });
    let program = p.build().unwrap_or_else(|errors| panic!("{errors}"));
    Little { program, rate, count, x, w, y }
}

impl Little {
    pub(crate) fn open(&self, seed: u64) -> Session {
        let plan =
            self.program.plan("step", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("a plan");
        Session::builder().seed(seed).open(Device::Host, [plan]).expect("the host is there")
    }

    /// A session after three launches, and a file of it.
    pub(crate) fn saved(&self, folder: &Path) -> (Session, std::path::PathBuf) {
        let mut session = self.open(5);
        session.write_input(self.x, &[1.0, 2.0, 3.0]).expect("an input");
        session.set(self.rate, 0.25).expect("a host scalar");
        for _ in 0..3 {
            session.launch("step").expect("the host runs");
        }
        let path = folder.join("little.safetensors");
        let written = session.checkpoint(&path, &notes()).expect("it starts").wait().expect("it is written");
        assert_eq!(written.bytes, fs::metadata(&path).expect("it is there").len());
        (session, path)
    }
}

pub(crate) fn notes() -> BTreeMap<String, String> {
    // The second one tries to look like the checksum.
    [("epoch", "3"), ("odd", "\"stepgraph.checksum\":\"00\" ü \\")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

//! Golden files: what a training step must compute, as `tests/golden/README.md` describes. Read, checked in full, then handed on.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use stepgraph::ir::Compute;

use super::hyper::{Hyper, HyperError, Linear, Mask, Source};

/// The layout of files that is understood.
const LAYOUT: &str = "1";

/// A golden file: dimensions, inputs, and what must come out.
#[derive(Clone, Debug)]
pub(crate) struct Golden {
    /// The case's name.
    pub(crate) case: String,
    /// The variant of the training step.
    pub(crate) variant: String,
    /// Dimensions and constants; batches and masks come from the host.
    pub(crate) hyper: Hyper,
    /// How many steps there are.
    pub(crate) steps: usize,
    /// The steps, from 1, after which the file holds the state.
    pub(crate) snapshots: Vec<usize>,
    tensors: BTreeMap<String, Vec<f64>>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GoldenError {
    /// The file is there.
    #[error("cannot read the file")]
    Read(#[from] std::io::Error),
    /// It is a safetensors file.
    #[error("not a safetensors file, or an incomplete one")]
    Format(#[from] safetensors::SafeTensorError),
    /// Its metadata has the entries that describe it.
    #[error("the metadata has no entry `{0}`: this is no golden file")]
    NoEntry(&'static str),
    /// Its layout is known.
    #[error("the layout is `{0}`, expected `{LAYOUT}`")]
    Layout(String),
    /// The dimensions are there, and have their types.
    #[error("the metadata entry `hyper` is wrong")]
    Metadata(#[from] serde_json::Error),
    /// The dimensions give a network.
    #[error("the metadata entry `hyper` is wrong")]
    Hyper(#[from] HyperError),
    /// The variant is one that the dimensions allow.
    #[error("the metadata entry `hyper`: variant `{variant}` does not go with {atoms} atoms: expected {possible}")]
    Variant {
        /// The variant.
        variant: String,
        /// How many atoms there are.
        atoms: u32,
        /// What there could be.
        possible: String,
    },
    /// There are steps, and snapshots of some of them: of the first one, and of the last.
    #[error(
        "the metadata entry `hyper`: snapshots {found:?} of {steps} steps; expected ascending steps, 1 and {steps} among them"
    )]
    Snapshots {
        /// The snapshots.
        found: Vec<usize>,
        /// How many steps there are.
        steps: usize,
    },
    /// Every tensor is there.
    #[error("tensor `{0}` is missing")]
    Missing(String),
    /// Every tensor has the shape that the dimensions give it.
    #[error("tensor `{name}` has the shape {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that it must have.
        expected: Vec<usize>,
    },
    /// Every tensor has its element type.
    #[error("tensor `{name}` holds {found:?}, expected {expected:?}")]
    Type {
        /// The tensor.
        name: String,
        /// Its element type.
        found: Dtype,
        /// The type that it must have.
        expected: Dtype,
    },
    /// Only rewards may be other than finite: a case of its own.
    #[error("tensor `{name}`, element {index}, is {value}: a finite number is needed")]
    NotFinite {
        /// The tensor.
        name: String,
        /// The element.
        index: usize,
        /// Its value.
        value: f64,
    },
    /// Actions and classes are in their ranges.
    #[error("tensor `{name}`, element {index}, is {value}: expected 0 to {last}")]
    OutOfRange {
        /// The tensor.
        name: String,
        /// The element.
        index: usize,
        /// Its value.
        value: f64,
        /// The largest value.
        last: u32,
    },
}

/// The metadata entry `hyper`.
#[derive(Debug, Deserialize)]
#[expect(non_snake_case, reason = "the file's own names")]
struct Meta {
    variant: String,
    B: u32,
    S: u32,
    H: u32,
    V: u32,
    L: u32,
    branches: Vec<u32>,
    C: u32,
    N: u32,
    vmin: f32,
    vmax: f32,
    b1: f32,
    b2: f32,
    eps: f32,
    steps: usize,
    snapshots: Vec<usize>,
}

impl Golden {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The first rule of [`GoldenError`] that is broken.
    pub(crate) fn load(path: &Path) -> Result<Self, GoldenError> {
        Self::parse(&std::fs::read(path)?)
    }

    /// Reads and checks a file's bytes.
    ///
    /// # Errors
    /// As [`Golden::load`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, GoldenError> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let entries = metadata.metadata().clone().unwrap_or_default();
        let entry = |name| entries.get(name).ok_or(GoldenError::NoEntry(name));
        if entry("layout")? != LAYOUT {
            return Err(GoldenError::Layout(entry("layout")?.clone()));
        }
        let meta: Meta = serde_json::from_str(entry("hyper")?)?;
        let hyper = hyper_of(&meta)?;
        check_meta(&meta, &hyper)?;
        let mut golden = Self {
            case: entry("case")?.clone(),
            variant: meta.variant,
            hyper,
            steps: meta.steps,
            snapshots: meta.snapshots,
            tensors: BTreeMap::new(),
        };
        let file = SafeTensors::deserialize(bytes)?;
        for expected in golden.expected() {
            let values = expected.take(&file)?;
            golden.tensors.insert(expected.name, values);
        }
        golden.check_ranges()?;
        Ok(golden)
    }

    /// The values of a tensor, row-major. Every tensor that a step needs or gives is there.
    pub(crate) fn values(&self, name: &str) -> &[f64] {
        self.tensors.get(name).map_or(&[], Vec::as_slice)
    }

    /// The same for one step, from 0, of a tensor that has a row per step.
    pub(crate) fn at_step(&self, name: &str, step: usize) -> &[f64] {
        let values = self.values(name);
        let row = values.len() / self.steps;
        &values[step * row..(step + 1) * row]
    }

    /// Every tensor that is used.
    fn expected(&self) -> Vec<Expected> {
        let linears = self.hyper.linears();
        let mut all = Vec::new();
        all.extend(state("init", &linears, Dtype::F32));
        for &snapshot in &self.snapshots {
            all.extend(state(&format!("after{snapshot}"), &linears, Dtype::F64));
        }
        all.extend(weights("grad1", &linears, Dtype::F64));
        let size = |extent: u32| extent as usize;
        let Hyper { batch, observation, blocks, .. } = self.hyper;
        let (steps, b, s, k) = (self.steps, size(batch), size(observation), self.hyper.branches.len());
        let mut add = |name: &str, dtype, shape: &[usize]| {
            all.push(Expected { name: name.into(), dtype, shape: [&[steps], shape].concat() });
        };
        add("batch/s", Dtype::F32, &[b, s]);
        add("batch/s2", Dtype::F32, &[b, s]);
        add("batch/a", Dtype::I32, &[b, k]);
        for name in ["r", "d", "w"] {
            add(&format!("batch/{name}"), Dtype::F32, &[b]);
        }
        add("batch/y", Dtype::I32, &[b]);
        for name in SCALARS {
            add(&format!("scalar/{name}"), Dtype::F32, &[]);
        }
        add("scalar/mask", Dtype::F32, &[size(blocks)]);
        add("out/loss", Dtype::F64, &[]);
        add("out/grad_norm", Dtype::F64, &[]);
        add("out/priorities", Dtype::F64, &[b]);
        add("out/next_action", Dtype::I32, &[b, k]);
        add("out/skipped", Dtype::I32, &[]);
        all
    }

    fn check_ranges(&self) -> Result<(), GoldenError> {
        let inputs = self.tensors.iter().filter(|(name, _)| {
            ["init/", "batch/", "scalar/"].iter().any(|part| name.starts_with(part)) && *name != "batch/r"
        });
        for (name, values) in inputs {
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                return Err(GoldenError::NotFinite { name: name.clone(), index, value: values[index] });
            }
        }
        let branches = &self.hyper.branches;
        let last_action = |index: usize| branches[index % branches.len()] - 1;
        in_range("batch/a", self.values("batch/a"), last_action)?;
        in_range("batch/y", self.values("batch/y"), |_| self.hyper.classes - 1)
    }
}

/// Scalars of a step, in the reference's names; the program's cells have the same.
pub(crate) const SCALARS: [&str; 6] = ["aux_w", "lr", "tau", "sigma_max", "max_norm", "gamma"];

/// Parts of a state that have one value per weight.
pub(crate) const PARTS: [&str; 4] = ["p", "target", "m", "v"];

/// A tensor that a file must have.
#[derive(Clone, Debug)]
struct Expected {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Expected {
    fn take(&self, file: &SafeTensors<'_>) -> Result<Vec<f64>, GoldenError> {
        let tensor = file.tensor(&self.name).map_err(|_| GoldenError::Missing(self.name.clone()))?;
        if tensor.shape() != self.shape {
            let (found, expected) = (tensor.shape().to_vec(), self.shape.clone());
            return Err(GoldenError::Shape { name: self.name.clone(), found, expected });
        }
        if tensor.dtype() != self.dtype {
            let (found, expected) = (tensor.dtype(), self.dtype);
            return Err(GoldenError::Type { name: self.name.clone(), found, expected });
        }
        Ok(wide(&tensor))
    }
}

/// The elements as `f64`, which holds every value of the three types.
fn wide(tensor: &TensorView<'_>) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| value(*chunk)).collect()
    }
    match tensor.dtype() {
        Dtype::F64 => each(tensor.data(), f64::from_le_bytes),
        Dtype::I32 => each(tensor.data(), |bytes| f64::from(i32::from_le_bytes(bytes))),
        _ => each(tensor.data(), |bytes| f64::from(f32::from_le_bytes(bytes))),
    }
}

fn weights(prefix: &str, linears: &[Linear], dtype: Dtype) -> Vec<Expected> {
    let both = |linear: &Linear| {
        let (name, rows, columns) = (&linear.name, linear.outputs as usize, linear.inputs as usize);
        let part = |part: &str, shape| Expected { name: format!("{prefix}/{name}.{part}"), dtype, shape };
        [part("w", vec![rows, columns]), part("b", vec![rows])]
    };
    linears.iter().flat_map(both).collect()
}

fn state(prefix: &str, linears: &[Linear], dtype: Dtype) -> Vec<Expected> {
    let mut all: Vec<_> = PARTS.iter().flat_map(|part| weights(&format!("{prefix}/{part}"), linears, dtype)).collect();
    for Linear { name, outputs, .. } in linears.iter().filter(|linear| linear.spectral) {
        all.push(Expected { name: format!("{prefix}/u/{name}"), dtype, shape: vec![*outputs as usize] });
    }
    for name in ["t", "skipped"] {
        all.push(Expected { name: format!("{prefix}/{name}"), dtype: Dtype::I32, shape: vec![1] });
    }
    all
}

fn hyper_of(meta: &Meta) -> Result<Hyper, HyperError> {
    let hyper = Hyper {
        batch: meta.B,
        observation: meta.S,
        trunk: meta.H,
        head: meta.V,
        blocks: meta.L,
        branches: meta.branches.clone(),
        classes: meta.C,
        atoms: meta.N,
        support: [meta.vmin, meta.vmax],
        beta1: meta.b1,
        beta2: meta.b2,
        eps: meta.eps,
        compute: Compute::F32,
        source: Source::Inputs,
        mask: Mask::Forced,
    };
    hyper.check().map(|()| hyper)
}

fn check_meta(meta: &Meta, hyper: &Hyper) -> Result<(), GoldenError> {
    let variants = hyper.variants();
    if !variants.contains(&meta.variant.as_str()) {
        let (variant, possible) = (meta.variant.clone(), variants.join(" or "));
        return Err(GoldenError::Variant { variant, atoms: meta.N, possible });
    }
    let (found, steps) = (&meta.snapshots, meta.steps);
    let whole = found.first() == Some(&1) && found.last() == Some(&steps);
    if !whole || !found.is_sorted_by(|a, b| a < b) {
        return Err(GoldenError::Snapshots { found: found.clone(), steps });
    }
    Ok(())
}

fn in_range(name: &str, values: &[f64], last: impl Fn(usize) -> u32) -> Result<(), GoldenError> {
    let outside = |&(index, &value): &(usize, &f64)| !(0.0..=f64::from(last(index))).contains(&value);
    match values.iter().enumerate().find(outside) {
        None => Ok(()),
        Some((index, &value)) => Err(GoldenError::OutOfRange { name: name.into(), index, value, last: last(index) }),
    }
}

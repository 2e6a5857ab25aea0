//! The branching dueling network: its weights as a few stacks of layers, and its forward pass.
//!
//! Layers of one shape lie in one buffer ("stack"), so that the heads' hidden layers are one product and spectral
//! normalisation is one launch per stack. [`Hyper::linears`] maps the layers' own names to rows of stacks.

use std::ops::Range;

use stepgraph::Builder;
use stepgraph::builder::{Body, Val};
use stepgraph::handle::Tensor;
use stepgraph::ir::{Init, Role};

use super::hyper::Hyper;

/// A stack of linear layers: weights [outputs, inputs] and biases [outputs].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    /// The weights.
    pub(crate) w: Tensor<f32>,
    /// The biases.
    pub(crate) b: Tensor<f32>,
}

impl Layer {
    /// The layers whose outputs are `rows` of the stack.
    pub(crate) fn rows(self, rows: Range<u32>) -> Self {
        Self { w: self.w.rows(rows.clone()), b: self.b.slice(0, rows) }
    }
}

/// One value per weight of the network: the weights themselves, or their gradients, moments or slow copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// The first layer: [H, S].
    pub(crate) trunk: Layer,
    /// The residual blocks, `fc1` and `fc2` of each in turn: [2 L H, H]; none without blocks.
    pub(crate) res: Option<Layer>,
    /// The hidden layers of the heads, value first: [(K + 1) V, H].
    pub(crate) hidden: Layer,
    /// The output layers of the heads, value first: [N (1 + ΣA), V].
    pub(crate) out: Layer,
    /// The auxiliary head: [C, H].
    pub(crate) aux: Layer,
    /// All of them as one flat array.
    pub(crate) flat: Tensor<f32>,
}

impl Weights {
    /// Declares the trained weights as the group `theta`. Weights start uniform in ±1/√inputs, biases at zero.
    pub(crate) fn params(p: &mut Builder, hyper: &Hyper) -> Self {
        let (trunk, head) = (hyper.trunk, hyper.head);
        let mut layer = |name: &str, outputs: u32, inputs: u32| {
            #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
            let bound = 1.0 / (inputs as f32).sqrt();
            let w = p.param::<f32>(&format!("{name}.w"), [outputs, inputs], Init::Uniform { bound });
            Layer { w, b: p.param::<f32>(&format!("{name}.b"), [outputs], Init::Zeros) }
        };
        let first = layer("trunk.in", trunk, hyper.observation);
        let res = (hyper.blocks > 0).then(|| layer("res", 2 * hyper.blocks * trunk, trunk));
        let hidden = layer("heads.fc1", (hyper.branch_count() + 1) * head, trunk);
        let out = layer("heads.out", hyper.out_width(), head);
        let aux = layer("aux.out", hyper.classes, trunk);
        let layers = [Some(first), res, Some(hidden), Some(out), Some(aux)];
        let members: Vec<_> = layers.into_iter().flatten().flat_map(|layer| [layer.w, layer.b]).collect();
        let flat = p.group("theta", &members);
        Self { trunk: first, res, hidden, out, aux, flat }
    }

    /// Declares the group `name` of the same layout, zero at first, with a buffer `name.LAYER` for each of the weights.
    pub(crate) fn like(&self, p: &mut Builder, name: &str, role: Role) -> Self {
        let flat = p.group_like(name, self.flat, role);
        let mut layer = |layer: &str| Layer {
            w: p.tensor(&format!("{name}.{layer}.w")),
            b: p.tensor(&format!("{name}.{layer}.b")),
        };
        Self {
            trunk: layer("trunk.in"),
            res: self.res.map(|_| layer("res")),
            hidden: layer("heads.fc1"),
            out: layer("heads.out"),
            aux: layer("aux.out"),
            flat,
        }
    }

    /// The stacks, in memory order.
    pub(crate) fn layers(&self) -> impl Iterator<Item = Layer> {
        [Some(self.trunk), self.res, Some(self.hidden), Some(self.out), Some(self.aux)].into_iter().flatten()
    }

    /// `fc1` and `fc2` of a residual block; nothing where the network has no such block.
    pub(crate) fn block(&self, hyper: &Hyper, block: u32) -> Option<[Layer; 2]> {
        let (res, trunk) = (self.res?, hyper.trunk);
        let part = |row: u32| res.rows(row * trunk..(row + 1) * trunk);
        Some([part(2 * block), part(2 * block + 1)])
    }
}

/// How a forward pass is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass<'a> {
    /// Prefix of its nodes and Temps, unique among the passes of a program: `online` gives `online.h0`.
    pub(crate) name: &'a str,
    /// Rows of its Temps: at least those of the observations. Passes of one name in several variants share their Temps.
    pub(crate) rows: u32,
    /// Factor of each residual block [L]; 1 where there is none.
    pub(crate) mask: Option<Tensor<f32>>,
}

/// What a forward pass leaves behind; as many rows as it was given observations.
#[derive(Clone, Debug)]
pub(crate) struct Activations {
    /// The trunk after its first layer and after each block: `L + 1` of [rows, H].
    pub(crate) trunk: Vec<Tensor<f32>>,
    /// Inside each block, after `fc1`: `L` of [rows, H].
    pub(crate) inner: Vec<Tensor<f32>>,
    /// The heads' hidden layers side by side, value first: [rows, (K + 1) V].
    pub(crate) hidden: Tensor<f32>,
    /// The heads' outputs side by side, before the dueling mean: [rows, N (1 + ΣA)]; see [`Hyper::out_columns`].
    pub(crate) out: Tensor<f32>,
}

impl Activations {
    /// The same for a part of the rows.
    pub(crate) fn rows(&self, rows: Range<u32>) -> Self {
        let part = |tensor: &Tensor<f32>| tensor.rows(rows.clone());
        Self {
            trunk: self.trunk.iter().map(part).collect(),
            inner: self.inner.iter().map(part).collect(),
            hidden: part(&self.hidden),
            out: part(&self.out),
        }
    }

    /// The trunk's last layer [rows, H].
    pub(crate) fn top(&self) -> Tensor<f32> {
        self.trunk[self.trunk.len() - 1]
    }
}

/// Adds the nodes of a forward pass on observations `x` [rows, S].
pub(crate) fn forward(
    f: &mut Body<'_>,
    hyper: &Hyper,
    weights: &Weights,
    pass: Pass<'_>,
    x: Tensor<f32>,
) -> Activations {
    let mut dense = Dense { f, hyper, pass };
    let mut h = dense.layer("h0", x, weights.trunk, |z| z.relu());
    let (mut trunk, mut inner) = (vec![h], Vec::new());
    for block in 0..hyper.blocks {
        let Some([fc1, fc2]) = weights.block(hyper, block) else { break };
        let a = dense.layer(&format!("a{block}"), h, fc1, |z| z.relu());
        let factor = pass.mask.map(|mask| mask.pick(0, block));
        h = dense.layer(&format!("h{}", block + 1), a, fc2, |z| match factor {
            Some(factor) => (h + factor * z).relu(),
            None => (h + z).relu(),
        });
        inner.push(a);
        trunk.push(h);
    }
    let hidden = dense.layer("heads", h, weights.hidden, |z| z.relu());
    let out = dense.temp("out", hyper.out_width(), rows_of(x));
    let product = dense.temp("out.mm", hyper.out_width(), rows_of(x));
    for head in 0..=hyper.branch_count() {
        let name = head.checked_sub(1).map_or_else(|| "value".to_owned(), |branch| format!("adv{branch}"));
        let (from, columns) = (hidden.cols(head * hyper.head..(head + 1) * hyper.head), hyper.out_columns(head));
        let (product, out) = (product.cols(columns.clone()), out.cols(columns.clone()));
        dense.layer_into(&name, from, weights.out.rows(columns), product, out, |z| z);
    }
    Activations { trunk, inner, hidden, out }
}

/// Adds linear layers to a phase.
struct Dense<'a, 'b, 'c> {
    f: &'a mut Body<'b>,
    hyper: &'c Hyper,
    pass: Pass<'c>,
}

impl Dense<'_, '_, '_> {
    /// `act(x Wᵀ + b)` into a Temp of its name.
    fn layer(
        &mut self,
        name: &str,
        x: Tensor<f32>,
        layer: Layer,
        act: impl FnOnce(Val<f32>) -> Val<f32>,
    ) -> Tensor<f32> {
        let (rows, width) = (rows_of(x), rows_of(layer.w));
        let product = self.temp(&format!("{name}.mm"), width, rows);
        let out = self.temp(name, width, rows);
        self.layer_into(name, x, layer, product, out, act)
    }

    fn layer_into(
        &mut self,
        name: &str,
        x: Tensor<f32>,
        layer: Layer,
        product: Tensor<f32>,
        out: Tensor<f32>,
        act: impl FnOnce(Val<f32>) -> Val<f32>,
    ) -> Tensor<f32> {
        let name = format!("{}.{name}", self.pass.name);
        self.f.gemm(&format!("{name}.mm"), x.nt(layer.w)).compute(self.hyper.compute).to(product);
        self.f.map_to(&name, out, act(product + layer.b))
    }

    fn temp(&mut self, name: &str, width: u32, rows: u32) -> Tensor<f32> {
        let Pass { name: pass, rows: all, .. } = self.pass;
        self.f.temp::<f32>(&format!("{pass}.{name}"), [all, width]).rows(0..rows)
    }
}

/// The first extent of a matrix.
fn rows_of(matrix: Tensor<f32>) -> u32 {
    matrix.shape().map_or(0, |shape| shape.dims()[0])
}

//! What fixes the shape of the system: dimensions, constants, and where batches come from. Nothing here changes between steps.

use std::ops::Range;

use stepgraph::ir::Compute;

/// The sizes and constants of a branching dueling Q-network and its training step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hyper {
    /// Samples of a training batch (B).
    pub(crate) batch: u32,
    /// Width of an observation (S).
    pub(crate) observation: u32,
    /// Width of the trunk (H).
    pub(crate) trunk: u32,
    /// Hidden width of each head (V).
    pub(crate) head: u32,
    /// Residual blocks of the trunk (L); none is allowed.
    pub(crate) blocks: u32,
    /// Actions of each branch (A_k); K is their number.
    pub(crate) branches: Vec<u32>,
    /// Classes of the auxiliary head (C).
    pub(crate) classes: u32,
    /// Atoms of the value distribution (N); 1 for plain values.
    pub(crate) atoms: u32,
    /// The smallest and largest return that atoms stand for; unused with one atom.
    pub(crate) support: [f32; 2],
    /// Adam's decay of the first moment.
    pub(crate) beta1: f32,
    /// Adam's decay of the second moment.
    pub(crate) beta2: f32,
    /// Adam's ε, outside the root.
    pub(crate) eps: f32,
    /// The arithmetic of every matrix product.
    pub(crate) compute: Compute,
    /// Where batches come from.
    pub(crate) source: Source,
    /// Where the stochastic-depth mask comes from.
    pub(crate) mask: Mask,
}

/// Where batches come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The host writes each batch into inputs, importance weights included. The step has no `sample`, `gather` and
    /// `per_update` phases.
    Inputs,
    /// The step draws them from a replay buffer.
    Replay {
        /// Transitions that the buffer holds at least; see [`super::replay::extents`].
        capacity: u32,
        /// The column of an observation that holds the exposure, and so follows from the action; relabelling rewrites it.
        exposure: u32,
    },
}

/// Where the stochastic-depth mask comes from: one factor per residual block, for the whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mask {
    /// The host writes it into the input `mask`.
    Forced,
    /// Each block is kept with the probability in the host scalar `keep`, and scaled by its inverse.
    Drawn,
}

/// Dimensions that give no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HyperError {
    /// Every extent but the number of blocks is at least 1.
    #[error("{what} is 0: at least 1 is needed")]
    Zero {
        /// Which extent.
        what: String,
    },
    /// There is something to decide.
    #[error("there are no branches: at least one is needed")]
    NoBranches,
    /// A distribution needs a support.
    #[error("the support {low} to {high} of {atoms} atoms is empty or not finite: the first must be below the second")]
    Support {
        /// Its lower end.
        low: String,
        /// Its upper end.
        high: String,
        /// How many atoms.
        atoms: u32,
    },
    /// The exposure is one of the columns of an observation.
    #[error("column {column} cannot hold the exposure: an observation has {width} columns")]
    ExposureColumn {
        /// The column.
        column: u32,
        /// The width of an observation.
        width: u32,
    },
}

/// A linear layer: `y = x Wᵀ + b`, with W [outputs, inputs].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linear {
    /// The layer's own name: `adv1.fc1`.
    pub(crate) name: String,
    /// Rows of W.
    pub(crate) outputs: u32,
    /// Columns of W.
    pub(crate) inputs: u32,
    /// The stack of layers that it lies in: `heads.fc1`.
    pub(crate) stack: &'static str,
    /// Its rows in the stack.
    pub(crate) rows: Range<u32>,
    /// Whether its weight is spectrally normalised.
    pub(crate) spectral: bool,
}

impl Hyper {
    /// The variants of the training step: with one atom double and plain DQN, with more the categorical one.
    pub(crate) const fn variants(&self) -> &'static [&'static str] {
        if self.atoms > 1 { &["c51"] } else { &["ddqn", "mse"] }
    }

    /// Branches (K).
    pub(crate) fn branch_count(&self) -> u32 {
        u32::try_from(self.branches.len()).unwrap_or(u32::MAX)
    }

    /// Actions of all branches (ΣA).
    pub(crate) fn actions(&self) -> u32 {
        self.branches.iter().sum()
    }

    /// The first action of each branch, counted over all branches, and the number of all actions at the end.
    pub(crate) fn first_actions(&self) -> Vec<u32> {
        let mut next = 0;
        let mut firsts = vec![0];
        firsts.extend(self.branches.iter().map(|actions| {
            next += actions;
            next
        }));
        firsts
    }

    /// Width of the heads' output: N for the value, then N per action, branch by branch; the atom runs fastest.
    pub(crate) fn out_width(&self) -> u32 {
        self.atoms * (1 + self.actions())
    }

    /// Columns of the heads' output that head `head` writes: 0 is the value, `1 + k` branch k.
    pub(crate) fn out_columns(&self, head: u32) -> Range<u32> {
        let Some(branch) = head.checked_sub(1) else { return 0..self.atoms };
        let firsts = self.first_actions();
        let (start, end) = (firsts[branch as usize], firsts[branch as usize + 1]);
        self.atoms * (1 + start)..self.atoms * (1 + end)
    }

    /// Every linear layer, in the canonical order of names, and where it lies.
    pub(crate) fn linears(&self) -> Vec<Linear> {
        let (trunk, head) = (self.trunk, self.head);
        let mut all = vec![linear("trunk.in".into(), "trunk.in", 0..trunk, self.observation, true)];
        for block in 0..self.blocks {
            for (layer, row) in [("fc1", 2 * block), ("fc2", 2 * block + 1)] {
                let rows = row * trunk..(row + 1) * trunk;
                all.push(linear(format!("res{block}.{layer}"), "res", rows, trunk, true));
            }
        }
        for index in 0..=self.branch_count() {
            let name = index.checked_sub(1).map_or_else(|| "value".to_owned(), |branch| format!("adv{branch}"));
            let rows = index * head..(index + 1) * head;
            all.push(linear(format!("{name}.fc1"), "heads.fc1", rows, trunk, true));
            all.push(linear(format!("{name}.out"), "heads.out", self.out_columns(index), head, false));
        }
        all.push(linear("aux.out".into(), "aux.out", 0..self.classes, trunk, false));
        all
    }

    /// Checks that the dimensions give a network.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub(crate) fn check(&self) -> Result<(), HyperError> {
        let extents = [
            ("batch", self.batch),
            ("observation", self.observation),
            ("trunk", self.trunk),
            ("head", self.head),
            ("classes", self.classes),
            ("atoms", self.atoms),
        ];
        if let Some((what, _)) = extents.into_iter().find(|&(_, extent)| extent == 0) {
            return Err(HyperError::Zero { what: format!("the extent `{what}`") });
        }
        if self.branches.is_empty() {
            return Err(HyperError::NoBranches);
        }
        if let Some(branch) = self.branches.iter().position(|&actions| actions == 0) {
            return Err(HyperError::Zero { what: format!("the number of actions of branch {branch}") });
        }
        let [low, high] = self.support;
        if self.atoms > 1 && !(low < high && (high - low).is_finite()) {
            return Err(HyperError::Support { low: low.to_string(), high: high.to_string(), atoms: self.atoms });
        }
        match self.source {
            Source::Replay { capacity: 0, .. } => Err(HyperError::Zero { what: "the replay capacity".into() }),
            Source::Replay { exposure, .. } if exposure >= self.observation => {
                Err(HyperError::ExposureColumn { column: exposure, width: self.observation })
            }
            _ => Ok(()),
        }
    }
}

fn linear(name: String, stack: &'static str, rows: Range<u32>, inputs: u32, spectral: bool) -> Linear {
    Linear { name, outputs: rows.end - rows.start, inputs, stack, rows, spectral }
}

//! Why a plan cannot run on the host.

/// A plan that the host cannot run, or a program that breaks a promise while it runs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// There is room for the plan's memory.
    #[error(
        "the {region} region takes {bytes} bytes, more than this machine has: use smaller dimensions or a larger machine"
    )]
    OutOfMemory {
        /// The region.
        region: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// Every kernel that runs on the host has a host function.
    #[error(
        "node `{node}`: kernel `{kernel}` has no host function: run on a CUDA device, or declare it in Rust, by `kernel!` with `host f`"
    )]
    MissingHostFn {
        /// The unit, `phase.node`.
        node: String,
        /// The kernel.
        kernel: String,
    },
    /// What a unit touches has a place in memory.
    #[error("node `{node}`: the plan gives `{what}` no memory: plan the step again")]
    Unplaced {
        /// The unit, `phase.node`.
        node: String,
        /// The buffer or scalar.
        what: String,
    },
    /// A scattered store keeps its promise.
    #[error("node `{node}`: two elements store to element {place} of `{target}`, but the store promises `{rule}`")]
    BrokenScatterRule {
        /// The unit, `phase.node`.
        node: String,
        /// The buffer.
        target: String,
        /// The rule.
        rule: &'static str,
        /// The element of the buffer, counted row-major.
        place: u64,
    },
    /// A kernel's written arguments share memory with no other argument.
    #[error("node `{node}`: arguments of kernel `{kernel}` overlap although one of them is written")]
    OverlappingArguments {
        /// The unit, `phase.node`.
        node: String,
        /// The kernel.
        kernel: String,
    },
    /// A body runs each of its units once, after those that it depends on.
    #[error("`{unit}` cannot run at this point of the given order: {reason}")]
    IllegalOrder {
        /// The unit.
        unit: String,
        /// What is wrong.
        reason: String,
    },
    /// A unit's work is of its node's kind.
    #[error("node `{node}` is a {kind} that the plan runs as something else: plan the step again")]
    WrongWork {
        /// The unit, `phase.node`.
        node: String,
        /// The node's kind.
        kind: &'static str,
    },
}

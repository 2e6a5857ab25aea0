//! The rules that a program keeps, one error each. `docs/ir.md` lists them; a test keeps the two equal.

use std::fmt;

use super::dtype::DType;
use super::origin::Origin;
use super::shape::Shape;

/// A rule that a program breaks: the node, what was found, what was expected, and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProgramError {
    /// Names are letters, digits, `_`, and dots between parts; each part starts with a letter or `_`.
    #[error("`{name}` is not a name: use letters, digits and `_`, with dots between parts")]
    BadName {
        /// What was given.
        name: String,
    },
    /// A name stands for one thing.
    #[error("the {kind} name `{name}` is taken: rename one of the two")]
    DuplicateName {
        /// What it names.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A name that is used must be declared.
    #[error("there is no {kind} `{name}`{}", hint(.similar))]
    UnknownName {
        /// What was looked for.
        kind: &'static str,
        /// The name.
        name: String,
        /// A declared name that resembles it.
        similar: Option<String>,
    },
    /// Extents are between 1 and 2³¹ - 1, and so is a buffer's element count.
    #[error("`{what}` has the shape {found}: each extent, and their product, must be between 1 and 2147483647")]
    BadExtent {
        /// The buffer or dimension.
        what: String,
        /// Its extents, as written.
        found: String,
    },
    /// Shapes have at most four axes.
    #[error("`{what}` has {found} axes: at most {} are supported", super::shape::MAX_RANK)]
    RankTooHigh {
        /// The buffer or index space.
        what: String,
        /// How many axes it has.
        found: usize,
    },
    /// Scalars and constants are `f32`, `i32` or `u32`; random initial values need a float buffer.
    #[error("`{what}` cannot be {found}: {remedy}")]
    UnsupportedType {
        /// The buffer or scalar.
        what: String,
        /// Its type.
        found: DType,
        /// What to do.
        remedy: &'static str,
    },
    /// Initial values are such that the buffer can hold them: bounds and deviations are finite and at least 0.
    #[error("`{buffer}` starts as {found}, expected {expected}: correct `init`")]
    BadInit {
        /// The buffer.
        buffer: String,
        /// The constant, bound or deviation.
        found: f32,
        /// What is possible.
        expected: &'static str,
    },
    /// A handle is used in the program that made it.
    #[error("node `{node}`: {part} is a handle of another program: declare it in this one")]
    ForeignHandle {
        /// The node.
        node: String,
        /// Its part.
        part: String,
    },
    /// Members of a group have one type and one role, and a buffer is in at most one group.
    #[error("group `{group}`: `{member}` {reason}")]
    BadGroup {
        /// The group.
        group: String,
        /// The member.
        member: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Steps, phases, variants and bodies have nodes; groups have members; maps and reductions have results.
    #[error("{what} is empty: put something in, or remove it")]
    Empty {
        /// The step, phase, variant, body, group or node.
        what: String,
    },
    /// A phase's variants are variants of its step.
    #[error("phase `{phase}` is for variant `{variant}`, which step `{step}` does not declare")]
    UnknownVariant {
        /// The step.
        step: String,
        /// The phase.
        phase: String,
        /// The variant.
        variant: String,
    },
    /// A step has at most 64 variants.
    #[error("step `{step}` has {found} variants: at most {} are supported", super::program::MAX_VARIANTS)]
    TooManyVariants {
        /// The step.
        step: String,
        /// How many it has.
        found: usize,
    },
    /// A node is in exactly one phase or body.
    #[error("node `{node}` is in {count} phases or bodies: it must be in exactly one")]
    NodePlacement {
        /// The node.
        node: String,
        /// In how many it is.
        count: usize,
    },
    /// A body does not hold the node that it belongs to, nor hold it through others.
    #[error("node `{node}` is inside a body of its own: take it out")]
    RecursiveBody {
        /// The node.
        node: String,
    },
    /// Conditionals lie at most 32 deep in each other; a guarded phase counts as one.
    #[error("node `{node}` lies {found} conditionals deep: at most {} are supported", super::program::MAX_NESTING)]
    NestingTooDeep {
        /// The first node that is too deep.
        node: String,
        /// How deep it lies.
        found: usize,
    },
    /// A view lies inside its buffer.
    #[error("node `{node}`: {part} takes {found} of `{buffer}`, whose shape is {shape}")]
    ViewOutOfBounds {
        /// The node.
        node: String,
        /// Its part.
        part: String,
        /// The buffer.
        buffer: String,
        /// The box.
        found: String,
        /// The buffer's shape.
        shape: Shape,
    },
    /// Shapes match where they must.
    #[error("node `{node}`: {part} has the shape {found}, expected {expected}")]
    ShapeMismatch {
        /// The node.
        node: String,
        /// Its part.
        part: String,
        /// Its shape.
        found: String,
        /// The shape that it must have.
        expected: String,
    },
    /// Types match where they must.
    #[error("node `{node}`: {part} is {found}, expected {expected}")]
    TypeMismatch {
        /// The node.
        node: String,
        /// Its part.
        part: String,
        /// Its type.
        found: String,
        /// The type that it must have.
        expected: String,
    },
    /// The inner extents of a matrix product agree, and the result has the outer ones.
    #[error(
        "node `{node}`: the product of {a} and {b} is not {d}: inner extents must agree, and D takes the outer ones"
    )]
    GemmDims {
        /// The node.
        node: String,
        /// op(A), as m × k.
        a: String,
        /// op(B), as k × n.
        b: String,
        /// D, as m × n.
        d: String,
    },
    /// A kernel's buffer arguments are contiguous, and so are a matrix's rows.
    #[error("node `{node}`: {part} is not contiguous: copy it to a buffer of its own first")]
    NotContiguous {
        /// The node.
        node: String,
        /// Its part.
        part: String,
    },
    /// A load or scattered store has one index term per axis, each inside the index space.
    #[error("node `{node}`: {part} is indexed with {found}, expected {expected}")]
    BadIndex {
        /// The node.
        node: String,
        /// Its part.
        part: String,
        /// What was given.
        found: String,
        /// What was needed.
        expected: String,
    },
    /// An operation gets operands of the types that it has a meaning for.
    #[error("node `{node}`: `{op}` of {found} has no meaning: {expected}")]
    ExprType {
        /// The node.
        node: String,
        /// The operation.
        op: String,
        /// The operand types.
        found: String,
        /// What it takes.
        expected: &'static str,
    },
    /// An expression has as many results as its node stores.
    #[error("node `{node}`: {part} has {found} results, expected {expected}")]
    ResultCount {
        /// The node.
        node: String,
        /// The expression.
        part: &'static str,
        /// How many it has.
        found: usize,
        /// How many are needed: stored values, then the places of scattered stores.
        expected: String,
    },
    /// Operations lie at most 1000 deep in each other.
    #[error(
        "node `{node}`: {part} is {found} operations deep, at most {} are supported: split the node",
        super::expr::MAX_DEPTH
    )]
    ExprTooDeep {
        /// The node.
        node: String,
        /// The expression.
        part: &'static str,
        /// How deep it is.
        found: u32,
    },
    /// A generated kernel takes at most 500 views and scalars: launches have 4 KiB of arguments.
    #[error(
        "node `{node}` touches {found} views and scalars, at most {} fit in one launch: split the node",
        super::access::MAX_OPERANDS
    )]
    TooManyOperands {
        /// The node.
        node: String,
        /// How many it touches.
        found: usize,
    },
    /// `acc` stands only where a node computed something: in an epilogue or a finish.
    #[error(
        "node `{node}`: `acc` has no meaning here: it stands for the product or the combined value of the same node"
    )]
    AccOutside {
        /// The node.
        node: String,
    },
    /// A reduction names axes of its index space, each once; argmax exactly one.
    #[error("node `{node}`: cannot reduce axes {found} of {space}: {expected}")]
    BadAxes {
        /// The node.
        node: String,
        /// The axes.
        found: String,
        /// The index space.
        space: Shape,
        /// What is possible.
        expected: &'static str,
    },
    /// A `Temp` is written before it is read: nothing is left over from the last launch.
    #[error(
        "node `{node}` reads `{buffer}`, which may hold nothing yet in this launch: write all of it first (what a branch, a loop or a guarded phase writes counts only inside of it), or make it a state"
    )]
    ReadBeforeWrite {
        /// The node.
        node: String,
        /// The `Temp`.
        buffer: String,
    },
    /// An accumulator is cleared: the first access of an `Output`, or of a `Temp` that is updated, writes it in full.
    #[error("node `{node}` updates `{buffer}`, which was not written in full before: clear it first (fill)")]
    UpdateBeforeWrite {
        /// The node.
        node: String,
        /// The buffer.
        buffer: String,
    },
    /// A `Temp` or `Output` that a step reads is written somewhere in the step.
    #[error(
        "`{buffer}` is never written in step `{step}`, but `{node}` reads it: write it, or make it an input or a state"
    )]
    NeverWritten {
        /// The step.
        step: String,
        /// A node that reads it.
        node: String,
        /// The buffer.
        buffer: String,
    },
    /// An `Output` is written by a node of some step: the host reads it.
    #[error("no node writes the output `{buffer}`: let one write it, or leave it out")]
    UnwrittenOutput {
        /// The buffer.
        buffer: String,
    },
    /// Inputs are written by the host alone.
    #[error("node `{node}` writes the input `{buffer}`: only the host writes inputs; write a temp or a state instead")]
    WritesInput {
        /// The node.
        node: String,
        /// The input.
        buffer: String,
    },
    /// Host scalars are written by the host alone.
    #[error("node `{node}` writes `{scalar}`, whose writer is the host: declare it with writer = \"device\"")]
    WritesHostScalar {
        /// The node.
        node: String,
        /// The scalar.
        scalar: String,
    },
    /// A device scalar has one writing node in a step (in each variant).
    #[error("scalar `{scalar}` is written by both `{first}` and `{second}`: a scalar has one writer in a step")]
    TwoWriters {
        /// The scalar.
        scalar: String,
        /// The first node.
        first: String,
        /// The second node.
        second: String,
    },
    /// A quantity that a kernel declares as `Scalar` changes between launches, so it cannot be baked.
    #[error("node `{node}`: `{arg}` changes between launches, but a constant was given: pass a scalar cell")]
    ConstForScalar {
        /// The node.
        node: String,
        /// The argument.
        arg: String,
    },
    /// A quantity that a kernel declares as `Const` is baked, so it cannot follow a cell.
    #[error("node `{node}`: `{arg}` is baked into the node, but a scalar cell was given: pass a constant")]
    ScalarForConst {
        /// The node.
        node: String,
        /// The argument.
        arg: String,
    },
    /// An argument is of the class that the kernel declares.
    #[error("node `{node}`: `{arg}` is declared {expected}, but {found} was given")]
    ArgClass {
        /// The node.
        node: String,
        /// The argument.
        arg: String,
        /// What was given.
        found: &'static str,
        /// The declared class.
        expected: &'static str,
    },
    /// Every declared argument is given.
    #[error("node `{node}`: the argument `{arg}` of kernel `{kernel}` is missing")]
    MissingArg {
        /// The node.
        node: String,
        /// The kernel.
        kernel: String,
        /// The argument.
        arg: String,
    },
    /// Only declared arguments are given.
    #[error("node `{node}`: kernel `{kernel}` has no argument `{arg}`{}", hint(.similar))]
    UnknownArg {
        /// The node.
        node: String,
        /// The kernel.
        kernel: String,
        /// The argument.
        arg: String,
        /// A declared argument that resembles it.
        similar: Option<String>,
    },
    /// A symbol of a kernel's declaration stands for one extent.
    #[error("node `{node}`: `{arg}` gives `{symbol}` the extent {found}, but it is {expected} by an earlier argument")]
    SymbolMismatch {
        /// The node.
        node: String,
        /// The argument.
        arg: String,
        /// The symbol.
        symbol: String,
        /// Its extent here.
        found: u32,
        /// Its extent before.
        expected: u32,
    },
    /// A kernel's declaration is consistent, and matches its CUDA source.
    #[error("kernel `{kernel}` in {file}: {reason}")]
    BadKernel {
        /// The kernel.
        kernel: String,
        /// The source file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// Outputs of one node do not overlap.
    #[error("node `{node}`: {first} and {second} overlap in `{buffer}`: give each output memory of its own")]
    OverlappingOutputs {
        /// The node.
        node: String,
        /// The first output.
        first: String,
        /// The second output.
        second: String,
        /// The shared buffer or scalar.
        buffer: String,
    },
    /// What a node writes it reads only in place: element by element in a map, through `InOut` in a kernel.
    #[error(
        "node `{node}`: {part} reads memory of `{buffer}` that the same node writes at another place: use a Temp between"
    )]
    ReadsOwnOutput {
        /// The node.
        node: String,
        /// The reading part.
        part: String,
        /// The buffer.
        buffer: String,
    },
    /// A store to computed places says what happens where places meet.
    #[error("node `{node}`: {part} is scattered without a rule: say `unique` or `same_value`, whichever holds")]
    ScatterWithoutRule {
        /// The node.
        node: String,
        /// The output.
        part: String,
    },
    /// `after` names nodes of the same phase or body.
    #[error("node `{node}` is `after` `{after}`, which is not in the same phase or body")]
    BadAfter {
        /// The node.
        node: String,
        /// The other node.
        after: String,
    },
    /// `after` and program order do not contradict each other.
    #[error("`after` closes a cycle: {}", .nodes.join(" → "))]
    Cycle {
        /// The nodes of the cycle; the first one is also the last.
        nodes: Vec<String>,
    },
    /// Conditions, selectors, guards and loop cells are `u32`.
    #[error("node `{node}`: {part} `{scalar}` is {found}: conditions, selectors and loop cells are u32")]
    ConditionType {
        /// The node or phase.
        node: String,
        /// Which cell.
        part: &'static str,
        /// The scalar.
        scalar: String,
        /// Its type.
        found: DType,
    },
    /// A loop ends: its bound is at least 1, and its cells are device scalars that only the loop and its body write.
    #[error("node `{node}`: {reason}")]
    BadLoop {
        /// The node.
        node: String,
        /// What is wrong.
        reason: String,
    },
}

fn hint(similar: &Option<String>) -> String {
    similar.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// A broken rule and the place where it was broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// The rule.
    pub error: ProgramError,
    /// The place.
    pub origin: Origin,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Origin::Code(_) => write!(f, "{}: {}", self.origin, self.error),
            Origin::Unknown | Origin::Spec { .. } => write!(f, "{}", self.error),
        }
    }
}

/// Everything that is wrong with a program, in the order in which it was found; never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "the program has {count} error{}", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|diagnostic| write!(f, "\n  {diagnostic}"))
    }
}

impl std::error::Error for Diagnostics {}

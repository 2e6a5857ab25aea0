//! Declarations of hand-written kernels.

use std::sync::Arc;

use super::dtype::DType;

/// What an argument is to its kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParamClass {
    /// A buffer that is only read: `const T* __restrict__`.
    In,
    /// A buffer that is written in full and not read: `T* __restrict__`.
    Out,
    /// A buffer that is read and written: `T* __restrict__`.
    InOut,
    /// A scalar cell that is read: `const T* __restrict__`.
    Scalar,
    /// A device scalar that is written: `T* __restrict__`.
    ScalarOut,
    /// A device scalar that is read and written: `T* __restrict__`.
    ScalarInOut,
    /// A constant baked into the node, passed by value: `T`.
    Const,
    /// The extent that a [`Dim::Symbol`] of this parameter's name was bound to, passed by value: `unsigned int`. Nobody
    /// supplies it.
    Size,
}

impl ParamClass {
    /// The class's name, as declarations write it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::In => "In",
            Self::Out => "Out",
            Self::InOut => "InOut",
            Self::Scalar => "Scalar",
            Self::ScalarOut => "ScalarOut",
            Self::ScalarInOut => "ScalarInOut",
            Self::Const => "Const",
            Self::Size => "Size",
        }
    }

    /// Whether a call supplies an argument: everything but sizes.
    pub const fn needs_argument(&self) -> bool {
        !matches!(self, Self::Size)
    }

    /// Whether the argument is a buffer.
    pub const fn is_buffer(&self) -> bool {
        matches!(self, Self::In | Self::Out | Self::InOut)
    }

    /// Whether the argument is a scalar cell.
    pub const fn is_scalar(&self) -> bool {
        matches!(self, Self::Scalar | Self::ScalarOut | Self::ScalarInOut)
    }

    /// Whether the kernel reads the argument's memory.
    pub const fn reads(&self) -> bool {
        matches!(self, Self::In | Self::InOut | Self::Scalar | Self::ScalarInOut)
    }

    /// Whether the kernel writes the argument's memory.
    pub const fn writes(&self) -> bool {
        matches!(self, Self::Out | Self::InOut | Self::ScalarOut | Self::ScalarInOut)
    }
}

/// One extent of a declared argument shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Any extent, the same wherever the symbol stands in the declaration.
    Symbol(String),
    /// Exactly this extent.
    Fixed(u32),
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelParam {
    /// Its name in the CUDA source.
    pub name: String,
    /// What it is to the kernel.
    pub class: ParamClass,
    /// Its element type; [`DType::U32`] for sizes.
    pub dtype: DType,
    /// The shape that a buffer argument must have; `None` takes any shape. A group is one flat axis.
    pub shape: Option<Vec<Dim>>,
}

/// How a kernel's grid follows from its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LaunchRule {
    /// One thread per `per_thread` elements of the argument: grid `ceil(elements / (block · per_thread))`.
    Elements {
        /// The buffer argument whose elements count.
        of: String,
        /// Threads of a block.
        block: u32,
        /// Elements that one thread handles.
        per_thread: u32,
    },
    /// One block per row of the argument; a row is the last axis.
    Rows {
        /// The buffer argument whose rows count.
        of: String,
        /// Threads of a block.
        block: u32,
    },
    /// One block per tile of the argument's last two axes: grid x over columns, y over rows, z over what is before them.
    Tiles {
        /// The buffer argument that is tiled.
        of: String,
        /// Rows and columns of a tile.
        tile: [u32; 2],
        /// Threads of a block.
        block: u32,
    },
    /// A fixed grid of fixed blocks.
    Fixed {
        /// Blocks along x, y, z.
        grid: [u32; 3],
        /// Threads along x, y, z.
        block: [u32; 3],
    },
}

/// Dynamic shared memory of a block: `base + per_unit · extent`, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct SharedRule {
    /// Bytes that every block takes.
    pub base: u32,
    /// Bytes per unit of the extent that a symbol was bound to.
    pub per_unit: Option<(u32, String)>,
}

/// A kernel's promise for programmatic dependent launch: it waits before it writes or reads what its predecessors make, and
/// triggers its dependents after the wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PdlContract {
    /// Arguments that are read before the wait.
    pub early: Vec<String>,
}

/// Where a kernel's CUDA C comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSource {
    /// The file's name, as messages and dumps show it.
    pub file: String,
    /// The whole text of the file.
    pub text: Arc<str>,
}

/// A hand-written kernel: what it takes and how it is launched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelDecl {
    /// The `extern "C"` name in the source.
    pub name: String,
    /// The source.
    pub source: KernelSource,
    /// The parameters, in the order of the C signature.
    pub params: Vec<KernelParam>,
    /// The launch rule.
    pub launch: LaunchRule,
    /// Dynamic shared memory.
    pub shared: SharedRule,
    /// Thread-block cluster extents, if the kernel needs a cluster.
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
    /// The kernel's promise for programmatic dependent launch, if it makes one.
    pub pdl: Option<PdlContract>,
}

impl KernelDecl {
    /// The parameter of this name and its position.
    pub fn param(&self, name: &str) -> Option<(usize, &KernelParam)> {
        self.params.iter().enumerate().find(|(_, param)| param.name == name)
    }
}

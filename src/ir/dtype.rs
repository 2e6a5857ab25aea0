//! Element types, and the constants that have them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use half::bf16;

/// The element type of a buffer or scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// bfloat16: loads widen to `f32`, stores round to nearest even. Buffers only.
    Bf16,
    /// 32-bit two's complement; arithmetic wraps.
    I32,
    /// 32-bit unsigned; arithmetic wraps.
    U32,
}

impl DType {
    /// Every element type.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::I32, Self::U32];

    /// Bytes of one element.
    pub const fn size(self) -> u64 {
        match self {
            Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
        }
    }

    /// The type's name, as specs and dumps write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::U32 => "u32",
        }
    }

    /// The type of the element in CUDA C.
    pub const fn c_name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::Bf16 => "__nv_bfloat16",
            Self::I32 => "int",
            Self::U32 => "unsigned int",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or(())
    }
}

/// A constant. Two constants are equal when their bits are, so that NaN equals itself and -0.0 differs from 0.0.
#[derive(Clone, Copy, Debug)]
pub enum ConstValue {
    /// A float.
    F32(f32),
    /// A signed integer.
    I32(i32),
    /// An unsigned integer.
    U32(u32),
}

impl ConstValue {
    /// The constant's element type.
    pub const fn dtype(self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::I32(_) => DType::I32,
            Self::U32(_) => DType::U32,
        }
    }

    /// The 32 bits that a kernel sees.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F32(x) => x.to_bits(),
            Self::I32(x) => x.cast_unsigned(),
            Self::U32(x) => x,
        }
    }

    /// The constant of type `dtype` with these bits; `None` for [`DType::Bf16`], which no constant has.
    pub const fn from_bits(dtype: DType, bits: u32) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32(f32::from_bits(bits))),
            DType::I32 => Some(Self::I32(bits.cast_signed())),
            DType::U32 => Some(Self::U32(bits)),
            DType::Bf16 => None,
        }
    }
}

impl PartialEq for ConstValue {
    fn eq(&self, other: &Self) -> bool {
        self.dtype() == other.dtype() && self.bits() == other.bits()
    }
}

impl Eq for ConstValue {}

impl Hash for ConstValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dtype().hash(state);
        self.bits().hash(state);
    }
}

/// Floats always show a point or an exponent (`1.0`, `1e-8`), integers never do.
impl fmt::Display for ConstValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32(x) => write!(f, "{x:?}"),
            Self::I32(x) => write!(f, "{x}"),
            Self::U32(x) => write!(f, "{x}"),
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
}

/// A Rust type that a buffer can hold.
pub trait Element: sealed::Sealed + bytemuck::Pod + fmt::Debug + Send + Sync {
    /// The matching element type.
    const DTYPE: DType;
    /// The type that the element has inside an expression: `f32` for `bf16`, itself otherwise.
    type Value: ScalarElement;
}

/// A Rust type that a scalar cell or a constant can hold.
pub trait ScalarElement: Element<Value = Self> {
    /// The constant with this value.
    fn to_const(self) -> ConstValue;
    /// The value with these 32 bits.
    fn from_bits(bits: u32) -> Self;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    type Value = Self;
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    type Value = f32;
}

impl Element for i32 {
    const DTYPE: DType = DType::I32;
    type Value = Self;
}

impl Element for u32 {
    const DTYPE: DType = DType::U32;
    type Value = Self;
}

impl ScalarElement for f32 {
    fn to_const(self) -> ConstValue {
        ConstValue::F32(self)
    }

    fn from_bits(bits: u32) -> Self {
        Self::from_bits(bits)
    }
}

impl ScalarElement for i32 {
    fn to_const(self) -> ConstValue {
        ConstValue::I32(self)
    }

    fn from_bits(bits: u32) -> Self {
        bits.cast_signed()
    }
}

impl ScalarElement for u32 {
    fn to_const(self) -> ConstValue {
        ConstValue::U32(self)
    }

    fn from_bits(bits: u32) -> Self {
        bits
    }
}

//! `kernel!`: declares a hand-written kernel once, and makes a typed argument struct of it.

/// Declares a kernel of a `.cu` file and makes a module of its name with
///
/// - `Args`: one named field per argument ([`Tensor`](crate::handle::Tensor) for `In`, `Out` and `InOut`,
///   [`Scalar`](crate::handle::Scalar) for `Scalar`, `ScalarOut` and `ScalarInOut`, [`Const`](crate::handle::Const) for `Const`;
///   sizes are absent, they follow from the shapes), to be given to [`Body::kernel`](crate::builder::Body::kernel);
/// - `Host`: what the kernel's host function gets (slices, values and references of the same names).
///
/// Parameters stand in the order of the C signature. A bracket after the type is the shape that a buffer must have: symbols stand
/// for one extent throughout, and a `Size` parameter of the same name receives it. The path is relative to the crate's root;
/// the text becomes part of the program. Clauses follow in any order: `launch` (needed), `shared`, `cluster`, `cooperative`,
/// `pdl`, `host`.
///
/// ```
/// stepgraph::kernel! {
///     /// y ← y + a·x.
///     pub axpy in "tests/kernels/axpy.cu" (
///         x: In<f32>[n], y: InOut<f32>[n], a: Scalar<f32>, n: Size,
///     )
///     launch elements(x, block = 256, per_thread = 1)
///     host axpy_host
/// }
///
/// fn axpy_host(call: axpy::Host<'_>) {
///     for (y, x) in call.y.iter_mut().zip(call.x) {
///         *y += call.a * x;
///     }
/// }
///
/// # fn main() -> Result<(), stepgraph::ir::Diagnostics> {
/// let mut p = stepgraph::Builder::new("demo");
/// let a = p.host_scalar("a", 2.0f32);
/// let x = p.input::<f32>("x", [100]);
/// let y = p.state::<f32>("y", [100], stepgraph::ir::Init::Zeros);
/// p.step("run", |s| s.phase("main", |f| f.kernel("axpy", axpy::Args { x, y, a })));
/// p.build()?;
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $vis:vis $name:ident in $file:literal ( $($params:tt)* ) $($clauses:tt)*
    ) => {
        $(#[$meta])*
        $vis mod $name {
            #[allow(unused_imports, reason = "host functions and element types of the declaring module")]
            use super::*;

            $crate::__kernel_params! { $name $file [] [] [] [] [] [$($params)*] [$($clauses)*] }
        }
    };
}

/// Sorts parameters into the fields of `Args` and `Host`, declarations, arguments and takes, one parameter at a time.
#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_params {
    // A size: no field of `Args`.
    (
        $name:ident $file:literal
        [$($args:tt)*] [$($host:tt)*] [$($decl:tt)*] [$($given:tt)*] [$($take:tt)*]
        [$arg:ident : Size $(, $($rest:tt)*)?] $clauses:tt
    ) => {
        $crate::__kernel_params! {
            $name $file
            [$($args)*]
            [$($host)* #[doc = concat!("Size `", stringify!($arg), "`.")] pub $arg: u32,]
            [$($decl)* $crate::ir::KernelParam {
                name: stringify!($arg).into(),
                class: $crate::ir::ParamClass::Size,
                dtype: $crate::ir::DType::U32,
                shape: None,
            },]
            [$($given)*]
            [$($take)* $arg Size,]
            [$($($rest)*)?] $clauses
        }
    };
    (
        $name:ident $file:literal
        [$($args:tt)*] [$($host:tt)*] [$($decl:tt)*] [$($given:tt)*] [$($take:tt)*]
        [$arg:ident : $class:ident < $ty:ty > $([ $($dim:tt),* $(,)? ])? $(, $($rest:tt)*)?] $clauses:tt
    ) => {
        $crate::__kernel_params! {
            $name $file
            [$($args)* #[doc = concat!("Argument `", stringify!($arg), "`.")] pub $arg: $crate::__kernel_arg!($class, $ty),]
            [$($host)* #[doc = concat!("Argument `", stringify!($arg), "`.")] pub $arg: $crate::__kernel_host!($class, $ty),]
            [$($decl)* $crate::ir::KernelParam {
                name: stringify!($arg).into(),
                class: $crate::ir::ParamClass::$class,
                dtype: <$ty as $crate::ir::Element>::DTYPE,
                shape: $crate::__kernel_shape!($([ $($dim),* ])?),
            },]
            [$($given)* $arg $class,]
            [$($take)* $arg $class,]
            [$($($rest)*)?] $clauses
        }
    };
    // All sorted.
    (
        $name:ident $file:literal
        [$($args:tt)*] [$($host:tt)*] [$($decl:tt)*] [$($given:ident $class:ident,)*] [$($taken:ident $taken_class:ident,)*]
        [] [$($clauses:tt)*]
    ) => {
        #[doc = concat!("The arguments of `", stringify!($name), "`.")]
        #[derive(Clone, Copy, Debug)]
        pub struct Args {
            $($args)*
        }

        #[doc = concat!("What the host function of `", stringify!($name), "` gets.")]
        #[derive(Debug)]
        pub struct Host<'a> {
            $($host)*
        }

        impl<'a> Host<'a> {
            /// Takes the arguments of one call, in declared order.
            pub fn take(args: &mut $crate::kernel::HostArgs<'a>) -> Self {
                Self { $($taken: $crate::__kernel_take!($taken_class, args)),* }
            }
        }

        impl $crate::kernel::KernelArgs for Args {
            fn def() -> $crate::kernel::KernelDef {
                let mut def = $crate::kernel::KernelDef {
                    decl: $crate::ir::KernelDecl {
                        name: stringify!($name).into(),
                        source: $crate::ir::KernelSource {
                            file: $file.into(),
                            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file)).into(),
                        },
                        params: vec![$($decl)*],
                        launch: $crate::__kernel_launch!($($clauses)*),
                        shared: $crate::ir::SharedRule::default(),
                        cluster: None,
                        cooperative: false,
                        pdl: None,
                    },
                    host: None,
                };
                $crate::__kernel_clauses!(def $($clauses)*);
                def
            }

            fn args(&self) -> Vec<(Option<$crate::handle::ProgramTag>, $crate::ir::Arg)> {
                let Self { $($given),* } = *self;
                vec![$($crate::__kernel_given!($class, $given)),*]
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_arg {
    (In, $ty:ty) => { $crate::handle::Tensor<$ty> };
    (Out, $ty:ty) => { $crate::handle::Tensor<$ty> };
    (InOut, $ty:ty) => { $crate::handle::Tensor<$ty> };
    (Scalar, $ty:ty) => { $crate::handle::Scalar<$ty> };
    (ScalarOut, $ty:ty) => { $crate::handle::Scalar<$ty> };
    (ScalarInOut, $ty:ty) => { $crate::handle::Scalar<$ty> };
    (Const, $ty:ty) => { $crate::handle::Const<$ty> };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_host {
    (In, $ty:ty) => { &'a [$ty] };
    (Out, $ty:ty) => { &'a mut [$ty] };
    (InOut, $ty:ty) => { &'a mut [$ty] };
    (Scalar, $ty:ty) => { $ty };
    (ScalarOut, $ty:ty) => { &'a mut $ty };
    (ScalarInOut, $ty:ty) => { &'a mut $ty };
    (Const, $ty:ty) => { $ty };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_given {
    (In, $value:expr) => {
        $crate::kernel::tensor_arg($value)
    };
    (Out, $value:expr) => {
        $crate::kernel::tensor_arg($value)
    };
    (InOut, $value:expr) => {
        $crate::kernel::tensor_arg($value)
    };
    (Const, $value:expr) => {
        $crate::kernel::const_arg($value)
    };
    ($scalar:ident, $value:expr) => {
        $crate::kernel::scalar_arg($value)
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_take {
    (In, $args:ident) => {
        $crate::kernel::elements($args.take())
    };
    (Out, $args:ident) => {
        $crate::kernel::elements_mut($args.take())
    };
    (InOut, $args:ident) => {
        $crate::kernel::elements_mut($args.take())
    };
    (Scalar, $args:ident) => {
        $crate::kernel::value($args.take())
    };
    (Const, $args:ident) => {
        $crate::kernel::value($args.take())
    };
    (Size, $args:ident) => {
        $crate::kernel::size($args.take())
    };
    ($cell:ident, $args:ident) => {
        $crate::kernel::cell($args.take())
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_shape {
    () => { None };
    ([ $($dim:tt),* ]) => { Some(vec![$($crate::__kernel_dim!($dim)),*]) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_dim {
    ($symbol:ident) => {
        $crate::ir::Dim::Symbol(stringify!($symbol).into())
    };
    ($extent:literal) => {
        $crate::ir::Dim::Fixed($extent)
    };
}

/// Finds the launch clause; a declaration without one does not compile.
#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_launch {
    (launch elements($of:ident, block = $block:literal, per_thread = $per_thread:literal) $($rest:tt)*) => {
        $crate::ir::LaunchRule::Elements { of: stringify!($of).into(), block: $block, per_thread: $per_thread }
    };
    (launch rows($of:ident, block = $block:literal) $($rest:tt)*) => {
        $crate::ir::LaunchRule::Rows { of: stringify!($of).into(), block: $block }
    };
    (launch tiles($of:ident, tile = [$rows:literal, $cols:literal], block = $block:literal) $($rest:tt)*) => {
        $crate::ir::LaunchRule::Tiles { of: stringify!($of).into(), tile: [$rows, $cols], block: $block }
    };
    (launch fixed(grid = [$gx:literal, $gy:literal, $gz:literal], block = [$bx:literal, $by:literal, $bz:literal])
        $($rest:tt)*) => {
        $crate::ir::LaunchRule::Fixed { grid: [$gx, $gy, $gz], block: [$bx, $by, $bz] }
    };
    ($other:tt $($rest:tt)*) => { $crate::__kernel_launch!($($rest)*) };
    () => { compile_error!("a kernel needs a launch clause: elements, rows, tiles or fixed") };
}

/// Applies the other clauses to a definition.
#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_clauses {
    ($def:ident) => {};
    ($def:ident launch $rule:ident $args:tt $($rest:tt)*) => { $crate::__kernel_clauses!($def $($rest)*) };
    ($def:ident shared($base:literal) $($rest:tt)*) => {
        $def.decl.shared.base = $base;
        $crate::__kernel_clauses!($def $($rest)*)
    };
    ($def:ident shared($base:literal + $per_unit:literal * $symbol:ident) $($rest:tt)*) => {
        $def.decl.shared = $crate::ir::SharedRule {
            base: $base,
            per_unit: Some(($per_unit, stringify!($symbol).into())),
        };
        $crate::__kernel_clauses!($def $($rest)*)
    };
    ($def:ident cluster [$x:literal, $y:literal, $z:literal] $($rest:tt)*) => {
        $def.decl.cluster = Some([$x, $y, $z]);
        $crate::__kernel_clauses!($def $($rest)*)
    };
    ($def:ident cooperative $($rest:tt)*) => {
        $def.decl.cooperative = true;
        $crate::__kernel_clauses!($def $($rest)*)
    };
    ($def:ident pdl(early = [$($early:ident),* $(,)?]) $($rest:tt)*) => {
        $def.decl.pdl = Some($crate::ir::PdlContract { early: vec![$(stringify!($early).into()),*] });
        $crate::__kernel_clauses!($def $($rest)*)
    };
    ($def:ident host $host:ident $($rest:tt)*) => {
        $def.host = Some($crate::kernel::HostFn(|args| $host(Host::take(args))));
        $crate::__kernel_clauses!($def $($rest)*)
    };
}

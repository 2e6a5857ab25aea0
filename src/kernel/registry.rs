//! The library's kernels by name, for programs that are written as text.

use super::library::{loss, optim, trading};
use super::{KernelArgs, KernelDef};

type Listed = (&'static str, fn() -> KernelDef);

/// Every kernel of the library, by name, in order.
const KERNELS: [Listed; 5] = [
    ("adam", <optim::adam::Args as KernelArgs>::def),
    ("branch_select", <trading::branch_select::Args as KernelArgs>::def),
    ("market_observe", <trading::market_observe::Args as KernelArgs>::def),
    ("market_trade", <trading::market_trade::Args as KernelArgs>::def),
    ("softmax_xent", <loss::softmax_xent::Args as KernelArgs>::def),
];

/// The library's kernel of this name.
pub fn find(name: &str) -> Option<KernelDef> {
    KERNELS.iter().find(|(known, _)| *known == name).map(|(_, def)| def())
}

/// The names of all kernels of the library, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    KERNELS.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: a spec finds every kernel under the name that its declaration and its CUDA source have, with a host function.
    #[test]
    fn names_are_those_of_the_declarations() {
        for name in names() {
            let def = find(name).expect("listed");
            assert_eq!(def.decl.name, name);
            assert!(def.host.is_some(), "{name} has no host function");
            assert!(def.decl.source.text.contains(&format!(" {name}(")), "{name} is not in {}", def.decl.source.file);
        }
        assert!(find("no_such_kernel").is_none());
        assert!(names().is_sorted());
    }
}

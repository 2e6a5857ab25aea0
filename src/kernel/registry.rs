//! The library's kernels by name, for programs that are written as text.

use super::library::{dqn, guarded, loss, optim, replay, spectral, trading};
use super::{KernelArgs, KernelDef};

type Listed = (&'static str, fn() -> KernelDef);

/// Every kernel of the library, by name, in order.
const KERNELS: &[Listed] = &[
    ("adam", <optim::adam::Args as KernelArgs>::def),
    ("adam_guarded", <guarded::adam_guarded::Args as KernelArgs>::def),
    ("branch_select", <trading::branch_select::Args as KernelArgs>::def),
    ("clip_factor", <guarded::clip_factor::Args as KernelArgs>::def),
    ("ema_guarded", <guarded::ema_guarded::Args as KernelArgs>::def),
    ("gather_relabel", <replay::gather_relabel::Args as KernelArgs>::def),
    ("market_observe", <trading::market_observe::Args as KernelArgs>::def),
    ("market_trade", <trading::market_trade::Args as KernelArgs>::def),
    ("prioritised_draw", <replay::prioritised_draw::Args as KernelArgs>::def),
    ("priority_update", <replay::priority_update::Args as KernelArgs>::def),
    ("softmax_xent", <loss::softmax_xent::Args as KernelArgs>::def),
    ("spectral_apply", <spectral::spectral_apply::Args as KernelArgs>::def),
    ("spectral_project", <spectral::spectral_project::Args as KernelArgs>::def),
    ("spectral_shrink", <spectral::spectral_shrink::Args as KernelArgs>::def),
    ("square_sums", <guarded::square_sums::Args as KernelArgs>::def),
    ("td_categorical", <dqn::td_categorical::Args as KernelArgs>::def),
    ("td_scalar", <dqn::td_scalar::Args as KernelArgs>::def),
    ("train_metrics", <dqn::train_metrics::Args as KernelArgs>::def),
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
    use crate::kernel::signature;

    /// Protects: a spec finds every kernel under its own name, with a host function, and the declaration is that of its source.
    #[test]
    fn names_are_those_of_the_declarations() {
        for name in names() {
            let def = find(name).expect("listed");
            assert_eq!(def.decl.name, name);
            assert!(def.host.is_some(), "{name} has no host function");
            let checked = signature::check(&def.decl);
            assert!(checked.is_ok(), "{name} in {}: {checked:?}", def.decl.source.file);
        }
        assert!(find("no_such_kernel").is_none());
        assert!(names().is_sorted());
    }
}

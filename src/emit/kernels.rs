//! Loading a plan's device code, and finding the kernels in it.

use std::collections::HashMap;
use std::sync::Arc;

use super::modules::PlanModules;
use crate::codegen::GeneratedKernel;
use crate::cuda::{Context, CudaError, Function, Module};
use crate::entity::{KernelId, NodeId};

/// Loads compiled modules into a context, each one once: plans of one program share most of them.
#[derive(Debug)]
pub struct Loader {
    context: Context,
    loaded: HashMap<Arc<[u8]>, Arc<Module>>,
}

/// The loaded device code of one plan.
#[derive(Debug)]
pub struct PlanKernels {
    compiled: PlanModules,
    loaded: Vec<Arc<Module>>,
}

impl Loader {
    /// A loader for this context, with nothing loaded yet.
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), loaded: HashMap::new() }
    }

    /// Loads what a plan launches.
    ///
    /// # Errors
    /// Whatever the driver says: code for another device, or from a compiler that is too new for it.
    pub fn load(&mut self, compiled: PlanModules) -> Result<PlanKernels, CudaError> {
        let mut loaded = Vec::with_capacity(compiled.modules().len());
        for module in compiled.modules() {
            loaded.push(match self.loaded.get(&module.image) {
                Some(known) => Arc::clone(known),
                None => {
                    let fresh = Module::load(&self.context, &module.image)?;
                    self.loaded.insert(Arc::clone(&module.image), Arc::clone(&fresh));
                    fresh
                }
            });
        }
        Ok(PlanKernels { compiled, loaded })
    }
}

impl PlanKernels {
    /// The generated kernels of a node, in launch order.
    pub(super) fn of_node(&self, node: NodeId) -> &[GeneratedKernel] {
        self.compiled.generated(node)
    }

    /// A generated kernel; `None` where the plan was compiled without it.
    pub(super) fn generated(&self, name: &str) -> Option<Result<Function, CudaError>> {
        self.compiled.generated_module().map(|module| self.loaded[module].function(name))
    }

    /// A hand-written kernel; `None` where the plan was compiled without it.
    pub(super) fn declared(&self, kernel: KernelId, name: &str) -> Option<Result<Function, CudaError>> {
        self.compiled.module_of(kernel).map(|module| self.loaded[module].function(name))
    }
}

//! The parameters of a generated kernel: which memory it takes, under which names.

use std::collections::HashSet;

use indexmap::IndexMap;

use super::kernel::ParamSource;
use super::names::{identifier, unique};
use crate::entity::{BufferId, ScalarId};
use crate::ir::{DType, Expr, ExprOp, Program, Store, Target};

/// The parameters, in order of first use. A buffer is one parameter however many views of it are used, so that `__restrict__`
/// holds: two parameters never share memory.
pub(super) struct Params<'a> {
    program: &'a Program,
    params: IndexMap<ParamSource, Param>,
    taken: HashSet<String>,
}

struct Param {
    name: String,
    c_type: String,
    written: bool,
}

impl<'a> Params<'a> {
    pub(super) fn new(program: &'a Program) -> Self {
        Self { program, params: IndexMap::new(), taken: HashSet::new() }
    }

    /// Everything that an expression reads.
    pub(super) fn add_expr(&mut self, expr: &Expr) {
        for op in expr.ops().values() {
            match op {
                ExprOp::Load { view, .. } => self.add_buffer(view.buffer, false),
                ExprOp::Scalar(scalar) => self.add_scalar(*scalar, false),
                _ => {}
            }
        }
    }

    /// Everything that stores write.
    pub(super) fn add_stores(&mut self, stores: &[Store]) {
        for store in stores {
            match store.target {
                Target::View(view) => self.add_buffer(view.buffer, true),
                Target::Scalar(scalar) => self.add_scalar(scalar, true),
            }
        }
    }

    pub(super) fn add_buffer(&mut self, buffer: BufferId, written: bool) {
        let declared = &self.program.buffers[buffer];
        self.add(
            ParamSource::Buffer(buffer),
            format!("d_{}", identifier(&declared.name)),
            c_type(declared.dtype),
            written,
        );
    }

    pub(super) fn add_scalar(&mut self, scalar: ScalarId, written: bool) {
        let declared = &self.program.scalars[scalar];
        let c_type = c_type(declared.init.dtype());
        self.add(ParamSource::Scalar(scalar), format!("s_{}", identifier(&declared.name)), c_type, written);
    }

    /// The workspace, as an array of `c_type`.
    pub(super) fn add_workspace(&mut self, name: &str, c_type: &str, written: bool) {
        self.add(ParamSource::Workspace, name.into(), c_type.into(), written);
    }

    pub(super) fn add_condition(&mut self) {
        self.add(ParamSource::Condition, "condition".into(), "unsigned long long".into(), false);
    }

    pub(super) fn add_stop(&mut self) {
        self.add(ParamSource::Stop, "stop".into(), "unsigned int".into(), false);
    }

    /// The C name of a buffer that was added.
    pub(super) fn buffer(&self, buffer: BufferId) -> &str {
        self.name(ParamSource::Buffer(buffer))
    }

    /// The C name of a scalar that was added.
    pub(super) fn scalar(&self, scalar: ScalarId) -> &str {
        self.name(ParamSource::Scalar(scalar))
    }

    /// The parameter list of the C signature.
    pub(super) fn signature(&self) -> String {
        let declare = |(source, param): (&ParamSource, &Param)| {
            let Param { name, c_type, written } = param;
            match source {
                ParamSource::Condition => format!("{c_type} {name}"),
                ParamSource::Stop => format!("const volatile {c_type}* {name}"),
                _ => format!("{}{c_type}* __restrict__ {name}", if *written { "" } else { "const " }),
            }
        };
        self.params.iter().map(declare).collect::<Vec<_>>().join(",\n    ")
    }

    /// Where the parameters come from, in the order of the signature.
    pub(super) fn sources(&self) -> Vec<ParamSource> {
        self.params.keys().copied().collect()
    }

    fn add(&mut self, source: ParamSource, name: String, c_type: String, written: bool) {
        if let Some(known) = self.params.get_mut(&source) {
            known.written |= written;
            return;
        }
        let name = unique(name, &mut self.taken);
        self.params.insert(source, Param { name, c_type, written });
    }

    fn name(&self, source: ParamSource) -> &str {
        &self.params[&source].name
    }
}

fn c_type(dtype: DType) -> String {
    dtype.c_name().into()
}

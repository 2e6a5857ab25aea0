//! `kernel`: calls of hand-written kernels.

use rustc_hash::FxHashMap;
use toml::de::DeValue;

use super::{Draft, StepReader};
use crate::ir::{Arg, Dim, KernelCall, KernelParam, NodeOp, ParamClass, ProgramError, Shape, Symbol, View};
use crate::spec::document::{Entry, Fields, Span, Text, similar};
use crate::spec::error::SpecError;
use crate::spec::kernels;
use crate::spec::syntax;
use crate::spec::view::{self, Place};

/// An argument as far as it is known.
enum Given {
    Known(Arg, Span),
    /// A `Temp` to be declared.
    New(String, Span),
}

impl<'d> StepReader<'_, '_, 'd> {
    /// `{ kernel = "name", arg = …, … }`: one key per argument; `args = { … }` where a name would clash.
    pub(super) fn kernel(&mut self, name: &str, fields: &mut Fields<'d>) -> Option<Draft> {
        let entry = fields.take("kernel")?;
        let text = self.cx.text(&entry, "the name of a kernel")?;
        let kernel = kernels::find(self.cx, &text)?;
        let params: Vec<KernelParam> = self.cx.program.kernels[kernel].params.clone();
        let supplied = || params.iter().filter(|param| param.class.needs_argument());
        let mut given = self.given(fields);
        let mut args = Vec::new();
        for param in supplied() {
            match given.iter().position(|entry| entry.key == param.name) {
                Some(at) => args.push(self.given_arg(param, &given.remove(at))),
                None => {
                    let (node, kernel, arg) = (name.to_owned(), text.text.to_owned(), param.name.clone());
                    self.cx.error(fields.span.clone(), ProgramError::MissingArg { node, kernel, arg });
                    args.push(None);
                }
            }
        }
        for entry in &given {
            let similar = similar(entry.key, supplied().map(|param| param.name.as_str()));
            let (node, kernel, arg) = (name.to_owned(), text.text.to_owned(), entry.key.to_owned());
            self.cx.error(entry.key_span(), ProgramError::UnknownArg { node, kernel, arg, similar });
        }
        self.poison_new(&args);
        let args = args.into_iter().collect::<Option<Vec<_>>>().filter(|_| given.is_empty())?;
        let symbols = self.symbols(params.iter().filter(|param| param.class.needs_argument()).zip(&args));
        let mut parts = Vec::new();
        let mut known = Vec::new();
        for (param, arg) in supplied().zip(args) {
            let (arg, span) = match arg {
                Given::Known(arg, span) => (arg, span),
                Given::New(name, span) => (self.declare_arg(param, &name, &span, &symbols)?, span),
            };
            parts.push((param.name.clone().into(), span));
            known.push(arg);
        }
        Some(Draft { op: NodeOp::Kernel(KernelCall { kernel, args: known }), parts })
    }

    /// The arguments of a call: what is left of its keys, and those of `args`.
    fn given(&mut self, fields: &mut Fields<'d>) -> Vec<Entry<'d>> {
        let mut given = fields.rest();
        if let Some(at) = given.iter().position(|entry| entry.key == "args" && entry.table().is_some()) {
            let args = given.remove(at);
            given.extend(args.table().map(crate::spec::document::entries).unwrap_or_default());
        }
        given
    }

    /// When a call is wrong, the outputs that it would declare are still no unknown names elsewhere.
    fn poison_new(&mut self, args: &[Option<Given>]) {
        for arg in args.iter().flatten() {
            if let Given::New(name, _) = arg {
                self.cx.poison(name);
            }
        }
    }

    fn given_arg(&mut self, param: &KernelParam, entry: &Entry<'d>) -> Option<Given> {
        let DeValue::String(_) = entry.value else {
            return self.cx.constant(entry, param.dtype).map(|value| Given::Known(Arg::Const(value), entry.span()));
        };
        let text = self.cx.text(entry, "an argument")?;
        if let Some(name) = text.text.strip_prefix('=') {
            let name = name.trim();
            self.is_new(name, &text.whole())?;
            return Some(Given::New(name.to_owned(), text.whole()));
        }
        if param.class == ParamClass::Const && !self.names_memory(&text) {
            return self.cx.constant(entry, param.dtype).map(|value| Given::Known(Arg::Const(value), text.whole()));
        }
        let ast = syntax::place(self.cx, &text)?;
        let arg = match view::resolve(self.cx, &ast, "buffer or scalar")? {
            Place::View(view, None) => Arg::View(view),
            Place::Group(group) => Arg::Group(group),
            Place::Scalar(scalar) => Arg::Scalar(scalar),
            Place::View(_, Some(_)) => {
                let expected = "a buffer or a slice of one".to_owned();
                let found = "indices that are computed".to_owned();
                return self.cx.fail(text.whole(), SpecError::Syntax { expected, found });
            }
        };
        Some(Given::Known(arg, text.whole()))
    }

    fn names_memory(&self, text: &Text<'_>) -> bool {
        self.cx.symbols.contains_key(text.text)
    }

    /// What the symbols of the declaration stand for, as far as the given arguments say. Contradictions are for validation.
    fn symbols<'p>(&self, args: impl Iterator<Item = (&'p KernelParam, &'p Given)>) -> FxHashMap<String, u32> {
        let mut symbols = FxHashMap::default();
        for (param, given) in args {
            let (Some(pattern), Given::Known(arg, _)) = (&param.shape, given) else { continue };
            let extents = match arg {
                Arg::View(view) => view.shape().dims().to_vec(),
                Arg::Group(group) => kernels::group_elements(&self.cx.program, *group).into_iter().collect(),
                Arg::Scalar(_) | Arg::Const(_) => continue,
            };
            for (dim, extent) in pattern.iter().zip(extents) {
                if let Dim::Symbol(symbol) = dim {
                    symbols.entry(symbol.clone()).or_insert(extent);
                }
            }
        }
        symbols
    }

    /// Declares the `Temp` that an argument asks for, with the shape that the declaration gives it.
    fn declare_arg(
        &mut self,
        param: &KernelParam,
        name: &str,
        span: &Span,
        symbols: &FxHashMap<String, u32>,
    ) -> Option<Arg> {
        if let Some(Symbol::Buffer(known)) = self.cx.symbols.get(name) {
            return Some(Arg::View(View::full(*known, &self.cx.program.buffers[*known].shape)));
        }
        let extent = |dim: &Dim| match dim {
            Dim::Fixed(extent) => Some(*extent),
            Dim::Symbol(symbol) => symbols.get(symbol).copied(),
        };
        let dims = param.shape.as_ref().filter(|_| param.class.is_buffer());
        let dims = dims.and_then(|dims| dims.iter().map(extent).collect::<Option<Vec<_>>>());
        let Some(shape) = dims.and_then(|dims| Shape::new(&dims)) else {
            let remedy = "the kernel's other arguments do not give it; declare it under [temp]";
            return self.cx.fail(span.clone(), SpecError::CannotInfer { what: format!("`{name}`"), remedy });
        };
        let buffer = self.cx.declare_temp(name, param.dtype, shape, span.clone());
        Some(Arg::View(View::full(buffer, &shape)))
    }
}

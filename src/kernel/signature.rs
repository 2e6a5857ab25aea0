//! Reads the kernel signatures of a `.cu` text, and compares declarations with them.
//!
//! It understands what hand-written kernels are written in: `extern "C" __global__ void name(parameters)`, with comments, launch
//! bounds, `__restrict__` and preprocessor lines between. It is no C++ compiler: templates and overloads are passed over.

mod tokens;

use std::collections::HashMap;
use std::fmt;

use crate::ir::{DType, KernelDecl, KernelParam, ParamClass};
use tokens::{Kind, Scan, Token};

/// A kernel as its source declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The `extern "C"` name.
    pub name: String,
    /// The line of the name, from 1.
    pub line: u32,
    /// The parameters, in order.
    pub params: Vec<CParam>,
    /// Where the kernel, or a function or macro that it uses, first waits for its predecessors (`griddepcontrol.wait`):
    /// the byte in the text.
    pub pdl_wait: Option<usize>,
    /// Where it first lets its dependents start (`griddepcontrol.launch_dependents`).
    pub pdl_trigger: Option<usize>,
}

/// One parameter of a [`Signature`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CParam {
    /// Its name.
    pub name: String,
    /// Its type, or that of the elements it points to.
    pub dtype: DType,
    /// How it is passed.
    pub passing: Passing,
}

/// How a parameter is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// `T`.
    Value,
    /// `const T*`.
    ConstPointer,
    /// `T*`.
    Pointer,
}

impl fmt::Display for CParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&c_type(self.dtype, self.passing))
    }
}

/// What a `.cu` text has that cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {fault}")]
pub struct SignatureError {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// The byte in the text.
    pub offset: usize,
    /// What is wrong there.
    pub fault: SignatureFault,
}

/// Why a `.cu` text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureFault {
    /// A comment, string or bracket has no end.
    #[error("this {what} is never closed")]
    Unclosed {
        /// What is open.
        what: &'static str,
    },
    /// A kernel returns nothing and has a name and a parameter list.
    #[error("expected {expected} of the kernel, found `{found}`")]
    Expected {
        /// What should stand here.
        expected: &'static str,
        /// What stands here.
        found: String,
    },
    /// Parameters are `float`, `int`, `unsigned int` or `__nv_bfloat16`, or pointers to them.
    #[error(
        "the parameter `{found}` of kernel `{kernel}`: use float, int, unsigned int or __nv_bfloat16, by value or by one pointer"
    )]
    UnknownType {
        /// The kernel.
        kernel: String,
        /// The parameter as written.
        found: String,
    },
    /// A parameter is passed by its name.
    #[error("a parameter of kernel `{kernel}` has no name")]
    Unnamed {
        /// The kernel.
        kernel: String,
    },
}

/// Why a declaration does not fit its source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclFault {
    /// The source cannot be read.
    #[error(transparent)]
    Unreadable(#[from] SignatureError),
    /// The source has the kernel.
    #[error("the source has no `extern \"C\" __global__ void {name}(…)`{}", other_kernels(.others))]
    NoKernel {
        /// The kernel.
        name: String,
        /// The kernels that it has.
        others: Vec<String>,
    },
    /// Both have as many parameters.
    #[error("the source has {source_count} parameters, the declaration {declared}")]
    Count {
        /// In the source.
        source_count: usize,
        /// In the declaration.
        declared: usize,
    },
    /// Both name parameters alike, in the same order.
    #[error("parameter {position} is `{found}` in the source and `{declared}` in the declaration")]
    Name {
        /// From 1.
        position: usize,
        /// In the source.
        found: String,
        /// In the declaration.
        declared: String,
    },
    /// A class and type mean one C type.
    #[error("`{param}` is `{found}` in the source, but {class}<{dtype}> means `{expected}`")]
    Type {
        /// The parameter.
        param: String,
        /// Its C type.
        found: String,
        /// The declared class.
        class: &'static str,
        /// The declared element type.
        dtype: DType,
        /// The C type of that class.
        expected: String,
    },
    /// Programmatic dependent launch needs both halves in the kernel and a declaration.
    #[error("programmatic dependent launch: {reason}")]
    Pdl {
        /// What is missing, and what to do.
        reason: &'static str,
    },
}

/// Every `extern "C"` kernel of a text, in order.
///
/// # Errors
/// The first thing that cannot be read.
pub fn parse(text: &str) -> Result<Vec<Signature>, SignatureError> {
    let scan = Scan::new(text)?;
    let helpers = Helpers::new(&scan);
    let mut found = Vec::new();
    let (mut at, mut linkage) = (0, Linkage::default());
    while let Some(token) = scan.tokens.get(at) {
        linkage.step(&scan.tokens, at);
        at += 1;
        if token.is("__global__") && linkage.is_c() {
            let (signature, next) = Reader { scan: &scan, at }.kernel(&helpers)?;
            linkage.declared();
            found.push(signature);
            at = next;
        }
    }
    Ok(found)
}

/// Compares a declaration with its source: the kernel exists and has the declared parameters.
///
/// # Errors
/// The first difference.
pub fn check(decl: &KernelDecl) -> Result<(), DeclFault> {
    check_against(decl, &parse(&decl.source.text)?)
}

/// [`check`] with the source's signatures at hand.
///
/// # Errors
/// The first difference.
pub fn check_against(decl: &KernelDecl, signatures: &[Signature]) -> Result<(), DeclFault> {
    let Some(signature) = signatures.iter().find(|signature| signature.name == decl.name) else {
        let others = signatures.iter().map(|signature| signature.name.clone()).collect();
        return Err(DeclFault::NoKernel { name: decl.name.clone(), others });
    };
    let (source_count, declared) = (signature.params.len(), decl.params.len());
    if source_count != declared {
        return Err(DeclFault::Count { source_count, declared });
    }
    for (position, (found, param)) in (1..).zip(signature.params.iter().zip(&decl.params)) {
        if found.name != param.name {
            return Err(DeclFault::Name { position, found: found.name.clone(), declared: param.name.clone() });
        }
        check_type(found, param)?;
    }
    check_pdl(decl, signature)
}

fn check_type(found: &CParam, param: &KernelParam) -> Result<(), DeclFault> {
    let passing = match param.class {
        ParamClass::In | ParamClass::Scalar => Passing::ConstPointer,
        ParamClass::Out | ParamClass::InOut | ParamClass::ScalarOut | ParamClass::ScalarInOut => Passing::Pointer,
        ParamClass::Const | ParamClass::Size => Passing::Value,
    };
    if (found.dtype, found.passing) == (param.dtype, passing) {
        return Ok(());
    }
    Err(DeclFault::Type {
        param: param.name.clone(),
        found: found.to_string(),
        class: param.class.name(),
        dtype: param.dtype,
        expected: c_type(param.dtype, passing),
    })
}

fn check_pdl(decl: &KernelDecl, signature: &Signature) -> Result<(), DeclFault> {
    let reason = match (decl.pdl.is_some(), signature.pdl_wait, signature.pdl_trigger) {
        (false, None, None) => return Ok(()),
        (true, Some(wait), Some(trigger)) if wait <= trigger => return Ok(()),
        (_, Some(_), Some(_)) if decl.pdl.is_some() => "the kernel triggers before it waits: call pdl_wait() first",
        (true, None, _) => "the kernel never waits: call pdl_wait() before the first write or hazardous read",
        (_, Some(_), None) => "the kernel never triggers: call pdl_trigger() after pdl_wait()",
        (false, None, Some(_)) => "the kernel triggers but never waits: call pdl_wait() first",
        (_, Some(_), Some(_)) => "the kernel waits and triggers, but is not declared so: declare pdl(early = [])",
    };
    Err(DeclFault::Pdl { reason })
}

fn other_kernels(names: &[String]) -> String {
    if names.is_empty() { "; it has no kernel".into() } else { format!("; it has {}", names.join(", ")) }
}

fn c_type(dtype: DType, passing: Passing) -> String {
    match passing {
        Passing::Value => dtype.c_name().into(),
        Passing::ConstPointer => format!("const {}*", dtype.c_name()),
        Passing::Pointer => format!("{}*", dtype.c_name()),
    }
}

/// Whether the declaration at hand has C linkage: by `extern "C"` before it, or by a block around it.
#[derive(Default)]
struct Linkage {
    depth: usize,
    blocks: Vec<usize>,
    here: bool,
}

impl Linkage {
    fn step(&mut self, tokens: &[Token<'_>], at: usize) {
        let token = &tokens[at];
        if token.is("extern") && tokens.get(at + 1).is_some_and(|next| next.text == "\"C\"") {
            match tokens.get(at + 2) {
                Some(open) if open.is("{") => self.blocks.push(self.depth),
                _ => self.here = true,
            }
        } else if token.is("{") {
            self.depth += 1;
        } else if token.is("}") {
            self.depth = self.depth.saturating_sub(1);
            if self.blocks.last() == Some(&self.depth) {
                self.blocks.pop();
            }
            self.here = false;
        } else if token.is(";") {
            self.here = false;
        }
    }

    fn is_c(&self) -> bool {
        self.here || self.blocks.last().is_some_and(|block| block + 1 == self.depth)
    }

    fn declared(&mut self) {
        self.here = false;
    }
}

/// Reads one kernel from behind `__global__`.
struct Reader<'s, 't> {
    scan: &'s Scan<'t>,
    at: usize,
}

impl<'t> Reader<'_, 't> {
    fn kernel(mut self, helpers: &Helpers<'t>) -> Result<(Signature, usize), SignatureError> {
        self.attributes()?;
        self.expect("void", "the return type `void`")?;
        self.attributes()?;
        let name = self.next("the name")?;
        if name.kind != Kind::Word {
            return Err(self
                .scan
                .error(name.offset, SignatureFault::Expected { expected: "the name", found: name.text.into() }));
        }
        self.expect("(", "the parameter list")?;
        let params = self.params(name.text)?;
        let (wait, trigger) = match self.scan.tokens.get(self.at) {
            Some(open) if open.is("{") => {
                let end = self.scan.matching(self.at)?;
                let body = &self.scan.tokens[self.at..end];
                self.at = end;
                helpers.halves(body)
            }
            _ => (None, None),
        };
        let line = self.scan.position(name.offset).0;
        let signature = Signature { name: name.text.into(), line, params, pdl_wait: wait, pdl_trigger: trigger };
        Ok((signature, self.at))
    }

    /// Passes over `__launch_bounds__(…)`, `static`, `inline` and the like.
    fn attributes(&mut self) -> Result<(), SignatureError> {
        while let Some(token) = self.scan.tokens.get(self.at) {
            let is_attribute = token.text.starts_with("__") && token.text.ends_with("__");
            if !is_attribute && !token.is("static") && !token.is("inline") {
                break;
            }
            self.at += 1;
            if self.scan.tokens.get(self.at).is_some_and(|next| next.is("(")) {
                self.at = self.scan.matching(self.at)?;
            }
        }
        Ok(())
    }

    fn next(&mut self, expected: &'static str) -> Result<Token<'t>, SignatureError> {
        let token = self.scan.tokens.get(self.at).copied().ok_or_else(|| {
            let fault = SignatureFault::Expected { expected, found: "the end of the file".into() };
            self.scan.error(self.scan.text.len(), fault)
        })?;
        self.at += 1;
        Ok(token)
    }

    fn expect(&mut self, text: &str, expected: &'static str) -> Result<(), SignatureError> {
        let token = self.next(expected)?;
        if token.is(text) {
            return Ok(());
        }
        Err(self.scan.error(token.offset, SignatureFault::Expected { expected, found: token.text.into() }))
    }

    /// The parameters, from behind the opening bracket; leaves the reader behind the closing one.
    fn params(&mut self, kernel: &str) -> Result<Vec<CParam>, SignatureError> {
        let close = self.scan.matching(self.at - 1)? - 1;
        let tokens = &self.scan.tokens[self.at..close];
        self.at = close + 1;
        if tokens.is_empty() || tokens.len() == 1 && tokens[0].is("void") {
            return Ok(Vec::new());
        }
        tokens.split(|token| token.is(",")).map(|param| self.param(kernel, param, close)).collect()
    }

    fn param(&self, kernel: &str, tokens: &[Token<'t>], close: usize) -> Result<CParam, SignatureError> {
        let offset = tokens.first().map_or(self.scan.tokens[close].offset, |token| token.offset);
        let unnamed = || self.scan.error(offset, SignatureFault::Unnamed { kernel: kernel.into() });
        let Some((name, rest)) = tokens.split_last() else { return Err(unnamed()) };
        let written = || tokens.iter().map(|token| token.text).collect::<Vec<_>>().join(" ");
        let unknown =
            || self.scan.error(offset, SignatureFault::UnknownType { kernel: kernel.into(), found: written() });
        let pointers = rest.iter().filter(|token| token.is("*")).count();
        let before_pointer = rest.split(|token| token.is("*")).next().unwrap_or_default();
        let is_const = before_pointer.iter().any(|token| token.is("const"));
        let words = rest.iter().map(|token| token.text).filter(|word| !is_qualifier(word));
        let dtype = dtype_of(&words.collect::<Vec<_>>());
        if name.kind != Kind::Word || dtype_of(&[name.text]).is_some() || is_qualifier(name.text) {
            return Err(if dtype_of(&[name.text]).is_some() || name.is("*") { unnamed() } else { unknown() });
        }
        let passing = match (pointers, is_const) {
            (0, _) => Passing::Value,
            (1, true) => Passing::ConstPointer,
            (1, false) => Passing::Pointer,
            _ => return Err(unknown()),
        };
        Ok(CParam { name: name.text.into(), dtype: dtype.ok_or_else(unknown)?, passing })
    }
}

fn is_qualifier(word: &str) -> bool {
    matches!(word, "const" | "__restrict__" | "__restrict" | "__grid_constant__" | "*")
}

fn dtype_of(words: &[&str]) -> Option<DType> {
    match words {
        ["float"] => Some(DType::F32),
        ["int" | "int32_t"] | ["signed", "int"] => Some(DType::I32),
        ["unsigned" | "uint32_t" | "uint"] | ["unsigned", "int"] => Some(DType::U32),
        ["__nv_bfloat16" | "nv_bfloat16"] => Some(DType::Bf16),
        _ => None,
    }
}

/// The functions and macros of a text that hold a half of programmatic dependent launch.
struct Helpers<'t> {
    /// By name: whether it waits, whether it triggers.
    known: HashMap<&'t str, (bool, bool)>,
}

impl<'t> Helpers<'t> {
    fn new(scan: &Scan<'t>) -> Self {
        let names = ["pdl_wait", "cudaGridDependencySynchronize"].map(|name| (name, (true, false)));
        let triggers = ["pdl_trigger", "cudaTriggerProgrammaticLaunchCompletion"].map(|name| (name, (false, true)));
        let mut helpers = Self { known: names.into_iter().chain(triggers).collect() };
        // A helper stands before its users in C, so one pass in order finds helpers of helpers too.
        for (name, body) in scan.definitions() {
            let (wait, trigger) = helpers.halves(body);
            if wait.is_some() || trigger.is_some() {
                let entry = helpers.known.entry(name).or_default();
                *entry = (entry.0 || wait.is_some(), entry.1 || trigger.is_some());
            }
        }
        helpers
    }

    /// Where a body first waits, and where it first triggers.
    fn halves(&self, body: &[Token<'t>]) -> (Option<usize>, Option<usize>) {
        let first = |half: fn(&(bool, bool)) -> bool, instruction: &str| {
            let holds = |token: &&Token<'_>| match token.kind {
                Kind::Text => token.text.contains(instruction),
                Kind::Word => self.known.get(token.text).is_some_and(half),
                Kind::Other => false,
            };
            body.iter().find(holds).map(|token| token.offset)
        };
        let wait = first(|halves| halves.0, "griddepcontrol.wait");
        (wait, first(|halves| halves.1, "griddepcontrol.launch_dependents"))
    }
}

#[cfg(test)]
mod tests;

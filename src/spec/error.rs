//! What can be wrong with a spec, and where: every error carries the bytes of the guilty text.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::ir::{Diagnostics, Origin, ProgramError};

/// A rule of the file format, or of the program that it describes, that a spec breaks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// The file can be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// A spec is UTF-8 text.
    #[error("{path} is not UTF-8 text: byte {offset} is no part of a character")]
    NotUtf8 {
        /// The file.
        path: String,
        /// The first byte that is wrong.
        offset: usize,
    },
    /// A spec is TOML 1.1.
    #[error("not TOML: {reason}")]
    Toml {
        /// What the TOML parser said.
        reason: String,
    },
    /// Every key has a meaning: none is ignored.
    #[error("{place} has no key `{key}`{}", hint(.similar))]
    UnknownKey {
        /// The table.
        place: String,
        /// The key.
        key: String,
        /// A known key that resembles it.
        similar: Option<String>,
    },
    /// Keys without a default are given.
    #[error("{place} needs the key `{key}`")]
    MissingKey {
        /// The table.
        place: String,
        /// The key.
        key: &'static str,
    },
    /// Of keys that exclude each other, one is given.
    #[error("{place} has both `{first}` and `{second}`: keep one")]
    Conflict {
        /// The table.
        place: String,
        /// One key.
        first: String,
        /// The other.
        second: String,
    },
    /// A value is of the kind that its key takes.
    #[error("`{key}` is {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// What it takes.
        expected: String,
        /// What was given.
        found: String,
    },
    /// Expressions follow the grammar.
    #[error("expected {expected}, found {found}")]
    Syntax {
        /// What could stand here.
        expected: String,
        /// What stands here.
        found: String,
    },
    /// Expressions nest at most 256 deep.
    #[error(
        "the expression nests deeper than {} levels: name parts of it, with `let` or as dimensions",
        super::syntax::MAX_DEPTH
    )]
    TooDeep,
    /// Dimension arithmetic gives integers: no overflow, no remainder, no division by zero.
    #[error("`{text}` {reason}")]
    BadDim {
        /// The arithmetic, as written.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A dimension that is set from outside is one that the spec declares.
    #[error("the spec has no dimension `{name}`{}", hint(.similar))]
    UnknownDim {
        /// The name.
        name: String,
        /// A declared dimension that resembles it.
        similar: Option<String>,
    },
    /// A number fits the type that it is given to.
    #[error("`{what}` is {dtype}, which cannot hold {found}")]
    BadNumber {
        /// What it is for.
        what: String,
        /// The number.
        found: String,
        /// The type.
        dtype: &'static str,
    },
    /// An integer literal takes the type of what it stands with.
    #[error("`{text}` could be f32, i32 or u32 here: write 1.0, 1i or 1u")]
    UntypedLiteral {
        /// The literal.
        text: String,
    },
    /// A name is used for what it stands for.
    #[error("`{name}` is {found}, expected {expected}")]
    WrongKind {
        /// The name.
        name: String,
        /// What it stands for.
        found: &'static str,
        /// What is possible here.
        expected: &'static str,
    },
    /// A function gets as many arguments as it takes.
    #[error("`{name}` takes {expected} arguments, found {found}")]
    ArgCount {
        /// The function.
        name: String,
        /// How many it takes.
        expected: usize,
        /// How many it got.
        found: usize,
    },
    /// A buffer is indexed along its own axes.
    #[error("`{name}` has {axes} axes, but is indexed with {found}")]
    IndexCount {
        /// The buffer.
        name: String,
        /// How many axes it has.
        axes: usize,
        /// How many indices were given.
        found: usize,
    },
    /// A pointer that a kernel writes through says how.
    #[error("{place} must give the class of `{param}` ({found}): Out, InOut, ScalarOut or ScalarInOut")]
    MissingClass {
        /// The table.
        place: String,
        /// The parameter.
        param: String,
        /// Its C type.
        found: String,
    },
    /// A slice takes at least one element.
    #[error("the slice {found} takes nothing: it goes from its start, counted from 0, up to, not including, its end")]
    BadSlice {
        /// The bounds.
        found: String,
    },
    /// A node says what it does.
    #[error("`{node}` does not say what it does: give it one of the keys {}", super::nodes::KINDS.join(", "))]
    NoKind {
        /// The node.
        node: String,
    },
    /// Operands broadcast against the index space, aligned at the last axis.
    #[error("{what} of shape {found} does not broadcast to {space}: extents must be equal or 1, counted from the last")]
    Broadcast {
        /// The operand.
        what: String,
        /// Its shape.
        found: String,
        /// The index space, or what the other operands give.
        space: String,
    },
    /// A shape that is not written must follow from what is.
    #[error("the shape of {what} does not follow from anything here: {remedy}")]
    CannotInfer {
        /// What has no shape.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A node has as many outputs as its expression has results.
    #[error("the expression has {results} results, but {outputs} outputs are named")]
    OutputCount {
        /// Results of the expression.
        results: usize,
        /// Outputs.
        outputs: usize,
    },
    /// A rule of the program itself.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl SpecError {
    /// What to do, where the message alone does not say it.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::UnknownKey { .. } => Some("unknown keys are refused, so that a misspelt option is never ignored"),
            Self::Broadcast { .. } => {
                Some("give the index of every axis, as in `x[i0, idx[i1]]`, to read it otherwise")
            }
            Self::CannotInfer { .. } => Some("a shape is an array of extents, as in `over = [\"B\", 16]`"),
            Self::BadDim { .. } => Some("dimensions are integers: + - * / % and parentheses, with exact division"),
            Self::MissingKey { key: "writer", .. } => Some(
                "`writer = \"host\"` where the host sets it between launches, `writer = \"device\"` where a node writes it",
            ),
            Self::Program(ProgramError::ConstForScalar { .. }) => {
                Some("declare a cell under [scalar] and name it: its value can then change without planning anew")
            }
            _ => None,
        }
    }
}

fn hint(similar: &Option<String>) -> String {
    similar.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// An error and the bytes of the spec that it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    /// The rule.
    pub error: SpecError,
    /// The guilty bytes; empty at 0 where no text is guilty.
    pub span: Range<usize>,
}

impl Labelled {
    /// What is wrong.
    pub fn message(&self) -> String {
        self.error.to_string()
    }

    /// What to do, where the message alone does not say it.
    pub fn help(&self) -> Option<&'static str> {
        self.error.help()
    }
}

/// Everything that is wrong with a spec, in the order of its text; never empty.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct SpecErrors {
    /// The file's name, as messages show it.
    pub name: String,
    /// The spec's text.
    pub source_text: Arc<str>,
    /// The errors.
    pub errors: Vec<Labelled>,
}

impl SpecErrors {
    /// The errors of a spec, ordered by place.
    pub(super) fn new(name: &str, source_text: Arc<str>, mut errors: Vec<Labelled>) -> Self {
        errors.sort_by_key(|labelled| labelled.span.start);
        errors.dedup();
        Self { name: name.to_owned(), source_text, errors }
    }

    /// The errors that validation found in the program of a spec.
    pub fn of_program(name: &str, source_text: Arc<str>, diagnostics: Diagnostics) -> Self {
        let labelled = diagnostics.0.into_iter().map(|diagnostic| Labelled {
            error: diagnostic.error.into(),
            span: match diagnostic.origin {
                Origin::Spec { start, end } => start..end,
                Origin::Unknown | Origin::Code(_) => 0..0,
            },
        });
        Self::new(name, source_text, labelled.collect())
    }

    /// The line of a byte of the spec, counted from 1.
    pub fn line(&self, byte: usize) -> usize {
        self.source_text.bytes().take(byte).filter(|&byte| byte == b'\n').count() + 1
    }
}

impl fmt::Display for SpecErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.errors.len();
        write!(f, "{} has {count} error{}", self.name, if count == 1 { "" } else { "s" })?;
        for labelled in &self.errors {
            write!(f, "\n  line {}: {}", self.line(labelled.span.start), labelled.error)?;
        }
        Ok(())
    }
}

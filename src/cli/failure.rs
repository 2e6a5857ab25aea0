//! What went wrong, as the user sees it: reports that underline the guilty text, and the exit code.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use miette::{Diagnostic, LabeledSpan, Report, SourceCode};
use stepgraph::bench::BenchError;
use stepgraph::ir::Origin;
use stepgraph::plan::PlanError;
use stepgraph::runtime::RuntimeError;
use stepgraph::spec::{SpecError, SpecErrors};

use super::excerpt::{Excerpt, Source, readable};

/// Why a command ended early.
#[derive(Debug)]
pub(super) struct Failure {
    code: u8,
    reports: Vec<Report>,
}

impl Failure {
    const PROGRAM: u8 = 1;
    const USAGE: u8 = 2;
    const DEVICE: u8 = 3;

    /// The command line asks for something that is not there.
    pub(super) fn usage(message: impl fmt::Display) -> Self {
        Self::plain(Self::USAGE, &message)
    }

    /// The program or its data is wrong.
    pub(super) fn program(message: impl fmt::Display) -> Self {
        Self::plain(Self::PROGRAM, &message)
    }

    fn plain(code: u8, message: &dyn fmt::Display) -> Self {
        Self { code, reports: vec![Report::msg(message.to_string())] }
    }

    /// What has no steps cannot be planned.
    pub(super) fn no_steps() -> Self {
        Self::program("the program has no steps: declare one, as [STEP.PHASE]")
    }

    /// A step of this spec cannot be planned as the command line asks.
    pub(super) fn of_plan(error: &PlanError, source: &Source) -> Self {
        let asked_wrongly = matches!(
            error,
            PlanError::UnknownStep { .. }
                | PlanError::UnknownVariant { .. }
                | PlanError::VariantNeeded { .. }
                | PlanError::LoopOfParts { .. }
                | PlanError::TooManyUnits { .. }
        );
        let excerpt = match error.origin() {
            Origin::Spec { start, end } => Some(source.excerpt(start..end)),
            Origin::Unknown | Origin::Code(_) => None,
        };
        let help = matches!(error, PlanError::VariantNeeded { .. }).then_some("--variant NAME");
        let report = Report::new(Located { message: error.to_string(), help, excerpt });
        Self { code: if asked_wrongly { Self::USAGE } else { Self::PROGRAM }, reports: vec![report] }
    }

    /// Prints the reports and gives the exit code. Nothing can be done where standard error is closed.
    pub(super) fn report(self) -> ExitCode {
        let mut err = io::stderr().lock();
        for report in &self.reports {
            drop(writeln!(err, "{report:?}"));
        }
        let count = self.reports.len();
        if count > 1 {
            drop(writeln!(err, "{count} errors"));
        }
        ExitCode::from(self.code)
    }
}

/// An error with the text that it is about.
#[derive(Debug)]
struct Located {
    message: String,
    help: Option<&'static str>,
    excerpt: Option<Excerpt>,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&readable(&self.message))
    }
}

impl std::error::Error for Located {}

impl Diagnostic for Located {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.excerpt.as_ref().map(|excerpt| excerpt as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.excerpt.as_ref()?.span();
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(None, span))))
    }
}

impl From<SpecErrors> for Failure {
    fn from(errors: SpecErrors) -> Self {
        let SpecErrors { name, source_text, errors } = errors;
        let only_usage = errors.iter().all(|labelled| matches!(labelled.error, SpecError::UnknownDim { .. }));
        let code = if only_usage { Self::USAGE } else { Self::PROGRAM };
        let source = Source { name, text: source_text };
        let reports = errors.into_iter().map(|labelled| {
            // An empty span at 0 means that no text is guilty.
            let is_located = labelled.span != (0..0) && !source.text.is_empty();
            let excerpt = is_located.then(|| source.excerpt(labelled.span.clone()));
            Report::new(Located { message: labelled.message(), help: labelled.help(), excerpt })
        });
        Self { code, reports: reports.collect() }
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        let code = if error.is_device_failure() { Self::DEVICE } else { Self::PROGRAM };
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            message.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        Self::plain(code, &message)
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Session { source, .. } => source.into(),
            other => Self::program(other),
        }
    }
}

/// Printing failed; a reader that has seen enough is no error.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self { code: 0, reports: Vec::new() };
        }
        Self::program(format_args!("cannot print: {error}"))
    }
}

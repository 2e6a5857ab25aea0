//! Tickets: the claim on one launch's results.

use super::backend::Completion;
use super::error::RuntimeError;
use super::history::Moment;
use super::session::Session;
use crate::handle::{Scalar, Tensor};
use crate::ir::{Element, ScalarElement};

/// Stands for one launch. It waits for that launch only, and reads only what that launch wrote.
///
/// A ticket may be dropped; the launch runs on.
#[derive(Debug)]
pub struct Ticket {
    pub(super) session: u64,
    pub(super) plan: usize,
    pub(super) moment: Moment,
    pub(super) launch: Completion,
}

/// The results of a launch that has finished.
#[derive(Debug)]
pub struct Outputs<'a> {
    session: &'a mut Session,
    ticket: &'a Ticket,
}

impl Ticket {
    /// The number of the launch in its session, from 1; a later launch has a larger one, on whatever lane.
    pub fn launch(&self) -> u64 {
        self.launch.number
    }

    /// The results, where the launch has finished; never blocks.
    ///
    /// # Errors
    /// A ticket of another session, or a launch that failed on the device.
    pub fn try_take<'a>(&'a self, session: &'a mut Session) -> Result<Option<Outputs<'a>>, RuntimeError> {
        let done = session.is_done(self)?;
        Ok(done.then_some(Outputs { session, ticket: self }))
    }

    /// Waits for this launch, and for nothing that was launched later or on another lane.
    ///
    /// # Errors
    /// As [`Ticket::try_take`].
    pub fn wait<'a>(&'a self, session: &'a mut Session) -> Result<Outputs<'a>, RuntimeError> {
        session.wait_for(self)?;
        Ok(Outputs { session, ticket: self })
    }
}

impl Outputs<'_> {
    /// The elements that the launch wrote, row-major.
    ///
    /// # Errors
    /// A handle of another program, memory that the step does not write, or memory that something has overwritten since.
    pub fn read<T: Element>(&mut self, tensor: Tensor<T>) -> Result<Vec<T>, RuntimeError> {
        self.session.read_of(self.ticket, tensor)
    }

    /// The value that the launch gave a device scalar.
    ///
    /// # Errors
    /// As [`Outputs::read`].
    pub fn read_scalar<T: ScalarElement>(&mut self, scalar: Scalar<T>) -> Result<T, RuntimeError> {
        self.session.read_scalar_of(self.ticket, scalar)
    }
}

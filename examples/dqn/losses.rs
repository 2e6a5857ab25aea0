//! Losses, picked up when they have arrived: training goes on while they are on their way.

use stepgraph::Builder;
use stepgraph::builder::{Ix, axis};
use stepgraph::handle::Tensor;
use stepgraph::kernel::library::dqn::METRICS;
use stepgraph::runtime::{RuntimeError, Session, Ticket};

use super::train::{Dqn, RING};

/// The step `report`, and where it leaves what the last training step measured: later training steps do not touch it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported {
    /// One row of [`METRICS`].
    row: Tensor<f32>,
}

impl Reported {
    /// Adds the step.
    pub(crate) fn add(p: &mut Builder, dqn: &Dqn) -> Self {
        let row = p.output("reported", [METRICS.len() as u32]);
        let last = Ix::from((dqn.counters.steps - 1u32) % RING);
        p.step("report", |s| {
            s.phase("copy", |f| {
                f.map_to("last", row, dqn.outputs.ring.at([last, axis(0)]));
            });
        });
        Self { row }
    }
}

/// What a training step reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Progress {
    /// Training steps of the fold so far.
    pub(crate) done: usize,
    /// The mean temporal-difference loss of the last batch.
    pub(crate) loss: f32,
    /// The probability of a random action.
    pub(crate) epsilon: f32,
}

/// The report that is on its way.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    under_way: Option<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    done: usize,
    epsilon: f32,
    ticket: Ticket,
}

impl Losses {
    /// Asks for the loss of the step that was launched last, the fold's `done`-th. No other report is on its way.
    ///
    /// # Errors
    /// A device that failed.
    pub(crate) fn ask(&mut self, session: &mut Session, done: usize, epsilon: f32) -> Result<(), RuntimeError> {
        let ticket = session.launch("report")?;
        self.under_way = Some(UnderWay { done, epsilon, ticket });
        Ok(())
    }

    /// The report that is on its way, where it has arrived; never waits.
    ///
    /// # Errors
    /// As [`Losses::ask`].
    pub(crate) fn arrived(
        &mut self,
        session: &mut Session,
        reported: Reported,
    ) -> Result<Option<Progress>, RuntimeError> {
        match &self.under_way {
            Some(report) if report.ticket.try_take(session)?.is_some() => self.wait(session, reported),
            _ => Ok(None),
        }
    }

    /// The report that is on its way, once it has arrived.
    ///
    /// # Errors
    /// As [`Losses::ask`].
    pub(crate) fn wait(&mut self, session: &mut Session, reported: Reported) -> Result<Option<Progress>, RuntimeError> {
        let Some(UnderWay { done, epsilon, ticket }) = self.under_way.take() else { return Ok(None) };
        let loss = ticket.wait(session)?.read(reported.row)?[0];
        Ok(Some(Progress { done, loss, epsilon }))
    }
}

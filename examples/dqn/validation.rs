//! Validation beside training: the policy of one epoch trades the validation window while the next epoch trains.
//!
//! The evaluation has a lane of its own and its own copy of the weights, which training publishes to at the end of an epoch.
//! Nothing here waits, but for [`Validation::finish`]: a result is picked up at the end of the next epoch, where it has arrived.

use serde::{Deserialize, Serialize};
use stepgraph::runtime::{Publish, RuntimeError, Session, Ticket};

use super::evaluate::Evaluation;
use super::report::Metrics;

/// The lane that evaluations run on.
pub(crate) const LANE: &str = "validation";

/// The link from the trained weights to the copy that evaluations read.
pub(crate) const LINK: &str = "weights";

/// What the policy at the end of an epoch is worth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Validated {
    /// From 1.
    pub(crate) epoch: usize,
    /// The greedy policy over the validation window.
    pub(crate) policy: Metrics,
}

/// The evaluation that is under way, and the results so far.
#[derive(Debug, Default)]
pub(crate) struct Validation {
    under_way: Option<UnderWay>,
    results: Vec<Validated>,
}

#[derive(Debug)]
struct UnderWay {
    epoch: usize,
    ticket: Ticket,
    bars: u32,
}

impl Validation {
    /// Goes on from these results, with nothing under way.
    pub(crate) fn from(results: Vec<Validated>) -> Self {
        Self { under_way: None, results }
    }

    /// The results so far, by epoch. An epoch whose predecessor's evaluation was still running at its end has none.
    pub(crate) fn results(&self) -> &[Validated] {
        &self.results
    }

    /// The epoch of the highest reward so far, the first where several are equal.
    pub(crate) fn best(&self) -> Option<Validated> {
        let better = |best: Option<Validated>, &next: &Validated| match best {
            Some(best) if best.policy.reward >= next.policy.reward => Some(best),
            _ => Some(next),
        };
        self.results.iter().fold(None, better)
    }

    /// Picks up the result of the evaluation that is under way, where it has finished; never waits.
    ///
    /// # Errors
    /// A device that failed.
    pub(crate) fn collect(
        &mut self,
        session: &mut Session,
        evaluation: &Evaluation,
    ) -> Result<Option<Validated>, RuntimeError> {
        let Some(run) = &self.under_way else { return Ok(None) };
        if run.ticket.try_take(session)?.is_none() {
            return Ok(None);
        }
        self.finish(session, evaluation)
    }

    /// Waits for the evaluation that is under way, if any, and for nothing else.
    ///
    /// # Errors
    /// As [`Validation::collect`].
    pub(crate) fn finish(
        &mut self,
        session: &mut Session,
        evaluation: &Evaluation,
    ) -> Result<Option<Validated>, RuntimeError> {
        let Some(UnderWay { epoch, ticket, bars }) = self.under_way.take() else { return Ok(None) };
        let policy = Metrics::of(&evaluation.take(session, &ticket, bars)?);
        let result = Validated { epoch, policy };
        self.results.push(result);
        Ok(Some(result))
    }

    /// Publishes the present weights, and starts to evaluate them over `first .. first + bars`; `false`, with nothing done, while
    /// the last evaluation is still running.
    ///
    /// # Errors
    /// As [`Validation::collect`].
    pub(crate) fn start(
        &mut self,
        session: &mut Session,
        evaluation: &Evaluation,
        epoch: usize,
        (first, bars): (u32, u32),
    ) -> Result<bool, RuntimeError> {
        if self.under_way.is_some() || session.try_publish(LINK)? == Publish::Busy {
            return Ok(false);
        }
        let ticket = evaluation.launch(session, "greedy", first, bars)?;
        self.under_way = Some(UnderWay { epoch, ticket, bars });
        Ok(true)
    }
}

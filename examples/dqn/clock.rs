//! When steps end, on the clock of what runs them: the device's, by events in the stream of training, or the host's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use cudarc::driver::{CudaContext, CudaStream};
use stepgraph::cuda::{Context, Event, Stream};
use stepgraph::runtime::{Device, Session, SessionBuilder};

/// Notes the ends of steps.
#[derive(Debug)]
pub(crate) enum Clock {
    /// Steps end before their launch returns.
    Host(Vec<Instant>),
    /// The device notes the time behind each step.
    Device {
        /// The stream of training, as the session takes it and as events are recorded in it.
        stream: (Arc<CudaStream>, Stream),
        /// One for each step of the longest epoch so far.
        events: Vec<Event>,
        /// Steps of this epoch.
        steps: usize,
    },
}

impl Clock {
    /// The clock of a device.
    ///
    /// # Errors
    /// A device that does not work.
    pub(crate) fn of(device: Device) -> Result<Self> {
        let Device::Cuda { ordinal } = device else { return Ok(Self::Host(Vec::new())) };
        // Says what is missing, where the bindings would panic.
        Context::primary(ordinal)?;
        let stream = CudaContext::new(ordinal as usize)?.new_stream()?;
        let own = Stream::of_user(Arc::clone(&stream))?;
        Ok(Self::Device { stream: (stream, own), events: Vec::new(), steps: 0 })
    }

    /// A session that this clock can follow.
    pub(crate) fn session(&self) -> SessionBuilder {
        match self {
            Self::Host(_) => Session::builder(),
            Self::Device { stream: (stream, _), .. } => Session::builder().cuda_stream(Arc::clone(stream)),
        }
    }

    /// Forgets the last epoch.
    pub(crate) fn begin(&mut self) {
        match self {
            Self::Host(ends) => ends.clear(),
            Self::Device { steps, .. } => *steps = 0,
        }
    }

    /// Notes the end of the step that was launched last.
    ///
    /// # Errors
    /// A device that failed.
    pub(crate) fn note(&mut self) -> Result<()> {
        match self {
            Self::Host(ends) => ends.push(Instant::now()),
            Self::Device { stream: (_, stream), events, steps } => {
                if events.len() == *steps {
                    events.push(Event::timed(stream.context())?);
                }
                events[*steps].record(stream)?;
                *steps += 1;
            }
        }
        Ok(())
    }

    /// The longest time between the ends of two steps of the epoch, all of which have ended.
    ///
    /// # Errors
    /// A device that failed.
    pub(crate) fn longest(&self) -> Result<Duration> {
        match self {
            Self::Host(ends) => Ok(ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()),
            Self::Device { events, steps, .. } => {
                let mut longest = 0f32;
                for pair in events[..*steps].windows(2) {
                    longest = longest.max(pair[0].milliseconds_to(&pair[1])?);
                }
                Ok(Duration::from_secs_f32(longest / 1e3))
            }
        }
    }
}

//! Progress of long work: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How long work runs before it says anything, and between two lines.
const QUIET: Duration = Duration::from_secs(5);

/// Counts launches on standard error.
pub(super) struct Progress {
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
    said: Instant,
}

impl Progress {
    pub(super) fn new(total: u64) -> Self {
        let bar = (io::stderr().is_terminal() && total > 1).then(|| {
            let style = ProgressStyle::with_template("{bar:40} {pos}/{len} launches, {eta} left");
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { total, done: 0, bar, said: Instant::now() }
    }

    /// One more launch is done.
    pub(super) fn step(&mut self) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None if self.said.elapsed() >= QUIET => {
                self.said = Instant::now();
                // Progress that nobody can read is no failure of the work.
                drop(writeln!(io::stderr(), "{} of {} launches", self.done, self.total));
            }
            None => {}
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

//! What the host changes from step to step: the learning rate and the share of random actions.

/// A quantity that warms up linearly, then falls along half a cosine (Loshchilov and Hutter, 2017).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cosine {
    /// The highest value.
    pub(crate) peak: f32,
    /// The value at the end.
    pub(crate) last: f32,
    /// The share of the run that warms up.
    pub(crate) warmup: f32,
}

impl Cosine {
    /// The value after `done` of `total` steps.
    pub(crate) fn at(&self, done: usize, total: usize) -> f32 {
        let progress = progress(done, total);
        if progress < self.warmup {
            return self.peak * (progress / self.warmup).max(1.0 / 16.0);
        }
        let fall = (progress - self.warmup) / (1.0 - self.warmup).max(f32::EPSILON);
        self.last + (self.peak - self.last) * 0.5 * (1.0 + (std::f32::consts::PI * fall).cos())
    }
}

/// A quantity that falls linearly over a first share of the run, and stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ramp {
    /// The value at the start.
    pub(crate) first: f32,
    /// The value from the end of the fall on.
    pub(crate) last: f32,
    /// The share of the run that the fall takes.
    pub(crate) over: f32,
}

impl Ramp {
    /// The value after `done` of `total` steps.
    pub(crate) fn at(&self, done: usize, total: usize) -> f32 {
        let fall = (progress(done, total) / self.over.max(f32::EPSILON)).min(1.0);
        self.first * (1.0 - fall) + self.last * fall
    }
}

fn progress(done: usize, total: usize) -> f32 {
    (done as f32 / total.max(1) as f32).min(1.0)
}

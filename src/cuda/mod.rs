//! The driver layer: every line of unsafe code. It knows nothing of programs and plans.

//! The Rust API for declaring programs.

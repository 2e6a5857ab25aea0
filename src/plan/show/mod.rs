//! Plans for people and tools: text, DOT and JSON.
//!
//! All three show names, never numbers of the compiler's own, and the same bytes every time.

mod describe;
mod dot;
mod edges;
mod expr;
mod json;
mod memory;
mod names;
mod text;

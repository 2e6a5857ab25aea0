//! What only a GPU can show: the numbers of every node kind, replays, lifetimes, faults and what a step costs.
//!
//! The binary needs no Rust, no source and no network where it runs (`tests/gpu.sh`, `docs/testing.md`). Without a driver each
//! test prints why it is skipped; with `STEPGRAPH_REQUIRE_GPU=1` that is a failure. `STEPGRAPH_GPU_DRY_RUN=1` runs on the
//! host in place of a device whatever does not look at the driver, to check the tests themselves.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the example uses what these tests do not")]
#[path = "../../examples/digits/program.rs"]
mod digits;
#[allow(dead_code, reason = "the example uses what these tests do not")]
#[path = "../common/dqn.rs"]
mod dqn;
#[path = "../kernels/axpy.rs"]
mod kernels;

mod backtest;
mod checkpoint;
mod control;
mod cost;
mod epochs;
mod faults;
mod finite;
mod flagship;
mod lanes;
mod lifetime;
mod network;
mod nodes;
mod products;
mod random;
mod repeat;
mod replay;
mod side_by_side;
mod soak;
mod support;
mod trading;
mod twins;

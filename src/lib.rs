#![doc = include_str!("../README.md")]

pub mod analysis;
pub mod bench;
pub mod builder;
pub mod codegen;
pub mod compile;
pub mod cuda;
pub mod emit;
pub mod entity;
pub mod file;
pub mod handle;
pub mod host;
pub mod ir;
pub mod kernel;
pub mod pass;
pub mod plan;
pub mod runtime;
pub mod spec;
pub mod valid;

pub use builder::Builder;

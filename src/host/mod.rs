//! The CPU executor: runs any plan without CUDA, in plan order or any other legal one.

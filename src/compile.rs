//! The ordered pipeline: from a declared program to a plan.

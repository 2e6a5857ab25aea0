//! Specs: programs as TOML, in and out.

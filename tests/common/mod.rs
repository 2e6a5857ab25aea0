//! What several test binaries share.
#![allow(dead_code, reason = "each test binary uses a part of what is here")]

pub(crate) mod random;

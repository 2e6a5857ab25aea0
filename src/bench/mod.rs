//! Comparing plans honestly: interleaved, checked, with a noise floor.

//! coldproof.

//! The UPF.
pub mod rules;

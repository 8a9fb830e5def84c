//! Shared-memory virtual ports.
pub mod packet;

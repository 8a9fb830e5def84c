//! Sessions' rules at work: tables, workers, policers, packets that wait.

mod complaints;
mod hosts;
mod nat;
mod networks;
mod policing;
mod sessions;
mod tables;
mod waiting;
mod workers;

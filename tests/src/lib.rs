//! End-to-end tests: a node of its own for each, real containers, real traffic.

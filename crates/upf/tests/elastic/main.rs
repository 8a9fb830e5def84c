//! Workers that come and go, and buckets that move, while packets flow over shared-memory ports: nothing is lost, doubled or
//! overtaken, and what belongs to a session goes with it.

mod flows;
mod moves;
mod scene;
#[path = "../forwarding/sessions.rs"]
mod sessions;

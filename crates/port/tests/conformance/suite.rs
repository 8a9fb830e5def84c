//! The properties that are tested, and how a property becomes a test of each backend.

use crate::backend::{Backend, Declared};
use crate::backends::BACKENDS;

/// Tests of all properties over the backends of these names.
macro_rules! conformance {
    (over $backends:tt) => {
        suite! {
            over $backends:
            backend:
                it_declares_what_its_ports_show;
            frames:
                frames_arrive_whole_and_in_order
                frames_leave_whole_and_in_order
                frames_of_every_length_arrive
                frames_of_every_length_leave
                frames_keep_the_tags_of_virtual_networks
                lengths_that_it_does_not_carry_are_taken_and_counted
                received_frames_can_be_changed_and_sent_on
                a_burst_is_sent_on_as_its_packets_are
                a_long_burst_is_sent_on_as_its_packets_are
                what_was_received_stays_as_it_is_until_the_next_receive;
            flow:
                bursts_are_bounded_and_sends_are_not
                an_empty_queue_gives_empty_bursts
                what_a_full_peer_refuses_stays_the_callers_and_nothing_is_lost
                a_peer_that_does_not_read_blocks_nobody
                counters_count_what_passes
                a_peer_that_comes_back_is_served_again
                what_a_peer_sent_before_it_left_arrives;
            held:
                frames_that_are_held_reach_another_thread_whole_and_in_order
                what_is_held_stays_as_it_is_while_the_sender_goes_on
                while_frames_are_held_nothing_else_is_received_and_nobody_sleeps;
            waiting:
                a_queue_where_frames_wait_is_not_slept_on
                a_sleeper_is_woken_for_every_frame
                a_waiter_returns_when_frames_come;
            steering:
                frames_reach_the_queue_that_owns_their_bucket_in_order
                frames_whose_ports_lie_deep_reach_the_queue_that_owns_their_bucket
                tunnels_of_every_kind_spread_as_evenly_as_plain_ones
                buckets_go_where_the_function_wants_them
                a_bucket_leaves_when_all_that_was_sent_of_it_is_read;
        }
    };
}

/// Makes a test of each property for each backend.
macro_rules! suite {
    (over $backends:tt: $($file:ident: $($property:ident)*;)*) => {
        suite! { @ $backends { $($($file::$property)*)* } }
    };
    (@ { $($backend:ident)* } $properties:tt) => {
        $(mod $backend {
            suite! { @tests $backend $properties }
        })*
    };
    (@tests $backend:ident { $($file:ident::$property:ident)* }) => {
        $(#[test]
        fn $property() {
            crate::suite::check(stringify!($backend), stringify!($property), crate::$file::$property);
        })*
    };
}

/// Runs a property on a thread of its own, which may change its network namespace.
pub fn check(backend: &str, name: &'static str, property: fn(&Backend) -> Declared) {
    let backend = BACKENDS.iter().find(|other| other.name == backend).unwrap();
    let on = || std::thread::spawn(move || (backend.prepare)().map(|()| property(backend))).join();
    match on() {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(reason))) => println!("not applicable: {name} on {}: {reason}", backend.name),
        Ok(Err(reason)) => println!("SKIPPED {name} on {}: {reason}", backend.name),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

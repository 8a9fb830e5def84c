//! Changes and successions of a pool, without a broker.

use super::*;

const A: u64 = 100;
const B: u64 = 101;

/// Three members of one queue each, of which two are there.
fn pool() -> Pool {
    let mut pool = Pool::new(&["a", "b", "c"].map(str::to_owned), 1);
    (pool.members[0], pool.members[1]) = (Some(A), Some(B));
    pool
}

fn table(owner: impl Fn(u8) -> u8) -> BucketTable {
    BucketTable::new(core::array::from_fn(|bucket| owner(bucket as u8)), 3).unwrap()
}

/// Up to the moment when senders know of a table by which all odd buckets go to `to`.
fn moving(to: u8) -> Pool {
    let mut pool = pool();
    assert!(pool.begin(table(|bucket| bucket % 2 * to)));
    pool.prepared(0);
    assert_eq!(pool.next(true, 0), None, "b is not ready");
    pool.prepared(1);
    assert_eq!(pool.next(false, 0), None, "a member has not the generation that senders have");
    assert_eq!(pool.next(true, 0), Some(Next::Publish));
    assert_eq!(pool.next(true, 0), None);
    pool
}

const ODD: u128 = 0xaaaa_aaaa_aaaa_aaaa_aaaa_aaaa_aaaa_aaaa;

#[test]
fn a_change_is_complete_when_all_was_given_and_has_come() {
    let mut pool = moving(1);
    assert_eq!((pool.epoch, pool.had(3), pool.begin(table(|_| 0))), (2, 0, false));
    assert_eq!(pool.sent(0, 3, false).ok(), Some(1));
    assert_eq!(pool.sent(0, 3, false).ok(), None, "twice");
    assert_eq!(pool.sent(0, 2, false).ok(), None, "it does not move");
    assert_eq!(pool.sent(1, 5, false).ok(), None, "it is not that member's");
    assert!((1..128).step_by(2).all(|bucket| bucket == 3 || pool.sent(0, bucket, false).ok() == Some(1)));
    pool.gave(0);
    pool.gave(1);
    pool.came(1, ODD & !8);
    pool.came(0, 8);
    assert_eq!((pool.next(true, 0), pool.waits_for()), (None, vec!["b".to_owned()]));
    pool.came(1, 8);
    assert_eq!(pool.next(true, 0), Some(Next::Close));
    assert!(pool.change.is_none() && pool.begin(table(|_| 2)));
}

#[test]
fn what_a_member_that_dies_had_arrives_without_state() {
    let mut pool = moving(1);
    assert_eq!(pool.sent(0, 1, false).ok(), Some(1));
    pool.left(0);
    let rest: Vec<u8> = (3..128).step_by(2).collect();
    assert_eq!(pool.next(true, 0), Some(Next::Deliver(rest)));
    assert_eq!(pool.next(true, 0), None);
    pool.gave(1);
    pool.came(1, ODD);
    assert_eq!(pool.next(true, 0), Some(Next::Close));
}

#[test]
fn nobody_overtakes_what_a_member_that_died_had_sent() {
    let mut pool = moving(1);
    pool.gave(1);
    assert_eq!((pool.survived(Instant::now()), pool.look_at), (0, None));
    pool.left(0);
    assert_eq!(pool.survived(Instant::now()), 0b001);
    assert_eq!(pool.next(true, 0b001), None, "it was not read");
    assert!(pool.look_at.is_some_and(|look_at| look_at <= Instant::now() + LOOK_EVERY));
    assert_eq!(pool.survived(Instant::now() + READ_WITHIN), 0, "and may never be");
    assert!(matches!(pool.next(true, 0), Some(Next::Deliver(odd)) if odd.len() == 64));
    assert_eq!((pool.survived(Instant::now()), pool.look_at), (0, None));
}

#[test]
fn nobody_waits_for_a_member_that_dies_before_its_buckets_come() {
    let mut pool = moving(1);
    pool.gave(0);
    pool.left(1);
    assert_eq!(pool.next(true, 0), Some(Next::Close));
    assert_eq!(pool.table.queue(1), 1, "they are its own when it is there again");
}

#[test]
fn what_goes_to_nobody_is_given_all_the_same() {
    let mut pool = moving(2);
    assert_eq!(pool.sent(0, 1, false).ok(), Some(2));
    pool.gave(1);
    assert_eq!(pool.next(true, 0), None);
    pool.gave(0);
    assert_eq!(pool.next(true, 0), Some(Next::Close));
}

#[test]
fn a_pool_without_members_changes_at_once() {
    let mut pool = Pool::new(&["a", "b"].map(str::to_owned), 2);
    assert_eq!((pool.table.queue(0), pool.table.queue(1), pool.queues()), (0, 1, 4));
    assert!(pool.begin(BucketTable::fixed(4)));
    assert_eq!(
        (pool.next(true, 0), pool.next(true, 0), pool.next(true, 0)),
        (Some(Next::Publish), Some(Next::Close), None)
    );
}

/// What a broker left that died after senders knew of `moving`'s table.
fn left_by(pool: &Pool) -> Standing {
    pool.standing(0b011)
}

fn later() -> Instant {
    Instant::now() + std::time::Duration::from_secs(60)
}

/// A broker that has adopted both links of a pool.
fn adopted(links: [&Standing; 2]) -> Pool {
    let mut pool = Pool::new(&["a", "b", "c"].map(str::to_owned), 1);
    assert!(links.into_iter().all(|standing| pool.adopt(standing, later())));
    pool
}

fn progress(closed: u64, known: u64, come: u128) -> Progress {
    Progress { closed, known, come, ports: 2 }
}

#[test]
fn a_pool_at_rest_is_found_as_it_was() {
    let mut former = moving(1);
    former.change = None;
    let mut pool = adopted([&left_by(&former); 2]);
    assert_eq!((pool.epoch, pool.table, pool.links()), (2, former.table, 0));
    assert_eq!((pool.next(true, 0), pool.waits_for()), (None, ["a", "b"].map(str::to_owned).to_vec()));
    assert!(!pool.arrived(0, A, progress(1, 1, 0)), "of another epoch");
    assert!(!pool.arrived(0, A, progress(u64::MAX, 0, 0)));
    assert!(pool.arrived(0, A, progress(2, 3, 0)), "ready for an epoch that never was");
    assert_eq!((pool.next(true, 0), pool.links()), (None, 2), "b is missing");
    assert!(pool.arrived(1, B, progress(2, 2, 0)));
    assert_eq!(pool.next(false, 0), None, "a link is not there yet");
    assert_eq!(pool.next(true, 0), Some(Next::Rest));
    assert!(pool.change.is_none() && pool.begin(table(|_| 2)));
}

#[test]
fn a_change_goes_on_with_what_has_not_come() {
    let mut pool = adopted([&left_by(&moving(1)); 2]);
    // Of what is not its own, nothing has come to it.
    assert!(pool.arrived(0, A, progress(1, 2, 1 << 5)));
    assert!(pool.arrived(1, B, progress(1, 2, 1 << 1 | 1 << 3)));
    assert_eq!((pool.next(true, 0), pool.come()), (Some(Next::Publish), 1 << 1 | 1 << 3));
    assert_eq!(
        (pool.sent(0, 3, false).ok(), pool.sent(1, 5, false).ok(), pool.sent(0, 5, false).ok()),
        (None, None, Some(1))
    );
    pool.gave(1);
    pool.gave(0);
    let rest: Vec<u8> = (7..128).step_by(2).collect();
    assert_eq!(pool.next(true, 0), Some(Next::Deliver(rest)), "what was not given when all was");
    pool.came(1, ODD);
    assert_eq!(pool.next(true, 0), Some(Next::Close));
}

#[test]
fn a_change_is_over_if_one_member_knows_it() {
    let mut pool = adopted([&left_by(&moving(1)); 2]);
    assert!(pool.arrived(0, A, progress(1, 2, 0)) && pool.arrived(1, B, progress(2, 2, 0)));
    assert_eq!(pool.next(true, 0), Some(Next::Rest));
}

#[test]
fn of_two_tables_the_newer_counts() {
    let former = moving(1);
    let before = Standing { epoch: 1, table: former.before, ..left_by(&pool()) };
    for links in [[&before, &left_by(&former)], [&left_by(&former), &before]] {
        let mut pool = adopted(links);
        assert_eq!((pool.epoch, pool.table), (2, former.table));
        assert!(pool.arrived(0, A, progress(1, 2, 0)) && pool.arrived(1, B, progress(1, 2, 0)));
        assert_eq!((pool.next(true, 0), pool.come()), (Some(Next::Publish), 0));
    }
}

#[test]
fn tables_that_do_not_go_together_are_of_no_use() {
    let first = left_by(&moving(1));
    let mut pool = adopted([&first; 2]);
    for other in [
        Standing { table: table(|_| 2), ..first },
        Standing { epoch: 3, before: table(|_| 2), ..first },
        Standing { epoch: 4, ..first },
        Standing { epoch: 1, table: table(|_| 2), ..first },
    ] {
        assert!(!pool.adopt(&other, later()), "{other:?}");
    }
    assert_eq!((pool.epoch, pool.table), (2, first.table));
}

#[test]
fn a_member_that_does_not_come_back_is_gone_in_the_end() {
    let mut pool = adopted([&left_by(&moving(1)); 2]);
    assert!(pool.arrived(1, B, progress(1, 2, 1 << 1)));
    // Its connection breaks, and it comes again.
    pool.left(1);
    assert_eq!(pool.waits_for().len(), 2);
    assert!(pool.arrived(1, B, progress(1, 2, 1 << 1)));
    // Another process of the same function is there: it holds nothing.
    assert!(!pool.arrived(0, A, Progress::default()));
    assert_eq!(pool.waits_for().len(), 0);
    pool.wait_no_more();
    assert_eq!((pool.next(true, 0), pool.waits_until()), (Some(Next::Publish), None));
    let rest: Vec<u8> = (3..128).step_by(2).collect();
    assert_eq!(pool.next(true, 0), Some(Next::Deliver(rest)));
}

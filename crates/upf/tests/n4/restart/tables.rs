//! Tables that are damaged: whatever they say, the rules in force are those of the store.

use super::*;

/// Where blocks begin in a file of tables, with their kinds and octets.
fn blocks(file: &[u8]) -> Vec<(usize, u8, usize)> {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let block = |at: usize| (at, word(at) as u8, (word(at) >> 40) as usize * 64);
    std::iter::successors(Some(block(64)), |&(at, _, octets)| Some(block(at + octets)))
        .take_while(|&(_, kind, octets)| kind != 0 && octets > 0)
        .collect()
}

/// A life with sessions of many kinds of rules, some of which have gone again.
fn rich_life() -> Life {
    let mut life = Life::first();
    for number in 1..=8 {
        let mut request = establishment(number);
        request.create_urrs = vec![volume_rule(7, Some(10_000)), volume_rule(8, None)];
        request.create_pdrs.iter_mut().for_each(|pdr| pdr.urr_ids = vec![7, 8]);
        request.create_pdrs[1].pdi.sdf_filters =
            vec![pfcp::rule::SdfFilter::flow("permit out 17 from any to assigned")];
        request.create_pdrs[1].pdi.framed_routes = vec![([192, 168, number, 0].into(), 24)];
        request.create_qers[0].correlation_id = number.is_multiple_of(4).then_some(3);
        let Response::SessionEstablishment(response) = life.ask(0, &Request::SessionEstablishment(request)) else {
            panic!()
        };
        // Sessions of different workers cannot share a rate.
        let Ok(established) = response.outcome else { continue };
        if number.is_multiple_of(3) {
            let _ = life.ask(established.up_f_seid.seid, &Request::SessionDeletion);
        }
    }
    life
}

/// The next life on what `spoil` makes of the tables is what the store says, and so are the rules in force.
fn survives(life: &Life, spoil: impl FnOnce(&mut Vec<u8>)) {
    let remains = life.remains();
    let path = remains.path().join("tables");
    // What is behind the blocks is as good as nothing.
    let mut file = fs::read(&path).unwrap();
    let whole = file.len() as u64;
    let end = blocks(&file).last().map_or(64, |&(at, _, octets)| at + octets);
    file.truncate(end + 64);
    spoil(&mut file);
    fs::write(&path, &file).unwrap();
    if file.len() == end + 64 {
        File::options().write(true).open(&path).unwrap().set_len(whole).unwrap();
    }
    let mut next = Life::begin(remains, Instant::now()).map_err(|unborn| unborn.0).unwrap();
    assert_eq!(next.everything(), life.everything());
    next.bench.check();
    next.bench.node.tables().check_in_force();
}

#[test]
fn whatever_is_in_the_tables_the_rules_in_force_are_those_of_the_store() {
    let life = rich_life();
    let whole = fs::read(life.directory.path().join("tables")).unwrap();
    let there = blocks(&whole);
    let end = there.last().map(|&(at, _, octets)| at + octets).unwrap();
    survives(&life, |_| {});
    // Any octet another; most of all in heads and records.
    let mut random = 29_244_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for turn in 0..240 {
        let (head, ..) = there[next() % there.len()];
        let at = if turn % 4 > 0 { head + next() % 64 } else { next() % end };
        let mask = (next() % 255) as u8 + 1;
        survives(&life, |file| file[at] ^= mask);
    }
    // Several at once; cut off anywhere; another store's name, and nothing at all.
    for _ in 0..20 {
        let places: Vec<_> = (0..8).map(|_| (next() % end, next() as u8)).collect();
        survives(&life, |file| places.iter().for_each(|&(at, octet)| file[at] = octet));
    }
    for len in (0..end).step_by(397) {
        survives(&life, |file| file.truncate(len));
    }
    survives(&life, |file| file[16..24].fill(0x5a));
    survives(&life, |file| file.fill(0xff));
    survives(&life, |file| file.clear());
}

#[test]
fn blocks_that_claim_the_same_leave_the_rules_of_the_store_in_force() {
    let life = rich_life();
    let whole = fs::read(life.directory.path().join("tables")).unwrap();
    let sessions: Vec<_> = blocks(&whole).into_iter().filter(|&(_, kind, _)| kind == 2).collect();
    for &(at, _, octets) in &sessions {
        // The block again behind the last one, the later of the two or the earlier; also with another session's SEID or keys.
        for (serial, spoilt) in [(u64::MAX / 4, None), (0, None), (u64::MAX / 4, Some(16)), (u64::MAX / 4, Some(24))] {
            survives(&life, |file| {
                let mut copy = file[at..at + octets].to_vec();
                copy[8..16].copy_from_slice(&serial.to_le_bytes());
                spoilt.into_iter().for_each(|spoilt| copy[spoilt] ^= 1);
                let end = file.len() - 64;
                file.truncate(end);
                file.extend(copy);
                file.extend([0; 64]);
            });
        }
    }
}

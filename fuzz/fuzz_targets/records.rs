//! A reader over a ring whose every byte and index is chosen by the input, and changes between reads.
//!
//! Whatever is found there: the reader stays within the ring, passes on only lengths that it has checked, ends, and stops
//! for good at the first broken rule.
#![no_main]

use std::cell::{Cell, RefCell};

use libfuzzer_sys::fuzz_target;
use vport::CacheLevel;
use vport::packet::{BURST_MAX, FRAME_MAX, HEAD_MAX, Slot};
use vport::reader::{Reader, Wanted};
use vport::ring::{HEADER, Ring};
use vport::source::Source;

const SIZE: usize = 1 << 15;

/// Memory that a peer writes between any two reads.
struct Shifting<'a> {
    script: RefCell<&'a [u8]>,
    memory: RefCell<Vec<u8>>,
    head: Cell<u64>,
    looks: Cell<u32>,
    taken: Cell<usize>,
}

impl Shifting<'_> {
    fn byte(&self) -> u8 {
        let mut script = self.script.borrow_mut();
        let Some((first, rest)) = script.split_first() else { return 0 };
        *script = rest;
        *first
    }

    fn number(&self) -> u64 {
        // Mostly small steps, sometimes anything.
        match self.byte() {
            kind @ 0..=199 => u64::from(kind) * HEADER,
            200..=239 => u64::from(self.byte()) << 8 | u64::from(self.byte()),
            _ => (0..8).fold(0, |value, _| value << 8 | u64::from(self.byte())),
        }
    }

    /// The peer does something: moves its head, or writes a word.
    fn shift(&self, near: usize) {
        match self.byte() % 4 {
            0 => {}
            1 => self.head.set(self.head.get().wrapping_add(self.number())),
            2 => self.head.set(self.number()),
            _ => {
                let at = (near + usize::from(self.byte() % 16) * 8) % SIZE;
                let kind = u64::from(self.byte() % 8 == 1) << 32;
                let word = self.number() | kind;
                self.memory.borrow_mut()[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

impl Source for &Shifting<'_> {
    type Slot = Slot;

    fn head(&self) -> u64 {
        self.looks.set(self.looks.get() + 1);
        self.shift(0);
        self.head.get()
    }

    fn header(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= SIZE);
        self.shift(offset);
        u64::from_le_bytes(self.memory.borrow()[offset..offset + 8].try_into().unwrap())
    }

    fn lone(&self, _tail: u64, slot: &mut Slot) -> Option<usize> {
        let len = usize::from(self.byte() % 128);
        (1..=72).contains(&len).then(|| {
            slot.fill_head(len).fill(self.byte());
            self.taken.set(self.taken.get() + len);
            len
        })
    }

    fn stamp(&self) -> u64 {
        self.number()
    }

    fn take(&self, offset: usize, head: usize, rest: usize, slot: &mut Slot) {
        assert!((1..=HEAD_MAX).contains(&head) && head + rest <= FRAME_MAX);
        assert!(offset + head + rest <= SIZE, "within the ring");
        self.shift(offset);
        slot.fill_head(head).copy_from_slice(&self.memory.borrow()[offset..offset + head]);
        self.taken.set(self.taken.get() + head + rest);
    }

    /// A look ahead may go past the ring's end, but no further than it looks.
    fn prefetch(&self, offset: usize, _level: CacheLevel) {
        assert!(offset < SIZE + 512);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&[peek, kind], script)) = input.split_first_chunk::<2>() else { return };
    let peek = 64 + usize::from(peek) % (HEAD_MAX - 63);
    let start = script.len().min(512);
    let mut memory = vec![kind; SIZE];
    memory[..start].copy_from_slice(&script[..start]);
    let source = Shifting {
        script: RefCell::new(script),
        memory: RefCell::new(memory),
        head: Cell::new(0),
        looks: Cell::new(0),
        taken: Cell::new(0),
    };
    let mut reader = Reader::new(Ring::new(SIZE as u64).unwrap());
    let mut slots: Vec<Slot> = (0..BURST_MAX).map(|_| Slot::new()).collect();
    while !source.script.borrow().is_empty() {
        let (before, broken) = (reader.tail(), reader.broken());
        source.looks.set(0);
        source.taken.set(0);
        let filled = reader.fill(&source, &mut slots, peek, |slot, _| match slot.head()[0] % 16 {
            3 => Wanted::No,
            _ => Wanted::Yes,
        });
        assert!(source.looks.get() <= 1, "a head is looked at once a call");
        assert!(filled.packets as usize <= BURST_MAX && filled.bytes as usize <= source.taken.get());
        assert!(reader.tail().wrapping_sub(before) <= 2 * SIZE as u64);
        assert_eq!(reader.tail() % HEADER, 0);
        for slot in &slots[..filled.packets as usize] {
            assert!((1..=peek).contains(&slot.head().len()));
        }
        if broken.is_some() {
            assert!(reader.broken() == broken && reader.tail() == before && filled.packets == 0);
            break;
        }
        if let Some(tail) = reader.release(kind % 2 == 0) {
            assert_eq!(tail, reader.tail());
        }
    }
});

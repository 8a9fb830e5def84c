//! Entries of a fixed number, made once.

/// The entries, and which are free.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Box<[T]>,
    free: Vec<u32>,
}

impl<T: Clone + Default> Slab<T> {
    /// So many entries, all free.
    pub fn new(len: usize) -> Self {
        Self { entries: vec![T::default(); len].into(), free: (0..len as u32).rev().collect() }
    }

    /// How many there are.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// How many are in use.
    pub fn in_use(&self) -> usize {
        self.capacity() - self.free()
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// A free entry, set to this.
    pub fn take(&mut self, entry: T) -> Option<u32> {
        let number = self.free.pop()?;
        self.entries[number as usize] = entry;
        Some(number)
    }

    /// The entry is free again.
    pub fn put(&mut self, number: u32) {
        self.entries[number as usize] = T::default();
        self.free.push(number);
    }

    /// An entry.
    pub fn get(&self, number: u32) -> &T {
        &self.entries[number as usize]
    }

    /// The same, to change.
    pub fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.entries[number as usize]
    }
}

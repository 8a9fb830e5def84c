//! Where C ends: pointers of callers become references, results become numbers, and panics stop.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::epoll;
use rustix::io::Errno;

/// What an exported function answers: a number that is not negative, or an error that becomes a negative one.
pub(crate) type Answer = Result<c_int, Errno>;

/// `-EINVAL`: a null pointer, an index that is too large, a malformed packet.
pub(crate) const INVALID: c_int = -Errno::INVAL.raw_os_error();

/// Runs the inside of an exported function. A panic ends here: what it may have left half done is `broken` for good, and
/// answers `-ENOTRECOVERABLE` from then on.
#[inline]
pub(crate) fn guard(broken: &mut bool, inside: impl FnOnce() -> Answer) -> c_int {
    let answer = if *broken {
        Err(Errno::NOTRECOVERABLE)
    } else {
        catch_unwind(AssertUnwindSafe(inside)).unwrap_or_else(|_| {
            *broken = true;
            Err(Errno::NOTRECOVERABLE)
        })
    };
    answer.unwrap_or_else(|errno| -errno.raw_os_error())
}

/// As [`guard`], for what leaves nothing half done.
pub(crate) fn guard_once(inside: impl FnOnce() -> Answer) -> c_int {
    guard(&mut false, inside)
}

/// The C array of `len` elements at `first`; none where it is null.
///
/// # Safety
/// `first` is null, or has `len` elements that nobody changes during `'a`.
pub(crate) unsafe fn array<'a, T>(first: *const T, len: usize) -> Option<&'a [T]> {
    match (first.is_null(), len) {
        (_, 0) => Some(&[]),
        (true, _) => None,
        // SAFETY: by contract.
        (false, len) => Some(unsafe { std::slice::from_raw_parts(first, len) }),
    }
}

/// The string at `text`; none where it is null or not UTF-8.
///
/// # Safety
/// `text` is null or ends with a zero byte, and nobody changes it during `'a`.
pub(crate) unsafe fn string<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by contract.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Writes `text` to the buffer of `size` bytes at `to`, shortened where it must be, with a zero byte at its end.
///
/// # Safety
/// `to` is null or has `size` bytes.
pub(crate) unsafe fn put_text(text: &str, to: *mut c_char, size: usize) {
    if to.is_null() || size == 0 {
        return;
    }
    let len = text.len().min(size - 1);
    // SAFETY: len + 1 bytes are within `size`, and within `text` but for the last.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len);
        to.add(len).write(0);
    }
}

/// Writes `value` to the caller's structure, which has `size` bytes: an older caller's is shorter, and what a newer
/// one's has more becomes zero.
///
/// # Safety
/// `to` is null or has `size` bytes. `T` is a C structure of plain numbers without padding.
pub(crate) unsafe fn put_struct<T: Copy>(value: &T, to: *mut T, size: usize) -> Answer {
    if to.is_null() {
        return Err(Errno::INVAL);
    }
    let len = size.min(size_of::<T>());
    // SAFETY: len bytes are within `size` and within `value`, the zeros within what `size` has more.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), len);
        to.cast::<u8>().add(len).write_bytes(0, size - len);
    }
    Ok(0)
}

/// Reads a caller's structure that begins with its size in bytes, as [`put_struct`] writes one. What a newer caller's has
/// more must be zero: it would mean something that this library does not know.
///
/// # Safety
/// `from` has as many bytes as its first word says. `T` is a C structure that begins with a `usize` and may be all zeros.
pub(crate) unsafe fn get_struct<T: Copy>(from: *const T) -> Result<T, Errno> {
    // SAFETY: by contract.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=4096).contains(&size) {
        return Err(Errno::INVAL);
    }
    // SAFETY: by contract.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|byte| *byte != 0) {
        return Err(Errno::TOOBIG);
    }
    // SAFETY: `T` may be all zeros; `known` is no longer than it.
    unsafe {
        let mut value = std::mem::zeroed::<T>();
        std::ptr::copy_nonoverlapping(known.as_ptr(), std::ptr::from_mut(&mut value).cast(), known.len());
        Ok(value)
    }
}

/// Takes a descriptor out of an epoll set, if it is (still) in it.
pub(crate) fn ignore(set: &OwnedFd, fd: RawFd) {
    // SAFETY: only a number for EPOLL_CTL_DEL, which fails where no such descriptor is open or in the set.
    let _ = epoll::delete(set, unsafe { BorrowedFd::borrow_raw(fd) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_stays_one() {
        let mut broken = false;
        assert_eq!(guard(&mut broken, || Ok(7)), 7);
        assert_eq!(guard(&mut broken, || Err(Errno::INVAL)), INVALID);
        let lost = -Errno::NOTRECOVERABLE.raw_os_error();
        assert_eq!(guard(&mut broken, || panic!("on purpose")), lost);
        assert_eq!(guard(&mut broken, || Ok(7)), lost);
    }
}

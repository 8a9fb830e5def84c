//! What has to be done however something ends.

/// Does something when it is dropped: at the end, or where an error or a panic comes first. A scope waits for its threads, so that
/// whoever starts some that go on until they are told to stop holds one of these, which tells them.
pub(crate) struct AtEnd<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

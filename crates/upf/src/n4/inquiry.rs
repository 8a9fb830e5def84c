//! Questions of other threads to N4, which it answers between two messages.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use super::Node;
use crate::bell::Bell;

/// Questions that may wait.
const CAPACITY: usize = 16;
/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question, with where its answer goes.
type Question<T> = Box<dyn FnOnce(&Node<T>) + Send>;

/// Asks.
pub struct Inquiry<T> {
    questions: SyncSender<Question<T>>,
    bell: Arc<Bell>,
}

/// N4's end.
pub(super) struct Questions<T> {
    receiver: Receiver<Question<T>>,
    next: Option<Question<T>>,
}

/// From other threads to N4, which hears `bell`.
pub(super) fn channel<T>(bell: Arc<Bell>) -> (Inquiry<T>, Questions<T>) {
    let (questions, receiver) = mpsc::sync_channel(CAPACITY);
    (Inquiry { questions, bell }, Questions { receiver, next: None })
}

impl<T> Clone for Inquiry<T> {
    fn clone(&self) -> Self {
        Self { questions: self.questions.clone(), bell: self.bell.clone() }
    }
}

impl<T> Inquiry<T> {
    /// Has N4 answer, and waits for it. It serves no peer meanwhile, so a question is to be brief. None if N4 has ended, or
    /// has no time.
    pub fn ask<A: Send + 'static>(&self, question: impl FnOnce(&Node<T>) -> A + Send + 'static) -> Option<A> {
        let (to, answer) = mpsc::sync_channel(1);
        // Fails only if nobody waits any more.
        let question: Question<T> = Box::new(move |node| drop(to.send(question(node))));
        self.questions.try_send(question).ok()?;
        self.bell.ring();
        answer.recv_timeout(PATIENCE).ok()
    }
}

impl<T> Questions<T> {
    /// Whether one waits.
    pub fn is_empty(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.receiver.try_recv().ok();
        }
        self.next.is_none()
    }

    /// Answers one question, if any waits.
    pub fn answer(&mut self, node: &Node<T>) {
        if !self.is_empty()
            && let Some(question) = self.next.take()
        {
            question(node);
        }
    }
}

//! The workers' threads, and those of whoever receives and sends for them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use crate::bell::Bell;
use crate::buffers::Parked;
use crate::pipeline::{Dispatcher, Sender};
use crate::program::spawn;
use crate::worker::{Dryness, Worker};

/// Workers, each on a thread of its own.
pub(crate) struct Crew {
    workers: usize,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// Whether they leave to another process.
    leaving: Arc<AtomicBool>,
    parked: Receiver<Vec<Parked>>,
}

impl Crew {
    /// Has them work.
    pub(crate) fn start(
        workers: Vec<Worker>,
        dispatcher: Option<Dispatcher>,
        sender: Option<Sender>,
    ) -> io::Result<Self> {
        let (stop, leaving) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let dryness = Arc::new(Dryness::new(workers.len()));
        let (park, parked) = mpsc::channel();
        let count = workers.len();
        let mut threads = Vec::with_capacity(workers.len() + 2);
        for (index, mut worker) in workers.into_iter().enumerate() {
            let (stop, leaving, dryness, park) = (stop.clone(), leaving.clone(), dryness.clone(), park.clone());
            let work = move || {
                worker.run(&stop)?;
                if leaving.load(Ordering::Relaxed) {
                    worker.work_off(&dryness);
                    // Nobody listens any more only if the process ends otherwise.
                    let _ = park.send(worker.park());
                }
                Ok(())
            };
            threads.push(spawn(&format!("worker-{index}"), work)?);
        }
        if let Some(mut dispatcher) = dispatcher {
            let (stop, leaving) = (stop.clone(), leaving.clone());
            let work = move || {
                dispatcher.run(&stop)?;
                if leaving.load(Ordering::Relaxed) {
                    dispatcher.work_off();
                }
                Ok(())
            };
            threads.push(spawn("dispatcher", work)?);
        }
        if let Some(mut sender) = sender {
            let (stop, leaving) = (stop.clone(), leaving.clone());
            let work = move || {
                sender.run(&stop)?;
                if leaving.load(Ordering::Relaxed) {
                    sender.work_off();
                }
                Ok(())
            };
            threads.push(spawn("sender", work)?);
        }
        Ok(Self { workers: count, threads, stop, leaving, parked })
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Ends them. Where another process goes on they work off what their ports have before, and what is returned waits.
    pub(crate) fn end(self, bells: &[Arc<Bell>], leaving: bool) -> Vec<Parked> {
        self.leaving.store(leaving, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        bells.iter().for_each(|bell| bell.ring());
        for thread in self.threads {
            // A thread that panicked has ended the process already.
            let _ = thread.join();
        }
        self.parked.try_iter().flatten().collect()
    }
}

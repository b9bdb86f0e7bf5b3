//! `PerRuntime`: one value for each runtime, with a task on that runtime that serves it.
//!
//! Handles of this crate are used from any number of runtimes, of which one may end, or not be driven any
//! more, while others go on. So what they share and needs a task exists once on each runtime. A value lasts no longer
//! than its task, and a task no longer than its value:
//!
//! - The task holds a [`Guard`], which removes the value when the task has ended, also where its runtime was
//!   shut down, or where it panicked.
//! - When the value is removed by anybody, the task is dropped at its next poll.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use crate::mutex::Mutex;

pub(crate) struct PerRuntime<T> {
    entries: Arc<Mutex<Entries<T>>>,
}

struct Entries<T> {
    by_runtime: HashMap<Id, Entry<T>>,
    started: u64,
}

struct Entry<T> {
    /// Tells it from the one that follows it on the same runtime.
    number: u64,
    value: T,
    /// Ends the task when it is dropped.
    _task: oneshot::Sender<()>,
}

/// Where a value is, for as long as it lasts.
pub(crate) struct Running<T> {
    entries: Weak<Mutex<Entries<T>>>,
    runtime: Id,
    number: u64,
}

/// What the task of a value holds.
pub(crate) struct Guard<T> {
    running: Running<T>,
}

impl<T> PerRuntime<T> {
    /// Reads or changes the value of a runtime, if it has one, with all values locked.
    pub(crate) fn get<R>(&self, runtime: Id, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut entries = self.entries.lock();
        let entry = entries.by_runtime.get_mut(&runtime)?;
        Some(with(&mut entry.value))
    }

    /// Reads or changes all values.
    pub(crate) fn each(&self, with: impl FnMut(&mut T)) {
        let mut entries = self.entries.lock();
        entries
            .by_runtime
            .values_mut()
            .map(|entry| &mut entry.value)
            .for_each(with);
    }

    /// Reads or changes the value of a runtime, with all values locked. If it has none, `make` makes one, and
    /// `serve` its task. Returns the running of the value, which has been removed if the runtime was shut
    /// down.
    pub(crate) fn get_or_start<R, F>(
        &self,
        runtime: &Handle,
        make: impl FnOnce() -> T,
        serve: impl FnOnce(Guard<T>) -> F,
        with: impl FnOnce(&mut T) -> R,
    ) -> (Running<T>, R)
    where
        T: Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut entries = self.entries.lock();
        let mut ends = None;
        let next = entries.started + 1;
        let entry = entries.by_runtime.entry(runtime.id()).or_insert_with(|| {
            let (task, ended) = oneshot::channel();
            ends = Some(ended);
            Entry {
                number: next,
                value: make(),
                _task: task,
            }
        });
        let read = with(&mut entry.value);
        let running = Running {
            entries: Arc::downgrade(&self.entries),
            runtime: runtime.id(),
            number: entry.number,
        };
        entries.started = next;
        // A runtime that has been shut down drops the task at once, and its guard locks the entries then.
        drop(entries);
        if let Some(ends) = ends {
            let task = serve(Guard {
                running: running.clone(),
            });
            runtime.spawn(async move {
                tokio::select! {
                    biased;
                    _ = ends => {}
                    () = task => {}
                }
            });
        }
        (running, read)
    }
}

impl<T> Running<T> {
    pub(crate) fn runtime(&self) -> Id {
        self.runtime
    }

    /// Reads or changes the value, unless it has been removed.
    pub(crate) fn get<R>(&self, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        let entries = self.entries.upgrade()?;
        let mut entries = entries.lock();
        let entry = entries.by_runtime.get_mut(&self.runtime)?;
        (entry.number == self.number).then(|| with(&mut entry.value))
    }

    /// Removes the value and ends its task. Returns the value unless it was removed before.
    pub(crate) fn end(&self) -> Option<T> {
        self.end_if(|_| true)
    }

    /// Ends the task if nobody needs its value any more. No other can change the value between the question
    /// and the end.
    pub(crate) fn end_if(&self, is_over: impl FnOnce(&mut T) -> bool) -> Option<T> {
        let entries = self.entries.upgrade()?;
        let mut entries = entries.lock();
        let entry = entries.by_runtime.get_mut(&self.runtime)?;
        if entry.number != self.number || !is_over(&mut entry.value) {
            return None;
        }
        let ended = entries.by_runtime.remove(&self.runtime)?;
        // The caller drops the value, which may lock the entries.
        drop(entries);
        Some(ended.value)
    }
}

impl<T> Guard<T> {
    pub(crate) fn running(&self) -> &Running<T> {
        &self.running
    }
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        drop(self.running.end());
    }
}

impl<T> Clone for Running<T> {
    fn clone(&self) -> Running<T> {
        Running {
            entries: self.entries.clone(),
            runtime: self.runtime,
            number: self.number,
        }
    }
}

impl<T> Default for PerRuntime<T> {
    fn default() -> PerRuntime<T> {
        PerRuntime {
            entries: Arc::new(Mutex::new(Entries {
                by_runtime: HashMap::new(),
                started: 0,
            })),
        }
    }
}

// `tests/loom/src/models/per_runtime.rs` tries these with threads.
#[cfg(all(test, not(tickwheel_loom)))]
mod tests {
    use std::future::pending;

    use tokio::{
        runtime::{Builder, Runtime},
        task::yield_now,
    };

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    fn idle() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    fn start(of: &PerRuntime<u32>, runtime: &Handle, value: u32) -> (Running<u32>, u32) {
        of.get_or_start(
            runtime,
            || value,
            |guard| async move {
                let _guard = guard;
                pending().await
            },
            |value| *value,
        )
    }

    #[test]
    fn each_runtime_has_its_own() {
        let (first, second, numbers) = (runtime(), runtime(), PerRuntime::default());
        assert_eq!(start(&numbers, first.handle(), 1).1, 1);
        assert_eq!(start(&numbers, first.handle(), 3).1, 1, "it has one");
        assert_eq!(start(&numbers, second.handle(), 2).1, 2);
        assert_eq!(numbers.get(second.handle().id(), |number| *number), Some(2));
        let mut all = Vec::new();
        numbers.each(|number| all.push(*number));
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
    }

    #[test]
    fn a_value_ends_with_its_runtime_and_another_follows() {
        let (ended, numbers) = (runtime(), PerRuntime::default());
        let handle = ended.handle().clone();
        let (running, _) = start(&numbers, &handle, 1);
        drop(ended);
        assert_eq!(running.get(|number| *number), None);
        // One that is started now is dropped at once, and locks nothing for ever.
        let (next, value) = start(&numbers, &handle, 2);
        assert_eq!((next.get(|number| *number), value), (None, 2));
        assert_eq!(numbers.get(handle.id(), |number| *number), None);
    }

    #[test]
    fn the_end_of_a_value_is_not_that_of_the_next() {
        let (idle, numbers) = (idle(), PerRuntime::default());
        let (first, _) = start(&numbers, idle.handle(), 1);
        assert_eq!(first.end(), Some(1));
        let (second, value) = start(&numbers, idle.handle(), 2);
        // The task of the first is dropped only now.
        idle.block_on(yield_now());
        assert_eq!((first.end(), value), (None, 2));
        assert_eq!(second.get(|number| *number), Some(2));
    }

    #[test]
    fn a_task_ends_with_its_value_and_with_the_whole() {
        let (runtime, numbers) = (idle(), PerRuntime::default());
        let is_over = Arc::new(());
        for ends_all in [false, true] {
            let held = is_over.clone();
            let (running, ()) = numbers.get_or_start(
                runtime.handle(),
                || 0,
                |guard| async move {
                    let _held = (guard, held);
                    pending().await
                },
                |_| {},
            );
            runtime.block_on(yield_now());
            assert_eq!(Arc::strong_count(&is_over), 2);
            if ends_all {
                break;
            }
            running.end();
            runtime.block_on(yield_now());
            assert_eq!(Arc::strong_count(&is_over), 1);
        }
        drop(numbers);
        runtime.block_on(yield_now());
        assert_eq!(Arc::strong_count(&is_over), 1);
    }

    #[test]
    fn a_task_that_panics_takes_its_value_along() {
        let (idle, numbers) = (idle(), PerRuntime::default());
        let (running, ()) = numbers.get_or_start(
            idle.handle(),
            || 0,
            |guard| async move {
                let _guard = guard;
                panic!("a panic of the test")
            },
            |_| {},
        );
        idle.block_on(yield_now());
        assert_eq!(running.get(|_| ()), None);
    }
}

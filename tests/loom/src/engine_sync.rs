//! What `src/engine/sync.rs` has, with loom's locks, atomics and locals, and what the patches in `faults/` ask.

pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
/// Loom's cannot be a waker. No count of references decides anything in the engine.
pub(crate) use std::sync::Arc;

use std::{
    any::Any,
    cell::{Cell, RefCell},
    collections::HashMap,
    env,
    marker::PhantomData,
    rc::Rc,
    sync::{PoisonError, TryLockError},
};

use loom::thread::ThreadId;

/// Returns whether `TICKWHEEL_PLANT` names this fault.
pub(crate) fn planted(fault: &str) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    PLANTED
        .get_or_init(|| env::var("TICKWHEEL_PLANT").ok())
        .as_deref()
        == Some(fault)
}

/// Makes up for loom's taking `SeqCst` for `AcqRel` in everything but fences.
pub(crate) fn fence_in_models() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A place that is filled once, by threads which exclude each other.
pub(crate) struct OnceLock<T> {
    /// Loom's, so that it sees how a thread that finds the value has got it.
    is_there: AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> OnceLock<T> {
        OnceLock {
            is_there: AtomicBool::new(false),
            value: std::sync::OnceLock::new(),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.value.get().filter(|_| self.is_there.load(Ordering::Acquire))
    }

    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let new = init();
        let value = self.value.get_or_init(|| new);
        self.is_there.store(true, Ordering::Release);
        value
    }
}

/// A static that each execution of a model has anew.
pub(crate) struct LazyLock<T>(loom::lazy_static::Lazy<T>);

impl<T: 'static> LazyLock<T> {
    pub(crate) const fn new(init: fn() -> T) -> LazyLock<T> {
        LazyLock(loom::lazy_static::Lazy {
            init,
            _p: PhantomData,
        })
    }

    pub(crate) fn force(this: &'static LazyLock<T>) -> &'static T {
        this.0.get()
    }
}

/// A local of loom's threads, all of which run on one thread of the machine. Loom's own locals may be dropped
/// after the statics.
pub(crate) struct LocalKey<T>(pub(crate) fn() -> T);

pub(crate) struct AccessError;

/// The locals of a thread, in the order in which they were made. `None` once they have been dropped.
type Locals = Option<Vec<(usize, Rc<dyn Any>)>>;

std::thread_local! {
    static LOCALS: RefCell<HashMap<ThreadId, Locals>> = RefCell::default();
}

/// Drops the locals of this thread, which is about to end.
pub(crate) fn drop_locals() {
    let id = loom::thread::current().id();
    let locals = LOCALS.with_borrow_mut(|locals| locals.insert(id, None));
    drop(locals);
}

/// Forgets the threads of the last execution.
pub(crate) fn forget_threads() {
    LOCALS.with_borrow_mut(HashMap::clear);
}

impl<T: 'static> LocalKey<T> {
    pub(crate) fn try_with<R>(&'static self, with: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        let address = std::ptr::from_ref(self).addr();
        let id = loom::thread::current().id();
        let local = LOCALS.with_borrow_mut(|locals| {
            let locals = locals.entry(id).or_insert_with(|| Some(Vec::new()));
            let locals = locals.as_mut().ok_or(AccessError)?;
            if let Some((_, local)) = locals.iter().find(|(of, _)| *of == address) {
                return Ok(local.clone());
            }
            let local: Rc<dyn Any> = Rc::new((self.0)());
            locals.push((address, local.clone()));
            Ok(local)
        })?;
        let local = local.downcast_ref().expect("no other key has its address");
        Ok(with(local))
    }
}

impl LocalKey<Cell<bool>> {
    pub(crate) fn get(&'static self) -> bool {
        self.try_with(Cell::get).unwrap_or(false)
    }

    pub(crate) fn set(&'static self, value: bool) {
        let _ = self.try_with(|cell| cell.set(value));
    }
}

macro_rules! local {
    (static $name:ident: $type:ty = const { $init:expr };) => {
        static $name: $crate::engine::sync::LocalKey<$type> = $crate::engine::sync::LocalKey(|| $init);
    };
}
pub(crate) use local as thread_local;

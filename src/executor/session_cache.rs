//! Sessions that outlive the calls and clients they were made for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::base::sync::lock;
use crate::onnx;
use crate::protocol::message::{PartSpec, SessionSpec};
use crate::runtime::{ModelOutline, Runtime, RuntimeError, Session, precision};

/// How much a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions.
    pub max_sessions: usize,
    /// Estimated bytes of all of them together.
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_sessions: 256, max_bytes: 8 << 30 }
    }
}

/// Sessions by the content of their model and everything else that decides what they do. When a limit is passed, the
/// least recently used ones that nobody holds go first; one that is held is never dropped under its holder.
pub struct SessionCache {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// Counts uses; the order of "recently".
    clock: u64,
}

type Key = ([u8; 32], SessionSpec);
/// Filled by whoever comes first, while the others wait: a model is not built twice at the same time.
type Cell = Arc<Mutex<Option<Ready>>>;

struct Entry {
    cell: Cell,
    bytes: u64,
    used: u64,
    /// Whoever used it has released it: it goes as soon as nobody holds it.
    unwanted: bool,
}

/// A session and the outline of its model.
#[derive(Clone)]
pub struct Ready {
    /// The session.
    pub session: Arc<dyn Session>,
    /// Its model's nodes, before optimization.
    pub outline: Arc<ModelOutline>,
}

/// A session from the cache.
pub struct Cached {
    /// The session.
    pub ready: Ready,
    /// How long it took to make; None when it was there.
    pub built_in: Option<Duration>,
}

impl SessionCache {
    /// Empty.
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Sessions in the cache now.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// The session of a part's model, made now if it is not there. Errors: the runtime's; nothing is kept then.
    pub fn get(&self, runtime: &dyn Runtime, part: &PartSpec) -> Result<Cached, RuntimeError> {
        let key = key(part);
        let cell = self.cell(&key, part.model.len());
        let mut slot = lock(&cell);
        if let Some(ready) = &*slot {
            return Ok(Cached { ready: ready.clone(), built_in: None });
        }
        let start = Instant::now();
        match build_with_outline(runtime, part) {
            Ok(ready) => {
                *slot = Some(ready.clone());
                drop(slot);
                self.drop_unwanted();
                self.evict();
                Ok(Cached { ready, built_in: Some(start.elapsed()) })
            }
            Err(error) => {
                drop(slot);
                let mut state = self.lock();
                if state.entries.get(&key).is_some_and(|entry| Arc::ptr_eq(&entry.cell, &cell)) {
                    state.entries.remove(&key);
                }
                Err(error)
            }
        }
    }

    fn cell(&self, key: &Key, model_len: usize) -> Cell {
        let mut state = self.lock();
        state.clock += 1;
        let used = state.clock;
        let entry = state.entries.entry(key.clone()).or_insert_with(|| {
            // The runtime keeps the initializers and, prepacked, most of them a second time.
            Entry { cell: Cell::default(), bytes: 2 * model_len as u64 + (1 << 20), used, unwanted: false }
        });
        entry.used = used;
        entry.unwanted = false;
        Arc::clone(&entry.cell)
    }

    /// Notes that a session will not be asked for again: see [`SessionCache::drop_unwanted`].
    pub fn unwanted(&self, session: Arc<dyn Session>) {
        let mut state = self.lock();
        for entry in state.entries.values_mut() {
            let of_it = |ready: &Ready| Arc::ptr_eq(&ready.session, &session);
            // A cell that is locked is being built, or was asked for just now.
            if entry.cell.try_lock().is_ok_and(|slot| slot.as_ref().is_some_and(of_it)) {
                entry.unwanted = true;
            }
        }
    }

    /// Ends the unwanted sessions that nobody holds.
    pub fn drop_unwanted(&self) {
        let dropped: Vec<_> =
            self.lock().entries.extract_if(|_, entry| entry.unwanted && is_idle(&entry.cell)).collect();
        // Ends sessions, which takes its time: not under the lock.
        drop(dropped);
    }

    /// Drops every session. Those that are held end with their holders.
    pub fn clear(&self) {
        let dropped = std::mem::take(&mut self.lock().entries);
        // Ends sessions, which takes its time: not under the lock.
        drop(dropped);
    }

    fn evict(&self) {
        let mut dropped = Vec::new();
        let mut state = self.lock();
        let mut bytes: u64 = state.entries.values().map(|entry| entry.bytes).sum();
        while state.entries.len() > self.limits.max_sessions || bytes > self.limits.max_bytes {
            let idle = state.entries.iter().filter(|(_, entry)| is_idle(&entry.cell));
            let Some(key) = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone()) else { break };
            let entry = state.entries.remove(&key).expect("it was found just now");
            bytes -= entry.bytes;
            dropped.push(entry);
        }
        drop(state);
        // Ends sessions, which takes its time: not under the lock.
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn build_with_outline(runtime: &dyn Runtime, part: &PartSpec) -> Result<Ready, RuntimeError> {
    let exported = onnx::decode(part.model.clone())?;
    let outline = Arc::new(ModelOutline::of(&exported)?);
    let runnable = precision::runnable(part, &exported)?;
    drop(exported);
    Ok(Ready { session: runtime.build(&runnable, &part.session)?, outline })
}

/// The model as exported, with the names that say where it rounds.
fn key(part: &PartSpec) -> Key {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&part.model);
    for name in &part.named_values {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
    }
    (*hasher.finalize().as_bytes(), part.session.clone())
}

/// It is made, and only the cache holds it.
fn is_idle(cell: &Cell) -> bool {
    Arc::strong_count(cell) == 1
        && cell.try_lock().is_ok_and(|slot| slot.as_ref().is_some_and(|ready| Arc::strong_count(&ready.session) == 1))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;

    use super::*;
    use crate::base::ids::GraphId;
    use crate::protocol::message::{RunStats, ValueSpec};
    use crate::runtime::{BoundCall, Model, StopToken};
    use crate::shm::Lease;
    use crate::tensor::TensorBuf;

    #[derive(Default)]
    struct Fake {
        builds: AtomicUsize,
    }

    struct FakeSession;

    impl Runtime for Fake {
        fn version(&self) -> &str {
            "0"
        }

        fn build(&self, model: &Model, _: &SessionSpec) -> Result<Arc<dyn Session>, RuntimeError> {
            self.builds.fetch_add(1, Ordering::SeqCst);
            match model.bytes.len() {
                2 => Err(RuntimeError::BadModel { reason: "empty graph".to_owned() }),
                _ => Ok(Arc::new(FakeSession)),
            }
        }

        fn optimized(&self, model: &Model, _: &SessionSpec) -> Result<Vec<u8>, RuntimeError> {
            Ok(model.bytes.to_vec())
        }
    }

    impl Session for FakeSession {
        fn inputs(&self) -> &[ValueSpec] {
            &[]
        }

        fn outputs(&self) -> &[ValueSpec] {
            &[]
        }

        fn fetch(&self, _: &Lease) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
            Err(RuntimeError::Stopped)
        }

        fn bind(self: Arc<Self>, _: Lease, _: &StopToken) -> Result<Box<dyn BoundCall>, RuntimeError> {
            Err(RuntimeError::Stopped)
        }
    }

    fn part(n: u8, session: &SessionSpec) -> PartSpec {
        let (fx_values, named_values) = Default::default();
        PartSpec {
            graph: GraphId::from_bytes([0; 32]),
            part: 0,
            model: model(n),
            session: session.clone(),
            fx_values,
            named_values,
        }
    }

    /// ModelProto whose graph (field 7) has `n` nodes (field 1) without fields.
    fn model(n: u8) -> Bytes {
        [vec![0x3a, 2 * n], [0x0a, 0].repeat(n.into())].concat().into()
    }

    #[test]
    fn a_model_is_built_once_for_each_spec() {
        let (fake, cache) = (Fake::default(), SessionCache::new(Limits::default()));
        let other = SessionSpec { disabled_optimizers: vec!["GeluFusionL2".to_owned()], ..SessionSpec::default() };
        for (spec, built) in [(SessionSpec::default(), true), (SessionSpec::default(), false), (other, true)] {
            let cached = cache.get(&fake, &part(3, &spec)).unwrap();
            assert_eq!((cached.built_in.is_some(), cached.ready.outline.n_nodes()), (built, 3));
        }
        assert_eq!((fake.builds.load(Ordering::SeqCst), cache.len()), (2, 2));
    }

    #[test]
    fn a_failed_build_leaves_nothing_behind() {
        let (fake, cache) = (Fake::default(), SessionCache::new(Limits::default()));
        assert!(cache.get(&fake, &part(0, &SessionSpec::default())).is_err());
        let garbage = PartSpec { model: Bytes::from_static(b"garbage"), ..part(0, &SessionSpec::default()) };
        assert!(cache.get(&fake, &garbage).is_err());
        assert!(cache.len() == 0);
    }

    #[test]
    fn the_least_recently_used_idle_session_goes_first() {
        let (fake, spec) = (Fake::default(), SessionSpec::default());
        let cache = SessionCache::new(Limits { max_sessions: 2, ..Limits::default() });
        let built = |n: u8| cache.get(&fake, &part(n, &spec)).unwrap().built_in.is_some();
        let held = cache.get(&fake, &part(1, &spec)).unwrap();
        assert!(built(2));
        assert!(built(3));
        // 2 went although 1 is older: 1 is held.
        assert_eq!(cache.len(), 2);
        assert!(!built(1));
        assert!(built(2));
        drop(held);
        assert!(built(4));
        assert!(built(1));
    }

    #[test]
    fn an_unwanted_session_goes_once_nobody_holds_it_and_is_wanted_again_when_asked_for() {
        let (fake, spec) = (Fake::default(), SessionSpec::default());
        let cache = SessionCache::new(Limits::default());
        let built = |n: u8| cache.get(&fake, &part(n, &spec)).unwrap().built_in.is_some();
        let held = cache.get(&fake, &part(1, &spec)).unwrap().ready.session;
        assert!(built(2) && built(3));
        let two = cache.get(&fake, &part(2, &spec)).unwrap().ready.session;
        cache.unwanted(Arc::clone(&held));
        cache.unwanted(two);
        cache.drop_unwanted();
        // 1 is held, 3 was not released.
        assert_eq!((cache.len(), built(1), built(3)), (2, false, false));
        drop(held);
        cache.drop_unwanted();
        assert!(!built(1), "asked for again, so it stays");
        assert!(built(2));
    }

    #[test]
    fn nothing_is_left_after_clearing() {
        let (fake, spec, cache) = (Fake::default(), SessionSpec::default(), SessionCache::new(Limits::default()));
        let held = cache.get(&fake, &part(1, &spec)).unwrap();
        cache.clear();
        assert_eq!((cache.len(), Arc::strong_count(&held.ready.session)), (0, 1));
        assert!(cache.get(&fake, &part(1, &spec)).unwrap().built_in.is_some());
    }

    #[test]
    fn bytes_are_limited_too() {
        let (fake, spec) = (Fake::default(), SessionSpec::default());
        let cache = SessionCache::new(Limits { max_bytes: 3 << 20, ..Limits::default() });
        for n in 1..6 {
            cache.get(&fake, &part(n, &spec)).unwrap();
        }
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn threads_that_want_one_model_build_it_once() {
        let (fake, cache) = (Fake::default(), SessionCache::new(Limits::default()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| cache.get(&fake, &part(1, &SessionSpec::default())).unwrap().built_in);
            }
        });
        assert_eq!(fake.builds.load(Ordering::SeqCst), 1);
    }
}

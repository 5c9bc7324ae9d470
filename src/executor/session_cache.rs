//! Sessions that outlive the calls and clients they were made for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use crate::base::sync::lock;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, Described};
use crate::protocol::message::{Division, PartSpec, SessionSpec, ValueSpec};
use crate::runtime::{Constant, ModelOutline, Runtime, RuntimeError, Session, StopToken, session_with};
use crate::tensor::TensorBuf;

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

/// A constant, and what it is known by: a hash of its dtype, shape and bytes.
#[derive(Clone)]
pub struct SharedConstant {
    tensor: Arc<TensorBuf>,
    hash: [u8; 32],
}

#[derive(Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// Constants of sessions, each content once.
    constants: HashMap<[u8; 32], Weak<TensorBuf>>,
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
    /// Whoever used it has released it, or it is of use to one client alone: it goes as soon as nobody holds it.
    unwanted: bool,
    of_client: OfClient,
}

/// What of a session nobody but its client has a use for.
#[derive(Clone, Copy)]
struct OfClient {
    has_constants: bool,
    has_graphs: bool,
}

impl OfClient {
    fn any(self) -> bool {
        self.has_constants || self.has_graphs
    }
}

/// A session and the outline of its model.
#[derive(Clone)]
pub struct Ready {
    /// The session.
    pub session: Arc<dyn Session>,
    /// Its model's nodes, before optimization.
    pub outline: Arc<ModelOutline>,
    /// Its model's, those that are constants of the session too.
    pub inputs: Arc<[ValueSpec]>,
    /// What rules made of its model's nodes.
    pub division: Arc<Division>,
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

    /// The session of a part's model, made now if it is not there. constants: inputs of the model that are constants of
    /// the session, by their positions, rising; such a session ends when nobody holds it. `stop` ends the making of
    /// one. Errors: Stopped, the runtime's; nothing is kept then.
    pub fn get(
        &self,
        runtime: &dyn Runtime,
        part: &PartSpec,
        constants: Vec<(u32, SharedConstant)>,
        stop: &StopToken,
    ) -> Result<Cached, RuntimeError> {
        let key = key(part, &constants);
        let n_bytes = constants.iter().map(|(_, constant)| constant.tensor.desc().len_bytes()).sum::<usize>();
        let of_client = OfClient {
            has_constants: !constants.is_empty(),
            // A thread of the client's has captured them, and ends with it.
            has_graphs: part.session.has_cuda_graphs(),
        };
        let cell = self.cell(&key, part.model.len() + n_bytes, of_client);
        let mut slot = lock(&cell);
        if let Some(ready) = &*slot {
            return Ok(Cached { ready: ready.clone(), built_in: None });
        }
        let start = Instant::now();
        match build_with_outline(runtime, part, constants, stop) {
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

    /// A tensor as a constant of sessions: the one of the same content that a session has, or this. It is private memory:
    /// nobody can have written between its hash and its use.
    pub fn share(&self, tensor: TensorBuf) -> SharedConstant {
        let hash = content(&tensor);
        let mut state = self.lock();
        state.constants.retain(|_, constant| constant.strong_count() > 0);
        let known = state.constants.get(&hash).and_then(Weak::upgrade);
        let tensor = known.unwrap_or_else(|| {
            let tensor = Arc::new(tensor);
            state.constants.insert(hash, Arc::downgrade(&tensor));
            tensor
        });
        SharedConstant { tensor, hash }
    }

    /// Bytes of all constants, each content once.
    pub fn constant_bytes(&self) -> u64 {
        let bytes = |tensor: Arc<TensorBuf>| tensor.desc().len_bytes() as u64;
        self.lock().constants.values().filter_map(Weak::upgrade).map(bytes).sum()
    }

    fn cell(&self, key: &Key, model_len: usize, of_client: OfClient) -> Cell {
        let mut state = self.lock();
        state.clock += 1;
        let used = state.clock;
        let entry = state.entries.entry(key.clone()).or_insert_with(|| {
            // The runtime keeps the initializers and, prepacked, most of them a second time.
            let bytes = 2 * model_len as u64 + (1 << 20);
            Entry { cell: Cell::default(), bytes, used, unwanted: of_client.any(), of_client }
        });
        entry.used = used;
        entry.unwanted = of_client.any();
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

    /// Ends the unwanted sessions that nobody holds. Whether one had constants.
    pub fn drop_unwanted(&self) -> bool {
        let dropped: Vec<_> =
            self.lock().entries.extract_if(|_, entry| entry.unwanted && is_idle(&entry.cell)).collect();
        // Their end takes its time: not under the lock.
        dropped.into_iter().any(|(_, entry)| entry.of_client.has_constants)
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

fn build_with_outline(
    runtime: &dyn Runtime,
    part: &PartSpec,
    constants: Vec<(u32, SharedConstant)>,
    stop: &StopToken,
) -> Result<Ready, RuntimeError> {
    let exported = onnx::decode_whole(part.model.clone())?;
    let outline = Arc::new(ModelOutline::of(&exported)?);
    let positions: Vec<u32> = constants.iter().map(|(input, _)| *input).collect();
    let constants = named(&exported, constants)?;
    let frozen: Vec<ValueSpec> = constants.iter().map(spec_of).collect();
    let (session, division) = session_with(runtime, part, exported, constants, stop)?;
    let mut inputs = session.inputs().to_vec();
    for (position, spec) in positions.into_iter().zip(frozen) {
        inputs.insert((position as usize).min(inputs.len()), spec);
    }
    Ok(Ready { session, outline, inputs: inputs.into(), division: Arc::new(division) })
}

/// Constants by the names of the model's inputs. Errors: BadModel where it has no such input.
fn named(exported: &ModelProto, constants: Vec<(u32, SharedConstant)>) -> Result<Vec<Constant>, RuntimeError> {
    let inputs = exported.graph.as_ref().map_or(&[][..], |graph| &graph.input);
    let named = |(position, SharedConstant { tensor, .. }): (u32, SharedConstant)| {
        let input = inputs.get(position as usize).ok_or_else(|| RuntimeError::BadModel {
            reason: format!("input {position} is to be a constant, and there are {}", inputs.len()),
        })?;
        Ok(Constant { name: input.name().to_owned(), tensor })
    };
    constants.into_iter().map(named).collect()
}

fn spec_of(constant: &Constant) -> ValueSpec {
    let desc = constant.tensor.desc();
    ValueSpec { name: constant.name.clone(), dtype: desc.dtype, dims: desc.shape.dims().to_vec() }
}

/// The model as exported, with the names that say where it rounds, what patterns are looked for in and the values of its
/// constants: those that the session gets, which nobody else can write.
fn key(part: &PartSpec, constants: &[(u32, SharedConstant)]) -> Key {
    let mut hasher = blake3::Hasher::new();
    for len in [part.model.len(), part.named_values.len(), part.described.len()] {
        hasher.update(&(len as u64).to_le_bytes());
    }
    hasher.update(&part.model);
    for name in &part.named_values {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
    }
    for (value, Described { fx, op, module }) in &part.described {
        for text in [value, fx, op, module] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
    }
    for (position, constant) in constants {
        hasher.update(&position.to_le_bytes()).update(&constant.hash);
    }
    (*hasher.finalize().as_bytes(), part.session.clone())
}

fn content(tensor: &TensorBuf) -> [u8; 32] {
    let (mut hasher, desc) = (blake3::Hasher::new(), tensor.desc());
    hasher.update(&desc.dtype.onnx_code().to_le_bytes()).update(&(desc.shape.dims().len() as u64).to_le_bytes());
    for dim in desc.shape.dims() {
        hasher.update(&dim.to_le_bytes());
    }
    *hasher.update(tensor.view().bytes()).finalize().as_bytes()
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
    use crate::base::ids::{DeviceUuid, GraphId};
    use crate::protocol::message::{CUDA_GRAPHS, CUDA_PROVIDER, RunStats};
    use crate::runtime::{BoundCall, Model};
    use crate::shm::Lease;

    #[derive(Default)]
    struct Fake {
        builds: AtomicUsize,
    }

    struct FakeSession;

    impl Runtime for Fake {
        fn version(&self) -> &str {
            "0"
        }

        fn build_with(
            &self,
            model: &Model,
            _: &SessionSpec,
            _: Vec<Constant>,
        ) -> Result<Arc<dyn Session>, RuntimeError> {
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

        fn fetch_until(&self, _: &Lease, _: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
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
            described: Default::default(),
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
            let cached = cache.get(&fake, &part(3, &spec), Vec::new(), &StopToken::default()).unwrap();
            assert_eq!((cached.built_in.is_some(), cached.ready.outline.n_nodes()), (built, 3));
        }
        assert_eq!((fake.builds.load(Ordering::SeqCst), cache.len()), (2, 2));
    }

    #[test]
    fn a_failed_build_leaves_nothing_behind() {
        let (fake, cache) = (Fake::default(), SessionCache::new(Limits::default()));
        assert!(cache.get(&fake, &part(0, &SessionSpec::default()), Vec::new(), &StopToken::default()).is_err());
        let garbage = PartSpec { model: Bytes::from_static(b"garbage"), ..part(0, &SessionSpec::default()) };
        assert!(cache.get(&fake, &garbage, Vec::new(), &StopToken::default()).is_err());
        assert!(cache.len() == 0);
    }

    #[test]
    fn a_session_that_nobody_waits_for_is_not_built_and_the_next_one_is() {
        let (fake, cache, stop) = (Fake::default(), SessionCache::new(Limits::default()), StopToken::default());
        stop.stop();
        let part = part(3, &SessionSpec::default());
        assert!(matches!(cache.get(&fake, &part, Vec::new(), &stop), Err(RuntimeError::Stopped)));
        assert_eq!((fake.builds.load(Ordering::SeqCst), cache.len()), (0, 0));
        assert!(cache.get(&fake, &part, Vec::new(), &StopToken::default()).unwrap().built_in.is_some());
    }

    #[test]
    fn the_least_recently_used_idle_session_goes_first() {
        let (fake, spec) = (Fake::default(), SessionSpec::default());
        let cache = SessionCache::new(Limits { max_sessions: 2, ..Limits::default() });
        let built =
            |n: u8| cache.get(&fake, &part(n, &spec), Vec::new(), &StopToken::default()).unwrap().built_in.is_some();
        let held = cache.get(&fake, &part(1, &spec), Vec::new(), &StopToken::default()).unwrap();
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
        let built =
            |n: u8| cache.get(&fake, &part(n, &spec), Vec::new(), &StopToken::default()).unwrap().built_in.is_some();
        let held = cache.get(&fake, &part(1, &spec), Vec::new(), &StopToken::default()).unwrap().ready.session;
        assert!(built(2) && built(3));
        let two = cache.get(&fake, &part(2, &spec), Vec::new(), &StopToken::default()).unwrap().ready.session;
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
    fn constants_belong_to_the_key_and_their_session_ends_with_who_holds_it() {
        let (fake, spec) = (Fake::default(), SessionSpec::default());
        let cache = SessionCache::new(Limits::default());
        let constant = |position, value| vec![(position, cache.share(TensorBuf::from_f32([1], &[value]).unwrap()))];
        let two_inputs: Bytes = [vec![0x3a, 6], vec![0x0a, 0], [0x5a, 0].repeat(2)].concat().into();
        let part = PartSpec { model: two_inputs, ..part(1, &spec) };
        let get = |constants| cache.get(&fake, &part, constants, &StopToken::default()).unwrap();
        let held = get(constant(0, 1.0));
        assert_eq!(held.ready.inputs.len(), 1);
        for (constants, built) in
            [(constant(0, 1.0), false), (constant(0, -1.0), true), (constant(1, 1.0), true), (Vec::new(), true)]
        {
            assert_eq!(get(constants).built_in.is_some(), built);
        }
        assert!(matches!(
            cache.get(&fake, &part, constant(2, 1.0), &StopToken::default()),
            Err(RuntimeError::BadModel { .. })
        ));
        cache.drop_unwanted();
        assert_eq!(cache.len(), 2, "the one that is held, and the one without constants");
        let (one, again) = (constant(0, 2.0), constant(1, 2.0));
        assert!(Arc::ptr_eq(&one[0].1.tensor, &again[0].1.tensor), "of equal content there is one");
        assert_eq!(cache.constant_bytes(), 4, "the fake session keeps none, as this does");
        drop((one, again, held));
        cache.drop_unwanted();
        assert_eq!((cache.len(), cache.constant_bytes()), (1, 0));
    }

    #[test]
    fn a_session_with_cuda_graphs_ends_with_who_holds_it() {
        let (fake, cache) = (Fake::default(), SessionCache::new(Limits::default()));
        let spec = |value: &str| SessionSpec {
            providers: vec![(CUDA_PROVIDER.to_owned(), [(CUDA_GRAPHS.to_owned(), value.to_owned())].into())],
            device: Some(DeviceUuid([7; 16])),
            ..SessionSpec::default()
        };
        for (value, left) in [("1", 0), ("0", 1)] {
            let held = cache.get(&fake, &part(1, &spec(value)), Vec::new(), &StopToken::default()).unwrap();
            assert!(
                cache.get(&fake, &part(1, &spec(value)), Vec::new(), &StopToken::default()).unwrap().built_in.is_none()
            );
            drop(held);
            assert!(!cache.drop_unwanted(), "it has no constants");
            assert_eq!(cache.len(), left, "{value}");
        }
    }

    #[test]
    fn nothing_is_left_after_clearing() {
        let (fake, spec, cache) = (Fake::default(), SessionSpec::default(), SessionCache::new(Limits::default()));
        let held = cache.get(&fake, &part(1, &spec), Vec::new(), &StopToken::default()).unwrap();
        cache.clear();
        assert_eq!((cache.len(), Arc::strong_count(&held.ready.session)), (0, 1));
        assert!(cache.get(&fake, &part(1, &spec), Vec::new(), &StopToken::default()).unwrap().built_in.is_some());
    }

    #[test]
    fn bytes_are_limited_too() {
        let (fake, spec) = (Fake::default(), SessionSpec::default());
        let cache = SessionCache::new(Limits { max_bytes: 3 << 20, ..Limits::default() });
        for n in 1..6 {
            cache.get(&fake, &part(n, &spec), Vec::new(), &StopToken::default()).unwrap();
        }
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn threads_that_want_one_model_build_it_once() {
        let (fake, cache) = (Fake::default(), SessionCache::new(Limits::default()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    cache
                        .get(&fake, &part(1, &SessionSpec::default()), Vec::new(), &StopToken::default())
                        .unwrap()
                        .built_in
                });
            }
        });
        assert_eq!(fake.builds.load(Ordering::SeqCst), 1);
    }
}

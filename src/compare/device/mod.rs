//! Metrics of tensors that lie on a device, reduced there: only numbers come back.
//!
//! `kernels.cu` says what the rest of the room says on the host, and agrees with it in everything but the order of the sums,
//! which depends on the tensor's length alone. However many tensors are asked of, three rounds answer: each queues all that
//! can be told by then, and waits once.
#![allow(unsafe_code)]

mod results;
mod round;

use std::sync::{Arc, Mutex};

use results::{DeviceStats, Numbers, Segments, Sums, Words};
use round::{Answers, Kind, Rounds, Task, address};

use super::element::part_of;
use super::metrics::Measured;
use super::noise::{Errors, Explained, Scales};
use super::range::Range;
use super::signature;
use super::stats::{Outside, Stats};
use super::sums;
use super::tolerance::{Bounds, Tolerance};
use crate::base::sync::lock;
use crate::cuda::{CudaError, Device, Kernels, Span, Stream};
use crate::tensor::{DType, TensorDesc};

/// What measures tensors on one device.
pub struct DeviceMeter(Mutex<Rounds>);

/// A candidate and its reference on a device, and what to find out of them.
#[derive(Clone, Copy, Debug)]
pub struct DevicePair<'a> {
    /// Of both.
    pub desc: &'a TensorDesc,
    /// Eager's.
    pub reference: Span<'a>,
    /// The runtime's.
    pub candidate: Span<'a>,
    /// What is inside.
    pub tolerance: Tolerance,
    /// Σ|terms|, float64, for a mismatch.
    pub terms: Option<Span<'a>>,
    /// What both should be, float64, and what rounding explains.
    pub exact: Option<(Span<'a>, Explained<Span<'a>>)>,
    /// The signatures, too.
    pub signatures: bool,
}

/// The spans of a pair, as addresses of tensors that are as long as they must be.
struct Addresses {
    reference: u64,
    candidate: u64,
    terms: Option<u64>,
    /// Of both: what the errors are measured by.
    exact: Option<(u64, Option<u64>)>,
}

/// A pair on its way.
struct Open<'a> {
    pair: &'a DevicePair<'a>,
    at: Addresses,
    n_numbers: u64,
    found: Measured,
    /// Largest finite |exact|.
    largest: f64,
}

/// Questions of one round, and who asked each.
struct Asked {
    tasks: Vec<(Kind, Task)>,
    of: Vec<usize>,
}

impl DeviceMeter {
    /// Compiles the kernels for the device. Errors: Compiler (no NVRTC), Library, OutOfMemory, Call.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        let kernels = Kernels::compile(device, include_str!("kernels.cu"), "rust_ort_kernels.cu", None)?;
        Ok(Self(Mutex::new(Rounds::new(device, &kernels)?)))
    }

    /// Measures candidates against their references on `stream`, which is of the device. Nobody writes them meanwhile. Blocks
    /// until it is done. Errors: Range where a span is no such tensor, Call.
    pub fn measure(&self, stream: &Stream, pairs: &[DevicePair<'_>]) -> Result<Vec<Measured>, CudaError> {
        let mut open = pairs.iter().map(Open::new).collect::<Result<Vec<_>, _>>()?;
        let mut rounds = lock(&self.0);
        let first = Asked::of(&open, Open::first);
        // SAFETY: the spans hold the tensors, and are borrowed until this returns.
        unsafe { first.answered(&mut rounds, stream, &mut open) }?;
        let second = Asked::of(&open, Open::second);
        // SAFETY: as above.
        unsafe { second.answered(&mut rounds, stream, &mut open) }?;
        let third = Asked::of(&open, Open::third);
        // SAFETY: as above.
        unsafe { third.answered(&mut rounds, stream, &mut open) }?;
        Ok(open.into_iter().map(|open| open.found).collect())
    }

    /// What tensors hold; None of dtypes that have no range. Otherwise as [`DeviceMeter::measure`].
    pub fn ranges(
        &self,
        stream: &Stream,
        tensors: &[(&TensorDesc, Span<'_>)],
    ) -> Result<Vec<Option<Range>>, CudaError> {
        let mut tasks = Vec::new();
        for (desc, span) in tensors.iter().filter(|(desc, _)| has_range(desc.dtype) && desc.len_bytes() > 0) {
            let reference = address(*span, desc.len_bytes() as u64)?;
            let (dtype, n_numbers) = (desc.dtype.onnx_code() as u64, desc.shape.n_elements() as u64);
            tasks.push((Kind::Range, Task { reference, dtype, n_numbers, ..Task::default() }));
        }
        // SAFETY: the spans hold the tensors, and are borrowed until this returns.
        let answers = unsafe { lock(&self.0).run(stream, &tasks) }?;
        let mut answers = answers.iter().map(|words| Words::read::<Range>(words));
        let range = |(desc, _): &(&TensorDesc, Span<'_>)| {
            let n = desc.shape.n_elements() as u64;
            let nothing = Range { n, min: f64::NAN, max: f64::NAN, nan: 0, inf: 0, zeros: 0 };
            match desc.len_bytes() {
                _ if !has_range(desc.dtype) => None,
                0 => Some(nothing),
                _ => answers.next().map(|found| Range { n, ..found }),
            }
        };
        Ok(tensors.iter().map(range).collect())
    }
}

/// Of dtypes that widen to f64 element by element on the host, too.
fn has_range(dtype: DType) -> bool {
    dtype.widens()
}

impl Asked {
    fn of<'a>(open: &[Open<'a>], ask: impl Fn(&Open<'a>) -> Vec<(Kind, Task)>) -> Self {
        let mut asked = Self { tasks: Vec::new(), of: Vec::new() };
        for (index, open) in open.iter().enumerate().filter(|(_, open)| open.n_numbers > 0) {
            let tasks = ask(open);
            asked.of.extend(std::iter::repeat_n(index, tasks.len()));
            asked.tasks.extend(tasks);
        }
        asked
    }

    /// # Safety
    /// As of [`Rounds::run`].
    unsafe fn answered(self, rounds: &mut Rounds, stream: &Stream, open: &mut [Open<'_>]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        let answers: Answers = unsafe { rounds.run(stream, &self.tasks) }?;
        for ((words, (kind, task)), of) in answers.iter().zip(&self.tasks).zip(self.of) {
            open[of].take(*kind, task, words);
        }
        Ok(())
    }
}

impl<'a> Open<'a> {
    fn new(pair: &'a DevicePair<'a>) -> Result<Self, CudaError> {
        let len_bytes = pair.desc.len_bytes() as u64;
        let doubles = |span: Span<'_>| address(span, pair.desc.shape.n_elements() as u64 * size_of::<f64>() as u64);
        let exact = pair.exact.as_ref().filter(|(_, explained)| Scales::has_any(pair.desc.dtype, explained));
        let exact = exact.map(|(exact, explained)| {
            Ok::<_, CudaError>((doubles(*exact)?, explained.terms().copied().map(doubles).transpose()?))
        });
        let at = Addresses {
            reference: address(pair.reference, len_bytes)?,
            candidate: address(pair.candidate, len_bytes)?,
            terms: pair
                .terms
                .filter(|_| pair.desc.dtype.widens() && pair.tolerance.rtol > 0.)
                .map(doubles)
                .transpose()?,
            exact: exact.transpose()?,
        };
        let n_numbers = len_bytes / part_of(pair.desc.dtype).size_bytes() as u64;
        let mut found = Measured::default();
        if n_numbers == 0 {
            // As of a tensor of any length that holds nothing.
            if at.exact.is_some() {
                found.set_errors(Errors::default());
            }
            found.signatures = pair.signatures.then(|| [0; 2].map(|_| signature::letters([0.; 4])));
        }
        if pair.signatures && !pair.desc.dtype.widens() {
            found.signatures = Some([0; 2].map(|_| signature::UNKNOWN.to_owned()));
        }
        Ok(Self { pair, at, n_numbers, found, largest: 0. })
    }

    fn task(&self) -> Task {
        let DevicePair { desc, tolerance, .. } = self.pair;
        Task {
            reference: self.at.reference,
            candidate: self.at.candidate,
            n_numbers: self.n_numbers,
            dtype: part_of(desc.dtype).onnx_code() as u64,
            equal_nan: tolerance.equal_nan.into(),
            fill_limit: Tolerance::fill_limit(desc.dtype),
            atol: tolerance.atol,
            rtol: tolerance.rtol,
            ..Task::default()
        }
    }

    fn signs(&self) -> bool {
        self.pair.signatures && self.pair.desc.dtype.widens()
    }

    /// What needs nothing else.
    fn first(&self) -> Vec<(Kind, Task)> {
        let mut asked = vec![(Kind::Stats, self.task())];
        if self.signs() {
            asked.push((Kind::Signature, self.task()));
        }
        if let Some((exact, _)) = self.at.exact {
            let dtype = DType::F64.onnx_code() as u64;
            asked.push((Kind::Range, Task { reference: exact, dtype, ..self.task() }));
        }
        asked
    }

    /// What needs the largest of all elements.
    fn second(&self) -> Vec<(Kind, Task)> {
        let mut asked = Vec::new();
        let Stats { max_abs, max_reference, .. } = self.found.stats;
        let bounds = Bounds::new(&self.pair.tolerance, max_reference);
        if bounds.may_be_beyond(max_abs) {
            asked.push((Kind::Outside, Task { floor: bounds.floor, ..self.task() }));
        }
        if self.signs() && self.found.stats.has_unequal() {
            asked.push((Kind::Signature, Task { reference: self.at.candidate, ..self.task() }));
        }
        if let (Some((exact, terms)), Some((_, explained))) = (self.at.exact, &self.pair.exact) {
            let scales = Scales::of(self.pair.desc.dtype, explained, self.largest);
            let (epsilon, smallest) = scales.steps.map_or((0., 0.), |steps| steps.parts());
            let task = Task {
                exact,
                terms: terms.unwrap_or_default(),
                of_exact: scales.exact,
                of_terms: scales.terms,
                of_all: scales.all,
                epsilon,
                smallest,
                ..self.task()
            };
            asked.push((Kind::Errors, task));
        }
        asked
    }

    /// What needs to know which elements are outside.
    fn third(&self) -> Vec<(Kind, Task)> {
        let mut asked = Vec::new();
        if let (Some(terms), 1..) = (self.at.terms, self.found.outside.count) {
            let (floor, of_terms) = sums::scales(&self.pair.tolerance, self.found.stats.max_reference);
            asked.push((Kind::Sums, Task { terms, floor, of_terms, ..self.task() }));
        }
        let looked_at = [self.found.outside.worst.or(self.found.stats.argmax_abs), self.found.outside.first];
        if looked_at.iter().any(Option::is_some) {
            let at = looked_at.map(|place| place.map_or(u64::MAX, |place| place.index));
            asked.push((Kind::Numbers, Task { at, ..self.task() }));
        }
        asked
    }

    fn take(&mut self, kind: Kind, task: &Task, words: &[u64]) {
        match kind {
            Kind::Stats => {
                let DeviceStats { stats, not_zero } = Words::read(words);
                (self.found.stats, self.found.not_zero) = (stats, not_zero);
            }
            Kind::Outside => self.found.outside = Words::read::<Outside>(words),
            Kind::Range => self.largest = Words::read::<Range>(words).largest(),
            Kind::Errors => {
                let errors: Errors = Words::read(words);
                let explained = self.pair.exact.as_ref().map(|(_, explained)| explained);
                if let Some(explained) = explained {
                    let scales = Scales::of(self.pair.desc.dtype, explained, self.largest);
                    self.found.set_errors(errors.with_condition(&scales));
                }
            }
            Kind::Sums => {
                let Sums { unexplained, max_terms } = Words::read(words);
                self.found.max_terms = (unexplained == 0).then_some(max_terms);
            }
            Kind::Signature => {
                let letters = signature::letters(Words::read::<Segments>(words).0);
                match &mut self.found.signatures {
                    // The candidate's comes after the reference's, which stands for both until then.
                    Some([_, candidate]) => *candidate = letters,
                    both => *both = Some([letters.clone(), letters]),
                }
            }
            Kind::Numbers => {
                let Measured { stats, outside, .. } = &mut self.found;
                let places = [&mut stats.argmax_abs, &mut outside.worst, &mut outside.first];
                for place in places.into_iter().flatten() {
                    let known = task.at.into_iter().zip(Words::read::<Numbers>(words).0);
                    for (_, numbers) in known.filter(|(at, _)| *at == place.index) {
                        (place.reference, place.candidate) = numbers;
                    }
                }
            }
        }
    }
}

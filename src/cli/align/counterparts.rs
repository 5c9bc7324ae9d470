//! A value's counterpart in the other model, wherever it stands there.

use std::collections::{HashMap, HashSet};

use super::trace::Trace;
use crate::compare::{RunResult, TensorVerdict, Tolerance, judge};
use crate::tensor::{DType, Shape, TensorBuf, TensorDesc, TensorView};

/// Elements of a value that are looked at before all of them are.
const SAMPLES: usize = 16;
/// Pairs of values of which samples are looked at.
const MOST_TRIES: usize = 20_000_000;
/// Ranks of which other orders of the axes are tried.
const MOST_AXES: usize = 4;
/// max|Δ|/max|r| of two values that are the same but for an error.
const CLOSE: f64 = 0.1;

/// Two values that are one.
#[derive(Clone, Debug)]
pub(super) struct Agreement {
    /// The verdict, which is a pass.
    pub(super) verdict: TensorVerdict,
    /// The order of the first's axes in the second; None: the same.
    pub(super) axes: Option<Vec<usize>>,
}

/// What a value is known by before all of it is read.
struct Sample {
    values: Vec<f64>,
    max_abs: f64,
}

/// Values of both models, by name and by shape.
pub(super) struct Search<'a> {
    traces: [&'a Trace; 2],
    tolerance: Option<&'a Tolerance>,
    by_name: [HashMap<&'a str, Vec<usize>>; 2],
    /// By dimensions in ascending order.
    by_dims: [HashMap<Vec<i64>, Vec<usize>>; 2],
    samples: [HashMap<usize, Option<Sample>>; 2],
    judged: HashMap<(usize, usize), Option<Agreement>>,
    /// Pairs that are one value, or should be.
    related: HashSet<(usize, usize)>,
    n_tries: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(traces: [&'a Trace; 2], tolerance: Option<&'a Tolerance>) -> Self {
        let mut by_name: [HashMap<&'a str, Vec<usize>>; 2] = Default::default();
        let mut by_dims: [HashMap<Vec<i64>, Vec<usize>>; 2] = Default::default();
        for (side, &trace) in traces.iter().enumerate() {
            for (at, result) in trace.results.iter().enumerate() {
                for name in names(trace, result) {
                    by_name[side].entry(name).or_default().push(at);
                }
                if let Some(mut dims) = trace.dims(at).map(<[i64]>::to_vec) {
                    dims.sort_unstable();
                    by_dims[side].entry(dims).or_default().push(at);
                }
            }
        }
        Self {
            traces,
            tolerance,
            by_name,
            by_dims,
            samples: Default::default(),
            judged: HashMap::new(),
            related: HashSet::new(),
            n_tries: 0,
        }
    }

    pub(super) fn results(&self, side: usize) -> &'a [RunResult] {
        &self.traces[side].results
    }

    /// Whether too many values were alike to look at all of them.
    pub(super) fn gave_up(&self) -> bool {
        self.n_tries >= MOST_TRIES
    }

    /// Whether they have a name in common, of the graph or of the module.
    pub(super) fn named_alike(&mut self, i: usize, j: usize) -> bool {
        let [one, other] = self.traces;
        let others: Vec<&str> = names(other, &other.results[j]).collect();
        names(one, &one.results[i]).any(|name| !name.is_empty() && others.contains(&name))
    }

    /// Whether they have a name in common that is more than a number (`val_103`, as exporters count values).
    pub(super) fn truly_named_alike(&mut self, i: usize, j: usize) -> bool {
        let [one, other] = self.traces;
        let others: Vec<&str> = names(other, &other.results[j]).collect();
        names(one, &one.results[i]).any(|name| !is_counted(name) && others.contains(&name))
    }

    /// Whether they have a name in common, and are equal where it is but a number.
    pub(super) fn surely_named_alike(&mut self, i: usize, j: usize) -> bool {
        self.truly_named_alike(i, j) || self.named_alike(i, j) && self.agree(i, j)
    }

    /// Whether they are of one type, as far as it is known.
    pub(super) fn typed_alike(&mut self, i: usize, j: usize) -> bool {
        let [one, other] = [&self.results(0)[i], &self.results(1)[j]];
        one.dtype == other.dtype && one.shape == other.shape
    }

    /// Whether they are one value, element by element.
    pub(super) fn agree(&mut self, i: usize, j: usize) -> bool {
        self.agreement(i, j).is_some_and(|agreement| agreement.axes.is_none())
    }

    /// How they are one value, if they are: as they stand, else with the axes in another order.
    pub(super) fn agreement(&mut self, i: usize, j: usize) -> Option<Agreement> {
        self.judged.get(&(i, j)).cloned().unwrap_or_else(|| self.compared(i, j))
    }

    /// What was judged whole is kept: there may be very many pairs.
    fn compared(&mut self, i: usize, j: usize) -> Option<Agreement> {
        if let [Some(_), Some(_)] = [self.traces[0].exact(i), self.traces[1].exact(j)] {
            let verdict = self.judged(i, j);
            return verdict.verdict.is_pass().then_some(Agreement { verdict, axes: None });
        }
        let [one, other] = [self.traces[0].value(i)?, self.traces[1].value(j)?];
        let dims = [one.shape().dims(), other.shape().dims()];
        if dims[0].len() != dims[1].len() {
            return None;
        }
        let name = &self.results(0)[i].name;
        if dims[0] == dims[1] && self.may_agree(i, j, None) {
            let verdict = judged(name, [Some(one), Some(other)], self.tolerance);
            let found = verdict.verdict.is_pass().then_some(Agreement { verdict, axes: None });
            self.judged.insert((i, j), found.clone());
            if found.is_some() {
                return found;
            }
        }
        let orders = if (2..=MOST_AXES).contains(&dims[0].len()) { orders(dims[0].len()) } else { Vec::new() };
        for axes in orders {
            let is_shape = axes.iter().zip(dims[0]).all(|(&axis, &size)| dims[1][axis] == size);
            // Where all but one of the elements' axes are 1 a reshape is meant.
            if is_shape && dims[0].iter().filter(|&&size| size != 1).count() > 1 && self.may_agree(i, j, Some(&axes)) {
                let moved = transposed(&other, &axes)?;
                let verdict = judged(name, [Some(one), Some(moved.view())], self.tolerance);
                if verdict.verdict.is_pass() {
                    let found = Some(Agreement { verdict, axes: Some(axes) });
                    self.judged.insert((i, j), found.clone());
                    return found;
                }
            }
        }
        None
    }

    /// False: a sample of their elements says that they are two values. axes: of the second, in the first's order.
    fn may_agree(&mut self, i: usize, j: usize, axes: Option<&[usize]>) -> bool {
        self.n_tries += 1;
        let [Some(one), Some(other)] = [self.traces[0].value(i), self.traces[1].value(j)] else { return false };
        if one.shape().n_elements() == 0 {
            return one.dtype() == other.dtype();
        }
        for (side, at) in [(0, i), (1, j)] {
            let trace = self.traces[side];
            self.samples[side].entry(at).or_insert_with(|| Sample::of(&trace.value(at)?));
        }
        let (Some(Some(first)), Some(Some(second))) = (self.samples[0].get(&i), self.samples[1].get(&j)) else {
            // Of dtypes that do not widen: judged whole.
            return one.dtype() == other.dtype() && axes.is_none();
        };
        let tolerance = self.tolerance.copied().unwrap_or_else(|| coarser([one.dtype(), other.dtype()]));
        let floor = tolerance.atol + tolerance.scale * first.max_abs;
        let near = |reference: f64, candidate: f64| {
            reference == candidate
                || reference.is_nan() && candidate.is_nan()
                || (reference - candidate).abs() <= 2. * (floor + tolerance.rtol * reference.abs())
        };
        let Some(axes) = axes else {
            return first.values.iter().zip(&second.values).all(|(&one, &other)| near(one, other));
        };
        let shape = one.shape();
        let places = sampled(shape.n_elements());
        first.values.iter().zip(places).all(|(&reference, place)| {
            let moved = moved(place, shape.dims(), other.shape().dims(), axes);
            other.flat_f64(moved..moved + 1).is_some_and(|candidate| near(reference, candidate[0]))
        })
    }

    /// The value of the other model that is a side's one: of its name, else the nearest to a place.
    pub(super) fn elsewhere(&mut self, side: usize, at: usize, near: usize) -> Option<(usize, Agreement)> {
        let (trace, other) = (self.traces[side], 1 - side);
        let mut dims = trace.dims(at)?.to_vec();
        let result = &trace.results[at];
        let is_one = dims.iter().all(|&size| size == 1);
        if dims.contains(&0) {
            return None;
        }
        dims.sort_unstable();
        let by_name: Vec<usize> =
            names(trace, result).filter_map(|name| self.by_name[other].get(name)).flatten().copied().collect();
        let mut others = self.by_dims[other].get(&dims).cloned().unwrap_or_default();
        others.sort_by_key(|place| place.abs_diff(near));
        for place in by_name.into_iter().chain(others) {
            if self.gave_up() {
                return None;
            }
            let candidate = &self.results(other)[place];
            // A lone number is found everywhere.
            let may_be = !is_one || candidate.kind == result.kind && candidate.op_type == result.op_type;
            let (i, j) = if side == 0 { (at, place) } else { (place, at) };
            if may_be && let Some(agreement) = self.agreement(i, j) {
                return Some((place, agreement));
            }
        }
        None
    }

    /// The value of the other model that has a side's name, kind, operator and shape.
    pub(super) fn namesake(&self, side: usize, at: usize) -> Option<usize> {
        let trace = self.traces[side];
        let result = &trace.results[at];
        let is_one = |other: &&usize| {
            let other = &self.results(1 - side)[**other];
            other.kind == result.kind && other.op_type == result.op_type && other.shape == result.shape
        };
        names(trace, result)
            .filter_map(|name| self.by_name[1 - side].get(name))
            .flatten()
            .find(is_one)
            .copied()
            .filter(|_| result.shape.is_some())
    }

    /// Whether a pair that differs is one value with an error: it is nearly equal, or its nodes do the same with the same.
    pub(super) fn is_one_value(&mut self, i: usize, j: usize, verdict: &TensorVerdict) -> bool {
        let [one, other] = [&self.results(0)[i], &self.results(1)[j]];
        if one.kind != other.kind || one.shape != other.shape {
            return false;
        }
        let is_close = verdict.metrics.as_ref().is_some_and(|metrics| metrics.max_rel_to_max <= CLOSE);
        is_close || self.does_the_same(i, j) || self.named_alike(i, j) && self.reads_the_same(i, j)
    }

    /// Whether both are given by one operator, with one set of attributes, from values that are equal or should be.
    pub(super) fn does_the_same(&mut self, i: usize, j: usize) -> bool {
        let [first, second] = self.traces;
        let (Some(one), Some(other)) = (first.origin(i), second.origin(j)) else { return false };
        one.is_alike(&other) && self.reads_the_same(i, j)
    }

    fn reads_the_same(&mut self, i: usize, j: usize) -> bool {
        let [first, second] = self.traces;
        let (Some(one), Some(other)) = (first.origin(i), second.origin(j)) else { return false };
        if one.reads.len() != other.reads.len() {
            return false;
        }
        one.reads.iter().zip(other.reads).all(|pair| match pair {
            (None, None) => true,
            (Some(i), Some(j)) => self.related.contains(&(*i, *j)) || self.agree(*i, *j),
            _ => false,
        })
    }

    /// From here on these two are held to be one value.
    pub(super) fn relate(&mut self, i: usize, j: usize) {
        self.related.insert((i, j));
    }

    pub(super) fn is_read(&self, side: usize, at: usize) -> bool {
        self.traces[side].dims(at).is_some()
    }

    /// The verdict on two values as they stand.
    pub(super) fn judged(&self, i: usize, j: usize) -> TensorVerdict {
        let [first, second] = self.traces;
        let name = &first.results[i].name;
        match (first.exact(i), second.exact(j)) {
            (Some(one), Some(other)) => one.judged(other, name),
            _ => judged(name, [first.value(i), second.value(j)], self.tolerance),
        }
    }
}

impl Sample {
    /// None of dtypes that do not widen.
    fn of(value: &TensorView<'_>) -> Option<Self> {
        const BLOCK: usize = 1 << 14;
        let n = value.shape().n_elements();
        let mut max_abs = 0_f64;
        for from in (0..n).step_by(BLOCK) {
            let block = value.flat_f64(from..(from + BLOCK).min(n))?;
            max_abs = block.into_iter().map(f64::abs).filter(|value| value.is_finite()).fold(max_abs, f64::max);
        }
        let values = sampled(n).map(|at| Some(value.flat_f64(at..at + 1)?[0])).collect::<Option<_>>()?;
        Some(Self { values, max_abs })
    }
}

/// Names of a result: of the graph, and of what it is by the provenance.
fn names<'a>(trace: &'a Trace, result: &'a RunResult) -> impl Iterator<Item = &'a str> {
    let called = trace.called.get(&result.name).map(String::as_str);
    [Some(result.name.as_str()), called].into_iter().flatten().filter(|name| !name.is_empty())
}

/// Whether it is letters, an underscore and digits: a value that an exporter counted, of which another's may have the name.
fn is_counted(name: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.rsplit_once('_').is_some_and(|(word, number)| is_word(word) && is_number(number))
}

/// Places of some elements, spread over all.
fn sampled(n: usize) -> impl Iterator<Item = usize> {
    let n_samples = n.min(SAMPLES);
    (0..n_samples).map(move |at| if n_samples > 1 { at * (n - 1) / (n_samples - 1) } else { 0 })
}

/// Every order of so many axes but their own.
fn orders(rank: usize) -> Vec<Vec<usize>> {
    let mut orders: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..rank {
        let longer = |order: Vec<usize>| {
            let left = (0..rank).filter(|axis| !order.contains(axis)).collect::<Vec<_>>();
            left.into_iter().map(move |axis| [order.as_slice(), &[axis]].concat())
        };
        orders = orders.into_iter().flat_map(longer).collect();
    }
    orders.retain(|order| !order.is_sorted());
    orders
}

/// The flat place in the second of an element of the first. axes: of the second, in the order of the first's.
fn moved(place: usize, dims: &[i64], other: &[i64], axes: &[usize]) -> usize {
    let mut rest = place;
    let mut index = vec![0; other.len()];
    for (&axis, &size) in axes.iter().zip(dims).rev() {
        index[axis] = rest % size as usize;
        rest /= size as usize;
    }
    index.iter().zip(other).fold(0, |at, (index, &size)| at * size as usize + index)
}

/// The value with its axes in this order. None of sizes that are none.
fn transposed(value: &TensorView<'_>, axes: &[usize]) -> Option<TensorBuf> {
    let own = value.shape().dims();
    let dims: Vec<i64> = axes.iter().map(|&axis| own[axis]).collect();
    let size = value.dtype().size_bytes();
    let bytes = (0..value.shape().n_elements()).flat_map(|place| {
        let from = moved(place, &dims, own, axes) * size;
        value.bytes()[from..from + size].iter().copied()
    });
    let bytes: Vec<u8> = bytes.collect();
    TensorBuf::new(TensorDesc { dtype: value.dtype(), shape: Shape::new(dims).ok()? }, bytes).ok()
}

/// The verdict on two values. Those of two dtypes are widened, and judged by the coarser one's tolerance.
pub(super) fn judged(name: &str, values: [Option<TensorView<'_>>; 2], tolerance: Option<&Tolerance>) -> TensorVerdict {
    let [Some(reference), Some(candidate)] = values else {
        return TensorVerdict::not_compared(name, "it is no tensor of a dtype that torch has");
    };
    if reference.shape() != candidate.shape() {
        let [one, other] = [reference.desc(), candidate.desc()];
        return TensorVerdict::not_compared(name, format!("shapes differ: {one}, {other}"));
    }
    if reference.dtype() == candidate.dtype() {
        return judge(name, &reference, &candidate, tolerance);
    }
    let dtypes = [reference.dtype(), candidate.dtype()];
    let n = reference.shape().n_elements();
    let wide = |view: &TensorView<'_>| Some(TensorBuf::from_f64(view.shape().clone(), &view.flat_f64(0..n)?));
    let (Some(reference), Some(candidate)) = (wide(&reference), wide(&candidate)) else {
        return TensorVerdict::not_compared(name, format!("dtypes differ: {}, {}", dtypes[0], dtypes[1]));
    };
    let tolerance = tolerance.copied().unwrap_or_else(|| coarser(dtypes));
    judge(name, &reference.view(), &candidate.view(), Some(&tolerance))
}

fn coarser(dtypes: [DType; 2]) -> Tolerance {
    let [one, other] = dtypes.map(Tolerance::for_dtype);
    if one.rtol >= other.rtol { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_tried_in_every_order_but_their_own() {
        assert_eq!(orders(2), [[1, 0]]);
        assert_eq!((orders(3).len(), orders(4).len()), (5, 23));
        let value = TensorBuf::from_f32([2, 3, 4], &(0..24).map(|at| at as f32).collect::<Vec<_>>()).unwrap();
        for axes in orders(3) {
            let turned = transposed(&value.view(), &axes).unwrap();
            let array = value.view().to_f64().unwrap().permuted_axes(axes.clone());
            assert_eq!(turned.view().to_f64().unwrap(), array, "{axes:?}");
        }
    }

    #[test]
    fn names_that_exporters_count_are_told_from_others() {
        for (name, expected) in [
            ("val_103", true),
            ("_unsafe_view_14", true),
            ("add_12", true),
            ("logits", false),
            ("x1", false),
            ("_1", false),
            ("layers.0.bias_1", false),
            ("onnx::MatMul_103", false),
            ("weight_", false),
            ("", false),
        ] {
            assert_eq!(is_counted(name), expected, "{name}");
        }
    }

    #[test]
    fn samples_are_spread_over_all_elements() {
        assert_eq!(sampled(0).count(), 0);
        assert_eq!(sampled(3).collect::<Vec<_>>(), [0, 1, 2]);
        let places: Vec<_> = sampled(1000).collect();
        assert_eq!((places.len(), places[0], places[SAMPLES - 1]), (SAMPLES, 0, 999));
    }
}

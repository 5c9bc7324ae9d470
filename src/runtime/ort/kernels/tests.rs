//! The kernels beside a naive oracle in float64.

use half::{bf16, f16};
use proptest::prelude::*;

use super::processor::Alone;
use super::{
    Backward, Channels, Direction, Element, Forward, HalfProduct, Heads, HeadsMut, Mask, Scores, Sizes, WideSum,
    Window, run,
};

#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    key_heads: usize,
    sharing: usize,
    length: usize,
    n_keys: usize,
    size: usize,
    value_size: usize,
    scale: f64,
    is_causal: bool,
    mask: Option<[usize; 4]>,
    by_row: [bool; 5],
}

impl Case {
    fn heads(&self) -> usize {
        self.key_heads * self.sharing
    }

    /// Of query, key, value, output.
    fn dims(&self) -> [[usize; 4]; 4] {
        let Self { batch, key_heads, length, n_keys, size, value_size, .. } = *self;
        [
            [batch, self.heads(), length, size],
            [batch, key_heads, n_keys, size],
            [batch, key_heads, n_keys, value_size],
            [batch, self.heads(), length, value_size],
        ]
    }
}

/// Query, key, value, grad_output, mask in row-major order, as the dtype has them.
#[derive(Clone)]
struct Given {
    heads: [Vec<f64>; 4],
    mask: Vec<f64>,
}

struct Made {
    output: Vec<f64>,
    logsumexp: Vec<f64>,
    grads: [Vec<f64>; 3],
}

fn numbers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|at| ((at * 7919 + seed * 104_729) % 65_521) as f64 / 32_760.5 - 1.0).map(|x| 2.0 * x * x * x).collect()
}

fn given(case: &Case) -> Given {
    let heads = std::array::from_fn(|of| numbers(case.dims()[of].iter().product(), of + 1));
    let dims = case.mask.unwrap_or([0; 4]);
    let mask = numbers(dims.iter().product(), 9).into_iter().map(|x| if x > 1.0 { f64::NEG_INFINITY } else { x });
    Given { heads, mask: mask.collect() }
}

fn oracle(case: &Case, Given { heads: [query, key, value, grad_output], mask }: &Given) -> Made {
    let Case { batch, sharing, length, n_keys, size, value_size, scale, .. } = *case;
    let [of_query, of_key, of_value, of_output] = case.dims();
    let zeros = |dims: [usize; 4]| vec![0.0; dims.iter().product()];
    let mut made = Made {
        output: zeros(of_output),
        logsumexp: vec![0.0; batch * case.heads() * length],
        grads: [zeros(of_query), zeros(of_key), zeros(of_value)],
    };
    let dot = |left: &[f64], right: &[f64]| left.iter().zip(right).map(|(left, right)| left * right).sum::<f64>();
    for row in 0..batch * case.heads() * length {
        let (head, at) = (row / length, row % length);
        let key_row = |key: usize| (head / sharing) * n_keys + key;
        let scores: Vec<f64> = (0..n_keys)
            .map(|of| {
                let score = scale * dot(&query[row * size..][..size], &key[key_row(of) * size..][..size]);
                let place = [head / case.heads(), head % case.heads(), at, of];
                let masked = case.mask.map_or(0.0, |dims| {
                    mask[place.iter().zip(dims).fold(0, |sum, (&at, size)| sum * size + at % size)]
                });
                if case.is_causal && of > at { f64::NEG_INFINITY } else { score + masked }
            })
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shift = if largest == f64::NEG_INFINITY { 0.0 } else { largest };
        let weights: Vec<f64> = scores.iter().map(|score| (score - shift).exp()).collect();
        let total = weights.iter().sum::<f64>();
        let total = if total == 0.0 { 1.0 } else { total };
        made.logsumexp[row] = shift + total.ln();
        let output = &mut made.output[row * value_size..][..value_size];
        for (of, weight) in weights.iter().enumerate() {
            for (output, value) in output.iter_mut().zip(&value[key_row(of) * value_size..][..value_size]) {
                *output += weight / total * value;
            }
        }
        let grad = &grad_output[row * value_size..][..value_size];
        let sum = dot(grad, output);
        for (of, weight) in weights.iter().enumerate() {
            let probability = weight / total;
            let of_score = probability * (dot(grad, &value[key_row(of) * value_size..][..value_size]) - sum) * scale;
            for at in 0..size {
                made.grads[0][row * size + at] += of_score * key[key_row(of) * size + at];
                made.grads[1][key_row(of) * size + at] += of_score * query[row * size + at];
            }
            let grad_value = &mut made.grads[2][key_row(of) * value_size..];
            grad_value.iter_mut().zip(grad).for_each(|(sum, grad)| *sum += probability * grad);
        }
    }
    made
}

/// Heads and length changed for each other in memory.
fn swapped<T: Copy>(elements: &[T], [batch, heads, length, size]: [usize; 4], is_by_row: bool) -> Vec<T> {
    if !is_by_row {
        return elements.to_vec();
    }
    let mut made = Vec::with_capacity(elements.len());
    for row in 0..batch * length * heads {
        let (of, head) = (row / heads, row % heads);
        let (of, at) = (of / length, of % length);
        made.extend_from_slice(&elements[((of * heads + head) * length + at) * size..][..size]);
    }
    made
}

fn kernels<E: Element>(case: &Case, given: &Given) -> Made
where
    E::Real: From<f32> + Into<f64>,
    f64: Narrow<E> + Narrow<E::Real>,
{
    let [of_query, of_key, of_value, of_output] = case.dims();
    let narrowed = |elements: &[f64]| elements.iter().map(|&x| x.narrowed()).collect::<Vec<E>>();
    let [query, key, value, grad_output] =
        [0, 1, 2, 3].map(|of| swapped(&narrowed(&given.heads[of]), case.dims()[of], case.by_row[of]));
    let zero = || f64::narrowed(0.0);
    let mask: Vec<E::Real> = given.mask.iter().map(|&x| x.narrowed()).collect();
    let of_scores = [case.batch, case.heads(), case.length, case.n_keys];
    let scores = Scores {
        scale: case.scale.narrowed(),
        is_causal: case.is_causal,
        mask: case.mask.map(|dims| Mask::new(&mask, &dims.map(|size| size as i64), of_scores).unwrap()),
    };
    let of_rows = [case.batch, case.heads(), case.length, 1];
    let zeros = |dims: [usize; 4]| -> Vec<E> { vec![zero(); dims.iter().product()] };
    let (mut output, mut logsumexp) = (zeros(of_output), vec![case.scale.narrowed(); of_rows.iter().product()]);
    let heads = |elements, of: usize| Heads::new(elements, case.dims()[of], case.by_row[of]).unwrap();
    let (query, key, value) = (&query[..], &key[..], &value[..]);
    let forward = Forward::<E> {
        query: heads(query, 0),
        key: heads(key, 1),
        value: heads(value, 2),
        scores,
        output: HeadsMut::new(&mut output, of_output, case.by_row[4]).unwrap(),
        logsumexp: HeadsMut::new(&mut logsumexp, of_rows, false).unwrap(),
    };
    run(&forward, &Alone).unwrap();
    let mut grads = [zeros(of_query), zeros(of_key), zeros(of_value)];
    let [grad_query, grad_key, grad_value] = &mut grads;
    let backward = Backward::<E> {
        grad_output: heads(&grad_output, 3),
        query: heads(query, 0),
        key: heads(key, 1),
        value: heads(value, 2),
        output: Heads::new(&output, of_output, case.by_row[4]).unwrap(),
        logsumexp: Heads::new(&logsumexp, of_rows, false).unwrap(),
        scores,
        grad_query: HeadsMut::new(grad_query, of_query, case.by_row[0]).unwrap(),
        grad_key: HeadsMut::new(grad_key, of_key, case.by_row[1]).unwrap(),
        grad_value: HeadsMut::new(grad_value, of_value, case.by_row[2]).unwrap(),
    };
    run(&backward, &Alone).unwrap();
    let wide = |elements: &[E], dims: [usize; 4], is_by_row: bool| -> Vec<f64> {
        let [batch, heads, length, size] = dims;
        let back = swapped(elements, [batch, length, heads, size], is_by_row);
        let mut wide = vec![E::Real::from(0.0); back.len()];
        E::widen(&back, &mut wide);
        wide.into_iter().map(Into::into).collect()
    };
    Made {
        output: wide(&output, of_output, case.by_row[4]),
        logsumexp: logsumexp.iter().map(|&x| x.into()).collect(),
        grads: [0, 1, 2].map(|of| wide(&grads[of], case.dims()[of], case.by_row[of])),
    }
}

trait Narrow<E> {
    fn narrowed(self) -> E;
}

impl Narrow<f64> for f64 {
    fn narrowed(self) -> f64 {
        self
    }
}

impl Narrow<f32> for f64 {
    fn narrowed(self) -> f32 {
        self as f32
    }
}

impl Narrow<f16> for f64 {
    fn narrowed(self) -> f16 {
        f16::from_f64(self)
    }
}

impl Narrow<bf16> for f64 {
    fn narrowed(self) -> bf16 {
        bf16::from_f64(self)
    }
}

fn check<E: Element>(case: &Case, given: &Given, tolerance: f64) -> Result<(), String>
where
    E::Real: From<f32> + Into<f64>,
    f64: Narrow<E> + Narrow<E::Real>,
{
    let (made, expected) = (kernels::<E>(case, given), oracle(case, given));
    let pairs = [
        ("output", &made.output, &expected.output),
        ("logsumexp", &made.logsumexp, &expected.logsumexp),
        ("grad_query", &made.grads[0], &expected.grads[0]),
        ("grad_key", &made.grads[1], &expected.grads[1]),
        ("grad_value", &made.grads[2], &expected.grads[2]),
    ];
    for (name, made, expected) in pairs {
        let largest =
            expected.iter().fold(1.0_f64, |largest, x| if x.is_finite() { largest.max(x.abs()) } else { largest });
        for (at, (made, expected)) in made.iter().zip(expected).enumerate() {
            let near = (made - expected).abs() <= tolerance * largest;
            if !near && made != expected && !(made.is_nan() && expected.is_nan()) {
                return Err(format!("{name}[{at}] is {made}, expected {expected}"));
            }
        }
    }
    Ok(())
}

fn plain(length: usize, n_keys: usize, size: usize) -> Case {
    Case {
        batch: 1,
        key_heads: 1,
        sharing: 1,
        length,
        n_keys,
        size,
        value_size: size,
        scale: 0.3,
        is_causal: false,
        mask: None,
        by_row: [false; 5],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn they_are_what_the_oracle_says(
        (batch, key_heads, sharing) in (1_usize..3, 1_usize..3, 1_usize..4),
        (length, n_keys) in (1_usize..90, 1_usize..90),
        (size, value_size) in (1_usize..40, 1_usize..40),
        is_causal in any::<bool>(),
        ones in proptest::option::of(proptest::array::uniform4(any::<bool>())),
        by_row in proptest::array::uniform5(any::<bool>()),
    ) {
        let full = [batch, key_heads * sharing, length, n_keys];
        let mask = ones.map(|ones| std::array::from_fn(|axis| if ones[axis] { 1 } else { full[axis] }));
        let shape = Case { batch, key_heads, sharing, value_size, is_causal, mask, by_row, ..plain(length, n_keys, size) };
        let given = given(&shape);
        prop_assert_eq!(check::<f64>(&shape, &given, 1e-13), Ok(()));
        prop_assert_eq!(check::<f32>(&shape, &given, 5e-6), Ok(()));
    }
}

#[test]
fn blocks_of_keys_and_queries_are_put_together() {
    for (length, n_keys, size) in [(800, 1100, 16), (1, 1500, 5), (700, 1, 3), (300, 513, 33), (1031, 1031, 8)] {
        for is_causal in [false, true] {
            let case = Case { is_causal, sharing: 2, ..plain(length, n_keys, size) };
            assert_eq!(check::<f64>(&case, &given(&case), 1e-12), Ok(()), "{case:?}");
            assert_eq!(check::<f32>(&case, &given(&case), 3e-5), Ok(()), "{case:?}");
        }
    }
}

#[test]
fn half_precision_is_rounded_once() {
    let case = Case { is_causal: true, sharing: 2, ..plain(70, 90, 24) };
    let mut of_half = given(&case);
    for heads in &mut of_half.heads {
        heads.iter_mut().for_each(|x| *x = f64::from(f32::from(bf16::from_f64(*x))));
    }
    assert_eq!(check::<bf16>(&case, &of_half, 6e-3), Ok(()));
    assert_eq!(check::<f16>(&case, &of_half, 8e-4), Ok(()));
}

#[test]
fn queries_that_see_nothing_give_zeros() {
    let case = Case { mask: Some([1, 1, 7, 9]), ..plain(7, 9, 4) };
    let mut given = given(&case);
    given.mask[9..18].fill(f64::NEG_INFINITY);
    let made = kernels::<f32>(&case, &given);
    assert_eq!((&made.output[4..8], made.logsumexp[1], &made.grads[0][4..8]), (&[0.0; 4][..], 0.0, &[0.0; 4][..]));
    assert_eq!(check::<f32>(&case, &given, 1e-5), Ok(()));
}

#[test]
fn nan_and_infinity_stay_in_the_rows_that_see_them() {
    let case = Case { is_causal: true, ..plain(600, 600, 8) };
    let mut given = given(&case);
    let of_row = |row: usize| row * 8..(row + 1) * 8;
    given.heads[0][of_row(3)].fill(f64::NAN);
    given.heads[2][of_row(577)].fill(f64::INFINITY);
    let made = kernels::<f32>(&case, &given);
    let rows: Vec<usize> = (0..600).filter(|&row| made.output[of_row(row)].iter().any(|x| !x.is_finite())).collect();
    // Those of the block that torch's kernel takes together: 0 · inf is NaN.
    let expected: Vec<usize> = [3].into_iter().chain(576..600).collect();
    assert_eq!(rows, expected);
    assert!(made.output[of_row(3)].iter().all(|x| x.is_nan()) && made.output[of_row(590)] == [f64::INFINITY; 8]);
    assert!(made.logsumexp[3].is_nan() && made.logsumexp[2].is_finite());
    assert!(made.grads[0][of_row(3)].iter().all(|x| x.is_nan()) && made.grads[2][of_row(0)].iter().all(|x| x.is_nan()));
}

#[test]
fn large_scores_do_not_overflow() {
    let case = Case { scale: 1e4, ..plain(40, 50, 8) };
    assert_eq!(check::<f64>(&case, &given(&case), 1e-8), Ok(()));
    let made = kernels::<f32>(&case, &given(&case));
    assert!(made.output.iter().chain(&made.logsumexp).chain(made.grads.iter().flatten()).all(|x| x.is_finite()));
}

#[test]
fn a_mask_that_does_not_broadcast_is_none() {
    let scores = [2, 4, 3, 5];
    let fits = |dims: &[i64]| Mask::new(&vec![0.0_f32; dims.iter().product::<i64>() as usize], dims, scores).is_some();
    assert!(fits(&[]) && fits(&[5]) && fits(&[3, 1]) && fits(&[2, 1, 3, 5]));
    assert!(!fits(&[4]) && !fits(&[3, 4]) && !fits(&[1, 2, 4, 3, 5]));
    assert!(Mask::new(&[0.0_f32; 4], &[5], scores).is_none());
}

fn product_of<T: Element<Real = f32> + Zero>(
    rows: &[f32],
    matrix: &[f32],
    [depth, columns]: [usize; 2],
    n_rows: usize,
) {
    let mut narrow = vec![T::zero(); matrix.len()];
    T::narrow(matrix, &mut narrow);
    let mut wide = vec![0.0; matrix.len()];
    T::widen(&narrow, &mut wide);
    for is_turned in [false, true] {
        let at = |step: usize, column: usize| if is_turned { column * depth + step } else { step * columns + column };
        let mut found = vec![f32::NAN; n_rows * columns];
        let product = HalfProduct::new(rows, &narrow, [depth, columns], is_turned, &mut found).unwrap();
        run(&product, &Alone).unwrap();
        for (index, &found) in found.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            let terms = (0..depth).map(|step| f64::from(rows[row * depth + step]) * f64::from(wide[at(step, column)]));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let is_near = (f64::from(found) - sum).abs() <= 1e-6 * size;
            let is_same = f64::from(found) == sum || sum.is_nan() && found.is_nan();
            assert!(is_near || is_same, "{n_rows} × {depth} × {columns}, {index}: {found}, {sum}");
        }
    }
}

trait Zero {
    fn zero() -> Self;
}

impl Zero for f16 {
    fn zero() -> Self {
        f16::ZERO
    }
}

impl Zero for bf16 {
    fn zero() -> Self {
        bf16::ZERO
    }
}

#[test]
fn a_product_with_half_precision_is_the_sum_of_its_terms() {
    let sizes = [0, 1, 3, 4, 7, 8, 9, 31, 64, 65, 700];
    for (n_rows, depth, columns) in
        sizes.iter().flat_map(|&depth| sizes.iter().map(move |&columns| (1 + (depth + columns) % 5, depth, columns)))
    {
        let wide = |n: usize, seed| numbers(n, seed).iter().map(|&x| x as f32).collect::<Vec<_>>();
        let (rows, matrix) = (wide(n_rows * depth, 1), wide(depth * columns, 2));
        product_of::<f16>(&rows, &matrix, [depth, columns], n_rows);
        product_of::<bf16>(&rows, &matrix, [depth, columns], n_rows);
    }
    // NaN and infinities go where they belong, and nowhere else.
    for special in [f32::NAN, f32::INFINITY] {
        let mut matrix = vec![1.0; 9 * 70];
        matrix[9 * 3 + 2] = special;
        product_of::<bf16>(&[1.0; 3 * 9], &matrix, [9, 70], 3);
    }
}

#[test]
fn lengths_that_do_not_fit_are_no_product() {
    let mut result = [0.0; 6];
    assert!(HalfProduct::new(&[0.0; 4], &[f16::ZERO; 6], [2, 3], true, &mut result).is_some());
    assert!(HalfProduct::new(&[0.0; 5], &[f16::ZERO; 6], [2, 3], true, &mut result).is_none());
    assert!(HalfProduct::new(&[0.0; 4], &[f16::ZERO; 7], [2, 3], true, &mut result).is_none());
    assert!(HalfProduct::new(&[0.0; 4], &[f16::ZERO; 6], [2, 3], true, &mut result[..5]).is_none());
}

/// A convolution of channels: each product of an element of the kernel and one of the plane, in float64.
fn convolved(
    sizes: &Sizes,
    window: &Window,
    direction: Direction,
    input: &[f32],
    weight: &[f32],
    bias: &[f32],
) -> Vec<f64> {
    let Sizes { batch, channels, inner, input: [h, w], kernel: [rows, columns], output: [down, across] } = *sizes;
    let mut output: Vec<f64> = (0..batch * channels * down * across)
        .map(|at| bias.get(at / (down * across) % channels).map_or(0.0, |&bias| bias.into()))
        .collect();
    let is_plain = direction == Direction::Plain;
    let (small, large) = if is_plain { ([down, across], [h, w]) } else { ([h, w], [down, across]) };
    for (plane, part) in (0..batch * channels).flat_map(|plane| (0..inner).map(move |part| (plane, part))) {
        for (tap, place) in (0..rows * columns).flat_map(|tap| (0..small[0] * small[1]).map(move |place| (tap, place)))
        {
            let row = (place / small[1] * window.stride[0] + tap / columns * window.dilation[0])
                .checked_sub(window.before[0]);
            let column = (place % small[1] * window.stride[1] + tap % columns * window.dilation[1])
                .checked_sub(window.before[1]);
            let (Some(row), Some(column)) = (row, column) else { continue };
            if row >= large[0] || column >= large[1] {
                continue;
            }
            let met = row * large[1] + column;
            let (read, written) = if is_plain { (met, place) } else { (place, met) };
            let weight = weight[((plane % channels) * inner + part) * rows * columns + tap];
            let read = input[(plane * inner + part) * h * w + read];
            output[plane * down * across + written] += f64::from(weight) * f64::from(read);
        }
    }
    output
}

fn floats(n: usize, seed: usize) -> Vec<f32> {
    numbers(n, seed).into_iter().map(|number| number as f32).collect()
}

prop_compose! {
    fn convolution()(
        batch in 1..3_usize, channels in 1..4_usize, inner in 1..4_usize, is_plain: bool, has_bias: bool,
        input in [1..20_usize, 1..20_usize], kernel in [1..12_usize, 1..12_usize], stride in [1..4_usize, 1..4_usize],
        dilation in [1..4_usize, 1..4_usize], before in [0..5_usize, 0..5_usize], after in [0..5_usize, 0..5_usize],
    ) -> (Sizes, Window, Direction, bool) {
        let size = |axis: usize| {
            let reach = (kernel[axis] - 1) * dilation[axis] + 1;
            let margin = before[axis] + after[axis];
            if is_plain {
                (input[axis] + margin).checked_sub(reach).map_or(0, |left| left / stride[axis] + 1)
            } else {
                ((input[axis] - 1) * stride[axis] + reach + 1).saturating_sub(margin)
            }
        };
        let inner = if is_plain { inner } else { 1 };
        let sizes = Sizes { batch, channels, inner, input, kernel, output: [size(0), size(1)] };
        let direction = if is_plain { Direction::Plain } else { Direction::Transposed };
        (sizes, Window { stride, dilation, before }, direction, has_bias)
    }
}

fn of_kernel(
    (sizes, window, direction, has_bias): (Sizes, Window, Direction, bool),
    spoiled: Option<(usize, f32)>,
) -> [Vec<f64>; 2] {
    let Sizes { batch, channels, inner, input, kernel, output } = sizes;
    let mut read = floats(batch * channels * inner * input[0] * input[1], 1);
    let mut weight = floats(channels * inner * kernel[0] * kernel[1], 2);
    if let Some((at, by)) = spoiled {
        let n = read.len();
        if at % 2 == 0 {
            read[at % n] = by
        } else {
            let n = weight.len();
            weight[at % n] = by
        }
    }
    let bias = if has_bias { floats(channels, 3) } else { Vec::new() };
    let mut made = vec![f32::NAN; batch * channels * output[0] * output[1]];
    let channels =
        Channels::new([&read, &weight], has_bias.then_some(&*bias), &mut made, sizes, window, direction).unwrap();
    run(&channels, &Alone).unwrap();
    drop(channels);
    [convolved(&sizes, &window, direction, &read, &weight, &bias), made.into_iter().map(f64::from).collect()]
}

proptest! {
    #[test]
    fn a_convolution_of_channels_is_what_its_products_add_up_to(case in convolution()) {
        let [expected, made] = of_kernel(case, None);
        let most = case.0.inner as f64 * (case.0.kernel[0] * case.0.kernel[1]) as f64 * 16.0;
        for (at, (expected, made)) in expected.iter().zip(&made).enumerate() {
            prop_assert!((expected - made).abs() <= most * f64::from(f32::EPSILON), "{at}: {made}, not {expected}");
        }
    }

    #[test]
    fn a_number_that_is_not_finite_reaches_what_it_is_multiplied_for(
        case in convolution(), at in 0..10_000_usize, by in prop::sample::select(vec![f32::NAN, f32::INFINITY]),
    ) {
        let [expected, made] = of_kernel(case, Some((at, by)));
        for (at, (expected, made)) in expected.iter().zip(&made).enumerate() {
            prop_assert_eq!((expected.is_nan(), expected.is_infinite()), (made.is_nan(), made.is_infinite()), "{}", at);
        }
    }
}

#[test]
fn a_convolution_of_other_lengths_is_refused() {
    let sizes = Sizes { batch: 1, channels: 2, inner: 1, input: [3, 3], kernel: [2, 2], output: [2, 2] };
    let window = Window { stride: [1; 2], dilation: [1; 2], before: [0; 2] };
    let refused = |input: usize, weight: usize, output: usize, sizes: Sizes, window: Window| {
        let (input, weight, mut output) = (vec![0.0; input], vec![0.0; weight], vec![0.0; output]);
        Channels::new([&input, &weight], None, &mut output, sizes, window, Direction::Plain).is_err()
    };
    assert!(!refused(18, 8, 8, sizes, window));
    assert!(refused(17, 8, 8, sizes, window) && refused(18, 7, 8, sizes, window) && refused(18, 8, 9, sizes, window));
    assert!(refused(18, 8, 8, sizes, Window { stride: [0, 1], ..window }));
    assert!(refused(0, 8, 8, Sizes { batch: usize::MAX, ..sizes }, window));
}

proptest! {
    #[test]
    fn a_wide_sum_is_what_its_elements_come_to_in_float64(
        outer in 0..10_usize, channels in prop::sample::select(vec![1, 3, 32, 69, 256, 257, 600]),
        inner in prop::sample::select(vec![0, 1, 1, 7, 32, 100]),
    ) {
        let input = floats(outer * channels * inner, 1);
        let mut made = vec![f32::NAN; channels];
        let sum = WideSum::new(&input, [outer, channels, inner], 0.25, &mut made).unwrap();
        run(&sum, &Alone).unwrap();
        drop(sum);
        for (channel, &made) in made.iter().enumerate() {
            let of_channel = input.iter().enumerate().filter(|(at, _)| inner > 0 && at / inner % channels == channel);
            let expected = of_channel.map(|(_, &element)| f64::from(element)).sum::<f64>() * 0.25;
            prop_assert!((f64::from(made) - expected).abs() <= expected.abs() * f64::from(f32::EPSILON) + 1e-12);
        }
    }
}

#[test]
fn a_wide_sum_of_other_lengths_is_refused() {
    for (n_input, sizes, n_results) in [(5, [1, 2, 3], 2), (6, [1, 2, 3], 3), (0, [usize::MAX, 2, 1], 2)] {
        let (input, mut results) = (vec![0.0; n_input], vec![0.0; n_results]);
        assert!(WideSum::new(&input, sizes, 1.0, &mut results).is_none());
    }
}

//! Windows over spatial axes: kernels, strides, pads as attributes give them, and their elements side by side.

use tch::{Device, Kind, Tensor};

use crate::runtime::torch::call::{Call, counted};
use crate::runtime::torch::failure::{Failure, fail};

/// The spatial axes of [batch, channels, ...spatial]. Errors: there are none.
pub(super) fn spatial_axes(call: &Call<'_>) -> Result<Vec<i64>, Failure> {
    let dims = call.value(0)?.dims();
    match dims.len() {
        0..3 => fail(format!("{dims:?} has no spatial axes")),
        rank => Ok((2..rank as i64).collect()),
    }
}

/// What a kernel's size, stride, dilation or pad may be: products of two stay within int64.
const MOST: i64 = 1 << 30;

/// Elements of all windows along an axis, which are listed.
const MOST_PLACES: i64 = 1 << 28;

/// How windows lie on the spatial axes of [batch, channels, ...spatial].
pub(super) struct Windows {
    pub(super) kernel: Vec<i64>,
    pub(super) strides: Vec<i64>,
    pub(super) dilations: Vec<i64>,
    /// (begin, end) of each axis.
    pub(super) pads: Vec<(i64, i64)>,
    /// Windows along each axis.
    pub(super) counts: Vec<i64>,
}

impl Windows {
    /// Of attributes, over these spatial dimensions. Errors: attributes of another number of axes.
    pub(super) fn new(call: &Call<'_>, dims: &[i64], kernel: Vec<i64>) -> Result<Self, Failure> {
        let rank = dims.len();
        let ones = || vec![1; rank];
        let strides = call.ints("strides")?.unwrap_or_else(ones);
        let dilations = call.ints("dilations")?.unwrap_or_else(ones);
        let given = call.ints("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
        if kernel.len() != rank || strides.len() != rank || dilations.len() != rank || given.len() != 2 * rank {
            return fail(format!("kernel {kernel:?}, strides {strides:?}, pads {given:?} on {rank} axes"));
        }
        if strides.iter().chain(&dilations).chain(&kernel).any(|n| !(1..=MOST).contains(n)) {
            return fail(format!("kernel {kernel:?}, strides {strides:?}, dilations {dilations:?}: not in 1..={MOST}"));
        }
        if given.iter().any(|pad| !(-MOST..=MOST).contains(pad)) {
            return fail(format!("pads {given:?}: beyond {MOST}"));
        }
        let mut pads: Vec<(i64, i64)> = (0..rank).map(|at| (given[at], given[rank + at])).collect();
        let ceil = call.flag("ceil_mode", false)?;
        let auto = call.text("auto_pad", "NOTSET")?;
        let mut counts = Vec::with_capacity(rank);
        for (at, &dim) in dims.iter().enumerate() {
            let reach = dilations[at] * (kernel[at] - 1) + 1;
            let stride = strides[at];
            if matches!(auto, "SAME_UPPER" | "SAME_LOWER") {
                let count = (dim + stride - 1) / stride;
                let total = ((count - 1) * stride + reach - dim).max(0);
                pads[at] =
                    if auto == "SAME_UPPER" { (total / 2, total - total / 2) } else { (total - total / 2, total / 2) };
                counts.push(count);
                continue;
            }
            if auto == "VALID" {
                pads[at] = (0, 0);
            }
            let room = dim + pads[at].0 + pads[at].1 - reach;
            // Rounded towards zero, as ONNX Runtime does: a window that reaches beyond the axis by less than a stride is one.
            let mut count = room / stride + 1;
            if ceil && room % stride != 0 && room >= 0 {
                // A window that would begin in the padding at the end is none.
                count += i64::from(count * stride < dim + pads[at].0);
            }
            if count < 0 {
                return fail(format!("a window of {reach} on an axis of {dim} with pads {:?}", pads[at]));
            }
            counts.push(count);
        }
        let n_places = |at: usize| counts[at].checked_mul(kernel[at]).filter(|&n| n <= MOST_PLACES);
        if (0..rank).any(|at| n_places(at).is_none()) {
            return fail(format!("{counts:?} windows of {kernel:?} on {dims:?}"));
        }
        Ok(Self { kernel, strides, dilations, pads, counts })
    }

    /// For each axis: where the elements of its windows come from, window after window; beyond the axis where they are
    /// padding.
    pub(super) fn places(&self, at: usize) -> Vec<i64> {
        let (stride, dilation, begin) = (self.strides[at], self.dilations[at], self.pads[at].0);
        let window = |n: i64| (0..self.kernel[at]).map(move |k| n * stride + k * dilation - begin);
        (0..self.counts[at]).flat_map(window).collect()
    }

    /// [batch, channels, ...counts, elements of a window]; `fill` where they are padding.
    pub(super) fn elements(&self, x: &Tensor, fill: &Tensor) -> Result<Tensor, Failure> {
        let dims = x.size();
        let rank = self.kernel.len();
        let mut x = x.shallow_clone();
        for at in 0..rank {
            let (axis, dim) = (at as i64 + 2, dims[at + 2]);
            let mut one = x.size();
            one[at + 2] = 1;
            // One of `fill` behind the axis is what all that is outside points to.
            x = Tensor::f_cat(&[x.shallow_clone(), fill.f_totype(x.f_kind()?)?.f_expand(&one, false)?], axis)?;
            let places: Vec<i64> =
                self.places(at).into_iter().map(|i| if (0..dim).contains(&i) { i } else { dim }).collect();
            x = x.f_index_select(axis, &Tensor::f_from_slice(&places)?)?;
        }
        let mut shape = dims[..2].to_vec();
        shape.extend(self.counts.iter().zip(&self.kernel).flat_map(|(&count, &kernel)| [count, kernel]));
        let order: Vec<i64> =
            (0..2).chain((0..rank as i64).map(|at| 2 + 2 * at)).chain((0..rank as i64).map(|at| 3 + 2 * at)).collect();
        let mut flat = dims[..2].to_vec();
        flat.extend(&self.counts);
        flat.push(self.kernel.iter().product());
        Ok(x.f_reshape(&shape)?.f_permute(&order)?.f_reshape(&flat)?)
    }

    /// [...counts, elements of a window]: row-major places in the spatial dimensions; -1 where they are padding.
    pub(super) fn flat_places(&self, dims: &[i64]) -> Result<Tensor, Failure> {
        let n: i64 = dims.iter().product();
        let all = counted(n, Kind::Int64)?;
        let mut shape = vec![1, 1];
        shape.extend(dims);
        let outside = Tensor::f_scalar_tensor(-1_i64, (Kind::Int64, Device::Cpu))?;
        Ok(self.elements(&all.f_reshape(&shape)?, &outside)?.f_select(0, 0)?.f_select(0, 0)?)
    }
}

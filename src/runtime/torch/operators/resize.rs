//! Resize and Upsample: each axis by a matrix of weights, as ONNX defines them.

use tch::{Device, Kind, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table, axes};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::Value;

pub(super) const TABLE: Table = &[
    ("", "AffineGrid", affine_grid),
    ("", "GridSample", grid_sample),
    ("", "Resize", resize),
    ("", "Upsample", resize),
];

/// Of an axis: it is resized by a matrix.
const MOST_WEIGHTS: i64 = 1 << 28;

/// How one axis changes.
struct Axis<'a> {
    size: i64,
    new: i64,
    scale: f64,
    /// Of tf_crop_and_resize.
    roi: (f64, f64),
    asked: &'a Asked<'a>,
}

struct Asked<'a> {
    mode: &'a str,
    transform: &'a str,
    nearest: &'a str,
    cubic: f64,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f64,
}

fn resize(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.value(0)?, call.value(0)?.dims());
    let is_old = call.opset < 11 || call.node.op_type() == "Upsample";
    let asked = Asked {
        mode: call.text("mode", "nearest")?,
        transform: call.text("coordinate_transformation_mode", if is_old { "asymmetric" } else { "half_pixel" })?,
        nearest: call.text("nearest_mode", if is_old { "floor" } else { "round_prefer_floor" })?,
        cubic: call.float("cubic_coeff_a", -0.75)?,
        exclude_outside: call.flag("exclude_outside", false)?,
        antialias: call.flag("antialias", false)?,
        extrapolation: call.float("extrapolation_value", 0.0)?,
    };
    let along = match call.ints("axes")? {
        Some(along) => axes(&along, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    let floats = |at: usize| -> Result<Vec<f64>, Failure> {
        Ok(call.maybe(at).map(Value::to_floats).transpose()?.unwrap_or_default())
    };
    let (roi, scales, sizes) = if is_old {
        let scales = call.floats("scales")?.map_or_else(|| floats(1), Ok)?;
        (Vec::new(), scales, Vec::new())
    } else {
        (floats(1)?, floats(2)?, call.maybe_ints_of(3)?.unwrap_or_default())
    };
    let changes = changes(call, &asked, &dims, &along, &scales, &sizes)?;
    let is_nearest = asked.mode == "nearest";
    let (mut made, mut outside) =
        (if is_nearest { x.tensor.shallow_clone() } else { x.to_kind(Kind::Double)? }, None::<Tensor>);
    for (n, (&at, (new, scale))) in along.iter().zip(changes).enumerate() {
        let roi = (roi.get(n).copied().unwrap_or(0.0), roi.get(n + along.len()).copied().unwrap_or(1.0));
        let is_crop = asked.transform == "tf_crop_and_resize";
        if new == dims[at] && scale == 1.0 && !is_crop {
            continue;
        }
        let axis = Axis { size: dims[at], new, scale, roi, asked: &asked };
        let places = axis.originals()?;
        made = match is_nearest {
            true => made.f_index_select(at as i64, &Tensor::f_from_slice(&axis.nearest(&places)?)?)?,
            false => {
                let matrix = axis.weights(&places)?;
                made.f_transpose(at as i64, -1)?.f_matmul(&matrix.f_transpose(0, 1)?)?.f_transpose(at as i64, -1)?
            }
        };
        if is_crop {
            let mut shape = vec![1; dims.len()];
            shape[at] = new;
            let beyond: Vec<bool> = places.iter().map(|&there| there < 0.0 || there > (dims[at] - 1) as f64).collect();
            let beyond = Tensor::f_from_slice(&beyond)?.f_reshape(&shape)?;
            outside = Some(outside.map_or_else(|| Ok(beyond.shallow_clone()), |other| other.f_logical_or(&beyond))?);
        }
    }
    let made = match outside {
        Some(outside) => {
            let value = Tensor::f_scalar_tensor(asked.extrapolation, (made.f_kind()?, Device::Cpu))?;
            value.f_where_self(&outside, &made)?
        }
        None => made,
    };
    match call.is_integer(0)? {
        // Of linear and cubic results the nearest integer towards zero, within the type.
        true if call.kind()? == Kind::Uint8 => call.one(made.f_clamp(0.0, 255.0)?),
        true if call.kind()? == Kind::Int8 => call.one(made.f_clamp(-128.0, 127.0)?),
        _ => call.one(made),
    }
}

/// (size, scale) of each axis.
fn changes(
    call: &Call<'_>,
    asked: &Asked<'_>,
    dims: &[i64],
    along: &[usize],
    scales: &[f64],
    sizes: &[i64],
) -> Result<Vec<(i64, f64)>, Failure> {
    if scales.len() == along.len() && !scales.is_empty() {
        if scales.iter().any(|&scale| scale.is_nan() || scale <= 0.0) {
            return fail(format!("scales {scales:?}: expected more than 0"));
        }
        // The product is float32's, in which 30 times 0.7 is 21.
        let size = |at: usize, scale: f64| (dims[at] as f32 * scale as f32).floor() as i64;
        return Ok(along.iter().zip(scales).map(|(&at, &scale)| (size(at, scale), scale)).collect());
    }
    if sizes.len() != along.len() {
        return fail(format!("{} scales and {} sizes for {} axes", scales.len(), sizes.len(), along.len()));
    }
    let ratio = |(&at, &size): (&usize, &i64)| asked.rounded(size as f64 / dims[at] as f64);
    let ratios: Vec<f64> = along.iter().zip(sizes).map(ratio).collect();
    let one = match call.text("keep_aspect_ratio_policy", "stretch")? {
        "not_larger" => ratios.iter().copied().fold(f64::INFINITY, f64::min),
        "not_smaller" => ratios.iter().copied().fold(0.0, f64::max),
        _ => return Ok(sizes.iter().copied().zip(ratios).collect()),
    };
    let whole = |at: usize| (one * dims[at] as f64 + 0.5).floor() as i64;
    Ok(along.iter().map(|&at| (whole(at), one)).collect())
}

impl Asked<'_> {
    /// Of a step of a coordinate's computation. Which element is the nearest hangs on its last bit: there it is computed
    /// in float32, as ONNX Runtime does.
    fn rounded(&self, number: f64) -> f64 {
        if self.mode == "nearest" { f64::from(number as f32) } else { number }
    }
}

impl Axis<'_> {
    /// Where each element of the new axis lies on the old one. Errors: there is none to come from, or are too many to list.
    fn originals(&self) -> Result<Vec<f64>, Failure> {
        if !(0..=MOST_WEIGHTS).contains(&self.new) || (self.size == 0 && self.new > 0) {
            return fail(format!("an axis of {} to {}", self.size, self.new));
        }
        (0..self.new).map(|new| self.original(new as f64)).collect()
    }

    /// [new, size] weights.
    fn weights(&self, places: &[f64]) -> Result<Tensor, Failure> {
        let n_weights = self.new.checked_mul(self.size).filter(|&n| n <= MOST_WEIGHTS);
        let Some(n_weights) = n_weights else { return fail(format!("an axis of {} to {}", self.size, self.new)) };
        let mut weights = vec![0_f64; n_weights as usize];
        for (new, &there) in places.iter().enumerate() {
            let row = &mut weights[new * self.size as usize..][..self.size as usize];
            for (at, weight) in self.taps(there)? {
                row[at.clamp(0, self.size - 1) as usize] += weight;
            }
        }
        Ok(Tensor::f_from_slice(&weights)?.f_reshape([self.new, self.size])?)
    }

    /// The element that each place is rounded to.
    fn nearest(&self, places: &[f64]) -> Result<Vec<i64>, Failure> {
        let round: fn(f64) -> f64 = match self.asked.nearest {
            "round_prefer_floor" => |there: f64| (there - 0.5).ceil(),
            "round_prefer_ceil" => |there: f64| (there + 0.5).floor(),
            "floor" => f64::floor,
            "ceil" => f64::ceil,
            other => return fail(format!("nearest_mode {other:?}")),
        };
        Ok(places.iter().map(|&there| (round(there) as i64).clamp(0, self.size - 1)).collect())
    }

    /// Where an element of the new axis lies on the old one.
    fn original(&self, new: f64) -> Result<f64, Failure> {
        let (size, length) = (self.size as f64, self.new as f64);
        let rounded = |number: f64| self.asked.rounded(number);
        // Scales given as such may make a length that is not whole.
        let exact = rounded(size * self.scale);
        let center = rounded((new + 0.5) / self.scale);
        Ok(match self.asked.transform {
            "half_pixel" => rounded(center - 0.5),
            "half_pixel_symmetric" => {
                // Here ONNX Runtime rounds nothing on the way.
                let offset = size / 2.0 * (1.0 - length / exact);
                rounded(offset + (new + 0.5) / self.scale - 0.5)
            }
            "pytorch_half_pixel" if length <= 1.0 => 0.0,
            "pytorch_half_pixel" => rounded(center - 0.5),
            "align_corners" if exact == 1.0 || length == 1.0 => 0.0,
            "align_corners" => rounded(rounded(new * (size - 1.0)) / rounded(exact - 1.0)),
            "asymmetric" => rounded(new / self.scale),
            "tf_half_pixel_for_nn" => center,
            "tf_crop_and_resize" if length == 1.0 => rounded((self.roi.0 + self.roi.1) * (size - 1.0) / 2.0),
            "tf_crop_and_resize" => {
                let (start, end) = self.roi;
                let along = rounded(rounded(new * rounded(end - start)) * (size - 1.0));
                rounded(rounded(start * (size - 1.0)) + rounded(along / (length - 1.0)))
            }
            other => return fail(format!("coordinate_transformation_mode {other:?}")),
        })
    }

    fn taps(&self, there: f64) -> Result<Vec<(i64, f64)>, Failure> {
        let (kernel, reach): (Box<dyn Fn(f64) -> f64>, f64) = match self.asked.mode {
            "linear" => (Box::new(|d: f64| (1.0 - d.abs()).max(0.0)), 1.0),
            "cubic" => {
                let a = self.asked.cubic;
                (Box::new(move |d: f64| cubic(a, d.abs())), 2.0)
            }
            other => return fail(format!("mode {other:?}")),
        };
        // Antialiased, the kernel grows with what one new element covers.
        let stretch = if self.asked.antialias { self.scale.min(1.0) } else { 1.0 };
        let (first, last) = ((there - reach / stretch).floor() as i64, (there + reach / stretch).ceil() as i64);
        let is_inside = |at: i64| (0..self.size).contains(&at);
        let mut taps: Vec<(i64, f64)> = (first..=last)
            .map(|at| (at, kernel((at as f64 - there) * stretch)))
            .filter(|&(at, weight)| weight != 0.0 && (!self.asked.exclude_outside || is_inside(at)))
            .collect();
        if self.asked.exclude_outside || self.asked.antialias {
            let sum: f64 = taps.iter().map(|&(_, weight)| weight).sum();
            taps.iter_mut().for_each(|(_, weight)| *weight /= sum);
        }
        Ok(taps)
    }
}

/// Keys' kernel.
fn cubic(a: f64, d: f64) -> f64 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}

fn grid_sample(call: &Call<'_>) -> Outputs {
    let mode = match call.text("mode", "linear")? {
        "linear" | "bilinear" => 0,
        "nearest" => 1,
        "cubic" | "bicubic" => 2,
        other => return fail(format!("mode {other:?}")),
    };
    let padding = match call.text("padding_mode", "zeros")? {
        "zeros" => 0,
        "border" => 1,
        "reflection" => 2,
        other => return fail(format!("padding_mode {other:?}")),
    };
    let align = call.flag("align_corners", false)?;
    let kind = call.kind()?;
    call.binary(|x, grid| x.f_grid_sampler(&grid.f_totype(kind)?, mode, padding, align))
}

fn affine_grid(call: &Call<'_>) -> Outputs {
    let (size, align) = (call.ints_of(1)?, call.flag("align_corners", false)?);
    call.unary(|theta| Tensor::f_affine_grid_generator(theta, &size, align))
}

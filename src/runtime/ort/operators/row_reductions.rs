//! Rows added up by index, or their extremes, without numbers to start with as many as the result and an index for each
//! element.

use std::sync::Mutex;

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensorValueType, TensorElementType};

use super::bits::{bits, bits_mut};
use crate::base::sync::lock;
use crate::onnx::{BELOW, RowReduction};
use crate::runtime::error::OUT_OF_BOUNDS;

/// Elements of the result that one thread does at a time.
const BLOCK: usize = 1 << 16;

/// The domain with its operators.
pub(super) fn add(domain: OperatorDomain) -> ort::Result<OperatorDomain> {
    RowReduction::ALL.into_iter().try_fold(domain, |domain, reduction| domain.add(ReduceRows(reduction)))
}

/// See [`RowReduction`]. float32; each row in the order of the updates, whatever the number of threads.
#[derive(Clone, Copy)]
struct ReduceRows(RowReduction);

impl Operator for ReduceRows {
    type Kernel<'attr> = Reducing;

    fn name(&self) -> &str {
        self.0.operator()
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let [long, float] = [TensorElementType::Int64, TensorElementType::Float32];
        [long, float, long].map(OperatorInput::required)
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Reducing> {
        Ok(Reducing { reduction: self.0, below: context.get::<i64>(BELOW).unwrap_or(0) })
    }
}

struct Reducing {
    reduction: RowReduction,
    below: i64,
}

impl Kernel for Reducing {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let name = self.reduction.operator();
        let missing = || ort::Error::new(format!("{name}: an input or output is missing"));
        let input = |at: usize| context.input(at)?.ok_or_else(missing)?.downcast::<DynTensorValueType>();
        let (indices, updates, shape) = (input(0)?, input(1)?, input(2)?);
        let &[n_rows, n_columns] = bits::<i64>(&shape)? else {
            return Err(ort::Error::new(format!("{name}: a shape of {:?} numbers, expected 2", shape.shape())));
        };
        let output = context.output(0, vec![n_rows, n_columns])?.ok_or_else(missing)?;
        let mut output = output.downcast::<DynTensorValueType>()?;
        if updates.shape()[..] != [updates.shape().first().copied().unwrap_or(0), n_columns] {
            let of = updates.shape();
            return Err(ort::Error::new(format!("{name}: updates of shape {of:?}, expected {n_columns} columns")));
        }
        let updates = Updates::new(bits::<i64>(&indices)?, self.below, n_rows, bits::<f32>(&updates)?, n_columns);
        let updates = updates.map_err(|reason| ort::Error::new(format!("{name}: {reason}")))?;
        let rows_a_block = (BLOCK / updates.columns.max(1)).max(1);
        let by_block = updates.by_block(rows_a_block, n_rows as usize);
        let elements = bits_mut::<f32>(&mut output)?;
        let blocks: Vec<Mutex<&mut [f32]>> =
            elements.chunks_mut((rows_a_block * updates.columns).max(1)).map(Mutex::new).collect();
        let fill = |block: usize| {
            updates.reduce(self.reduction, &by_block[block], block * rows_a_block, &mut lock(&blocks[block]));
        };
        match blocks.len() {
            0 => Ok(()),
            1 => {
                fill(0);
                Ok(())
            }
            several => context.par_for(several, 0, fill),
        }
    }
}

/// rows: of the result, one for each row of `values`.
struct Updates<'a> {
    rows: Vec<usize>,
    values: &'a [f32],
    columns: usize,
}

impl<'a> Updates<'a> {
    /// indices: one for each row of `values`, or one for all. Errors: why they do not fit.
    fn new(indices: &[i64], below: i64, n_rows: i64, values: &'a [f32], n_columns: i64) -> Result<Self, String> {
        let columns = n_columns as usize;
        let n_updates = values.len().checked_div(columns).unwrap_or(indices.len());
        if n_updates * columns != values.len() || (indices.len() != n_updates && indices.len() != 1) {
            let (n_indices, n_values) = (indices.len(), values.len());
            return Err(format!("{n_indices} indices do not fit {n_values} elements in rows of {n_columns}"));
        }
        let row = |&given: &i64| {
            let told = if given < 0 { given.saturating_add(below) } else { given };
            let index = if told < 0 { told.saturating_add(n_rows) } else { told };
            // As the kernel says it that this stands for: whoever reads errors knows it.
            let outside = || format!("{OUT_OF_BOUNDS}{told} must be within [{},{}]", -n_rows, n_rows - 1);
            usize::try_from(index).ok().filter(|_| index < n_rows).ok_or_else(outside)
        };
        let mut rows: Vec<usize> = indices.iter().map(row).collect::<Result<_, _>>()?;
        if let [one] = rows[..] {
            rows.resize(n_updates, one);
        }
        Ok(Self { rows, values, columns })
    }

    /// Of each block of rows of the result, the updates that are added to it, in order.
    fn by_block(&self, rows_a_block: usize, n_rows: usize) -> Vec<Vec<usize>> {
        let mut blocks = vec![Vec::new(); n_rows.div_ceil(rows_a_block)];
        for (update, row) in self.rows.iter().enumerate() {
            blocks[row / rows_a_block].push(update);
        }
        blocks
    }

    /// Fills rows of the result from `first` on. updates: those that come to them.
    fn reduce(&self, reduction: RowReduction, updates: &[usize], first: usize, out: &mut [f32]) {
        out.fill(reduction.start());
        match reduction {
            RowReduction::Sum => self.each(updates, first, out, |sum, value| *sum += value),
            // Nothing is more than NaN, which is not less than anything either: it stays, and it is taken.
            RowReduction::Max => self.each(updates, first, out, |most, value| {
                if value > *most || value.is_nan() {
                    *most = value;
                }
            }),
            RowReduction::Min => self.each(updates, first, out, |least, value| {
                if value < *least || value.is_nan() {
                    *least = value;
                }
            }),
        }
    }

    fn each(&self, updates: &[usize], first: usize, out: &mut [f32], take: impl Fn(&mut f32, f32)) {
        for &update in updates {
            let columns = self.columns;
            let at = (self.rows[update] - first) * columns;
            let values = &self.values[update * columns..][..columns];
            for (reduced, &value) in out[at..][..columns].iter_mut().zip(values) {
                take(reduced, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_counts_from_the_end_or_is_refused() {
        let rows = |indices: &[i64], below| Updates::new(indices, below, 4, &[1.0, 2.0], 1).map(|found| found.rows);
        assert_eq!(rows(&[3, -1], 0), Ok(vec![3, 3]));
        assert_eq!(rows(&[2], 0), Ok(vec![2, 2]));
        let refused = |index: i64| Err(format!("{OUT_OF_BOUNDS}{index} must be within [-4,3]"));
        assert_eq!(rows(&[3, -1], -100), refused(-101));
        assert_eq!(rows(&[4, 0], 0), refused(4));
        assert_eq!(rows(&[-5, 0], 0), refused(-5));
        assert_eq!(rows(&[0, 1, 2], 0), Err("3 indices do not fit 2 elements in rows of 1".to_owned()));
    }

    #[test]
    fn rows_are_added_up_in_order_in_any_blocks() {
        let (rows, columns, n) = (7, 3, 50);
        let values: Vec<f32> = (0..n * columns).map(|at| 1.0 / (at as f32 + 0.7)).collect();
        let indices: Vec<i64> = (0..n as i64).map(|at| at * at % rows).collect();
        let mut expected = vec![0.0_f32; rows as usize * columns];
        for (update, row) in indices.iter().enumerate() {
            for column in 0..columns {
                expected[*row as usize * columns + column] += values[update * columns + column];
            }
        }
        let updates = Updates::new(&indices, 0, rows, &values, columns as i64).unwrap();
        for rows_a_block in [1, 2, 5, 7, 100] {
            let mut found = vec![f32::NAN; expected.len()];
            let by_block = updates.by_block(rows_a_block, rows as usize);
            for (block, out) in found.chunks_mut(rows_a_block * columns).enumerate() {
                updates.reduce(RowReduction::Sum, &by_block[block], block * rows_a_block, out);
            }
            assert_eq!(found, expected, "{rows_a_block}");
        }
    }

    #[test]
    fn an_extreme_knows_nan_and_infinities() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let values = [1.0, nan, 3.0, -inf, -2.0, inf, 5.0, 6.0];
        let updates = Updates::new(&[0, 0, 0, 0, 1, 1, 3, 3], 0, 4, &values, 1).unwrap();
        let reduced = |reduction| {
            let mut out = [0.5; 4];
            updates.reduce(reduction, &[0, 1, 2, 3, 4, 5, 6, 7], 0, &mut out);
            out
        };
        let [first, others @ ..] = reduced(RowReduction::Max);
        assert!(first.is_nan());
        assert_eq!(others, [inf, -inf, 6.0]);
        let [first, others @ ..] = reduced(RowReduction::Min);
        assert!(first.is_nan());
        assert_eq!(others, [-2.0, inf, 5.0]);
    }

    #[test]
    fn nothing_is_added_to_rows_without_columns() {
        let updates = Updates::new(&[0, 1], 0, 4, &[], 0).unwrap();
        assert_eq!(updates.by_block(2, 4), [vec![0, 1], vec![]]);
        assert_eq!(Updates::new(&[], 0, 4, &[], 3).unwrap().by_block(4, 4), [Vec::<usize>::new()]);
    }
}

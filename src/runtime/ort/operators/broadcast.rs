//! How three tensors broadcast together, as runs in which each operand gives one element, or one after the other.

use std::ops::Range;

/// The common shape of the operands, and where the elements of each are.
#[derive(Debug)]
pub(super) struct Broadcast {
    pub(super) shape: Vec<i64>,
    /// From the outermost: axes of one element left out, those that all operands go through alike taken together.
    axes: Vec<Axis>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    size: usize,
    /// In elements of each operand; 0 where it has one element for the whole axis.
    strides: [usize; 3],
}

/// Elements of the result that lie one after the other.
#[derive(Debug, PartialEq)]
pub(super) struct Run {
    pub(super) length: usize,
    pub(super) operands: [Operand; 3],
}

/// Where an operand has the elements of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    One(usize),
    Each(Range<usize>),
}

impl Broadcast {
    /// Of these shapes; None where they do not fit.
    pub(super) fn of(shapes: [&[i64]; 3]) -> Option<Self> {
        let rank = shapes.map(<[i64]>::len).into_iter().max().unwrap_or(0);
        let (mut shape, mut axes) = (vec![1; rank], Vec::<Axis>::new());
        let mut elements = [1; 3];
        for from_last in 1..=rank {
            let sizes = shapes.map(|shape| shape.len().checked_sub(from_last).map_or(1, |axis| shape[axis]));
            let size = sizes.into_iter().find(|&size| size != 1).unwrap_or(1);
            if sizes.iter().any(|&own| own != size && own != 1) {
                return None;
            }
            shape[rank - from_last] = size;
            let count = usize::try_from(size).ok()?;
            let strides = std::array::from_fn(|of| if sizes[of] == 1 { 0 } else { elements[of] });
            elements = std::array::from_fn(|of| if sizes[of] == 1 { elements[of] } else { elements[of] * count });
            match axes.first_mut() {
                _ if count == 1 => {}
                // All go on where the axis inside ends.
                Some(inner) if (0..3).all(|of| strides[of] == inner.strides[of] * inner.size) => inner.size *= count,
                _ => axes.insert(0, Axis { size: count, strides }),
            }
        }
        Some(Self { shape, axes })
    }

    /// The run from element `at` of the result on, of at most `longest` elements.
    pub(super) fn run(&self, at: usize, longest: usize) -> Run {
        let Some((inner, outer)) = self.axes.split_last() else {
            return Run { length: longest.min(1), operands: [const { Operand::One(0) }; 3] };
        };
        let (mut row, column) = (at / inner.size, at % inner.size);
        let mut starts = inner.strides.map(|stride| column * stride);
        for axis in outer.iter().rev() {
            for (start, stride) in starts.iter_mut().zip(axis.strides) {
                *start += row % axis.size * stride;
            }
            row /= axis.size;
        }
        let length = longest.min(inner.size - column);
        let operand = |of: usize| match inner.strides[of] {
            0 => Operand::One(starts[of]),
            _ => Operand::Each(starts[of]..starts[of] + length),
        };
        Run { length, operands: std::array::from_fn(operand) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_shapes_are_one_run() {
        let broadcast = Broadcast::of([&[2, 3, 4]; 3]).unwrap();
        assert_eq!(broadcast.shape, [2, 3, 4]);
        let run = Run { length: 19, operands: [const { Operand::Each(5..24) }; 3] };
        assert_eq!(broadcast.run(5, 100), run);
    }

    #[test]
    fn a_mask_and_a_number_are_taken_together_where_they_can_be() {
        let broadcast = Broadcast::of([&[4, 5], &[2, 3, 4, 5], &[]]).unwrap();
        assert_eq!(broadcast.axes.len(), 2);
        let operands = [Operand::Each(1..20), Operand::Each(21..40), Operand::One(0)];
        assert_eq!(broadcast.run(21, 100), Run { length: 19, operands });
    }

    #[test]
    fn what_does_not_fit_is_refused_and_nothing_is_a_shape() {
        assert!(Broadcast::of([&[2], &[3], &[1]]).is_none());
        assert!(Broadcast::of([&[0], &[2], &[1]]).is_none());
        assert!(Broadcast::of([&[-1], &[1], &[1]]).is_none());
        assert_eq!(Broadcast::of([&[0, 3], &[1], &[]]).unwrap().shape, [0, 3]);
        let scalar = Broadcast::of([&[], &[1, 1], &[]]).unwrap();
        assert_eq!((scalar.shape.as_slice(), scalar.run(0, 1).length), (&[1, 1][..], 1));
    }

    proptest! {
        /// Every element comes from the place that its indices name.
        #[test]
        fn runs_are_what_indices_say(
            shape in proptest::collection::vec(1_usize..4, 0..5),
            ones in proptest::array::uniform3(proptest::collection::vec(any::<bool>(), 5)),
            ranks in proptest::array::uniform3(0_usize..6),
            longest in 1_usize..9,
        ) {
            let operand = |of: usize| -> Vec<i64> {
                let left_out = shape.len().saturating_sub(ranks[of]);
                let size = |axis: usize| if ones[of][axis] { 1 } else { shape[axis] as i64 };
                (left_out..shape.len()).map(size).collect()
            };
            let operands: [Vec<i64>; 3] = std::array::from_fn(operand);
            let broadcast = Broadcast::of([&operands[0], &operands[1], &operands[2]]).unwrap();
            let total: usize = broadcast.shape.iter().map(|&size| size as usize).product();
            let mut at = 0;
            while at < total {
                let run = broadcast.run(at, longest.min(total - at));
                prop_assert!(run.length > 0);
                for step in 0..run.length {
                    for (own, place) in operands.iter().zip(&run.operands) {
                        let place = match place {
                            Operand::One(place) => *place,
                            Operand::Each(range) => range.start + step,
                        };
                        prop_assert_eq!(place, expected(&broadcast.shape, own, at + step));
                    }
                }
                at += run.length;
            }
        }
    }

    /// The place, in an operand of shape `own`, of element `at` of the result.
    fn expected(shape: &[i64], own: &[i64], mut at: usize) -> usize {
        let (mut place, mut stride) = (0, 1);
        for (from_last, &size) in shape.iter().rev().enumerate() {
            let index = at % size as usize;
            at /= size as usize;
            let own = own.len().checked_sub(from_last + 1).map_or(1, |axis| own[axis] as usize);
            place += if own == 1 { 0 } else { index * stride };
            stride *= own;
        }
        place
    }
}

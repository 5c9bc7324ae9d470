//! Regions beside a naive oracle in float64, and their twins for each processor beside each other.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::onnx::{Op, Program, Step};
use crate::runtime::ort::kernels::processor::{Alone, run};

/// An input's sizes and elements, as float32, float16, bfloat16 or bool.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) sizes: Vec<i64>,
    pub(super) values: Vec<f32>,
    pub(super) kind: usize,
}

/// The outputs, by whatever the processor has, and by any processor.
fn outputs(program: &Program, given: &[Given]) -> [Vec<Vec<f32>>; 2] {
    let plan = Plan::of(program.clone()).unwrap();
    let halves: Vec<Vec<f16>> = given.iter().map(|it| it.values.iter().map(|&x| f16::from_f32(x)).collect()).collect();
    let brains: Vec<Vec<bf16>> =
        given.iter().map(|it| it.values.iter().map(|&x| bf16::from_f32(x)).collect()).collect();
    let flags: Vec<Vec<u8>> =
        given.iter().map(|it| it.values.iter().map(|&x| u8::from(x != 0.0) * 7).collect()).collect();
    let inputs: Vec<(&[i64], Elements<'_>)> = (given.iter().enumerate())
        .map(|(at, it)| {
            let elements = match it.kind {
                0 => Elements::F32(&it.values),
                1 => Elements::F16(&halves[at]),
                2 => Elements::BF16(&brains[at]),
                _ => Elements::Bool(&flags[at]),
            };
            (it.sizes.as_slice(), elements)
        })
        .collect();
    let shapes: Vec<&[i64]> = given.iter().map(|it| it.sizes.as_slice()).collect();
    let sizes = &broadcast(&shapes, program.rank).unwrap()[..program.rank];
    let (n_elements, n_rows) = (sizes.iter().product(), sizes[..program.rank - 1].iter().product());
    [true, false].map(|any| {
        let len = |&register: &usize| if plan.extent(register) == Extent::Full { n_elements } else { n_rows };
        let mut made: Vec<Vec<f32>> = program.outputs.iter().map(|register| vec![-77.0; len(register)]).collect();
        let taken = made.iter_mut().map(Vec::as_mut_slice).collect();
        let region = Region::new(&plan, sizes, &inputs, taken).unwrap();
        if any {
            run(&region, &Alone).unwrap();
        } else {
            let mut scratch = region.scratch();
            (0..region.n_tasks()).for_each(|task| region.task::<false>(task, &mut scratch));
        }
        made
    })
}

/// Each output in float64, index by index.
pub(super) fn expected(program: &Program, given: &[Given]) -> Vec<Vec<f64>> {
    let shapes: Vec<&[i64]> = given.iter().map(|it| it.sizes.as_slice()).collect();
    let sizes = broadcast(&shapes, program.rank).unwrap()[..program.rank].to_vec();
    let (n, extents) = (sizes[program.rank - 1], program.extents().unwrap());
    let n_elements: usize = sizes.iter().product();
    // Every register as if it were full.
    let mut registers: Vec<Vec<f64>> = Vec::new();
    for it in given {
        let place = |mut at: usize| {
            let (mut place, mut stride) = (0, 1);
            for (from_last, &size) in sizes.iter().rev().enumerate() {
                let own = it.sizes.len().checked_sub(from_last + 1).map_or(1, |axis| it.sizes[axis] as usize);
                place += if own == 1 { 0 } else { at % size * stride };
                (at, stride) = (at / size, stride * own);
            }
            place
        };
        let value = |at| match it.kind {
            1 => f16::from_f32(it.values[place(at)]).to_f64(),
            2 => bf16::from_f32(it.values[place(at)]).to_f64(),
            3 => f64::from(u8::from(it.values[place(at)] != 0.0)),
            _ => f64::from(it.values[place(at)]),
        };
        registers.push((0..n_elements).map(value).collect());
    }
    registers.extend(program.constants.iter().map(|&number| vec![f64::from(number); n_elements]));
    let flag = |holds: bool| f64::from(u8::from(holds));
    for step in &program.steps {
        let read = |of: usize, at: usize| registers[step.operands[of]][at];
        let (known, first) = (&registers, step.operands[0]);
        let row = |at: usize| (0..n).map(move |column| known[first][at / n * n + column]);
        let value = |at: usize| match step.op {
            Op::Add => read(0, at) + read(1, at),
            Op::Sub => read(0, at) - read(1, at),
            Op::Mul | Op::And => read(0, at) * read(1, at),
            Op::Div => read(0, at) / read(1, at),
            Op::Max | Op::Or => read(0, at).max(read(1, at)),
            Op::Min => read(0, at).min(read(1, at)),
            Op::Greater => flag(read(0, at) > read(1, at)),
            Op::GreaterOrEqual => flag(read(0, at) >= read(1, at)),
            Op::Less => flag(read(0, at) < read(1, at)),
            Op::LessOrEqual => flag(read(0, at) <= read(1, at)),
            Op::Equal => flag(read(0, at) == read(1, at)),
            Op::Neg => -read(0, at),
            Op::Abs => read(0, at).abs(),
            Op::Exp => read(0, at).exp(),
            Op::Log => read(0, at).ln(),
            Op::Sqrt => read(0, at).sqrt(),
            Op::Reciprocal => 1.0 / read(0, at),
            Op::Sigmoid => 1.0 / (1.0 + (-read(0, at)).exp()),
            Op::Tanh => read(0, at).tanh(),
            Op::Relu => read(0, at).max(0.0),
            Op::Not => 1.0 - read(0, at),
            Op::Square => read(0, at).powi(2),
            Op::Cube => read(0, at).powi(3),
            Op::RoundBFloat16 => bf16::from_f64(read(0, at)).to_f64(),
            Op::RoundFloat16 => f16::from_f64(read(0, at)).to_f64(),
            Op::Spread | Op::Erf => read(0, at),
            Op::Where => {
                if read(0, at) != 0.0 {
                    read(1, at)
                } else {
                    read(2, at)
                }
            }
            Op::ReduceSum => row(at).sum(),
            Op::ReduceMean => row(at).sum::<f64>() / n as f64,
            Op::ReduceMax => row(at).fold(f64::NEG_INFINITY, f64::max),
        };
        let values = (0..n_elements).map(value).collect();
        registers.push(values);
    }
    let output = |&register: &usize| match extents[register] {
        Extent::Full => registers[register].clone(),
        _ => registers[register].iter().copied().step_by(n.max(1)).collect(),
    };
    program.outputs.iter().map(output).collect()
}

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|at| ((at * 7919 + seed * 104_729) % 65_521) as f32 / 32_760.5 - 1.0).collect()
}

fn given(sizes: &[i64], seed: usize, kind: usize) -> Given {
    let values = numbers(sizes.iter().product::<i64>() as usize, seed);
    // Halves of both types that no rounding changes; flags of both kinds.
    let round = |x: f32| match kind {
        0 => x,
        3 => f32::from(x > 0.0),
        _ => (x * 16.0).round() / 16.0,
    };
    Given { sizes: sizes.to_vec(), values: values.into_iter().map(round).collect(), kind }
}

fn program(inputs: &str, constants: &[f32], steps: &str, outputs: &[i64], rank: i64) -> Program {
    Program::read(inputs, constants.to_vec(), steps, outputs, rank).unwrap()
}

fn check(program: &Program, given: &[Given], tolerance: f64) {
    let wanted = expected(program, given);
    for made in outputs(program, given) {
        for (made, wanted) in made.iter().zip(&wanted) {
            assert_eq!(made.len(), wanted.len());
            for (at, (&made, &wanted)) in made.iter().zip(wanted).enumerate() {
                let near = (f64::from(made) - wanted).abs() <= tolerance * (1.0 + wanted.abs());
                assert!(near, "{program:?} {at}: {made}, expected {wanted}");
            }
        }
    }
}

#[test]
fn a_norm_and_its_gradient_are_right_in_all_layouts() {
    let norm =
        program("ff", &[1e-6], "Square 0; ReduceMean 3; Add 4 2; Sqrt 5; Reciprocal 6; Mul 0 7; Mul 1 8", &[7, 9], 3);
    let softmax = program("ff", &[], "Add 0 1; ReduceMax 2; Sub 2 3; Exp 4; ReduceSum 5; Div 5 6; Log 6", &[7, 8], 3);
    for sizes in [[1, 1, 1], [2, 3, 7], [1, 64, 128], [2, 5, 3000], [3, 1, 513], [7, 300, 2]] {
        let [a, b, n] = sizes;
        for other in [vec![n], vec![b, n], vec![a, 1, n], vec![a, b, n], vec![1, 1, n]] {
            for kind in 0..3 {
                let given = [given(&sizes, 1, 0), given(&other, 2, kind)];
                check(&norm, &given, 2e-6);
                check(&softmax, &given, 2e-6);
            }
        }
    }
}

#[test]
fn what_is_empty_gives_nothing_or_sums_of_nothing() {
    let sum = program("f", &[], "Neg 0; ReduceSum 1; ReduceMax 1", &[1, 2, 3], 2);
    let [made, portable] = outputs(&sum, &[given(&[0, 5], 1, 0)]);
    assert_eq!((&made, &made), (&portable, &vec![vec![]; 3]));
    let [made, _] = outputs(&sum, &[given(&[2, 0], 1, 0)]);
    assert_eq!(made, [vec![], vec![0.0; 2], vec![f32::NEG_INFINITY; 2]]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let plan = Plan::of(program("fr", &[], "Mul 0 1", &[2], 2)).unwrap();
    let (x, r) = (numbers(6, 1), numbers(2, 2));
    let mut out = [0.0; 6];
    let mut fits = |x_sizes: &[i64], r_sizes: &[i64], r: &[f32], n: usize| {
        let inputs = [(x_sizes, Elements::F32(&x)), (r_sizes, Elements::F32(r))];
        Region::new(&plan, &[2, 3], &inputs, vec![&mut out[..n]]).is_some()
    };
    assert!(fits(&[2, 3], &[2, 1], &r, 6));
    assert!(!fits(&[2, 3], &[2, 1], &r, 5), "an output of another size");
    assert!(!fits(&[2, 3], &[2, 1], &r[..1], 6), "fewer elements than the shape says");
    assert!(!fits(&[2, 3], &[2], &r, 6), "no value a row");
    assert!(!fits(&[6, 1], &[2, 1], &r, 6), "no whole row");
    assert_eq!(broadcast(&[&[2, 3], &[4]], 2), None);
    assert_eq!(broadcast(&[&[2, 3]], 1), None);
    assert_eq!(broadcast(&[&[-1]], 1), None);
    assert_eq!(broadcast(&[&[0], &[2, 1]], 2).unwrap()[..2], [2, 0]);
}

#[test]
fn sums_are_as_near_as_pairwise_ones() {
    for n in [1_usize, 31, 1000, 1025, 100_000] {
        let values: Vec<f32> = numbers(n, 5).into_iter().map(|x| x + 1.5).collect();
        let exact: f64 = values.iter().map(|&x| f64::from(x)).sum();
        let sum = program("f", &[], "ReduceSum 0", &[1], 1);
        for made in outputs(&sum, &[Given { sizes: vec![n as i64], values, kind: 0 }]) {
            assert!((f64::from(made[0][0]) - exact).abs() <= exact * 1e-6, "{n}: {made:?}, expected {exact}");
        }
    }
}

#[test]
fn extremes_go_through() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let values = vec![0.0, -0.0, inf, -inf, nan, f32::MAX, f32::MIN_POSITIVE, 1e-42];
    let x = Given { sizes: vec![8], values: values.clone(), kind: 0 };
    let zeros = Given { sizes: vec![8], values: vec![0.0; 8], kind: 3 };
    let chosen = program(
        "ff",
        &[1.0],
        "Where 1 2 0; Relu 0; Max 0 2; Min 0 2; Reciprocal 0; Greater 0 2",
        &[3, 4, 5, 6, 7, 8],
        1,
    );
    for made in outputs(&chosen, &[x, zeros]) {
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&made[0]), bits(&values), "a choice is bit by bit");
        assert!(made[1][4].is_nan() && made[2][4].is_nan() && made[3][4].is_nan());
        assert_eq!((made[1][3], made[1][2], bits(&made[1][..2])), (0.0, inf, vec![0, 1 << 31]));
        assert_eq!(made[4][..4], [inf, -inf, 0.0, -0.0]);
        assert_eq!(made[5], [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    }
    let largest = program("f", &[], "ReduceMax 0", &[1], 1);
    for (values, is_nan) in [(vec![1.0, nan, 2.0], true), (vec![-inf, -inf, -inf], false)] {
        let [made, _] = outputs(&largest, &[Given { sizes: vec![3], values, kind: 0 }]);
        assert!(made[0][0].is_nan() == is_nan && (is_nan || made[0][0] == -inf));
    }
}

/// Operators whose results stay near their operands', so that float32 stays near float64.
const TAME: [Op; 18] = [
    Op::Add,
    Op::Sub,
    Op::Mul,
    Op::Max,
    Op::Min,
    Op::Neg,
    Op::Abs,
    Op::Sigmoid,
    Op::Tanh,
    Op::Relu,
    Op::Square,
    Op::Cube,
    Op::Spread,
    Op::Where,
    Op::ReduceMean,
    Op::ReduceMax,
    Op::Not,
    Op::ReduceSum,
];

proptest! {
    /// Random programs of random shapes are what the oracle says, in either twin.
    #[test]
    fn programs_are_what_each_element_says(
        sizes in proptest::collection::vec(1_i64..6, 0..3),
        n in prop_oneof![Just(1_i64), 2_i64..40, 500_i64..2600],
        ones in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 3), 2),
        kinds in proptest::collection::vec(0_usize..4, 3),
        steps in proptest::collection::vec((0_usize..18, any::<[usize; 3]>()), 1..14),
        wanted in any::<u16>(),
    ) {
        let sizes = [sizes, vec![n]].concat();
        let rank = sizes.len();
        let part = |at: usize, extent: Extent| {
            let mut own = sizes.clone();
            own[..rank - 1].iter_mut().zip(&ones[at]).for_each(|(size, &one)| if one { *size = 1 });
            if extent == Extent::Row { own[rank - 1] = 1 }
            own
        };
        let mut program = Program { inputs: vec![Extent::Full, Extent::Full, Extent::Row, Extent::Number], rank, ..Program::default() };
        program.constants = vec![0.5, -1.25];
        let given = [
            given(&sizes, 1, 0),
            given(&part(0, Extent::Full), 2, kinds[0]),
            given(&part(1, Extent::Row), 3, kinds[1]),
            given(&[], 4, kinds[2] % 3),
        ];
        for (op, operands) in steps {
            let (op, n_registers) = (TAME[op], 6 + program.steps.len());
            let mut step = Step { op, operands: [0; 3] };
            for (to, from) in step.operands.iter_mut().zip(operands).take(op.arity()) {
                *to = from % n_registers;
            }
            program.steps.push(step);
            if program.extents().is_none() {
                program.steps.pop();
            }
        }
        prop_assume!(!program.steps.is_empty());
        let last = 6 + program.steps.len() - 1;
        program.outputs = (6..=last).filter(|&at| at == last || wanted >> (at - 6) & 1 == 1).collect();
        let wanted = expected(&program, &given);
        for made in outputs(&program, &given) {
            for (made, wanted) in made.iter().zip(&wanted) {
                prop_assert_eq!(made.len(), wanted.len());
                let largest = wanted.iter().fold(1.0_f64, |largest, x| largest.max(x.abs()));
                for (&made, &wanted) in made.iter().zip(wanted) {
                    // What grew past float32 is not compared.
                    let near = (f64::from(made) - wanted).abs() <= 3e-3 * largest || largest > 1e6;
                    prop_assert!(near, "{:?}: {}, expected {}", program, made, wanted);
                }
            }
        }
    }
}

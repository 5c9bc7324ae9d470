//! Programs of regions: what one operator of ours computes in the place of many nodes, as its attributes say it.

use std::collections::HashSet;

use super::proto::attribute_proto::AttributeType;
use super::proto::{AttributeProto, NodeProto};
use crate::tensor::DType;

/// The operator: inputs of any element types that a program may read, outputs of float32.
pub const REGION: &str = "RegionFloat";

/// The operator on CUDA: inputs and outputs of the element types that it says.
pub const TYPED_REGION: &str = "Region";

/// Attributes: what the inputs are, numbers, steps, registers that are outputs, and the rank of the whole.
pub const INPUTS: &str = "inputs";
/// See [`INPUTS`].
pub const CONSTANTS: &str = "constants";
/// See [`INPUTS`].
pub const STEPS: &str = "steps";
/// See [`INPUTS`].
pub const OUTPUTS: &str = "outputs";
/// See [`INPUTS`].
pub const RANK: &str = "rank";

/// Attributes of a [`TYPED_REGION`] alone: ONNX's numbers of its inputs' element types and its outputs', and how many
/// elements a row has, where that is known.
pub const TYPES: &str = "types";
/// See [`TYPES`].
pub const ROW: &str = "row";

/// Whether a node is a region.
pub fn is_region(node: &NodeProto) -> bool {
    node.domain() == super::DOMAIN && [REGION, TYPED_REGION].contains(&node.op_type())
}

/// Axes that a region may have.
pub const HIGHEST_RANK: usize = 8;

/// What a register holds for each row of the last axis: a value for each element, or one. A number is one for all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// One value for all rows.
    Number,
    /// One value a row.
    Row,
    /// A value an element.
    Full,
}

impl Extent {
    fn letter(self) -> char {
        match self {
            Self::Number => 'n',
            Self::Row => 'r',
            Self::Full => 'f',
        }
    }
}

macro_rules! ops {
    ($($op:ident $arity:literal,)*) => {
        /// What a step computes, as ONNX's operator of the name does, in float32. A bool is 1 or 0.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op {
            $(#[doc = concat!("ONNX's ", stringify!($op), ", or see where they are listed.")] $op,)*
        }

        impl Op {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$op,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$op => stringify!($op),)*
                }
            }

            /// Operands that it takes.
            pub fn arity(self) -> usize {
                match self {
                    $(Self::$op => $arity,)*
                }
            }
        }
    };
}

// Square and Cube are Pow's; RoundBFloat16 and RoundFloat16 a Cast's there and back; Spread an Expand's of a row's value.
ops! {
    Add 2, Sub 2, Mul 2, Div 2, Max 2, Min 2, Greater 2, GreaterOrEqual 2, Less 2, LessOrEqual 2, Equal 2, And 2, Or 2,
    Neg 1, Abs 1, Exp 1, Log 1, Sqrt 1, Reciprocal 1, Sigmoid 1, Tanh 1, Erf 1, Relu 1, Not 1, Square 1, Cube 1,
    RoundBFloat16 1, RoundFloat16 1, Spread 1, Where 3, ReduceSum 1, ReduceMean 1, ReduceMax 1,
}

impl Op {
    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| op.name() == name)
    }

    /// Whether it makes one value of a row.
    pub fn reduces(self) -> bool {
        matches!(self, Self::ReduceSum | Self::ReduceMean | Self::ReduceMax)
    }
}

/// One operator of a region, over registers before its own. Those that the operator does not take are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it computes.
    pub op: Op,
    /// Registers.
    pub operands: [usize; 3],
}

impl Step {
    /// The registers that it reads.
    pub fn reads(&self) -> &[usize] {
        &self.operands[..self.op.arity()]
    }
}

/// Registers are numbered: those of the inputs, the constants', then one of each step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// What each input holds.
    pub inputs: Vec<Extent>,
    /// Numbers.
    pub constants: Vec<f32>,
    /// In the order in which they run.
    pub steps: Vec<Step>,
    /// Registers of steps.
    pub outputs: Vec<usize>,
    /// Axes of the whole, at least one, at most [`HIGHEST_RANK`].
    pub rank: usize,
}

impl Program {
    /// What each register holds. None where the program is not one: a step that reads what comes later, makes one value of
    /// what is one, or fills what is full; an output that no step gives; another rank.
    pub fn extents(&self) -> Option<Vec<Extent>> {
        let first = self.inputs.len() + self.constants.len();
        let mut extents = self.inputs.clone();
        extents.resize(first, Extent::Number);
        for step in &self.steps {
            let read = step.reads().iter().map(|&register| extents.get(register).copied());
            let widest = read.collect::<Option<Vec<_>>>()?.into_iter().max()?;
            extents.push(match (step.op, widest) {
                (op, Extent::Full) if op.reduces() => Extent::Row,
                (op, _) if op.reduces() => return None,
                (Op::Spread, Extent::Full) => return None,
                (Op::Spread, _) => Extent::Full,
                (_, widest) => widest.max(Extent::Row),
            });
        }
        let is_given = |register: &usize| (first..extents.len()).contains(register);
        let ranks = 1..=HIGHEST_RANK;
        (self.outputs.iter().all(is_given) && ranks.contains(&self.rank)).then_some(extents)
    }

    /// `"Mul 0 3; Exp 4"`.
    fn text(&self) -> String {
        let step = |step: &Step| {
            let operands: String = step.reads().iter().map(|register| format!(" {register}")).collect();
            format!("{}{operands}", step.op.name())
        };
        self.steps.iter().map(step).collect::<Vec<_>>().join("; ")
    }

    /// Of attributes' values: a letter for each input, numbers, steps as text, outputs, rank. None where they are of no
    /// program.
    pub fn read(inputs: &str, constants: Vec<f32>, steps: &str, outputs: &[i64], rank: i64) -> Option<Self> {
        let extent =
            |letter| [Extent::Number, Extent::Row, Extent::Full].into_iter().find(|extent| extent.letter() == letter);
        let step = |text: &str| {
            let mut words = text.split_whitespace();
            let op = Op::named(words.next()?)?;
            let mut operands = [0; 3];
            for operand in &mut operands[..op.arity()] {
                *operand = words.next()?.parse().ok()?;
            }
            words.next().is_none().then_some(Step { op, operands })
        };
        let program = Self {
            inputs: inputs.chars().map(extent).collect::<Option<_>>()?,
            constants,
            steps: steps.split(';').map(step).collect::<Option<_>>()?,
            outputs: outputs.iter().map(|&register| usize::try_from(register).ok()).collect::<Option<_>>()?,
            rank: usize::try_from(rank).ok()?,
        };
        program.extents().map(|_| program)
    }

    /// Whether two outputs are one register.
    pub fn gives_twice(&self) -> bool {
        let mut given = HashSet::new();
        !self.outputs.iter().all(|register| given.insert(register))
    }

    /// The operator that runs it on the CPU, of our domain.
    pub(super) fn node(&self, inputs: Vec<String>, outputs: Vec<String>) -> NodeProto {
        let named = |name: &str, r#type: AttributeType| AttributeProto {
            name: Some(name.to_owned()),
            r#type: Some(r#type as i32),
            ..AttributeProto::default()
        };
        let text = |name: &str, text: String| AttributeProto {
            s: Some(text.into_bytes()),
            ..named(name, AttributeType::String)
        };
        let letters = self.inputs.iter().map(|extent| extent.letter()).collect();
        let registers = self.outputs.iter().map(|&register| register as i64).collect();
        let mut attribute = vec![
            text(INPUTS, letters),
            text(STEPS, self.text()),
            AttributeProto { ints: registers, ..named(OUTPUTS, AttributeType::Ints) },
            AttributeProto { i: Some(self.rank as i64), ..named(RANK, AttributeType::Int) },
        ];
        if !self.constants.is_empty() {
            let floats = self.constants.clone();
            attribute.push(AttributeProto { floats, ..named(CONSTANTS, AttributeType::Floats) });
        }
        NodeProto {
            name: outputs.first().map(|output| format!("region_{output}")),
            domain: Some(super::DOMAIN.to_owned()),
            op_type: Some(REGION.to_owned()),
            input: inputs,
            output: outputs,
            attribute,
            ..NodeProto::default()
        }
    }
}

/// A program whose inputs and outputs have element types of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct TypedProgram {
    /// What is computed, in float32.
    pub program: Program,
    /// Element types.
    pub inputs: Vec<DType>,
    /// Element types.
    pub outputs: Vec<DType>,
    /// Elements of a row, where that is known.
    pub row: Option<usize>,
}

impl TypedProgram {
    /// Inputs, and outputs, at most: what a kernel's parameter of 4096 bytes names.
    pub const MOST_TENSORS: usize = 32;

    /// Whether inputs and outputs may have this element type.
    pub fn takes(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16 | DType::F16 | DType::Bool)
    }

    /// Of attributes' values: see [`TYPES`]. None where they do not fit the program.
    pub fn read(program: Program, types: &[i64], row: Option<i64>) -> Option<Self> {
        let dtype = |&code: &i64| DType::from_onnx(i32::try_from(code).ok()?).ok().filter(|&dtype| Self::takes(dtype));
        let mut inputs: Vec<DType> = types.iter().map(dtype).collect::<Option<_>>()?;
        if inputs.len() != program.inputs.len() + program.outputs.len() {
            return None;
        }
        let outputs = inputs.split_off(program.inputs.len());
        let row = row.map(|row| usize::try_from(row).ok());
        Some(Self { program, inputs, outputs, row: if row == Some(None) { return None } else { row.flatten() } })
    }

    /// Of a node; None of one that is no [`TYPED_REGION`], or none with a program.
    pub fn of(node: &NodeProto) -> Option<Self> {
        let value = |name: &str| node.attribute.iter().find(|attribute| attribute.name() == name);
        let text = |name: &str| String::from_utf8(value(name)?.s.as_ref()?.to_vec()).ok();
        if node.domain() != super::DOMAIN || node.op_type() != TYPED_REGION {
            return None;
        }
        let constants = value(CONSTANTS).map(|numbers| numbers.floats.clone()).unwrap_or_default();
        let (outputs, rank) = (&value(OUTPUTS)?.ints, value(RANK)?.i?);
        let program = Program::read(&text(INPUTS)?, constants, &text(STEPS)?, outputs, rank)?;
        Self::read(program, &value(TYPES)?.ints, value(ROW).and_then(|row| row.i))
    }

    /// The operator that runs it on CUDA, of our domain.
    pub(super) fn node(&self, mut inputs: Vec<String>, outputs: Vec<String>) -> NodeProto {
        if self.inputs.len() == 1 && self.outputs.len() == 1 {
            // Of one input and one output ONNX Runtime takes the types to be one; of more the model tells them. Nobody reads
            // the second.
            inputs.push(inputs[0].clone());
        }
        let mut node = self.program.node(inputs, outputs);
        node.op_type = Some(TYPED_REGION.to_owned());
        let codes = self.inputs.iter().chain(&self.outputs).map(|dtype| dtype.onnx_code().into());
        node.attribute.push(AttributeProto {
            name: Some(TYPES.to_owned()),
            ints: codes.collect(),
            r#type: Some(AttributeType::Ints as i32),
            ..AttributeProto::default()
        });
        node.attribute.extend(self.row.map(|row| AttributeProto {
            name: Some(ROW.to_owned()),
            i: Some(row as i64),
            r#type: Some(AttributeType::Int as i32),
            ..AttributeProto::default()
        }));
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(steps: &str, outputs: &[i64]) -> Option<Program> {
        Program::read("frn", vec![2.0], steps, outputs, 2)
    }

    #[test]
    fn a_program_is_what_its_text_says() {
        let program = read("Mul 0 1; ReduceSum 4; Where 0 5 3; Spread 1", &[5, 6]).unwrap();
        let extents = program.extents().unwrap();
        assert_eq!(extents[4..], [Extent::Full, Extent::Row, Extent::Full, Extent::Full]);
        assert_eq!(program.text(), "Mul 0 1; ReduceSum 4; Where 0 5 3; Spread 1");
        let node = program.node(vec!["a".into(), "b".into(), "c".into()], vec!["y".into(), "z".into()]);
        assert_eq!((node.op_type(), node.domain()), (REGION, "rust_ort"));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        for steps in ["", "Mul 0", "Mul 0 1 2", "Mul 0 4", "Mul 0 -1", "Pow 0 1", "ReduceSum 1", "Spread 0", "Exp 0;"] {
            assert_eq!(read(steps, &[4]), None, "{steps}");
        }
        for outputs in [[-1].as_slice(), &[0], &[3], &[5]] {
            assert_eq!(read("Exp 0", outputs), None, "{outputs:?}");
        }
        assert!(read("Exp 0", &[4, 4]).unwrap().gives_twice());
        assert_eq!(Program::read("x", vec![], "Exp 0", &[1], 1), None);
        assert_eq!(Program::read("f", vec![], "Exp 0", &[1], 0), None);
        assert_eq!(Program::read("f", vec![], "Exp 0", &[1], 9), None);
        for &op in Op::ALL {
            assert_eq!(Op::named(op.name()), Some(op));
        }
    }
}

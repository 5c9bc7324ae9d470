//! The operator that does what a group does.

use std::collections::{HashMap, HashSet};

use super::super::nodes::{integer, node};
use super::super::values::Dim;
use super::groups::Group;
use super::members::{Facts, Meaning, goes_to};
use crate::onnx::graph;
use crate::onnx::proto::tensor_shape_proto::{Dimension, dimension::Value};
use crate::onnx::proto::{GraphProto, NodeProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto};
use crate::onnx::walk::fresh;
use crate::onnx::{Extent, Op, Program, Step, TypedProgram};
use crate::tensor::DType;

/// What comes in the place of a group.
pub(super) struct Region {
    pub(super) node: NodeProto,
    /// What it gives as float32 and others read as another type.
    pub(super) casts: Vec<NodeProto>,
    /// Types of what it gives, where the operator's name does not tell them.
    pub(super) types: Vec<ValueInfoProto>,
    /// Indices of the nodes that it does.
    pub(super) gone: Vec<usize>,
    /// The index of the last of them.
    pub(super) at: usize,
    /// Values that they read.
    pub(super) read: Vec<String>,
    /// It does more than put flags together.
    pub(super) has_floats: bool,
}

/// None where the operator could not tell its shape from what it reads. readers: of the graph's values ([`graph::readers`]).
/// names: those that the graph has; what is made is added.
pub(super) fn made(
    graph: &GraphProto,
    facts: &Facts<'_>,
    readers: &HashMap<&str, Vec<usize>>,
    group: &Group,
    names: &mut HashSet<String>,
) -> Option<Region> {
    let is_typed = facts.policy.is_typed;
    let mut whole = group.leading.clone();
    whole.push(group.last.clone().unwrap_or(Dim::Is(1)));
    let mut writing =
        Writing { facts, rank: whole.len(), inputs: Vec::new(), program: Program::default(), known: HashMap::new() };
    let inside: HashSet<&str> = group.nodes.iter().flat_map(|&at| graph::outputs(&graph.node[at])).collect();
    for &at in &group.nodes {
        let node = &graph.node[at];
        for input in node.input.iter().filter(|input| !input.is_empty() && !inside.contains(input.as_str())) {
            if !inside.contains(facts.source(input)) {
                writing.input(input, node)?;
            }
        }
    }
    let mut registers = writing.registers();
    writing.write(graph, group, &mut registers)?;
    let is_told = |axis: usize, size: &Dim| {
        let own = |input: &String| {
            let dims = facts.dims(input).unwrap_or_default();
            (axis + dims.len()).checked_sub(whole.len()).map(|at| &dims[at])
        };
        *size == Dim::Is(1) || writing.inputs.iter().any(|input| own(input).is_some_and(|own| own.equals(size)))
    };
    let fits = |input: &String| facts.dims(input).is_some_and(|dims| goes_to(dims, &whole));
    if !whole.iter().enumerate().all(|(axis, size)| is_told(axis, size)) || !writing.inputs.iter().all(fits) {
        return None;
    }
    let read = group.nodes.iter().flat_map(|&at| graph.node[at].input.iter().cloned()).collect();
    let first = writing.inputs.len() + writing.program.constants.len();
    let gives = |name: &str| is_typed && registers.get(name).is_some_and(|&register| register >= first);
    let (wanted, gone) = wanted(graph, facts, readers, group, gives);
    let Writing { inputs, mut program, .. } = writing;
    if is_typed {
        let typed = typed(facts, &whole, &registers, program, (&inputs, &wanted))?;
        let has_floats = has_floats(&typed.program);
        let types = wanted.iter().map(|name| r#type(facts, name)).collect();
        let outputs: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
        let at = *group.nodes.last()?;
        return (!inputs.is_empty() && !outputs.is_empty()).then(|| Region {
            node: typed.node(inputs, outputs),
            casts: Vec::new(),
            types,
            gone,
            at,
            read,
            has_floats,
        });
    }
    let (mut outputs, mut casts) = (Vec::new(), Vec::new());
    let mut given: HashMap<usize, String> = HashMap::new();
    for name in wanted {
        let register = *registers.get(name)?;
        let is_f32 = facts.element(name) == Some(DType::F32);
        if let Some(output) = given.get(&register) {
            // Two nodes that do the same.
            casts.push(copy(output, name, facts.element(name)?, names));
            continue;
        }
        let output = if is_f32 { name.to_owned() } else { fresh(&format!("{name}/region"), names) };
        if !is_f32 {
            casts.push(copy(&output, name, facts.element(name)?, names));
        }
        program.outputs.push(register);
        given.insert(register, output.clone());
        outputs.push(output);
    }
    program.rank = whole.len();
    program.extents()?;
    let has_floats = has_floats(&program);
    let at = *group.nodes.last()?;
    (!inputs.is_empty() && !outputs.is_empty()).then(|| Region {
        node: program.node(inputs, outputs),
        casts,
        types: Vec::new(),
        gone,
        at,
        read,
        has_floats,
    })
}

/// What is known of a value, as a model says it.
fn r#type(facts: &Facts<'_>, name: &str) -> ValueInfoProto {
    let dim = |size: &Dim| {
        let value = match size {
            Dim::Is(size) => Some(Value::DimValue(*size)),
            Dim::Named(name) => Some(Value::DimParam(name.clone())),
            Dim::Unknown => None,
        };
        Dimension { value, denotation: None }
    };
    let shape = facts.dims(name).map(|dims| TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = type_proto::Tensor { elem_type: facts.element(name).map(DType::onnx_code), shape };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(r#type), ..ValueInfoProto::default() }
}

fn has_floats(program: &Program) -> bool {
    program.steps.iter().any(|step| !matches!(step.op, Op::And | Op::Or | Op::Not))
}

/// The program with the types of what it reads and gives; None where it has more than an operator may have.
fn typed(
    facts: &Facts<'_>,
    whole: &[Dim],
    registers: &HashMap<String, usize>,
    program: Program,
    (inputs, outputs): (&[String], &[&str]),
) -> Option<TypedProgram> {
    let given = outputs.iter().map(|&name| registers.get(name).copied()).collect::<Option<_>>()?;
    let program = Program { outputs: given, rank: whole.len(), ..program };
    program.extents()?;
    let element = |name: &str| facts.element(name).filter(|&element| TypedProgram::takes(element));
    let row = whole.last()?.number().and_then(|n| usize::try_from(n).ok());
    let typed = TypedProgram {
        program,
        inputs: inputs.iter().map(|name| element(name)).collect::<Option<_>>()?,
        outputs: outputs.iter().map(|name| element(name)).collect::<Option<_>>()?,
        row,
    };
    (typed.inputs.len().max(typed.outputs.len()) <= TypedProgram::MOST_TENSORS).then_some(typed)
}

/// The value that a region gives, by another name, and as another type if it is one. The name of the node that gave it may
/// be that of another, which gives it before it is rounded, and stays.
fn copy(from: &str, to: &str, element: DType, names: &mut HashSet<String>) -> NodeProto {
    let name = Some(fresh(&format!("region_cast/{to}"), names));
    let mut cast = NodeProto { name, ..node("Cast", &[from], to) };
    cast.attribute.push(integer("to", element.onnx_code().into()));
    cast
}

/// Values of steps that are read outside; the nodes that nobody needs any more. A node that only passes on what it reads
/// stays where somebody outside reads it, unless the operator `gives` its value, too.
fn wanted<'a>(
    graph: &'a GraphProto,
    facts: &Facts<'_>,
    readers: &HashMap<&str, Vec<usize>>,
    group: &Group,
    gives: impl Fn(&str) -> bool,
) -> (Vec<&'a str>, Vec<usize>) {
    let mine: HashSet<usize> = group.nodes.iter().copied().collect();
    let mut read: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let inside: HashSet<&str> = group.nodes.iter().flat_map(|&at| graph::outputs(&graph.node[at])).collect();
    let is_read_outside = |name: &&str| readers.get(name).is_some_and(|all| all.iter().any(|at| !mine.contains(at)));
    read.extend(inside.iter().copied().filter(is_read_outside));
    let (mut wanted, mut gone) = (Vec::new(), Vec::new());
    for &at in group.nodes.iter().rev() {
        let node = &graph.node[at];
        let Some(output) = graph::outputs(node).next() else { continue };
        let passes_on = facts.members[at].as_ref().is_some_and(|member| member.meaning == Meaning::Same);
        match read.contains(output) {
            true if passes_on && !gives(output) => read.extend(node.input.first().map(String::as_str)),
            true => {
                wanted.push(output);
                gone.push(at);
            }
            false => gone.push(at),
        }
    }
    wanted.reverse();
    wanted.retain(|name| inside.contains(name));
    (wanted, gone)
}

struct Writing<'a> {
    facts: &'a Facts<'a>,
    rank: usize,
    inputs: Vec<String>,
    program: Program,
    /// What is computed already.
    known: HashMap<(&'static str, [usize; 3]), usize>,
}

impl Writing<'_> {
    /// Counts an input, once, or a number.
    fn input(&mut self, name: &str, reader: &NodeProto) -> Option<()> {
        if self.is_parameter(name, reader) {
            return Some(());
        }
        let name = self.facts.source(name);
        if self.inputs.iter().any(|input| input == name) {
            return Some(());
        }
        if let Some(number) = self.facts.number(name) {
            let is_known = self.program.constants.iter().any(|known| known.to_bits() == number.to_bits());
            self.program.constants.extend((!is_known).then_some(number));
            return Some(());
        }
        let dims = self.facts.dims(name)?;
        let is_one = |dim: &Dim| *dim == Dim::Is(1);
        self.program.inputs.push(match dims.last() {
            _ if dims.iter().all(is_one) => Extent::Number,
            Some(last) if is_one(last) => Extent::Row,
            _ => Extent::Full,
        });
        self.inputs.push(name.to_owned());
        let readable = [DType::F32, DType::BF16, DType::F16, DType::Bool];
        (dims.len() <= self.rank && readable.contains(&self.facts.element(name)?)).then_some(())
    }

    /// Axes of a reduction, an Expand's sizes, the exponent of a Pow: no values of the region.
    fn is_parameter(&self, name: &str, reader: &NodeProto) -> bool {
        let has_parameter = matches!(reader.op_type(), "ReduceSum" | "ReduceMean" | "ReduceMax" | "Expand" | "Pow");
        has_parameter && reader.input.first().map(String::as_str) != Some(name)
    }

    /// {value: register} of what the region reads.
    fn registers(&self) -> HashMap<String, usize> {
        self.inputs.iter().enumerate().map(|(at, name)| (name.clone(), at)).collect()
    }

    fn write(&mut self, graph: &GraphProto, group: &Group, registers: &mut HashMap<String, usize>) -> Option<()> {
        for &at in &group.nodes {
            let (node, member) = (&graph.node[at], self.facts.members[at].as_ref()?);
            let output = graph::outputs(node).next()?;
            let register = match member.meaning {
                Meaning::Same => self.register(node.input.first()?, registers)?,
                Meaning::Softmax { log } => {
                    let x = self.register(node.input.first()?, registers)?;
                    let made = self.softmax(x, log);
                    member.rounds.map_or(made, |rounds| self.step(rounds, [made, 0, 0]))
                }
                Meaning::Step(op) => {
                    let mut operands = [0; 3];
                    for (operand, input) in operands.iter_mut().zip(&node.input).take(op.arity()) {
                        *operand = self.register(input, registers)?;
                    }
                    let made = self.step(op, operands);
                    member.rounds.map_or(made, |rounds| self.step(rounds, [made, 0, 0]))
                }
            };
            registers.insert(output.to_owned(), register);
        }
        Some(())
    }

    fn register(&self, name: &str, registers: &HashMap<String, usize>) -> Option<usize> {
        let read = |name: &str| registers.get(name).copied();
        read(name).or_else(|| read(self.facts.source(name))).or_else(|| {
            let number = self.facts.number(name)?;
            let same = |known: &f32| known.to_bits() == number.to_bits();
            Some(self.inputs.len() + self.program.constants.iter().position(same)?)
        })
    }

    /// As eager computes it: what is beyond the largest is none's.
    fn softmax(&mut self, x: usize, log: bool) -> usize {
        let largest = self.step(Op::ReduceMax, [x, 0, 0]);
        let below = self.step(Op::Sub, [x, largest, 0]);
        let power = self.step(Op::Exp, [below, 0, 0]);
        let sum = self.step(Op::ReduceSum, [power, 0, 0]);
        match log {
            false => self.step(Op::Div, [power, sum, 0]),
            true => {
                let log = self.step(Op::Log, [sum, 0, 0]);
                self.step(Op::Sub, [below, log, 0])
            }
        }
    }

    fn step(&mut self, op: Op, operands: [usize; 3]) -> usize {
        let next = self.inputs.len() + self.program.constants.len() + self.program.steps.len();
        let register = *self.known.entry((op.name(), operands)).or_insert(next);
        if register == next {
            self.program.steps.push(Step { op, operands });
        }
        register
    }
}

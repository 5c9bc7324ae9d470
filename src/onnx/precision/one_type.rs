//! A model in float64 or float32: what its nodes say, without the rounding of its types.

use super::elements::{TYPE_ATTRIBUTES, is_onnx};
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, type_proto};
use crate::onnx::walk::{bodies_mut, tensors_mut};
use crate::onnx::{NamedTensor, OnnxError, inline_functions, tensor_proto};
use crate::tensor::{DType, Shape, TensorBuf};

/// The type that takes the place of every narrower floating type.
#[derive(Clone, Copy)]
struct Wide(DType);

/// The model with float64 in the place of every other floating type, in inputs, outputs, constants and casts. Functions
/// are put in place of their calls. What a runtime has no float64 kernel for it will refuse. Errors: those of
/// [`inline_functions`], [`OnnxError::Tensor`] of a constant that cannot be read.
pub fn double(model: &ModelProto) -> Result<ModelProto, OnnxError> {
    widened(model, Wide(DType::F64))
}

/// The same with float32 in the place of what is narrower: for operators without a kernel in float64.
pub fn single(model: &ModelProto) -> Result<ModelProto, OnnxError> {
    widened(model, Wide(DType::F32))
}

fn widened(model: &ModelProto, wide: Wide) -> Result<ModelProto, OnnxError> {
    let mut model = model.clone();
    inline_functions(&mut model)?;
    for tensor in tensors_mut(&mut model) {
        wide.widen_tensor(tensor)?;
    }
    if let Some(graph) = &mut model.graph {
        wide.widen_graph(graph);
    }
    Ok(model)
}

impl Wide {
    fn code(self) -> i32 {
        self.0.onnx_code()
    }

    fn is_narrow(self, code: i32) -> bool {
        let is_narrow = |dtype: DType| dtype.is_float() && dtype.size_bytes() < self.0.size_bytes();
        DType::from_onnx(code).is_ok_and(is_narrow)
    }

    fn tensor(self, shape: Shape, values: &[f64]) -> TensorBuf {
        match self.0 {
            DType::F32 => TensorBuf::rounded_to_f32(shape, values),
            _ => TensorBuf::from_f64(shape, values),
        }
    }

    fn widen_tensor(self, tensor: &mut TensorProto) -> Result<(), OnnxError> {
        if !tensor.data_type.is_some_and(|code| self.is_narrow(code)) {
            return Ok(());
        }
        let read = NamedTensor::from_proto(tensor)?;
        let values = read.view().flat_f64(0..read.desc.shape.n_elements()).unwrap_or_default();
        *tensor = tensor_proto(&read.name, &self.tensor(read.desc.shape.clone(), &values).view());
        Ok(())
    }

    fn widen_graph(self, graph: &mut GraphProto) {
        graph.value_info.clear();
        for info in graph.input.iter_mut().chain(&mut graph.output) {
            info.r#type.as_mut().into_iter().for_each(|of| self.widen_type(of));
        }
        for mut node in std::mem::take(&mut graph.node) {
            self.widen_node(&mut node);
            bodies_mut(&mut node).for_each(|body| self.widen_graph(body));
            let casts = self.cast_statistics(&mut node);
            graph.node.push(node);
            graph.node.extend(casts);
        }
    }

    /// LayerNormalization gives mean and standard deviation in float32 alone, whatever its values are: they are cast.
    fn cast_statistics(self, node: &mut NodeProto) -> Vec<NodeProto> {
        if self.0 == DType::F32 || !is_onnx(node) || node.op_type() != "LayerNormalization" {
            return Vec::new();
        }
        let statistics = node.output.iter_mut().skip(1).filter(|name| !name.is_empty());
        let cast = |name: &mut String| {
            let narrow = format!("{name}__float32");
            NodeProto {
                op_type: Some("Cast".to_owned()),
                input: vec![narrow.clone()],
                output: vec![std::mem::replace(name, narrow)],
                attribute: vec![AttributeProto {
                    name: Some("to".to_owned()),
                    r#type: Some(AttributeType::Int as i32),
                    i: Some(self.code().into()),
                    ..AttributeProto::default()
                }],
                ..NodeProto::default()
            }
        };
        statistics.map(cast).collect()
    }

    fn widen_type(self, of: &mut TypeProto) {
        match &mut of.value {
            Some(type_proto::Value::TensorType(tensor))
                if tensor.elem_type.is_some_and(|code| self.is_narrow(code)) =>
            {
                tensor.elem_type = Some(self.code());
            }
            Some(type_proto::Value::SequenceType(sequence)) => {
                sequence.elem_type.iter_mut().for_each(|of| self.widen_type(of))
            }
            Some(type_proto::Value::OptionalType(optional)) => {
                optional.elem_type.iter_mut().for_each(|of| self.widen_type(of))
            }
            _ => {}
        }
    }

    fn widen_node(self, node: &mut NodeProto) {
        let is_cast = node.op_type() == "Cast";
        for attribute in &mut node.attribute {
            let names_type = TYPE_ATTRIBUTES.contains(&attribute.name()) || (is_cast && attribute.name() == "to");
            // What LayerNormalization adds up in may be float32 alone, whatever its values are.
            if names_type
                && attribute.name() != "stash_type"
                && attribute.i.is_some_and(|code| self.is_narrow(code as i32))
            {
                attribute.i = Some(self.code().into());
            }
        }
        if !is_onnx(node) {
            return;
        }
        match node.op_type() {
            "Constant" => node.attribute.iter_mut().for_each(|attribute| self.widen_constant(attribute)),
            "ConstantOfShape" if node.attribute.is_empty() => node.attribute.push(value(self.zero())),
            "RandomNormal" | "RandomUniform" | "EyeLike"
                if node.attribute.iter().all(|attribute| attribute.name() != "dtype") && node.input.is_empty() =>
            {
                node.attribute.push(AttributeProto {
                    name: Some("dtype".to_owned()),
                    r#type: Some(AttributeType::Int as i32),
                    i: Some(self.code().into()),
                    ..AttributeProto::default()
                });
            }
            _ => {}
        }
    }

    /// A scalar or list of float32 as a tensor of float64.
    fn widen_constant(self, attribute: &mut AttributeProto) {
        let (dims, values): (Vec<i64>, Vec<f64>) = match attribute.name() {
            "value_float" => (Vec::new(), vec![attribute.f().into()]),
            "value_floats" => {
                (vec![attribute.floats.len() as i64], attribute.floats.iter().map(|&value| value.into()).collect())
            }
            _ => return,
        };
        let shape = Shape::new(dims).expect("one axis at most");
        *attribute = value(tensor_proto("", &self.tensor(shape, &values).view()));
    }

    fn zero(self) -> TensorProto {
        tensor_proto("", &self.tensor(Shape::new([1]).expect("one axis"), &[0.]).view())
    }
}

fn value(tensor: TensorProto) -> AttributeProto {
    AttributeProto {
        name: Some("value".to_owned()),
        r#type: Some(AttributeType::Tensor as i32),
        t: Some(tensor),
        ..AttributeProto::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::value_info;
    use crate::tensor::TensorDesc;

    fn attribute(name: &str, code: i32) -> AttributeProto {
        AttributeProto { name: Some(name.to_owned()), i: Some(code.into()), ..AttributeProto::default() }
    }

    #[test]
    fn what_layer_normalization_gives_in_float32_alone_is_cast() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let norm = NodeProto {
            op_type: Some("LayerNormalization".to_owned()),
            input: names(&["x", "scale"]),
            output: names(&["y", "", "deviation"]),
            ..NodeProto::default()
        };
        let graph = GraphProto { node: vec![norm], ..GraphProto::default() };
        let wide = double(&ModelProto { graph: Some(graph), ..ModelProto::default() }).unwrap().graph.unwrap();
        let [norm, cast] = wide.node.as_slice() else { panic!("{:?}", wide.node) };
        assert_eq!(norm.output, ["y", "", "deviation__float32"]);
        assert_eq!((&cast.input, &cast.output), (&names(&["deviation__float32"]), &names(&["deviation"])));
        assert_eq!((cast.op_type(), cast.attribute[0].i), ("Cast", Some(DType::F64.onnx_code().into())));
    }

    #[test]
    fn types_constants_and_casts_become_float64_and_integers_stay() {
        let (half, integer) = (DType::F16.onnx_code(), DType::I64.onnx_code());
        let node = |op: &str, attributes: Vec<AttributeProto>| NodeProto {
            op_type: Some(op.to_owned()),
            attribute: attributes,
            ..NodeProto::default()
        };
        let scalar = AttributeProto { name: Some("value_float".to_owned()), f: Some(0.5), ..AttributeProto::default() };
        let info = |name: &str, dtype| value_info(name, &TensorDesc::new(dtype, [1]).unwrap());
        let graph = GraphProto {
            input: vec![info("x", DType::F16), info("i", DType::I64)],
            output: vec![info("y", DType::BF16)],
            value_info: vec![info("z", DType::F32)],
            initializer: vec![tensor_proto("w", &TensorBuf::from_f32([2], &[1.5, -2.]).unwrap().view())],
            node: vec![
                node("Cast", vec![attribute("to", half)]),
                node("Cast", vec![attribute("to", integer)]),
                node("Constant", vec![scalar]),
                node("ConstantOfShape", vec![]),
                node("LayerNormalization", vec![attribute("stash_type", 1)]),
            ],
            ..GraphProto::default()
        };
        let wide = double(&ModelProto { graph: Some(graph), ..ModelProto::default() }).unwrap().graph.unwrap();
        assert_eq!(wide.input, [info("x", DType::F64), info("i", DType::I64)]);
        assert_eq!((wide.output, wide.value_info), (vec![info("y", DType::F64)], vec![]));
        let weight = NamedTensor::from_proto(&wide.initializer[0]).unwrap();
        assert_eq!((weight.name.as_str(), weight.view().flat_f64(0..2)), ("w", Some(vec![1.5, -2.])));
        assert_eq!(weight.desc.dtype, DType::F64);
        let codes: Vec<_> = wide.node.iter().filter_map(|node| node.attribute[0].i).collect();
        assert_eq!(codes, [DType::F64.onnx_code().into(), integer.into(), 1]);
        for (at, expected) in [(2, 0.5), (3, 0.)] {
            let tensor = wide.node[at].attribute[0].t.as_ref().unwrap();
            let read = NamedTensor::from_proto(tensor).unwrap();
            assert_eq!(read.view().flat_f64(0..1), Some(vec![expected]));
        }
    }
}

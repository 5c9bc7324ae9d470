//! Kernels that ONNX Runtime's CUDA provider has not.

use crate::tensor::DType;

/// The library's versions that [`WITHOUT_BF16`] and [`WITHOUT_F16`] are true of.
const KNOWN: &str = "1.31.";

/// Opsets have no end.
const ANY: i64 = i64::MAX;

/// (the first and the last opset at which operators lack a kernel of bfloat16, these operators), of those of which float32
/// has at least one of the CPU's. A kernel is the node's own, or those of all that its function is made of. Up to opset 21
/// many lack it because ONNX itself gives the operator no bfloat16. Measured: docs/results/cuda-kernels.md.
#[rustfmt::skip]
const WITHOUT_BF16: &[(i64, i64, &[&str])] = &[
    (0, ANY, &[
        "Acos", "Acosh", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Bernoulli", "Ceil",
        "Celu", "CenterCropPad", "Col2Im", "Compress", "ConvTranspose", "Cosh", "CumProd", "CumSum", "DFT",
        "DepthToSpace", "DequantizeLinear", "Det", "Dropout", "DynamicQuantizeLinear", "Einsum", "Elu", "Equal",
        "EyeLike", "Floor", "GRU", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GridSample",
        "Hardmax", "InstanceNormalization", "LRN", "LSTM", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax",
        "LpPool", "MaxPool", "MaxUnpool", "Mean", "MeanVarianceNormalization", "MelWeightMatrix", "NonZero", "OneHot",
        "PRelu", "Pad", "QLinearMatMul", "QuantizeLinear", "RNN", "Range", "Reciprocal", "ReduceLogSum", "ReduceMax",
        "ReduceMin", "ReduceProd", "Resize", "ReverseSequence", "Round", "STFT", "Scatter", "Selu", "Shrink", "Sinh",
        "SoftmaxCrossEntropyLoss", "SpaceToDepth", "Tan", "ThresholdedRelu", "Unique", "Upsample",
    ]),
    (0, 23, &["TopK"]),
    (0, 21, &[
        "AveragePool", "Conv", "Cos", "DeformConv", "GlobalLpPool", "HardSigmoid", "HardSwish", "LpNormalization",
        "MaxRoiPool", "Mish", "Multinomial", "NegativeLogLikelihoodLoss", "RandomNormal", "RandomNormalLike",
        "RandomUniform", "RandomUniformLike", "RoiAlign", "Sin", "Softplus", "Softsign",
    ]),
    (0, 19, &["ConstantOfShape", "IsInf"]),
    (0, 17, &["ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"]),
    (0, 15, &["Where"]),
    (0, 14, &["Pow"]),
];

/// The same of float16. The CPU has it in float32, and ONNX Runtime leaves out the rounding between two such nodes.
#[rustfmt::skip]
const WITHOUT_F16: &[(i64, i64, &[&str])] = &[
    (0, ANY, &[
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Col2Im", "Cosh", "CumProd", "DFT", "DequantizeLinear",
        "Det", "DynamicQuantizeLinear", "EyeLike", "GridSample", "Hardmax", "LpPool", "MaxUnpool", "Mean",
        "MeanVarianceNormalization", "MelWeightMatrix", "OneHot", "QLinearMatMul", "Range", "STFT", "Sinh", "Tan",
        "Unique",
    ]),
    (22, ANY, &["Dropout", "Elu", "InstanceNormalization", "MaxPool", "Selu", "ThresholdedRelu"]),
    (0, 21, &["GlobalLpPool", "MaxRoiPool", "Multinomial"]),
    (0, 19, &["IsInf"]),
    (0, 18, &["QuantizeLinear"]),
    (0, 15, &["RoiAlign"]),
    (0, 13, &["CumSum"]),
];

/// Types of integers of which a Pad has no kernel, which moves it, and what it reads, to the CPU.
const PADS_WITHOUT: &[DType] = &[DType::I32, DType::I64, DType::U8];

/// Whether the tables are true of the library of this version.
pub(super) fn knows(version: &str) -> bool {
    version.starts_with(KNOWN)
}

/// Whether a node of ONNX's operator lacks a kernel of a type: of half precision, where float32 will do; of integers, of
/// which nothing but Pad is asked.
pub(super) fn lacks(op: &str, opset: i64, dtype: DType) -> bool {
    let table = match dtype {
        DType::BF16 => WITHOUT_BF16,
        DType::F16 => WITHOUT_F16,
        _ => return op == "Pad" && PADS_WITHOUT.contains(&dtype),
    };
    table.iter().any(|(first, last, ops)| (first..=last).contains(&&opset) && ops.contains(&op))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// What [`lacks`] says is what was measured, of every operator at each opset. But for sequences, which nothing rounds,
    /// and bits.
    #[test]
    fn the_tables_are_what_was_measured() {
        let measured: Value = serde_json::from_str(include_str!("../../../../docs/results/cuda-kernels.json")).unwrap();
        let version = measured["onnxruntime"].as_str().unwrap();
        assert!(knows(version) && !knows("1.30.0") && !knows("1.3"), "{version}");
        let (last, mut seen) = (measured["opset"].as_i64().unwrap(), BTreeSet::new());
        for (op, versions) in measured["operators"].as_object().unwrap() {
            if op.contains("Sequence") && op != "ReverseSequence" || op == "BitCast" {
                continue;
            }
            for opset in 13..=last {
                let since = versions.as_object().unwrap().iter().map(|(since, _)| since.parse::<i64>().unwrap());
                let Some(since) = since.filter(|&since| since <= opset).max() else { continue };
                let types = versions[since.to_string()].as_object().unwrap();
                if types.values().all(|types| types["float"].is_null()) {
                    continue; // a node of half precision is none
                }
                for (half, name) in [(DType::BF16, "bfloat16"), (DType::F16, "float16")] {
                    let is_lacking = |types: &Value| rank(&types[name]) < 2 && rank(&types["float"]) > 0;
                    let expected = types.values().any(is_lacking);
                    assert_eq!(lacks(op, opset, half), expected, "{op}, opset {opset}, {name}");
                }
            }
            seen.insert(op.as_str());
        }
        let listed = WITHOUT_BF16.iter().chain(WITHOUT_F16).flat_map(|(_, _, ops)| ops.iter());
        assert_eq!(listed.filter(|op| !seen.contains(*op)).collect::<Vec<_>>(), Vec::<&&str>::new());
        assert!(seen.len() > 150, "{}", seen.len());
        for (since, types) in measured["operators"]["Pad"].as_object().unwrap() {
            let since = since.parse().unwrap();
            for (dtype, name) in
                [(DType::I32, "int32"), (DType::I64, "int64"), (DType::U8, "uint8"), (DType::Bool, "bool")]
            {
                let told = &types["T"][name];
                assert!(told.is_null() || lacks("Pad", since, dtype) == (rank(told) < 2), "Pad, opset {since}, {name}");
            }
        }
    }

    /// Of what was measured: on the GPU, on the CPU, not at all.
    fn rank(told: &Value) -> u8 {
        match told.as_str() {
            Some("kernel" | "body") => 2,
            Some("cpu") => 1,
            _ => 0,
        }
    }
}

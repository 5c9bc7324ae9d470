"""From AOT graph to partition and ONNX models. Importing this loads neither torch.onnx nor onnxscript."""

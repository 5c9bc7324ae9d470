"""ONNX models and their tensors: show, read, judge, run, and feeds of one model from those of another."""

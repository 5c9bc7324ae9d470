"""ONNX models and their tensors: show, read, judge, run, and feeds of one model from those of another.

Any ONNX file is read, of a dump or not, and nothing is verified: `rust-ort verify`, and each command that reads a dump,
hold its files against hashes and seals.
"""

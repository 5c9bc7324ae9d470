"""From AOT graph to partition and ONNX models. Importing this loads neither torch.onnx nor onnxscript."""

import hashlib
from pathlib import Path


def _digest() -> str:
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


SOURCES = _digest()
"""SHA-256 of this folder's sources as they are when it is imported: a plan made by others is never taken."""

"""A slice of the zoo: models of three packages, as their classes make them, under every tool. Those of transformers:
test_front_door.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from measure.home import Home
from measure.zoo.__main__ import Results, Runner

SITE = Path(__file__).parents[2] / "build" / "zoo" / "site"
"""Where `make test` and `make zoo` put the zoo's packages."""
TASKS = ("eval", "train", "compare", "blame", "bfloat16")
SLICE = {"GIN": TASKS, "DeepSpeech": TASKS, "squeezenet1_1": TASKS[:3]}


@pytest.mark.skipif(not SITE.is_dir(), reason="the zoo's packages are not there: make test installs them")
@pytest.mark.parametrize(("name", "tasks"), SLICE.items())
def test_a_model_of_the_zoo_passes_its_tasks(name: str, tasks: tuple[str, ...], tmp_path: Path) -> None:
    home = Home(folder=tmp_path)
    (tmp_path / "run").mkdir(mode=0o700)
    environment = home.environment()
    environment["PYTHONPATH"] += f":{SITE}"
    results = Results.read(None)
    try:
        Runner({**environment, "OMP_NUM_THREADS": "1"}, results).run(name, tasks)
    finally:
        home.stop()
    found = results.found[name]
    assert {task: one["status"] for task, one in found.items()} == dict.fromkeys(tasks, "pass"), found
    made = found["train"]["rust_ort"]
    assert made["on_onnxruntime"] > 10 and made["nodes"] - made["on_onnxruntime"] == sum(
        count for _, _, count in made["left"]
    )
    assert found["compare"]["values"] > 4
    assert "blame" not in tasks or found["blame"]["nodes"] > 10

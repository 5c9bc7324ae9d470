"""The zoo's models, without their packages: each is built by `make zoo`."""

from __future__ import annotations

from collections import Counter

from measure.zoo.models import EVERY, MODELS

LEAST = {
    "diffusers": 7, "timm": 20, "torch-geometric": 9, "torchaudio": 8, "torchvision": 22, "transformers": 87,
}  # fmt: skip


def test_a_name_and_a_source_are_of_one_model() -> None:
    assert len(MODELS) == len(EVERY) >= 120
    assert {source: count for source, count in Counter(model.source for model in EVERY).items() if count > 1} == {}


def test_each_package_has_its_models() -> None:
    counts = Counter(model.package for model in EVERY)
    assert counts.keys() == LEAST.keys()
    assert {package: counts[package] for package, least in LEAST.items() if counts[package] < least} == {}


def test_models_are_sorted_by_package_and_name() -> None:
    assert [*MODELS] == [model.name for model in sorted(EVERY, key=lambda model: (model.package, model.name))]


def test_a_source_is_of_its_package_and_ends_in_the_name() -> None:
    for model in EVERY:
        path = model.source.split(".")
        assert (path[0], path[-1]) == (model.package.replace("-", "_"), model.name)

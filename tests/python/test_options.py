import dataclasses

import pytest
import torch

from rust_ort.errors import ClientError, NotAvailableYet, OptionError
from rust_ort.link import pool
from rust_ort.options import Options, Tolerance


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, _, _ in Options.table():
        monkeypatch.delenv(f"RUST_ORT_{name.upper()}", raising=False)


def test_the_defaults_are_valid_and_frozen() -> None:
    options = Options()
    assert options == Options.parse({}) == Options.parse(None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.opset = 20  # type: ignore[misc]


def test_rules_have_one_order_however_they_are_given() -> None:
    """torch takes equal dicts for equal options: code compiled for one order serves the other."""
    rules = {"torch": ["*"], "torch-f64": ["*norm*"], "ort": ["b"]}
    one, other = (Options.parse({"runtimes": dict(given)}) for given in (rules.items(), reversed(rules.items())))
    assert list(one.runtimes) == list(other.runtimes) == ["ort", "torch-f64", "torch"]
    assert one == other


def test_an_unknown_name_is_an_error_naming_the_nearest() -> None:
    with pytest.raises(OptionError, match="unknown option 'optset'; did you mean 'opset'"):
        Options.parse({"optset": 18})
    with pytest.raises(ValueError, match="unknown option 'zzzzzzzz'"):
        Options.parse({"zzzzzzzz": 18})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("opset", 17, "an integer from 18 to 26 or None"),
        ("opset", "18", "18 to 26"),
        ("opset", True, "18 to 26"),
        ("opset", 27, "18 to 26 or None, got 27"),
        ("ort_optimization", "al", "did you mean 'all'"),
        ("ort_optimization", 1, "expected one of 'all'"),
        ("ort_optimization", ["all"], "expected one of 'all'"),
        ("disable_passes", ["output-copy"], "got 'output-copy'; did you mean 'output-copies'"),
        ("disable_passes", "output-copies", "a sequence of names, of 'same-casts'"),
        ("disable_passes", [1], "a sequence of names"),
        ("compare", "output", "did you mean 'outputs'"),
        ("compare_every", 0, "an integer from 1"),
        ("compare_only", "aten.mm", "a sequence of patterns"),
        ("compare_only", [""], "a sequence of patterns"),
        ("compare_stop", "frist", "did you mean 'first'"),
        ("dump_values", "some", "expected"),
        ("durable", "some", "expected"),
        ("compare_float64", "al", "did you mean 'all'"),
        ("noise_factor", 0.5, "a finite number from 1"),
        ("noise_factor", float("nan"), "a finite number from 1"),
        ("noise_factor", True, "a finite number from 1"),
        ("compare_memory", 0, "an integer from 1"),
        ("dump_calls", "every", "expected one of 'first', 'all', 'none'"),
        ("dump", 3, "a path or None"),
        ("dump", "", "a path or None"),
        ("dump", "runs/.hidden", "a path whose last name has letters"),
        ("dump", "runs/" + "x" * 201, "at most 200 bytes"),
        ("precision_rules", {"float32": ["x" * 1025]}, "patterns of at most 1024 bytes"),
        ("precision_rules", {"float32": ["x"] * 65537}, "at most 65536 patterns, got 65537"),
        ("session_options", [], "session config entries"),
        ("session_options", {1: "1"}, "session config entries"),
        ("threads", 0, "an integer from 1 to 1024 or None"),
        ("threads", 1025, "an integer from 1 to 1024 or None"),
        ("threads", True, "an integer from 1 to 1024 or None"),
        ("threads", 1.0, "an integer from 1 to 1024 or None"),
        ("socket", b"x", "a path or None"),
        ("share_parameters", 1, '"auto", True or False'),
        ("providers", "CPUExecutionProvider", "a sequence of provider names"),
        ("providers", ["CPUExecutionProvder"], "did you mean 'CPUExecutionProvider'"),
        ("providers", [("CPUExecutionProvider",)], "a sequence of provider names"),
        ("transforms", [1], "functions ModelProto"),
        ("custom_op_libraries", "a.so", "a sequence of paths"),
        ("custom_op_libraries", [None], "a path, got None"),
        ("custom_op_libraries", ["no/such.so"], "no/such.so: there is no such file"),
        ("tolerance", 1e-3, "None or a dict with atol, rtol, scale, equal_nan"),
        ("tolerance", {"atoll": 1}, "unknown entry 'atoll'; did you mean 'atol'"),
        ("tolerance", {"atol": -1}, "a finite number >= 0, got -1"),
        ("tolerance", {"atol": float("nan")}, "a finite number >= 0, got nan"),
        ("compare_only", ["\ud800"], "without NUL and lone surrogates"),
        ("precision_rules", {"float32": ["a", "b\0"]}, "without NUL and lone surrogates, got 'b"),
        ("on_unsupported", "warn", "expected one of 'eager', 'error'"),
        ("on_daemon_error", "warn", "expected one of 'error', 'eager'"),
    ],
)
def test_a_bad_value_is_an_error_saying_expected_and_got(name: str, value: object, expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        Options.parse({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("providers", ["TensorrtExecutionProvider"]),
        ("providers", [("TensorrtExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]),
    ],
)
def test_an_option_without_its_feature_is_refused(name: str, value: object) -> None:
    with pytest.raises(NotAvailableYet, match=f"option {name}=.* is not available yet"):
        Options.parse({name: value})
    assert issubclass(NotAvailableYet, ClientError)


def test_values_are_kept_in_one_form() -> None:
    options = Options.parse(
        {
            "providers": [("CPUExecutionProvider", {"arena": 1})],
            "session_options": {"a": True, "b": 2},
            "tolerance": {"atol": 1e-3},
            "transforms": [print],
            "opset": 26,
        }
    )
    assert options.providers == (("CPUExecutionProvider", {"arena": "1"}),)
    assert options.session_options == {"a": "1", "b": "2"}
    assert options.tolerance == Tolerance(atol=1e-3)
    assert options.transforms == (print,)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("providers", "CPUExecutionProvider", (("CPUExecutionProvider", {}),)),
        ("opset", "23", 23),
        ("ort_optimization", "basic", "basic"),
        ("disable_passes", "product-transposes, output-copies", ("output-copies", "product-transposes")),
        ("runtimes", "{}", {}),
        ("precision_rules", "{}", {}),
        ("precision_rules", "float32=*.norm*,aten.mm.?", {"float32": ("*.norm*", "aten.mm.?")}),
        ("session_options", "a=1, b=x", {"a": "1", "b": "x"}),
        ("session_options", '{"a": 1}', {"a": "1"}),
        ("custom_op_libraries", "/bin/sh", ("/bin/sh",)),
        ("custom_translations", "", {}),
        ("transforms", "math:sqrt", None),
        ("dump", "here/run", "here/run"),
        ("dump_calls", "all", "all"),
        ("dump_values", "1", True),
        ("durable", "1", True),
        ("compare_float64", "all", "all"),
        ("noise_factor", "2.5", 2.5),
        ("compare", "outputs", "outputs"),
        ("compare_every", "3", 3),
        ("compare_only", "aten.mm*, *.mlp.*", ("aten.mm*", "*.mlp.*")),
        ("compare_stop", "first", "first"),
        ("compare_memory", "1048576", 1 << 20),
        ("tolerance", "atol=1e-3,equal_nan=1", Tolerance(atol=1e-3, equal_nan=True)),
        ("on_unsupported", "error", "error"),
        ("on_daemon_error", "eager", "eager"),
        ("share_parameters", "0", False),
        ("freeze_parameters", "1", True),
        ("threads", "3", 3),
        ("socket", "/tmp/x.sock", "/tmp/x.sock"),
    ],
)
def test_each_option_has_an_environment_twin(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    monkeypatch.setenv(f"RUST_ORT_{name.upper()}", text)
    got = getattr(Options.parse({}), name)
    assert len(got) == 1 if name == "transforms" else got == value


def test_the_environment_table_covers_every_option() -> None:
    marks = test_each_option_has_an_environment_twin.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks[0].args[1]} == {name for name, _, _ in Options.table()}


@pytest.mark.parametrize(
    ("torchs", "environment", "expected"),
    [
        (5, {}, 5),
        (64, {}, 8),
        (8, {"LOCAL_WORLD_SIZE": "4"}, 2),
        (1, {"LOCAL_WORLD_SIZE": "4"}, 1),
        (8, {"OMPI_COMM_WORLD_LOCAL_SIZE": "100"}, 1),
        (8, {"MPI_LOCALNRANKS": "2"}, 4),
        (8, {"LOCAL_WORLD_SIZE": "0"}, 8),
    ],
)
def test_threads_are_torchs_and_shared_among_ranks(
    monkeypatch: pytest.MonkeyPatch, torchs: int, environment: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(pool.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(pool.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: torchs)
    for name in pool.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    pool.default_threads.cache_clear()
    try:
        assert pool.threads(Options()) == expected
        assert pool.threads(Options(threads=3)) == 3
        pool.default_threads.cache_clear()
        monkeypatch.setattr(pool.os, "cpu_count", lambda: 64)
        assert pool.threads(Options()) == min(torchs, 8), "its launcher bound it"
    finally:
        pool.default_threads.cache_clear()


def test_an_explicit_option_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUST_ORT_THREADS", "7")
    assert Options.parse({}).threads == 7
    assert Options.parse({"threads": 2}).threads == 2
    assert Options.parse({"threads": None}).threads is None
    assert Options().threads is None


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("threads", "many", OptionError),
        ("threads", "0", OptionError),
        ("share_parameters", "maybe", OptionError),
        ("freeze_parameters", "maybe", OptionError),
        ("providers", "TensorrtExecutionProvider", NotAvailableYet),
        ("session_options", "novalue", OptionError),
        ("session_options", "{", OptionError),
        ("transforms", "math", OptionError),
        ("transforms", "math:nothing", OptionError),
        ("tolerance", "atol=small", OptionError),
    ],
)
def test_the_environment_is_checked_like_an_argument(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, kind: type[Exception]
) -> None:
    monkeypatch.setenv(f"RUST_ORT_{name.upper()}", text)
    with pytest.raises(kind, match=f"RUST_ORT_{name.upper()}"):
        Options.parse({})

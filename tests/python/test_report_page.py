"""`rust-ort report`: what a browser makes of the page."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
import torch
from browser import Browser
from torch import Tensor, nn

import rust_ort
from rust_ort.link.daemon import find_binary

pytestmark = pytest.mark.usefixtures("daemon")

APP = Path(__file__).parents[2] / "src" / "cli" / "report" / "app"
WATCHDOG_S = 300
HOSTILE = '</script><script>window.hit = 1</script><img src=x onerror="window.hit = 1">\u202e\x1b[31m\x00'


class Block(nn.Module):
    """As a decoder has it: a norm, two products, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(torch.sigmoid(self.up(self.norm(x))))
        return x + down


class Gated(nn.Module):
    """Modules in modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(x)


def as_sigmoid(proto: Any) -> None:
    """A transform that plants a fault: tanh of the forward is another function."""
    for node in proto.graph.node:
        if node.op_type == "Tanh":
            node.op_type = "Sigmoid"


as_sigmoid.cache_key = "as_sigmoid"  # type: ignore[attr-defined]


def told(*arguments: str | Path) -> Any:
    """What the program says as JSON."""
    said = subprocess.run([find_binary(), *map(str, arguments), "--json"], capture_output=True, text=True, check=False)
    assert said.stdout, said.stderr
    return json.loads(said.stdout)


def page_of(run: Path, page: Path) -> Path:
    subprocess.run([find_binary(), "report", run, "-o", page], check=True, capture_output=True, timeout=WATCHDOG_S)
    return page


@functools.cache
def examined(folder: Path) -> Path:
    """A run with a planted fault, of which `rust-ort blame` has said who it is."""
    torch.manual_seed(0)
    blamed = rust_ort.blame(Gated(), torch.randn(5, 16), options={"transforms": [as_sigmoid]}, folder=folder)
    assert blamed.culprit is not None and blamed.culprit["name"] == "tanh", str(blamed)
    assert blamed.folder is not None
    return blamed.folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.fixture
def planted(daemon: object, folder: Path) -> Path:
    """Made once: each test has a daemon of its own, which a dump does not need."""
    return examined(folder)


@pytest.fixture
def page(planted: Path, folder: Path) -> Path:
    made = folder / "report.html"
    return made if made.exists() else page_of(planted, made)


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Browser]:
    if browser.program() is None:
        pytest.skip("skipped: no Chromium")
    with Browser(tmp_path / "profile") as opened:
        yield opened
        assert opened.errors == []


def data_of(page: Path) -> Any:
    text = page.read_text()
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])


def changed(page: Path, copy: Path, change: Callable[[Any], None]) -> Path:
    """The page with other data."""
    data = data_of(page)
    change(data)
    before, _, rest = page.read_text().partition('id="data">')
    text = json.dumps(data).replace("<", "\\u003c")
    copy.write_text(before + 'id="data">' + text + "</script>" + rest.partition("</script>")[2])
    return copy


def put(chromium: Browser, term: str, value: str) -> None:
    """Types a term of the tolerance."""
    field = f"document.getElementById('number-{term}')"
    chromium.run(f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('input')); true")


def test_the_card_names_the_planted_node_and_nothing_is_asked_for(chromium: Browser, page: Path, planted: Path) -> None:
    chromium.open(page)
    assert chromium.run("document.getElementById('who').textContent") == "tanh"
    card = chromium.run("document.getElementById('culprit').innerText")
    assert "To blame" in card and "aten.tanh.default" in card and "test_report_page.py" in card
    assert "100 %" in card
    command = chromium.run("document.getElementById('command').textContent")
    assert command.startswith("rust-ort replay ") and str(planted) in command
    again = subprocess.run([find_binary(), *command.split()[1:]], capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "MISMATCH" in again.stdout, again.stdout + again.stderr
    assert "mismatch" in chromium.run("document.querySelector('#pairs tbody tr').innerText")
    for view in ("nodes", "graph", "tensors", "tolerance", "data"):
        chromium.click_on(f"#tab-{view}")
        chromium.frames()
        assert chromium.run(f"document.getElementById('view-{view}').innerText.length > 20")
    assert chromium.requests == ["about:blank", page.as_uri()] or chromium.requests == [page.as_uri()]


def test_a_clean_run_blames_nobody(chromium: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with rust_ort.dump("clean", folder=tmp_path):
        compiled = torch.compile(Gated(), backend="rust_ort", options={"compare": "nodes"})
        compiled(torch.randn(5, 16)).sum().backward()
    chromium.open(page_of(tmp_path / "clean", tmp_path / "clean.html"))
    assert "As right as eager" in chromium.run("document.getElementById('verdict').innerText")
    assert "Nobody is to blame" in chromium.run("document.getElementById('culprit').innerText")


TOLERANCES = [
    {"atol": "1"},
    {"atol": "0.3"},
    {"atol": "0", "rtol": "0", "scale": "0"},
    {"rtol": "0.5"},
    {"scale": "0.9"},
    {"atol": "1e-7", "rtol": "1e-7"},
    {"atol": "0.05", "rtol": "0.4", "scale": "0.1"},
]


def test_sliders_judge_as_compare_does(chromium: Browser, page: Path, planted: Path) -> None:
    chromium.open(page, "tolerance")
    kinds = set()
    for terms in TOLERANCES:
        for term in ("atol", "rtol", "scale"):
            put(chromium, term, terms.get(term, ""))
        rows = chromium.run("[...document.querySelectorAll('#again tbody tr')].map((row) => ({...row.dataset}))")
        shown = {(row["call"], row["output"]): (row["verdict"], row["exact"]) for row in rows}
        flags = [f"--{term}={value}" for term, value in terms.items()]
        sets = told("compare", planted, *flags)["data_sets"]
        expected = {(of["path"], one["name"]): one["verdict"]["kind"] for of in sets for one in of["verdicts"]}
        assert shown.keys() == expected.keys()
        for place, (kind, is_exact) in shown.items():
            if is_exact == "yes":
                assert kind == expected[place], (terms, place)
            else:
                assert kind == "mismatch", "a bound says that at most"
            kinds.add((kind, is_exact))
        flags_shown = chromium.run("document.getElementById('compare-command').textContent")
        assert all(
            f"--{term} {float(value):g}" in flags_shown.replace("1e-7", "1e-07") for term, value in terms.items()
        )
    assert {("match", "yes"), ("mismatch", "yes")} <= kinds


def test_a_slider_moves_the_verdict(chromium: Browser, page: Path) -> None:
    chromium.open(page, "tolerance")
    count = "Number(document.querySelector('#judged [data-kind=mismatch]').dataset.n)"
    before = chromium.run(count)
    assert before > 0
    slider = "document.getElementById('slider-atol')"
    chromium.run(f"{slider}.value = {slider}.max; {slider}.dispatchEvent(new Event('input')); true")
    assert chromium.run(count) == 0
    assert "--atol 1000" in chromium.run("document.getElementById('compare-command').textContent")


def test_a_click_on_a_node_lights_up_its_counterparts(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    chromium.click_on("#to-graph")
    chromium.frames()
    stages = {stage["name"]: stage["boxes"] for stage in data_of(page)["graphs"][0]["parts"][0]["stages"]}
    lit = (
        "Object.fromEntries([...document.querySelectorAll('.canvas')]"
        ".map((pane) => [pane.dataset.stage, pane.dataset.lit.split(' ')]))"
    )
    selected = "document.getElementById('selected')?.textContent"
    assert chromium.run(selected) == "tanh"
    box = "document.querySelector('.canvas[data-stage=fx]').getBoundingClientRect()"
    x, y = chromium.run(f"[{box}.x, {box}.y]")
    met = {"tanh"}
    for row in range(16):
        before = chromium.run(selected)
        chromium.click(x + 150, y + 22 * row + 11)
        value = chromium.run(selected)
        if value == before:
            # A module, which is folded now: the next click opens it again.
            chromium.click(x + 150, y + 22 * row + 11)
        expected = {
            name: [box["name"] for box in boxes if value in box["of"]] or [""] for name, boxes in stages.items()
        }
        for name, names in chromium.run(lit).items():
            assert names == expected[name], (value, name)
        met.add(value)
    assert len(met) > 6, met
    # Each that was clicked is drawn in the accent's colour somewhere.
    assert chromium.run(
        "document.querySelector('.canvas canvas').getContext('2d').getImageData(0, 0, 50, 50).data.some((n) => n > 0)"
    )


def test_keys_go_through_what_differs(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    differ = [
        row["name"]
        for graph in data_of(page)["graphs"]
        for part in graph["parts"]
        for step in part["steps"]
        for row in step["table"]["nodes"]
        if row["mark"] in ("drifted", "mismatch", "failed")
    ]
    assert differ[0] == "tanh"
    for name in differ[:3]:
        chromium.key("n")
        assert chromium.run("document.getElementById('selected').textContent") == name
    chromium.key("p")
    assert chromium.run("document.getElementById('selected').textContent") == differ[min(2, len(differ) - 1) - 1]
    search = "document.querySelector('#view-nodes input[type=search]')"
    chromium.run(f"{search}.value = 'layer_norm'; {search}.dispatchEvent(new Event('input')); true")
    texts = chromium.run("[...document.querySelectorAll('#nodes-table tbody tr')].map((row) => row.innerText)")
    assert texts and all("norm" in text for text in texts)


def test_hostile_names_run_nothing_and_are_short(chromium: Browser, page: Path, tmp_path: Path) -> None:
    def hostile(data: Any) -> None:
        long = HOSTILE + "n" * 10_000
        data["name"] = data["path"] = long
        data["run"] = {"versions": {long: long}, "devices": [long], "program": long}
        data["culprit"].update(node=long, op=long, module=long, source=long, command=long, text=long)
        data["not_compared"] = [{"what": "output", "reason": long, "n": 1, "names": [long]}]
        data["missing"]["unread"] = [long]
        for graph in data["graphs"]:
            graph["name"] = long
            for part in graph["parts"]:
                for step in part["steps"]:
                    for row in [*step["outputs"], *step["table"]["nodes"]]:
                        row["name"] = row["role"] = row["op"] = row["module"] = row["source"] = row["reason"] = long
                for stage in part["stages"]:
                    for box in stage["boxes"]:
                        box.update(name=long, op=long, module=long, detail=long, of=[long])

    chromium.open(changed(page, tmp_path / "hostile.html", hostile))
    for view in ("summary", "nodes", "graph", "tensors", "tolerance", "data"):
        chromium.click_on(f"#tab-{view}")
        if view == "nodes":
            chromium.key("n")
        chromium.frames()
        text = chromium.run(f"document.getElementById('view-{view}').innerText")
        assert not set(text) & {"\u202e", "\x1b", "\x00"}, view
        if view != "data":
            assert "\\u{202e}" in text and "characters)" in text and "n" * 700 not in text, view
    assert chromium.run("window.hit === undefined && document.querySelectorAll('script').length === 2")
    assert chromium.run("document.querySelectorAll('img, iframe, object, link').length") == 0


def test_five_thousand_nodes_open(chromium: Browser, page: Path, tmp_path: Path) -> None:
    n = 5000

    def large(data: Any) -> None:
        for part in data["graphs"][0]["parts"]:
            for stage in part["stages"]:
                box = stage["boxes"][-1]
                stage["boxes"] = [
                    {**box, "name": f"v{at}", "of": [f"v{at}"], "module": f"layers.{at // 50}.{at // 10 % 5}"}
                    for at in range(n)
                ]
                stage["lines"] = [[at, at + 1] for at in range(n - 1)] + [[at, at + 400] for at in range(0, n - 400, 7)]
            for step in part["steps"]:
                row = step["table"]["nodes"][-1]
                step["table"]["nodes"] = [{**row, "index": at, "name": f"v{at}"} for at in range(n)]

    chromium.open(changed(page, tmp_path / "large.html", large))
    chromium.click_on("#tab-graph")
    chromium.run(
        "[...document.querySelectorAll('#view-graph button')].find((one) => one.textContent === 'Unfold all').click()"
    )
    chromium.frames()
    pane = "document.querySelector('.canvas[data-stage=fx]')"
    height = chromium.run(f"{pane}.scrollHeight")
    assert height > n * 22
    chromium.run(f"{pane}.scrollTop = {height}; true")
    chromium.frames()
    assert chromium.run(
        f"{pane}.querySelector('canvas').getContext('2d').getImageData(60, 10, 200, 200).data.some((n) => n > 0)"
    )
    chromium.click_on("#tab-nodes")
    assert chromium.run("document.querySelectorAll('#nodes-table tbody tr').length") < n, (
        "rows are made as they are asked for"
    )


def test_the_program_is_what_its_sources_give(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (APP / "node_modules").is_dir():
        pytest.skip("skipped: no npm packages (npm ci in src/cli/report/app)")
    subprocess.run(["npx", "tsc", "--noEmit"], cwd=APP, check=True, timeout=WATCHDOG_S)
    subprocess.run(["node", "build.mjs", tmp_path], cwd=APP, check=True, capture_output=True, timeout=WATCHDOG_S)
    built = sorted(os.listdir(tmp_path))
    assert built == ["app.css", "app.js", "app.policy"]
    for name in built:
        assert (tmp_path / name).read_bytes() == (APP.parent / name).read_bytes(), f"{name}: run npm run build in {APP}"

"""The client's end of a lane, against an executor played by a thread that maps the same memory."""

import ctypes
import mmap
import platform
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from conftest import wait_until

from rust_ort._native import LANES, Call, DeviceBlocks, Plan
from rust_ort.errors import ExecutorLost
from rust_ort.link import lanes as lanes_of_a_connection
from rust_ort.link import pool
from rust_ort.link.lanes import LANE_BYTES, Lane, Lanes
from rust_ort.memory.arena import Arena

HEADER_BYTES = 4096
LOCATIONS_OFFSET = 296
# u32 words of a lane: docs/design/protocol.md.
REQUEST, EXECUTOR_WAITING, REPLY, CLIENT_WAITING, RUNNING, STATUS, ERROR_KIND, ERROR_LEN = 0, 1, 16, 17, 32, 33, 34, 35
RUN_NS, NODE_LEN = 36, 38
FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
FUTEX_WAIT, FUTEX_WAKE = 0, 1


class Mapped:
    """Lanes as another process sees them."""

    def __init__(self, lanes: Lanes) -> None:
        self.map = mmap.mmap(lanes.memory.fd, lanes.memory.len_bytes)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def start(self, lane: Lane) -> int:
        return HEADER_BYTES + lane.index * LANE_BYTES

    def words(self, lane: Lane) -> memoryview:
        start = self.start(lane)
        return memoryview(self.map)[start : start + 256].cast("I")

    def futex(self, lane: Lane, word: int, operation: int, value: int) -> None:
        address = self.base + self.start(lane) + 4 * word
        call = ctypes.CDLL(None).syscall
        call(FUTEX, ctypes.c_void_p(address), operation, ctypes.c_uint32(value), None, None, 0)


class Peer:
    """Alive until told otherwise."""

    def __init__(self) -> None:
        self.dead = False
        self.asked = 0

    def check(self) -> None:
        self.asked += 1
        if self.dead:
            raise ExecutorLost("gone")


class Executor(threading.Thread):
    """Answers each request of a lane, delay_s after it came."""

    def __init__(
        self, mapped: Mapped, lane: Lane, delay_s: float = 0.0, answer: Callable[[], None] | None = None
    ) -> None:
        super().__init__(daemon=True)
        self.mapped, self.lane, self.delay_s, self.answer = mapped, lane, delay_s, answer
        self.stopped = False
        self.woke_client = 0
        self.start()

    def run(self) -> None:
        words = self.mapped.words(self.lane)
        while not self.stopped:
            if words[REQUEST] == words[REPLY]:
                time.sleep(0.0001)
                continue
            time.sleep(self.delay_s)
            if self.answer is not None:
                self.answer()
            words[REPLY] = words[REQUEST]
            if words[CLIENT_WAITING]:
                self.woke_client += 1
                self.mapped.futex(self.lane, REPLY, FUTEX_WAKE, 1)


@pytest.fixture
def lanes() -> Lanes:
    return Lanes(threads=1)


@pytest.fixture
def mapped(lanes: Lanes) -> Iterator[Mapped]:
    made = Mapped(lanes)
    yield made
    for lane in lanes.lanes:
        words = made.words(lane)
        words[REPLY] = words[REQUEST]


def a_call(n: int = 1) -> Call:
    """Of a plan of its own: n inputs of ten floats, none of them in the arena, and one output."""
    arena = Arena()
    plan = Plan([(1, (10,), "tensor", None, None)] * n, [(1, (10,), (1,), False)])
    return plan.gather(arena, arena.blocks, DeviceBlocks(), [torch.zeros(10)] * n, False)


def run(lane: Lane, peer: Peer | None = None) -> tuple[int, int, str, str] | None:
    call = a_call()
    lane.write(call, 1, 1, 0)
    return lane.run(call, peer or Peer())


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.25])
def test_a_call_is_answered_however_long_it_takes(lanes: Lanes, mapped: Mapped, delay_s: float) -> None:
    lane = lanes.take(Peer())
    executor = Executor(mapped, lane, delay_s)
    for _ in range(3):
        assert run(lane) is None
        assert lane.answered()
    assert mapped.words(lane)[CLIENT_WAITING] == 0
    executor.stopped = True


def test_a_long_wait_sleeps_and_looks_for_notices(lanes: Lanes, mapped: Mapped) -> None:
    lane = lanes.take(Peer())
    executor = Executor(mapped, lane, 0.35)
    peer = Peer()
    run(lane, peer)
    executor.stopped = True
    assert peer.asked >= 2
    assert executor.woke_client == 1


def test_other_threads_run_while_a_call_is_waited_for(lanes: Lanes, mapped: Mapped) -> None:
    lane = lanes.take(Peer())
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    executor = Executor(mapped, lane, 0.2)
    before = counted
    run(lane)
    assert counted > before + 100
    executor.stopped = True
    done.set()
    thread.join()


def test_the_sequence_number_wraps(lanes: Lanes, mapped: Mapped) -> None:
    words = mapped.words(lanes.lanes[5])
    words[REQUEST] = words[REPLY] = 0xFFFFFFFF
    lane = lanes.memory.lane(5)
    executor = Executor(mapped, lane)
    run(lane)
    executor.stopped = True
    assert (words[REQUEST], words[REPLY]) == (0, 0)


def test_a_sleeping_executor_is_woken(lanes: Lanes, mapped: Mapped) -> None:
    lane = lanes.take(Peer())
    words = mapped.words(lane)

    def sleep() -> None:
        words[EXECUTOR_WAITING] = 1
        mapped.futex(lane, REQUEST, FUTEX_WAIT, 0)
        words[REPLY] = words[REQUEST]

    thread = threading.Thread(target=sleep)
    thread.start()
    wait_until(lambda: words[EXECUTOR_WAITING] == 1, "the executor to sleep")
    time.sleep(0.05)
    run(lane)
    thread.join()


def test_a_lost_peer_ends_the_wait_and_the_lane_stays_taken(lanes: Lanes, mapped: Mapped) -> None:
    peer = Peer()
    peer.dead = True
    lane = lanes.take(Peer())
    with pytest.raises(ExecutorLost):
        run(lane, peer)
    assert not lane.answered()
    lanes.abandon(lane, "memory")
    assert lanes.in_flight() == ["memory"]
    taken = [lanes.take(peer) for _ in range(LANES - 1)]
    assert lane not in taken
    words = mapped.words(lane)
    words[REPLY] = words[REQUEST]
    assert lanes.in_flight() == []
    assert lanes.take(peer) is lane


def test_words_that_somebody_spoils_are_no_answer(lanes: Lanes, mapped: Mapped) -> None:
    lane = lanes.take(Peer())
    words = mapped.words(lane)
    spoilt = threading.Event()

    def spoil() -> None:
        while words[REQUEST] == words[REPLY]:
            time.sleep(0.0001)
        words[REPLY] = words[REQUEST] = 77
        spoilt.set()

    threading.Thread(target=spoil).start()
    peer = Peer()
    peer.dead = True
    with pytest.raises(ExecutorLost):
        run(lane, peer)
    assert spoilt.is_set() and not lane.answered()


def test_a_lane_is_waited_for_when_all_are_taken(lanes: Lanes) -> None:
    taken = [lanes.take(Peer()) for _ in range(LANES)]
    assert sorted(lane.index for lane in taken) == list(range(LANES))
    got: list[Lane] = []
    thread = threading.Thread(target=lambda: got.append(lanes.take(Peer())))
    thread.start()
    wait_until(lambda: lanes._waiters == 1, "the thread to wait")
    lanes.give(taken[17])
    thread.join(10)
    assert [lane.index for lane in got] == [17]
    dead = Peer()
    dead.dead = True
    with pytest.raises(ExecutorLost):
        lanes.take(dead)


def test_the_lane_given_back_last_is_taken_first(lanes: Lanes) -> None:
    first, second = lanes.take(Peer()), lanes.take(Peer())
    lanes.give(first)
    lanes.give(second)
    assert lanes.take(Peer()) is second


def test_descriptors_are_written_once_a_plan(lanes: Lanes, mapped: Mapped) -> None:
    lane = lanes.take(Peer())
    start = mapped.start(lane) + LOCATIONS_OFFSET + 16
    for call in (a_call(), a_call()):
        lane.write(call, 1, 1, 0)
        assert mapped.map[start : start + 16] == struct.pack("<BBHIq", 1, 1, 0, 0, 10)
        mapped.map[start] = 99
        lane.write(call, 2, 1, 0)
        assert mapped.map[start] == 99


def test_a_record_that_does_not_fit_is_refused(lanes: Lanes) -> None:
    lane = lanes.take(Peer())
    call = a_call(50_000)
    with pytest.raises(ValueError, match="split the graph into parts"):
        lane.write(call, 1, 1, 0)


def test_an_error_is_read_with_its_text(lanes: Lanes, mapped: Mapped) -> None:
    lane = lanes.take(Peer())
    words, end = mapped.words(lane), mapped.start(lane) + LANE_BYTES
    text, node = "feed é".encode(), "node_ü".encode()
    lengths = [len(text), 0]

    def fail() -> None:
        words[ERROR_KIND], words[STATUS] = 1, 7
        words[ERROR_LEN], words[NODE_LEN] = lengths
        mapped.map[end - 4096 : end - 4096 + len(text + node)] = text + node

    executor = Executor(mapped, lane, answer=fail)
    assert run(lane) == (1, 7, "feed é", "")
    lengths[1] = len(node)
    assert run(lane) == (1, 7, "feed é", "node_ü")
    lengths[1] = 1 << 30
    failure = run(lane)
    assert failure is not None and len(failure[3].encode()) <= 4096
    lengths[0] = 1 << 30
    failure = run(lane)
    assert failure is not None and len(failure[2]) <= 4096 and failure[3] == ""
    executor.stopped = True


@pytest.mark.parametrize(("run_ns", "threads"), [(10_000, 1), (10_000_000, 64)])
def test_a_call_is_polled_for_or_slept_through(run_ns: int, threads: int) -> None:
    seen = Mapped(lanes := Lanes(threads=threads))
    lane = lanes.take(Peer())
    words = seen.words(lane)

    def took() -> None:
        words[RUN_NS], words[RUN_NS + 1] = run_ns, 0

    executor = Executor(seen, lane, 0.001, answer=took)
    call = a_call()
    for _ in range(3):
        lane.write(call, 1, 1, 0)
        assert lane.run(call, Peer()) is None
    executor.stopped = True


@pytest.mark.parametrize(
    ("threads", "ranks", "spare"), [(4, "1", True), (8, "1", False), (2, "4", False), (1, "4", True)]
)
def test_a_rank_polls_only_where_its_own_cores_are_more_than_the_executors_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int, ranks: str, spare: bool
) -> None:
    monkeypatch.setattr(pool.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(pool.os, "cpu_count", lambda: 8)
    for name in pool.LOCAL_RANKS:
        monkeypatch.setenv(name, ranks)
    told: list[bool] = []
    made = lanes_of_a_connection.LaneMemory

    def watched(n_lanes: int, lane_bytes: int, spare_core: bool) -> lanes_of_a_connection.LaneMemory:
        told.append(spare_core)
        return made(n_lanes, lane_bytes, spare_core)

    monkeypatch.setattr(lanes_of_a_connection, "LaneMemory", watched)
    Lanes(threads=threads)
    assert told == [spare]

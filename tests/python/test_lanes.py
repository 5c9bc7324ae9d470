"""The client's end of a lane, against an executor played by a thread."""

import struct
import threading
import time
from collections.abc import Iterator

import pytest
from conftest import wait_until

from rust_ort.errors import ClientError, ExecutorLost
from rust_ort.link import futex
from rust_ort.link.lanes import (
    CLIENT_WAITING,
    ERROR_KIND,
    ERROR_LEN,
    EXECUTOR_WAITING,
    LANE_BYTES,
    LOCATIONS_OFFSET,
    N_LANES,
    NODE_LEN,
    REPLY,
    REQUEST,
    STATUS,
    Lane,
    Lanes,
    descriptor,
)


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

    def __init__(self, lane: Lane, delay_s: float = 0.0, status: int = 0) -> None:
        super().__init__(daemon=True)
        self.lane, self.delay_s, self.status = lane, delay_s, status
        self.stopped = False
        self.woke_client = 0

    def run(self) -> None:
        words = self.lane.words
        while not self.stopped:
            if words[REQUEST] == words[REPLY]:
                time.sleep(0.0001)
                continue
            time.sleep(self.delay_s)
            words[STATUS] = self.status
            words[REPLY] = words[REQUEST]
            if words[CLIENT_WAITING]:
                self.woke_client += 1
                futex.wake(self.lane.reply_address)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes()
    yield made
    for lane in made.lanes:
        lane.words[REPLY] = lane.words[REQUEST]


def served(lane: Lane, delay_s: float = 0.0, status: int = 0) -> Executor:
    executor = Executor(lane, delay_s, status)
    executor.start()
    return executor


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.25])
def test_a_call_is_answered_however_long_it_takes(lanes: Lanes, delay_s: float) -> None:
    lane = lanes.take(Peer())
    executor = served(lane, delay_s)
    for _ in range(3):
        lane.publish()
        lane.wait(Peer())
        assert lane.answered()
        assert lane.status() == 0
    assert lane.words[CLIENT_WAITING] == 0
    executor.stopped = True


def test_a_long_wait_sleeps_and_looks_for_notices(lanes: Lanes) -> None:
    lane = lanes.take(Peer())
    executor = served(lane, 0.35)
    peer = Peer()
    lane.publish()
    lane.wait(peer)
    executor.stopped = True
    assert peer.asked >= 2
    assert executor.woke_client == 1


def test_the_sequence_number_wraps(lanes: Lanes) -> None:
    lane = lanes.take(Peer())
    lane.sequence = lane.words[REQUEST] = lane.words[REPLY] = 0xFFFFFFFF
    executor = served(lane)
    lane.publish()
    lane.wait(Peer())
    executor.stopped = True
    assert (lane.sequence, lane.words[REQUEST], lane.words[REPLY]) == (0, 0, 0)


def test_a_sleeping_executor_is_woken(lanes: Lanes) -> None:
    lane = lanes.take(Peer())
    woken = threading.Event()

    def sleep() -> None:
        lane.words[EXECUTOR_WAITING] = 1
        futex.wait(lane.request_address, 0, futex.Timespec(30, 0))
        woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    wait_until(lambda: lane.words[EXECUTOR_WAITING] == 1, "the executor to sleep")
    time.sleep(0.05)
    lane.publish()
    assert woken.wait(10)
    thread.join()


def test_a_lost_peer_ends_the_wait_and_the_lane_stays_taken(lanes: Lanes) -> None:
    peer = Peer()
    peer.dead = True
    lane = lanes.take(Peer())
    lane.publish()
    with pytest.raises(ExecutorLost):
        lane.wait(peer)
    lanes.abandon(lane, "memory")
    assert lanes.in_flight() == ["memory"]
    taken = [lanes.take(peer) for _ in range(N_LANES - 1)]
    assert lane not in taken
    lane.words[REPLY] = lane.words[REQUEST]
    assert lanes.in_flight() == []
    assert lanes.take(peer) is lane


def test_a_lane_is_waited_for_when_all_are_taken(lanes: Lanes) -> None:
    taken = [lanes.take(Peer()) for _ in range(N_LANES)]
    assert sorted(lane.index for lane in taken) == list(range(N_LANES))
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


def test_descriptors_are_written_once_a_plan(lanes: Lanes) -> None:
    lane = lanes.take(Peer())
    descriptors = descriptor(1, (10,))
    plan, pack = object(), struct.Struct("<Q")
    start = lane.offset + LOCATIONS_OFFSET + 8
    for other in (plan, object()):
        lane.write(other, descriptors, pack, [1 << 40], (1, 1, 1, 0, 0, len(descriptors), 0))
        assert lane.map[start : start + 16] == struct.pack("<BBHIq", 1, 1, 0, 0, 10)
        lane.map[start] = 99
        lane.write(other, descriptors, pack, [1 << 40], (2, 1, 1, 0, 0, len(descriptors), 0))
        assert lane.map[start] == 99


def test_a_record_that_does_not_fit_is_refused(lanes: Lanes) -> None:
    lane = lanes.take(Peer())
    with pytest.raises(ClientError, match="a lane holds 1044480"):
        lane.write(object(), bytes(1 << 20), struct.Struct("<Q"), [0], (1, 1, 1, 0, 0, 1 << 20, 0))


def test_an_error_is_read_with_its_text(lanes: Lanes) -> None:
    lane = lanes.take(Peer())
    text = "feed é".encode()
    lane.words[ERROR_KIND], lane.words[STATUS], lane.words[ERROR_LEN] = 1, 7, len(text)
    start = lane.offset + LANE_BYTES - 4096
    lane.map[start : start + len(text)] = text
    assert lane.error() == (1, 7, "feed é", "")
    node = "node_ü".encode()
    lane.words[NODE_LEN] = len(node)
    lane.map[start + len(text) : start + len(text) + len(node)] = node
    assert lane.error() == (1, 7, "feed é", "node_ü")
    lane.words[NODE_LEN] = 1 << 30
    assert len(lane.error()[3].encode()) <= 4096
    lane.words[ERROR_LEN] = 1 << 30
    assert len(lane.error()[2]) <= 4096 and lane.error()[3] == ""

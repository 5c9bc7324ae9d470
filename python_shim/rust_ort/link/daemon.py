"""Where the daemon is, and how one is started."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import socket
import stat
import struct
import subprocess
import sysconfig
import time
from pathlib import Path

from rust_ort.errors import ClientError, DaemonLost

START_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0


def socket_path(given: str | None) -> str:
    """As given, else RUST_ORT_SOCKET, else in $XDG_RUNTIME_DIR, else in /tmp.

    Errors: ClientError when it is relative or too long.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    default = f"{runtime}/rust-ort/v1.sock" if runtime else f"/tmp/rust-ort-{os.getuid()}/v1.sock"
    path = given or os.environ.get("RUST_ORT_SOCKET") or default
    if not os.path.isabs(path):
        raise ClientError(f"socket {path!r}: expected an absolute path; correct the option socket or RUST_ORT_SOCKET")
    len_bytes = len(os.fsencode(path))
    if len_bytes > 107:
        raise ClientError(
            f"socket {path!r}: {len_bytes} bytes, expected at most 107; set the option socket to a shorter path"
        )
    return path


def find_binary() -> str:
    """Path of `rust-ort`: RUST_ORT_BINARY, else beside this Python's scripts, else on PATH. Errors: ClientError."""
    given = os.environ.get("RUST_ORT_BINARY")
    if given:
        if not os.access(given, os.X_OK) or not os.path.isfile(given):
            raise ClientError(f"RUST_ORT_BINARY={given!r}: expected an executable file; correct or unset it")
        return given
    beside = os.path.join(sysconfig.get_path("scripts"), "rust-ort")
    found = beside if os.access(beside, os.X_OK) else shutil.which("rust-ort")
    if found is None:
        raise ClientError(
            f"the program rust-ort is neither at {beside} nor on PATH; run `pip install rust-ort` "
            "or set RUST_ORT_BINARY"
        )
    return found


def find_onnxruntime() -> str:
    """Path of the onnxruntime library of the installed wheel, which is not imported. Errors: ClientError."""
    given = os.environ.get("RUST_ORT_ONNXRUNTIME")
    if given:
        if not os.path.isfile(given):
            raise ClientError(f"RUST_ORT_ONNXRUNTIME={given!r}: no such file; correct or unset it")
        return os.path.abspath(given)
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found = sorted(Path(folder, "capi").glob("libonnxruntime.so*"))
        if found:
            return str(found[0].absolute())
    raise ClientError(
        "no onnxruntime is installed for this Python; run `pip install onnxruntime`, "
        "or set RUST_ORT_ONNXRUNTIME to a libonnxruntime.so"
    )


def connect(path: str, *, starts: bool = True) -> socket.socket:
    """A connection to the daemon. starts: one is started when none answers.

    Errors: ClientError when the socket's folder is not ours alone or the program is missing, DaemonLost when no daemon
    comes up, or none answers.
    """
    connection = _try_connect(path)
    if connection is not None:
        return connection
    if not starts:
        raise DaemonLost(f"no daemon answers on {path}")
    said = _start(path)
    end = time.monotonic() + CONNECT_TIMEOUT_S
    while time.monotonic() < end:
        connection = _try_connect(path)
        if connection is not None:
            return connection
        time.sleep(0.02)
    raise DaemonLost(f"the daemon was started but does not answer on {path}{said}", log=_newest_log())


def answers(path: str) -> bool:
    """Whether a daemon listens on the socket; none is started. Errors: ClientError when it is not this user's."""
    connection = _try_connect(path)
    if connection is not None:
        connection.close()
    return connection is not None


def is_held(path: str) -> bool:
    """Whether a daemon of the socket lives: it holds the lock beside it until its process has ended."""
    try:
        lock = os.open(f"{path}.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _try_connect(path: str) -> socket.socket | None:
    folder = os.path.dirname(path)
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ClientError(
            f"socket folder {folder}: expected a folder of uid {os.getuid()} with mode 0700, got uid {found.st_uid} "
            f"and mode {stat.filemode(found.st_mode)}; remove it, or set RUST_ORT_SOCKET to a path in a folder of yours"
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid = struct.unpack("3i", credentials)[1]
    if uid != os.getuid():
        connection.close()
        raise ClientError(f"socket {path}: the daemon there runs as uid {uid}, expected {os.getuid()}")
    return connection


def _start(path: str) -> str:
    """Starts a daemon and waits until it serves; of two started at once one serves. What it said."""
    command = [find_binary(), "serve", "--background", "--socket", path]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DaemonLost(
            f"`{' '.join(command)}` did not come up in {START_TIMEOUT_S:.0f} s; run `rust-ort doctor`",
            log=_newest_log(),
        ) from None
    except OSError as error:
        raise ClientError(f"cannot run {command[0]}: {error}; set RUST_ORT_BINARY") from None
    said = (ended.stderr + ended.stdout).decode("utf-8", "replace").strip()
    if ended.returncode != 0:
        raise DaemonLost(
            f"`{' '.join(command)}` ended with {ended.returncode}: {said or 'no message'}; run `rust-ort doctor`",
            log=_newest_log(),
        )
    return f": {said}" if said else ""


def _newest_log() -> str:
    home = os.path.join(os.path.expanduser("~"), ".local", "state")
    default = os.path.join(os.environ.get("XDG_STATE_HOME") or home, "rust-ort")
    folder = Path(os.environ.get("RUST_ORT_STATE_DIR") or default, "log")
    try:
        logs = sorted(folder.glob("daemon-*.log"), key=lambda entry: entry.stat().st_mtime)
    except OSError:
        logs = []
    return str(logs[-1]) if logs else ""

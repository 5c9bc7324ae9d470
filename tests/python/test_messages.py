"""A mistake is answered by a message that says what to do, and nothing is lost."""

import ctypes
import os
import shutil
import socket
import struct
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import warm

import rust_ort
from rust_ort import errors


def compile_add(**options: object):
    return torch.compile(lambda x: x + 1.5, backend="rust_ort", options=options)


def test_wrong_option_names_the_nearest() -> None:
    with pytest.raises(Exception, match="compare_every") as caught:
        compile_add(compare_evry=2)(torch.ones(3))
    assert "compare_evry" in str(caught.value)


def test_missing_onnxruntime_says_what_to_install(daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUST_ORT_ONNXRUNTIME", str(tmp_path / "libonnxruntime.so"))
    with pytest.raises(Exception, match="onnxruntime") as caught:
        compile_add(threads=1)(torch.ones(3))
    assert str(tmp_path) in str(caught.value)


def test_full_disk_under_dumps_loses_the_dump_not_the_call(daemon, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=256k") != 0:
        pytest.skip("mounting a small tmpfs needs CAP_SYS_ADMIN")
    try:
        model = torch.nn.Linear(256, 256)
        x = torch.randn(64, 256)
        compiled = torch.compile(model, backend="rust_ort")
        with (
            pytest.warns(RuntimeWarning, match="No space left"),
            torch.no_grad(),
            rust_ort.dump("full", folder=folder, clean=True, calls="all"),
        ):
            for _ in range(4):
                torch.testing.assert_close(compiled(x), model(x))
        for path in folder.rglob("*.pb"):
            assert path.stat().st_size > 0, path
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
    finally:
        libc.umount2(os.fsencode(folder), 2)


def test_socket_directory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    folder = Path(tempfile.mkdtemp(prefix="rust-ort-foreign-"))
    try:
        os.chown(folder, 12345, 12345)
        monkeypatch.setenv("RUST_ORT_SOCKET", str(folder / "v1.sock"))
        with pytest.raises(Exception, match=r"12345|another user|owned") as caught:
            compile_add()(torch.ones(3))
        assert str(folder) in str(caught.value)
    finally:
        shutil.rmtree(folder)


def test_stale_socket_is_replaced(daemon) -> None:
    daemon.client().status()
    daemon.stop()
    path = Path(os.environ["RUST_ORT_SOCKET"])
    path.unlink(missing_ok=True)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with torch.no_grad():
        torch.testing.assert_close(compile_add()(torch.ones(3)), torch.full((3,), 2.5))


def test_incompatible_daemon_is_named(daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.mkdir(mode=0o700)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path / "v1.sock"))
    server.listen()
    script = (
        "import torch\n"
        "try:\n"
        "    torch.compile(lambda x: x + 1, backend='rust_ort')(torch.ones(3))\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    env = dict(os.environ, RUST_ORT_SOCKET=str(path / "v1.sock"))
    client = warm.start([sys.executable, "-c", script], env=env)
    server.settimeout(120)
    connection, _ = server.accept()
    connection.recv(65536)
    connection.sendall(struct.pack("<4sHHII", b"RORT", 99, 2, 0, 0))
    out, _ = client.communicate(timeout=120)
    connection.close()
    server.close()
    assert "99" in out and "1" in out and "rust-ort stop" in out, out


def test_fake_tensor_is_refused(daemon) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    compiled = compile_add()
    compiled(torch.ones(3))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(3))
    with pytest.raises(Exception, match="FakeTensor"):
        compiled(fake)


def test_resize_of_an_output_is_refused_or_works(daemon) -> None:
    with torch.no_grad():
        output = compile_add()(torch.ones(3))
    try:
        output.resize_(1000)
    except RuntimeError as error:
        assert "not resizable" in str(error)
    output.resize_(2)
    assert output.tolist() == [2.5, 2.5]


def test_errors_have_three_kinds() -> None:
    assert issubclass(errors.OptionError, errors.ClientError)
    assert issubclass(errors.ExecutorLost, errors.DaemonFault)
    for kind in (errors.ClientError, errors.DaemonFault, errors.NumericMismatch):
        assert issubclass(kind, errors.RustOrtError)
        others = {errors.ClientError, errors.DaemonFault, errors.NumericMismatch} - {kind}
        assert not any(issubclass(kind, other) for other in others)

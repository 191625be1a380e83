"""Damage, strangers and interruptions: load never returns something wrong, save never tears."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensoralg import IncompleteSymmetricTensor, SymmetricTensor, load, save
from tensoralg.errors import PersistenceError, TensorAlgError

TENSOR = SymmetricTensor(np.arange(1.0, 11.0), 3, 3)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "tensor.npz"
    save(path, TENSOR)
    return path


def rewrite(path: Path, **changes: Any) -> None:
    """Write the archive again with arrays replaced, or left out where the change is None."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays.update(changes)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def test_the_file_is_a_plain_npz_without_pickles(saved: Path) -> None:
    with np.load(saved, allow_pickle=False) as archive:
        assert str(archive["format"]) == "tensoralg"
        assert int(archive["version"]) == 1
        assert str(archive["kind"]) == "SymmetricTensor"
        np.testing.assert_array_equal(archive["entries"], TENSOR.entries)


def test_truncation_at_many_lengths(saved: Path) -> None:
    content = saved.read_bytes()
    for length in [*range(0, len(content), 7), *range(len(content) - 60, len(content))]:
        saved.write_bytes(content[:length])
        with pytest.raises(PersistenceError, match=r"tensor\.npz"):
            load(saved)


def test_a_flipped_byte_is_noticed_or_harmless(saved: Path) -> None:
    content = saved.read_bytes()
    noticed = 0
    for place in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        saved.write_bytes(bytes(damaged))
        try:
            back = load(saved)
        except PersistenceError:
            noticed += 1
        else:  # a byte that carries nothing: a date, for instance
            np.testing.assert_array_equal(back.entries, TENSOR.entries)
    assert noticed > len(content) / 5 / 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": np.array(2)}, "format version 2.*reads version 1.*newer"),
        ({"version": np.array(0)}, "format version 0"),
        ({"version": None}, "'version' is missing"),
        ({"kind": np.array("MatrixProduct")}, "unknown type 'MatrixProduct'.*SymmetricTensor"),
        ({"kind": None}, "'kind' is missing"),
        ({"entries": None}, "'entries' is missing"),
        ({"order": None}, "'order' is missing"),
        ({"format": None}, "not written by tensoralg"),
        ({"format": np.array("other")}, "not written by tensoralg"),
        ({"order": np.array(4)}, "no valid SymmetricTensor.*shape"),
        ({"order": np.array([1, 2])}, "no valid SymmetricTensor"),
        ({"version": np.array("one")}, "corrupted"),
        ({"entries": np.full(10, np.nan)}, "no valid SymmetricTensor.*finite"),
        ({"kind": np.array("IncompleteSymmetricTensor")}, "'indices' is missing"),
        ({"version": np.array(1.5)}, r"format version 1\.5"),
        ({"order": np.array(3.7)}, "no valid SymmetricTensor.*order must be an integer"),
        ({"order": np.array(10**6), "dimension": np.array(10**6)}, "too many"),
    ],
)
def test_strange_files_are_explained(saved: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(saved, **changes)
    with pytest.raises(PersistenceError, match=rf"tensor\.npz.*{message}") as caught:
        load(saved)
    assert isinstance(caught.value, TensorAlgError)
    assert isinstance(caught.value, ValueError)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "stranger.npz"
    for content in (b"", b"hello", b"PK\x03\x04", bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(PersistenceError, match="not a tensoralg"):
            load(path)
    np.save(tmp_path / "plain.npy", np.ones(3))
    with pytest.raises(PersistenceError, match=r"plain\.npy"):
        load(tmp_path / "plain.npy")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "not arrays")
    with pytest.raises(PersistenceError, match="not written by tensoralg"):
        load(path)


def test_compressed_members_are_refused_unread(saved: Path) -> None:
    # a hundred kilobytes that unpack to a hundred megabytes
    with np.load(saved) as archive:
        arrays = dict(archive)
    np.savez_compressed(saved, **{**arrays, "entries": np.zeros(10**7)})
    with pytest.raises(PersistenceError, match="is compressed"):
        load(saved)


def test_pickles_are_never_run(saved: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(saved) + ".ran",)

    bomb = np.empty(10, dtype=object)
    bomb[:] = Bomb()
    rewrite(saved, entries=bomb)
    with pytest.raises(PersistenceError, match="allow_pickle"):
        load(saved)
    assert not Path(str(saved) + ".ran").exists()


def test_missing_files_stay_file_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "none" / "tensor.npz", TENSOR)
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


def test_other_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="ndarray; accepted are SymmetricTensor"):
        save(tmp_path / "x", np.ones(3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["savez", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_save_keeps_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(np if step == "savez" else os, step, fail)
    with pytest.raises(type(error)):
        save(saved, TENSOR * 2)
    monkeypatch.undo()
    np.testing.assert_array_equal(load(saved).entries, TENSOR.entries)
    assert [path.name for path in saved.parent.iterdir()] == ["tensor.npz"]


def test_names_links_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 60)  # no ending is added, near the limit of file names
    save(str(path), TENSOR)
    save(path, TENSOR * 2)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert load(str(path))[0, 0, 0] == 2.0
    link = tmp_path / "link"
    link.symlink_to(path)
    save(link, TENSOR * 3)
    assert link.is_symlink()
    assert load(path)[0, 0, 0] == 3.0
    assert path.stat().st_mode & 0o400


def test_empty_tensor(tmp_path: Path) -> None:
    save(tmp_path / "empty", IncompleteSymmetricTensor([], [], 3, 5))
    assert load(tmp_path / "empty").indices.shape == (0, 3)

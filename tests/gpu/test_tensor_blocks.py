"""TensorBlocks: every source gives the same slabs, and none is resident as a whole."""

import itertools
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.gpu.tensor_blocks import TensorBlocks, as_blocks


class Store:
    """The least that is asked of an array-like store: no fancy indices."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, where: Any) -> Any:
        assert all(isinstance(w, int | slice) for w in where)
        return self.array[where]


def total(blocks: TensorBlocks) -> float:
    """Sum of squares, slab by slab."""
    return sum(float((slab.astype(float) ** 2).sum()) for _, _, slab in blocks.slabs())


def sources(array: Any, folder: Path) -> dict[str, Any]:
    path = folder / "tensor.bin"
    array.tofile(path)
    return {
        "ndarray": array,
        "fortran": np.asfortranarray(array),
        "memmap": np.memmap(path, dtype=array.dtype, mode="r", shape=array.shape),
        "copy-on-write": np.memmap(path, dtype=array.dtype, mode="c", shape=array.shape),
        "dask": dask.array.from_array(array, chunks=(3, 2, 4)),
        "store": Store(array),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_all_sources_read_alike(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    array = (100 * rng.standard_normal((8, 5, 4))).astype(dtype)
    wanted = "float32" if dtype == "float32" else "float64"
    for name, source in sources(array, tmp_path).items():
        blocks = TensorBlocks(source)
        assert blocks.dtype == wanted, name
        parts = list(blocks.slabs(3 * 20 * blocks.dtype.itemsize))
        assert [p[0] for p in parts] == [0, 3, 6], name
        assert [p[1] for p in parts] == [3, 6, 8], name
        np.testing.assert_array_equal(np.concatenate([p[2] for p in parts]), array)
        assert all(p[2].dtype == wanted and p[2].flags.c_contiguous for p in parts)
        assert total(blocks) == pytest.approx(float((array.astype(float) ** 2).sum()))


@given(st.integers(1, 9), st.integers(1, 400))
def test_slabs_cover_the_first_mode_once(rows: int, max_bytes: int) -> None:
    array = np.arange(rows * 6.0).reshape(rows, 2, 3)
    parts = list(as_blocks(array).slabs(max_bytes))
    assert parts[0][0] == 0
    assert parts[-1][1] == rows
    assert all(one[1] == two[0] for one, two in itertools.pairwise(parts))
    assert all(len(slab) == stop - start for start, stop, slab in parts)
    assert all(slab.nbytes <= max(max_bytes, 48) for *_, slab in parts)


def test_changes_of_a_copy_on_write_map_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "tensor.bin"
    np.zeros((4, 3, 2)).tofile(path)
    mapped = np.memmap(path, dtype=np.float64, mode="c", shape=(4, 3, 2))
    mapped[1, 1, 1] = 5.0
    assert total(TensorBlocks(mapped)) == 25.0
    assert total(TensorBlocks(mapped)) == 25.0


@pytest.mark.parametrize("exponent", [-1000, -140, 140, 1060])
def test_scaling_is_exact(exponent: int) -> None:
    array = np.ldexp(np.array([[1.5, -1.25]]), -exponent)
    scaled = TensorBlocks(array).scaled(exponent)
    assert next(scaled.slabs())[2].tolist() == [[1.5, -1.25]]


@pytest.mark.parametrize("source", [[1.0, 2.0], "tensor", None])
def test_other_sources_are_refused(source: Any) -> None:
    with pytest.raises(TypeError, match="shape, dtype and slices"):
        TensorBlocks(source)


def test_complex_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="complex"):
        TensorBlocks(np.zeros((2, 2), dtype=complex))


@pytest.mark.skipif(not hasattr(resource, "getrusage"), reason="no memory counter")
def test_a_mapped_file_is_never_resident_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with open(path, "wb") as file:
        file.truncate(400 * 2**20)
    code = f"""
        import resource
        import numpy as np
        from tensoralg.gpu.tensor_blocks import TensorBlocks
        from tensoralg.solvers.polyadic_residual import squared_norm
        shape = (100, 1024, 1024)
        mapped = np.memmap({str(path)!r}, dtype=np.float32, mode="r", shape=shape)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert squared_norm(TensorBlocks(mapped)) == 0.0
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 220 * 2**10  # a slab, its copy and a block in float64

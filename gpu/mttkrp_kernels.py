"""Compiled contractions of dense tensors, imported on first use: numba is slow to load.

All read the tensor once, in the order of its memory, and keep their sums in vector registers;
nothing is packed or copied. Arrays are flat and contiguous. How many vectors a rank takes is
the length of a tuple argument, so that numba compiles one version for each.
"""

from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from tensoralg.gpu.vector_code import VectorCode

__all__ = ["contract_inner", "contract_last", "contract_sums"]


FloatArray = NDArray[np.floating]
Count = tuple[int, ...]

# how far ahead lines of rows are fetched, in tiles
_TILES_AHEAD = 2


@intrinsic(prefer_literal=True)
def _multiply_rows(
    typing: Any, c: Any, to: Any, a: Any, at: Any, row: Any, b: Any, depth: Any, rank: Any,
    rows: Any, vectors: Any,
) -> Any:  # fmt: skip
    """c[i, s] = sum_k a[i, k] b[k, s]: elements of a are spread over vectors of ranks s.

    b is padded with zeros to whole vectors; `row` is the distance of the rows of a.
    """
    n_rows, n_vectors = len(rows), len(vectors)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        c, to, a, at, row, b, depth, rank = arguments[:8]
        code = VectorCode(context, builder, signature.args[0].dtype)
        target = code.start_of(signature.args[0], c, to)
        source = code.start_of(signature.args[2], a, at)
        factor = code.start_of(signature.args[5], b, code.integer(0))
        starts = [code.at(source, builder.mul(code.integer(i), row)) for i in range(n_rows)]
        width = code.integer(n_vectors * code.lanes)
        # each round fetches its share of the lines of a tile further on
        share, ahead = code.integer(n_rows), builder.mul(row, code.integer(_TILES_AHEAD * n_rows))
        with code.loop(depth, [code.zero] * (n_rows * n_vectors)) as loop:
            further = builder.add(builder.mul(loop.index, share), ahead)
            code.prefetch(code.at(source, further))
            line = code.at(factor, builder.mul(loop.index, width))
            columns = [
                code.load(code.at(line, code.integer(v * code.lanes))) for v in range(n_vectors)
            ]
            sums = []
            for i, start in enumerate(starts):
                x = code.load_scalar(code.at(start, loop.index))
                for v, column in enumerate(columns):
                    old = loop.values[i * n_vectors + v]
                    sums.append(code.fused_multiply_add(x, column, old))
            loop.advance(sums)
        rank = code.opaque(rank)
        for i in range(n_rows):
            line = code.at(target, builder.mul(code.integer(i), rank))
            _store_ranks(code, line, loop.values[i * n_vectors : (i + 1) * n_vectors], rank)
        return context.get_dummy_value()

    return _void(c, to, a, at, row, b, depth, rank, rows, vectors), generate


@intrinsic(prefer_literal=True)
def _multiply_columns(
    typing: Any, c: Any, to: Any, a: Any, at: Any, column: Any, later: Any, left: Any, width: Any,
    b: Any, begin: Any, depth: Any, rank: Any, first: Any, chunk: Any,
) -> Any:  # fmt: skip
    """c[j, first + s] = sum_k a[k, j] b[k, s] for one vector of j and a chunk of ranks s.

    `column` is the distance of a[k, j] and a[k + 1, j]; b holds the chunk only, row by row, and
    `begin` is where its first row lies. Meanwhile what is read later is fetched in the order of
    memory, a vector in every round: from `later` on, `left` vectors and then whole rows of `width`
    vectors.
    """
    n_ranks = len(chunk)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        c, to, a, at, column, later, left, width, b, begin, depth, rank, first = arguments[:13]
        code = VectorCode(context, builder, signature.args[0].dtype)
        target = code.at(code.start_of(signature.args[0], c, to), first)
        source = code.start_of(signature.args[2], a, at)
        fetched = code.start_of(signature.args[2], a, later)
        factor = code.start_of(signature.args[8], b, begin)
        one, lanes = code.integer(1), code.integer(code.lanes)
        jump = builder.sub(column, builder.mul(builder.sub(width, one), lanes))
        initial = [code.zero] * n_ranks + [code.integer(0), left]
        with code.loop(depth, initial) as loop:
            *sums, place, left = loop.values
            code.prefetch(code.at(fetched, place))
            ends = builder.icmp_signed("<=", left, one)
            place = builder.add(place, builder.select(ends, jump, lanes))
            left = builder.select(ends, width, builder.sub(left, one))
            x = code.load(code.at(source, builder.mul(loop.index, column)))
            line = code.at(factor, builder.mul(loop.index, code.integer(n_ranks)))
            for s, old in enumerate(sums):
                y = code.load_scalar(code.at(line, code.integer(s)))
                sums[s] = code.fused_multiply_add(y, x, old)
            loop.advance([*sums, place, left])
        _store_columns(code, target, loop.values[:n_ranks], rank, first)
        return context.get_dummy_value()

    kinds = (c, to, a, at, column, later, left, width, b, begin, depth, rank, first, chunk)
    return _void(*kinds), generate


@intrinsic(prefer_literal=True)
def _multiply_ranks(
    typing: Any, c: Any, to: Any, a: Any, at: Any, row: Any, step: Any, b: Any, depth: Any,
    rank: Any, first: Any, rows: Any, vectors: Any,
) -> Any:  # fmt: skip
    """c[i, s] = sum_k a[i, k, s] b[k, s] for some rows i and vectors of ranks s from `first` on.

    `row` and `step` are the distances along i and k.
    """
    n_rows, n_vectors = len(rows), len(vectors)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        c, to, a, at, row, step, b, depth, rank, first = arguments[:10]
        code = VectorCode(context, builder, signature.args[0].dtype)
        target = code.at(code.start_of(signature.args[0], c, to), first)
        source = code.at(code.start_of(signature.args[2], a, at), first)
        factor = code.start_of(signature.args[6], b, first)
        left = builder.sub(rank, first)
        starts = [code.at(source, builder.mul(code.integer(i), row)) for i in range(n_rows)]
        last = code.below(builder.sub(left, code.integer((n_vectors - 1) * code.lanes)))

        def read(line: Any, v: int) -> Any:
            address = code.at(line, code.integer(v * code.lanes))
            return code.load(address) if v < n_vectors - 1 else code.masked_load(address, last)

        with code.loop(depth, [code.zero] * (n_rows * n_vectors)) as loop:
            line = code.at(factor, builder.mul(loop.index, rank))
            columns = [read(line, v) for v in range(n_vectors)]
            offset = builder.mul(loop.index, step)
            sums = []
            for i, start in enumerate(starts):
                for v, column in enumerate(columns):
                    x = read(code.at(start, offset), v)
                    old = loop.values[i * n_vectors + v]
                    sums.append(code.fused_multiply_add(x, column, old))
            loop.advance(sums)
        rank, left = code.opaque(rank), code.opaque(left)
        for i in range(n_rows):
            line = code.at(target, builder.mul(code.integer(i), rank))
            _store_ranks(code, line, loop.values[i * n_vectors : (i + 1) * n_vectors], left)
        return context.get_dummy_value()

    return _void(c, to, a, at, row, step, b, depth, rank, first, rows, vectors), generate


def _void(*arguments: Any) -> Any:
    """Signature of a procedure: indices are machine integers, arrays and tuples stay."""
    return types.void(
        *(types.intp if isinstance(kind, types.Integer) else kind for kind in arguments)
    )


def _store_columns(code: VectorCode, target: Any, values: list[Any], rank: Any, first: Any) -> None:
    """Write sums, one vector of columns for each rank, as rows of ranks."""
    rank, first = code.opaque(rank), code.opaque(first)
    for s in range(0, len(values), code.lanes):
        square = values[s : s + code.lanes]
        square += [code.undefined] * (code.lanes - len(square))
        left = code.builder.sub(code.builder.sub(rank, first), code.integer(s))
        # lanes past the chunk belong to the next one
        within = code.below(code.integer(len(values) - s))
        mask = code.builder.and_(code.below(left), within)
        for j, value in enumerate(code.transpose(square)):
            row = code.builder.mul(code.integer(j), rank)
            line = code.at(target, code.builder.add(row, code.integer(s)))
            code.masked_store(value, line, mask)


def _store_ranks(code: VectorCode, line: Any, values: list[Any], rank: Any) -> None:
    """Write the sums of one row; only the last vector can be partly empty."""
    for v, value in enumerate(values):
        left = code.builder.sub(rank, code.integer(v * code.lanes))
        code.masked_store(value, code.at(line, code.integer(v * code.lanes)), code.below(left))


@numba.njit(cache=True, nogil=True)
def contract_last(
    tensor: FloatArray,
    factor: FloatArray,
    out: FloatArray,
    begin: int,
    end: int,
    size: int,
    rank: int,
    rows: Count,
    vectors: Count,
) -> None:
    """Rows begin .. end - 1 of out (left, rank) = tensor (left, size) times a padded factor.

    There must be at least ``len(rows)`` rows: the last tile may overlap its neighbour.
    """
    step = len(rows)
    for i in range(begin, end, step):
        i = min(i, end - step)
        _multiply_rows(out, i * rank, tensor, i * size, size, factor, size, rank, rows, vectors)


@numba.njit(cache=True, nogil=True)
def contract_inner(
    tensor: FloatArray,
    factor: FloatArray,
    out: FloatArray,
    lefts: tuple[int, int],
    columns: tuple[int, int],
    shape: tuple[int, int],
    rank: int,
    lanes: int,
    width: int,
    chunk: Count,
) -> None:
    """Sum tensor (left, size, right) times factor over the middle: out (left, right, rank).

    Computes the given ranges of left and right; the latter spans at least one vector. The
    factor comes as chunks (number of chunks, size, len(chunk)), padded with zeros. Planes wider
    than `width` are cut into strips, which should fit a cache: the next one is fetched while
    one is multiplied.
    """
    size, right = shape
    start, stop = columns
    for i in range(lefts[0], lefts[1]):
        plane, target = i * size * right, i * right * rank
        for begin in range(start, stop, width):
            end = min(begin + width, stop)
            vectors = (end - begin + lanes - 1) // lanes
            # the strip after the last one is the first of the next plane
            strip = plane + begin + width if end < stop else plane + size * right + start
            for tile in range(vectors):
                # the last vector overlaps its neighbour
                j = min(begin + tile * lanes, stop - lanes)
                row = tile * size // vectors
                done = tile * size - row * vectors
                later = strip + row * right + done * lanes
                for first in range(0, rank, len(chunk)):
                    _multiply_columns(
                        out, target + j * rank, tensor, plane + j, right,
                        later, vectors - done, vectors,
                        factor, first * size, size, rank, first, chunk,
                    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def contract_sums(
    partial: FloatArray,
    factor: FloatArray,
    out: FloatArray,
    lefts: tuple[int, int],
    shape: tuple[int, int],
    rank: int,
    lanes: int,
    rows: Count,
    vectors: Count,
) -> None:
    """Sum partial (left, k, right, rank) * factor (k, rank) over k: out (left, right, rank).

    Tiles run along `right`, or along `left` where right is 1; there must be ``len(rows)`` of
    them at least.
    """
    size, right = shape
    step = len(rows)
    for first in range(0, rank, len(vectors) * lanes):
        if right == 1:
            for i in range(lefts[0], lefts[1], step):
                i = min(i, lefts[1] - step)
                _multiply_ranks(
                    out, i * rank, partial, i * size * rank, size * rank, rank,
                    factor, size, rank, first, rows, vectors,
                )  # fmt: skip
            continue
        for i in range(lefts[0], lefts[1]):
            for j in range(0, right, step):
                j = min(j, right - step)
                _multiply_ranks(
                    out, (i * right + j) * rank, partial, (i * size * right + j) * rank, rank,
                    right * rank, factor, size, rank, first, rows, vectors,
                )  # fmt: skip

"""Compiled loops over observed cells and rows of factors, imported on first use.

numba is slow to load.
"""

import numpy as np
from numba import njit

__all__ = ["add_cells", "descend", "descend_alike", "model_products", "squared_error"]

_loops = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})


@_loops
def model_products(rows, values, stacked):  # type: ignore[no-untyped-def]
    """Inner product of the cells and a model, and the model's square over them."""
    order, count = rows.shape
    rank = stacked.shape[1]
    inner = 0.0
    square = 0.0
    for e in range(count):
        model = 0.0
        for s in range(rank):
            product = 1.0
            for k in range(order):
                product *= stacked[rows[k, e], s]
            model += product
        inner += values[e] * model
        square += model * model
    return inner, square


@_loops
def squared_error(rows, values, stacked):  # type: ignore[no-untyped-def]
    """Sum over the cells, with the factors' rows below each other."""
    order, count = rows.shape
    rank = stacked.shape[1]
    total = 0.0
    product = np.empty(rank)
    for e in range(count):
        product[:] = stacked[rows[0, e]]
        for k in range(1, order):
            row = stacked[rows[k, e]]
            for s in range(rank):
                product[s] *= row[s]
        model = 0.0
        for s in range(rank):
            model += product[s]
        total += (values[e] - model) ** 2
    return total


@_loops
def add_cells(rows, values, stacked, mode, first, systems, right):  # type: ignore[no-untyped-def]
    """Add every cell to the system of its row, where that is among those wanted."""
    order, count = rows.shape
    wanted, rank = right.shape
    product = np.empty(rank)
    for e in range(count):
        i = rows[mode, e] - first
        if i < 0 or i >= wanted:
            continue
        product[:] = 1.0
        for k in range(order):
            if k != mode:
                row = stacked[rows[k, e]]
                for s in range(rank):
                    product[s] *= row[s]
        for s in range(rank):
            left = product[s]
            line = systems[i, s]
            for t in range(rank):
                line[t] += left * product[t]
        value = values[e]
        for s in range(rank):
            right[i, s] += value * product[s]


@_loops
def descend(systems, right, result, passes, tol):  # type: ignore[no-untyped-def]
    """Coordinate descent over nonnegative rows, each with its own system."""
    count, rank = right.shape
    for i in range(count):
        row = result[i]
        for _ in range(passes):
            largest = 0.0
            scale = 0.0
            for s in range(rank):
                line = systems[i, s]
                gradient = right[i, s]
                for t in range(rank):
                    gradient -= line[t] * row[t]
                new = max(row[s] + gradient / line[s], 0.0)
                largest = max(largest, abs(new - row[s]))
                scale = max(scale, new)
                row[s] = new
            if largest <= tol * scale:
                break


@njit(cache=True, nogil=True)
def descend_alike(gram, product, factor, passes, tol):  # type: ignore[no-untyped-def]
    """Coordinate descent, row by row: rows do not meet, so each stops when it is done."""
    rank = len(gram)
    for i in range(len(factor)):
        row = factor[i]
        for _ in range(passes):
            largest = 0.0
            scale = 0.0
            for s in range(rank):
                if gram[s, s] <= 0.0:
                    continue
                total = product[i, s]
                for k in range(rank):
                    total -= row[k] * gram[k, s]
                new = max(row[s] + total / gram[s, s], 0.0)
                largest = max(largest, abs(new - row[s]))
                scale = max(scale, new)
                row[s] = new
            if largest <= tol * scale:
                break

"""What quantization is compared with: the papers' procedures, written out plainly.

`paper_comq` keeps the calibration rows and moves one entry after the other, our reading of the
update of arXiv:2403.07134; `gptq_codes` follows arXiv:2210.17323 in activation order, with the
Cholesky factor of the inverse. Neither shares code with `tensoralg.solvers` but the grid.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tensoralg.nn import Calibrator
from tensoralg.solvers.quantization_grid import QuantizationGrid, minmax_grid

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int8]
Factor = tuple[npt.NDArray[np.intp], Array]

BLOCK, DAMPING = 128, 0.01  # of the authors' program
SHRINKS, NORM = 20, 2.4  # its search of a grid: ranges from 100% to 20% (80 there), a power


def paper_comq(
    weight: Array, rows: Array, grid: QuantizationGrid, sweeps: int, order: str = "greedy"
) -> Codes:
    """Coordinate steps with the calibration rows, all output channels at once, on a fixed grid.

    Every channel moves its entries by falling ``|x_i| |w_i|`` ("greedy"), or all channels the
    same ones, by the norm of that over the channels ("shared"), from the unrounded weight on.
    """
    (low, high), squares = grid.limits, np.sum(rows * rows, axis=0)
    steps, zeros = grid.spread(grid.scale), grid.spread(grid.zero_point)
    sizes = np.sqrt(squares) * np.abs(weight)
    shared = order == "shared"
    if shared:
        sizes = np.sqrt(np.sum(sizes**2, axis=0, keepdims=True))
    path = np.argsort(-sizes, axis=1, kind="stable")
    codes, values = grid.nearest(weight), weight.copy()
    columns = np.ascontiguousarray(rows.T)
    residual = (weight - values) @ columns  # a row per channel
    channels = np.arange(len(weight))
    for _ in range(sweeps):
        for place in path.T:  # one entry of every channel
            at = (channels, np.broadcast_to(place, channels.shape))
            old, step, zero, size = values[at], steps[at], zeros[at], squares[at[1]]
            x = columns[place[0]] if shared else columns[place]
            products = residual @ x if shared else np.einsum("kn,kn->k", residual, x)
            target = old + products / np.where(size > 0.0, size, 1.0)
            target = np.where(size > 0.0, target, weight[at])
            code = np.clip(np.round(target / step) + zero, low, high)
            new = step * (code - zero)
            residual -= (new - old)[:, None] * x
            codes[at], values[at] = code, new
    return codes


def gptq_factor(gram: Array) -> Factor:
    """Columns in activation order and the Cholesky factor of the damped inverse."""
    hessian, columns = gram.copy(), len(gram)
    dead = np.diagonal(hessian) == 0
    hessian[dead, dead] = 1.0
    hessian[np.diag_indices(columns)] += DAMPING * np.mean(np.diagonal(hessian))
    path = np.argsort(-np.diagonal(hessian), kind="stable")
    inverse = np.linalg.inv(hessian[np.ix_(path, path)])
    return path, np.linalg.cholesky((inverse + inverse.T) / 2).T


def gptq_codes(weight: Array, factor: Factor, grid: QuantizationGrid) -> Codes:
    """GPTQ: round column by column, let the later ones make up for the errors."""
    (path, upper), (low, high), columns = factor, grid.limits, weight.shape[1]
    left = np.ascontiguousarray(weight[:, path].T)
    steps = np.ascontiguousarray(grid.spread(grid.scale)[:, path].T)
    zeros = np.ascontiguousarray(grid.spread(grid.zero_point)[:, path].T)
    codes = np.empty(left.shape, dtype=np.int8)
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        errors = np.empty((stop - start, len(weight)))
        for i in range(start, stop):
            codes[i] = code = np.clip(np.round(left[i] / steps[i]) + zeros[i], low, high)
            errors[i - start] = error = (left[i] - steps[i] * (code - zeros[i])) / upper[i, i]
            left[i + 1 : stop] -= upper[i, i + 1 : stop, None] * error
        left[stop:] -= upper[start:stop, stop:].T @ errors
    unsorted = np.empty(weight.shape, dtype=np.int8)
    unsorted[:, path] = codes.T
    return unsorted


def searched_grid(weight: Array, bits: int, *, symmetric: bool) -> QuantizationGrid:
    """GPTQ's own search of a grid: the range that rounds each row with the least |error|^2.4."""
    widest = minmax_grid(weight, bits, symmetric=symmetric)
    low, high = widest.limits
    best = np.full(len(weight), np.inf)
    scale, zero = widest.scale.copy(), widest.zero_point.copy()
    for k in range(SHRINKS):
        part = 1.0 - 0.8 * k / SHRINKS
        steps = part * widest.scale
        least = np.minimum(weight.min(axis=1, keepdims=True), 0.0) * part
        zeros = (
            widest.zero_point if symmetric else np.clip(low - np.round(least / steps), low, high)
        )
        values = steps * (np.clip(np.round(weight / steps) + zeros, low, high) - zeros)
        error = np.sum(np.abs(values - weight) ** NORM, axis=1)
        better = error < best
        best[better] = error[better]
        scale[better], zero[better] = steps[better], zeros[better]
    return QuantizationGrid(
        scale, zero.astype(np.int32), bits, weight.shape[1], max(weight.shape[1], 1)
    )


def output_error(weight: Array, value: Array, gram: Array) -> float:
    """``|X (W - Q)^T|_F / |X W^T|_F``."""
    off = weight - value
    whole = float(np.sum((weight @ gram) * weight))
    return float(np.sqrt(max(float(np.sum((off @ gram) * off)), 0.0) / whole)) if whole else 0.0


def rounded_by_peer(
    weight: Array, gram: Array, bits: int, method: str, *, symmetric: bool
) -> Array:
    """Round a weight: "nearest", "gptq" (range of the weights) or "gptq-searched"."""
    searched = method == "gptq-searched"
    grid = (searched_grid if searched else minmax_grid)(weight, bits, symmetric=symmetric)
    codes = (
        grid.nearest(weight) if method == "nearest" else gptq_codes(weight, gptq_factor(gram), grid)
    )
    values: Array = grid.dequantize(codes)
    return values


def quantize_by_peer(
    model: nn.Module, calibrator: Calibrator, bits: int, method: str, *, symmetric: bool
) -> nn.Module:
    """Round every linear layer and convolution that the calibrator saw; weights stay dense."""
    for name in calibrator.seen:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        weight = layer.weight.detach().double().flatten(1).numpy()
        grams = calibrator.sums(name).gram.numpy()  # one for each group of a convolution
        parts = [
            rounded_by_peer(part, gram, bits, method, symmetric=symmetric)
            for part, gram in zip(np.split(weight, len(grams)), grams, strict=True)
        ]
        with torch.no_grad():
            values = torch.from_numpy(np.concatenate(parts))
            layer.weight.copy_(values.view_as(layer.weight))
    return model

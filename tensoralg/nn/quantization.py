"""Quantization of a trained model from a calibrator's Gram matrices, in place."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from tensoralg.nn.calibrator import Calibrator
from tensoralg.nn.encoder_shortcuts import leave_shortcuts
from tensoralg.nn.grid_options import GridOptions
from tensoralg.nn.input_moments import InputMoments
from tensoralg.nn.packed_weight import PackedWeight
from tensoralg.nn.progress import tracked
from tensoralg.nn.quantization_report import UNSEEN, QuantizationReport, QuantizationRow
from tensoralg.nn.quantization_units import (
    Choice,
    QuantizationUnit,
    checked_bits,
    chosen_units,
    find_units,
    model_bytes,
    packed_layer,
    replace_modules,
)
from tensoralg.nn.quantized_train import quantized_train
from tensoralg.nn.sequential_inputs import MatchedInputs
from tensoralg.nn.tt_linear import TTLinear
from tensoralg.nn.weight_quantization import (
    FittedWeight,
    fit_table,
    fit_tied,
    fit_weight,
)
from tensoralg.nn.weight_train import computing_weight
from tensoralg.solvers.activation_aware_factorization import activation_aware_factorization
from tensoralg.solvers.gram_coordinate_descent import CodesStart, EntryOrder
from tensoralg.solvers.quantization_grid import ScaleKind

__all__ = ["quantize", "quantize_unit"]


def quantize(
    model: nn.Module,
    calibrator: Calibrator,
    bits: Choice | Mapping[str, Choice],
    *,
    sweeps: int = 4,
    init: CodesStart = "gptq",
    scale: ScaleKind = "channel",
    group_size: int | None = None,
    order: EntryOrder = "greedy",
    symmetric: bool = False,
    correct_bias: bool = True,
    include: str | Iterable[str] = "*",
    exclude: str | Iterable[str] = (),
    data: Iterable[Any] | None = None,
    progress: bool = False,
) -> QuantizationReport:
    """Replace a model's layers by ones with packed integer weights, in place.

    Each weight W becomes a matrix Q on a grid of ``2**bits`` values that changes the outputs of
    the calibration data least, by coordinate descent in their Gram matrix (`comq`). Linear layers
    become `QuantizedLinear`, convolutions `QuantizedConvolution`, embeddings `QuantizedEmbedding`;
    a `TTLinear` keeps its train, with every core quantized.

    Parameters
    ----------
    model : Module
        Changed in place. It may be a copy of the one that the calibrator listened to.
    calibrator : Calibrator
        With data; it stops listening.
    bits : int, pair of int, None, or a mapping of str to these
        2 to 8, for all layers or by patterns of their names, the first that fits; layers without
        one stay, as do those with None. A pair is bits and rank: a linear layer is then factorised
        first, in the metric of its outputs, and becomes a `QuantizedTTLinear` of two cores.
        `allocate_bits` makes such a mapping.
    sweeps, init, scale, group_size, order, symmetric
        As for `comq`; grids are asymmetric by default. One scale for a layer is one for each
        group of a convolution and for each core of a train.
    correct_bias : bool, default True
        Whether a layer's bias makes up for the mean error of its outputs; the codes are then
        fitted to what is left, by the centred Gram matrix.
    include, exclude : str or iterable of str, optional
        Patterns of names of layers to quantize, and to leave.
    data : iterable of batches, optional
        For inputs from the already quantized model: layer after layer, in the order of their
        calls, both models are run on all batches up to it, and the codes are fitted so that the
        outputs of the float model come out. Takes two passes for each of the layers with
        different inputs, and one more. Must be iterable more than once; batches as for
        `Calibrator.run`.
    progress : bool, default False
        Whether to show a bar on the standard error stream.

    Returns
    -------
    QuantizationReport
        Errors, bytes and seconds of every layer; printing it shows a table. ``report.model`` is
        the model, a new object only where it is a single layer.

    Warns
    -----
    UserWarning
        A layer never saw data; it is rounded by its weight's own error, and named.

    Raises
    ------
    ValueError
        Wrong options, bits for no layer of the model or no layer left to quantize, a calibrator
        that saw no data, or a weight that is not finite. The model is then as it was.
    ShapeError
        The calibrator listened to other layers than the model has.

    References
    ----------
    .. [1] A. Zhang, Z. Yang, N. Wang, Y. Qi, J. Xin, X. Li, P. Yin, "COMQ: A backpropagation-free
       algorithm for post-training quantization", arXiv:2403.07134 (2024).

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> calibrator = Calibrator(model).run([torch.randn(64, 16)])
    >>> report = quantize(model, calibrator, 4)
    >>> type(model[0]).__name__, report.bytes_before, report.bytes_after
    ('QuantizedLinear', 2704, 644)
    """
    options = GridOptions(sweeps, init, scale, group_size, order, symmetric, correct_bias)
    if data is not None and iter(data) is data:
        raise ValueError("data must be iterable more than once, such as a list or a DataLoader")
    chosen, before = checked_bits(bits), model_bytes(model)
    units = find_units(model)
    quantized = chosen_units(units, calibrator, chosen, include, exclude)
    calibrator.close()
    for unit in quantized:
        computing_weight(f"the weight of {unit.name!r}", unit.weight)
    if data is not None and not calibrator.seen:
        calibrator.run(data)
    if quantized and not calibrator.seen:
        raise ValueError("the calibrator saw no data; run the model while it listens")
    matched = None
    if data is not None:
        matched = MatchedInputs(model, calibrator, data)
        places = {name: k for k, name in enumerate(calibrator.seen)}
        quantized.sort(key=lambda unit: places.get(unit.name, -1))
    rows: dict[str, QuantizationRow] = {}
    new: dict[int, nn.Module] = {}
    try:
        for unit in tracked(quantized, "quantize", show=progress):
            made = quantize_unit(unit, calibrator, matched, options, rows)
            new |= made
            if matched is not None:  # what comes later is given this layer's new outputs
                replace_modules(model, made)
    except BaseException:
        olds = {id(new[id(old)]): old for u in units for old in u.layers.values() if id(old) in new}
        replace_modules(model, olds)
        raise
    replace_modules(model, new)
    result = new.get(id(model), model)
    leave_shortcuts(result)
    report = _report(units, rows, before, result)
    if report.unseen:
        names = ", ".join(report.unseen)
        text = f"layers that {UNSEEN} were rounded by their weights' own errors: {names}"
        warnings.warn(text, UserWarning, stacklevel=2)
    return report


def _report(
    units: Sequence[QuantizationUnit],
    rows: Mapping[str, QuantizationRow],
    bytes_before: int,
    model: nn.Module,
) -> QuantizationReport:
    """Put together what became of all layers."""
    listed = tuple(
        rows.get(name) or _staying(name, layer, unit.reason)
        for unit in units
        for name, layer in unit.layers.items()
    )
    return QuantizationReport(listed, bytes_before, model_bytes(model), model)


def _staying(name: str, layer: nn.Module, reason: str) -> QuantizationRow:
    """Tell of a layer that was not replaced."""
    size = model_bytes(layer)
    return QuantizationRow(name, type(layer).__name__, None, None, None, size, size, 0.0, reason)


def quantize_unit(
    unit: QuantizationUnit,
    calibrator: Calibrator,
    matched: MatchedInputs | None,
    options: GridOptions,
    rows: dict[str, QuantizationRow],
) -> dict[int, nn.Module]:
    """Quantize layers with one weight.

    Parameters
    ----------
    unit : QuantizationUnit
        The layers, with bits.
    calibrator : Calibrator
        That saw data.
    matched : MatchedInputs or None
        Of sequential quantization.
    options : GridOptions
        How.
    rows : dict of str to QuantizationRow
        What became of each layer is put here.

    Returns
    -------
    dict of int to Module
        The new layers by the ids of the old ones.
    """
    start = time.perf_counter()
    assert unit.bits is not None
    name, layer = next(iter(unit.layers.items()))
    size = unit.weight.numel() * unit.weight.element_size()
    if isinstance(layer, TTLinear) or unit.rank is not None:
        moments = _moments(name, calibrator, matched)
        if isinstance(layer, TTLinear):
            size = sum(core.numel() * core.element_size() for core in layer.cores)
            made, fitting = quantized_train(layer, moments, unit.bits, options)
        else:
            factors = _factorised(layer, moments, unit.rank, options)
            made, fitting = quantized_train(factors, moments, unit.bits, options, unit.weight)
        seconds = time.perf_counter() - start
        notes = (UNSEEN if not calibrator.rows(name) else "", f"ranks {made.ranks[1:-1]}")
        note = "; ".join(filter(None, notes))
        errors, sizes = (fitting.error, fitting.nearest_error), (size, made.size_bytes)
        kind = type(layer).__name__
        rows[name] = QuantizationRow(name, kind, unit.bits, *errors, *sizes, seconds, note)
        return {id(layer): made}
    fitted = _fit(unit, calibrator, matched, options)
    coded = fitted[0].coded
    assert coded is not None
    packed = PackedWeight.of(coded).to(unit.weight.dtype)
    seconds = time.perf_counter() - start
    new: dict[int, nn.Module] = {}
    for (name, layer), fit in zip(unit.layers.items(), fitted, strict=True):
        bias = getattr(layer, "bias", None)
        if bias is not None and fit.bias_change is not None:
            bias = _moved(bias, fit.bias_change)
        new[id(layer)] = packed_layer(layer, packed, bias)
        note = "" if calibrator.rows(name) else UNSEEN
        first = name == unit.name
        if not first:
            note = "; ".join(filter(None, (note, f"has the weight of {unit.name}")))
        rows[name] = QuantizationRow(
            name,
            type(layer).__name__,
            unit.bits,
            fit.error,
            fit.nearest_error,
            size if first else 0,
            packed.size_bytes if first else 0,
            seconds if first else 0.0,
            note,
        )
    return new


def _factorised(
    layer: nn.Module, moments: InputMoments, rank: int | None, options: GridOptions
) -> TTLinear:
    """Write a linear layer as a product of two factors, best for its outputs."""
    assert isinstance(layer, nn.Linear)
    centring = layer.bias is not None and options.correct_bias and moments.rows > 0
    weight = layer.weight.detach().double()
    gram = (moments.centred() if centring else moments).gram[0].to(weight.device)
    factors = activation_aware_factorization(weight, gram, rank=rank)
    sizes, has_bias = (layer.in_features, layer.out_features), layer.bias is not None
    made = TTLinear(*sizes, rank=1, in_shape=1, out_shape=1, bias=has_bias).to(layer.weight)
    made.replace_cores([factors.right.mT[None], factors.left.mT[:, :, None]])
    if layer.bias is not None:
        made.bias = layer.bias
    return made.train(layer.training)


def _moments(name: str, calibrator: Calibrator, matched: MatchedInputs | None) -> InputMoments:
    """Return the moments of a layer's inputs: from the quantized model where it is run along."""
    if matched is not None and calibrator.rows(name):
        return matched.moments(name)
    return InputMoments.of(calibrator.sums(name))


def _fit(
    unit: QuantizationUnit,
    calibrator: Calibrator,
    matched: MatchedInputs | None,
    options: GridOptions,
) -> Sequence[FittedWeight]:
    """Find one weight's codes and what they do to each of its layers."""
    assert unit.bits is not None
    weight = computing_weight(unit.name, unit.weight).flatten(1)
    options = replace(options, stored=unit.weight.dtype)  # errors are those of what is stored
    if unit.is_tied:
        inputs = [
            calibrator.counts(name)
            if isinstance(layer, nn.Embedding)
            else InputMoments.of(calibrator.sums(name))
            for name, layer in unit.layers.items()
        ]
        biases = [getattr(layer, "bias", None) is not None for layer in unit.layers.values()]
        return fit_tied(weight, inputs, unit.bits, options, biases=biases)
    ((name, layer),) = unit.layers.items()
    if isinstance(layer, nn.Embedding):
        return [fit_table(weight, calibrator.counts(name), unit.bits, options)]
    moments = _moments(name, calibrator, matched)
    has_bias = getattr(layer, "bias", None) is not None
    return [fit_weight(weight, moments, unit.bits, options, bias=has_bias)]


def _moved(bias: Tensor, change: Tensor) -> Tensor:
    """Add to a bias, which keeps its dtype and whether it needs a gradient."""
    moved = (bias.detach().double() + change.to(bias.device)).to(bias.dtype)
    return moved.requires_grad_(bias.requires_grad)

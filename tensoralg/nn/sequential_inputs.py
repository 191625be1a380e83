"""Inputs of a layer in a partly quantized model beside those in the float model."""

import copy
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.nn.calibrator import Calibrator
from tensoralg.nn.input_moments import InputMoments
from tensoralg.nn.input_statistics import input_rows, no_sums
from tensoralg.nn.layer_listening import fitting_mask, remove_hooks
from tensoralg.nn.module_modes import evaluating

__all__ = ["MatchedInputs"]


class _Enough(BaseException):
    """The layer was called as often as it is in one pass; no program's own handler stops this."""


class _Capture:
    """A forward hook that keeps a layer's inputs in one pass of a model and then ends the pass."""

    def __init__(self, name: str, calibrator: Calibrator, calls: int) -> None:
        self.name, self.calibrator, self.calls = name, calibrator, calls
        self.inputs: list[tuple[Tensor, Tensor | None]] = []

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Keep the input."""
        x = args[0] if args else kwargs["input"]
        keep = fitting_mask(self.calibrator.present_mask, self.name, layer, x)
        self.inputs.append((x.detach(), keep))
        if len(self.inputs) == self.calls:
            raise _Enough


class MatchedInputs:
    """Run a model, as far as it is quantized, beside a float copy of it.

    Parameters
    ----------
    model : Module
        Still of floats; a copy is kept.
    calibrator : Calibrator
        That saw data: it knows which layers are given the same tensor.
    data : iterable of batches
        As for `Calibrator.run`, iterable more than once.

    Notes
    -----
    Each pass ends at the layer in question; the inputs of one batch are in memory at a time.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> data = [torch.ones(3, 2)]
    >>> matched = MatchedInputs(model, Calibrator(model).run(data), data)
    >>> with torch.no_grad():
    ...     _ = model[0].weight.zero_(), model[0].bias.zero_()
    >>> moments = matched.moments("1")
    >>> bool(moments.gram.any()), bool(moments.wanted.any())
    (False, True)
    """

    def __init__(self, model: nn.Module, calibrator: Calibrator, data: Iterable[Any]) -> None:
        self._model, self._float = model, copy.deepcopy(model)
        self._calibrator, self._data = calibrator, data
        self._stages = {name: stage for stage in calibrator.stages for name in stage}
        self._calls = self._most_calls()
        self._recent: tuple[tuple[str, ...], InputMoments] | None = None

    def moments(self, name: str) -> InputMoments:
        """Return the moments of a layer's inputs in both models.

        Parameters
        ----------
        name : str
            The layer's name.

        Returns
        -------
        InputMoments
            Kept for the next layers that are given the same tensor.

        Raises
        ------
        ValueError
            An input has NaN or infinite entries; the layer is named.
        """
        stage = self._stages[name]
        if self._recent is None or self._recent[0] != stage:
            self._recent = stage, self._collect(stage[0])
        return self._recent[1]

    @torch.no_grad()
    def _most_calls(self) -> Counter[str]:
        """Count how often layers are called in one pass; of all batches the most."""
        calls: Counter[str] = Counter()
        most: Counter[str] = Counter()
        handles = [
            self._float.get_submodule(name).register_forward_hook(
                lambda *_, name=name: calls.update([name])
            )
            for name in {stage[0] for stage in self._stages.values()}
        ]
        try:
            with evaluating(self._float):
                for batch in self._data:
                    self._calibrator.run_batch(self._float, batch)
                    most |= calls
                    calls.clear()
        finally:
            remove_hooks(handles)
        return most

    @torch.no_grad()
    def _collect(self, name: str) -> InputMoments:
        """Go through all batches."""
        layer = self._float.get_submodule(name)
        zeros = no_sums(layer, next(self._float.parameters()).device)
        grams = [zeros.gram.clone() for _ in range(3)]
        totals, rows = [zeros.total.clone() for _ in range(2)], 0
        with evaluating(self._float), evaluating(self._model):
            for batch in self._data:
                wanted = self._inputs(self._float, name, batch, self._calls[name])
                given = self._inputs(self._model, name, batch, len(wanted))
                for (x, keep), (y, other) in zip(wanted, given, strict=True):
                    pairs = zip(
                        input_rows(layer, x, keep), input_rows(layer, y, other), strict=True
                    )
                    for one, two in pairs:
                        a, b = one.to(zeros.gram), two.to(zeros.gram)
                        for gram, left, right in zip(grams, (b, a, b), (b, a, a), strict=True):
                            gram += left.mT @ right
                        totals[0] += b.sum(dim=1)
                        totals[1] += a.sum(dim=1)
                        rows += a.shape[1]
        if not all(bool(torch.isfinite(gram).all()) for gram in grams):
            raise ValueError(f"the input of layer {name!r} has NaN or infinite entries")
        if not rows:
            raise ValueError(f"data has no rows for layer {name!r}, which the calibrator saw")
        means = [total / rows for total in totals]
        return InputMoments(grams[0], grams[1], grams[2], means[0], means[1], rows)

    def _inputs(
        self, model: nn.Module, name: str, batch: Any, calls: int
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Return what a layer is given in one pass, with the rows that count."""
        capture = _Capture(name, self._calibrator, calls)
        handle = model.get_submodule(name).register_forward_hook(capture, with_kwargs=True)
        try:
            self._calibrator.run_batch(model, batch)
        except _Enough:
            pass
        finally:
            handle.remove()
        return capture.inputs

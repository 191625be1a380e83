"""Listening to a model's layers: Gram matrices of their inputs, nothing that grows with them."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from tensoralg.nn.encoder_shortcuts import plain_tensors
from tensoralg.nn.evaluation import device_of
from tensoralg.nn.input_statistics import InputSums, input_sums, lookup_counts, no_sums
from tensoralg.nn.layer_listening import (
    Listener,
    RecentSums,
    as_patterns,
    fitting_mask,
    matches,
    remove_hooks,
)
from tensoralg.nn.module_modes import evaluating
from tensoralg.nn.progress import tracked
from tensoralg.nn.training_state import map_tensors
from tensoralg.nn.tt_linear import TTLinear

__all__ = ["CALIBRATED", "Calibrator"]

CALIBRATED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, TTLinear)


class Calibrator:
    """Collect what quantization needs to know of a model's inputs while the model runs.

    For every linear layer (dense or a `TTLinear`) and convolution that is the Gram matrix
    ``X^T X`` of the rows X that it multiplies with its weight, with their sums; for an embedding
    how often each row was looked up. The memory taken does not depend on how much data is seen.

    Parameters
    ----------
    model : Module
        It is listened to from now on, until `close`, the end of a ``with`` block, or `quantize`.
    forward : callable, optional
        ``forward(model, batch)`` runs the model on a batch of `run`. By default tuples and lists
        are taken apart, dicts give keywords, and all else is the one argument.
    mask : callable, optional
        ``mask(batch)`` tells which tokens of a batch of `run` count; see `masked`.
    include, exclude : str or iterable of str, optional
        Patterns of layers' names such as ``"encoder.*"``; a Gram matrix takes 8 n^2 bytes for n
        inputs, so what will not be quantized is better left out.

    Raises
    ------
    ValueError
        There is no layer to listen to; while the model runs, an input with NaN or infinite
        entries (the layer is named, and the input is not added), or a mask that does not fit.

    See Also
    --------
    quantize : uses it.

    Notes
    -----
    Products are computed and added up in float64. Layers that are given the same tensor one after
    the other (queries, keys and values) share the product. Calls in training mode count, too:
    with dropout the inputs are those that the layers then see. `run` switches to eval mode.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> with Calibrator(model) as calibrator:
    ...     _ = model(torch.ones(5, 3))
    >>> calibrator.rows("0"), calibrator.gram("0").tolist()[0]
    (5, [5.0, 5.0, 5.0])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        mask: Callable[[Any], Tensor | None] | None = None,
        include: str | Iterable[str] = "*",
        exclude: str | Iterable[str] = (),
    ) -> None:
        self._model, self._forward, self._batch_mask = model, forward, mask
        wanted, unwanted = as_patterns(include), as_patterns(exclude)
        self._layers: dict[str, nn.Module] = {
            name: layer
            for name, layer in model.named_modules()
            if type(layer) in CALIBRATED and matches(wanted, name) and not matches(unwanted, name)
        }
        if not self._layers:
            raise ValueError(
                "model has no linear layer, convolution or embedding to calibrate that include="
                f"{include!r} and exclude={exclude!r} leave"
            )
        self._mask: Tensor | None = None
        self._handles: list[Any] = []
        self._finalizer: Any = None
        self._recent: RecentSums | None = None
        self._found: dict[str, InputSums | Tensor] = {}
        self._leaders: dict[str, str] = {}
        self.listen()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers that are listened to, in the model's order."""
        return tuple(self._layers)

    @property
    def seen(self) -> tuple[str, ...]:
        """Names of the layers that were given data, in the order of their first calls."""
        return tuple(self._found)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Names of the layers that never saw data."""
        return tuple(name for name in self._layers if name not in self._found)

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names as `seen` has them; layers that are given one and the same tensor are together."""
        stages: dict[str, tuple[str, ...]] = {}
        for name in self._found:
            leader = self._leaders.get(name, name)
            if self.rows(leader) != self.rows(name):
                leader = name
            stages[leader] = (*stages.get(leader, ()), name)
        return tuple(stages.values())

    def rows(self, name: str) -> int:
        """Return how many rows (lookups, patches) a layer was given.

        Parameters
        ----------
        name : str
            The layer's name.

        Returns
        -------
        int
            The number; 0 where it never saw data.

        Raises
        ------
        KeyError
            No such layer.
        """
        self._layer(name)
        found = self._found.get(name)
        if found is None:
            return 0
        return found.rows if isinstance(found, InputSums) else int(found.sum())

    def gram(self, name: str) -> Tensor:
        """Return the Gram matrix of a layer's inputs.

        Parameters
        ----------
        name : str
            The layer's name.

        Returns
        -------
        Tensor of float64
            Shape (n, n); (groups, n, n) for a convolution with several groups, with n channels of
            a group times kernel positions; the diagonal, shape (num_embeddings,), for an embedding.
            Zeros where the layer never saw data.

        Raises
        ------
        KeyError
            No such layer.
        """
        layer = self._layer(name)
        if isinstance(layer, nn.Embedding):
            return self.counts(name).double()
        gram = self.sums(name).gram
        return gram[0] if gram.shape[0] == 1 else gram

    def sums(self, name: str) -> InputSums:
        """Return Gram matrices, sums and number of the rows of a linear layer or a convolution.

        Parameters
        ----------
        name : str
            The layer's name.

        Returns
        -------
        InputSums
            Zeros where the layer never saw data.

        Raises
        ------
        KeyError
            No such layer.
        """
        layer, found = self._layer(name), self._found.get(name)
        if isinstance(found, InputSums):
            return found
        if isinstance(layer, nn.Embedding):
            raise KeyError(f"{name!r} is an embedding: it has counts")
        return no_sums(layer, device_of(layer))

    def counts(self, name: str) -> Tensor:
        """Return how often each row of an embedding was looked up.

        Parameters
        ----------
        name : str
            The embedding's name.

        Returns
        -------
        Tensor of int64, shape (num_embeddings,)
            Zeros where it never saw data.

        Raises
        ------
        KeyError
            No such embedding.
        """
        layer, found = self._layer(name), self._found.get(name)
        if not isinstance(layer, nn.Embedding):
            raise KeyError(f"{name!r} is no embedding: it has sums")
        if isinstance(found, Tensor):
            return found
        return torch.zeros(layer.num_embeddings, dtype=torch.int64, device=device_of(layer))

    @property
    def grams(self) -> dict[str, Tensor]:
        """Gram matrices of the dense linear layers that saw data, as `tensorize` takes them."""
        return {n: self.gram(n) for n in self.seen if type(self._layers[n]) is nn.Linear}

    def run(self, data: Iterable[Any], *, progress: bool = False) -> Self:
        """Run the model on batches, in eval mode and without gradients.

        Parameters
        ----------
        data : iterable
            Batches as `forward` takes them; tensors are moved to the model's device.
        progress : bool, default False
            Whether to show a bar on the standard error stream.

        Returns
        -------
        Self
            This calibrator, listening or not as before.

        Raises
        ------
        ValueError
            As the class says.
        """
        listening = bool(self._handles)
        self.listen()
        try:
            with evaluating(self._model), torch.no_grad():
                for batch in tracked(data, "calibrate", show=progress):
                    self.run_batch(self._model, batch)
        finally:
            if not listening:
                self.close()
        return self

    def run_batch(self, model: nn.Module, batch: Any) -> None:
        """Run a model on one batch, with the mask that belongs to it.

        Parameters
        ----------
        model : Module
            The one that is listened to, or another that takes the same batches.
        batch : object
            As for `run`.
        """
        device = device_of(model)
        batch = map_tensors(lambda t: t.to(device, non_blocking=True), batch)
        mask = None if self._batch_mask is None else self._batch_mask(batch)
        handles = plain_tensors(model)
        try:
            with self.masked(mask):
                if self._forward is not None:
                    self._forward(model, batch)
                elif isinstance(batch, dict):
                    model(**batch)
                elif isinstance(batch, list | tuple):
                    model(*batch)
                else:
                    model(batch)
        finally:
            remove_hooks(handles)

    @property
    def present_mask(self) -> Tensor | None:
        """The tokens that count inside of `masked`."""
        return self._mask

    @contextmanager
    def masked(self, mask: Tensor | None) -> Iterator[None]:
        """Count only some of the tokens while the context is open.

        Parameters
        ----------
        mask : Tensor of bool, shape (B, T), or None
            True where a token counts; padding then has no say. It applies to inputs (B, T, ...)
            and (B * T, ...); inputs (B, n), with one row for a sentence, count as a whole.

        Raises
        ------
        TypeError
            No tensor of bool.
        """
        if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool):
            seen = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(f"mask must be a tensor of bool; got {seen}")
        before, self._mask = self._mask, mask
        try:
            yield
        finally:
            self._mask = before

    def listen(self) -> Self:
        """Listen (again) to the model.

        Returns
        -------
        Self
            This calibrator.
        """
        if not self._handles:
            self._handles = [
                layer.register_forward_hook(Listener(self, name), with_kwargs=True)
                for name, layer in self._layers.items()
            ]
            self._handles += plain_tensors(self._model)
            # a calibrator that is forgotten leaves no hooks behind
            self._finalizer = weakref.finalize(self, remove_hooks, self._handles)
        return self

    def close(self) -> None:
        """Stop listening; what was collected stays."""
        if self._handles:
            self._finalizer()
        self._handles, self._recent = [], None

    def reset(self) -> None:
        """Forget what was collected."""
        self._found, self._leaders, self._recent = {}, {}, None

    def __enter__(self) -> Self:
        return self.listen()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _layer(self, name: str) -> nn.Module:
        """Look a layer up."""
        if name not in self._layers:
            raise KeyError(f"no layer {name!r} is listened to; there are {list(self._layers)}")
        return self._layers[name]

    @torch.inference_mode(False)  # sums outlive the mode
    @torch.no_grad()
    def _hear(self, name: str, layer: nn.Module, x: Tensor) -> None:
        """Add one input of a layer."""
        keep = fitting_mask(self._mask, name, layer, x)
        if isinstance(layer, nn.Embedding):
            self._recent = None
            counts = lookup_counts(layer, x, keep)
            before = self._found.get(name)
            if isinstance(before, Tensor):
                before += counts
            elif bool(counts.any()):
                self._found[name] = counts
            return
        recent = self._recent
        shared = recent is not None and recent.serve(name, layer, x, self._mask)
        if recent is None or not shared:
            recent = RecentSums(name, layer, x, self._mask, input_sums(layer, x.detach(), keep))
        self._recent, sums = recent, recent.sums
        if not sums.is_finite():
            self._recent = None
            raise ValueError(f"the input of layer {name!r} has NaN or infinite entries")
        leader = recent.name if shared else name
        present = self._found.get(name)
        if isinstance(present, InputSums):
            present.add(sums)
            if self._leaders.get(name, name) != leader:  # not always one and the same input
                self._leaders.pop(name, None)
        elif sums.rows:
            self._found[name] = InputSums(sums.gram.clone(), sums.total.clone(), sums.rows)
            if shared:
                self._leaders[name] = leader

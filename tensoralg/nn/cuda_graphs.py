"""Forward and backward passes replayed as one CUDA graph: small layers are bound by launches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensoralg.nn.training_state import map_tensors

__all__ = ["GraphedGradients"]

Replay = Callable[[], None]


def capture_on_cuda(function: Callable[[], None]) -> Replay:
    """Record the kernels of `function` without running them, and return what runs them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


@dataclass
class _Recording:
    """One captured pass: where its batch has to be put and where its results appear."""

    batch: Any
    parameters: tuple[Any, ...]
    replay: Replay
    loss: Tensor
    gradients: list[Tensor | None]


class GraphedGradients:
    """Loss and gradients of a batch; after some passes of one shape, by a recorded graph.

    The first `warm_up` batches of a shape are computed as usual, which lets libraries choose
    their kernels; the next one is recorded and from then on only replayed. A batch of another
    shape, or parameters that were replaced (ranks that changed), start anew.

    Parameters
    ----------
    compute : callable
        ``compute(batch)`` returns the loss, a tensor of shape ().
    parameters : sequence of Parameter
        Whose gradients are wanted.
    warm_up : int, default 3
        Passes before the recording.
    capture : callable, optional
        Records a function and returns what replays it; the default is a CUDA graph.

    Examples
    --------
    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> def capture(function):  # in the place of a CUDA graph: the same memory on every replay
    ...     function()
    ...     held = weight.grad
    ...     def replay():
    ...         function()
    ...         held.copy_(weight.grad)
    ...     return replay
    >>> gradients = GraphedGradients(lambda x: (weight * x).sum(), [weight], capture=capture)
    >>> for _ in range(5):
    ...     loss = gradients(torch.tensor([1.0, 2.0]))
    >>> loss.item(), weight.grad.tolist()
    (3.0, [1.0, 2.0])
    """

    def __init__(
        self,
        compute: Callable[[Any], Tensor],
        parameters: Sequence[torch.nn.Parameter],
        *,
        warm_up: int = 3,
        capture: Callable[[Callable[[], None]], Replay] = capture_on_cuda,
    ) -> None:
        self._compute = compute
        self._parameters = list(parameters)
        self._warm_up = warm_up
        self._capture = capture
        self._seen: dict[Any, int] = {}
        self._recordings: dict[Any, _Recording] = {}

    def __call__(self, batch: Any) -> Tensor:
        """Set every parameter's ``grad`` and return the loss, detached."""
        key = _signature(batch)
        where = tuple((p.data_ptr(), tuple(p.shape)) for p in self._parameters)
        recording = self._recordings.get(key)
        if recording is not None and recording.parameters != where:
            self._recordings.clear()  # their memory is of no use any more
            self._seen.clear()
            recording = None
        if recording is None:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= self._warm_up:
                return self._eager(batch)
            recording = self._recordings[key] = self._record(batch, where)
        _copy_into(recording.batch, batch)
        recording.replay()
        for parameter, gradient in zip(self._parameters, recording.gradients, strict=True):
            parameter.grad = gradient
        return recording.loss.clone()

    def _eager(self, batch: Any) -> Tensor:
        """One pass as usual, on a stream of its own where there is CUDA."""
        self._forget_gradients()
        if not torch.cuda.is_available():
            loss = self._compute(batch)
            torch.autograd.backward(loss)
            return loss.detach()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self._compute(batch)
            torch.autograd.backward(loss)
        torch.cuda.current_stream().wait_stream(stream)
        return loss.detach()

    def _record(self, batch: Any, where: tuple[Any, ...]) -> _Recording:
        """Capture one pass; the gradients' memory belongs to the graph from then on."""
        self._forget_gradients()
        held = map_tensors(torch.clone, batch)
        loss = torch.zeros((), device=self._parameters[0].device)

        def one_pass() -> None:
            self._forget_gradients()  # written, not added to, on every replay
            value = self._compute(held)
            torch.autograd.backward(value)
            loss.copy_(value.detach())

        replay = self._capture(one_pass)
        return _Recording(held, where, replay, loss, [p.grad for p in self._parameters])

    def _forget_gradients(self) -> None:
        """Set every gradient to None."""
        for parameter in self._parameters:
            parameter.grad = None


def _signature(batch: Any) -> Any:
    """Shapes, dtypes and places of a batch's tensors, and whatever else is in it."""
    tensors: list[Any] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append((tuple(tensor.shape), tensor.dtype, tensor.device))
        return tensor

    rest = map_tensors(lambda t: note(t).new_empty(0), batch)
    return tuple(tensors), repr(map_tensors(lambda t: t.new_empty(0, device="meta"), rest))


def _copy_into(target: Any, source: Any) -> None:
    """Copy the tensors of one nested value into those of another of the same build."""
    if isinstance(target, Tensor):
        target.copy_(source)
    elif isinstance(target, dict):
        for key, item in target.items():
            _copy_into(item, source[key])
    elif isinstance(target, list | tuple):
        for ours, theirs in zip(target, source, strict=True):
            _copy_into(ours, theirs)

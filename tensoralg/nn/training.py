"""A training loop thin enough to read: fit, evaluate, checkpoints that resume bit by bit."""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tensoralg.core.errors import ConvergenceWarning
from tensoralg.core.validation import positive_integer
from tensoralg.nn.cuda_graphs import GraphedGradients
from tensoralg.nn.evaluation import Measure, accuracy, cross_entropy, device_of, evaluate
from tensoralg.nn.training_state import (
    load_checkpoint,
    map_tensors,
    random_state,
    save_checkpoint,
    set_random_state,
)

__all__ = ["Measure", "TrainingResult", "accuracy", "cross_entropy", "evaluate", "fit"]


class _Stateful(Protocol):
    """A schedule: a step after every optimizer step, and a state."""

    def step(self) -> Any: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class TrainingResult:
    """What a run of `fit` did.

    Attributes
    ----------
    history : list of dict
        For every finished epoch: "epoch", "steps" so far, mean "loss", and what was validated.
    steps : int
        Optimizer steps, those before a resumption included.
    status : str
        "finished", "stopped" (by the callback) or "diverged" (a loss or weight not finite).
    message : str
        The same in words.
    """

    history: list[dict[str, float]]
    steps: int
    status: str
    message: str


@dataclass
class _Progress:
    """Where training stands."""

    epoch: int = 0
    batch: int = 0
    steps: int = 0
    loss: float | Tensor = 0.0  # sum over the batches of this epoch
    history: list[dict[str, float]] = field(default_factory=list)


def fit(
    model: nn.Module,
    data: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    loss: Measure = cross_entropy,
    penalty: Callable[[Tensor], Tensor] | None = None,
    schedule: _Stateful | None = None,
    rank_scheduler: _Stateful | None = None,
    max_gradient_norm: float | None = None,
    autocast: torch.dtype | None = None,
    validation: Callable[[nn.Module], dict[str, float]] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
    cuda_graphs: bool = False,
    callback: Callable[[int, float], Any] | None = None,
    progress: bool = False,
) -> TrainingResult:
    """Train a model, and go on from a checkpoint as if nothing had happened.

    Parameters
    ----------
    model : Module
        Put into training mode. Batches are moved to its device.
    data : iterable of batches
        Gone through once in every epoch, such as a DataLoader. A resumed epoch is started anew
        with the random state that it had and its first batches are skipped: an iterable
        that draws its order from torch's, numpy's or Python's global generators, or from the
        `generator` of a loader or its sampler, resumes exactly.
    optimizer : Optimizer
        Over the model's parameters.
    epochs : int
        In all, those before a resumption included.
    loss : callable, default `cross_entropy`
        ``loss(model, batch)`` returns a tensor of shape ().
    penalty : callable, optional
        ``penalty(loss)`` returns what is minimised, such as a `CoMERAPenalty`.
    schedule : learning-rate scheduler, optional
        A step after every optimizer step.
    rank_scheduler : RankScheduler, optional
        A step after every epoch.
    max_gradient_norm : float, optional
        Longer gradients are shortened to this norm.
    autocast : torch.dtype, optional
        torch.bfloat16 computes the loss in mixed precision.
    validation : callable, optional
        ``validation(model)`` returns figures for the history, after every epoch.
    checkpoint : path_like, optional
        A file, written after every epoch and every `checkpoint_every` steps.
    checkpoint_every : int, optional
        Optimizer steps between two writings within an epoch.
    resume : bool, default True
        Go on from `checkpoint` where that file exists.
    cuda_graphs : bool, default False
        Replay forward and backward passes as recorded graphs, on a CUDA device only; `loss`
        must not read values back from the device.
    callback : callable, optional
        ``callback(steps, loss)`` after every step; a truthy answer stops.
    progress : bool, default False
        Show a bar.

    Returns
    -------
    TrainingResult
        History and status.

    Raises
    ------
    TypeError
        The default loss gets a batch that is no tuple or list, or a loss returns no tensor.
    ValueError
        `data` has no batches, `epochs` is not positive, `autocast` is another dtype, CUDA graphs
        are asked for elsewhere, the loss depends on nothing that is trained, or `optimizer` holds
        none of the model's parameters (it may be older than the model's layers).
    PersistenceError
        `checkpoint` is no file that can be resumed.

    Warns
    -----
    ConvergenceWarning
        The loss or, at the end of an epoch, a weight is not finite: training ends, and the last
        checkpoint stays as it was.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(2, 2)
    >>> batch = torch.eye(2), torch.tensor([1, 0])
    >>> result = fit(model, [batch], torch.optim.SGD(model.parameters(), lr=1.0), epochs=30)
    >>> result.status, result.history[-1]["loss"] < 0.1
    ('finished', True)
    """
    positive_integer("epochs", epochs)
    if checkpoint_every is not None:
        positive_integer("checkpoint_every", checkpoint_every)
    if autocast not in (None, torch.bfloat16):
        raise ValueError(f"autocast must be torch.bfloat16 or None; got {autocast}")
    _check_optimizer(model, optimizer)
    parts = {"model": model, "optimizer": optimizer}
    parts |= {"schedule": schedule} if schedule is not None else {}
    parts |= {"rank_scheduler": rank_scheduler} if rank_scheduler is not None else {}
    parts |= {"penalty": penalty} if hasattr(penalty, "state_dict") else {}
    loop = _Loop(
        model, data, optimizer, parts, penalty, schedule, max_gradient_norm,
        Path(checkpoint) if checkpoint is not None else None, checkpoint_every, callback,
        _gradients(model, loss, penalty, autocast, cuda_graphs),
    )  # fmt: skip
    if resume:
        loop.resume()
    with _bar(progress, loop.state, data, epochs) as advance:
        while loop.state.epoch < epochs:
            status = loop.epoch(advance)
            if status != "finished":
                break
            if rank_scheduler is not None:
                rank_scheduler.step()
            loop.close_epoch(validation(model) if validation is not None else {})
        else:
            status = "finished"
    words = {
        "finished": f"{loop.state.epoch} epochs",
        "stopped": f"the callback stopped training after {loop.state.steps} steps",
        "diverged": f"the loss of step {loop.state.steps + 1} is not finite, or a weight before it",
    }
    if status == "diverged":
        warnings.warn(f"fit: {words[status]}", ConvergenceWarning, stacklevel=2)
    return TrainingResult(loop.state.history, loop.state.steps, status, words[status])


@dataclass
class _Loop:
    """The parts of one run."""

    model: nn.Module
    data: Iterable[Any]
    optimizer: torch.optim.Optimizer
    parts: dict[str, Any]
    penalty: Any
    schedule: _Stateful | None
    max_gradient_norm: float | None
    checkpoint: Path | None
    checkpoint_every: int | None
    callback: Callable[[int, float], Any] | None
    gradients: Callable[[Any], Tensor]
    state: _Progress = field(default_factory=_Progress)
    epoch_random: dict[str, Any] = field(default_factory=dict)
    resumed_random: dict[str, Any] | None = None

    def epoch(self, advance: Callable[[], None]) -> str:
        """Go through the data once, or through the rest of a resumed epoch."""
        self.model.train()  # a validation may have left it in eval mode
        batches = self.start_epoch()
        device = device_of(self.model)
        status = "finished"
        for batch in batches:
            status = self.step(map_tensors(lambda t: t.to(device, non_blocking=True), batch))
            if status == "diverged":
                return status
            advance()
            every = self.checkpoint_every
            if status == "stopped" or (every and self.state.steps % every == 0):
                self.write()
            if status == "stopped":
                return status
        if not self.state.batch:
            raise ValueError("data has no batches")
        # on other devices than the CPU single steps are not waited for
        finite = math.isfinite(float(self.state.loss)) and self.finite_weights()
        return "finished" if finite else "diverged"

    def finite_weights(self) -> bool:
        """Check what is trained: gradients of a finite loss need not be finite."""
        trained = (p for p in self.model.parameters() if p.requires_grad)
        return all(bool(torch.isfinite(p).all()) for p in trained)

    def start_epoch(self) -> Iterator[Any]:
        """Return the batches that are left, with every random generator in the state it had."""
        resumed, self.resumed_random = self.resumed_random, None
        if resumed is None:
            self.epoch_random = random_state(self.data)
            return iter(self.data)
        set_random_state(self.epoch_random, self.data)
        batches = iter(self.data)
        if self.state.batch:
            for _ in range(self.state.batch):
                next(batches, None)
            # a loader's own generators were moved on by the skipping
            set_random_state(resumed | {"loaders": []})
        return batches

    def step(self, batch: Any) -> str:
        """One optimizer step."""
        loss = self.gradients(batch)
        value = float(loss) if self.callback or loss.device.type == "cpu" else None
        if value is not None and not math.isfinite(value):
            return "diverged"
        if self.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_gradient_norm)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        self.state.loss = self.state.loss + (loss.double() if value is None else value)
        self.state.batch += 1
        self.state.steps += 1
        if self.callback is not None and self.callback(self.state.steps, float(loss)):
            return "stopped"
        return "finished"

    def close_epoch(self, figures: dict[str, float]) -> None:
        """Put a line into the history and write a checkpoint."""
        state = self.state
        mean = float(state.loss) / state.batch
        state.epoch += 1
        state.history.append({"epoch": state.epoch, "steps": state.steps, "loss": mean, **figures})
        state.batch, state.loss = 0, 0.0
        self.epoch_random = random_state(self.data)
        self.write()

    def write(self) -> None:
        """Write the checkpoint, unless its numbers would not be finite."""
        if self.checkpoint is None or not math.isfinite(float(self.state.loss)):
            return
        if not self.finite_weights():
            return
        progress = {**vars(self.state), "loss": float(self.state.loss)}
        save_checkpoint(
            self.checkpoint,
            {
                "parts": {name: part.state_dict() for name, part in self.parts.items()},
                "progress": progress,
                "epoch_random": self.epoch_random,
                "random": random_state(self.data),
            },
        )

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        stored = load_checkpoint(self.checkpoint)
        if set(stored["parts"]) != set(self.parts):
            raise ValueError(
                f"{self.checkpoint} holds {sorted(stored['parts'])}, this run has "
                f"{sorted(self.parts)}; give the same parts or resume=False"
            )
        for name, part in self.parts.items():  # the model first: the others follow its shapes
            part.load_state_dict(stored["parts"][name])
        self.state = _Progress(**stored["progress"])
        self.epoch_random, self.resumed_random = stored["epoch_random"], stored["random"]


def _gradients(
    model: nn.Module,
    loss: Measure,
    penalty: Callable[[Tensor], Tensor] | None,
    autocast: torch.dtype | None,
    cuda_graphs: bool,
) -> Callable[[Any], Tensor]:
    """Build what turns a batch into gradients and returns the loss, detached."""
    device = device_of(model)

    def compute(batch: Any) -> Tensor:
        context = torch.autocast(device.type, autocast) if autocast is not None else nullcontext()
        with context:
            value = loss(model, batch)
        value = value if penalty is None else penalty(value)
        if not isinstance(value, Tensor) or value.ndim:
            seen = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TypeError(f"loss must return a tensor of shape (); got {seen}")
        if not value.requires_grad:
            raise ValueError(
                "the loss depends on no parameter that is trained: the model is frozen "
                "(requires_grad=False everywhere), or loss returns a detached number"
            )
        return value

    parameters = [p for p in model.parameters() if p.requires_grad]
    if cuda_graphs:
        if device.type != "cuda":
            raise ValueError(f"cuda_graphs needs a model on a CUDA device; it is on {device}")
        return GraphedGradients(compute, parameters)

    def eager(batch: Any) -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        value = compute(batch)
        torch.autograd.backward(value)
        return value.detach()

    return eager


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise where the optimizer cannot train the model."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    if not trained:
        raise ValueError("model is frozen: none of its parameters has requires_grad=True")
    if trained.isdisjoint(id(p) for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            "optimizer holds none of the model's trainable parameters; make it after the model's "
            "layers were converted or replaced"
        )


def _bar(
    wanted: bool, state: _Progress, data: Any, epochs: int
) -> AbstractContextManager[Callable[[], None]]:
    """Open a progress bar that moves with every step, or nothing."""
    if not wanted:
        return nullcontext(lambda: None)
    from tensoralg.nn.progress import progress_bar

    batches = len(data) if hasattr(data, "__len__") else None
    return progress_bar(state, batches, epochs)

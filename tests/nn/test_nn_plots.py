"""The picture of ranks shows what the reports say."""

import pytest
import torch
from torch import nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn import RankReport, RankScheduler, TTLinear, plot_ranks

pytest.importorskip("matplotlib")


def scheduler():
    torch.manual_seed(0)
    model = nn.Sequential(TTLinear(64, 64, rank=16), nn.ReLU(), TTLinear(64, 10, rank=8))
    found = RankScheduler(model, target_parameters=600, roundings=4)
    for _ in range(4):
        found.step()
    return found


def test_the_lines_are_the_reports(tmp_path):
    found = scheduler()
    figure = plot_ranks(found, accuracies=[0.9, 0.91, 0.89, 0.8])
    sizes, ranks, price = figure.axes
    reports = found.history
    assert sizes.lines[0].get_ydata().tolist() == [r.parameters for r in reports]
    for line, name in zip(ranks.lines, ("0", "2"), strict=True):
        means = [sum(r.ranks[name][1:-1]) / len(r.ranks[name][1:-1]) for r in reports]
        assert line.get_ydata().tolist() == pytest.approx(means)
        assert line.get_label() == name
    assert price.lines[0].get_xdata().tolist() == [r.parameters for r in reports]
    assert price.lines[0].get_ydata().tolist() == [0.9, 0.91, 0.89, 0.8]
    figure.savefig(tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").stat().st_size > 1000
    assert len(plot_ranks(reports).axes) == 2


def test_a_layer_of_one_core_has_rank_one():
    report = RankReport({"": (1, 1)}, {"": 0.0}, 12)
    assert plot_ranks([report]).axes[1].lines[0].get_ydata().tolist() == [1.0]


def test_what_cannot_be_drawn_is_named():
    found = scheduler()
    with pytest.raises(ShapeError, match="each of the 4 reports; got 1"):
        plot_ranks(found, accuracies=[0.5])
    with pytest.raises(ValueError, match="at least one report"):
        plot_ranks([])


def test_the_history_is_part_of_the_state():
    found = scheduler()
    again = scheduler()
    again.load_state_dict(found.state_dict())
    assert again.history == found.history
    again.load_state_dict({"calls": 1, "start": 900})  # of an older checkpoint
    assert again.history == []

import dataclasses
import io
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tensoralg.core.errors import ShapeError
from tensoralg.core.figures import CYCLE, PlottingUnavailableError
from tensoralg.mixtures import (
    DiagonalGaussianMixture,
    MomentAccumulator,
    detect_rank,
    plot_convergence,
    plot_mixture,
    plot_spectrum,
)
from tensoralg.mixtures.panels import separating_columns

matplotlib = pytest.importorskip("matplotlib")


def mixture_of(d, r=3, seed=0):
    rng = np.random.default_rng(seed)
    return DiagonalGaussianMixture.from_parameters(
        rng.dirichlet([5.0] * r), 2.0 * rng.standard_normal((r, d)), rng.uniform(0.3, 1.5, (r, d))
    )


@pytest.fixture(scope="module")
def fitted():
    truth = mixture_of(8)
    X, _ = truth.sample(4000, random_state=0)
    return DiagonalGaussianMixture("auto", random_state=0).fit(X), X, truth


def drawn(figure, render=False):
    """Panels that show something; the figure must also render, which takes longest."""
    assert isinstance(figure, matplotlib.figure.Figure)
    if render:
        stream = io.BytesIO()
        figure.savefig(stream, format="png")
        assert stream.getvalue().startswith(b"\x89PNG")
    return [axes for axes in figure.axes if axes.axison]


def ellipses(axes):
    return [patch for patch in axes.patches if isinstance(patch, matplotlib.patches.Ellipse)]


@pytest.mark.parametrize(("d", "panels"), [(1, 1), (2, 3), (3, 6), (4, 10), (50, 10)])
@pytest.mark.parametrize("with_rows", [True, False])
def test_every_width_is_drawn_in_at_most_four_columns(d, panels, with_rows):
    mixture = mixture_of(d)
    X, _ = mixture.sample(300, random_state=1)
    axes = drawn(plot_mixture(mixture, X if with_rows else None), render=with_rows and d in (1, 50))
    assert len(axes) == panels
    pairs = [one for one in axes if ellipses(one)]
    assert len(pairs) == (panels - min(d, 4))
    assert all(len(one.collections) == with_rows for one in pairs)


def test_ellipses_stand_at_the_means_with_one_and_two_deviations():
    mixture = mixture_of(5)
    figure = plot_mixture(mixture, columns=[3, 1])
    (pair,) = [axes for axes in drawn(figure) if ellipses(axes)]
    assert (pair.get_xlabel(), pair.get_ylabel()) == ("column 3", "column 1")
    for s in range(3):
        for deviations, patch in zip((1, 2), ellipses(pair)[2 * s : 2 * s + 2], strict=True):
            assert patch.center == pytest.approx(mixture.means_[s, [3, 1]])
            sizes = 2 * deviations * np.sqrt(mixture.covariances_[s, [3, 1]])
            assert (patch.width, patch.height) == pytest.approx(tuple(sizes))


def test_densities_are_the_marginals_of_the_mixture():
    mixture = mixture_of(1)
    (axes,) = drawn(plot_mixture(mixture, truth=mixture_of(1, seed=4)))
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    x, y = lines["mixture"].T
    np.testing.assert_allclose(y, np.exp(mixture.score_samples(x[:, None])), rtol=1e-9)
    x, y = lines["known mixture"].T
    np.testing.assert_allclose(y, np.exp(mixture_of(1, seed=4).score_samples(x[:, None])))


def test_rows_are_coloured_by_their_component_or_by_labels():
    mixture = mixture_of(2)
    X, _ = mixture.sample(200, random_state=2)
    colors = [matplotlib.colors.to_rgb(color) for color in CYCLE]
    for labels in (None, np.arange(200) % 5):
        figure = plot_mixture(mixture, X, labels=labels)
        (points,) = [c for axes in figure.axes for c in axes.collections]
        wanted = mixture.predict(X) if labels is None else labels
        found = [colors.index(tuple(color[:3])) for color in points.get_facecolors()]
        assert found == list(wanted)


def test_missing_cells_are_left_out_and_few_rows_are_drawn():
    mixture = mixture_of(2)
    X, _ = mixture.sample(10_000, random_state=0)
    X[::3, 0] = np.nan
    X[1::3, 1] = np.nan
    (points,) = [c for axes in plot_mixture(mixture, X).axes for c in axes.collections]
    assert 1000 < len(points.get_offsets()) < 1700


def test_a_dask_array_and_names_of_a_frame_are_read():
    dask_array = pytest.importorskip("dask.array")
    mixture = mixture_of(3)
    X, _ = mixture.sample(500, random_state=0)
    lazy = dask_array.from_array(X, chunks=(100, 3))
    names = ["height", "weight", "age"]
    figure = plot_mixture(mixture, lazy, columns=["age", "height"], names=names)
    (pair,) = [axes for axes in drawn(figure) if ellipses(axes)]
    assert (pair.get_xlabel(), pair.get_ylabel()) == ("age", "height")
    np.testing.assert_array_equal(pair.collections[0].get_offsets(), X[:, [2, 0]])
    with pytest.raises(ValueError, match="unknown sizes"):
        plot_mixture(mixture, lazy[lazy[:, 0] > 0])


def test_another_estimator_is_drawn_and_another_shape_is_not():
    other = SimpleNamespace(weights=[1.0], means=[[0.0, 0.0]], covariances=[[1.0, 1.0]])
    assert len(drawn(plot_mixture(other))) == 3
    full = SimpleNamespace(weights_=[1.0], means_=[[0.0, 0.0]], covariances_=[np.eye(2)])
    with pytest.raises(ShapeError, match=r"\(1, 2, 2\)"):
        plot_mixture(full)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"columns": []}, ValueError, "1 to 12"),
        ({"columns": [0, 3]}, ValueError, "from 0 to 2"),
        ({"columns": [True]}, ValueError, "from 0 to 2"),
        ({"columns": [0, -3]}, ValueError, "different"),
        ({"columns": ["age"]}, ValueError, "no column 'age'"),
        ({"columns": "age"}, ValueError, "must be a list"),
        ({"names": ["a"]}, ShapeError, "all 3 columns, got 1"),
        ({"X": np.ones((4, 2))}, ShapeError, r"\(N, 3\)"),
        ({"X": np.ones(4)}, ShapeError, r"\(N, 3\)"),
        ({"labels": [0]}, ValueError, "no X"),
        ({"X": np.ones((4, 3)), "labels": [0.5] * 4}, ValueError, "integers of shape"),
        ({"X": np.ones((4, 3)), "labels": [0, 1]}, ValueError, "integers of shape"),
        ({"truth": mixture_of(2)}, ShapeError, "truth has 2 columns"),
        ({"truth": DiagonalGaussianMixture(2)}, TypeError, "truth must be a fitted"),
    ],
)
def test_what_does_not_fit_is_named(options, kind, message):
    with pytest.raises(kind, match=message):
        plot_mixture(mixture_of(3), **options)


def test_columns_that_tell_every_pair_apart_are_chosen():
    # column 0 and 1 both tell only the first component from the others; 2 tells the other two
    means = [[9, 9, 0, 0], [0, 0, 3, 0], [0, 0, -3, 0]]
    assert separating_columns([0.4, 0.3, 0.3], means, np.ones((3, 4)))[:2] in ([0, 2], [2, 0])
    assert sorted(separating_columns([1.0], [[0.0, 1.0]], [[0.0, 1.0]], count=5)) == [0, 1]


def test_a_detected_spectrum_is_drawn_with_its_thresholds(fitted):
    model, _, _ = fitted
    for source in (model, model.diagnostics_, model.diagnostics_.rank_test):
        (axes,) = drawn(plot_spectrum(source))
        values, thresholds = axes.lines[0].get_ydata(), axes.lines[1].get_ydata()
        test = model.diagnostics_.rank_test
        assert list(values) == [v for v in test["singular_values"] if v > 1e-16 * values[0]]
        assert list(thresholds) == [t for t in test["thresholds"] if np.isfinite(t)]
        assert axes.get_title() == "3 components detected"
        assert axes.lines[2].get_xdata()[0] == 3.5


def test_a_rank_test_is_drawn():
    exact = MomentAccumulator.from_parameters(
        [0.4, 0.6], [[1, 2, 3, 0], [3, 1, 0, 2]], [[1.0] * 4] * 2, 3
    )
    (axes,) = drawn(plot_spectrum(detect_rank(exact, rng=0)))
    assert axes.get_title() == "2 components detected"


@pytest.mark.parametrize(("d", "line"), [(8, 3.5), (300, 2.5)])
def test_the_spectrum_of_a_given_number_is_drawn(d, line):
    X, _ = mixture_of(d).sample(2000, random_state=0)
    model = DiagonalGaussianMixture(3, random_state=0, polish=None).fit(X)
    (axes,) = drawn(plot_spectrum(model), render=True)
    assert list(axes.lines[0].get_ydata()) == model.diagnostics_.singular_values
    assert axes.lines[1].get_xdata()[0] == line


def test_a_fit_without_a_spectrum_says_why(fitted):
    with pytest.raises(ValueError, match="'given'"):
        plot_spectrum(fitted[2])
    with pytest.raises(ValueError, match="rank_test is empty"):
        plot_spectrum({})
    with pytest.raises(TypeError, match="got ndarray"):
        plot_spectrum(fitted[1])


def test_the_polish_is_drawn_pass_by_pass(fitted):
    model, X, _ = fitted
    history = model.diagnostics_.log_likelihoods
    assert history[-1] == pytest.approx(model.lower_bound_, rel=1e-12)
    assert all(np.diff(history) > -1e-12)
    assert history[-1] == pytest.approx(model.score(X), abs=1e-4)
    left, right = drawn(plot_convergence(model), render=True)
    assert list(left.lines[0].get_ydata()) == history
    gains = right.lines[0].get_ydata()
    np.testing.assert_allclose(gains, [g for g in np.diff(history) if g > 0])
    assert right.lines[1].get_ydata()[0] == model.tol
    assert len(drawn(plot_convergence(model.diagnostics_))[1].lines) == 1


def test_a_polish_that_gains_only_rounding_is_drawn_without_a_warning(fitted, recwarn):
    still = np.nextafter(-3.0, [-4.0, -3.0, -2.0]).tolist()
    drawn(
        plot_convergence(dataclasses.replace(fitted[0].diagnostics_, log_likelihoods=still)),
        render=True,
    )
    assert not [str(w.message) for w in recwarn if "identical" in str(w.message)]


def test_one_pass_is_one_point(fitted):
    short = dataclasses.replace(fitted[0].diagnostics_, log_likelihoods=[-3.0])
    (axes,) = drawn(plot_convergence(short))
    assert list(axes.lines[0].get_ydata()) == [-3.0]


def test_a_fit_without_a_polish_says_so(fitted):
    with pytest.raises(ValueError, match="was not polished"):
        plot_convergence(fitted[2])
    with pytest.raises(TypeError, match="fitted"):
        plot_convergence(DiagonalGaussianMixture())


def test_a_notebook_is_given_a_picture_and_pyplot_knows_of_no_figure():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    figure = plot_mixture(mixture_of(1))
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == before
    clone = pickle.loads(pickle.dumps(figure))
    assert clone._repr_png_() == figure._repr_png_()


def test_without_matplotlib_the_error_names_the_extra(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (plot_mixture, plot_spectrum, plot_convergence):
        with pytest.raises(PlottingUnavailableError, match=r"tensoralg\[plot\]"):
            draw(fitted[0])

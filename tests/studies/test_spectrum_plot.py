import pytest

from tensoralg.mixtures import MomentAccumulator
from tensoralg.mixtures.estimator import DiagonalGaussianMixture
from tensoralg.studies.spectrum_plot import plot_spectrum

pytest.importorskip("matplotlib")


def test_a_spectrum_is_drawn(tmp_path):
    exact = MomentAccumulator.from_parameters(
        [0.4, 0.6], [[1, 2, 3, 0], [3, 1, 0, 2]], [[1.0] * 4] * 2, 3
    )
    model = DiagonalGaussianMixture("auto", random_state=0).fit_moments(exact)
    plot_spectrum(tmp_path / "spectrum.png", model.diagnostics_.rank_test)
    assert (tmp_path / "spectrum.png").read_bytes().startswith(b"\x89PNG")


def test_a_given_number_of_components_has_no_spectrum(tmp_path):
    with pytest.raises(ValueError, match="rank_test is empty"):
        plot_spectrum(tmp_path / "spectrum.png", {})
    assert not list(tmp_path.iterdir())

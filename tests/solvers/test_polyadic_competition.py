import itertools

import numpy as np

from tensoralg.solvers.polyadic_competition import Competition
from tensoralg.solvers.polyadic_least_squares import LeastSquaresIteration


def problem(seed=0):
    rng = np.random.default_rng(seed)
    tensor = rng.normal(size=(6, 7, 8))
    starts = ([rng.normal(size=(n, 3)) for n in tensor.shape] for _ in itertools.count())
    return tensor, (LeastSquaresIteration(tensor, start) for start in starts)


def test_the_winner_is_the_best_finalist_and_ran_to_its_end():
    _, iterations = problem()
    race = Competition(500, 1e-9)
    best, fits = race.best(iterations, 8, 3)
    assert len(fits) == 3
    assert fits == sorted(fits, reverse=True)
    assert best.fit == fits[0]
    assert race.status_of(best) == "converged"


def test_early_losers_are_not_run_on():
    _, iterations = problem()
    kept = list(itertools.islice(iterations, 8))
    Competition(500, 1e-9).best(iter(kept), 8, 1)
    lengths = sorted(len(iteration.history) for iteration in kept)
    assert lengths[:6] == [12] * 6
    assert lengths[6] <= 12 + 25


def test_limit_and_callback():
    _, iterations = problem()
    race = Competition(5, 0.0)
    best, _ = race.best(iterations, 4, 2)
    assert race.status_of(best) == "max_iter"
    assert len(best.history) == 5

    seen = []
    _, iterations = problem()
    race = Competition(500, 0.0)
    best, _ = race.best(iterations, 4, 2, lambda k, fit, factors: seen.append(k) or len(seen) == 15)
    assert race.is_stopped
    assert race.status_of(best) == "stopped"
    assert seen == [*range(1, 13), 1, 2, 3]


def test_a_first_start_that_converges_at_once_wins_only_if_it_may():
    rng = np.random.default_rng(0)
    truth = [rng.normal(size=(n, 2)) for n in (5, 6, 7)]
    tensor = np.einsum("is,js,ks->ijk", *truth)
    for may, count in ((True, 1), (False, 3)):
        made = []
        starts = (truth if k == 0 else [rng.normal(size=f.shape) for f in truth] for k in range(9))
        iterations = (made.append(1) or LeastSquaresIteration(tensor, s) for s in starts)
        best, _ = Competition(100, 1e-8).best(iterations, 3, 1, first_may_win=may)
        assert len(made) == count
        assert 1 - best.fit < 1e-14

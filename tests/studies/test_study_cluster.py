"""Studies on a Dask cluster: the same cells, workers that die, clusters that are not there."""

import json
import os
import signal
import time
from dataclasses import replace

import dask
import pytest

from tensoralg.cli import main
from tensoralg.studies import StudySpecification, read_cells, run_study
from tensoralg.studies import cluster as study_cluster
from tensoralg.studies.cluster import ClusterError, connect, map_on_cluster

distributed = pytest.importorskip("distributed")

STUDY = StudySpecification(
    "s", (3,), (2,), (3,), (150,), (2.0,), (0, 1, 2), ("em-default", "em-truth")
)


def timeless(cells):
    return {cell.key: replace(cell, seconds=0.0) for cell in cells}


def local_cluster(**options):
    options.setdefault("n_workers", 2)
    return distributed.LocalCluster(dashboard_address=":0", **options)


@pytest.fixture(scope="module")
def address():
    with local_cluster(processes=False, protocol="tcp", threads_per_worker=2) as cluster:
        yield cluster.scheduler_address


def test_a_cluster_gives_the_same_numbers(address, tmp_path):
    here = run_study(STUDY, tmp_path / "here")
    events = []
    there = run_study(
        STUDY, tmp_path / "there", scheduler=address, callback=lambda *event: events.append(event)
    )
    assert timeless(there) == timeless(here)
    assert [(done, total) for _, done, total in events] == [(k, 6) for k in range(7)]
    assert len(read_cells(tmp_path / "there")) == 6
    assert json.loads((tmp_path / "there" / "runs.jsonl").read_text())["workers"] == 2
    # nothing is left to do: the cluster is not even asked for
    assert run_study(STUDY, tmp_path / "there", scheduler="tcp://127.0.0.1:1") == there


def test_the_command_line_joins_a_cluster(address, tmp_path, capsys):
    spec, out = tmp_path / "study.toml", tmp_path / "out"
    spec.write_text(STUDY.to_toml())
    command = ["study", "run", str(spec), "--out", str(out)]
    assert main([*command, "--scheduler", address, "--workers", "2"]) == 2
    assert "give one" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--scheduler", address]) == 0
    assert timeless(read_cells(out)) == timeless(run_study(STUDY, tmp_path / "here"))


@pytest.mark.parametrize("wrong", ["tcp://127.0.0.1:1", "nowhere://a", "a b", "tcp://"])
def test_no_cluster_is_one_line(wrong, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(study_cluster, "_PATIENCE", 1)
    spec = tmp_path / "study.toml"
    spec.write_text(STUDY.to_toml())
    assert main(["study", "run", str(spec), "--out", str(tmp_path), "--scheduler", wrong]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"tensoralg: no Dask scheduler answers at {wrong!r}")
    assert "tcp://host:8786" in said


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(ClusterError, match=r"tensoralg\[dask\]"):
        connect("tcp://127.0.0.1:1")


def test_workers_of_two_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="give one of the two"):
        run_study(STUDY, tmp_path, workers=2, scheduler="tcp://127.0.0.1:1")


def _with_a_message(item):
    if item == 3:
        raise ModuleNotFoundError("No module named 'tensoralg'")
    time.sleep(0.05)
    return item


def _unfinished(dask_scheduler):
    return sum(
        task.state not in ("memory", "erred", "released") for task in dask_scheduler.tasks.values()
    )


def test_a_worker_that_cannot_run_the_work_is_named_and_the_rest_taken_back(address):
    with connect(address) as client:
        with pytest.raises(ClusterError, match=r"ModuleNotFoundError: .*'tensoralg'.* version"):
            list(map_on_cluster(_with_a_message, [3, *range(100)], client, on_death=print))
        results = map_on_cluster(_with_a_message, range(10, 200), client, on_death=print)
        assert next(results) >= 10
        results.close()
        deadline = time.monotonic() + 20
        while client.run_on_scheduler(_unfinished):
            assert time.monotonic() < deadline, "tasks outlived the study"
            time.sleep(0.05)


_running = []


def _alone_in_its_process(item):
    _running.append(item)
    time.sleep(0.02)
    together = len(_running)
    _running.remove(item)
    return together


def test_a_process_runs_one_cell_at_a_time(address):
    with connect(address) as client:  # four threads, all in this process
        assert set(map_on_cluster(_alone_in_its_process, range(20), client, print)) == {1}


def test_a_scheduler_that_goes_away_loses_no_finished_cell(tmp_path):
    cluster = local_cluster(processes=False, protocol="tcp")

    def leave(result, done, total):
        if done == 2:
            cluster.close()

    with pytest.raises(ClusterError, match="scheduler must run"):
        run_study(STUDY, tmp_path, scheduler=cluster.scheduler_address, callback=leave)
    before = read_cells(tmp_path)
    assert 2 <= len(before) < 6
    assert timeless(run_study(STUDY, tmp_path)).items() >= timeless(before).items()


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_a_study_loses_nothing(tmp_path):
    study = replace(STUDY, seeds=tuple(range(20)))
    here = run_study(study, tmp_path / "here")
    with local_cluster(processes=True, threads_per_worker=1) as cluster:
        killed = []

        def kill_one(result, done, total):
            if done == 5:
                with connect(cluster.scheduler_address) as client:
                    killed.append(min(client.run(os.getpid).values()))
                os.kill(killed[0], signal.SIGKILL)

        there = run_study(
            study, tmp_path / "there", scheduler=cluster.scheduler_address, callback=kill_one
        )
    assert killed
    assert len(read_cells(tmp_path / "there")) == 40
    assert timeless(there) == timeless(here)


@pytest.mark.slow
def test_an_item_that_kills_its_workers_is_given_up():
    settings = {"distributed.scheduler.allowed-failures": 0}
    with (
        dask.config.set(settings),
        local_cluster(processes=True, threads_per_worker=1, n_workers=1) as cluster,
        connect(cluster.scheduler_address) as client,
    ):
        assert list(map_on_cluster(os._exit, [1], client, on_death=lambda item: -item)) == [-1]

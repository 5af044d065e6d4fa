"""What is timed is what it says: every library computes the same numbers on the same problem."""

from __future__ import annotations

import sys

import pytest
import torch

from diffusion_mf.errors import InputError
from diffusion_mf.lab.benchmarks.ops import contests, import_peers, plain_denoiser
from diffusion_mf.lab.benchmarks.timing import ProblemShape, random_problem

CPU = torch.device("cpu")


@pytest.fixture(params=["global", "local"])
def found(request: pytest.FixtureRequest) -> dict:
    problem = random_problem(ProblemShape(3, 5, 4), is_local=request.param == "local", device=CPU)
    entries = {}
    for contest in contests(problem, import_peers()):
        entries[contest.op, contest.direction] = {library: run() for library, run in contest.runs.items()}
    return {"transitions": request.param, **entries}


def test_who_takes_part(found: dict) -> None:
    libraries = {key: set(runs) for key, runs in found.items() if key != "transitions"}
    is_global = found["transitions"] == "global"
    ours, crf, struct = {"diffusion_mf"}, {"pytorch-crf"} if is_global else set(), {"torch-struct"}
    expected = {
        ("log-partition", "forward"): ours | crf | struct,
        ("log-partition", "both"): ours | crf | struct,
        ("log-partition and marginals", "both"): ours | crf | struct,
        ("log-partition through marginals", "both"): ours,
        ("negative log-likelihood", "both"): ours | crf,
        ("viterbi", "forward"): ours | crf,
    }
    if not is_global:  # four labels: few enough for a table per position
        expected |= {("mean-field", "forward"): ours, ("mean-field", "both"): ours}
    assert libraries == expected


def test_all_find_the_same_log_partition(found: dict) -> None:
    values = found["log-partition", "forward"]
    assert not values["diffusion_mf"].requires_grad
    for value in values.values():  # torch-struct keeps a graph whatever it is told
        torch.testing.assert_close(value.detach(), values["diffusion_mf"])


@pytest.mark.parametrize("op", ["log-partition", "negative log-likelihood"])
def test_all_find_the_same_gradients(found: dict, op: str) -> None:
    unary, transition = found[op, "both"]["diffusion_mf"]
    assert float(unary.abs().sum()) > 0
    for library, gradients in found[op, "both"].items():
        torch.testing.assert_close(gradients[0], unary)
        # pytorch-crf's own parameters are start, end and transition scores.
        own = gradients[3] if library == "pytorch-crf" else gradients[1]
        torch.testing.assert_close(own, transition)


def test_all_find_the_same_marginals(found: dict) -> None:
    values = found["log-partition and marginals", "both"]
    ours = values.pop("diffusion_mf")
    assert values
    for (marginals,) in values.values():
        torch.testing.assert_close(marginals, ours.marginals)


def test_all_find_the_same_labels(found: dict) -> None:
    values = found["viterbi", "forward"]
    ours = values.pop("diffusion_mf")
    assert ours.device.type == "cpu"
    for labels in values.values():
        assert ours.tolist() == labels


def test_missing_peers_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcrf", None)
    with pytest.raises(
        InputError, match=r"compares with pytorch-crf, which .*pip install 'diffusion-mf\[benchmarks\]'"
    ):
        import_peers()


def test_the_denoiser_is_of_the_size_it_stands_for() -> None:
    model, states = plain_denoiser(1, 2, device=CPU)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(80e6, rel=0.05)
    with torch.no_grad():
        assert model[0](states).shape == (1, 2, 768)

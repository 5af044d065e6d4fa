"""What must not change a result: what stands past a sentence's length, and in which company a sentence comes."""

from __future__ import annotations

import dataclasses
import math

import torch
from chain_problems import Problem, gradients, poisoned, random_weights

from diffusion_mf.ops.forward_backward import forward_backward, log_partition, pair_marginals
from diffusion_mf.ops.mean_field import mean_field
from diffusion_mf.ops.viterbi import viterbi

GARBAGE = (0.0, math.nan, math.inf, -math.inf, 3e38)


def chain_results(problem, backend):
    both = forward_backward(*problem.folded, backend=backend)
    return {
        "log_partition": both.log_partition,
        "marginals": both.marginals,
        "pairs": pair_marginals(*problem.folded, backend=backend),
        "log_partition_alone": log_partition(*problem.folded, backend=backend),
    }


def mean_field_results(problem, backend):
    return {"beliefs": mean_field(*problem.folded, 3, backend=backend)}


def viterbi_results(problem, backend):
    found = viterbi(*problem.folded, backend=backend)
    return {"labels": found.labels, "scores": found.scores}


def values_and_gradients(results_of, problem, backend):
    problem = problem.with_gradients()
    results = results_of(problem, backend)
    found = {name: tensor.detach() for name, tensor in results.items()}
    if all(tensor.requires_grad for tensor in results.values()):
        own = gradients(results, results, problem, random_weights(results))
        found |= {f"gradient of {name}": tensor for name, tensor in own.items()}
    return found


def check_garbage(results_of, problem, backend, garbage=GARBAGE):
    """No bit of any result or gradient depends on what stands past a length; gradients there are exactly zero."""
    clean = values_and_gradients(results_of, poisoned(problem, garbage[0]), backend)
    is_padding = ~problem.is_unit
    assert is_padding.any()
    for value in garbage[1:]:
        found = values_and_gradients(results_of, poisoned(problem, value), backend)
        for name, tensor in found.items():
            assert torch.equal(tensor, clean[name]), f"{name} changes with {value} in the padding"
    for name, tensor in clean.items():
        assert not tensor.isnan().any(), name
        if tensor.shape[:2] == is_padding.shape:
            assert (tensor[is_padding] == 0).all(), name
    if problem.transition.dim() == 4 and "gradient of transition" in clean:
        assert (clean["gradient of transition"][is_padding[:, 1:]] == 0).all()


def part(problem, sentences, num_units):
    """Some sentences of a problem, in the order given, cut or padded to ``num_units``."""
    index = torch.tensor(sentences, device=problem.lengths.device)
    old = problem.unary.shape[1]

    def resized(tensor, size):
        tensor = tensor[index][:, :size]
        if tensor.shape[1] < size:
            more = torch.full_like(tensor[:, :1], math.nan) if tensor.shape[1] else None
            more = tensor.new_full((len(sentences), 1, *tensor.shape[2:]), math.nan) if more is None else more
            tensor = torch.cat([tensor, *[more] * (size - tensor.shape[1])], 1)
        return tensor

    assert num_units >= int(problem.lengths[index].max())
    allowed = None
    if problem.allowed is not None:
        allowed = problem.allowed[index][:, :num_units]
        more = torch.ones_like(problem.allowed[index][:, :1]).expand(-1, max(0, num_units - old), -1)
        allowed = torch.cat([allowed, more], 1)
    is_local = problem.transition.dim() == 4
    transition = resized(problem.transition, num_units - 1) if is_local else problem.transition
    return dataclasses.replace(
        problem,
        unary=resized(problem.unary, num_units),
        transition=transition,
        lengths=problem.lengths[index],
        allowed=allowed,
    )


def check_batching(results_of, problem: Problem, backend, *, tolerance):
    """Alone, in another order, with other neighbours or with more padding, a sentence has the same results.

    Labels are equal; values, and gradients of what belongs to one sentence only, differ by ``tolerance`` at most.
    """
    num_sentences, num_units = problem.unary.shape[:2]
    lengths = problem.lengths.tolist()
    whole = values_and_gradients(lambda *a: results_of(*a), problem, backend)
    everybody = list(range(num_sentences))
    companies = [([sentence], lengths[sentence]) for sentence in everybody]
    companies += [(everybody[::-1], num_units), (everybody, num_units + 5), (everybody[:1] * 3, num_units)]
    for sentences, size in companies:
        found = results_of(part(problem, sentences, size), backend)
        for place, sentence in enumerate(sentences):
            for name, tensor in found.items():
                own, expected = tensor[place], whole[name][sentence]
                if own.dim():
                    last = lengths[sentence] - (1 if name == "pairs" else 0)
                    own, expected = own[:last], expected[:last]
                if name == "labels":
                    assert torch.equal(own, expected)
                else:
                    assert not own.isnan().any(), name
                    torch.testing.assert_close(own, expected, rtol=0, atol=tolerance, msg=lambda t, n=name: f"{n}: {t}")

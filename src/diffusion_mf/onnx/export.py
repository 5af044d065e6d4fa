"""Write a trained model as ONNX graphs, for the runtime in this folder, which needs no PyTorch.

| file | holds |
|---|---|
| manifest.json | format version, settings, labels, size and SHA-256 checksum of every other file, and of its own entries |
| vocabulary.json | forms and characters in the order of their ids |
| arrays.npz | keys of affixes, features and pairs, global transitions, codes of bits: those that the model has |
| words.onnx | a word's id and spelling → its vector; once for every distinct word |
| scores.onnx | of direct systems: word vectors → marginals and the decoder's scores |
| encoder.onnx | of diffusion systems: word vectors → what all calls share |
| step.onnx | of diffusion systems: one call, the structure's marginals and the closed-form update of beliefs; of DiffusionSL, x̂₀ |

Units are padded to a rectangle (B, N) in all graphs.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf import __version__
from diffusion_mf.batches.layouts import LONGEST_WHOLE, PaddedLayout
from diffusion_mf.data.files import CHECKSUM, StrPath, checksum_of_entries
from diffusion_mf.decoding import DECODERS
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation import NO_LABEL
from diffusion_mf.model.bits import BitsCore
from diffusion_mf.model.categorical import CategoricalCore
from diffusion_mf.model.core import StructuredCore
from diffusion_mf.model.direct import DirectCore
from diffusion_mf.model.labeller import Labeller
from diffusion_mf.model.storage import StoredModel, new_folder
from diffusion_mf.networks.denoisers import BitDenoiser, Conditions, LabelDenoiser
from diffusion_mf.networks.encoders import ScratchEncoder, WindowEncoder
from diffusion_mf.networks.scorers import Scorer
from diffusion_mf.networks.words import LONGEST_AFFIX, gathered_last_state
from diffusion_mf.onnx.folder import (
    ARRAYS,
    ENCODER,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    SCORES,
    STEP,
    VOCABULARY,
    WORDS,
    Manifest,
)
from diffusion_mf.ops.gelu import gelu
from diffusion_mf.prediction.cpu import has_transformer
from diffusion_mf.structures import LinearChain, MeanField, Potentials, Unigram

OPSET = 20
MOST_BYTES = 2**31 - 2**20
"""of the weights of a graph, which is one protobuf message"""
BATCH_UNITS = 1000
"""computed at once, padding included: with more, a Transformer's data no longer fit into a CPU's caches"""
FILES = (MANIFEST, VOCABULARY, ARRAYS, WORDS, SCORES, ENCODER, STEP)

SupportedEncoder = ScratchEncoder | WindowEncoder


def export_model(
    model: StoredModel, folder: StrPath, *, num_calls: int | None = None, decoder: str | None = None
) -> None:
    """Write ``model`` to ``folder``, replacing an earlier export; `InputError` for what the runtime cannot compute.

    ``num_calls`` and ``decoder`` are fixed with the export; the defaults are those of `Tagger`.
    """
    decoder = decoder or model.tagging_decoder
    _check(model, decoder)
    labeller = copy.deepcopy(model.labeller).cpu().eval().requires_grad_(False)
    with new_folder(folder, names=FILES) as written:
        settings = _settings(model, labeller, num_calls)
        np.savez(written / ARRAYS, **_arrays(labeller, decoder))  # type: ignore[arg-type]
        forms = {"forms": list(model.vocabulary.form_counts), "characters": list(model.vocabulary.character_counts)}
        (written / VOCABULARY).write_text(json.dumps(forms, ensure_ascii=False), encoding="utf-8")
        _write_graphs(labeller, decoder, written)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in sorted(written.iterdir())
        }
        manifest: Manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "written_by": __version__,
            "system": model.config.system,
            "task": str(model.config.task),
            "labels": list(model.vocabulary.labels),
            "scheme": str(model.scheme),
            "output_scheme": str(model.output_scheme),
            "no_label": NO_LABEL,
            "decoder": decoder,
            "temperature": model.temperature,
            "span_calibration": list(model.span_calibration),
            "lowercase": model.config.data.lowercase,
            "normalise_handles": model.config.data.normalise_handles,
            "max_characters": model.config.encoder.max_characters,
            "vector_width": labeller.encoder.vector_width,
            **settings,
            "files": files,
        }
        manifest[CHECKSUM] = checksum_of_entries(manifest)
        (written / MANIFEST).write_text(
            json.dumps(manifest, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )


def _check(model: StoredModel, decoder: str) -> None:
    config, core = model.config, model.labeller.core

    def refused(what: str, remedy: str) -> InputError:
        return InputError(f"{what} cannot be exported to ONNX", remedy=remedy)

    if importlib.util.find_spec("onnx") is None:
        raise InputError("exporting needs the package onnx", remedy="pip install 'diffusion-mf[onnx]'")
    if type(model.labeller.encoder) not in (ScratchEncoder, WindowEncoder):
        raise refused(
            f"a model with the encoder {config.encoder.title}", "choose one with the encoder scratch or window"
        )
    if isinstance(core, StructuredCore) and core.structure not in (Unigram, MeanField, LinearChain):
        raise refused(f"the structure {config.system_entry.structure}", "choose a system of this package")
    if config.recall:
        raise refused("a model with recall", "train it with --set encoder.recall=0 --set denoiser.recall=0")
    if isinstance(core, CategoricalCore) and config.inference.posterior == "sampled":
        raise refused("sampled labels", "choose a model with another inference.posterior")
    if decoder not in ("argmax", "mask-viterbi", "viterbi", "native"):
        raise InputError(f"no decoder is called {decoder!r}", remedy=f"choose one of {', '.join(DECODERS)}")
    has_transitions = isinstance(core, StructuredCore) and core.structure.uses_transitions
    if (decoder == "viterbi" and not has_transitions) or (decoder == "native" and not isinstance(core, BitsCore)):
        raise InputError(f"the system {config.system} has no decoder {decoder}", remedy="choose another one")


def _settings(model: StoredModel, labeller: Labeller, num_calls: int | None) -> dict[str, Any]:
    """The settings that depend on the system."""
    config, core = model.config, labeller.core
    if num_calls is not None and not config.system_entry.is_diffusion:
        raise InputError(f"the system {config.system} makes one call", remedy="leave out the number of calls")
    found: dict[str, Any] = {
        "process": config.system_entry.process,
        "longest": LONGEST_WHOLE if has_transformer(model) else None,
        "batch_units": BATCH_UNITS,
    }
    number, base = config.inference.calls_and_base(num_calls)
    if isinstance(core, CategoricalCore):
        schedule = core.process.schedule(num_calls=number, base=base)
        found |= {"schedule": schedule, "scores_from": config.inference.scores_from}
    elif isinstance(core, BitsCore):
        schedule = core.process.schedule(number or config.bits.num_calls)
        found |= {
            "schedule": schedule,
            "signal": [core.process.signal.values[t] for t in schedule],
            "seed": config.seed,
            "eta": config.bits.eta,
            "num_samples": config.bits.num_samples,
            "distance_temperature": config.bits.temperature,
        }
    return found


def _arrays(labeller: Labeller, decoder: str) -> dict[str, np.ndarray]:
    encoder, core = labeller.encoder, labeller.core
    assert isinstance(encoder, SupportedEncoder)
    found: dict[str, Tensor] = {}
    if encoder.affixes is not None:
        affixes = encoder.affixes
        found |= {"affix_keys": affixes.keys, "lowered": affixes.codes.lowered, "kinds": affixes.codes.kinds}
    if encoder.features is not None:
        codes = encoder.features.codes
        found |= {"code_points": codes.code_points, "lowered": codes.lowered, "kinds": codes.kinds}
        found |= {
            f"feature_keys{distance}": encoder.features.keys(distance)
            for distance in range(encoder.features.radius + 1)
        }
    if encoder.pairs is not None:
        found["pair_keys"] = encoder.pairs.keys
    scorer = getattr(core, "scorer", None)
    if decoder == "viterbi" and isinstance(scorer, Scorer) and scorer.global_transitions is not None:
        found["transition"] = scorer.global_transitions
    if isinstance(core, BitsCore):
        found["codes"] = core.codes.codes()
    return {name: tensor.numpy() for name, tensor in found.items()}


class _Words(nn.Module):
    """Word vectors from ids and spellings."""

    def __init__(self, encoder: SupportedEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        form_ids: Int[Tensor, " W"],
        character_ids: Int[Tensor, "W C"],
        lengths: Int[Tensor, " W"],
        affix_rows: Int[Tensor, "W F"],
        feature_rows: Int[Tensor, "W G"],
    ) -> Float[Tensor, "W E"]:
        parts: list[Tensor] = []
        characters, affixes = self.encoder.characters, self.encoder.affixes
        if characters is not None:
            # As `CharacterLSTM` does on a GPU: packed sequences do not fit into a graph of any number of words.
            positions = torch.arange(character_ids.shape[1])
            reversed_ids = character_ids.gather(1, (lengths[:, None] - 1 - positions).clamp(min=0))
            parts = [
                gathered_last_state(lstm, characters.embedding(ids), lengths)
                for lstm, ids in ((characters.from_left, character_ids), (characters.from_right, reversed_ids))
            ]
        if affixes is not None:
            parts.append(affixes.embedding(affix_rows).sum(-2))
        if self.encoder.features is not None:
            parts.append(self.encoder.features(feature_rows))
        spellings = torch.cat(parts, -1) if parts else form_ids[:, None][:, :0].float()
        return self.encoder.word_vectors(form_ids, spellings)


class _States(nn.Module):
    """Encoder states from a table of word vectors, as `forward` of the encoders computes them from `WordRows`."""

    def __init__(self, encoder: SupportedEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        table: Float[Tensor, "R E"],
        rows: Int[Tensor, "B N"],
        pair_rows: Int[Tensor, "B N 2"],
        layout: PaddedLayout,
    ) -> Float[Tensor, "B N D"]:
        encoder = self.encoder
        if isinstance(encoder, ScratchEncoder):
            states = F.embedding(rows, table)
            if encoder.pairs is not None:
                weight = encoder.projection.weight[:, encoder.embedding_width :]
                states = states + F.linear(encoder.pairs(pair_rows), weight)
            return encoder.transform(states, layout)
        # Row 0 of the table, padding, is zero.
        padded = F.pad(rows, (encoder.radius, encoder.radius)) * encoder.num_places
        parts = table.view(-1, encoder.width)
        num_units = rows.shape[1]
        sums = F.embedding(padded[:, :num_units], parts)
        for place in range(1, encoder.num_places):
            sums = sums + F.embedding(padded[:, place : place + num_units] + place, parts)
        if encoder.pairs is not None:
            sums = sums + (
                encoder.pair_sums(encoder.pairs, pair_rows)
                if encoder.pair_weights is None
                else encoder.pair_weights(encoder.pairs(pair_rows))
            )
        return gelu(sums)


def _mean_field(
    unary: Float[Tensor, "B N K"], transition: Tensor, is_unit: Bool[Tensor, "B N"], num_iterations: int
) -> Float[Tensor, "B N K"]:
    """log q up to a constant after the updates of `ops.mean_field`, in operations that a graph can hold."""
    nothing = torch.zeros_like(unary[:, :1])
    scores = unary
    for _ in range(num_iterations):
        beliefs = scores.softmax(-1) * is_unit[..., None]
        left, right = beliefs[:, :-1], beliefs[:, 1:]
        if transition.dim() == 2:
            from_left, from_right = left @ transition, right @ transition.T
        else:
            from_left, from_right = (
                (left[..., None, :] @ transition)[..., 0, :],
                (transition @ right[..., None])[..., 0],
            )
        scores = unary + torch.cat([nothing, from_left], 1) + torch.cat([from_right, nothing], 1)
    return scores


def _sweep(own: Tensor, weights: Tensor, is_there: Tensor, message: Tensor) -> Tensor:
    """Messages mᵢ = pᵢ₋₁ E with pᵢ = mᵢ ∘ exp(unaryᵢ), each divided by its largest value; 1 where the unit before is not there.

    The first is ``message``. ``is_there`` holds 1 and 0.
    """
    messages = [message]
    for position in range(1, own.size(0)):
        arrived = (message * own[position - 1]) @ weights[position - 1]
        arrived = arrived / arrived.amax(-1, keepdim=True).clamp(min=1e-300)
        message = arrived * is_there[position - 1] + (1 - is_there[position - 1])
        messages.append(message)
    return torch.stack(messages)


@functools.cache
def _scripted_sweep() -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """`_sweep` as a script, whose loop becomes one of the graph instead of being unrolled."""
    return torch.jit.script(_sweep)


def _chain_marginals(
    unary: Float[Tensor, "B N K"], transition: Tensor, is_unit: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N K"]:
    """The marginals of a linear chain by forward–backward on scaled probabilities in float64."""
    # Either all sentences share a matrix, (N, 1, B, K) @ (N, 1, K, K), or each has its own, (N, B, 1, K) @ (N, B, K, K).
    is_global = transition.dim() == 2
    scores, is_there = unary.double().transpose(0, 1), is_unit.transpose(0, 1)[..., None].double()
    scores, is_there = (part.unsqueeze(1 if is_global else 2) for part in (scores, is_there))
    own = (scores - scores.amax(-1, keepdim=True)).exp()
    log_weights = transition.double()
    log_weights = log_weights.expand(unary.shape[1], 1, -1, -1) if is_global else log_weights.transpose(0, 1)
    weights = (log_weights - log_weights.amax((-1, -2), keepdim=True)).exp()
    sweep, ones = _scripted_sweep(), torch.ones_like(own[0])
    forward = sweep(own, weights, is_there, ones)
    backward = sweep(own.flip(0), weights.flip(0).transpose(-1, -2), is_there.flip(0), ones).flip(0)
    products = (forward * own * backward).squeeze(1 if is_global else 2).transpose(0, 1)
    return (products / products.sum(-1, keepdim=True)).float()


def _marginals(core: StructuredCore, potentials: Potentials, is_unit: Bool[Tensor, "B N"]) -> tuple[Tensor, Tensor]:
    """The marginals of a core's structure, and their logarithms."""
    unary, transition = potentials.unary_scores, potentials.transition_scores
    if transition is not None and core.structure is LinearChain:
        marginals = _chain_marginals(unary, transition, is_unit)
        return marginals, marginals.clamp(min=1e-30).log()
    if transition is not None:
        unary = _mean_field(unary, transition, is_unit, core.settings.num_iterations)
    log_marginals = unary.log_softmax(-1)
    return log_marginals.exp(), log_marginals


def _scores(potentials: Potentials) -> list[Tensor]:
    """What Viterbi needs: unary scores and, if they are local, transitions."""
    unary, transition = potentials.unary_scores, potentials.transition_scores
    return [unary] if transition is None or transition.dim() == 2 else [unary, transition]


class _Direct(nn.Module):
    """A direct system."""

    def __init__(self, states: _States, core: DirectCore, *, use_viterbi: bool) -> None:
        super().__init__()
        self.states, self.core, self.use_viterbi = states, core, use_viterbi

    def forward(self, table: Tensor, rows: Tensor, pair_rows: Tensor, is_unit: Tensor) -> tuple[Tensor, ...]:
        layout = PaddedLayout(is_unit)
        potentials = self.core.scorer(self.states(table, rows, pair_rows, layout), layout)
        marginals, log_marginals = _marginals(self.core, potentials, is_unit)
        return marginals, *(_scores(potentials) if self.use_viterbi else [log_marginals])


class _Encoder(nn.Module):
    """The encoder's part of every call."""

    def __init__(self, states: _States, core: CategoricalCore | BitsCore) -> None:
        super().__init__()
        self.states, self.denoiser = states, core.denoiser

    def forward(self, table: Tensor, rows: Tensor, pair_rows: Tensor, is_unit: Tensor) -> tuple[Tensor, ...]:
        conditions = self.denoiser.prepare(self.states(table, rows, pair_rows, PaddedLayout(is_unit)))
        if conditions.scores is not None:
            return (conditions.scores,)
        assert conditions.final is not None, "states that have no scores are in the modulations"
        return (*conditions.blocks, conditions.final, *([] if conditions.input is None else [conditions.input]))


def _conditions(values: Sequence[Tensor], denoiser: LabelDenoiser | BitDenoiser) -> Conditions:
    if isinstance(denoiser, LabelDenoiser) and denoiser.state_scorer is not None:
        return Conditions(scores=values[0])
    num_blocks = len(denoiser.transformer.blocks)
    blocks, final, of_input = values[:num_blocks], values[num_blocks], values[num_blocks + 1 :]
    return Conditions(tuple(blocks), final, of_input[0] if of_input else None)


class _Step(nn.Module):
    """ρ₀ from beliefs at t, and beliefs at s < t from both: one round of Algorithm 1."""

    def __init__(self, core: CategoricalCore, *, use_viterbi: bool) -> None:
        super().__init__()
        self.core, self.use_viterbi = core, use_viterbi

    def forward(self, beliefs: Tensor, is_unit: Tensor, t: Tensor, s: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        conditions = _conditions(values, self.core.denoiser)
        potentials = self.core.potentials(beliefs, t, conditions, PaddedLayout(is_unit))
        marginals, _ = _marginals(self.core, potentials, is_unit)
        reading = self.core.config.inference.posterior
        new_beliefs = self.core.process.posterior(beliefs, marginals, t, s, reading=reading)
        return new_beliefs, marginals, *(_scores(potentials) if self.use_viterbi else [])


class _BitStep(nn.Module):
    """x̂₀ from x_t, clipped to the range of the codes."""

    def __init__(self, core: BitsCore) -> None:
        super().__init__()
        self.denoiser, self.scale = core.denoiser, core.codes.scale

    def forward(self, noisy: Tensor, previous: Tensor, is_unit: Tensor, t: Tensor, *values: Tensor) -> Tensor:
        conditions = _conditions(values, self.denoiser)
        found = self.denoiser(noisy, t, conditions, PaddedLayout(is_unit), previous=previous)
        return (found * self.scale).clamp(-self.scale, self.scale)


_AXES = {
    **dict.fromkeys(("form_ids", "lengths", "affix_rows", "feature_rows", "vectors"), "W"),
    "character_ids": "WC",
    "table": "R",
    "t": "",
    "s": "",
    "transition": "BM",
}
"""the dimensions of inputs and outputs that are free, from the first; (B, N) for all others"""


def _write_graphs(labeller: Labeller, decoder: str, folder: Path) -> None:
    encoder, core = labeller.encoder, labeller.core
    assert isinstance(encoder, SupportedEncoder)
    write = functools.partial(_write_graph, folder)
    features = encoder.features
    num_features = 0 if features is None else sum(len(features.columns(d)) for d in range(features.radius + 1))
    words = {
        # Different ones: the window encoder has a shorter way for words of one form.
        "form_ids": torch.arange(3) % encoder.words.num_embeddings,
        "character_ids": torch.ones(3, 5, dtype=torch.int64),
        "lengths": torch.tensor([5, 2, 1]),
        "affix_rows": torch.zeros(3, 1 + 2 * LONGEST_AFFIX, dtype=torch.int64),
        "feature_rows": torch.zeros(3, num_features, dtype=torch.int64),
    }
    write(WORDS, _Words(encoder), words, ["vectors"])
    is_unit = torch.tensor([[True] * 4, [True] * 3 + [False]])
    sentences = {
        "table": torch.zeros(9, encoder.vector_width),
        "rows": torch.arange(1, 9).view(2, 4) * is_unit,
        "pair_rows": torch.zeros(2, 4, 2, dtype=torch.int64),
        "is_unit": is_unit,
    }
    states, use_viterbi = _States(encoder), decoder == "viterbi"
    is_local = isinstance(core, DirectCore | CategoricalCore) and core.scorer.local_transitions is not None
    scores = ["unary", *(["transition"] if is_local else [])] if use_viterbi else []
    if isinstance(core, DirectCore):
        write(SCORES, _Direct(states, core, use_viterbi=use_viterbi), sentences, ["marginals", *(scores or ["unary"])])
        return
    assert isinstance(core, CategoricalCore | BitsCore)
    prepared = _Encoder(states, core)
    conditions = {f"condition_{number}": value for number, value in enumerate(prepared(*sentences.values()))}
    write(ENCODER, prepared, sentences, list(conditions))
    shared = {"is_unit": is_unit, "t": torch.tensor([core.process.num_steps])}
    if isinstance(core, BitsCore):
        noisy = torch.zeros(2, 4, core.codes.num_bits)
        write(STEP, _BitStep(core), {"noisy": noisy, "previous": noisy, **shared, **conditions}, ["clean"])
        return
    inputs = {"beliefs": core.process.uniform((2, 4)), **shared, "s": torch.tensor([0]), **conditions}
    write(STEP, _Step(core, use_viterbi=use_viterbi), inputs, ["new_beliefs", "marginals", *scores])


def _write_graph(folder: Path, name: str, module: nn.Module, inputs: dict[str, Tensor], outputs: list[str]) -> None:
    """Trace ``module`` on ``inputs``, whose values and free sizes do not matter."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    if size > MOST_BYTES:
        raise InputError(f"{name} would have more than two gigabytes", remedy="export a smaller model")
    module.eval()
    # With gradients on, though no weight has any, GELU is one operator of the graph and not PyTorch's fastest few.
    with warnings.catch_warnings(), torch.enable_grad():
        # The newer exporter takes fifteen seconds for a graph instead of one; branches on values are fixed on purpose.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            str(folder / name),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_axes={key: dict(enumerate(_AXES.get(key, "BN"))) for key in (*inputs, *outputs)},
        )

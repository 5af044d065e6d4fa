"""The README.md of a model folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diffusion_mf import __version__
from diffusion_mf.data.label_schemes import LabelScheme

if TYPE_CHECKING:
    from diffusion_mf.config import Config, EncoderConfig
    from diffusion_mf.model.storage import StoredModel


def model_card(model: StoredModel, *, base_model: str | None, labels: Sequence[str], num_parameters: int) -> str:
    """What the model is, how it was trained, how well it does and how to use it; ``labels`` are those that users read."""
    config, metrics, scheme, chosen_calls = model.config, model.metrics, model.output_scheme, model.chosen_calls
    decoder, tagging_decoder = model.decoder, model.tagging_decoder
    table = _scores(metrics, decoder, tagging_decoder) or ["Nothing was measured."]
    label_names = ", ".join(labels).replace("|", "\\|")
    data = config.data.train
    encoder = _encoder(config.encoder, base_model)
    has_recall = config.recall > 0
    argument = f", plugins={json.dumps(config.plugins)}" if config.plugins else ""
    options = "".join(f" --plugin {plugin}" for plugin in config.plugins)
    lines = [
        "---",
        "library_name: diffusion-mf",
        "pipeline_tag: token-classification",
        "tags: [sequence-labelling, diffusion, structured-prediction]",
        *([f"language: {config.card.language}"] if config.card.language else []),
        *([f"license: {config.card.licence.lower()}"] if config.card.licence else []),
        *([f"base_model: {base_model}"] if base_model else []),
        "---",
        "",
        f"# {config.system} for {config.task}",
        "",
        f"A sequence labeller made with diffusion-mf {__version__}.",
        "",
        "| | |",
        "|---|---|",
        f"| system | {config.system} |",
        f"| task | {config.task} |",
        f"| labels | {len(labels)}: {label_names} |",
        *([] if scheme is LabelScheme.PLAIN else [f"| scheme | {scheme} |"]),
        f"| parameters | {num_parameters:,} |",
        f"| encoder | {encoder} |",
        *(
            [f"| plugins | {', '.join(config.plugins)}: code that does not come with the model |"]
            * bool(config.plugins)
        ),
        f"| trained on | {os.path.basename(data) if data else 'not recorded'} |",
        *([f"| trained for | {metrics['step']:,} steps, {metrics['epoch']} epochs |"] if "step" in metrics else []),
        f"| seed | {config.seed} |",
        f"| decoder | {_decoders(decoder, tagging_decoder)} |",
        *(
            [f"| denoiser calls | {chosen_calls}: the fewest that are as good as any on dev (table below) |"]
            * (chosen_calls is not None)
        ),
        *(
            ["| recall | uses the other occurrences of a word in its document: mark or pass documents when tagging |"]
            * has_recall
        ),
        f"| temperature of scores | {model.temperature:.4g} |",
        "",
        "## How good it is",
        "",
        *table,
        "",
        *_calls(metrics),
        *_speed(metrics),
        "Scores on text unlike its training data will be lower.",
        "",
        *_origin(config),
        "## How to use it",
        "",
        "```python",
        "from diffusion_mf import Tagger",
        "",
        f'tagger = Tagger.from_pretrained("this-folder"{argument})  # or the name of this repository',
        'result = tagger.tag([["units", "of", "a", "sentence"]])[0]',
        "result.labels, result.scores, result.spans",
        "```",
        "",
        "Or as a pipeline of transformers would be used:",
        "",
        "```python",
        "from diffusion_mf.tagger import TokenClassificationPipeline",
        "",
        "pipeline = TokenClassificationPipeline.from_pretrained("
        f'"this-folder"{argument}, aggregation_strategy="simple")',
        'pipeline("The text of a sentence.")',
        "```",
        "",
        f"On the command line: `dmf tag this-folder FILE{options}` or `dmf evaluate this-folder FILE{options}`.",
        "",
        "The files are JSON and safetensors: loading them runs no code"
        + (" but that of the plugins that you name." if config.plugins else ".")
        + " `manifest.json` holds the SHA-256 checksum of every file that is loaded.",
    ]
    return "\n".join(lines) + "\n"


def _speed(metrics: Mapping[str, Any]) -> list[str]:
    speed = metrics.get("speed")
    return [f"{speed['words_per_second']:,} words a second on one core ({speed['hardware']}).", ""] if speed else []


def _origin(config: Config) -> list[str]:
    card = config.card
    lines = [
        *([card.attribution, ""] if card.attribution else []),
        *([f"Licence of the model: {card.licence}.", ""] if card.licence else []),
        *(["This command makes it again:", "", f"    {card.command}", ""] if card.command else []),
    ]
    return ["## Where it comes from", "", *lines] if lines else []


def _encoder(config: EncoderConfig, hub_name: str | None) -> str:
    """The encoder's name on the hub, or the name of its folder, without the path."""
    if config.kind != "pretrained" or config.model is None:
        return str(config.kind)
    name = hub_name or os.path.basename(os.path.normpath(config.model))
    return f"pretrained: {name}, {config.pooling} subword"


def _decoders(best: str, tagging: str) -> str:
    if best == tagging:
        return tagging
    return f"{tagging}: the best on dev of those whose output is always legal; {best} was the best of all"


def _calls(metrics: Mapping[str, Any]) -> list[str]:
    """A row for every number of calls that was tried on dev."""
    rows: Sequence[Mapping[str, Any]] = metrics.get("calls") or []
    if not rows:
        return []
    names = [name for name in rows[0] if name not in ("calls", "decoder")]
    return [
        f"| denoiser calls | {' | '.join(f'dev {name}' for name in names)} |",
        "|---:|" + "---:|" * len(names),
        *(f"| {row['calls']} | {' | '.join(f'{row[name]:.2f}' for name in names)} |" for row in rows),
        "",
    ]


def _scores(metrics: Mapping[str, Any], decoder: str, tagging_decoder: str) -> list[str]:
    """A row per metric and a column per corpus, for the best decoder, and for the one that taggers use if it is another."""
    splits = {name: metrics[name] for name in ("dev", "test") if metrics.get(name)}
    if decoder != tagging_decoder:
        splits = {f"{name}, {decoder}": scores for name, scores in splits.items()}
        if found := metrics.get("decoders", {}).get(tagging_decoder):
            splits = {f"dev, {tagging_decoder}": found, **splits}
    names = dict.fromkeys(name for scores in splits.values() for name in scores)
    rows = [
        f"| {name} | "
        + " | ".join(f"{scores[name]:.2f}" if name in scores else "–" for scores in splits.values())
        + " |"
        for name in names
    ]
    return ["| % | " + " | ".join(splits) + " |", "|---|" + "---:|" * len(splits), *rows] if rows else []

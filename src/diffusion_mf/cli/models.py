"""``dmf models``: the models that come with the package."""

from typing import Annotated

import typer

from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, note, print_json, print_table


def models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with folders, labels, attribution and all scores.")
    ] = False,
) -> None:
    """List the models that come with the package; dmf tag --model NAME uses one."""
    from diffusion_mf.evaluation import PRIMARY_METRICS
    from diffusion_mf.model.storage import read_config, read_metrics
    from diffusion_mf.tagger.shipped import shipped_models

    found = shipped_models()
    if not found:
        raise InputError("no models come with this copy of the package", remedy="install a released version")
    rows = []
    values: list[dict[str, object]] = []
    for name, folder in found.items():
        config, metrics = read_config(folder), read_metrics(folder)
        metric = PRIMARY_METRICS[config.task]
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        speed = metrics.get("speed", {}).get("words_per_second")
        scores = [metrics[split].get(metric) if split in metrics else None for split in ("dev", "test")]
        rows.append(
            (
                name,
                config.card.language,
                str(config.task),
                config.system,
                metric,
                *(None if score is None else half_up(score, 2) for score in scores),
                speed,
                half_up(size / 1e6, 1),
                config.card.licence,
            )
        )
        values.append(
            {
                "name": name,
                "folder": str(folder),
                "task": str(config.task),
                "system": config.system,
                **config.card.model_dump(),
                "bytes": size,
                **{key: metrics[key] for key in ("dev", "test", "speed") if key in metrics},
            }
        )
    if as_json:
        print_json(values)
        return
    print_table(["name", "language", "task", "system", "metric", "dev", "test", "words/s", "MB", "licence"], rows)
    note("words/s: on one core, as the card of each model says (README.md in its folder; --json names it)")

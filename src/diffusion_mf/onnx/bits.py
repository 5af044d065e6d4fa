"""DiffusionSL in NumPy: noise keyed by the sentence, DDIM, codes (see `diffusion.bits` and `diffusion.keyed_random`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from diffusion_mf.onnx.folder import Manifest

_FACTOR = np.uint64(0x5851F42D4C957F2D)
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_DDIM_STREAM = 8
"""`model.core.Use.DDIM`"""


def content_keys(form_ids: np.ndarray) -> np.ndarray:
    """Σᵢ formᵢ·fⁱ⁺¹ modulo 2⁶⁴, of ids (B, N) with 0 for padding."""
    powers = np.full(form_ids.shape[1], _FACTOR).cumprod()
    return (form_ids.astype(np.uint64) * powers).sum(1)


def keyed_normals(keys: np.ndarray, shape: tuple[int, ...], *, seed: int, step: int) -> np.ndarray:
    """Standard normal numbers (B, *shape) for the sentences with these keys."""
    state = np.zeros_like(keys)
    for part in (seed, step, _DDIM_STREAM, keys):
        state = _mixed(state + _INCREMENT) ^ (part if isinstance(part, np.ndarray) else np.uint64(part))
    state = _mixed(state + _INCREMENT)
    counter = np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
    hashes = _mixed(state[:, None] + counter * _INCREMENT)
    midpoints = ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    normals = np.fromiter(map(NormalDist().inv_cdf, midpoints.ravel().tolist()), np.float32, midpoints.size)
    return normals.reshape(len(keys), *shape)


def _mixed(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def ddim(
    manifest: Manifest,
    denoise: Callable[[np.ndarray, np.ndarray, int], np.ndarray],
    form_ids: np.ndarray,
    num_bits: int,
) -> np.ndarray:
    """z (B, N, b), the mean over samples of DDIM from noise; ``denoise`` takes x_t, the last x̂₀ and t."""
    schedule, signal, eta = manifest["schedule"], manifest["signal"], manifest["eta"]
    keys, shape = content_keys(form_ids), (form_ids.shape[1], num_bits)
    total = np.zeros((len(form_ids), *shape), dtype=np.float32)

    def noise(sample: int, call: int) -> np.ndarray:
        return keyed_normals(keys, shape, seed=manifest["seed"], step=sample * (len(schedule) + 1) + call)

    for sample in range(manifest["num_samples"]):
        x_t = noise(sample, 0)
        clean = np.zeros_like(x_t)
        for call in range(1, len(schedule)):
            clean = denoise(x_t, clean, schedule[call - 1])
            before, after = signal[call - 1], signal[call]
            sigma = eta * math.sqrt((1 - after) / (1 - before) * (1 - before / after))
            predicted_noise = (x_t - math.sqrt(before) * clean) / math.sqrt(1 - before)
            x_t = math.sqrt(after) * clean + math.sqrt(max(1 - after - sigma**2, 0.0)) * predicted_noise
            if eta and schedule[call]:
                x_t = x_t + sigma * noise(sample, call)
        total += x_t
    return total / np.float32(manifest["num_samples"])


def decode_native(bits: np.ndarray, num_labels: int) -> np.ndarray:
    """Threshold every coordinate, the most significant first; −1 for what is no code of a label."""
    values = ((bits > 0) << np.arange(bits.shape[-1] - 1, -1, -1)).sum(-1)
    return np.where(values < num_labels, values, -1)


def unary_scores(bits: np.ndarray, codes: np.ndarray, temperature: float) -> np.ndarray:
    """u(ℓ) = −‖z − c_ℓ‖²/τ."""
    return np.square(bits[..., None, :] - codes).sum(-1) / -np.float32(temperature)

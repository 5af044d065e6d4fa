"""The model and corpora for measuring throughput, trained and used as in `dmf train` and `Tagger`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from diffusion_mf.batches.batching import EncodedSentences
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config
from diffusion_mf.data.sentence import Sentence, cut_documents
from diffusion_mf.evaluation.terminal import note
from diffusion_mf.lab.benchmarks.timing import Workload, seconds_of
from diffusion_mf.model import Labeller, Prediction
from diffusion_mf.ops.backends import Backend
from diffusion_mf.prediction.precision import autocast_for, compile_blocks, half_weights_for, uses_packing
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.prediction.sentences import predict_sentences
from diffusion_mf.training.corpora import TrainingData, read_training_data
from diffusion_mf.training.gradients import StepGradients
from diffusion_mf.training.optimizer import Learner
from diffusion_mf.training.processes import Processes
from diffusion_mf.training.steps import PackingSettings, PreparedStep, StepPlan, StepPreparer

MOST_WARM_UPS = 6


def read_data(config: Config) -> TrainingData:
    """Read the data that ``config`` names, printing the same messages as training on stderr."""
    data = read_training_data(config)
    for message in data.notes:
        note(message)
    return data


class Session:
    """A new model, ready to be timed; with ``is_plain``, structures are computed in plain PyTorch too."""

    def __init__(self, config: Config, data: TrainingData, device: torch.device, *, is_plain: bool = False) -> None:
        self.config, self.data, self.device = config, data, device
        settings = config.training
        torch.manual_seed(config.seed)
        # Not the reference implementation, which computes in float64.
        backend: Backend = "torch" if is_plain else "auto"
        self.labeller = Labeller(config, data.vocabulary, data.scheme, backend=backend).to(device).train()
        if settings.compile and device.type == "cuda":
            torch._dynamo.reset()  # code compiled for another model would count towards the limit
            compile_blocks(self.labeller)
        self._processes = Processes(0, 1, device)
        self._is_packed = uses_packing(
            device, config.encoder.kind, layout=settings.layout, precision=settings.precision
        )
        self._learner = Learner(self.labeller, settings, total_steps=100_000)
        packing = PackingSettings(
            settings.budget, config.encoder.max_characters, is_flat=settings.use_graphs and device.type == "cuda"
        )
        self._preparer = StepPreparer(
            data.train,
            data.vocabulary,
            self._processes,
            packing=packing if self._is_packed else None,
            recall=config.recall,
        )
        self._gradients = StepGradients(
            self.labeller,
            self._learner.optimizer,
            self._preparer,
            self._processes,
            seed=config.seed,
            autocast=autocast_for(device, settings.precision),
            half_weights=half_weights_for(self.labeller, device, settings.precision),
        )
        self._lengths = [len(sentence.units) for sentence in data.train]
        self._step = 0
        self._num_pieces = 1

    def training_run(self) -> Callable[[], float]:
        """A function that runs one epoch of full updates, including collation, and returns its wall-clock seconds, after warm-up.

        Every epoch has the same batches, so that all batch shapes are recorded after a few.
        """
        settings = self.config.training
        plans = self._preparer.plan_epoch(self._lengths, settings, seed=self.config.seed, epoch=0)
        self.labeller.train()
        _warm_up(lambda: self._epoch(plans), lambda: self._gradients.num_recordings, is_recorded=self._is_packed)

        def run() -> float:
            self.labeller.train()
            return seconds_of(lambda: self._epoch(plans), self.device)

        return run

    def _epoch(self, plans: Sequence[StepPlan]) -> None:
        for prepared in self._preparer.stream(plans, 1):
            self._update(prepared)

    def _update(self, prepared: PreparedStep) -> None:
        units = sum(self._lengths[index] for batch in prepared.plan for index in batch)
        _, self._num_pieces = self._gradients.compute(
            prepared, step=self._step, units=units, num_pieces=self._num_pieces
        )
        self._learner.update(self._step)
        self._step += 1

    def inference_run(self, sentences: Sequence[Sentence], *, base: float | None = None) -> Callable[[], float]:
        """A function that labels ``sentences`` once and returns the wall-clock seconds, after warm-up.

        They are those of encoder, reverse process and argmax up to labels on the host, without vocabulary look-up. ``base`` replaces
        the configuration's schedule.
        """
        config = self.config
        if base is not None:
            inference = config.inference.model_copy(update={"base": base, "num_calls": None})
            config = config.model_copy(update={"inference": inference})
        return inference_run(self.labeller, config, self.data.vocabulary, sentences, self.device)


def inference_run(
    labeller: Labeller,
    config: Config,
    vocabulary: Vocabulary,
    sentences: Sequence[Sentence],
    device: torch.device,
    *,
    num_calls: int | None = None,
) -> Callable[[], float]:
    """`Session.inference_run` for any model; ``num_calls`` replaces the configuration's schedule."""
    if config.recall:
        sentences = [*cut_documents(sentences)]
    rows = EncodedSentences(sentences, vocabulary, has_labels=False, recall=config.recall)
    predictor = Predictor(labeller, config, device)

    def best(prediction: Prediction, *, members: Sequence[int], allowed: torch.Tensor | None) -> list[torch.Tensor]:
        scores = prediction.decoder_input.unary_scores
        assert scores is not None
        return [scores.argmax(-1).to(torch.uint8)]

    def label() -> None:
        for _ in predict_sentences(
            predictor, sentences, vocabulary, best, budget=config.inference.budget, rows=rows, num_calls=num_calls
        ):
            pass

    labeller.eval()
    with torch.inference_mode():
        _warm_up(label, lambda: predictor.num_recordings, is_recorded=predictor.is_packed)

    def run() -> float:
        labeller.eval()
        with torch.inference_mode():
            return seconds_of(label, device)

    return run


def _warm_up(run: Workload, num_recordings: Callable[[], int], *, is_recorded: bool) -> None:
    """Run once or, if graphs are recorded, until no new one is: shapes are recorded when they are seen again."""
    before = 0
    for count in range(MOST_WARM_UPS):
        run()
        if num_recordings() == before and (count > 0 or not is_recorded):
            break
        before = num_recordings()


def linear_operations(labeller: Labeller, *, num_calls: int) -> tuple[float, float]:
    """Floating-point operations of linear layers per unit, in a training step and in inference with ``num_calls`` calls.

    The backward pass counts as twice the forward pass. Attention, the character LSTM, structures and work done once per sentence
    are left out, so utilisation is understated.
    """
    once = per_call = 0
    for name, module in labeller.named_modules():
        if not isinstance(module, nn.Linear) or "time" in name:
            continue
        operations = 2 * module.in_features * module.out_features
        is_shared = name.startswith(("encoder.", "recall.", "auxiliary")) or "of_state" in name
        once, per_call = (once + operations, per_call) if is_shared else (once, per_call + operations)
    return 3.0 * (once + per_call), once + num_calls * per_call

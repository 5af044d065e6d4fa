"""What throughput is measured on: a model with its corpora, trained and used as `dmf train` and `Tagger` do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from diffusion_mf.batches.batching import EncodedSentences
from diffusion_mf.config import Config
from diffusion_mf.data.sentence import Sentence, cut_documents
from diffusion_mf.evaluation.terminal import note
from diffusion_mf.lab.benchmarks.timing import Run, seconds_of, synchronise
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
STEPS_BETWEEN_LOOKS = 10


def read_data(config: Config) -> TrainingData:
    """The data that ``config`` names; what was repaired in them, and what else training would say, is told on stderr."""
    data = read_training_data(config)
    for message in data.notes:
        note(message)
    return data


class Session:
    """A fresh model, ready to be timed; ``is_plain`` computes structures by plain PyTorch, too."""

    def __init__(self, config: Config, data: TrainingData, device: torch.device, *, is_plain: bool = False) -> None:
        self.config, self.data, self.device = config, data, device
        settings = config.training
        torch.manual_seed(config.seed)
        # Not the reference, which is in float64.
        backend: Backend = "torch" if is_plain else "auto"
        self.labeller = Labeller(config, data.vocabulary, data.scheme, backend=backend).to(device).train()
        if settings.compile and device.type == "cuda":
            torch._dynamo.reset()  # what was compiled for another model would count against the limit
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

    def training_seconds(self, *, repeats: int, members: Sequence[int] | None = None) -> list[float]:
        """Wall-clock seconds of so many epochs of full updates, collation included, after warm-up.

        Every epoch has the same batches, so that after a few all forms of batches are recorded. ``members`` restricts the
        sentences.
        """
        run = self.training_run(members)
        return [run() for _ in range(repeats)]

    def training_run(self, members: Sequence[int] | None = None) -> Callable[[], float]:
        """An epoch of full updates, warmed up: each call makes one and returns its seconds, as `training_seconds` has them."""
        plans = self._warm_plans(members)

        def run() -> float:
            self.labeller.train()
            return seconds_of(lambda: self._epoch(plans), self.device)

        return run

    def train_for(self, seconds: float, *, wait: Callable[[], object]) -> tuple[int, float]:
        """Full updates for so many seconds, after warm-up and ``wait``: how many sentences they took, and how long."""
        plans = self._warm_plans()
        synchronise(self.device)
        wait()
        num_sentences, start = 0, time.perf_counter()
        while True:
            for prepared in self._preparer.stream(plans, 1):
                self._update(prepared)
                num_sentences += sum(map(len, prepared.plan))
                if self.device.type == "cpu" or self._step % STEPS_BETWEEN_LOOKS == 0:
                    # The host must not run ahead for longer than the time that is measured.
                    synchronise(self.device)
                    if time.perf_counter() - start >= seconds:
                        return num_sentences, time.perf_counter() - start

    def _warm_plans(self, members: Sequence[int] | None = None) -> list[StepPlan]:
        """The steps of an epoch, all of them made before."""
        settings = self.config.training
        plans = self._preparer.plan_epoch(self._lengths, settings, seed=self.config.seed, epoch=0, members=members)
        self.labeller.train()
        self._warm_up(lambda: self._epoch(plans), lambda: self._gradients.num_recordings)
        return plans

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

    def inference_seconds(
        self, sentences: Sequence[Sentence], *, repeats: int, base: float | None = None
    ) -> list[float]:
        """Wall-clock seconds of encoder, reverse process and argmax, labels on the host; looked up in the vocabulary before.

        ``base`` takes the place of the configuration's schedule.
        """
        run = self.inference_run(sentences, base=base)
        return [run() for _ in range(repeats)]

    def inference_run(self, sentences: Sequence[Sentence], *, base: float | None = None) -> Callable[[], float]:
        """A pass over ``sentences``, warmed up: each call makes one and returns its seconds, as `inference_seconds` has them."""
        config = self.config
        if base is not None:
            inference = config.inference.model_copy(update={"base": base, "num_calls": None})
            config = config.model_copy(update={"inference": inference})
        if config.recall:
            sentences = [*cut_documents(sentences)]
        rows = EncodedSentences(sentences, self.data.vocabulary, has_labels=False, recall=config.recall)
        predictor = Predictor(self.labeller, config, self.device)

        def best(prediction: Prediction, *, members: Sequence[int], allowed: torch.Tensor | None) -> list[torch.Tensor]:
            scores = prediction.decoder_input.unary_scores
            assert scores is not None
            return [scores.argmax(-1).to(torch.uint8)]

        def label() -> None:
            for _ in predict_sentences(
                predictor, sentences, self.data.vocabulary, best, budget=config.inference.budget, rows=rows
            ):
                pass

        self.labeller.eval()
        with torch.inference_mode():
            self._warm_up(label, lambda: predictor.num_recordings)

        def run() -> float:
            self.labeller.eval()
            with torch.inference_mode():
                return seconds_of(label, self.device)

        return run

    def _warm_up(self, run: Run, num_recordings: Callable[[], int]) -> None:
        """Run once, and where work is recorded until nothing new is: forms are recorded when they are seen again."""
        before = 0
        for count in range(MOST_WARM_UPS):
            run()
            if num_recordings() == before and (count > 0 or not self._is_packed):
                break
            before = num_recordings()


def linear_operations(labeller: Labeller, *, num_calls: int) -> tuple[float, float]:
    """Floating-point operations per unit of linear layers: of a training step, and of inference with so many calls.

    Backward counts twice the forward pass. Attention, the character LSTM, structures and what is computed once per sentence
    are left out, so that utilisation is understated.
    """
    once = per_call = 0
    for name, module in labeller.named_modules():
        if not isinstance(module, nn.Linear) or "time" in name:
            continue
        operations = 2 * module.in_features * module.out_features
        is_shared = name.startswith("encoder.") or "of_state" in name or name.startswith("auxiliary")
        once, per_call = (once + operations, per_call) if is_shared else (once, per_call + operations)
    return 3.0 * (once + per_call), once + num_calls * per_call

"""A teacher's marginals for the sentences of a run (Hinton et al., 2015)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from diffusion_mf.acceleration.prediction import Predictor
from diffusion_mf.config import Config
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.calibration import calibrated
from diffusion_mf.memory import placed
from diffusion_mf.model.teacher import TeacherMarginals
from diffusion_mf.tagger.storage import load_model
from diffusion_mf.training.corpora import TrainingData
from diffusion_mf.training.distributed import Processes
from diffusion_mf.training.evaluation import predict_all


def teacher_marginals(
    config: Config, data: TrainingData, processes: Processes, *, note: Callable[[str], None]
) -> TeacherMarginals | None:
    """What the model in ``config.data.teacher`` holds of every training unit, by its calibrated marginals; None without one.

    The processes share the work. A teacher of other labels is an `InputError`.
    """
    folder = config.data.teacher
    if folder is None:
        return None
    teacher = load_model(folder)
    # One trained by an earlier version lacks boundary labels that do not occur in training.
    occurring = {label for sentence in data.train for label in sentence.labels or ()}
    if not occurring <= set(teacher.vocabulary.labels) <= set(data.vocabulary.labels):
        raise InputError(
            "the teacher has other labels than the training data", path=folder, remedy="train it on the same data"
        )
    if teacher.config.data.lowercase != config.data.lowercase:
        raise InputError(
            f"the teacher was trained with data.lowercase = {str(teacher.config.data.lowercase).lower()}",
            path=folder,
            remedy="set the same here",
        )
    note(f"the teacher labels {len(data.train):,} training sentences")
    predictor = Predictor(placed(teacher.labeller, processes.device).eval(), teacher.config, processes.device)
    _, marginals = predict_all(predictor, data.train, teacher.config, teacher.vocabulary, [teacher.decoder], processes)
    softened = torch.zeros(len(marginals), len(data.vocabulary.labels))
    columns = [data.vocabulary.label_ids[label] for label in teacher.vocabulary.labels]
    softened[:, columns] = calibrated(marginals.clamp(min=1e-12), teacher.temperature)
    return TeacherMarginals(softened, [len(sentence.units) for sentence in data.train]).to(processes.device)

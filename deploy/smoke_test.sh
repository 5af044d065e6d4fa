#!/usr/bin/env bash
# Install a wheel or source archive with its default requirements into a clean environment, and use it away from the sources.
set -euo pipefail
package=$(realpath "$1")
constraints=$(realpath "$(dirname "$0")/../constraints.txt")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYTHONPATH
"${PYTHON:-python3}" -m venv "$folder/venv"
# PyTorch first: the exact version is the one that was tested.
"$folder/venv/bin/pip" install --quiet --constraint "$constraints" torch==2.13.0
"$folder/venv/bin/pip" install --quiet --constraint "$constraints" "$package"
export PATH="$folder/venv/bin:$PATH" OMP_NUM_THREADS=1
cd "$folder"

dmf --version
echo "Angela Merkel visited Paris." | dmf tag --to columns | grep --quiet "^Merkel.PROPN"
echo "Angela Merkel visited Paris." | dmf tag en-ner --to spans | grep --quiet "LOC.*Paris"
dmf data synth corpus --flavour ner --sentences 30 --seed 1 > /dev/null
dmf data check --train corpus/ner/train.txt --dev corpus/ner/dev.txt > /dev/null
dmf config show ours/ner/diffusion-mf > /dev/null
dmf train corpus/ner/train.txt --dev corpus/ner/dev.txt --output run --set training.epochs=1 2> /dev/null > /dev/null
dmf tag run/model corpus/ner/test.txt --output tagged.txt
dmf score corpus/ner/test.txt tagged.txt --task ner --json > /dev/null
python - <<'PYTHON'
from diffusion_mf import Tagger

(result,) = Tagger.load("run/model").tag([["John", "lives", "in", "Paris"]])
assert len(result.labels) == len(result.scores) == 4
PYTHON
# An extra that is not there is named in one sentence.
{ dmf serve run/model 2>&1 || true; } | grep --quiet "diffusion-mf\[server\]"
printf '%s: %s kB, works\n' "$(basename "$package")" "$(($(stat --format=%s "$package") / 1024))"

# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Spinning OpenMP threads starve each other on busy cores; passive ones made training many times faster there.
export OMP_WAIT_POLICY ?= passive

.PHONY: setup demo test docs build smoke torture serve-load lint format constraints lock sbom clean
setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/dmf demo --output runs/demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The documentation as a site that needs nothing from elsewhere, in build/site; a broken link is an error.
docs: setup
	$(BIN)/python -c 'import mkdocs' 2> /dev/null || $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Wheel and source archive, in dist.
build: setup
	$(BIN)/python -c 'import build' 2> /dev/null || $(BIN)/pip install --quiet build
	rm -rf dist
	$(BIN)/python -m build --quiet

# Install each of them without extras into an environment of its own, and use it.
smoke:
	PYTHON=$(PYTHON) deploy/smoke_test.sh dist/*.whl
	PYTHON=$(PYTHON) deploy/smoke_test.sh dist/*.tar.gz

# Damage, kills, races and a million odd inputs, for half an hour; rewrites the rows of results/reliability.json.
torture: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/torture.py

# A server under load for about ten minutes; MODEL=folder to choose the model, SCHEMATHESIS=command to send it generated requests, too.
SCHEMATHESIS ?= st
serve-load: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/serve_load.py $(MODEL) --schemathesis $(SCHEMATHESIS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Take the versions now in the environment as the new pins.
constraints:
	{ head -n 1 constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/^torch==\([0-9.]*\).*/torch==\1/'; } > constraints.new
	mv constraints.new constraints.txt

# The same versions with the checksums of their files; UV=path of uv.
UV ?= uv
lock:
	{ head -n 1 requirements.lock; $(UV) pip compile --quiet pyproject.toml --extra dev --constraint constraints.txt --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links; } > lock.new
	mv lock.new requirements.lock

# The software bill of materials, as CycloneDX JSON.
sbom: setup
	$(BIN)/python deploy/sbom.py dist/sbom.json

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

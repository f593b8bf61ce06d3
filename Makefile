# make demo   see it work: a virtual environment, the package, a probed program
# make test   everything the tests need, then all tests
# make check  lint, format, types, direction of imports: seconds
# make bench  measurements; see bench/README.md
# make fuzz   100,000 mutated inputs for each parser; see tests/fuzz/run.py
# PYTHON=... chooses the interpreter, TESTS=... the tests ("make test TESTS=tests/unit").

TESTS ?= tests
SIDESTEP = .venv/installed
TOOLS = .venv/installed-dev

.PHONY: demo test check format bench fuzz clean

demo: $(SIDESTEP)
	.venv/bin/sidestep demo

test: $(TOOLS)
	tests/install-packages
	.venv/bin/python -m pytest $(TESTS)

check: $(TOOLS)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python -m pytest -q tests/unit/test_imports.py

format: $(TOOLS)
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

fuzz: $(TOOLS)
	PYTHONPATH=src:tests .venv/bin/python -m fuzz.run

bench: $(SIDESTEP)
	.venv/bin/python bench/run_all.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(SIDESTEP): pyproject.toml
	tools/make-venv

$(TOOLS): pyproject.toml
	tools/make-venv dev

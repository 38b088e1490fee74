# Everything works in a fresh clone on a machine with Python 3.11 or newer and nothing else: the
# environment in .venv is made, and brought up to date, by the targets themselves.
#
#   make demo      real models, before and after kernelize; one as an ONNX file; layers compiled and published
#   make test      lint, types and tests, as in continuous integration
#   make test-oldest  the tests that depend on PyTorch and Triton, with the oldest PyTorch that is supported
#   make test-all  the same with the tests that are too long for every change, those of the Hub with PostgreSQL, and
#                  the suite with each PyTorch of RELEASES, every one in an environment of its own (7 GB each)
#   make newest    the suite with the newest release of everything: what breaks, and the new constraints.txt
#   make format    let ruff rewrite the sources
#   make docs      the documentation site, in build/site/
#   make api       docs/api.txt, the public interface, written again from the code
#   make release-check  everything that a release is held to; downloads PyTorch for each Python (ARGS=--reuse: nothing)
#   make wheels    sdist, pure wheel, and a wheel with native code for Linux on x86-64, in dist/ (minutes);
#                  ARGS="--machine aarch64": on ARM, built here, too
#   make map       docs/architecture.md, written again from the sources
#   make screenshots  pictures of the Hub's pages at two widths, light and dark, in build/screenshots/; needs chromium
#   make bench     every benchmark (minutes); the results are printed
#
#   make test PYTHON=python3.12     with another Python
#   make test BIN=/path/to/env/bin  in an environment that has everything; nothing is installed
#   make unit TORCH=2.13.0          with another PyTorch, in .venvs/torch-2.13.0
#   make unit ARGS="-k mapping"     a part of the tests
#   make unit PROCESSES=0           in one process; by default one more than CPUs, four at most

PYTHON ?= python3
TORCH ?=
VENV ?= $(if $(TORCH),.venvs/torch-$(TORCH),.venv)
ARGS ?=
# PyTorch as its wheels for CUDA come, each with the one Triton that it names; the newest is in constraints.txt.
OLDEST = 2.11.0
RELEASES = $(OLDEST) 2.13.0 2.14.1
TESTS_OF_VERSIONS = tests/test_triton_interpreted.py tests/layers tests/kernelization tests/compiler/codegen/triton \
	tests/compiler/importers/test_torch_export.py
# Of these, what compiles whole models; `make test-all` runs it with every PyTorch.
WHOLE_MODELS = tests/kernelization/test_compiled_caches.py tests/kernelization/test_compiled_mapping.py
# One more than there are processors: tests wait for servers, compilers and clocks.
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
BENCHMARKS ?= import_time kernelize layers models hub server compiler_front compiler cold_start

ifneq ($(BIN),)
environment =
else
override BIN = $(VENV)/bin
environment = $(VENV)/.installed-$(1)
endif

# Of 22,000 files that are installed a fourth is ever imported: Python compiles those then (pip would take a minute for
# all), and keeps what it compiled, even where a container says that it should not.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-oldest newest lint format types unit docs api release-check wheels map screenshots bench clean distclean
.NOTPARALLEL:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(call environment,demo)
	$(BIN)/kernels-hub demo $(ARGS)

# Types are checked on one core while the tests begin.
test: lint
	@mkdir -p build; $(MAKE) --no-print-directory types >build/types.log 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory unit; failed=$$?; \
	wait $$types || failed=1; cat build/types.log; exit $$failed

test-all: lint types
	$(MAKE) unit ARGS="--exhaustive $(ARGS)"
	$(MAKE) unit ARGS="--exhaustive --hub-database postgresql tests/server tests/hub $(ARGS)"
	$(MAKE) unit ARGS="--hub-objects s3 tests/server tests/hub"
	$(MAKE) unit ARGS="--hub-database postgresql --hub-objects s3 tests/server tests/hub"
	$(MAKE) unit ARGS="--hub-database postgresql --hub-objects s3 --hub-servers 3 tests/server tests/hub"
	$(MAKE) unit ARGS="--hub-objects s3-inside tests/server/test_bad_input.py tests/server/test_signing.py tests/server/test_protocol.py"
	@failed=; for release in $(RELEASES); do \
		echo "== torch $$release"; \
		$(MAKE) unit BIN= TORCH=$$release VENV=.venvs/torch-$$release || failed="$$failed $$release"; \
	done; [ -z "$$failed" ] || { echo "failed with torch$$failed" >&2; exit 1; }

test-oldest:
	$(MAKE) unit BIN= TORCH=$(OLDEST) VENV=.venvs/torch-$(OLDEST) \
		ARGS="$(TESTS_OF_VERSIONS) $(WHOLE_MODELS:%=--ignore=%) $(ARGS)"

newest:
	$(PYTHON) tools/newest.py --environment .venvs/newest $(ARGS)

lint: $(call environment,test)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(call environment,test)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: $(call environment,test)
	$(BIN)/python tools/check_types.py

unit: $(call environment,test)
	$(BIN)/python -m pytest -n $(PROCESSES) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

docs: $(call environment,test)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

api: $(call environment,test)
	$(BIN)/python -m tools.api_surface

release-check: $(call environment,test)
	$(BIN)/python -m tools.release_check $(ARGS)

wheels: $(call environment,test)
	$(BIN)/python -m tools.wheels $(ARGS)

map: $(call environment,test)
	$(BIN)/python -m tools.architecture_map

screenshots: $(call environment,test)
	$(BIN)/python -m tests.server.screenshots build/screenshots

bench: $(call environment,bench)
	@for name in $(BENCHMARKS); do \
		echo "== benchmarks.$$name"; $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; \
	done

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -not -path './.venvs/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venvs

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.12" >&2; exit 1; }
	@echo "== making an environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml setup.py constraints.txt | $(VENV)/bin/python
	@echo "== installing what 'make $*' needs (the first time: minutes, mostly PyTorch)"
	sed -e '/^#/d' $(if $(TORCH),-e 's/^torch==.*/torch==$(TORCH)/' -e '/^setuptools==/d') constraints.txt > $(VENV)/constraints.txt
	$(VENV)/bin/python -m pip install --disable-pip-version-check --no-compile -c $(VENV)/constraints.txt -e '.[$*]'
	@touch $@

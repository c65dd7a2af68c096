# Everything runs from .venv, which `make install` makes. VLLM=no goes without vLLM, VLLM=yes insists on it.
PYTHON ?= python3
VLLM ?= auto
BIN := .venv/bin
# Files are handed out in the order of tests/support/durations.py, the longest first.
WORKERS := 2
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# `make test` runs these on PostgreSQL and S3 alone, `make test-all` on SQLite and a folder, too.
ON_SERVERS := tests/contract tests/system/test_batch_lifecycle.py
# These run on SQLite and a folder, and `make test-all` runs them on PostgreSQL and S3, too.
ALSO_ON_SERVERS := tests/system/test_faults.py tests/system/test_jobs.py

# Their targets are `chaos`, `chaos-jobs`, `chaos-exports`, `chaos-starts` and `compose-test`.
APART := --ignore tests/chaos --ignore tests/compose
# Tests start hundreds of processes: each would compile our modules, and pytest its own forms of the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install dev constraints demo check test test-all durations foreign lm-eval vllm-versions chaos chaos-jobs chaos-exports chaos-starts compose-test mutants lint bench bench-quick screenshots docs dist clean

help:
	@echo "make install      set up .venv with what this machine can use (VLLM=auto|yes|no|cuda, PYTHON=python3)"
	@echo "make constraints  record the versions in .venv, after make test, in deploy/constraints.txt"
	@echo "make demo         run the example batch once, from nothing to scored answers"
	@echo "make check        lint, type check and the tests that need no service: two minutes on two cores"
	@echo "make test         lint, type check and the test suite, each test once"
	@echo "make durations    record what the last make test took, for the order of tests and docs/testing.md"
	@echo "make test-all     the same with more cases, and more of it on PostgreSQL and S3: before a release"
	@echo "make foreign      clients of others in .venv-foreign, and their tests against a stack (CLIENTS=\"litellm langchain\")"
	@echo "make lm-eval      lm-evaluation-harness in .venv-lm-eval, and its tests against a stack"
	@echo "make vllm-versions  the tests of engine vllm with other versions in .venv-vllm (VERSIONS=\"0.30 0.31\")"
	@echo "make bench        the benchmarks, into benchmarks/results/: hours"
	@echo "make bench-quick  the most important of them, once each: five minutes"
	@echo "make screenshots  the pictures of the pages in docs/images/, from a real run"
	@echo "make chaos        faults at random on three hosts of this machine (MINUTES=10 SEED=1); needs root"
	@echo "make chaos-jobs   kill -9 at random over a job (KILLS=100 SEED=1 BACKENDS=local|servers RECIPE=stages|refine|generate|agent|cascade)"
	@echo "make chaos-exports kill -9 at random over an export to a folder, S3 and PostgreSQL (ROWS=200000 KILLS=10 SEED=1)"
	@echo "make chaos-starts starts and stops of whole stacks (TIMES=50 AT_ONCE=2)"
	@echo "make compose-test docker-compose.yml in a container engine: build, up, kill, down, up; needs root, Docker and debootstrap"
	@echo "make mutants      faults in a copy of the tree, one at a time: tests must catch each (ONLY=webhook)"
	@echo "make lint         ruff, mypy, import-linter, and the prose of documents and help texts"
	@echo "make docs         the documentation as a site with search, into site/html; a broken link or anchor fails it"
	@echo "make dist         source distributions and wheels of client and server, into dist/"
	@echo "make clean        remove caches and the demo's data; keeps .venv and data/"

install:
	@$(PYTHON) deploy/install.py --vllm $(VLLM)

dev:
	@$(PYTHON) deploy/install.py --vllm $(VLLM) --extras dev,postgres,s3

# Without local builds: torch's version is in pyproject.toml, vLLM's too.
constraints:
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '[+@]' > deploy/constraints.txt

demo: install
	@$(BIN)/batchyard demo

# Schemathesis takes each process seconds to load, and all that it makes needs a stack.
UNFUZZED := -p no:schemathesis --ignore tests/contract/test_fuzzing.py

# tests/support/stack_marker.py says which tests need a service.
check: dev lint
	$(BIN)/pytest $(PARALLEL) -m "not stack and not long and not exhaustive" $(UNFUZZED) $(APART)

ONCE := -m "not exhaustive"
LOCAL = --ignore tests/compose $(ONCE) $(UNFUZZED) $(addprefix --elsewhere ,$(ON_SERVERS))
SERVERS = --backends servers $(ONCE) $(ON_SERVERS)
test-all: LOCAL = --ignore tests/compose
test-all: SERVERS = --backends servers $(ON_SERVERS) $(ALSO_ON_SERVERS)

# Tests wait for processes: a third of them uses what two leave of two cores. Each has stacks of its own, some of 2 GiB.
test test-all: WORKERS := $(shell awk '/^MemTotal/ {many = $$2 > 20e6} END {print many ? 3 : 2}' /proc/meminfo)
# Both parts run, whatever fails. Nothing is tried twice: a test that fails now and then has a fault, or shows one.
test test-all: dev lint
	@rm -rf .pytest_cache/v/durations
	@failed=; \
	$(BIN)/pytest $(PARALLEL) $(LOCAL) || failed=1; \
	$(BIN)/pytest $(PARALLEL) $(SERVERS) || failed=1; \
	test -z "$$failed"

durations:
	$(BIN)/python -m tests.support.durations --write

# docs/clients.md says what they are, and what does not work. Those without an environment are skipped.
CLIENTS ?=

foreign: dev
	$(BIN)/python deploy/foreign.py $(CLIENTS)
	$(BIN)/pytest tests/foreign -rs

# The packages of lm-evaluation-harness are too many for .venv.
lm-eval: dev
	$(BIN)/python deploy/beside.py .venv-lm-eval lm-eval
	$(BIN)/pytest tests/foreign/test_lm_eval.py

VERSIONS ?= 0.30 0.31

vllm-versions: dev
	$(BIN)/python deploy/vllm_versions.py $(VERSIONS)
	@failed=; for version in $(VERSIONS); do \
		.venv-vllm/$$version/bin/python -m pytest $(ONCE) $(UNFUZZED) tests/inference/engines/vllm \
			tests/inference/test_private_apis.py::test_every_name_exists_in_the_installed_vllm || failed=1; \
	done; test -z "$$failed"

MINUTES ?= 10
SEED ?= 1

chaos: dev
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) --report chaos-$(SEED).md

KILLS ?= 100
BACKENDS ?= local
RECIPE ?= stages

chaos-jobs: dev
	$(BIN)/python -m tests.chaos.jobs --kills $(KILLS) --backends $(BACKENDS) --recipe $(RECIPE) --seed $(SEED) \
		--report chaos-jobs-$(RECIPE)-$(BACKENDS)-$(SEED).md

ROWS ?= 200000
chaos-exports: KILLS = 10

chaos-exports: dev
	$(BIN)/python -m tests.chaos.exports --rows $(ROWS) --kills $(KILLS) --seed $(SEED) --report chaos-exports-$(SEED).md

TIMES ?= 50
AT_ONCE ?= 2

chaos-starts: dev
	$(BIN)/python -m tests.chaos.starts --times $(TIMES) --at-once $(AT_ONCE)

# An engine of its own where none runs. Its images stay in BATCHYARD_TEST_IMAGES, so that a second run builds what is new.
compose-test: dev
	$(BIN)/pytest tests/compose -s --exitfirst --timeout 1800 -p no:schemathesis

ONLY ?=

mutants: dev
	$(BIN)/python -m tests.mutants $(if $(ONLY),--only "$(ONLY)")

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/prose.py

# The most important ones first.
bench: dev
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/small_batches.py
	$(BIN)/python benchmarks/live.py
	$(BIN)/python benchmarks/live.py --replicas 2
	$(BIN)/python benchmarks/live.py --model 300m
	$(BIN)/python benchmarks/bounded_without_live.py
	$(BIN)/python benchmarks/live_direct.py
	for model in h100-8b a100x4-70b llm-d; do $(BIN)/python benchmarks/live_steps.py --model $$model || exit; done
	$(BIN)/python benchmarks/footprint.py
	$(BIN)/python benchmarks/eta.py
	$(BIN)/python benchmarks/eta_bound.py
	$(BIN)/python benchmarks/deadlines.py
	$(BIN)/python benchmarks/validation.py
	$(BIN)/python benchmarks/api.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/capacity.py
	$(BIN)/python benchmarks/jobs.py
	$(BIN)/python benchmarks/jobs.py --items 1000 --cv 0.5
	$(BIN)/python benchmarks/jobs.py --turns 8 --rounds 1
	$(BIN)/python benchmarks/jobs.py --beside 50000
	$(BIN)/python benchmarks/rollout.py
	$(BIN)/python benchmarks/embeddings.py
	$(BIN)/python benchmarks/labels.py
	$(BIN)/python benchmarks/cascade.py
	$(BIN)/python benchmarks/cascade.py --filter
	$(BIN)/python benchmarks/cascade.py --supg
	$(BIN)/python benchmarks/cascade.py --real 1200
	$(BIN)/python benchmarks/match.py
	$(BIN)/python benchmarks/panel.py
	$(BIN)/python benchmarks/tune.py
	$(BIN)/python benchmarks/tune.py --real
	$(BIN)/python benchmarks/many_models.py
	$(BIN)/python benchmarks/columns.py
	$(BIN)/python benchmarks/simulation.py
	$(BIN)/python benchmarks/affinity.py
	$(BIN)/python benchmarks/schedules.py
	$(BIN)/python benchmarks/webhooks.py
	$(BIN)/python benchmarks/first_steps.py
	$(BIN)/python benchmarks/installation.py

bench-quick: dev
	$(BIN)/python benchmarks/quick.py

screenshots: dev
	$(BIN)/python docs/screenshots.py

docs: dev
	$(BIN)/python deploy/beside.py .venv-docs docs
	.venv-docs/bin/python docs/build_site.py

# The wheels are made from the source distributions.
dist: dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist deploy/server

clean:
	rm -rf dist site .cache data/demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -exec rm -rf {} +

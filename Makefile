# One command each. The first one on a new machine makes .venv and installs what it needs:
# everything, or for `make demo` little; afterwards only a change of pyproject.toml or
# constraints.txt does.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,\
	$(shell command -v $(p) 2>/dev/null)))
BIN := .venv/bin
STAMP := .venv/.stamp
DEMO_STAMP := .venv/.stamp-demo
COG := PYTHONPATH=docs $(BIN)/cog
COG_FILES := README.md mkdocs.yml docs/architecture.md $(wildcard docs/reference/*.md)
PAGES := $(BIN)/python docs/reference_pages.py

export KERAS_BACKEND ?= jax
export MPLBACKEND ?= Agg
# pyright takes its JavaScript and its node from their wheels, never from the net.
export PYRIGHT_PYTHON_GLOBAL_NODE = 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

# Silences the advertisement of another site builder.
export NO_MKDOCS_2_WARNING = 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test backends examples lint format generated generate notebooks docs docs-version serve coverage \
	matrix ray ray-long spark spark-long spark-35 aws aws-full ui bench bench-full bench-gpu bench-spark compare simulate soak \
	chaos fuzz kills pause bench-ui screenshots interrupts keras-suite constraints clean

help:
	@echo "make demo      train on real data, kill a worker, see the picture"
	@echo "make test      lint, docs and all tests on JAX; 15 minutes on two cores"
	@echo "make backends  the tests that depend on the backend, on TensorFlow and PyTorch; 4 minutes"
	@echo "make examples  every block of every page, example scripts, the demo; 3 minutes"
	@echo "make lint      ruff, pyright, import-linter, codespell;  make format repairs"
	@echo "make generate  rewrite generated pages, tables and figures;  make docs builds the site"
	@echo "make ray       tests on Ray clusters, and clusters of hosts over SSH; 7 minutes"
	@echo "make ray-long  killed servers and standbys on a Ray cluster; 3 minutes"
	@echo "make spark     tests on Spark sessions, which need Java; 10 minutes"
	@echo "make spark-long  Spark on hosts of its own, jobs over SSH, many losses; 5 minutes"
	@echo "make spark-35  the same under PySpark 3.5, in an environment of its own"
	@echo "make aws       clusters on AWS, against stand-ins; 3 minutes, and once 3 to install them"
	@echo "make aws-full  machines in namespaces boot by the template and train; needs SHOAL_DATA, root"
	@echo "make ui        the web page in a real browser, which needs chromium; 2 minutes"
	@echo "make bench-ui  the page's numbers;  make screenshots  its pictures for the docs"
	@echo "make matrix | bench | bench-full | bench-gpu | bench-spark | compare   what takes longer"
	@echo "make keras-suite  Keras' own tests of fit, through shoal.fit; 40 minutes"
	@echo "make simulate  100,000 random schedules of failing runs"
	@echo "make soak      100 runs in one process: does anything stay behind?"
	@echo "make chaos     kill and stop processes of runs on real data; needs SHOAL_DATA"
	@echo "make kills     kill the process that trains, and go on with its run; 20 times"
	@echo "make interrupts  Ctrl-C at random moments, one to three times; 300 runs"
	@echo "make pause     what checkpoints cost training"
	@echo "make fuzz      a million wrong frames at a server that trains meanwhile"
	@echo "make venv | constraints | coverage | clean"

venv: $(STAMP)

INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet \
	--disable-pip-version-check --editable

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Shoal needs Python 3.11 or later: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	$(BIN)/python hatch_build.py || echo "The page will draw simpler charts."
	touch $(DEMO_STAMP) $@

# What a user of JAX installs, and the page that the demo names at its end; everything
# else completes the same environment.
$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[demo,jax,ui]'
	$(BIN)/python hatch_build.py || echo "The page will draw simpler charts."
	touch $@

demo: $(DEMO_STAMP)
	$(BIN)/shoal demo

# XLA compiles the small programs of tests five times as fast with these. `make matrix`
# goes without, and compiles as users do.
HASTY := XLA_FLAGS="--xla_backend_optimization_level=0 \
	--xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false \
	--xla_cpu_parallel_codegen_split_count=1"

# What other backends than JAX are held to by CI; `make matrix` runs all.
EVERYWHERE := tests/backends/test_every_backend.py tests/backends/test_window.py \
	tests/backends/test_renew.py tests/backends/test_local_state.py \
	tests/habits/test_local_state.py \
	tests/backends/test_native.py tests/backends/test_shared.py \
	tests/backends/test_compiled.py tests/backends/test_many_optimizers.py \
	tests/backends/test_rate_scaling.py tests/backends/test_nan_losses.py \
	tests/models/test_step_logs.py tests/models/test_summed_steps.py \
	tests/backends/test_tensor_device.py

# Tests that start processes wait for them half of the time, but they need more memory
# and cores than the others. To collect all files would take each of both 20 seconds.
WITH_PROCESSES = $(shell grep -rl --include='test_*.py' 'mark\.process' tests)

test: $(STAMP)
	@$(MAKE) --no-print-directory -j2 --output-sync lint generated docs
	$(HASTY) $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile \
		-m "not slow and not process"
	$(HASTY) $(BIN)/python -m pytest -n 2 --dist loadgroup \
		-m "process and not slow and not examples and not ray" \
		$(WITH_PROCESSES)

# TensorFlow and PyTorch, where they do other work than JAX.
backends: $(STAMP)
	for name in tensorflow torch; do \
		KERAS_BACKEND=$$name $(HASTY) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" \
			$(EVERYWHERE) || exit 1; \
	done

# Every block of every page, example scripts, and the demo, in processes of their own.
examples: $(STAMP)
	$(HASTY) $(BIN)/python -m pytest -n 2 --dist worksteal -m "examples and not slow" \
		$$(grep -rl --include='test_*.py' 'mark\.examples' tests)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs src tests

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generated: $(STAMP)
	@$(PAGES) --check && $(COG) --check --diff $(COG_FILES) || \
		{ echo "Generated pages are out of date: run 'make generate' and commit."; exit 1; }
	@$(BIN)/python docs/figures --check

generate: $(STAMP)
	$(PAGES)
	$(COG) -r $(COG_FILES)
	$(BIN)/python docs/figures

# Notebooks are made from the scripts beside them; a test compares.
notebooks: $(STAMP)
	$(BIN)/python examples/make_notebook.py examples/higgs_spark.py

docs: $(STAMP)
	$(BIN)/mkdocs build --strict # with --quiet it counts no warning

serve: $(STAMP)
	$(BIN)/mkdocs serve

# One version of the site, committed to the branch gh-pages beside the others: a release,
# which becomes `latest`, or VERSION=dev. mike looks for mkdocs on the path.
docs-version: export PATH := $(CURDIR)/$(BIN):$(PATH)
docs-version: $(STAMP)
	@test -n "$(VERSION)" || { echo "make docs-version VERSION=0.3"; exit 1; }
	$(BIN)/mike deploy --config-file mkdocs-versions.yml --update-aliases $(VERSION) \
		$(if $(filter dev,$(VERSION)),,latest)
	$(if $(filter dev,$(VERSION)),,$(BIN)/mike set-default --config-file mkdocs-versions.yml latest)

coverage: $(STAMP)
	$(BIN)/python -m coverage run -m pytest -m "not slow"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# Every test, the slow ones too, under every backend that is installed. What has a target
# of its own (a browser, Java, Ray, stand-ins of a cloud) depends on no backend.
matrix: $(STAMP)
	@for name in jax tensorflow torch; do \
		if $(BIN)/python -c "import $$name" 2>/dev/null; then \
			echo "== $$name"; KERAS_BACKEND=$$name $(BIN)/python -m pytest -n 2 \
				--dist loadgroup -m "not (ray or ray_long or ui or aws or aws_full or spark or spark_long)" || exit 1; \
		else echo "== $$name is not installed, left out"; fi; \
	done

# Every test of a Ray cluster, the slow ones too.
ray: $(STAMP)
	$(HASTY) $(BIN)/python -m pytest -n 2 --dist loadgroup --timeout 300 -m ray \
		$$(grep -rlE --include='test_*.py' 'ray_nodes|mark\.ray' tests)

# Promises of runs that other tests show without nodes: killed servers, standbys.
ray-long: $(STAMP)
	$(HASTY) $(BIN)/python -m pytest -n 2 --dist loadgroup --timeout 300 -m ray_long \
		$$(grep -rlE --include='test_*.py' 'EVERYWHERE_LONG|mark\.ray_long' tests)

# Every test of a Spark session: one session at a time, on two cores.
spark: $(STAMP)
	$(HASTY) $(BIN)/python -m pytest --timeout 300 -m "spark and not spark_long" \
		tests/spark

# Spark on hosts in network namespaces, jobs over SSH, and workers lost again and again.
spark-long: $(STAMP)
	$(HASTY) $(BIN)/python -m pytest --timeout 400 -m spark_long tests/spark

# The same under PySpark 3.5, which needs NumPy 1 and pandas 2, and so an older JAX. What
# is not in its own constraints is as everywhere. It leaves sockets to the collector.
SPARK_35 := .venv-spark-35

spark-35: $(SPARK_35)/.stamp
	$(HASTY) $(SPARK_35)/bin/python -m pytest --timeout 300 -m "spark and not spark_long" \
		-W "ignore:distutils Version classes:DeprecationWarning" \
		-W "ignore:unclosed <socket:ResourceWarning" tests/spark

$(SPARK_35)/.stamp: pyproject.toml constraints.txt constraints-spark-35.txt
	test -x $(SPARK_35)/bin/python || $(PYTHON) -m venv $(SPARK_35)
	awk -F== 'FNR == NR { own[$$1] = 1 } FNR == NR || !($$1 in own)' \
		constraints-spark-35.txt constraints.txt > $(SPARK_35)/constraints.txt
	PIP_CONSTRAINT=$(SPARK_35)/constraints.txt $(SPARK_35)/bin/python -m pip install \
		--quiet --disable-pip-version-check --editable '.[aws,cluster,demo,files,jax,spark]' \
		hypothesis ipykernel 'moto[s3,server]' nbclient pytest pytest-timeout requests
	touch $@

# AWS without AWS: moto, ministack, linters of templates and scripts. What needs other
# versions than the tests have is in environments of its own.
AWS_TOOLS := .venv-aws/stand-ins/.stamp .venv-aws/checkov/.stamp

.venv-aws/%/.stamp: tests/aws/requirements/%.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

aws: $(STAMP) $(AWS_TOOLS)
	$(HASTY) $(BIN)/python -m pytest --timeout 300 -m aws tests/aws

# Machines in namespaces boot by the template's user data, train CIFAR-10 from a bucket
# and are replaced; needs SHOAL_DATA and root.
aws-full: $(STAMP)
	$(BIN)/python -m pytest --timeout 900 -m aws_full tests/aws

# The page in a real browser, Debian's chromium.
ui: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ui tests/ui

# Keras' own tests of fit, as they are and through Shoal; KERAS_SOURCE=/path/to/keras
# takes those of a source tree.
keras-suite: $(STAMP)
	$(BIN)/python -m benchmarks.keras_suite $(SUITE)

bench compare simulate soak chaos fuzz kills pause interrupts: $(STAMP)
	$(BIN)/python -m benchmarks.$@

bench-ui: $(STAMP)
	$(BIN)/python -m benchmarks.ui

# Pictures of the page for the docs, of the demo's runs; RUNS=folder takes those of it.
screenshots: $(STAMP)
	$(BIN)/python docs/screenshots.py $(RUNS)

bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu

# Spark: overheads, 3,000,000 rows, Elephas beside Shoal. Needs SHOAL_DATA and Java.
bench-spark: $(STAMP)
	$(BIN)/python -m benchmarks.spark_overhead
	$(BIN)/python -m benchmarks.spark_rows
	$(BIN)/python -m benchmarks.elephas

bench-full: $(STAMP)
	$(BIN)/python -m benchmarks.bench --full

# Takes the versions of this .venv as the ones CI installs.
constraints: $(STAMP)
	$(BIN)/python -m pip freeze --all --exclude-editable --exclude pip \
		--exclude shoal > constraints.txt
	touch $(STAMP)

clean:
	rm -rf .venv .venv-aws $(SPARK_35) .benchmarks build dist site shoal-runs .pytest_cache .ruff_cache \
		.hypothesis .import_linter_cache .coverage .coverage.* htmlcov
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

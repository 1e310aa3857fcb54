# Needs nothing but Python 3.11 or later: the environment is made on first use, and again when
# pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
PY := $(VENV)/bin/python
BUILD := build

# Tests that are run once more against the built wheel.
SMOKE := tests/test_package.py tests/test_listing.py tests/test_computation.py tests/test_ten_commands.py
PYTHONS ?= $(foreach minor,11 12 13,$(shell command -v python3.$(minor)))

.PHONY: demo test test-source test-wheel test-pythons docs docs-look bench lint format clean

demo: $(STAMP)
	$(VENV)/bin/pjax train --data digits --model mlp

test: test-source test-wheel

test-source: $(STAMP)
	$(PY) -m pytest -n 2 --dist worksteal tests
	$(PY) -m pytest -n 2 --doctest-modules src/pjax

# Imported from another folder, so that only the installed package can be found.
test-wheel: $(STAMP)
	rm -rf $(BUILD)/wheel $(BUILD)/site
	$(PY) -m build --wheel --no-isolation --outdir $(BUILD)/wheel .
	$(PY) -m pip install --quiet --no-deps --target $(BUILD)/site $(BUILD)/wheel/*.whl
	cd $(BUILD) && PJAX_TEST_WHEEL="$(CURDIR)/$(BUILD)/site" PYTHONPATH="$(CURDIR)/$(BUILD)/site" \
		../$(PY) -m pytest -n 2 -c ../pyproject.toml --rootdir .. -p no:cacheprovider \
		$(addprefix ../,$(SMOKE))

# The same with other Pythons: all from 3.11 to 3.13 that are found, or those of PYTHONS.
test-pythons: test-wheel
	set -e; for python in $(PYTHONS); do \
		folder=$(BUILD)/$$(basename $$python); $$python -m venv --clear $$folder; \
		$$folder/bin/python -m pip install --quiet --disable-pip-version-check $(BUILD)/wheel/*.whl \
			"pytest>=8" pytest-xdist pyyaml hatchling flax matplotlib rich typer tensorboardX; \
		(cd $(BUILD) && PJAX_TEST_WHEEL="$$($(CURDIR)/$$folder/bin/python -c \
			'import sysconfig; print(sysconfig.get_path("purelib"))')" \
			$(CURDIR)/$$folder/bin/python -m pytest -n 2 -c ../pyproject.toml --rootdir .. \
			-p no:cacheprovider $(addprefix ../,$(SMOKE))); \
	done

# The site, in build/docs: open index.html. A warning fails it; it needs no network.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

# Opens every page in Chromium; needs npm, to get it, or its path in $$CHROMIUM.
docs-look: docs
	$(PY) -m pip install --quiet --disable-pip-version-check "playwright>=1.45"
	$(PY) -m website.look

bench: $(STAMP)
	$(PY) -m benchmarks speed

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:
	rm -rf $(VENV) $(BUILD) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "pjax needs Python 3.11 or later: make PYTHON=python3.12 …"; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check \
		--editable ".[docs,draw,experiments,lint,test]"
	touch $@

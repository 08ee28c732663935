# The whole job in two commands on a machine with Rust, Python 3.11 or later, g++ and make:
#
#   make demo          sentence embeddings and training on "neuron", checked against the CPU and timed
#   make test          Python and Rust tests
#
# and further:
#
#   make setup         .venv with the package and everything the other targets need
#   make lint          rustfmt, clippy, ruff, clang-format: warnings are errors
#   make format        rewrites the sources as lint wants them
#   make sanitize      the launch queue under loom's model checker; memory under the address sanitizer
#   make fuzz          random operator calls, device against CPU    (ARGS='--cases 2000 --seed 7 --ops pool')
#   make bench         speed against PyTorch's CPU backend          (ARGS='--only mm')
#   make conformance   PyTorch's operator, module and optimizer databases, model architectures (ARGS=..., MODEL_ARGS=...)
#   make lock          resolves requirements.txt anew into requirements.lock
#   make clean         removes what the other targets made
#
# Each target does its own set-up; a second call finds it done. PYTHON=python3.12 chooses the interpreter of a new
# .venv. bench and conformance run the tools of the folder ../shared (SHARED=...), which is not part of this project.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
SHARED ?= ../shared
VENV := $(CURDIR)/.venv
RUN := $(VENV)/bin/python
UV_VERSION := 0.13.9

# The crates of the workspace that have no PyTorch in them.
RUST_CRATES := neuron-ir neuron-kernels neuron-compiler neuron-runtime neuron-aten
NATIVE_SOURCES := $(shell find crates csrc -type f) Cargo.toml Cargo.lock pyproject.toml
CXX_SOURCES := $(wildcard csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h)

# build.rs finds PyTorch, and cargo the interpreter, through these.
export VIRTUAL_ENV := $(VENV)
export PATH := $(VENV)/bin:$(PATH)
export PYO3_PYTHON := $(RUN)
# Tests start many interpreters: each would compile PyTorch's sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-python test-rust lint format sanitize fuzz bench conformance lock clean

setup: $(VENV)/.built

# uv is used where it is at hand and else put into the .venv: it resolves and links in seconds.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or later is needed (PyTorch 2.15 has no wheel for older ones); try: make PYTHON=python3.12'; exit 1; }
	if uv --version >/dev/null 2>&1; then uv venv --quiet --clear --seed --python '$(PYTHON)' $(VENV); \
	else $(PYTHON) -m venv --clear $(VENV) && $(RUN) -m pip install --quiet uv==$(UV_VERSION); fi
	touch $@

$(VENV)/.installed: requirements.lock $(VENV)/.created
	uv pip install --quiet --python $(RUN) --requirement requirements.lock
	touch $@

# Editable: Python sources are read from python/, only native code needs a build.
$(VENV)/.built: $(VENV)/.installed $(NATIVE_SOURCES)
	maturin develop --release --uv --quiet
	touch $@

demo: $(VENV)/.built
	$(RUN) examples/demo.py

test: test-rust test-python

test-rust: $(VENV)/.installed
	cargo test --release $(addprefix --package ,$(RUST_CRATES))

test-python: $(VENV)/.built
	$(RUN) -m pytest --timeout 300 $(ARGS)

lint: $(VENV)/.installed
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --quiet -- -D warnings
	ruff check .
	ruff format --check .
	$(if $(CXX_SOURCES),clang-format --dry-run -Werror $(CXX_SOURCES))

format: $(VENV)/.installed
	cargo fmt --all
	ruff check --fix .
	ruff format .
	$(if $(CXX_SOURCES),clang-format -i $(CXX_SOURCES))

# Loom explores the interleavings of the launch queue and the events. A nightly toolchain, where there is one, adds the
# address sanitizer.
sanitize:
	RUSTFLAGS='--cfg loom' cargo test --release --package neuron-runtime --target-dir target/loom --lib
	@if ! cargo +nightly --version >/dev/null 2>&1; then echo 'no nightly toolchain: the address sanitizer is left out'; \
	else set -x; RUSTFLAGS=-Zsanitizer=address cargo +nightly test --target-dir target/asan --lib --tests \
		--target "$$(rustc -vV | sed -n 's/^host: //p')" --package neuron-ir --package neuron-runtime; fi

define shared_tool
	@test -e $(SHARED)/$(1) || { echo 'make $@ runs $(SHARED)/$(1), which is not here: say where it is with SHARED=folder'; exit 1; }
	$(RUN) $(SHARED)/$(1) $(2)
endef

fuzz: $(VENV)/.built
	$(RUN) tests/fuzz_ops.py $(ARGS)

bench: $(VENV)/.built
	$(call shared_tool,bench/bench.py,$(ARGS))

conformance: $(VENV)/.built
	NEURON_TESTS=all $(RUN) -m pytest --timeout 300 tests/test_op_db.py tests/test_module_db.py tests/test_optim_db.py
	$(call shared_tool,conformance/opinfo.py,$(ARGS))
	$(call shared_tool,conformance/causal_lm.py,$(MODEL_ARGS))

lock: $(VENV)/.created
	uv pip compile --quiet --universal --python-version 3.11 --no-header --upgrade requirements.txt --output-file requirements.lock

clean:
	rm -rf $(VENV) target python/torch_neuronx/*.so

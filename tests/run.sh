#!/usr/bin/env bash
# Everything that can be checked without a GPU: format, lints, docs, all host tests, and NVRTC compiling every kernel.
# NVRTC comes from PyPI into target/nvrtc (about 90 MB, once); set STEPGRAPH_NVRTC_WHEEL to install from a file instead.
set -euo pipefail
cd "$(dirname "$0")/.."

nvrtc_version=13.0.88
nvrtc_folder="$PWD/target/nvrtc"
nvrtc_lib="$nvrtc_folder/nvidia/cu13/lib"

step() { printf '\n== %s\n' "$*"; }

step "NVRTC $nvrtc_version in target/nvrtc"
if [ ! -e "$nvrtc_lib/libnvrtc.so.13" ]; then
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$nvrtc_folder" \
        "${STEPGRAPH_NVRTC_WHEEL:-nvidia-cuda-nvrtc==$nvrtc_version}"
fi
export LD_LIBRARY_PATH="$nvrtc_lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export STEPGRAPH_REQUIRE_NVRTC=1
# Tests must not see, or fill, the user's cache of compiled kernels.
export STEPGRAPH_CACHE="$PWD/target/stepgraph-cache"

step "format"
cargo fmt --check
step "lints"
cargo clippy --all-targets -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
step "tests"
cargo test
step "the library alone, with the oldest CUDA bindings"
cargo build --lib --no-default-features --features cuda-12040
step "all passed"

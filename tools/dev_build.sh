#!/usr/bin/env bash
# Builds the extension modules into hyena_cpu/ for work in the tree.
#   tools/dev_build.sh [builds]     builds: e.g. "avx512" or "baseline;avx2;avx512" (default: all)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
cmake -S . -B build/dev -G Ninja -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" \
  -DPython_EXECUTABLE="$(command -v "$python")" -DHYENA_CPU_BUILDS="${1:-}" >/dev/null
cmake --build build/dev
cp build/dev/*.so hyena_cpu/

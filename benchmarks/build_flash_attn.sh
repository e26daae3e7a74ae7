#!/usr/bin/env bash
# Build flash-attn's compiled extension without its kernels: its host code allocates, and nothing
# is computed. With it, and the package's Python, recordings over the stand-in driver hold what
# flash-attn itself takes.
#
# Usage: build_flash_attn.sh SOURCE PYTHON CUDA OUT: SOURCE is the unpacked source distribution of
# flash-attn, PYTHON has PyTorch's CUDA build, CUDA/include has CUDA's headers (cuBLAS' too), and
# OUT is a folder for PYTHONPATH.
set -euo pipefail
source=$(realpath "$1") python=$2 cuda=$3 out=$4
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# PyTorch's headers name handles of libraries that nothing here calls.
for library in cusparse:cusparseContext:cusparseHandle_t cusolverDn:cusolverDnContext:cusolverDnHandle_t; do
  IFS=: read -r header struct handle <<< "$library"
  printf '#pragma once\ntypedef struct %s *%s;\n' "$struct" "$handle" > "$work/$header.h"
done
cat > "$work/kernels.cpp" <<'CPP'
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <cutlass/numeric_types.h>
#include "namespace_config.h"
#include "flash.h"
namespace FLASH_NAMESPACE {
template <typename T, int D, bool C> void run_mha_fwd_(Flash_fwd_params &, cudaStream_t) {}
template <typename T, int D, bool C> void run_mha_fwd_splitkv_dispatch(Flash_fwd_params &, cudaStream_t) {}
template <typename T, int D, bool C> void run_mha_bwd_(Flash_bwd_params &, cudaStream_t) {}
#define ONE(T, D, C) \
  template void run_mha_fwd_<T, D, C>(Flash_fwd_params &, cudaStream_t); \
  template void run_mha_fwd_splitkv_dispatch<T, D, C>(Flash_fwd_params &, cudaStream_t); \
  template void run_mha_bwd_<T, D, C>(Flash_bwd_params &, cudaStream_t);
#define BOTH(T, D) ONE(T, D, true) ONE(T, D, false)
#define ALL(T) BOTH(T, 32) BOTH(T, 64) BOTH(T, 96) BOTH(T, 128) BOTH(T, 192) BOTH(T, 256)
ALL(cutlass::half_t)
ALL(cutlass::bfloat16_t)
}
CPP
torch=$("$python" -c 'import torch; print(torch.__path__[0])')
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
flags=(-O1 -std=c++20 -fPIC -shared -DTORCH_EXTENSION_NAME=flash_attn_2_cuda
  -DTORCH_API_INCLUDE_EXTENSION_H "-I$torch/include" "-I$torch/include/torch/csrc/api/include"
  "-I$cuda/include" "-I$work" "-I$source/csrc/flash_attn" "-I$source/csrc/flash_attn/src"
  "-I$source/csrc/cutlass/include"
  "-I$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')")
g++ "${flags[@]}" "$source/csrc/flash_attn/flash_api.cpp" "$work/kernels.cpp" \
  -o "$out/flash_attn_2_cuda$suffix" -Wl,--unresolved-symbols=ignore-all \
  "-L$torch/lib" -ltorch -ltorch_cuda -ltorch_cpu -ltorch_python -lc10 -lc10_cuda
cp -r "$source/flash_attn" "$out/"
version=$("$python" -c "import re, sys; print(re.search(r'__version__ = \"(.+)\"', open('$source/flash_attn/__init__.py').read())[1])")
info="$out/flash_attn-$version.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: flash-attn\nVersion: %s\n' "$version" > "$info/METADATA"
echo flash_attn > "$info/top_level.txt"
: > "$info/RECORD"

#!/usr/bin/env bash
# A real vLLM on one card: unpacks the bundle, then runs every cell.
#
#   COLDPROOF_VLLM_BUNDLE=FOLDER scripts/gpu/vllm/part.sh
#
# The folder holds tar.xz files of a site folder. Rows go to stdout, findings to stderr; all notes
# and logs of every process go to COLDPROOF_VLLM_NOTES, a tar.gz file, where that is named.
set -uo pipefail
: "${COLDPROOF_VLLM_BUNDLE:?names no folder with a packed vLLM}"
bundle="$(realpath "$COLDPROOF_VLLM_BUNDLE")"
notes="$(realpath -m "${COLDPROOF_VLLM_NOTES:-/dev/null}")"
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

python="${PYTHON:-python3}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
unpack='import sys, tarfile
tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="fully_trusted")'
for file in "$bundle"/*.txz; do
  "$python" -c "$unpack" "$file" "$work/site" &
done
wait
libraries='import glob, nvidia; print(":".join(glob.glob(list(nvidia.__path__)[0] + "/*/lib")))'
LD_LIBRARY_PATH="$("$python" -c "$libraries")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
export PYTHONPATH="$PWD/python:$work/site" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_USE_DEEP_GEMM=0 \
  VLLM_HOST_IP=127.0.0.1 VLLM_NO_USAGE_STATS=1 VLLM_CACHE_ROOT="$work/cache" \
  HF_HUB_OFFLINE=1 NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo TOKENIZERS_PARALLELISM=false \
  PYTORCH_NVML_BASED_CUDA_CHECK=1 TRITON_CACHE_DIR="$work/triton" \
  TORCHINDUCTOR_CACHE_DIR="$work/inductor"
status=0
"$python" scripts/gpu/vllm/run.py "$work/checkpoints" "$work/notes" || status=$?
[ "$notes" = /dev/null ] || tar -czf "$notes" -C "$work" notes
exit "$status"

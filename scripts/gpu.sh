#!/usr/bin/env bash
# All that needs a card, in under eight minutes: each part is guarded, and a table comes last.
#
#   scripts/gpu.sh [OUT]      OUT gets `table` and `log` (default: a new folder)
#
# PYTHON is an interpreter with torch for CUDA and the package (default: python3).
# COLDPROOF_VLLM_BUNDLE is a folder with a packed vLLM; without it that part is NOT COVERED.
# COLDPROOF_PARTS names the parts to run (default: all).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
export PYTHONUNBUFFERED=1
# A checkout in which the module was never built is no package: the installed one is taken.
if compgen -G 'python/coldproof/_native*.so' > /dev/null; then
  export PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}"
fi
status="$("$python" -c 'from coldproof import _native; print(_native.device_status())')"
case "$status" in
  'no CUDA driver:'* | '')
    echo "gpu: NOT RUN: ${status:-the package cannot be imported}"
    exit 1
    ;;
esac

out="${1:-$(mktemp -d)}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
: > "$out/table"
: > "$out/log"

part() { # NAME SECONDS COMMAND...
  local name="$1" limit="$2" began="$SECONDS" status=0
  shift 2
  case " ${COLDPROOF_PARTS:-$name} " in *" $name "*) ;; *) return ;; esac
  timeout --kill-after=10 "$limit" "$@" > "$work/rows" 2> "$work/log" || status=$?
  if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    printf 'FAIL\t%s\tended after %s s\n' "$name" "$limit" >> "$work/rows"
  elif [ "$status" -ne 0 ]; then
    printf 'FAIL\t%s\texit %s: %s\n' "$name" "$status" "$(tail -n 1 "$work/log")" >> "$work/rows"
  fi
  { printf -- '-- %s, %s s\n' "$name" "$((SECONDS - began))" && cat "$work/rows"; } >> "$out/table"
  { printf -- '-- %s\n' "$name" && cat "$work/log"; } >> "$out/log"
}

{
  printf 'card\t%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)"
  printf 'date\t%s\n' "$(date -u +%F)"
  printf 'torch\t%s\n' "$("$python" -c 'import torch; print(torch.__version__)')"
  printf 'device\t%s\n' "$status"
} >> "$out/table"
part memory 60 "$python" scripts/gpu/memory.py
part equality 60 "$python" scripts/gpu/equality.py
part bandwidth 90 "$python" scripts/gpu/bandwidth.py
part nodes 90 "$python" scripts/gpu/nodes.py
part gate 60 "$python" scripts/gpu/gate.py
part rows 90 "$python" scripts/gpu/rows.py
part compile 150 "$python" scripts/gpu/compile.py
part example 60 "$python" examples/census.py
if [ -n "${COLDPROOF_VLLM_BUNDLE:-}" ]; then
  part vllm 330 scripts/gpu/vllm/part.sh
else
  printf 'NOT COVERED\tvllm\tCOLDPROOF_VLLM_BUNDLE names no folder\n' >> "$out/table"
fi

result=PASS
grep -q '^FAIL' "$out/table" && result=FAIL
echo "gpu: $result, $SECONDS s" >> "$out/table"
echo
cat "$out/table"
[ "$result" = PASS ]

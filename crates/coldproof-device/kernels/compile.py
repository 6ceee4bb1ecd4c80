"""Compiles `digest.cu` with NVRTC 13.0, which needs no GPU, into the files beside it.

    python compile.py          write them
    python compile.py --check  exit with 1 where a file is not what the source gives

NVRTC is that of `LD_LIBRARY_PATH`, or of the packages `nvidia-cuda-nvrtc` or `torch`.
"""

from __future__ import annotations

import ctypes
import site
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = "digest.cu"
# Versions of NVRTC give other bytes.
VERSION = (13, 0)
TARGETS = {
    "digest.sm_80.cubin": "sm_80",
    "digest.sm_90.cubin": "sm_90",
    "digest.ptx": "compute_80",
}


def library() -> ctypes.CDLL:
    """Load NVRTC, from the path or from a package of this interpreter."""
    folders = [Path(folder) for folder in [*site.getsitepackages(), *sys.path] if folder]
    names = [
        path
        for folder in folders
        for path in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*"))
        if ".alt." not in path.name
    ]
    for name in ["libnvrtc.so.13", *names]:
        try:
            # NVRTC looks for its built-ins by name alone; they are found once they are loaded.
            for builtins in Path(name).parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))
            nvrtc = ctypes.CDLL(str(name))
        except OSError:
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        if (major.value, minor.value) == VERSION:
            return nvrtc
    raise SystemExit(f"no NVRTC {VERSION[0]}.{VERSION[1]}: pip install nvidia-cuda-nvrtc==13.0.88")


def build(nvrtc: ctypes.CDLL, source: bytes, architecture: str) -> bytes:
    """Compile to machine code for `sm_NN`, to PTX for `compute_NN`."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, SOURCE.encode(), 0, None, None)
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    if status != 0:
        raise SystemExit(f"{SOURCE} does not compile:\n{_read(nvrtc, program, 'ProgramLog')!r}")
    kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
    code = _read(nvrtc, program, kind)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def main() -> int:
    """Write the compiled files, or hold them against the source."""
    nvrtc = library()
    source = (HERE / SOURCE).read_bytes()
    stale = []
    for name, architecture in TARGETS.items():
        code = build(nvrtc, source, architecture)
        path = HERE / name
        if "--check" not in sys.argv[1:]:
            path.write_bytes(code)
        elif not path.is_file() or path.read_bytes() != code:
            stale.append(name)
    for name in stale:
        print(f"{name} is not what {SOURCE} gives: run compile.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

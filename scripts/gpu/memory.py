"""What the driver says of memory: allocated, freed, mapped, reserved and backed by nothing."""

from __future__ import annotations

import ctypes
import sys

import torch
from coldproof import ColdproofError, _native

PINNED, DEVICE = 1, 1
SIZE = 2 << 20


class Properties(ctypes.Structure):
    """``CUmemAllocationProp``, of 32 bytes."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = (("location", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int))


def virtual(device: _native.Device, ordinal: int) -> dict[str, bool]:
    """Reserve two pages, back the first one, take it back, and release; ask each time."""
    driver = ctypes.CDLL("libcuda.so.1")
    start, handle = ctypes.c_uint64(), ctypes.c_uint64()
    size, none = ctypes.c_size_t, ctypes.c_uint64(0)

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: error {status}")

    def there(at: int) -> bool:
        return device.allocation(at) is not None

    def taken(size: int) -> bool:
        try:
            device.digests([("t", "U8", [size], [1], base)])
        except ColdproofError:
            return False
        return True

    wanted = Properties(PINNED, 0, DEVICE, ordinal)
    call("cuMemAddressReserve", ctypes.byref(start), size(2 * SIZE), size(0), none, none)
    base = start.value
    said = {"reserved memory is none": not there(base)}
    call("cuMemCreate", ctypes.byref(handle), size(SIZE), ctypes.byref(wanted), none)
    call("cuMemMap", start, size(SIZE), size(0), handle, none)
    access = Access(DEVICE, ordinal, 3)
    call("cuMemSetAccess", start, size(SIZE), ctypes.byref(access), size(1))
    said["mapped memory is some"] = there(base) and there(base + SIZE - 1)
    said["the page behind it is none"] = not there(base + SIZE)
    said["a tensor up to the end of the mapping is taken"] = taken(SIZE)
    said["a tensor that reaches beyond it is refused"] = not taken(SIZE + 1)
    print("value", "a mapping of 2 MiB in a reservation of 4", device.allocation(base), sep="\t")
    call("cuMemUnmap", start, size(SIZE))
    said["unmapped memory is none"] = not there(base)
    call("cuMemMap", start, size(SIZE), size(0), handle, none)
    call("cuMemSetAccess", start, size(SIZE), ctypes.byref(access), size(1))
    said["memory that is mapped again is some"] = there(base)
    call("cuMemUnmap", start, size(SIZE))
    call("cuMemRelease", handle)
    call("cuMemAddressFree", start, size(2 * SIZE))
    said["released memory is none"] = not there(base)
    return said


def main() -> int:
    """Print a row for each answer; exit with 1 where one is not as it should be."""
    ordinal = torch.cuda.current_device()
    device = _native.Device(ordinal)
    block = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    start, last = block.data_ptr(), block.data_ptr() + block.numel() - 1
    said = {"allocated memory is some": device.allocation(last) is not None}
    # The allocator keeps the segment until its cache is emptied.
    del block
    said["a free block of the allocator is some"] = device.allocation(start) is not None
    torch.cuda.empty_cache()
    said["memory that went back is none"] = device.allocation(start) is None
    said["an address of nothing is none"] = device.allocation(0x1234_5678) is None
    said |= virtual(device, ordinal)
    for what, ok in said.items():
        print("pass" if ok else "FAIL", what, sep="\t")
    return 0 if all(said.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

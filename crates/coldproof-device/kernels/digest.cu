// The digest of `coldproof-contract::digest` over many tensors in one launch. `docs/digest.md`
// defines every bit; `src/digest/twin.rs` is this file in Rust, and `src/digest/table.rs` writes the
// records that are read here.

typedef unsigned long long u64;
typedef unsigned int u32;

// Spreads of a block's index over the word, one a lane of the mixer.
#define SPREAD_LOW 0x9e3779b97f4a7c15ULL
#define SPREAD_HIGH 0x93cd3a2c8198e269ULL
// Blocks that one thread has on their way at once in the fast path.
#define AHEAD 4
#define WARP 32u
#define MAX_AXES 7

// 144 bytes.
struct Tensor {
  u64 key[12];
  u64 base;        // address of the first element
  u64 blocks;      // blocks of all rows
  u64 row_blocks;  // blocks of one row
  u64 row_bytes;
  u32 layout;      // index into `layouts`
  u32 unit;        // bytes that a full block can be loaded by: 1, 2, 4, 8 or 16
  u32 tail_unit;   // the same for the short block at the end of a row
  u32 is_flat;     // one row, and its full blocks lie on 16 bytes
};

// 136 bytes. Rows are counted over `axes`, the last one fastest.
struct Layout {
  long long inner;  // bytes between neighbouring elements of a strided row
  u32 axes;
  u32 by_column;  // neighbouring threads take neighbouring rows
  u64 extent[MAX_AXES];
  long long pitch[MAX_AXES];  // bytes between neighbours along each axis
  u64 is_strided;
};

struct Tile {
  u32 tensor;
  u32 ordinal;  // of the tile within the tensor
};

struct Sum {
  u64 low, high;
};

static __device__ __forceinline__ u64 fold(u64 a, u64 b) { return (a * b) ^ __umul64hi(a, b); }

static __device__ __forceinline__ void add(Sum &sum, u64 low, u64 high) {
  sum.low += low;
  sum.high += high + (sum.low < low);
}

static __device__ __forceinline__ void mix(Sum &sum, const u64 (&k)[12], u64 index, u64 w0, u64 w1,
                                           u64 w2, u64 w3) {
  const u64 p = index * SPREAD_LOW;
  const u64 q = index * SPREAD_HIGH;
  const u64 low = fold(fold(w0 ^ (k[0] + p), w1 ^ k[1]) ^ k[4],
                       fold(w2 ^ (k[2] + p), w3 ^ k[3]) ^ k[5]);
  const u64 high = fold(fold(w0 ^ k[6], w2 ^ (k[7] + q)) ^ k[10],
                        fold(w1 ^ k[8], w3 ^ (k[9] + q)) ^ k[11]);
  add(sum, low, high);
}

template <u32 BYTES>
static __device__ __forceinline__ u64 load(u64 address);
template <>
__device__ __forceinline__ u64 load<1>(u64 address) { return __ldg((const unsigned char *)address); }
template <>
__device__ __forceinline__ u64 load<2>(u64 address) { return __ldg((const unsigned short *)address); }
template <>
__device__ __forceinline__ u64 load<4>(u64 address) { return __ldg((const u32 *)address); }
template <>
__device__ __forceinline__ u64 load<8>(u64 address) { return __ldg((const u64 *)address); }

// The first `bytes` bytes of a block, by units that lie `inner` bytes apart; the rest is zero.
template <u32 UNIT>
static __device__ __forceinline__ void gather(u64 (&words)[4], u64 address, u64 inner, u32 bytes) {
#pragma unroll
  for (u32 word = 0; word < 4; ++word) {
    u64 value = 0;
#pragma unroll
    for (u32 byte = 0; byte < 8; byte += UNIT) {
      const u32 at = word * 8 + byte;
      if (at < bytes) value |= load<UNIT>(address + at / UNIT * inner) << (8 * byte);
    }
    words[word] = value;
  }
}

static __device__ __forceinline__ void read(u64 (&words)[4], u64 address, u64 inner, u32 bytes,
                                            u32 unit) {
  switch (unit) {
    case 1: gather<1>(words, address, inner, bytes); break;
    case 2: gather<2>(words, address, inner, bytes); break;
    case 4: gather<4>(words, address, inner, bytes); break;
    case 8: gather<8>(words, address, inner, bytes); break;
    default: {
      const ulonglong2 front = __ldg((const ulonglong2 *)address);
      const ulonglong2 back = __ldg((const ulonglong2 *)address + 1);
      words[0] = front.x, words[1] = front.y, words[2] = back.x, words[3] = back.y;
    }
  }
}

static __device__ __forceinline__ void divide(u64 value, u64 by, u64 &quotient, u64 &rest) {
  if ((value | by) >> 32) {
    quotient = value / by;
  } else {
    quotient = (u32)value / (u32)by;
  }
  rest = value - quotient * by;
}

// Blocks `at`, `at + 32`, ... of a tensor of any layout.
static __device__ void scattered(Sum &sum, const Tensor &tensor, const Layout &layout,
                                 const u64 (&key)[12], u64 at, u64 end) {
  if (at >= end) return;
  const u64 rows = tensor.blocks / tensor.row_blocks;
  for (; at < end; at += WARP) {
    u64 row, block;
    if (layout.by_column) {
      divide(at, rows, block, row);
    } else {
      divide(at, tensor.row_blocks, row, block);
    }
    u64 address = tensor.base;
    u64 left = row;
    for (u32 axis = layout.axes; axis-- > 0;) {
      u64 coordinate;
      divide(left, layout.extent[axis], left, coordinate);
      address += coordinate * (u64)layout.pitch[axis];
    }
    const u64 rest = tensor.row_bytes - block * 32;
    const u32 bytes = rest < 32 ? (u32)rest : 32;
    const u32 unit = bytes == 32 ? tensor.unit : tensor.tail_unit;
    // The units of a strided row are its elements; in another they adjoin.
    const u64 inner = layout.is_strided ? (u64)layout.inner : unit;
    u64 words[4];
    read(words, address + block * 32 / unit * inner, inner, bytes, unit);
    mix(sum, key, row * tensor.row_blocks + block, words[0], words[1], words[2], words[3]);
  }
}

// Full blocks `first ..` of one row that lies on 16 bytes.
static __device__ __forceinline__ void streamed(Sum &sum, const u64 (&key)[12], u64 base, u64 first,
                                                u64 end, u32 lane) {
  u64 at = first + lane;
  for (; at + (AHEAD - 1) * WARP < end; at += AHEAD * WARP) {
    const ulonglong2 *from = (const ulonglong2 *)(base + at * 32);
    ulonglong2 part[2 * AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; ++i) {
      part[2 * i] = __ldg(from + i * WARP * 2);
      part[2 * i + 1] = __ldg(from + i * WARP * 2 + 1);
    }
#pragma unroll
    for (u32 i = 0; i < AHEAD; ++i) {
      const ulonglong2 front = part[2 * i], back = part[2 * i + 1];
      mix(sum, key, at + i * WARP, front.x, front.y, back.x, back.y);
    }
  }
  for (; at < end; at += WARP) {
    const ulonglong2 *from = (const ulonglong2 *)(base + at * 32);
    const ulonglong2 front = __ldg(from), back = __ldg(from + 1);
    mix(sum, key, at, front.x, front.y, back.x, back.y);
  }
}

// Adds the warp's sum to a tensor's digest, of 128 bits.
static __device__ __forceinline__ void deposit(Sum sum, u64 *digest, u32 lane) {
#pragma unroll
  for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
    const u64 low = __shfl_down_sync(~0u, sum.low, distance);
    const u64 high = __shfl_down_sync(~0u, sum.high, distance);
    add(sum, low, high);
  }
  if (lane == 0) {
    // Each wrap of the low half is seen by the one addition that caused it.
    const u64 old = atomicAdd(digest, sum.low);
    const u64 carry = old + sum.low < old;
    if (sum.high + carry) atomicAdd(digest + 1, sum.high + carry);
  }
}

// `state` is zero at the start: the next tile, a spare word, then two words for each tensor.
extern "C" __global__ void __launch_bounds__(256, 4)
    coldproof_digest(const Tensor *__restrict__ tensors, const Layout *__restrict__ layouts,
                     const Tile *__restrict__ tiles, u64 tile_count, u64 tile_blocks, u64 *state) {
  const u32 lane = threadIdx.x % WARP;
  u64 next = 0;
  if (lane == 0) next = atomicAdd(state, 1ULL);
  next = __shfl_sync(~0u, next, 0);
  while (next < tile_count) {
    const Tile tile = tiles[next];
    // The next one is asked for before this one is worked on.
    if (lane == 0) next = atomicAdd(state, 1ULL);
    const Tensor &tensor = tensors[tile.tensor];
    u64 key[12];
#pragma unroll
    for (u32 i = 0; i < 12; ++i) key[i] = __ldg(tensor.key + i);
    const u64 first = tile.ordinal * tile_blocks;
    const u64 blocks = __ldg(&tensor.blocks);
    const u64 end = first + tile_blocks < blocks ? first + tile_blocks : blocks;
    Sum sum = {0, 0};
    u64 rest = first;
    if (__ldg(&tensor.is_flat)) {
      const u64 full = __ldg(&tensor.row_bytes) / 32;
      rest = end < full ? end : full;
      streamed(sum, key, __ldg(&tensor.base), first, rest, lane);
    }
    scattered(sum, tensor, layouts[tensor.layout], key, rest + lane, end);
    __syncwarp();
    deposit(sum, state + 2 + 2 * (u64)tile.tensor, lane);
    next = __shfl_sync(~0u, next, 0);
  }
}

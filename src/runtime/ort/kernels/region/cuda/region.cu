// What the kernels of regions are made of; source.rs writes the kernels. NVRTC compiles this text; it includes nothing. A C++
// compiler does, too, for which a block's threads take turns (tests/fixtures/on_host.h).
//
// Numbers are computed in float32 as src/runtime/ort/kernels/region/steps.rs does, with CUDA's own functions.

#ifndef UNROLL
#define UNROLL _Pragma("unroll")
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Elements as they lie in memory.
typedef float F32;
struct F16 { u16 bits; };
struct BF16 { u16 bits; };
struct Bool { u8 bits; };

__device__ inline float float_of(u32 bits) { union { u32 bits; float value; } both; both.bits = bits; return both.value; }
__device__ inline u32 bits_of(float value) { union { u32 bits; float value; } both; both.value = value; return both.bits; }
__device__ inline bool is_nan(float x) { return x != x; }

// --- roundings: to the nearest, ties to even ---------------------------------------------------------------------------

__device__ inline u16 to_bf16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  u16 made;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(made) : "f"(x));
  return made;
#else
  u32 bits = bits_of(x);
  return (u16)(is_nan(x) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

__device__ inline u16 to_f16(float x) {
#ifdef __CUDA_ARCH__
  u16 made;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made) : "f"(x));
  return made;
#else
  u32 sign = bits_of(x) >> 16 & 0x8000, size = bits_of(x) & 0x7fffffff;
  if (size > 0x7f800000) return (u16)(sign | 0x7e00);
  if (size >= 0x477ff000) return (u16)(sign | 0x7c00); // from 65520 on
  // Below the normal numbers, multiples of 2^-24: what is a step apart beside 0.5.
  if (size < 0x38800000) return (u16)(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000));
  return (u16)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
#endif
}

__device__ inline float of_bf16(u16 bits) { return float_of((u32)bits << 16); }

__device__ inline float of_f16(u16 bits) {
#ifdef __CUDA_ARCH__
  float made;
  asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(bits));
  return made;
#else
  u32 sign = (u32)(bits & 0x8000) << 16, size = bits & 0x7fff;
  if (size >= 0x7c00) return float_of(sign | 0x7f800000 | size << 13);
  if (size < 0x400) return float_of(sign | bits_of((float)size * float_of(103u << 23))); // 2^-24
  return float_of(sign | ((size << 13) + 0x38000000));
#endif
}

__device__ inline float read(F32 x) { return x; }
__device__ inline float read(F16 x) { return of_f16(x.bits); }
__device__ inline float read(BF16 x) { return of_bf16(x.bits); }
__device__ inline float read(Bool x) { return x.bits ? 1.0f : 0.0f; }

__device__ inline void write(F32 &to, float x) { to = x; }
__device__ inline void write(F16 &to, float x) { to.bits = to_f16(x); }
__device__ inline void write(BF16 &to, float x) { to.bits = to_bf16(x); }
__device__ inline void write(Bool &to, float x) { to.bits = x != 0.0f; }

// --- steps -------------------------------------------------------------------------------------------------------------

__device__ inline float flag(bool holds) { return holds ? 1.0f : 0.0f; }
// NaN of either is NaN.
__device__ inline float larger(float a, float b) { return a > b || is_nan(a) ? a : b; }
__device__ inline float smaller(float a, float b) { return a < b || is_nan(a) ? a : b; }
// Also where exp(-x) is too large.
__device__ inline float sigmoid(float x) {
  float power = expf(-fabsf(x));
  return (x < 0.0f ? power : 1.0f) / (1.0f + power);
}

// --- several elements at once ------------------------------------------------------------------------------------------

// N: a power of 2. In memory where it may be taken in pieces of 16 bytes.
template <typename T, u32 N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };

// The first `count` of those from `at` on. whole: they lie where a Pack may.
template <typename T, u32 N> __device__ inline Pack<T, N> load(const void *from, u64 at, u32 count, bool whole) {
  const T *start = (const T *)from + at;
  if (whole && count == N) return *(const Pack<T, N> *)start;
  Pack<T, N> pack;
  UNROLL for (u32 i = 0; i < N; i++) pack.at[i] = i < count ? start[i] : T();
  return pack;
}

template <typename T, u32 N> __device__ inline void store(void *to, u64 at, u32 count, bool whole, const Pack<T, N> &pack) {
  T *start = (T *)to + at;
  if (whole && count == N) {
    *(Pack<T, N> *)start = pack;
    return;
  }
  UNROLL for (u32 i = 0; i < N; i++) if (i < count) start[i] = pack.at[i];
}

// --- reductions: the order depends on a row's length alone -------------------------------------------------------------

struct Sum {
  __device__ static float none() { return 0.0f; }
  __device__ static float of(float a, float b) { return a + b; }
};
struct Largest {
  __device__ static float none() { return float_of(0xff800000); } // -inf
  __device__ static float of(float a, float b) { return larger(a, b); }
};

// Of a thread's values.
template <typename Kind, u32 N> __device__ inline float of_pack(float (&values)[N]) {
  UNROLL for (u32 apart = N / 2; apart > 0; apart /= 2)
    UNROLL for (u32 i = 0; i < apart; i++) values[i] = Kind::of(values[i], values[i + apart]);
  return values[0];
}

// Of 32 threads side by side, each of which gets it.
template <typename Kind> __device__ inline float of_warp(float value) {
  for (u32 apart = 16; apart > 0; apart /= 2) value = Kind::of(value, __shfl_xor_sync(0xffffffffu, value, (int)apart));
  return value;
}

// Of the threads of a row, each of which gets it. shared: of a block, 32 values that nothing else uses.
template <typename Kind, u32 THREADS> __device__ inline float of_row(float value, float *shared) {
  value = of_warp<Kind>(value);
  if (THREADS > 32) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp<Kind>(threadIdx.x % 32 < THREADS / 32 ? shared[threadIdx.x % 32] : Kind::none());
  }
  return value;
}

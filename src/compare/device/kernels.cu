// What src/compare/scalar.rs does, on a device: each thread adds up the numbers index, index + n_threads, … of a pair of
// tensors. NVRTC compiles this text when a device is first asked; it includes nothing. Threads never wait for each other, so
// a C++ compiler and a loop over the threads run it, too (tests/fixtures/fake_libnvrtc.c).
//
// What a thread finds are words of 8 bytes: word w of thread t lies at found[w * n_threads + t], so that neighbours write side
// by side. src/compare/device/found.rs reads them.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// One launch, as src/compare/device/mod.rs fills it.
struct Task {
  const void *reference, *candidate;
  u64 *found;  // of n_threads
  u64 *merged; // of n_merged
  u64 n_numbers, n_threads, n_merged;
  u64 dtype, equal_nan;
  double fill_limit, atol, rtol, floor;
};

// ONNX's TensorProto.DataType
enum { F32 = 1, U8 = 2, I8 = 3, U16 = 4, I16 = 5, I32 = 6, I64 = 7, BOOL = 9, F16 = 10, F64 = 11, U32 = 12, U64 = 13, BF16 = 16,
       F8E4M3FN = 17, F8E4M3FNUZ = 18, F8E5M2 = 19, F8E5M2FNUZ = 20 };

#define NONE (~0ull)
#define INF (double_of(0x7ff0000000000000ull))
#define LARGEST (double_of(0x7fefffffffffffffull))

// --- numbers ---------------------------------------------------------------------------------------------------------

__device__ inline double double_of(u64 bits) { union { u64 bits; double value; } both; both.bits = bits; return both.value; }
__device__ inline u64 bits_of(double value) { union { u64 bits; double value; } both; both.value = value; return both.bits; }
__device__ inline float float_of(u32 bits) { union { u32 bits; float value; } both; both.bits = bits; return both.value; }
__device__ inline double size_of(double value) { return double_of(bits_of(value) & 0x7fffffffffffffffull); }
__device__ inline bool is_nan(double value) { return value != value; }
__device__ inline bool is_infinite(double value) { return size_of(value) == INF; }
__device__ inline bool is_finite(double value) { return size_of(value) <= LARGEST; }
__device__ inline double larger(double one, double other) { return other > one ? other : one; }

// A small float of so many bits of mantissa that is neither infinite nor NaN.
__device__ inline double narrow(u32 magnitude, int mantissa_bits, int bias) {
  u32 exponent = magnitude >> mantissa_bits, mantissa = magnitude & ((1u << mantissa_bits) - 1);
  // 2^-k and 2^k are made of bits: exact, and of no library.
  double unit = double_of((u64)(1023 - mantissa_bits) << 52);
  double scale = double_of((u64)(1023 + (exponent ? (int)exponent : 1) - bias) << 52);
  return ((exponent ? 1.0 : 0.0) + mantissa * unit) * scale;
}

__device__ inline double half(u32 bits) {
  u32 magnitude = bits & 0x7fff;
  double value = magnitude == 0x7c00 ? INF : magnitude > 0x7c00 ? double_of(0x7ff8000000000000ull) : narrow(magnitude, 10, 15);
  return bits & 0x8000 ? -value : value;
}

__device__ inline double eight_bits(u32 bits, u64 dtype) {
  u32 magnitude = bits & 0x7f;
  double nan = double_of(0x7ff8000000000000ull), value;
  if (dtype == F8E4M3FN) value = magnitude == 0x7f ? nan : narrow(magnitude, 3, 7);
  else if (dtype == F8E5M2) value = magnitude == 0x7c ? INF : magnitude > 0x7c ? nan : narrow(magnitude, 2, 15);
  else if (bits == 0x80) return nan;
  else value = dtype == F8E4M3FNUZ ? narrow(magnitude, 3, 8) : narrow(magnitude, 2, 16);
  return bits & 0x80 ? -value : value;
}

__device__ inline u64 load(const void *tensor, u64 dtype, u64 index) {
  switch (dtype) {
    case F64: case I64: case U64: return ((const u64 *)tensor)[index];
    case F32: case I32: case U32: return ((const u32 *)tensor)[index];
    case F16: case BF16: case I16: case U16: return ((const u16 *)tensor)[index];
    default: return ((const u8 *)tensor)[index];
  }
}

__device__ inline double widen(u64 dtype, u64 bits) {
  switch (dtype) {
    case F64: return double_of(bits);
    case F32: return float_of((u32)bits);
    case F16: return half((u32)bits);
    case BF16: return float_of((u32)bits << 16);
    case I8: return (signed char)bits;
    case I16: return (short)bits;
    case I32: return (int)bits;
    case I64: return (double)(i64)bits;
    case U8: case U16: case U32: case U64: return (double)bits;
    case BOOL: return bits ? 1.0 : 0.0;
    default: return eight_bits((u32)bits, dtype);
  }
}

// |c − r|, exact where a double can hold it.
__device__ inline double distance(u64 dtype, u64 r_bits, u64 c_bits, double r, double c) {
  if (dtype == I64) return (double)((i64)c_bits > (i64)r_bits ? c_bits - r_bits : r_bits - c_bits);
  if (dtype == U64) return (double)(c_bits > r_bits ? c_bits - r_bits : r_bits - c_bits);
  return size_of(c - r);
}

// Steps between two finite floats, on the line where -0 and 0 are one point; 0 of types that count none.
__device__ inline u64 ulp(u64 dtype, u64 r_bits, u64 c_bits) {
  u64 sign;
  switch (dtype) {
    case F64: sign = 1ull << 63; break;
    case F32: sign = 1ull << 31; break;
    case F16: case BF16: sign = 1ull << 15; break;
    default: return 0;
  }
  i64 r = r_bits & sign ? -(i64)(r_bits & ~sign) : (i64)r_bits;
  i64 c = c_bits & sign ? -(i64)(c_bits & ~sign) : (i64)c_bits;
  return c > r ? (u64)c - (u64)r : (u64)r - (u64)c;
}

// numpy.nan_to_num(value, nan=1e10)
__device__ inline double fill(double value) {
  if (is_nan(value)) return 1e10;
  return value > LARGEST ? LARGEST : value < -LARGEST ? -LARGEST : value;
}

// --- what is found ---------------------------------------------------------------------------------------------------

// Counts and sums are added, maxima taken; of a place, the value is the largest and the index that of the first such; of
// firsts, the smallest index.
template <int COUNTS, int SUMS, int MAXIMA, int STEPS, int PLACES, int FIRSTS>
struct Found {
  u64 counts[COUNTS];
  double sums[SUMS + 1], maxima[MAXIMA + 1];
  u64 steps[STEPS + 1];
  double values[PLACES + 1];
  u64 indices[PLACES + 1], firsts[FIRSTS + 1];

  __device__ Found() {
    for (int i = 0; i < COUNTS; i++) counts[i] = 0;
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
    for (int i = 0; i < MAXIMA; i++) maxima[i] = 0;
    for (int i = 0; i < STEPS; i++) steps[i] = 0;
    for (int i = 0; i < PLACES; i++) values[i] = 0, indices[i] = NONE;
    for (int i = 0; i < FIRSTS; i++) firsts[i] = NONE;
  }

  __device__ void place(int i, double value, u64 index) {
    if (value > values[i] || (value == values[i] && index < indices[i] && value > 0)) values[i] = value, indices[i] = index;
  }

  __device__ void merge(const Found &other) {
    for (int i = 0; i < COUNTS; i++) counts[i] += other.counts[i];
    for (int i = 0; i < SUMS; i++) sums[i] += other.sums[i];
    for (int i = 0; i < MAXIMA; i++) maxima[i] = larger(maxima[i], other.maxima[i]);
    for (int i = 0; i < STEPS; i++) steps[i] = other.steps[i] > steps[i] ? other.steps[i] : steps[i];
    for (int i = 0; i < PLACES; i++) place(i, other.values[i], other.indices[i]);
    for (int i = 0; i < FIRSTS; i++) firsts[i] = other.firsts[i] < firsts[i] ? other.firsts[i] : firsts[i];
  }

  __device__ void store(u64 *words, u64 stride) const {
    for (int i = 0; i < COUNTS; i++, words += stride) *words = counts[i];
    for (int i = 0; i < SUMS; i++, words += stride) *words = bits_of(sums[i]);
    for (int i = 0; i < MAXIMA; i++, words += stride) *words = bits_of(maxima[i]);
    for (int i = 0; i < STEPS; i++, words += stride) *words = steps[i];
    for (int i = 0; i < PLACES; i++, words += stride) *words = bits_of(values[i]);
    for (int i = 0; i < PLACES; i++, words += stride) *words = indices[i];
    for (int i = 0; i < FIRSTS; i++, words += stride) *words = firsts[i];
  }

  __device__ void load(const u64 *words, u64 stride) {
    for (int i = 0; i < COUNTS; i++, words += stride) counts[i] = *words;
    for (int i = 0; i < SUMS; i++, words += stride) sums[i] = double_of(*words);
    for (int i = 0; i < MAXIMA; i++, words += stride) maxima[i] = double_of(*words);
    for (int i = 0; i < STEPS; i++, words += stride) steps[i] = *words;
    for (int i = 0; i < PLACES; i++, words += stride) values[i] = double_of(*words);
    for (int i = 0; i < PLACES; i++, words += stride) indices[i] = *words;
    for (int i = 0; i < FIRSTS; i++, words += stride) firsts[i] = *words;
  }
};

enum { MEASURED, NAN_DISAGREEMENTS, INF_DISAGREEMENTS, BOTH_NAN, REFERENCE_NAN, REFERENCE_INF, CANDIDATE_NAN, CANDIDATE_INF, FLUSHED,
       NOT_ZERO, ABOVE, FILLED_ABOVE = ABOVE + 8, N_COUNTS = FILLED_ABOVE + 8 };
enum { SUM_ABS, SUM_SQUARES, SUM_REFERENCE, SUM_CANDIDATE, SUM_PRODUCT, FILLED_SUM, N_SUMS };
enum { MAX_REL, MAX_REFERENCE, FILLED_MAX_REL, N_MAXIMA };
enum { MAX_ABS, FILLED_MAX_ABS, N_PLACES };
typedef Found<N_COUNTS, N_SUMS, N_MAXIMA, 1, N_PLACES, 0> Stats;

enum { REQUIRED_ATOL, REQUIRED_RTOL };
typedef Found<1, 0, 2, 0, 1, 1> Outside;

__device__ inline void count_above(u64 *counts, double apart) {
  const double thresholds[8] = {0., 1e-4, 1e-3, 1e-2, 0.1, 1., 10., 100.};
  for (int i = 0; i < 8; i++) counts[i] += apart > thresholds[i];
}

__device__ inline void add(Stats &stats, const Task &task, u64 index, u64 r_bits, u64 c_bits) {
  double r = widen(task.dtype, r_bits), c = widen(task.dtype, c_bits), size = size_of(r), apart = INF;
  if (size < task.fill_limit) stats.maxima[MAX_REFERENCE] = larger(stats.maxima[MAX_REFERENCE], size);
  stats.counts[REFERENCE_NAN] += is_nan(r);
  stats.counts[REFERENCE_INF] += is_infinite(r);
  stats.counts[CANDIDATE_NAN] += is_nan(c);
  stats.counts[CANDIDATE_INF] += is_infinite(c);
  stats.counts[NOT_ZERO] += r != 0;
  stats.counts[FLUSHED] += c == 0 && r != 0;
  bool finite = is_finite(r) && is_finite(c);
  if (finite) {
    apart = distance(task.dtype, r_bits, c_bits, r, c);
    u64 steps = ulp(task.dtype, r_bits, c_bits);
    stats.steps[0] = steps > stats.steps[0] ? steps : stats.steps[0];
    stats.counts[MEASURED]++;
    stats.sums[SUM_ABS] += apart;
    stats.sums[SUM_SQUARES] += apart * apart;
    stats.sums[SUM_REFERENCE] += r * r;
    stats.sums[SUM_CANDIDATE] += c * c;
    stats.sums[SUM_PRODUCT] += r * c;
    stats.maxima[MAX_REL] = larger(stats.maxima[MAX_REL], apart == 0 ? 0 : apart / size);
  } else if (is_nan(r) && is_nan(c)) {
    stats.counts[BOTH_NAN]++;
    if (task.equal_nan) apart = 0;
  } else if (is_nan(r) || is_nan(c)) {
    stats.counts[NAN_DISAGREEMENTS]++;
  } else if (r == c) {
    stats.counts[MEASURED]++;
    apart = 0;
  } else {
    stats.counts[INF_DISAGREEMENTS]++;
  }
  stats.place(MAX_ABS, apart, index);
  count_above(stats.counts + ABOVE, apart);
  double filled = finite ? apart : size_of(fill(c) - fill(r));
  stats.maxima[FILLED_MAX_REL] = larger(stats.maxima[FILLED_MAX_REL], filled / (size_of(fill(r)) + 1e-3));
  stats.sums[FILLED_SUM] += filled;
  stats.place(FILLED_MAX_ABS, filled, index);
  count_above(stats.counts + FILLED_ABOVE, filled);
}

__device__ inline void add(Outside &outside, const Task &task, u64 index, u64 r_bits, u64 c_bits) {
  double r = widen(task.dtype, r_bits), c = widen(task.dtype, c_bits), excess = INF, atol = INF, rtol = INF;
  if (is_finite(r) && is_finite(c)) {
    double apart = distance(task.dtype, r_bits, c_bits, r, c), size = size_of(r);
    // Rounded up, so that what is reported does pass.
    double over_floor = apart - task.floor, slack = 4 * double_of((u64)(1023 - 52) << 52) * apart;
    excess = apart - (task.atol + task.rtol * size + task.floor);
    atol = over_floor - task.rtol * size;
    rtol = over_floor - task.atol;
    atol = atol > 0 ? atol + slack : 0;
    rtol = rtol > 0 ? (rtol + slack) / size : 0;
  } else if (is_nan(r) && is_nan(c) ? task.equal_nan != 0 : r == c) {
    return;
  }
  outside.maxima[REQUIRED_ATOL] = larger(outside.maxima[REQUIRED_ATOL], atol);
  outside.maxima[REQUIRED_RTOL] = larger(outside.maxima[REQUIRED_RTOL], rtol);
  if (excess > 0) {
    outside.counts[0]++;
    outside.firsts[0] = index < outside.firsts[0] ? index : outside.firsts[0];
    outside.place(0, excess, index);
  }
}

// --- kernels ---------------------------------------------------------------------------------------------------------

template <typename Kind> __device__ inline void find(const Task &task, u64 thread) {
  if (thread >= task.n_threads) return;
  Kind found;
  for (u64 index = thread; index < task.n_numbers; index += task.n_threads)
    add(found, task, index, load(task.reference, task.dtype, index), load(task.candidate, task.dtype, index));
  found.store(task.found + thread, task.n_threads);
}

template <typename Kind> __device__ inline void merge(const Task &task, u64 thread) {
  if (thread >= task.n_merged) return;
  Kind merged;
  for (u64 other = thread; other < task.n_threads; other += task.n_merged) {
    Kind found;
    found.load(task.found + other, task.n_threads);
    merged.merge(found);
  }
  merged.store(task.merged + thread, task.n_merged);
}

#define THREAD ((u64)blockIdx.x * blockDim.x + threadIdx.x)
extern "C" __global__ void find_stats(const Task task) { find<Stats>(task, THREAD); }
extern "C" __global__ void merge_stats(const Task task) { merge<Stats>(task, THREAD); }
extern "C" __global__ void find_outside(const Task task) { find<Outside>(task, THREAD); }
extern "C" __global__ void merge_outside(const Task task) { merge<Outside>(task, THREAD); }

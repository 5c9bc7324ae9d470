// What src/compare/ does on the host, on a device. One launch answers many questions of a kind: a task is one of them, and has
// threads of its own, of which each looks at the numbers index, index + n_threads, … of its tensors. NVRTC compiles this text
// when a device is first asked; it includes nothing. Threads never wait for each other, so a C++ compiler and a loop over the
// threads run it, too (tests/fixtures/fake_libnvrtc.c).
//
// What a thread finds are words of 8 bytes: word w of thread t of a task lies at found[w * n_threads + t], so that neighbours
// write side by side. Merging leaves one of FAN behind the others, until one is left, in `out`. src/compare/device/found.rs
// reads it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// One question, as src/compare/device/round.rs fills it. Tensors that it does not ask of are null.
struct Task {
  const void *reference, *candidate, *exact, *terms;
  u64 *found; // of n_threads, and of what merges them
  u64 *out;
  u64 first, n_threads; // its threads among those of the launch
  u64 n_numbers, dtype, equal_nan;
  double fill_limit, atol, rtol, floor;
  double of_exact, of_terms, of_all;    // what rounding explains of an element
  double epsilon, smallest;             // of a half-precision type; epsilon is 0 of others
  u64 depth;                            // of a signature: each segment is cut into two so often
  u64 at[2];                            // of numbers: their places
};

struct Launch {
  const Task *tasks;
  u64 n_tasks, n_threads;
  u64 level, n_each; // of a merge: how many came before it, and threads of each task
};

#define FAN 64

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
  enum { WORDS = COUNTS + SUMS + MAXIMA + STEPS + 2 * PLACES + FIRSTS };
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

__device__ inline void add(Stats &stats, const Task &task, u64 index) {
  u64 r_bits = load(task.reference, task.dtype, index), c_bits = load(task.candidate, task.dtype, index);
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

__device__ inline void add(Outside &outside, const Task &task, u64 index) {
  u64 r_bits = load(task.reference, task.dtype, index), c_bits = load(task.candidate, task.dtype, index);
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

// What one tensor holds. Steps are numbers as they are ordered, of finite ones the largest, and the largest negated.
enum { RANGE_NAN, RANGE_INF, RANGE_ZEROS, N_RANGE };
typedef Found<N_RANGE, 0, 0, 2, 0, 0> Range;

__device__ inline u64 ordered(double value) {
  u64 bits = bits_of(value), sign = 1ull << 63;
  return bits & sign ? ~bits : bits | sign;
}

__device__ inline void add(Range &range, const Task &task, u64 index) {
  double value = widen(task.dtype, load(task.reference, task.dtype, index));
  range.counts[RANGE_NAN] += is_nan(value);
  range.counts[RANGE_INF] += is_infinite(value);
  range.counts[RANGE_ZEROS] += value == 0;
  if (!is_finite(value)) return;
  u64 largest = ordered(value), smallest = ordered(-value);
  range.steps[0] = largest > range.steps[0] ? largest : range.steps[0];
  range.steps[1] = smallest > range.steps[1] ? smallest : range.steps[1];
}

// Errors of both sides against the exact one, and how both round.
enum { ROUNDED, REFERENCE_BEYOND, CANDIDATE_BEYOND, BOTH_BEYOND, N_ROUNDED };
enum { REFERENCE_ERRORS, CANDIDATE_ERRORS, REFERENCE_SQUARES, CANDIDATE_SQUARES, DIFFERENCES, N_ERROR_SUMS };
enum { REFERENCE_ERROR, CANDIDATE_ERROR, REFERENCE_EXCESS, CANDIDATE_EXCESS, DISTANCE, N_ERRORS };
typedef Found<N_ROUNDED, N_ERROR_SUMS, N_ERRORS, 0, 0, 0> Errors;

__device__ inline double error_of(double value, double exact) {
  double apart = size_of(value - exact);
  return value == exact || (is_nan(value) && is_nan(exact)) ? 0 : is_nan(apart) ? INF : apart;
}

__device__ inline double excess_of(double apart, double explained) {
  return apart == 0 ? 0 : is_finite(explained) ? apart / explained : INF;
}

__device__ inline double step_at(const Task &task, double value) {
  return larger(double_of(bits_of(value) & 0x7ff0000000000000ull) * task.epsilon, task.smallest);
}

__device__ inline bool is_beyond(const Task &task, double value, double exact, double slack) {
  return size_of(value - exact) > larger(step_at(task, value), step_at(task, exact)) / 2 + slack;
}

__device__ inline void add(Errors &errors, const Task &task, u64 index) {
  double r = widen(task.dtype, load(task.reference, task.dtype, index));
  double c = widen(task.dtype, load(task.candidate, task.dtype, index));
  double exact = ((const double *)task.exact)[index], terms = task.terms ? ((const double *)task.terms)[index] : 0;
  double slack = task.of_terms * terms + task.of_all, explained = task.of_exact * size_of(exact) + slack;
  double of_r = error_of(r, exact), of_c = error_of(c, exact);
  errors.maxima[REFERENCE_ERROR] = larger(errors.maxima[REFERENCE_ERROR], of_r);
  errors.maxima[CANDIDATE_ERROR] = larger(errors.maxima[CANDIDATE_ERROR], of_c);
  errors.maxima[REFERENCE_EXCESS] = larger(errors.maxima[REFERENCE_EXCESS], excess_of(of_r, explained));
  errors.maxima[CANDIDATE_EXCESS] = larger(errors.maxima[CANDIDATE_EXCESS], excess_of(of_c, explained));
  errors.maxima[DISTANCE] = larger(errors.maxima[DISTANCE], error_of(c, r));
  if (task.epsilon == 0 || !(is_finite(r) && is_finite(c) && is_finite(exact) && is_finite(slack))) return;
  double size = step_at(task, exact) + 2 * slack, r_error = (r - exact) / size, c_error = (c - exact) / size;
  bool r_beyond = is_beyond(task, r, exact, slack), c_beyond = is_beyond(task, c, exact, slack);
  double difference = c_error * c_error - r_error * r_error;
  errors.counts[ROUNDED]++;
  errors.counts[REFERENCE_BEYOND] += r_beyond;
  errors.counts[CANDIDATE_BEYOND] += c_beyond;
  errors.counts[BOTH_BEYOND] += r_beyond && c_beyond;
  errors.sums[REFERENCE_ERRORS] += r_error;
  errors.sums[CANDIDATE_ERRORS] += c_error;
  errors.sums[REFERENCE_SQUARES] += r_error * r_error;
  errors.sums[CANDIDATE_SQUARES] += c_error * c_error;
  errors.sums[DIFFERENCES] += difference * difference;
}

// What neither the tolerance nor what was added up explains, and the largest Σ|terms|. rtol: what a sum may have of its terms
// is in of_terms.
typedef Found<1, 0, 1, 0, 0, 0> Sums;

__device__ inline void add(Sums &sums, const Task &task, u64 index) {
  double r = widen(task.dtype, load(task.reference, task.dtype, index));
  double c = widen(task.dtype, load(task.candidate, task.dtype, index));
  double terms = ((const double *)task.terms)[index], apart = size_of(c - r);
  bool near = apart <= task.floor + task.rtol * size_of(r) || apart <= task.of_terms * terms;
  bool inside = c == r || (near && is_finite(apart) && is_finite(terms));
  sums.counts[0] += !(inside || (task.equal_nan && is_nan(c) && is_nan(r)));
  sums.maxima[0] = larger(sums.maxima[0], terms);
}

// --- sums in NumPy's order: src/compare/signature.rs -------------------------------------------------------------------

__device__ inline u64 head_of(u64 len) { return len / 2 - len / 2 % 8; }

// Behind the tensor's end there are zeros.
__device__ inline double element(const Task &task, u64 index) {
  return index < task.n_numbers ? widen(task.dtype, load(task.reference, task.dtype, index)) : 0;
}

__device__ inline double block_sum(const Task &task, u64 from, u64 len) {
  double sums[8], sum = -0.;
  u64 at = 0;
  if (len >= 8) {
    for (; at < 8; at++) sums[at] = element(task, from + at);
    for (; at + 8 <= len; at += 8)
      for (int i = 0; i < 8; i++) sums[i] += element(task, from + at + i);
    sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
  for (; at < len; at++) sum += element(task, from + at);
  return sum;
}

// Of up to 1024 elements: halves of halves, the first before the second.
__device__ inline double pairwise_sum(const Task &task, u64 from, u64 len) {
  u64 next_from[8], next_len[8];
  double firsts[8];
  bool has_first[8];
  int depth = 0;
  for (;;) {
    for (; len > 128; len = head_of(len), depth++) {
      next_from[depth] = from + head_of(len), next_len[depth] = len - head_of(len), has_first[depth] = false;
    }
    double sum = block_sum(task, from, len);
    for (; depth > 0 && has_first[depth - 1]; depth--) sum = firsts[depth - 1] + sum;
    if (depth == 0) return sum;
    firsts[depth - 1] = sum, has_first[depth - 1] = true;
    from = next_from[depth - 1], len = next_len[depth - 1];
  }
}

// --- kernels ---------------------------------------------------------------------------------------------------------

// The last task that begins at this thread or before it.
__device__ inline const Task &task_of(const Launch &launch, u64 thread) {
  u64 low = 0, high = launch.n_tasks;
  while (high - low > 1) {
    u64 middle = (low + high) / 2;
    if (launch.tasks[middle].first <= thread) low = middle; else high = middle;
  }
  return launch.tasks[low];
}

template <typename Kind> __device__ inline void find(const Launch &launch, u64 thread) {
  if (thread >= launch.n_threads) return;
  const Task task = task_of(launch, thread);
  Kind found;
  thread -= task.first;
  for (u64 index = thread; index < task.n_numbers; index += task.n_threads) add(found, task, index);
  found.store(task.found + thread, task.n_threads);
}

template <typename Kind> __device__ inline void merge(const Launch &launch, u64 thread) {
  if (thread >= launch.n_tasks * launch.n_each) return;
  const Task &task = launch.tasks[thread / launch.n_each];
  thread %= launch.n_each;
  u64 *from = task.found, n = task.n_threads;
  for (u64 level = 0; level < launch.level && n > 1; level++) {
    from += n * Kind::WORDS;
    n = (n + FAN - 1) / FAN;
  }
  u64 n_left = (n + FAN - 1) / FAN;
  if (n == 1 || thread >= n_left) return;
  Kind merged;
  for (u64 other = thread; other < n; other += n_left) {
    Kind found;
    found.load(from + other, n);
    merged.merge(found);
  }
  merged.store(n_left == 1 ? task.out : from + n * Kind::WORDS + thread, n_left);
}

// Each thread adds up one of the pieces that the four segments of a tensor are cut into.
__device__ inline void find_pieces(const Launch &launch, u64 thread) {
  if (thread >= launch.n_threads) return;
  const Task task = task_of(launch, thread);
  thread -= task.first;
  u64 len = task.n_numbers <= 4 ? 1 : (task.n_numbers + 3) / 4, from = (thread >> task.depth) * len;
  for (u64 bit = task.depth; bit-- > 0;) {
    u64 head = head_of(len);
    if (thread >> bit & 1) from += head, len -= head; else len = head;
  }
  task.found[thread] = bits_of(pairwise_sum(task, from, len));
}

// Two and two, up to FAN neighbours in one go; four sums are left.
__device__ inline void merge_pieces(const Launch &launch, u64 thread) {
  if (thread >= launch.n_tasks * launch.n_each) return;
  const Task &task = launch.tasks[thread / launch.n_each];
  thread %= launch.n_each;
  u64 *from = task.found, depth = task.depth;
  for (u64 level = 0; level < launch.level; level++) {
    if (depth <= 6) return;
    from += 4ull << depth;
    depth -= 6;
  }
  u64 folds = depth < 6 ? depth : 6, n_left = 4ull << (depth - folds);
  if (thread >= n_left) return;
  double sums[8];
  int n_sums = 0;
  for (u64 at = 0; at < 1ull << folds; at++) {
    double sum = double_of(from[(thread << folds) + at]);
    for (u64 carry = at; carry & 1; carry >>= 1) sum = sums[--n_sums] + sum;
    sums[n_sums++] = sum;
  }
  (depth == folds ? task.out : from + (4ull << depth))[thread] = bits_of(sums[0]);
}

// Reference and candidate at two places.
__device__ inline void look_at(const Launch &launch, u64 thread) {
  if (thread >= launch.n_tasks) return;
  const Task &task = launch.tasks[thread];
  for (int i = 0; i < 2; i++) {
    if (task.at[i] == NONE) continue;
    task.out[2 * i] = bits_of(widen(task.dtype, load(task.reference, task.dtype, task.at[i])));
    task.out[2 * i + 1] = bits_of(widen(task.dtype, load(task.candidate, task.dtype, task.at[i])));
  }
}

#define THREAD ((u64)blockIdx.x * blockDim.x + threadIdx.x)
extern "C" __global__ void find_stats(const Launch launch) { find<Stats>(launch, THREAD); }
extern "C" __global__ void merge_stats(const Launch launch) { merge<Stats>(launch, THREAD); }
extern "C" __global__ void find_outside(const Launch launch) { find<Outside>(launch, THREAD); }
extern "C" __global__ void merge_outside(const Launch launch) { merge<Outside>(launch, THREAD); }
extern "C" __global__ void find_range(const Launch launch) { find<Range>(launch, THREAD); }
extern "C" __global__ void merge_range(const Launch launch) { merge<Range>(launch, THREAD); }
extern "C" __global__ void find_errors(const Launch launch) { find<Errors>(launch, THREAD); }
extern "C" __global__ void merge_errors(const Launch launch) { merge<Errors>(launch, THREAD); }
extern "C" __global__ void find_sums(const Launch launch) { find<Sums>(launch, THREAD); }
extern "C" __global__ void merge_sums(const Launch launch) { merge<Sums>(launch, THREAD); }
extern "C" __global__ void find_signature(const Launch launch) { find_pieces(launch, THREAD); }
extern "C" __global__ void merge_signature(const Launch launch) { merge_pieces(launch, THREAD); }
extern "C" __global__ void find_numbers(const Launch launch) { look_at(launch, THREAD); }

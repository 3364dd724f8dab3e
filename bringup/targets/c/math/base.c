// Primitives that vectors have no operator for, in portable form; math_intrinsics.py names the x86 instructions.

//! vector f32 f64
F select(I m, F yes, F no) {
  return FLOAT((m & BITS(yes)) | (~m & BITS(no)));
}

//! vector i8 i16 i32 i64 u8 u16 u32 u64
F select(I m, F yes, F no) {
  return (F)((m & (I)yes) | (~m & (I)no));
}

//! scalar f32 f64 i8 i16 i32 i64 u8 u16 u32 u64
F select(I m, F yes, F no) {
  return m ? yes : no;
}

//! vector f32 f64
F fma(F a, F b, F c) {
#if defined(__riscv_vector) && defined(__clang__) && __clang_major__ >= 18
  // Of the loop clang makes vectors only where it is short of neither time nor registers: 512 of gelu took 13,251
  // instructions for RISC-V, and take 3,615.
  return __builtin_elementwise_fma(a, b, c);
#else
  F r = a;
  for (int i = 0; i < LANES; i++) r[i] = F1.fma(a[i], b[i], c[i]);
  return r;
#endif
}

//! scalar f32
static __attribute__((unused)) inline F fma(F a, F b, F c) {
#if defined(__FP_FAST_FMAF) || __riscv_flen >= 32
  return __builtin_fmaf(a, b, c);
#elif defined(__riscv)
  return soft_fma(a, b, c);  // double would be in software, too
#else
  // The product is exact in double; the sum is rounded to odd, so that the rounding to float is the only one.
  double product = (double)a * (double)b, wide = c, sum = product + wide, part = sum - product;
  double rest = (product - (sum - part)) + (wide - part);
  union { double value; int64_t bits; } odd = { sum };
  int64_t exponent = odd.bits & 0x7ff0000000000000;
  if (rest != 0 && !(odd.bits & 1) && exponent != 0x7ff0000000000000) odd.bits += ((rest > 0) == (sum > 0)) ? 1 : -1;
  return (float)odd.value;
#endif
}

//! scalar f64
static __attribute__((unused)) inline F fma(F a, F b, F c) {
#if defined(__FP_FAST_FMA) || __riscv_flen >= 64
  return __builtin_fma(a, b, c);
#else
  return soft_fma(a, b, c);
#endif
}

//! vector f32 f64
F sqrt(F x) {
#if defined(__riscv_vector) && defined(__clang__) && __clang_major__ >= 18
  return __builtin_elementwise_sqrt(x);
#else
  F r = x;
  for (int i = 0; i < LANES; i++) r[i] = F1.sqrt(x[i]);
  return r;
#endif
}

//! scalar f32
static __attribute__((unused)) inline F sqrt(F x) {
  return __builtin_sqrtf(x);
}

//! scalar f64
static __attribute__((unused)) inline F sqrt(F x) {
  return __builtin_sqrt(x);
}

//! vector i8 i16 i32 i64
int any(F m) {
  int found = 0;
  for (int i = 0; i < LANES; i++) found |= m[i] != 0;
  return found;
}

//! scalar i8 i16 i32 i64
int any(F m) {
  return m != 0;
}

//! f32 f64
F lesser(F a, F b) {
  return select(MASK(a < b), a, b);
}

//! f32 f64
F greater(F a, F b) {
  return select(MASK(a > b), a, b);
}

//! f32 f64
F abs(F x) {
  return FLOAT(BITS(x) & ~BITS(K(-0.0)));
}

//! f32 f64
F signed_as(F x, F sign) {
  return FLOAT((BITS(x) & ~BITS(K(-0.0))) | (BITS(sign) & BITS(K(-0.0))));
}

//! f32 f64
F copysign(F a, F b) {
  return FLOAT((BITS(a) & ~BITS(K(-0.0))) | (BITS(b) & BITS(K(-0.0)) & MASK(b == b)));
}

//! vector f32 f64
F min(F a, F b) {
  return select(MASK(a != a), a, lesser(a, b));
}

//! scalar f32 f64
F min(F a, F b) {
  if (a >= b) return b;
#ifdef __riscv
  __asm__ volatile("");
#endif
  return b != b ? b : a;
}

//! vector f32 f64
F max(F a, F b) {
  return select(MASK(a != a), a, greater(a, b));
}

// One comparison is left where b is a constant. The empty asm keeps the second one behind a branch: clang would do both
// and join them with two instructions more.
//! scalar f32 f64
F max(F a, F b) {
  if (a <= b) return b;
#ifdef __riscv
  __asm__ volatile("");
#endif
  return b != b ? b : a;
}

// Between two numbers, neither of them a zero that x may equal with another sign; NaN stays. Four instructions where one
// comparison after the other takes five or six.
//! scalar f32
F clamp(F x, F low, F high) {
#if __riscv_flen >= 32
  F r;  // of the builtins gcc makes calls
  __asm__("fmax.s %0, %1, %2" : "=f"(r) : "f"(x), "f"(low));
  __asm__("fmin.s %0, %1, %2" : "=f"(r) : "f"(r), "f"(high));
  if (x == x) return r;
  __asm__ volatile("");
  return x;
#else
  return min(max(x, low), high);
#endif
}

//! f32 f64
F sign(F x) {
  return FLOAT((BITS(K(1.0)) & MASK(x > 0)) | (BITS(K(-1.0)) & MASK(x < 0)));
}

//! f32 f64
F rsqrt(F x) {
  return (S)1 / sqrt(x);
}

//! f32 f64
F reciprocal(F x) {
  return (S)1 / x;
}

//! f32 f64
I isnan(F x) {
  return TEST(x != x);
}

//! f32 f64
I isinf(F x) {
  return TEST(abs(x) == (S)__builtin_inf());
}

//! f32 f64
I isfinite(F x) {
  return TEST(abs(x) < (S)__builtin_inf());
}

//! f32 f64
I signbit(F x) {
  return TEST((BITS(x) < 0) & (x == x));
}

// Adding 2^(digits - 1) leaves no bits for a fraction; from there up every number is whole.
//! f32
F round(F x) {
  F magic = signed_as(K(0x1p23), x);
  return select(MASK(abs(x) < 0x1p23f), signed_as((x + magic) - magic, x), x);
}

//! f64
F round(F x) {
  F magic = signed_as(K(0x1p52), x);
  return select(MASK(abs(x) < 0x1p52), signed_as((x + magic) - magic, x), x);
}

//! f32 f64
F floor(F x) {
  F near = round(x);
  return select(MASK(near > x), signed_as(near - (S)1, x), near);
}

//! f32 f64
F ceil(F x) {
  F near = round(x);
  return select(MASK(near < x), signed_as(near + (S)1, x), near);
}

//! f32 f64
F trunc(F x) {
  return signed_as(floor(abs(x)), x);
}

// x · 2^n for a whole n in -252 … 252: the first product is exact (x is near 1), so there is one rounding.
//! f32
F scale(F x, F n) {
  I whole = BITS(n + 0x1.8p23f) - BITS(K(0x1.8p23)), half = whole >> 1;
  return x * FLOAT((half + 127) << 23) * FLOAT((whole - half + 127) << 23);
}

//! f64
F scale(F x, F n) {
  I whole = BITS(n + 0x1.8p52) - BITS(K(0x1.8p52)), half = whole >> 1;
  return x * FLOAT((half + 1023) << 52) * FLOAT((whole - half + 1023) << 52);
}

// 2^n for a whole n in the range of normal numbers.
//! f32
F power_of_two(F n) {
  return FLOAT((BITS(n + 0x1.8p23f) - BITS(K(0x1.8p23)) + 127) << 23);
}

//! f64
F power_of_two(F n) {
  return FLOAT((BITS(n + 0x1.8p52) - BITS(K(0x1.8p52)) + 1023) << 52);
}

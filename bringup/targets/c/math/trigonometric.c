// Sine, cosine and tangent.

// The sine of x and some quarter turns more, for |x| <= 2^16. Reduced to r in -pi/4 … pi/4 by three steps, of which the
// first is exact; all parts of pi / 2 have one sign, so that -0.0 stays.
//! f32
F sin_quarters(F x, I more) {
  F t = fma(x, K(0.63661975), K(0x1.8p23)), n = t - 0x1.8p23f;
  F r = fma(n, K(-5.3903025e-15), fma(n, K(-7.5497894e-08), fma(n, K(-1.57079625), x)));
  I quarter = BITS(t) + more, odd = MASK((quarter & 1) != 0);
  F a = abs(r), s = a * a;
  F sine = fma(POLY(s, -1.6666654e-01, 8.332106e-03, -1.9507883e-04) * s, a, a);
  F cosine = fma(fma(POLY(s, 4.1666646e-02, -1.3887308e-03, 2.4432102e-05), s, K(-0.5)), s, K(1.0));
  I sign = (quarter << 30) ^ (BITS(r) & ~odd);
  return FLOAT(BITS(select(odd, cosine, sine)) ^ (sign & BITS(K(-0.0))));
}

//! f32
F sin(F x) {
  F y = sin_quarters(x, N(0));
  I huge = MASK(abs(x) > 65536.0f);
  if (__builtin_expect(I.any(huge), 0)) y = select(huge, sin_huge(x), y);
  return y;
}

//! f32
F cos(F x) {
  F y = sin_quarters(x, N(1));
  I huge = MASK(abs(x) > 65536.0f);
  if (__builtin_expect(I.any(huge), 0)) y = select(huge, cos_huge(x), y);
  return y;
}

//! vector f32 f64
static __attribute__((noinline, cold)) F sin_huge(F x) {
  F r = x;
#pragma GCC unroll 1
  for (int i = 0; i < LANES; i++) r[i] = F1.sin_huge(x[i]);
  return r;
}

//! vector f32 f64
static __attribute__((noinline, cold)) F cos_huge(F x) {
  F r = x;
#pragma GCC unroll 1
  for (int i = 0; i < LANES; i++) r[i] = F1.cos_huge(x[i]);
  return r;
}

//! scalar f32 f64
static __attribute__((noinline, cold)) F sin_huge(F x) {
  double r[2];
  int quarter = D1.huge_angle((double)x, r);
  double y = quarter & 1 ? D1.cos_kernel(r[0], r[1]) : D1.sin_kernel(r[0], r[1]);
  return (F)(quarter & 2 ? -y : y);
}

//! scalar f32 f64
static __attribute__((noinline, cold)) F cos_huge(F x) {
  double r[2];
  int quarter = D1.huge_angle((double)x, r);
  double y = quarter & 1 ? D1.sin_kernel(r[0], r[1]) : D1.cos_kernel(r[0], r[1]);
  return (F)((quarter + 1) & 2 ? -y : y);
}

// sin(x + y) for |x| <= pi / 4 and a tail y; the coefficients are those of fdlibm's kernels.
//! f64
F sin_kernel(F x, F y) {
  F s = x * x, v = s * x;
  F p = POLY(s, 8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
      -2.50507602534068634195e-08, 1.58969099521155010221e-10);
  return x - (fma(s, fma(v, -p, y * 0.5), -y) - v * -1.66666666666666324348e-01);
}

//! f64
F cos_kernel(F x, F y) {
  F s = x * x;
  F p = POLY(s, 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
      -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11);
  F half = s * 0.5, w = 1.0 - half;
  return w + (((1.0 - w) - half) + fma(s * s, p, -(x * y)));
}

// x - n · pi / 2 as a sum of two numbers, for |n| up to 2^16 (float) or 2^28 (double).
//! f32 f64
F minus_quarters(F x, F n, F *low) {
  F first = fma(n, K(PICK(-1.57079625, -1.5707963267948966)), x), next = K(PICK(-7.5497894e-08,
      -6.123233995736765e-17));
  F part = n * next, lost = fma(n, next, -part), sum = first + part, back = sum - first;
  F tail = ((first - (sum - back)) + (part - back)) + fma(n, K(PICK(-5.3903025e-15, -1.0828566739219139e-32)), lost);
  F high = sum + tail;
  *low = tail - (high - sum);
  return high;
}

//! f64
F sin(F x) {
  F t = fma(x, K(0.6366197723675814), K(0x1.8p52)), low, r = minus_quarters(x, t - 0x1.8p52, &low);
  I quarter = BITS(t) & 3;
  F y = select(MASK((quarter & 1) != 0), cos_kernel(r, low), sin_kernel(r, low));
  y = FLOAT(BITS(y) ^ ((quarter & 2) << 62));
  y = select(MASK(abs(x) < 0x1p-27), x, y);
  I huge = MASK(abs(x) > 0x1p28);
  if (__builtin_expect(I.any(huge), 0)) y = select(huge, sin_huge(x), y);
  return select(MASK(x != x), x, y);
}

//! f64
F cos(F x) {
  F t = fma(x, K(0.6366197723675814), K(0x1.8p52)), low, r = minus_quarters(x, t - 0x1.8p52, &low);
  I quarter = BITS(t) & 3;
  F y = select(MASK((quarter & 1) != 0), sin_kernel(r, low), cos_kernel(r, low));
  y = FLOAT(BITS(y) ^ (((quarter + 1) & 2) << 62));
  I huge = MASK(abs(x) > 0x1p28);
  if (__builtin_expect(I.any(huge), 0)) y = select(huge, cos_huge(x), y);
  return select(MASK(x != x), x, y);
}

//! f32
F tan(F x) {
  F t = fma(x, K(0.63661975), K(0x1.8p23)), low, r = minus_quarters(x, t - 0x1.8p23f, &low);
  F y = tan_kernel(r, low, MASK((BITS(t) & 1) != 0));
  y = select(MASK(x == 0.0f), x, y);
  I huge = MASK(abs(x) > 65536.0f);
  if (__builtin_expect(I.any(huge), 0)) y = select(huge, tan_huge(x), y);
  return y;
}

//! f32
F tan_series(F s) {
  return POLY(s, 0.3333315, 0.13338996, 0.053394485, 0.024491487, 0.0030195334, 0.009445879);
}

//! f64
F tan_series(F s) {
  return POLY(s, 0.33333333333333376, 0.13333333333325792, 0.0539682539726568, 0.021869488406115332,
      0.008863237811454516, 0.0035921020493729352, 0.0014560371808912478, 0.000588906598652006,
      0.00024360062652957875, 8.394520940569759e-05, 6.65160138732004e-05, -2.473784149847711e-05,
      4.788541025633054e-05, -2.3900918894497827e-05, 9.715761050968694e-06);
}

// tan(x + y) or, for an odd number of quarter turns, -1 / tan(x + y), as a sum divided in two steps.
//! f32 f64
F tan_kernel(F x, F y, I odd) {
  F s = x * x;
  F p = tan_series(s);
  F bend = fma(s * x, p, fma(s, y, y)), high = x + bend, low = bend - (high - x);
  F c = (S)-1 / high, turned = fma(fma(c, high, K(1.0)) + c * low, c, c);
  return select(odd, turned, high);
}

//! f64
F tan(F x) {
  F t = fma(x, K(0.6366197723675814), K(0x1.8p52)), low, r = minus_quarters(x, t - 0x1.8p52, &low);
  F y = tan_kernel(r, low, MASK((BITS(t) & 1) != 0));
  y = select(MASK(abs(x) < 0x1p-27), x, y);
  I huge = MASK(abs(x) > 0x1p28);
  if (__builtin_expect(I.any(huge), 0)) y = select(huge, tan_huge(x), y);
  return select(MASK(x != x), x, y);
}

//! vector f32 f64
static __attribute__((noinline, cold)) F tan_huge(F x) {
  F r = x;
#pragma GCC unroll 1
  for (int i = 0; i < LANES; i++) r[i] = F1.tan_huge(x[i]);
  return r;
}

//! scalar f32 f64
static __attribute__((noinline, cold)) F tan_huge(F x) {
  double r[2];
  int quarter = D1.huge_angle((double)x, r);
  return (F)D1.tan_kernel(r[0], r[1], -(int64_t)(quarter & 1));
}

// Logarithms: x = 2^e · (1 + f) with 1 + f near 1, and a polynomial for log(1 + f).

// What a logarithm is outside the positive numbers: -inf at 0, NaN below, inf at inf.
//! f32 f64
F log_special(F x, F r) {
  F other = select(MASK(x < (S)0), K(__builtin_nan("")), select(MASK(x == (S)0), K(-__builtin_inf()), x));
  return select(MASK(x > (S)0) & MASK(x < (S)__builtin_inf()), r, other);
}

//! f32
F log_kernel(F f) {
  return POLY(f, 0.3333345, -0.25000104, 0.199908, -0.16646868, 0.14478408, -0.13166194, 0.104744785, -0.0451529);
}

//! f32
F log(F x) {
  I small = MASK(x < 0x1p-126f);
  F y = select(small, x * 0x1p23f, x);
  I step = (BITS(y) - 0x3f400000) & -0x800000;
  F f = FLOAT(BITS(y) - step) - 1.0f, s = f * f;
  F e = CONVERT(F, step >> 23) - FLOAT(small & BITS(K(23.0)));
  F tail = fma(log_kernel(f) * f, s, e * -1.9046542e-9f);
  return log_special(x, fma(e, K(0.6931472), fma(s, K(-0.5), tail) + f));
}

// 1 + x loses bits of x; they come back into f, scaled. Where the exponent is 0 that makes f the number x itself.
//! f32
F log1p(F x) {
  F y = x + 1.0f, back = y - 1.0f, lost = (1.0f - (y - back)) + (x - back);
  I step = (BITS(y) - 0x3f400000) & -0x800000;
  F f = fma(lost, FLOAT((BITS(K(1.0)) - step) & MASK(y < 0x1p60f)), FLOAT(BITS(y) - step) - 1.0f), s = f * f;
  F e = CONVERT(F, step >> 23);
  F tail = fma(log_kernel(f) * f, s, e * -1.9046542e-9f);
  F r = fma(e, K(0.6931472), fma(s, K(-0.5), tail) + f);
  return select(MASK(abs(x) < 0x1p-24f), x, log_special(y, r));
}

// log(1 + f) · c + e · d, where c is high + low.
//! f32
F log_scaled(F x, F high, F low, F step_high, F step_low) {
  I small = MASK(x < 0x1p-126f);
  F y = select(small, x * 0x1p23f, x);
  I step = (BITS(y) - 0x3f400000) & -0x800000;
  F f = FLOAT(BITS(y) - step) - 1.0f, s = f * f;
  F e = CONVERT(F, step >> 23) - FLOAT(small & BITS(K(23.0)));
  F bend = fma(log_kernel(f) * f, s, s * -0.5f);
  F tail = fma(e, step_low, fma(f, low, bend * high));
  F whole = e * step_high, part = f * high, lost = fma(f, high, -part);
  F sum = whole + part, back = sum - whole;
  return log_special(x, sum + (((whole - (sum - back)) + (part - back)) + (lost + tail)));
}

//! f32
F log2(F x) {
  return log_scaled(x, K(1.442695), K(1.925963e-8), K(1.0), K(0.0));
}

// The first part of log10(2) has 12 bits, so that its product with an exponent is exact.
//! f32
F log10(F x) {
  return log_scaled(x, K(0.4342945), K(-1.010305e-8), K(0x1.344p-2), K(4.605039066518657e-06));
}

// What to take off the bits of x to bring it to sqrt(1/2) … sqrt(2).
//! f64
I log_step(F x) {
  return (BITS(x) - 0x3fe6a09e667f3bcd) & -0x10000000000000;
}

// The step as a number: not every machine converts 64-bit integers.
//! f64
F log_exponent(I step) {
  return FLOAT((I)((UJ)(step + 0x3ff0000000000000) >> 52) | BITS(K(0x1p52))) - (0x1p52 + 1023.0);
}

//! f64
F log(F x) {
  I small = MASK(x < 0x1p-1022);
  F y = select(small, x * 0x1p54, x);
  I step = log_step(y);
  F f = FLOAT(BITS(y) - step) - 1.0, e = log_exponent(step) - FLOAT(small & BITS(K(54.0)));
  F s = f / (f + 2.0), z = s * s, half = f * f * 0.5;
  F p = POLY(z, 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
      2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01) * z;
  F tail = fma(s, half + p, e * 2.3190468138462996e-17);
  return log_special(x, fma(e, K(0.6931471805599453), f - (half - tail)));
}

// log(x + y) as a sum of two numbers with a relative error near 2^-64, for a positive x and a y below half its last
// bit.
//! f64
F log_sum(F x, F y, F *low) {
  I small = MASK(x < 0x1p-1022);
  x = select(small, x * 0x1p54, x);
  I step = log_step(x);
  F e = log_exponent(step), first = FLOAT(BITS(x) - step) - 1.0, second = y * power_of_two(greater(K(-1000.0), -e));
  F f = first + second, rest = second - (f - first);
  e = e - FLOAT(small & BITS(K(54.0)));
  F d = f + 2.0, drest = (f - (d - 2.0)) + rest, c = 1.0 / d, s = f * c;
  F srest = (fma(-s, d, f) + fma(-s, drest, rest)) * c;
  F z = s * s, zrest = fma(s, s, -z) + (s + s) * srest;
  F q = POLY(z, 0.4, 0.28571428571428376, 0.22222222222290788, 0.18181818169220024, 0.15384616756196992,
      0.1333324027371363, 0.11768679012085759, 0.10422812569863972, 0.11013987184588185) * z;
  F t = q + 0.6666666666666666, trest = (q - (t - 0.6666666666666666)) + fma(zrest, K(0.4), K(3.700743415417188e-17));
  F cube = s * z, cuberest = fma(s, z, -cube) + fma(s, zrest, srest * z);
  F p = cube * t, prest = fma(cube, t, -p) + fma(cube, trest, cuberest * t);
  F twice = s + s, r = twice + p, rrest = (p - (r - twice)) + fma(srest, K(2.0), prest);
  F whole = e * 0.6931471805599453, wholerest = fma(e, K(0.6931471805599453), -whole);
  F sum = whole + r, error = (r - (sum - whole)) + (rrest + fma(e, K(2.3190468138462996e-17), wholerest));
  F high = sum + error;
  *low = error - (high - sum);
  return high;
}

//! f64
F log2(F x) {
  F low, high = log_sum(x, K(0.0), &low), r = high * 1.4426950408889634;
  F rest = fma(high, K(1.4426950408889634), -r) + fma(high, K(2.0355273740931033e-17), low * 1.4426950408889634);
  return log_special(x, r + rest);
}

//! f64
F log10(F x) {
  F low, high = log_sum(x, K(0.0), &low), r = high * 0.4342944819032518;
  F rest = fma(high, K(0.4342944819032518), -r) + fma(high, K(1.098319650216765e-17), low * 0.4342944819032518);
  return log_special(x, r + rest);
}

//! f64
F log1p(F x) {
  F y = x + 1.0, back = y - 1.0, lost = (1.0 - (y - back)) + (x - back), low;
  F r = log_sum(y, lost, &low);
  return select(MASK(abs(x) < 0x1p-54), x, log_special(y, r + low));
}

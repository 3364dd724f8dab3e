// Exponentials: 2^n · e^r with |r| <= ln(2) / 2 and a polynomial for e^r.

//! f32
F exp(F x) {
  x = lesser(K(89.0), greater(K(-104.0), x));
  F n = fma(x, K(1.442695), K(0x1.8p23)) - 0x1.8p23f;
  F r = fma(n, K(1.9046542e-9), fma(n, K(-0.6931472), x));
  F p = POLY(r, 1.0, 1.0, 0.49999994, 0.16666515, 0.041668084, 0.008369349, 0.0013840391);
  return scale(p, n);
}

//! f32
F exp2(F x) {
  x = lesser(K(129.0), greater(K(-151.0), x));
  F n = (x + 0x1.8p23f) - 0x1.8p23f;
  F r = x - n;
  F p = POLY(r, 1.0, 0.6931472, 0.24022594, 0.055503663, 0.009625421, 0.0013387817, 1.3343873e-4);
  return scale(p, n);
}

// e^r - 1 times 2^n, plus 2^n - 1; half of it first, so that 2^n does not overflow before the result does.
//! f32
F expm1(F x) {
  F y = lesser(K(89.0), greater(K(-18.0), x));
  F n = fma(y, K(1.442695), K(0x1.8p23)) - 0x1.8p23f;
  F r = fma(n, K(1.9046542e-9), fma(n, K(-0.6931472), y));
  F p = fma(POLY(r, 0.49999997, 0.16666538, 0.04166774, 0.008367317, 0.0013837904), r * r, r);
  F half = power_of_two(n - 1.0f);
  F result = fma(half, p, half - 0.5f) * 2.0f;
  return select(MASK(n == 0.0f), select(MASK(x == 0.0f), x, p), result);
}

//! f32
F tanh(F x) {
  F a = abs(x), s = a * a;
  F small = fma(POLY(s, -0.3333328, 0.13331406, -0.053736515, 0.020628167, -0.0056922967) * s, a, a);
  F e = exp(lesser(K(20.0), a + a));
  F large = 1.0f - 2.0f / (e + 1.0f);
  return signed_as(select(MASK(a < 0.625f), small, large), x);
}

// e^x / 2, which overflows only where sinh and cosh do.
//! f32
F half_exp(F x) {
  x = lesser(K(90.0), greater(K(-104.0), x));
  F n = fma(x, K(1.442695), K(0x1.8p23)) - 0x1.8p23f;
  F r = fma(n, K(1.9046542e-9), fma(n, K(-0.6931472), x));
  F p = POLY(r, 1.0, 1.0, 0.49999994, 0.16666515, 0.041668084, 0.008369349, 0.0013840391);
  return scale(p, n - 1.0f);
}

//! f64
F exp(F x) {
  x = lesser(K(710.0), greater(K(-746.0), x));
  F n = fma(x, K(1.4426950408889634), K(0x1.8p52)) - 0x1.8p52;
  F r = fma(n, K(-2.3190468138462996e-17), fma(n, K(-0.6931471805599453), x));
  return scale(fma(exp_kernel(r), r * r, r) + 1.0, n);
}

// e^(x + y) for a small y, with hardly more than the last rounding.
//! f64
F exp_sum(F x, F y) {
  x = lesser(K(710.0), greater(K(-746.0), x));
  F n = fma(x, K(1.4426950408889634), K(0x1.8p52)) - 0x1.8p52;
  F most = fma(n, K(-0.6931471805599453), x), less = n * 2.3190468138462996e-17;
  F r = most - less, high = r + 1.0, bend = exp_kernel(r) * (r * r);
  y = y + ((most - r) - less);
  return scale(high + fma(high + bend, y, bend + (r - (high - 1.0))), n);
}

//! f64
F half_exp(F x) {
  x = lesser(K(711.0), greater(K(-746.0), x));
  F n = fma(x, K(1.4426950408889634), K(0x1.8p52)) - 0x1.8p52;
  F r = fma(n, K(-2.3190468138462996e-17), fma(n, K(-0.6931471805599453), x));
  return scale(fma(exp_kernel(r), r * r, r) + 1.0, n - 1.0);
}

// (e^r - 1 - r) / r²
//! f64
F exp_kernel(F r) {
  return POLY(r, 0.5000000000000011, 0.1666666666666641, 0.04166666666652973, 0.00833333333349498,
      0.0013888888943759893, 0.0001984126950576604, 2.480149294966484e-05, 2.7557586811282347e-06,
      2.7630306247961874e-07, 2.500001637788809e-08);
}

//! f64
F exp2(F x) {
  x = lesser(K(1025.0), greater(K(-1076.0), x));
  F n = (x + 0x1.8p52) - 0x1.8p52;
  F r = x - n;
  F p = POLY(r, 0.6931471805599453, 0.2402265069591013, 0.055504108664820084, 0.00961812910759412,
      0.001333355814677463, 0.00015403530457112067, 1.525273349311665e-05, 1.3215435282336804e-06,
      1.0178199576815802e-07, 7.073783241791062e-09, 4.4347705024668045e-10);
  return scale(fma(p, r, K(1.0)), n);
}

// (e^x - 1) / 2 as a sum of two numbers, for x up to 711; the second is about 2^-53 of the first.
//! f64
F half_expm1(F x, F *low) {
  F n = fma(x, K(1.4426950408889634), K(0x1.8p52)) - 0x1.8p52;
  F most = fma(n, K(-0.6931471805599453), x), less = n * 2.3190468138462996e-17;
  F r = most - less, rest = (most - r) - less;
  F q = POLY(r, 0.5, 0.16666666666666677, 0.04166666666666669, 0.008333333333321659, 0.0013888888888870167,
      0.000198412698860929, 2.4801587356079936e-05, 2.7557244216544525e-06, 2.755724559772268e-07,
      2.5109041567446304e-08, 2.0923755937584607e-09);
  F tail = fma(r * r, q, fma(rest, r, rest));
  F p = r + tail, half = power_of_two(n - 1.0), whole = half - 0.5, part = half * p;
  tail = tail - (p - r);
  F sum = whole + part, back = sum - whole;
  *low = fma(half, tail, (whole - (sum - back)) + (part - back));
  return sum;
}

//! f64
F expm1(F x) {
  F low, high = half_expm1(lesser(K(710.0), greater(K(-40.0), x)), &low);
  return select(MASK(abs(x) < 0x1p-54), x, (high + low) * 2.0);
}

// With E = (e^2a - 1) / 2: E / (E + 1), divided in two steps.
//! f64
F tanh(F x) {
  F a = abs(x), low, high = half_expm1(lesser(K(40.0), a + a), &low);
  F d = high + 1.0, back = d - high, rest = (high - (d - back)) + (1.0 - back) + low;
  F c = 1.0 / d, q = high * c;
  q = fma(fma(-q, d, high) + fma(-q, rest, low), c, q);
  return signed_as(select(MASK(a < 0x1p-28), a, q), x);
}

// With E = (e^a - 1) / 2: E + E / (2E + 1).
//! f64
F sinh(F x) {
  F a = abs(x), low, high = half_expm1(lesser(K(711.0), a), &low);
  F r = high + (high / (high + high + 1.0) + low);
  return signed_as(select(MASK(a < 0x1p-28), a, select(MASK(a > 700.0), half_exp(a), r)), x);
}

//! f32
F sinh(F x) {
  F a = abs(x), s = a * a, e = half_exp(a);
  F small = fma(POLY(s, 0.16666667, 0.0083333105, 1.9842896e-4, 2.7822132e-6) * s, a, a);
  return signed_as(select(MASK(a < 1.0f), small, e - 0.25f / e), x);
}

//! f32 f64
F cosh(F x) {
  F e = half_exp(abs(x));
  return e + (S)0.25 / e;
}

// Inverse hyperbolic functions: logarithms of sums of two numbers, in double; float takes them from there.

//! f64
F asinh(F x) {
  F a = abs(x);
  I big = MASK(a > 0x1p500);
  F b = lesser(K(0x1p500), a), square = b * b, rest = fma(b, b, -square);
  F t = square + 1.0, back = t - square;
  rest = rest + ((square - (t - back)) + (1.0 - back));
  F root = sqrt(t), rootrest = (fma(-root, root, t) + rest) * 0.5 / root;
  F sum = b + root;
  back = sum - b;
  F lost = (b - (sum - back)) + (root - back) + rootrest, low;
  F y = sum + lost;
  lost = lost - (y - sum);
  F high = log_sum(select(big, a, y), select(big, K(0.0), lost), &low);
  F r = high + (low + FLOAT(big & BITS(K(0.6931471805599453))));
  return select(MASK(a < (S)__builtin_inf()), signed_as(select(MASK(a < 0x1p-28), a, r), x), x);
}

//! f64
F acosh(F x) {
  I big = MASK(x > 0x1p500);
  F b = lesser(K(0x1p500), x), square = b * b, rest = fma(b, b, -square);
  F t = square - 1.0, back = t - square;
  rest = rest + ((square - (t - back)) + (-1.0 - back));
  F high = t + rest;
  rest = rest - (high - t);
  F root = sqrt(high), rootrest = (fma(-root, root, high) + rest) * 0.5 / greater(K(0x1p-500), root);
  F sum = b + root, lost = (root - (sum - b)) + rootrest, low;
  F y = sum + lost;
  lost = lost - (y - sum);
  F r = log_sum(select(big, x, y), select(big, K(0.0), lost), &low);
  r = r + (low + FLOAT(big & BITS(K(0.6931471805599453))));
  return select(MASK(x >= 1.0), select(MASK(x < (S)__builtin_inf()), r, x), K(__builtin_nan("")));
}

//! f64
F atanh(F x) {
  F a = abs(x), n = a + 1.0, nrest = a - (n - 1.0), d = 1.0 - a, drest = (1.0 - d) - a;
  F c = 1.0 / d, q = n * c, rest = (fma(-q, d, n) + fma(-q, drest, nrest)) * c, low;
  F y = q + rest;
  rest = rest - (y - q);
  F r = log_sum(y, rest, &low);
  r = select(MASK(a < 0x1p-28), a, (r + low) * 0.5);
  r = select(MASK(a < 1.0), r, select(MASK(a == 1.0), K(__builtin_inf()), K(__builtin_nan(""))));
  return signed_as(r, x);
}

//! f32
F asinh(F x) {
  return CLOSE(D.asinh(WIDE(x)));
}

//! f32
F acosh(F x) {
  return CLOSE(D.acosh(WIDE(x)));
}

// For a float: 1 + x and 1 - x are exact, so one quotient and one logarithm in double are right to 45 bits; near 0, where
// they would not be, three terms of the series. With the double's own function it took 3.8 of ATen's time.
//! f64
F atanh_of_float(F x) {
  F a = abs(x), s = a * a, near = fma(a * s, POLY(s, 0.3333333333333333, 0.2), a);
  return signed_as(select(MASK(a < 0x1p-9), near, log((a + 1.0) / (1.0 - a)) * 0.5), x);
}

//! f32
F atanh(F x) {
  return CLOSE(D.atanh_of_float(WIDE(x)));
}

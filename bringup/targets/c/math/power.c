// Powers and lengths.

// The sign, zero, one and NaN rules of a^b, around |a|^b.
//! f64
F pow_rules(F a, F b, F r) {
  F half = b * 0.5;
  I whole = MASK(b == round(b)), odd = whole & MASK(half != round(half));
  r = FLOAT(BITS(r) ^ (BITS(a) & odd & BITS(K(-0.0))));
  r = select(MASK(a < 0.0) & ~whole & MASK(a > -(S)__builtin_inf()) & MASK(b == b), K(__builtin_nan("")), r);
  r = select(MASK(a == -1.0) & MASK(abs(b) == (S)__builtin_inf()), K(1.0), r);
  return select(MASK(a == 1.0) | MASK(b == 0.0), K(1.0), r);
}

//! f64
F pow(F a, F b) {
  F x = abs(a), rest, log_a = log_sum(x, K(0.0), &rest);
  I plain = MASK(x > 0.0) & MASK(x < (S)__builtin_inf());
  log_a = select(plain, log_a, select(MASK(x == 0.0), K(-__builtin_inf()), x));
  F p = log_a * b, low = fma(log_a, b, -p) + rest * b;
  low = select(plain & MASK(abs(p) < 800.0), low, K(0.0));
  return pow_rules(a, b, exp_sum(p, low));
}

// For float operands: one logarithm in double is exact enough.
//! f64
F pow_of_float(F a, F b) {
  return pow_rules(a, b, exp(log(abs(a)) * b));
}

//! f32
F pow(F a, F b) {
  return CLOSE(D.pow_of_float(WIDE(a), WIDE(b)));
}

//! f32
F hypot(F a, F b) {
  F r = CLOSE(D.root_of_squares(WIDE(a), WIDE(b)));
  return select(MASK(abs(a) == (S)__builtin_inf()) | MASK(abs(b) == (S)__builtin_inf()), K(__builtin_inf()), r);
}

//! f64
F root_of_squares(F a, F b) {
  return sqrt(fma(a, a, b * b));
}

// Both are scaled by a power of two to near 1, then back.
//! f64
F hypot(F a, F b) {
  F x = abs(a), y = abs(b), size = lesser(K(0x1p1000), greater(K(0x1p-1000), greater(x, y)));
  I exponent = BITS(size) & BITS(K(__builtin_inf()));
  F down = FLOAT((BITS(K(1.0)) << 1) - exponent);
  F r = root_of_squares(x * down, y * down) * FLOAT(exponent);
  return select(MASK(x == (S)__builtin_inf()) | MASK(y == (S)__builtin_inf()), K(__builtin_inf()), r);
}

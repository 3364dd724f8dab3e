// Exact remainders and the divisions that go with them.

// a - b · trunc(a / b). Up to a quotient of 2^(digits - 2) one fma gives it exactly, up to one step of b; else bit by
// bit.
//! f32 f64
F fmod(F a, F b) {
  F x = abs(a), y = abs(b), q = trunc(x / y), r = fma(-q, y, x);
  r = select(MASK(r < (S)0), r + y, r);
  r = select(MASK(r >= y), r - y, r);
  r = select(MASK(x < y), x, r);
  I far = ~MASK(q < (S)PICK(0x1p22, 0x1p51)) & MASK(x >= y);
  if (__builtin_expect(I.any(far), 0)) r = select(far, fmod_far(x, y), r);
  r = select(MASK(x < (S)__builtin_inf()) & MASK(y > (S)0), r, K(__builtin_nan("")));
  return signed_as(r, a);
}

//! vector f32 f64
static __attribute__((noinline, cold)) F fmod_far(F a, F b) {
  F r = a;
#pragma GCC unroll 1
  for (int i = 0; i < LANES; i++) r[i] = F1.fmod_far(a[i], b[i]);
  return r;
}

// For a >= b >= 0, finite, by long division of the mantissas.
//! scalar f32 f64
static __attribute__((noinline, cold)) F fmod_far(F a, F b) {
  const int digits = PICK(23, 52);
  const U one = (U)1 << digits;
  if (!(b > 0) || !(a >= b) || !(a < (S)__builtin_inf())) return a; // a lane that does not ask
  U x = (U)BITS(a), y = (U)BITS(b);
  int ex = (int)(x >> digits), ey = (int)(y >> digits);
  x &= one - 1;
  y &= one - 1;
  if (ex) x |= one; else ex = 1;
  if (ey) y |= one; else ey = 1;
  for (; x < one; ex--) x <<= 1;
  for (; y < one; ey--) y <<= 1;
  for (; ex > ey; ex--) {
    if (x >= y) x -= y;
    if (!x) return 0;
    x <<= 1;
  }
  if (x >= y) x -= y;
  if (!x) return 0;
  for (; x < one && ey > 1; ey--) x <<= 1;
  for (; ey < 1; ey++) x >>= 1;
  x = x >= one ? (x - one) | (U)ey << digits : x;
  return FLOAT((I)x);
}

//! f32 f64
F remainder(F a, F b) {
  F r = fmod(a, b);
  return select(MASK(r != (S)0) & (MASK(b < (S)0) ^ MASK(r < (S)0)), r + b, r);
}

//! f32 f64
F floordiv(F a, F b) {
  F r = fmod(a, b), q = (a - r) / b;
  q = select(MASK(r != (S)0) & (MASK(b < (S)0) ^ MASK(r < (S)0)), q - (S)1, q);
  F down = floor(q);
  down = select(MASK(q - down > (S)0.5), down + (S)1, down);
  down = select(MASK(q != (S)0), down, signed_as(K(0.0), a / b));
  return select(MASK(b == (S)0), a / b, down);
}

//! f32 f64
F nextafter(F a, F b) {
  I bits = BITS(a), away = MASK(b > a) ^ ~MASK(a > (S)0);
  bits = bits - (away | N(1));
  F moved = select(MASK(a == (S)0), FLOAT((BITS(b) & BITS(K(-0.0))) | N(1)), FLOAT(bits));
  return select(MASK(a != a) | MASK(b != b), a + b, select(MASK(a == b), b, moved));
}

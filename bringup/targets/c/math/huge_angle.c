// Payne and Hanek's reduction: the product with as many bits of 2 / pi as the exponent calls for.

// x = quarter · pi / 2 + r[0] + r[1] with |r| <= pi / 4, for finite |x| >= 1; returns the quarter, modulo 4. A NaN or
// inf gives NaN.
//! scalar f64
static __attribute__((noinline, cold)) int huge_angle(F x, double *r) {
  static const uint32_t two_over_pi[] = {
    0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab,
    0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e,
    0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b,
    0xbdf9283b, 0x1ff897ff, 0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7,
    0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1,
    0x1f8d5d08, 0x56033046, 0xfc7b6bab, 0xf0cfbc20, 0x9af4361d, 0xa9e39161, 0x5ee61b08,
  };
  union { double value; uint64_t bits; } u = { x };
  int exponent = (int)(u.bits >> 52) & 2047;
  if (exponent == 2047) {
    r[0] = r[1] = x - x;
    return 0;
  }
  exponent -= 1075;
  uint64_t m = (u.bits & 0xfffffffffffffu) | 1ull << 52;
  // Words before the first give multiples of 4 quarters; seven words leave 138 good bits of the fraction.
  int first = exponent >= 2 ? (exponent - 2) >> 5 : 0;
  uint32_t product[10] = { 0 };
#pragma GCC unroll 1
  for (int half = 0; half < 2; half++) {
    uint64_t factor = half ? m >> 32 : m & 0xffffffff, carry = 0;
#pragma GCC unroll 1
    for (int k = 0; k < 7; k++) {
      carry += factor * two_over_pi[first + 6 - k] + product[k + half];
      product[k + half] = (uint32_t)carry;
      carry >>= 32;
    }
    product[7 + half] = (uint32_t)carry;
  }
  int point = 32 * (first + 7) - exponent;
  uint32_t word[5];
#pragma GCC unroll 1
  for (int k = 0; k < 5; k++) {
    int at = point - 32 * (4 - k), index = at >> 5, shift = at & 31;
    uint64_t pair = (uint64_t)product[index] | (index < 9 ? (uint64_t)product[index + 1] << 32 : 0);
    word[k] = (uint32_t)(pair >> shift);
  }
  uint32_t quarter = word[4], flip = 0;
  if (word[3] >> 31) {
    quarter++;
    flip = 0xffffffff;
  }
  double high = (word[3] ^ flip) * 0x1p-32, next = (word[2] ^ flip) * 0x1p-64;
  double rest = (word[1] ^ flip) * 0x1p-96 + (word[0] ^ flip) * 0x1p-128;
  double sum = high + next, tail = (next - (sum - high)) + rest, top = sum + tail, low = tail - (top - sum);
  double angle = top * 1.5707963267948966;
  double error = fma(top, 1.5707963267948966, -angle) + (top * 6.123233995736766e-17 + low * 1.5707963267948966);
  int minus = (flip != 0) != (x < 0);
  r[0] = angle + error;
  r[1] = error - (r[0] - angle);
  if (minus) r[0] = -r[0], r[1] = -r[1];
  return (int)((x < 0 ? 0u - quarter : quarter) & 3);
}

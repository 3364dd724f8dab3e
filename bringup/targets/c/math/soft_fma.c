// a · b + c rounded once, in integers: for machines without a fused multiply-add.

//! f64
static __attribute__((noinline, unused)) F soft_fma(F a, F b, F c) {
  union { double value; uint64_t bits; } x = { a }, y = { b }, z = { c };
  int ex = (int)(x.bits >> 52) & 2047, ey = (int)(y.bits >> 52) & 2047, ez = (int)(z.bits >> 52) & 2047;
  if (ex == 2047 || ey == 2047 || a == 0 || b == 0) return a * b + c;
  if (ez == 2047) return c;
  if (c == 0) {
    // Only the product is rounded; the signed zero decides nothing then, unless the product underflows to zero.
    F product = a * b;
    if (product != 0 && ex + ey > 1023 + 60) return product;
  }
  uint64_t sign = (x.bits ^ y.bits) >> 63, negative = z.bits >> 63;
  const uint64_t low52 = 0xfffffffffffffu;
  uint64_t mx = x.bits & low52, my = y.bits & low52, mz = z.bits & low52;
  if (ex) mx |= 1ull << 52; else ex = 1;
  if (ey) my |= 1ull << 52; else ey = 1;
  if (ez) mz |= 1ull << 52; else ez = 1;
  for (; !(mx >> 52); ex--) mx <<= 1;
  for (; !(my >> 52); ey--) my <<= 1;
  if (mz) for (; !(mz >> 52); ez--) mz <<= 1;
  // The product as 128 bits with its leading one at bit 125 or 124, as value · 2^exponent.
  mx <<= 10;
  my <<= 10;
  uint64_t low = (mx & 0xffffffff) * (my & 0xffffffff), cross1 = (mx >> 32) * (my & 0xffffffff);
  uint64_t cross2 = (mx & 0xffffffff) * (my >> 32), high = (mx >> 32) * (my >> 32);
  uint64_t middle = (low >> 32) + (cross1 & 0xffffffff) + (cross2 & 0xffffffff);
  high += (cross1 >> 32) + (cross2 >> 32) + (middle >> 32);
  low = (low & 0xffffffff) | (middle << 32);
  int exponent = ex + ey - 2 * 1075 - 20;
  // The addend with its leading one at bit 124.
  uint64_t zh = mz << 8, zl = 0;
  int zexponent = ez - 1075 - 72;
  int shift = exponent - zexponent;
  if (!mz) shift = 0;
  uint64_t *small_h = shift > 0 ? &zh : &high, *small_l = shift > 0 ? &zl : &low;
  if (shift < 0) { exponent = zexponent; shift = -shift; }
  if (shift >= 128) {
    *small_l = (*small_h | *small_l) != 0;
    *small_h = 0;
  } else if (shift >= 64) {
    uint64_t lost = *small_l | (shift > 64 ? *small_h << (128 - shift) : 0);
    *small_l = (shift > 64 ? *small_h >> (shift - 64) : *small_h) | (lost != 0);
    *small_h = 0;
  } else if (shift > 0) {
    uint64_t lost = *small_l << (64 - shift);
    *small_l = (*small_l >> shift) | (*small_h << (64 - shift)) | (lost != 0);
    *small_h >>= shift;
  }
  if (sign == negative) {
    low += zl;
    high += zh + (low < zl);
  } else if (high > zh || (high == zh && low >= zl)) {
    high -= zh + (low < zl);
    low -= zl;
  } else {
    high = zh - high - (zl < low);
    low = zl - low;
    sign = negative;
  }
  if (!(high | low)) return sign == negative ? a * b + c : 0.0;
  for (; !(high >> 62); exponent--) {
    high = (high << 1) | (low >> 63);
    low <<= 1;
  }
  // 63 bits in high, the rest is sticky; then one rounding to 53 bits, or fewer where the result is subnormal.
  high |= low != 0;
  exponent += 64;
  int drop = 10, top = exponent + 62;
  if (top < -1022) drop += -1022 - top;
  if (drop > 63) drop = 63, high = 1;
  uint64_t kept = high >> drop, rest = high & ((1ull << drop) - 1), half = 1ull << (drop - 1);
  kept += rest > half || (rest == half && (kept & 1));
  uint64_t biased = top < -1022 ? 0 : (uint64_t)(top + 1022);
  x.bits = (biased << 52) + kept;
  if (biased >= 2046 && x.bits >= 0x7ff0000000000000u) x.bits = 0x7ff0000000000000u;
  x.bits |= sign << 63;
  return x.value;
}

//! f32
static __attribute__((noinline, unused)) F soft_fma(F a, F b, F c) {
  union { float value; uint32_t bits; } x = { a }, y = { b }, z = { c };
  int ex = (int)(x.bits >> 23) & 255, ey = (int)(y.bits >> 23) & 255, ez = (int)(z.bits >> 23) & 255;
  uint64_t mx = x.bits & 0x7fffff, my = y.bits & 0x7fffff, mz = z.bits & 0x7fffff;
  if (ex == 255 || ey == 255 || !(ex | mx) || !(ey | my)) return a * b + c;
  if (ez == 255) return c;
  uint32_t sign = (x.bits ^ y.bits) >> 31, negative = z.bits >> 31;
  if (ex) mx |= 1 << 23; else ex = 1;
  if (ey) my |= 1 << 23; else ey = 1;
  if (ez) mz |= 1 << 23; else ez = 1;
  for (; !(mx >> 23); ex--) mx <<= 1;
  for (; !(my >> 23); ey--) my <<= 1;
  if (mz) for (; !(mz >> 23); ez--) mz <<= 1;
  // Both as value · 2^exponent with the leading one at bit 60 or 61: what is shifted out never cancels.
  uint64_t sum = (mx * my) << 14, addend = mz << 37;
  int exponent = ex + ey - 314, shift = mz ? exponent - (ez - 187) : 0;
  uint64_t *small = shift > 0 ? &addend : &sum;
  if (shift < 0) { exponent -= shift; shift = -shift; }
  if (shift > 63) *small = *small != 0;
  else if (shift) *small = (*small >> shift) | (*small << (64 - shift) != 0);
  if (sign == negative) sum += addend;
  else if (sum >= addend) sum -= addend;
  else { sum = addend - sum; sign = negative; }
  if (!sum) return 0;
  int top = 63 - __builtin_clzll(sum), biased = exponent + top + 127;
  int drop = top - 23 + (biased < 1 ? 1 - biased : 0);
  uint64_t kept = 0;
  if (drop <= 0) kept = sum << -drop;
  else if (drop < 64) {
    uint64_t rest = sum << (64 - drop), half = 1ull << 63;
    kept = sum >> drop;
    kept += rest > half || (rest == half && (kept & 1));
  }
  x.bits = (uint32_t)kept + ((uint32_t)(biased < 1 ? 0 : biased - 1) << 23);
  if (biased > 254 || x.bits > 0x7f800000) x.bits = 0x7f800000;
  x.bits |= sign << 31;
  return x.value;
}

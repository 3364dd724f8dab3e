// Conversions: halves by bit patterns, floats to integers as expr.Cast says, integers to floats with one rounding.

// The exponent is moved by a multiplication, which also brings subnormal halves right.
//! f32
F from_f16(H x) {
#if LANES == 1 && defined(__riscv_zfhmin)
  union { uint16_t bits; _Float16 value; } half = { x };
  return half.value;
#endif
  U bits = CONVERT(U, x), size = (bits & 0x7fff) << 13;
  I special = MASK((size & 0xf800000) == 0xf800000);
  U r = UBITS(FLOAT((I)size) * 0x1p112f) | ((U)special & 0x7f800000);
  return FLOAT((I)(r | (bits & 0x8000) << 16));
}

// Adding 1/2 rounds where the half is subnormal; elsewhere the cut bits are rounded to nearest, halves to even.
//! f16
H from_f32(F x) {
#if LANES == 1 && defined(__riscv_zfhmin)
  union { _Float16 value; uint16_t bits; } half = { (_Float16)x };
  return half.bits;
#endif
  F a = abs(x);
  U bits = UBITS(a), r = (bits + 0xfff + ((bits >> 13) & 1) - 0x38000000) >> 13;
  U tiny = UBITS(a + 0.5f) - 0x3f000000, nan = ((bits >> 13) & 0x3ff) | 0x7e00;
  I below = MASK(a < 0x1p-14f), above = MASK(a >= 65520.0f);
  r = (U)((below & (I)tiny) | (~below & (I)r));
  r = (U)((above & N(0x7c00)) | (~above & (I)r));
  I number = MASK(x == x);
  r = (U)((number & (I)r) | (~number & (I)nan));
  return CONVERT(H, r | ((UBITS(x) >> 16) & 0x8000));
}

//! f32
F from_bf16(H x) {
  return FLOAT((I)(CONVERT(U, x) << 16));
}

//! bf16
H from_f32(F x) {
  U bits = UBITS(x), r = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  I number = MASK(x == x);
  return CONVERT(H, (U)((number & (I)r) | (~number & (I)(bits >> 16 | 0x40))));
}

//! f16
F narrow(F x) {
  return X.from_f16(T.from_f32(x));
}

//! bf16
F narrow(F x) {
  U bits = UBITS(x), r = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  return select(MASK(x == x), FLOAT((I)r), x);
}

// The bits of the half next to a, whose bits are given.
//! f32
I half_step(I bits, F a, F b) {
  I up = MASK(b > a), away = up ^ ~MASK(a > 0.0f), zero = MASK(a == 0.0f);
  I least = (up & N(1)) | (~up & N(0x8001));
  return (zero & least) | (~zero & (bits - (away | N(1))));
}

//! f16
F nextafter(F a, F b) {
  F r = X.from_f16(CONVERT(H, half_step(CONVERT(I, T.from_f32(a)), a, b)));
  return select(MASK(a != a) | MASK(b != b), a + b, select(MASK(a == b), b, r));
}

//! bf16
F nextafter(F a, F b) {
  F r = X.from_bf16(CONVERT(H, half_step(CONVERT(I, T.from_f32(a)), a, b)));
  return select(MASK(a != a) | MASK(b != b), a + b, select(MASK(a == b), b, r));
}

// Towards 0; NaN and what does not fit is the least integer. No conversion is done on a value that does not fit.
//! f32 f64
I to_whole(F x) {
  I fits = MASK(abs(x) < (S)PICK(0x1p31, 0x1p63));
  I r = CONVERT(I, FLOAT(BITS(x) & fits));
  return (fits & r) | (~fits & BITS(K(-0.0)));
}

//! f64
UJ to_whole_unsigned(F x) {
  I upper = MASK(x >= 0x1p63);
  return (UJ)to_whole(select(upper, x - 0x1p63, x)) ^ (UJ)(upper & BITS(K(-0.0)));
}

// Into the range of int32: NaN and what does not fit is its least number.
//! f64
F to_narrow_range(F x) {
  return select(MASK(x > -2147483649.0) & MASK(x < 2147483648.0), x, K(-2147483648.0));
}

//! i32
F from_f32(v_f32 x) {
  return X.to_whole(x);
}

//! i8 i16 u8 u16
F from_f32(v_f32 x) {
  return CONVERT(F, X.to_whole(x));
}

//! i64
F from_f32(v_f32 x) {
  return D.to_whole(CONVERT(D, x));
}

//! u32
F from_f32(v_f32 x) {
  return CONVERT(F, D.to_whole(CONVERT(D, x)));
}

//! u64
F from_f32(v_f32 x) {
  return D.to_whole_unsigned(CONVERT(D, x));
}

//! i64
F from_f64(D x) {
  return D.to_whole(x);
}

//! u32
F from_f64(D x) {
  return CONVERT(F, D.to_whole(x));
}

//! u64
F from_f64(D x) {
  return D.to_whole_unsigned(x);
}

//! i32
F from_f64(D x) {
  return CONVERT(F, D.to_narrow_range(x));
}

//! i8 i16 u8 u16
F from_f64(D x) {
  return CONVERT(F, CONVERT(v_i32, D.to_narrow_range(x)));
}

//! f32 f64
F from_i8(v_i8 x) {
  return CONVERT(F, x);
}

//! f32 f64
F from_i16(v_i16 x) {
  return CONVERT(F, x);
}

//! f32 f64
F from_i32(v_i32 x) {
  return CONVERT(F, x);
}

//! f32 f64
F from_i64(v_i64 x) {
  return CONVERT(F, x);
}

//! f32 f64
F from_u8(v_u8 x) {
  return CONVERT(F, x);
}

//! f32 f64
F from_u16(v_u16 x) {
  return CONVERT(F, x);
}

//! f32 f64
F from_u32(v_u32 x) {
  return CONVERT(F, x);
}

//! f32 f64
F from_u64(v_u64 x) {
  return CONVERT(F, x);
}

//! f32
F from_f64(D x) {
  return CONVERT(F, x);
}

//! f64
F from_f32(v_f32 x) {
  return CONVERT(F, x);
}

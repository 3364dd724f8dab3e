// Arc sine, arc cosine, arc tangent.

//! f32
F asin_kernel(F z) {
  return POLY(z, 0.16666752, 0.074953094, 0.045469154, 0.024184743, 0.042158388) * z;
}

//! f64
F asin_kernel(F z) {
  return POLY(z, 0.16666666666665408, 0.07500000000337008, 0.044642856828333854, 0.030381959136741975,
      0.022371758055878783, 0.017359704679101626, 0.013885236330905664, 0.01216920571244654, 0.0065280018758410675,
      0.01952819040788433, -0.016224133354533925, 0.031912187113470845) * z;
}

// Above 1/2: asin(a) = pi / 2 - 2 asin(sqrt((1 - a) / 2)).
//! f32 f64
F asin(F x) {
  F a = abs(x);
  I big = MASK(a > (S)0.5);
  F z = select(big, ((S)1 - a) * (S)0.5, a * a), p = asin_kernel(z), s = sqrt(z);
  F lost = fma(-s, s, z) * (S)0.5 / greater(K(0x1p-60), s);
  F upper = K(1.5707963267948966) - (s + s) - (fma(s, p, lost) * (S)2 - K(PICK(-4.371139e-08, 6.123233995736766e-17)));
  return signed_as(select(big, upper, fma(a, p, a)), x);
}

//! f32 f64
F acos(F x) {
  F a = abs(x);
  I big = MASK(a > (S)0.5), below = MASK(x < (S)0);
  F z = select(big, ((S)1 - a) * (S)0.5, a * a), p = asin_kernel(z), s = sqrt(z);
  F lost = fma(-s, s, z) * (S)0.5 / greater(K(0x1p-60), s), tail = fma(s, p, lost);
  F upper = (s + tail) * (S)2, lower = (K(1.5707963267948966) - s - (tail - K(PICK(-4.371139e-08,
      6.123233995736766e-17)))) * (S)2;
  F middle = K(1.5707963267948966) - (x - fma(-x, p, K(PICK(-4.371139e-08, 6.123233995736766e-17))));
  return select(big, select(below, lower, upper), middle);
}

//! f32
F atan_kernel(F r) {
  F z = r * r;
  return POLY(z, -0.33333316, 0.19998527, -0.1424434, 0.10598659, -0.060884748) * z * r;
}

//! f64
F atan_kernel(F r) {
  F z = r * r;
  return POLY(z, -0.33333333333333326, 0.1999999999999762, -0.14285714285382034, 0.1111111108782414,
      -0.09090908132369632, 0.0769228249587118, -0.06666223037249, 0.05876986780531425, -0.05218187154073019,
      0.04502696144936964, -0.033455225336683075, 0.01517620636395633) * z * r;
}

// The angle of (x, y) for y >= 0 and |x| = a, x negative where the mask says so: an octant's angle plus a small one.
//! f32 f64
F atan_octant(F y, F a, I negative) {
  I steep = MASK(y > a * (S)2.414213562373095), middle = MASK(y > a * (S)0.41421356237309503) & ~steep;
  F above = select(steep, -a, select(middle, y - a, y)), below = select(steep, y, select(middle, y + a, a));
  F r = above / select(MASK(below == (S)0), K(1.0), below);
  F eighths = select(steep, K(2.0), FLOAT(middle & BITS(K(1.0))));
  eighths = select(negative, (S)4 - eighths, eighths);
  r = FLOAT(BITS(r) ^ (negative & BITS(K(-0.0))));
  F base = eighths * (K(0.7853981633974483)), rest = eighths * (K(PICK(-2.1855694e-08, 3.061616997868383e-17)));
  rest = rest + fma(eighths, K(0.7853981633974483), -base);
  return select(MASK(eighths == (S)0), r + atan_kernel(r), base + (r + (atan_kernel(r) + rest)));
}

//! f32 f64
F atan(F x) {
  return signed_as(atan_octant(abs(x), K(1.0), N(0)), x);
}

//! f32 f64
F atan2(F a, F b) {
  F y = abs(a), x = abs(b);
  I both = MASK(y == (S)__builtin_inf()) & MASK(x == (S)__builtin_inf());
  y = select(both, K(1.0), y);
  x = select(both, K(1.0), x);
  F shrink = select(MASK(y > (S)PICK(0x1p120, 0x1p1000)) | MASK(x > (S)PICK(0x1p120, 0x1p1000)), K(0.125), K(1.0));
  F r = atan_octant(y * shrink, x * shrink, MASK(BITS(b) < 0));
  return select(MASK(b != b), b, signed_as(r, a));
}

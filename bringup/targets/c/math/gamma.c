// The logarithm of the gamma function and its derivative, in double; float takes them from there.

// log gamma(x) for x >= 2: a polynomial with the root 2 up to 3, Stirling's series, refitted, from there.
//! f64
F lgamma_right(F x) {
  F u = x - 2.5;
  F near = POLY(u, 0.5693657409458384, 0.2675817993988097, -0.044805842697384565, 0.010877001514193217,
      -0.0030951822936200087, 0.0009610979287978951, -0.0003150592502691077, 0.00010710020391385511,
      -3.735337071057359e-05, 1.3275793721570937e-05, -4.786368795721877e-06, 1.7450160842032978e-06,
      -6.421946941545278e-07, 2.3806737579878272e-07, -8.759315894026717e-08, 3.255714966897808e-08,
      -1.4716506391795315e-08, 5.80409351318867e-09) * (x - 2.0);
  F v = greater(K(3.0), x), inverse = 1.0 / v, z = inverse * inverse;
  F series = POLY(z, 0.08333333333333333, -0.0027777777777714, 0.0007936507914447544, -0.0005952377375903744,
      0.0008417178077734566, -0.0019155902311797158, 0.006333049271260649, -0.027350114013638932, 0.1327623175563289,
      -0.6058230495451487, 2.1869854390062264, -5.200979924828046, 5.905996632952322);
  F far = fma(v - 0.5, log(v) - 1.0, fma(series, inverse, K(0.4189385332046728)));
  return select(MASK(x < 3.0), near, far);
}

// Below 2 by gamma(x + 1) = x gamma(x), below 0 by reflection.
//! f64
F lgamma(F x) {
  F a = abs(x);
  I low = MASK(a < 1.0), middle = MASK(a < 2.0);
  F shifted = a + select(low, K(2.0), FLOAT(middle & BITS(K(1.0))));
  F factor = select(low, a * (a + 1.0), select(middle, a, K(1.0)));
  F r = lgamma_right(shifted) - log(factor);
  I negative = MASK(x < 0.0);
  if (I.any(negative)) {
    F fraction = a - round(a), s = abs(sin(fraction * 3.141592653589793)) * a;
    F turned = 1.1447298858494002 - log(s) - r;
    r = select(negative, select(MASK(a < 0x1p-60), -log(a), turned), r);
    r = select(negative & MASK(fraction == 0.0), K(__builtin_inf()), r);
  }
  r = select(MASK(a < 0x1p-60), -log(a), r);
  return select(MASK(a == (S)__builtin_inf()), a, r);
}

//! f32
F lgamma(F x) {
  return CLOSE(D.lgamma(WIDE(x)));
}

// psi(x) for x >= 1: a polynomial with the root 1.46… up to 2, a step more up to 3, the asymptotic series from there.
//! f64
F digamma_right(F x) {
  F y = select(MASK(x < 2.0), x, x - 1.0), u = y - 1.5;
  F near = POLY(u, 0.9510558760318328, -0.4236274212814572, 0.24054248424077768, -0.14840492305487385,
      0.09498872445448389, -0.06192213318961093, 0.040760833835893316, -0.026975800065104517, 0.0179072518278824,
      -0.011908145890573164, 0.0079269537956235, -0.005280909430906797, 0.0035189230966275243, -0.0023375133858452943,
      0.0015571010950339301, -0.0010778302790706862, 0.0007217289088765499, -0.00035447522922169586,
      0.00023024389107915711, -0.0003786339556854884, 0.00025727390363939115);
  near = near * ((y - 1.4616321449683622) - 9.549995429965697e-17);
  near = near + FLOAT(BITS(1.0 / y) & MASK(x >= 2.0));
  F v = greater(K(3.0), x), inverse = 1.0 / v, z = inverse * inverse;
  F series = POLY(z, 0.08333333333333331, -0.008333333333315015, 0.003968253961858009, -0.004166665527271358,
      0.007575635493247705, -0.021084150787857196, 0.08290286893560218, -0.4274851679277935, 2.611544310573906,
      -16.56302605303848, 95.54000075296122, -447.3227513279998, 1527.1345780085865, -3303.7689371348224,
      3359.8060197898035);
  F far = log(v) - fma(series, z, inverse * 0.5);
  return select(MASK(x < 3.0), near, far);
}

//! f64
F digamma(F x) {
  I negative = MASK(x < 0.0);
  F a = select(negative, 1.0 - x, x);
  I low = MASK(a < 1.0);
  F r = digamma_right(select(low, a + 1.0, a));
  r = select(low, r - 1.0 / a, r);
  if (I.any(negative)) {
    F fraction = x - round(x), turned = r - 3.141592653589793 / tan(fraction * 3.141592653589793);
    turned = select(MASK(x > -0x1p-60), -1.0 / x, turned);
    r = select(negative, select(MASK(fraction == 0.0) | MASK(x == -(S)__builtin_inf()), K(__builtin_nan("")), turned),
        r);
  }
  return select(MASK(x == 0.0), FLOAT(BITS(K(__builtin_inf())) | (~BITS(x) & BITS(K(-0.0)))),
      select(MASK(x == (S)__builtin_inf()), x, r));
}

//! f32
F digamma(F x) {
  return CLOSE(D.digamma(WIDE(x)));
}

// Normal and Gumbel numbers by counter, as `evopipe.rng` draws them, eight at a time. Logarithm and cosine are fdlibm's
// (Sun Microsystems, 1993), so that no library decides about their last bits.

enum { WIDE = 8 };
typedef double wide __attribute__((vector_size(8 * WIDE)));
typedef uint64_t bits __attribute__((vector_size(8 * WIDE)));
typedef int64_t places __attribute__((vector_size(8 * WIDE)));

INLINE wide either(places yes, wide a, wide b) { return (wide)(((places)a & yes) | ((places)b & ~yes)); }

// In [0, 1): the draws at these places, counted from 0.
INLINE wide shares(uint64_t stream, bits place) {
  bits x = stream + (place + 1) * GOLDEN;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return __builtin_convertvector((places)((x ^ x >> 31) >> 11), wide) * 0x1p-53;
}

INLINE wide log_wide(wide x) {  // of positive numbers; 0's is -710, which no draw comes near
  places of = (places)x, k = (of >> 52) - 1023;
  wide m = (wide)((of & 0xfffffffffffffLL) | 0x3ff0000000000000LL);
  places high = m > 1.4142135623730951;
  wide f = either(high, m * 0.5, m) - 1.0, n = __builtin_convertvector(k - high, wide);
  wide s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  wide r = 1.479819860511658591e-1 + (wide){0};
  r = r * z + 1.531383769920937332e-1;
  r = r * z + 1.818357216161805012e-1;
  r = r * z + 2.222219843214978396e-1;
  r = r * z + 2.857142874366239149e-1;
  r = r * z + 3.999999999940941908e-1;
  r = (r * z + 6.666666666666735130e-1) * z;
  return n * 6.93147180369123816490e-1 - ((half - (s * (half + r) + n * 1.90821492927058770002e-10)) - f);
}

INLINE wide cos_turns(wide a) {  // cos 2πa of 0 ≤ a < 1
  places quarter = __builtin_convertvector(a * 4.0 + 0.5, places);
  wide x = (a - __builtin_convertvector(quarter, wide) * 0.25) * 6.283185307179586, z = x * x;
  wide c = -1.13596475577881948265e-11 + (wide){0}, s = 1.58969099521155010221e-10 + (wide){0};
  c = c * z + 2.08757232129817482790e-9;
  c = c * z - 2.75573143513906633035e-7;
  c = c * z + 2.48015872894767294178e-5;
  c = c * z - 1.38888888888741095749e-3;
  c = c * z + 4.16666666666666019037e-2;
  c = 1.0 - (0.5 * z - z * z * c);
  s = s * z - 2.50507602534068634195e-8;
  s = s * z + 2.75573137070700676789e-6;
  s = s * z - 1.98412698298579493134e-4;
  s = s * z + 8.33333333332248946124e-3;
  s = s * z - 1.66666666666666324348e-1;
  s = x + x * z * s;
  wide found = either((quarter & 1) == 1, s, c);
  return either(((quarter + 1) & 2) == 2, -found, found);
}

static uint64_t stream_of(int64_t key, int64_t salt, int64_t step) {
  return mixed_bits(mixed_bits((uint64_t)key + (uint64_t)salt) + (uint64_t)step * GOLDEN);
}

// Normal numbers [members, n] of one step (Box & Muller, 1958).
void normals(int members, int n, const int64_t *keys, int64_t salt, const int64_t *step, float *to) {
  const bits count = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int p = 0; p < members; p++, to += n) {
    const uint64_t stream = stream_of(keys[p], salt, *step);
    for (int j = 0; j < n; j += WIDE) {
      const bits at = 2 * (count + (uint64_t)j);
      wide radius = -2.0 * log_wide(1.0 - shares(stream, at)), turn = cos_turns(shares(stream, at + 1));
      for (int i = 0; i < WIDE && j + i < n; i++) to[j + i] = (float)(__builtin_sqrt(radius[i]) * turn[i]);
    }
  }
}

// Negative Gumbel numbers [members, n] of one step, -40 at least.
void gumbels(int members, int n, const int64_t *keys, int64_t salt, const int64_t *step, float *to) {
  const bits count = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int p = 0; p < members; p++, to += n) {
    const uint64_t stream = stream_of(keys[p], salt, *step);
    for (int j = 0; j < n; j += WIDE) {
      wide found = log_wide(-log_wide(1.0 - shares(stream, count + (uint64_t)j)));
      for (int i = 0; i < WIDE && j + i < n; i++) to[j + i] = found[i] < -40.0 ? -40.0f : (float)found[i];
    }
  }
}

/* Eight float lanes.  The same kernels compile to AVX2+FMA where SB_AVX2 is defined (with AVX-512, too) and
 * to whatever the baseline processor offers elsewhere (GCC/Clang vector extensions).
 *
 * The two versions round differently: v8_fma is fused only in the first.
 */
#ifndef SB_SIMD_H
#define SB_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "unroll.h"

/* Asks for `bytes` of memory that will be read soon; the address need not be valid. */
#define SB_FETCH(from, bytes)                                                                                          \
    for (int64_t at = 0; at < (bytes); at += 64) __builtin_prefetch((const uint8_t *)(from) + at, 0, 2)

/* Makes the compiler forget where a pointer came from. */
#define SB_OPAQUE(pointer) __asm__ volatile("" : "+r"(pointer))

/* Lanes of a (0-7) and b (8-15) by constant number. */
#if defined(__clang__)
#define SB_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SB_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (v8i){__VA_ARGS__})
#endif

#define SB_INLINE static inline __attribute__((always_inline, unused))
#define SB_OUTLINE static __attribute__((noinline))

typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));
typedef float v8 __attribute__((vector_size(32)));

SB_INLINE v8 v8_load(const float *p) {
    v8 x;
    memcpy(&x, p, sizeof(x));
    return x;
}
/* The first n < 8 lanes from memory, 0 in the others. */
SB_INLINE v8 v8_load_first(const float *p, int64_t n) {
    float lanes[8] = {0};
    for (int i = 0; i < n && i < 8; i++) lanes[i] = p[i];
    return v8_load(lanes);
}
SB_INLINE v8u v8u_load(const uint8_t *p) {
    v8u x;
    memcpy(&x, p, sizeof(x));
    return x;
}
SB_INLINE void v8_store(float *p, v8 x) { memcpy(p, &x, sizeof(x)); }
SB_INLINE v8 v8_zero(void) { return (v8){0}; }
SB_INLINE v8 v8_set1(float x) { return (v8){x, x, x, x, x, x, x, x}; }
SB_INLINE v8i v8i_set1(int32_t x) { return (v8i){x, x, x, x, x, x, x, x}; }
SB_INLINE v8 v8_select(v8i mask, v8 yes, v8 no) {
    return (v8)((mask & (v8i)yes) | (~mask & (v8i)no));
}
/* All ones in the first n lanes; n may be negative or above 8. */
SB_INLINE v8i v8_first(int n) {
    return (v8i){0, 1, 2, 3, 4, 5, 6, 7} < v8i_set1(n);
}

#ifdef SB_AVX2
SB_INLINE v8 v8_fma(v8 a, v8 b, v8 c) { return (v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
/* Where a lane is not a number, the second argument wins. */
SB_INLINE v8 v8_max(v8 a, v8 b) { return (v8)_mm256_max_ps((__m256)a, (__m256)b); }
SB_INLINE v8 v8_min(v8 a, v8 b) { return (v8)_mm256_min_ps((__m256)a, (__m256)b); }
SB_INLINE v8i v8_round(v8 a) { return (v8i)_mm256_cvtps_epi32((__m256)a); }
SB_INLINE v8 v8_float(v8i a) { return (v8)_mm256_cvtepi32_ps((__m256i)a); }
/* Eight float16 numbers. */
SB_INLINE v8 v8_load_half(const uint8_t *p) {
    return (v8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
#else
SB_INLINE v8 v8_fma(v8 a, v8 b, v8 c) { return a * b + c; }
SB_INLINE v8 v8_max(v8 a, v8 b) { return v8_select(a > b, a, b); }
SB_INLINE v8 v8_min(v8 a, v8 b) { return v8_select(a < b, a, b); }
/* Nearest integer of |a| < 2^22: adding 1.5 * 2^23 leaves it in the low bits. */
SB_INLINE v8i v8_round(v8 a) {
    return (v8i)(a + v8_set1(12582912.0f)) - (v8i)v8_set1(12582912.0f);
}
SB_INLINE v8 v8_float(v8i a) { return __builtin_convertvector(a, v8); }
/* Exponent and mantissa move to their places; multiplying by 2^112 moves the exponent's bias and
 * turns float16 denormals into normal numbers.  Weights are finite: infinities are not kept. */
SB_INLINE v8 v8_load_half(const uint8_t *p) {
    uint16_t bits[8];
    memcpy(bits, p, sizeof(bits));
    v8u x;
    for (int i = 0; i < 8; i++) x[i] = bits[i];
    v8 magnitude = (v8)((x & 0x7FFFu) << 13) * v8_set1(0x1p112f);
    return (v8)((v8u)magnitude | (x & 0x8000u) << 16);
}
#endif

#define SB_HALVES(x) SB_SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3)
#define SB_PAIRS(x) SB_SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5)
#define SB_NEIGHBOURS(x) SB_SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6)

/* The tree of additions is part of the result: never reorder it. */
SB_INLINE float v8_sum(v8 x) {
    x = x + SB_HALVES(x);
    x = x + SB_PAIRS(x);
    x = x + SB_NEIGHBOURS(x);
    return x[0];
}
SB_INLINE float v8_top(v8 x) {
    x = v8_max(x, SB_HALVES(x));
    x = v8_max(x, SB_PAIRS(x));
    x = v8_max(x, SB_NEIGHBOURS(x));
    return x[0];
}

/* The sums of four vectors, each by the tree of v8_sum. */
SB_INLINE void v8_sum4(float *out, const v8 *x) {
    v8 half[2], all;
    SB_FOR(2, i, 2, { /* four sums of two lanes for x[2i], then for x[2i + 1] */
        half[i] = SB_SHUFFLE(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11) +
                  SB_SHUFFLE(x[2 * i], x[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15);
    })
    all = SB_SHUFFLE(half[0], half[1], 0, 1, 8, 9, 4, 5, 12, 13) +
          SB_SHUFFLE(half[0], half[1], 2, 3, 10, 11, 6, 7, 14, 15);
    all = all + SB_NEIGHBOURS(all); /* pairs of equal lanes: x0, x2, x1, x3 */
    out[0] = all[0], out[1] = all[4], out[2] = all[2], out[3] = all[6];
}

/* Transposes eight rows of eight floats in place. */
SB_INLINE void v8_transpose(v8 rows[8]) {
    v8 t[8], u[8];
    SB_FOR(4, i, 4, {
        t[2 * i] = SB_SHUFFLE(rows[2 * i], rows[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[2 * i + 1] = SB_SHUFFLE(rows[2 * i], rows[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    })
    SB_FOR(2, i, 2, SB_FOR(2, j, 2, {
        const v8 a = t[4 * i + j];
        const v8 b = t[4 * i + 2 + j];
        u[4 * i + 2 * j] = SB_SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
        u[4 * i + 2 * j + 1] = SB_SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }))
    SB_FOR(4, i, 4, {
        rows[i] = SB_SHUFFLE(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] = SB_SHUFFLE(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    })
}

/* e^x, relative error below 3e-7.  Zero under -87.33 (no denormals), infinite above 88.37, NaN kept.
 * Range reduction and coefficients: Cephes expf (S. Moshier).  For vectors of any width: F of floats, I of
 * integers. */
#define SB_EXPONENTIAL(F, I)                                                                                           \
    SB_INLINE F F##_exp(F x) {                                                                                         \
        I vanishes = x < F##_set1(-87.33f), explodes = x > F##_set1(88.37f);                                           \
        F t = F##_min(F##_set1(88.37f), F##_max(F##_set1(-87.33f), x));                                                \
        I n = F##_round(t * F##_set1(1.44269504f));                                                                    \
        F f = __builtin_convertvector(n, F);                                                                           \
        F r = F##_fma(f, F##_set1(-0.693359375f), t);                                                                  \
        r = F##_fma(f, F##_set1(2.12194440e-4f), r);                                                                   \
        F p = F##_set1(1.9875691500e-4f);                                                                              \
        p = F##_fma(p, r, F##_set1(1.3981999507e-3f));                                                                 \
        p = F##_fma(p, r, F##_set1(8.3334519073e-3f));                                                                 \
        p = F##_fma(p, r, F##_set1(4.1665795894e-2f));                                                                 \
        p = F##_fma(p, r, F##_set1(1.6666665459e-1f));                                                                 \
        p = F##_fma(p, r, F##_set1(5.0000001201e-1f));                                                                 \
        F y = F##_fma(p, r * r, r) + F##_set1(1.0f);                                                                   \
        F finite = (F)(~vanishes & (I)(y * (F)((n + 127) << 23)));                                                     \
        return (F)((explodes & (I)F##_set1(INFINITY)) | (~explodes & (I)finite));                                      \
    }
SB_EXPONENTIAL(v8, v8i)

#endif

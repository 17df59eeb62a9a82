/* Four double or 64-bit lanes, for what float32 is too coarse for. */
#ifndef SB_SIMD64_H
#define SB_SIMD64_H

#include "simd.h"

typedef double v4d __attribute__((vector_size(32)));
typedef int64_t v4l __attribute__((vector_size(32)));
typedef uint64_t v4u __attribute__((vector_size(32)));

SB_INLINE v4d v4d_load(const double *p) {
    v4d x;
    memcpy(&x, p, sizeof(x));
    return x;
}
SB_INLINE void v4d_store(double *p, v4d x) { memcpy(p, &x, sizeof(x)); }
SB_INLINE v4d v4d_set1(double x) { return (v4d){x, x, x, x}; }
SB_INLINE v4d v4d_select(v4l mask, v4d yes, v4d no) { return (v4d)((mask & (v4l)yes) | (~mask & (v4l)no)); }
#ifdef SB_AVX2
SB_INLINE v4d v4d_fma(v4d a, v4d b, v4d c) { return (v4d)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
SB_INLINE int v4l_any(v4l mask) { return !_mm256_testz_si256((__m256i)mask, (__m256i)mask); }
#else
SB_INLINE v4d v4d_fma(v4d a, v4d b, v4d c) { return a * b + c; }
SB_INLINE int v4l_any(v4l mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }
#endif

/* e^x for x <= 0, relative error below 1e-15; 0 under -708. */
SB_INLINE v4d v4d_exp(v4d x) {
    const double shifter = 6755399441055744.0; /* 1.5 * 2^52: the sum holds an integer in its low bits */
    v4d t = v4d_select(x < v4d_set1(-708.0), v4d_set1(-708.0), x);
    v4d n = t * v4d_set1(1.4426950408889634) + v4d_set1(shifter);
    v4d whole = n - v4d_set1(shifter);
    v4d r = v4d_fma(whole, v4d_set1(-6.93147180369123816490e-01), t);
    r = v4d_fma(whole, v4d_set1(-1.90821492927058770002e-10), r);
    /* Taylor series up to r^13 / 13! */
    v4d y = v4d_set1(1.0 / 6227020800);
    y = v4d_fma(y, r, v4d_set1(1.0 / 479001600));
    y = v4d_fma(y, r, v4d_set1(1.0 / 39916800));
    y = v4d_fma(y, r, v4d_set1(1.0 / 3628800));
    y = v4d_fma(y, r, v4d_set1(1.0 / 362880));
    y = v4d_fma(y, r, v4d_set1(1.0 / 40320));
    y = v4d_fma(y, r, v4d_set1(1.0 / 5040));
    y = v4d_fma(y, r, v4d_set1(1.0 / 720));
    y = v4d_fma(y, r, v4d_set1(1.0 / 120));
    y = v4d_fma(y, r, v4d_set1(1.0 / 24));
    y = v4d_fma(y, r, v4d_set1(1.0 / 6));
    y = v4d_fma(y, r, v4d_set1(1.0 / 2));
    y = v4d_fma(y, r, v4d_set1(1.0));
    y = v4d_fma(y, r, v4d_set1(1.0));
    v4d scale = (v4d)(((v4l)n << 52) + (v4l)v4d_set1(1.0));
    return v4d_select(x < v4d_set1(-708.0), v4d_set1(0.0), y * scale);
}

/* A lower bound of log2(x) for x > 0, at most 0.09 too small, -1023 for 0: the bits of a positive double are
 * its exponent followed by a mantissa f, and log2(1 + f) >= f. */
SB_INLINE v4d v4d_log2_below(v4d x) {
    typedef int32_t v4i __attribute__((vector_size(16)));
    v4i high = __builtin_convertvector((v4l)x >> 32, v4i);
    return __builtin_convertvector(high, v4d) * v4d_set1(0x1p-20) - v4d_set1(1023.0);
}

#endif

/* The widest vectors of the processor, for lanes that never meet: their number is no part of a result, what is
 * fused decides.
 */
#ifndef SB_LANES_H
#define SB_LANES_H

#include "simd.h"

#ifdef SB_AVX512
typedef int32_t vti __attribute__((vector_size(64)));
typedef uint32_t vtu __attribute__((vector_size(64)));
typedef float vt __attribute__((vector_size(64)));

SB_INLINE vt vt_load(const float *p) { return (vt)_mm512_loadu_ps(p); }
/* The first n < 16 lanes from memory, 0 in the others. */
SB_INLINE vt vt_load_first(const float *p, int64_t n) {
    return (vt)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
SB_INLINE vtu vtu_load(const uint8_t *p) { return (vtu)_mm512_loadu_si512(p); }
SB_INLINE void vt_store(float *p, vt x) { _mm512_storeu_ps(p, (__m512)x); }
SB_INLINE vt vt_zero(void) { return (vt)_mm512_setzero_ps(); }
SB_INLINE vt vt_set1(float x) { return (vt)_mm512_set1_ps(x); }
SB_INLINE vt vt_fma(vt a, vt b, vt c) { return (vt)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
SB_INLINE vt vt_max(vt a, vt b) { return (vt)_mm512_max_ps((__m512)a, (__m512)b); }
SB_INLINE vt vt_min(vt a, vt b) { return (vt)_mm512_min_ps((__m512)a, (__m512)b); }
SB_INLINE vti vt_round(vt a) { return (vti)_mm512_cvtps_epi32((__m512)a); }
SB_INLINE vt vt_float(vtu a) { return (vt)_mm512_cvtepi32_ps((__m512i)a); }
SB_INLINE vt vt_load_half(const uint8_t *p) { return (vt)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
SB_EXPONENTIAL(vt, vti)

/* 24 sums leave room for what they are made of. */
#define REGISTERS 32
#define SUMS 24
#define SB_FOR_SUMS SB_FOR_24
#else
typedef v8u vtu;
typedef v8 vt;

SB_INLINE vt vt_load(const float *p) { return v8_load(p); }
SB_INLINE vt vt_load_first(const float *p, int64_t n) { return v8_load_first(p, n); }
SB_INLINE vtu vtu_load(const uint8_t *p) { return v8u_load(p); }
SB_INLINE void vt_store(float *p, vt x) { v8_store(p, x); }
SB_INLINE vt vt_zero(void) { return v8_zero(); }
SB_INLINE vt vt_set1(float x) { return v8_set1(x); }
SB_INLINE vt vt_fma(vt a, vt b, vt c) { return v8_fma(a, b, c); }
SB_INLINE vt vt_float(vtu a) { return v8_float((v8i)a); }
SB_INLINE vt vt_load_half(const uint8_t *p) { return v8_load_half(p); }
SB_INLINE vt vt_exp(vt x) { return v8_exp(x); }

#define REGISTERS 16
#define SUMS 12
#define SB_FOR_SUMS SB_FOR_12
#endif

#define VT_LANES ((int)(sizeof(vt) / sizeof(float)))

#endif

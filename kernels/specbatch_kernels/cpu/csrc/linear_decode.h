/* From packed quants to float32 weights, eight rows at a time.  w = fma(quant, scale, minimum) is
 * rounded once, like the exact product and sum of the format's definition.
 *
 * Quants are taken from their lanes in pairs.  The second of a pair stays where it is in the lane, a
 * power of two too large, and meets a scale that is smaller by the same power: one shift serves two.
 */
#ifndef SB_LINEAR_DECODE_H
#define SB_LINEAR_DECODE_H

#include "matrix.h"
#include "simd.h"

/* Of eight rows of one block: scales for the first and second of a pair, and the minimum. */
typedef struct {
    v8 scale[2], minimum;
} half_scales;

SB_INLINE int quant_bits(const sb_type type) { return type == SB_Q8_0 ? 8 : 4; }

/* Inputs that one vector of lanes holds. */
SB_INLINE int lane_inputs(const sb_type type) { return 32 / quant_bits(type); }

/* Rows 0-7 (half 0) or 8-15 of a tile. */
SB_INLINE void load_scales(half_scales *s, const uint8_t *block, int half, const sb_type type) {
    v8 scale = v8_load_half(block + 16 * half);
    s->scale[0] = scale;
    s->scale[1] = scale * v8_set1(type == SB_Q8_0 ? 1.0f / 256.0f : 1.0f / 16.0f);
    if (type == SB_Q4_1) s->minimum = v8_load_half(block + 32 + 16 * half);
    if (type == SB_Q4_0) s->minimum = scale * v8_set1(-8.0f);
    if (type == SB_Q8_0) s->minimum = scale * v8_set1(-128.0f);
}

SB_INLINE const uint8_t *block_quants(const uint8_t *block, const sb_type type) {
    return block + (type == SB_Q4_1 ? 64 : 32);
}

/* Brings a pair to the bottom of its lanes; pair and type are constants once inlined. */
SB_INLINE v8u shift_to_pair(v8u lanes, const int pair, const sb_type type) {
    return pair ? lanes >> (uint32_t)(2 * quant_bits(type) * pair) : lanes;
}

/* The first or second weight of a pair that is at the bottom. */
SB_INLINE v8 decode(v8u pair, const half_scales *s, const int second, const sb_type type) {
    const uint32_t mask = (1u << quant_bits(type)) - 1u;
    v8u quant = pair & (second ? mask << quant_bits(type) : mask);
    return v8_fma(v8_float((v8i)quant), s->scale[second], s->minimum);
}

#endif

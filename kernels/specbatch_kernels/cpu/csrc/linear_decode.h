/* From packed quants to float32 weights, a vector of rows at a time.  w = fma(quant, scale, minimum) is
 * rounded once, like the exact product and sum of the format's definition.
 *
 * Quants are taken from their lanes in pairs.  The second of a pair stays where it is in the lane, a
 * power of two too large, and meets a scale that is smaller by the same power: one shift serves two.
 */
#ifndef SB_LINEAR_DECODE_H
#define SB_LINEAR_DECODE_H

#include "linear_lanes.h"

/* Of one vector of rows of one block: scales for the first and second of a pair, and the minimum. */
typedef struct {
    vt scale[2], minimum;
} part_scales;

SB_INLINE int quant_bits(const sb_type type) { return type == SB_Q8_0 ? 8 : 4; }

/* Inputs that one vector of lanes holds. */
SB_INLINE int lane_inputs(const sb_type type) { return 32 / quant_bits(type); }

/* Rows from `part` * VT_LANES of a tile on. */
SB_INLINE void load_scales(part_scales *s, const uint8_t *block, int part, const sb_type type) {
    const uint8_t *halves = block + part * VT_LANES * (int)sizeof(uint16_t);
    vt scale = vt_load_half(halves);
    s->scale[0] = scale;
    s->scale[1] = scale * vt_set1(type == SB_Q8_0 ? 1.0f / 256.0f : 1.0f / 16.0f);
    if (type == SB_Q4_1) s->minimum = vt_load_half(halves + 32);
    if (type == SB_Q4_0) s->minimum = scale * vt_set1(-8.0f);
    if (type == SB_Q8_0) s->minimum = scale * vt_set1(-128.0f);
}

SB_INLINE const uint8_t *block_quants(const uint8_t *block, const sb_type type) {
    return block + (type == SB_Q4_1 ? 64 : 32);
}

/* Brings a pair to the bottom of its lanes; pair and type are constants once inlined. */
SB_INLINE vtu shift_to_pair(vtu lanes, const int pair, const sb_type type) {
    return pair ? lanes >> (uint32_t)(2 * quant_bits(type) * pair) : lanes;
}

/* The first or second weight of a pair that is at the bottom. */
SB_INLINE vt decode(vtu pair, const part_scales *s, const int second, const sb_type type) {
    const uint32_t mask = (1u << quant_bits(type)) - 1u;
    vtu quant = pair & (second ? mask << quant_bits(type) : mask);
    return vt_fma(vt_float(quant), s->scale[second], s->minimum);
}

#endif

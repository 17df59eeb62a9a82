/* Packed weight matrices.
 *
 * SB_TILE output rows form a tile, tiles follow each other, and inside a tile everything that is
 * needed for the same inputs lies together, so that a pass over the weights is one stream.  For
 * each block of SB_QBLOCK inputs a tile holds
 *
 *     float16 scale[16], float16 minimum[16] (Q4_1 only), quants
 *
 * with w = quant * scale + minimum, where Q4_0 means minimum = -8 * scale and Q8_0, its quants
 * stored plus 128, minimum = -128 * scale: all exact in float32.  Quants come as vectors of eight
 * 32-bit lanes, one lane per row (rows 0-7, then rows 8-15); a lane holds the row's next 8 (4-bit)
 * or 4 (8-bit) inputs, first input lowest.  A float32 tile is simply [inputs, 16].
 */
#ifndef SB_MATRIX_H
#define SB_MATRIX_H

#include <stddef.h>
#include <stdint.h>

#define SB_TILE 16
#define SB_QBLOCK 32

typedef enum { SB_F32, SB_Q4_0, SB_Q4_1, SB_Q8_0, SB_TYPES } sb_type;

typedef struct {
    const uint8_t *data;
    const float *bias; /* [rows], or NULL */
    int64_t rows, cols;
    sb_type type;
    int int8; /* inputs are rounded to eight bits before they are multiplied */
} sb_matrix;

static inline int64_t sb_tiles(int64_t rows) { return (rows + SB_TILE - 1) / SB_TILE; }

/* Bytes of one tile and one block of inputs; of one input for float32. */
static inline int64_t sb_block_bytes(sb_type type) {
    if (type == SB_F32) return SB_TILE * (int64_t)sizeof(float);
    int64_t scales = (type == SB_Q4_1 ? 2 : 1) * SB_TILE * (int64_t)sizeof(uint16_t);
    return scales + SB_TILE * SB_QBLOCK / (type == SB_Q8_0 ? 1 : 2);
}

static inline int64_t sb_tile_bytes(sb_type type, int64_t cols) {
    return sb_block_bytes(type) * (type == SB_F32 ? cols : cols / SB_QBLOCK);
}

/* A matrix to pack: for every row of its tiles where that row lies as GGUF stores it (float32, or
 * 32-element blocks with their scales in front), NULL for a row of zeros. */
typedef struct {
    uint8_t *packed;
    const uint8_t *const *rows; /* [tiles * SB_TILE] */
    int64_t tiles, cols;
    sb_type type;
} sb_packing;

void sb_pack(const sb_packing *p);

#endif

/* Repacks GGUF rows into tiles.  Runs once per model, so it is written to be read. */
#include "matrix.h"

#include <string.h>

/* GGUF blocks: Q4_0 = scale, 16 bytes; Q4_1 = scale, minimum, 16 bytes; Q8_0 = scale, 32 bytes.
 * Byte i of a 4-bit block holds element i in its low half and element i + 16 in its high half. */
static int64_t source_header(sb_type type) { return type == SB_Q4_1 ? 4 : 2; }

static int64_t source_block(sb_type type) { return source_header(type) + (type == SB_Q8_0 ? 32 : 16); }

static int64_t source_row(sb_type type, int64_t cols) {
    return type == SB_F32 ? cols * (int64_t)sizeof(float) : cols / SB_QBLOCK * source_block(type);
}

static uint32_t quant_at(sb_type type, const uint8_t *quants, int k) {
    if (type == SB_Q8_0) return quants[k] ^ 0x80u; /* the signed value plus 128 */
    return k < 16 ? quants[k] & 15u : quants[k - 16] >> 4;
}

/* One row's share of one packed block. */
static void pack_block(uint8_t *packed, sb_type type, const uint8_t *source, int row) {
    memcpy(packed + 2 * row, source, 2);
    packed += 2 * SB_TILE;
    if (type == SB_Q4_1) {
        memcpy(packed + 2 * row, source + 2, 2);
        packed += 2 * SB_TILE;
    }
    int bits = type == SB_Q8_0 ? 8 : 4, per_lane = 32 / bits;
    for (int k = 0; k < SB_QBLOCK; k += per_lane) {
        uint32_t lane = 0;
        for (int i = 0; i < per_lane; i++)
            lane |= quant_at(type, source + source_header(type), k + i) << (bits * i);
        memcpy(packed + k / per_lane * SB_TILE * 4 + 4 * row, &lane, 4);
    }
}

static void pack_row(uint8_t *tile, sb_type type, const uint8_t *source, int row, int64_t cols) {
    if (type == SB_F32) {
        for (int64_t k = 0; k < cols; k++) memcpy(tile + 4 * (k * SB_TILE + row), source + 4 * k, 4);
        return;
    }
    for (int64_t b = 0; b < cols / SB_QBLOCK; b++)
        pack_block(tile + b * sb_block_bytes(type), type, source + b * source_block(type), row);
}

void sb_pack(uint8_t *packed, sb_type type, const uint8_t *source, const int32_t *row_map, int64_t tiles,
             int64_t cols) {
    int64_t bytes = sb_tile_bytes(type, cols);
    for (int64_t i = 0; i < tiles; i++, packed += bytes) {
        memset(packed, 0, (size_t)bytes); /* a scale of 0 makes rows of zeros */
        for (int row = 0; row < SB_TILE; row++) {
            int64_t from = row_map[i * SB_TILE + row];
            if (from >= 0) pack_row(packed, type, source + from * source_row(type, cols), row, cols);
        }
    }
}
